//! POSIX ACLs from their text form, as archives carry them, to the kernel's xattr form (version 2).

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// Most entries of one ACL that fit into an extended attribute of 64 KiB.
const ENTRIES: usize = 8191;

/// Whether a name is looked up as a user's or a group's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Who {
    User,
    Group,
}

/// The number that this machine's /etc/passwd or /etc/group gives `name`: what tar does with names when it extracts.
pub(super) fn of_this_machine(who: Who, name: &str) -> Option<u32> {
    static FILES: sync::LazyLock<[String; 2]> = sync::LazyLock::new(|| {
        ["/etc/passwd", "/etc/group"].map(|path| std::fs::read_to_string(path).unwrap_or_default())
    });
    let lines = &FILES[usize::from(who == Who::Group)];
    let mut numbers = lines.lines().filter_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? == name {
            fields.nth(1)?.parse().ok()
        } else {
            None
        }
    });
    numbers.next()
}

/// Reads entries divided by commas or newlines: `user::rwx`, `user:1000:r--`, `user:name:r--:1000`, `mask::r-x`, ...;
/// text after a `#` is a comment. `None` if the ACL adds nothing to the mode (access ACLs of three entries).
///
/// # Errors
/// If an entry is malformed, or has a name without a number and `lookup` does not know the name.
pub(super) fn to_xattr(
    text: &[u8],
    default: bool,
    lookup: impl Fn(Who, &str) -> Option<u32>,
) -> Result<Option<Vec<u8>>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "an ACL is not text")?;
    let mut entries = Vec::new();
    for part in text.split([',', '\n']) {
        let part = part.split('#').next().unwrap_or_default().trim();
        if !part.is_empty() {
            entries.push(entry(part, &lookup)?);
        }
        if entries.len() > ENTRIES {
            return Err(format!("an ACL has more than {ENTRIES} entries"));
        }
    }
    if entries.is_empty() {
        return Ok(None);
    }
    entries.sort_unstable();
    let once = |tag| entries.iter().filter(|entry| entry.0 == tag).count() == 1;
    let has = |tag| entries.iter().any(|entry| entry.0 == tag);
    let named = has(USER) || has(GROUP);
    let mask = entries.iter().filter(|entry| entry.0 == MASK).count();
    if !(once(USER_OBJ) && once(GROUP_OBJ) && once(OTHER)) || mask > 1 || named && mask == 0 {
        return Err(format!(
            "the ACL `{}` lacks an entry or has one twice",
            text.chars().take(200).collect::<String>().escape_debug()
        ));
    }
    if entries
        .windows(2)
        .any(|pair| pair[0].0 == pair[1].0 && pair[0].1 == pair[1].1)
    {
        return Err("an ACL has two entries for one user or group".into());
    }
    if entries.len() == 3 && !default {
        return Ok(None);
    }
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Ok(Some(value))
}

/// Tag, id and permissions of one entry.
fn entry(text: &str, lookup: impl Fn(Who, &str) -> Option<u32>) -> Result<(u16, u32, u16), String> {
    let malformed = || format!("`{}` is not an entry of an ACL", text.escape_debug());
    // Some programs write the entries of a default ACL as `default:user::rwx`.
    let text = text
        .strip_prefix("default:")
        .or_else(|| text.strip_prefix("d:"))
        .unwrap_or(text);
    let fields: Vec<&str> = text.split(':').map(str::trim).collect();
    let (who, permissions, number) = match fields[..] {
        // `other:r--` and `mask:r-x` are written without the empty field, too.
        ["other" | "o" | "mask" | "m", permissions] => ("", permissions, None),
        [_, who, permissions] => (who, permissions, None),
        [_, who, permissions, number] => (who, permissions, Some(number)),
        _ => return Err(malformed()),
    };
    let tag = match (fields[0], who.is_empty()) {
        ("user" | "u", true) => USER_OBJ,
        ("user" | "u", false) => USER,
        ("group" | "g", true) => GROUP_OBJ,
        ("group" | "g", false) => GROUP,
        ("mask" | "m", true) => MASK,
        ("other" | "o", true) => OTHER,
        _ => return Err(malformed()),
    };
    let mut bits = 0;
    for letter in permissions.chars() {
        bits |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return Err(malformed()),
        };
    }
    let id = if who.is_empty() {
        NO_ID
    } else {
        let kind = if tag == USER { Who::User } else { Who::Group };
        let id = number
            .unwrap_or(who)
            .parse()
            .ok()
            .or_else(|| lookup(kind, who));
        id.ok_or_else(|| {
            format!(
                "an ACL names `{}`, whom this machine does not know",
                who.escape_debug()
            )
        })?
    };
    Ok((tag, id, bits))
}

#[cfg(test)]
mod tests {
    use super::{Who, of_this_machine};

    fn to_xattr(text: &[u8], default: bool) -> Result<Option<Vec<u8>>, String> {
        let jim = |who, name: &str| (who == Who::User && name == "jim").then_some(7);
        super::to_xattr(text, default, jim)
    }

    #[test]
    fn an_acl_becomes_the_kernels_bytes() {
        let text = b"user::rw-\nuser:7:r--\t#effective:r--\ngroup::r-x,mask::r-x\nother::---\n";
        let value = to_xattr(text, false).unwrap().unwrap();
        let mut expected = vec![2, 0, 0, 0];
        for (tag, permissions, id) in [
            (1, 6, u32::MAX),
            (2, 4, 7),
            (4, 5, u32::MAX),
            (16, 5, u32::MAX),
            (32, 0, u32::MAX),
        ] {
            expected.extend_from_slice(&[tag, 0, permissions, 0]);
            expected.extend_from_slice(&id.to_le_bytes());
        }
        assert_eq!(value, expected);
        assert_eq!(
            to_xattr(b"u::rw-,u:joe:r--:7,g::r-x,m:r-x,o:---", false).unwrap(),
            Some(value.clone())
        );
        let by_name = b"u::rw-,u:jim:r--,g::r-x,m:r-x,o:---";
        assert_eq!(to_xattr(by_name, false).unwrap(), Some(value));
        assert_eq!(of_this_machine(Who::User, "root"), Some(0));
        assert_eq!(of_this_machine(Who::Group, "no such group"), None);
    }

    #[test]
    fn an_access_acl_that_says_no_more_than_the_mode_is_none() {
        assert_eq!(
            to_xattr(b"user::rw-,group::r--,other::r--", false).unwrap(),
            None
        );
        assert!(
            to_xattr(b"user::rw-,group::r--,other::r--", true)
                .unwrap()
                .is_some()
        );
        assert_eq!(to_xattr(b"", true).unwrap(), None);
    }

    #[test]
    fn a_malformed_acl_is_refused() {
        for wrong in [
            "user::rw-",
            "user::rw-,user:joe:r--,group::r--,mask::r--,other::r--",
            "user::rw-,user:7:r--,group::r--,other::r--",
            "user::rw-,user:7:r--,user:7:rw-,group::r--,mask::r--,other::r--",
            "user::rwz,group::r--,other::r--",
            "who::rwx",
            "a:b:c:d:e",
        ] {
            assert!(to_xattr(wrong.as_bytes(), false).is_err(), "{wrong}");
        }
    }
}
