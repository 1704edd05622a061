//! File capabilities from text such as `cap_net_raw,cap_net_admin+ep` to the value of `security.capability`.

/// Names by number, as `linux/capability.h` has them.
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

const REVISION_2: u32 = 0x0200_0000;
const EFFECTIVE: u32 = 1;

/// Reads clauses divided by white space, each a list of names (none or `all` for all) and one or more of `=`, `+`, `-`
/// with letters of `eip`.
///
/// # Errors
/// When a name or letter is unknown.
pub(super) fn to_xattr(text: &str) -> Result<[u8; 20], String> {
    // Effective, inheritable, permitted.
    let mut sets = [0_u64; 3];
    for clause in text.split_whitespace() {
        let wrong = || format!("`{}` is not a capability", clause.escape_debug());
        let start = clause.find(['=', '+', '-']).ok_or_else(wrong)?;
        let mut mask = 0;
        for name in clause[..start].split(',').filter(|name| !name.is_empty()) {
            let name = name.to_lowercase();
            let known = |known: &&str| name.strip_prefix("cap_") == Some(known);
            mask |= match NAMES.iter().position(known) {
                _ if name == "all" => (1 << NAMES.len()) - 1,
                Some(number) => 1 << number,
                None => return Err(format!("`{}` is not a capability", name.escape_debug())),
            };
        }
        if start == 0 {
            mask = (1 << NAMES.len()) - 1;
        }
        let mut operator = '=';
        for letter in clause[start..].chars() {
            match letter {
                '=' | '+' | '-' => {
                    operator = letter;
                    if letter == '=' {
                        sets.iter_mut().for_each(|set| *set &= !mask);
                    }
                }
                'e' | 'i' | 'p' => {
                    let set = &mut sets[['e', 'i', 'p']
                        .iter()
                        .position(|l| *l == letter)
                        .unwrap_or(0)];
                    *set = if operator == '-' {
                        *set & !mask
                    } else {
                        *set | mask
                    };
                }
                _ => return Err(wrong()),
            }
        }
    }
    let [effective, inheritable, permitted] = sets;
    let magic = REVISION_2 | if effective == 0 { 0 } else { EFFECTIVE };
    let words = [
        magic,
        (permitted & 0xffff_ffff) as u32,
        (inheritable & 0xffff_ffff) as u32,
        (permitted >> 32) as u32,
        (inheritable >> 32) as u32,
    ];
    let mut value = [0; 20];
    for (place, word) in value.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::to_xattr;

    #[test]
    fn capabilities_become_the_bytes_that_setcap_writes() {
        // From `setcap cap_net_raw+ep` and `getfattr`.
        let mut net_raw = [0; 20];
        net_raw[..8].copy_from_slice(&[1, 0, 0, 2, 0, 0x20, 0, 0]);
        assert_eq!(to_xattr("cap_net_raw+ep").unwrap(), net_raw);
        assert_eq!(to_xattr("CAP_NET_RAW=p cap_net_raw+e").unwrap(), net_raw);
        assert_eq!(
            to_xattr("cap_net_raw,cap_chown=ep cap_chown-ep").unwrap(),
            net_raw
        );
        let bpf = to_xattr("cap_bpf=i").unwrap();
        assert_eq!((bpf[0], bpf[16]), (0, 1 << 7));
        assert!(to_xattr("cap_nothing+ep").is_err());
        assert!(to_xattr("cap_chown+x").is_err());
        assert!(to_xattr("cap_chown").is_err());
    }
}
