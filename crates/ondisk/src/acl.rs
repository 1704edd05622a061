//! POSIX ACLs: ext4 stores a shorter form (version 1) than system calls and tools exchange (version 2).
//!
//! ```text
//! version 1, on disk    version (4) | tag perm (4), or tag perm id (8) for named users and groups | ...
//! version 2, exchanged  version (4) | tag perm id (8) | ...      id = 0xffff_ffff where there is none
//! ```

use crate::site::{Corrupt, Site};

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Whether entries with this tag have a user's or group's number; `None` for a tag without meaning.
fn is_named(tag: u16) -> Option<bool> {
    match tag {
        USER | GROUP => Some(true),
        USER_OBJ | GROUP_OBJ | MASK | OTHER => Some(false),
        _ => None,
    }
}

/// The tag in the low half of an entry's first word; the permissions are in the high half.
fn tag_of(word: u32) -> u16 {
    (word & 0xffff) as u16
}

fn disk_to_xattr_entries(disk: &[u8]) -> Option<Vec<u8>> {
    if u32_at(disk, 0)? != DISK_VERSION {
        return None;
    }
    let mut xattr = XATTR_VERSION.to_le_bytes().to_vec();
    let mut at = 4;
    while at < disk.len() {
        let word = u32_at(disk, at)?;
        at += 4;
        let id = if is_named(tag_of(word))? {
            at += 4;
            u32_at(disk, at - 4)?
        } else {
            NO_ID
        };
        xattr.extend_from_slice(&word.to_le_bytes());
        xattr.extend_from_slice(&id.to_le_bytes());
    }
    Some(xattr)
}

/// The form that system calls and tools exchange, from the form on disk; at most twice as long.
///
/// # Errors
/// When the version, a tag or the length is wrong.
pub fn disk_to_xattr(disk: &[u8]) -> Result<Vec<u8>, Corrupt> {
    disk_to_xattr_entries(disk).ok_or_else(|| Corrupt::at(Site::AclFormat))
}

/// The form on disk, from the form that system calls and tools exchange; `None` if that is malformed.
#[must_use]
pub fn xattr_to_disk(xattr: &[u8]) -> Option<Vec<u8>> {
    if u32_at(xattr, 0)? != XATTR_VERSION {
        return None;
    }
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    let mut at = 4;
    while at < xattr.len() {
        let word = u32_at(xattr, at)?;
        let id = u32_at(xattr, at + 4)?;
        at += 8;
        disk.extend_from_slice(&word.to_le_bytes());
        if is_named(tag_of(word))? {
            disk.extend_from_slice(&id.to_le_bytes());
        }
    }
    Some(disk)
}

/// The user, group or class that an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AclTag {
    /// The owner.
    Owner,
    /// A user by number.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// A group by number.
    Group(u32),
    /// The most that named users and all groups get.
    Mask,
    /// Everyone else.
    Other,
}

/// One entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AclEntry {
    /// The user, group or class that it is about.
    pub tag: AclTag,
    /// Read 4, write 2, execute 1; other bits as they were found.
    pub permissions: u16,
}

/// The entries of a list in the form that is exchanged; `None` if that is malformed.
#[must_use]
pub fn parse(xattr: &[u8]) -> Option<Vec<AclEntry>> {
    let (version, entries) = xattr.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != XATTR_VERSION || !entries.len().is_multiple_of(8) {
        return None;
    }
    let entry = |bytes: &[u8]| {
        let (word, id) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
        let tag = match tag_of(word) {
            USER_OBJ => AclTag::Owner,
            USER => AclTag::User(id),
            GROUP_OBJ => AclTag::OwningGroup,
            GROUP => AclTag::Group(id),
            MASK => AclTag::Mask,
            OTHER => AclTag::Other,
            _ => return None,
        };
        Some(AclEntry {
            tag,
            permissions: (word >> 16) as u16,
        })
    };
    entries.chunks_exact(8).map(entry).collect()
}

/// The form on disk of these entries.
#[must_use]
pub fn encode(entries: &[AclEntry]) -> Vec<u8> {
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, id) = match entry.tag {
            AclTag::Owner => (USER_OBJ, None),
            AclTag::User(id) => (USER, Some(id)),
            AclTag::OwningGroup => (GROUP_OBJ, None),
            AclTag::Group(id) => (GROUP, Some(id)),
            AclTag::Mask => (MASK, None),
            AclTag::Other => (OTHER, None),
        };
        disk.extend_from_slice(&tag.to_le_bytes());
        disk.extend_from_slice(&entry.permissions.to_le_bytes());
        disk.extend(id.map(u32::to_le_bytes).into_iter().flatten());
    }
    disk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_those_of_the_bytes() {
        let entries = parse(&disk_to_xattr(DISK).unwrap()).unwrap();
        let tags: Vec<(AclTag, u16)> = entries.iter().map(|e| (e.tag, e.permissions)).collect();
        let expected = [
            (AclTag::Owner, 6),
            (AclTag::User(1000), 6),
            (AclTag::OwningGroup, 4),
            (AclTag::Group(7), 4),
            (AclTag::Mask, 6),
            (AclTag::Other, 4),
        ];
        assert_eq!(tags, expected);
        assert_eq!(encode(&entries), DISK);
    }

    /// What `setfacl -m u:1000:rw,g:7:r` on a file of mode 644 stores, entry by entry.
    const DISK: &[u8] = &[
        1, 0, 0, 0, // version
        1, 0, 6, 0, // user::rw-
        2, 0, 6, 0, 0xe8, 3, 0, 0, // user:1000:rw-
        4, 0, 4, 0, // group::r--
        8, 0, 4, 0, 7, 0, 0, 0, // group:7:r--
        16, 0, 6, 0, // mask::rw-
        32, 0, 4, 0, // other::r--
    ];

    #[test]
    fn both_forms_convert_into_each_other() {
        let xattr = disk_to_xattr(DISK).unwrap();
        assert_eq!(xattr.len(), 4 + 6 * 8);
        assert_eq!(xattr[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(xattr[12..20], [2, 0, 6, 0, 0xe8, 3, 0, 0]);
        assert_eq!(xattr_to_disk(&xattr).unwrap(), DISK);
    }

    #[test]
    fn every_cut_in_the_wrong_place_is_an_error() {
        let good = [4, 8, 16, 20, 28, 32, 36];
        for len in 0..DISK.len() {
            assert_eq!(
                disk_to_xattr(&DISK[..len]).is_ok(),
                good.contains(&len),
                "{len}"
            );
        }
        let mut bad_tag = DISK.to_vec();
        bad_tag[4] = 3;
        assert!(disk_to_xattr(&bad_tag).is_err());
        assert_eq!(xattr_to_disk(&bad_tag), None);
    }
}
