//! POSIX ACLs as the text that tar archives hold.

/// The bytes of a version, before the entries.
const HEADER: usize = 4;
/// The bytes of an entry: tag, permissions, owner.
const ENTRY: usize = 8;

/// The text of an ACL in the form that system calls exchange (version 2), as `user::rw-,user:99:r--,...`; none
/// when it is not such an ACL.
pub fn text(value: &[u8]) -> Option<String> {
    let (header, entries) = value.split_at_checked(HEADER)?;
    if header != [2, 0, 0, 0] || entries.len() % ENTRY != 0 {
        return None;
    }
    let lines: Option<Vec<String>> = entries.chunks_exact(ENTRY).map(entry).collect();
    Some(lines?.join(","))
}

fn entry(bytes: &[u8]) -> Option<String> {
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let (kind, named) = match word(0) {
        0x01 => ("user", false),
        0x02 => ("user", true),
        0x04 => ("group", false),
        0x08 => ("group", true),
        0x10 => ("mask", false),
        0x20 => ("other", false),
        _ => return None,
    };
    let may = |bit: u16, letter: char| if word(2) & bit == 0 { '-' } else { letter };
    let permissions: String = [may(4, 'r'), may(2, 'w'), may(1, 'x')].iter().collect();
    let owner = if named { id.to_string() } else { String::new() };
    Some(format!("{kind}:{owner}:{permissions}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acl_becomes_the_text_that_getfacl_shows() {
        let mut acl = vec![2, 0, 0, 0];
        let rows = [
            (1_u8, 6_u8, u32::MAX),
            (2, 4, 99),
            (4, 5, u32::MAX),
            (16, 7, u32::MAX),
            (32, 0, u32::MAX),
        ];
        for (tag, permissions, id) in rows {
            acl.extend([tag, 0, permissions, 0]);
            acl.extend(id.to_le_bytes());
        }
        assert_eq!(
            text(&acl).unwrap(),
            "user::rw-,user:99:r--,group::r-x,mask::rwx,other::---"
        );
        assert_eq!(text(&acl[..9]), None);
        assert_eq!(text(b""), None);
    }
}
