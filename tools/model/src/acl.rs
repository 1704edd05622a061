//! POSIX ACLs as the kernel keeps them beside permission bits: what setting one does to the bits, what chmod does to
//! one, and what new nodes get of their directory's. In the form of system calls (version 2).

use crate::tree::{Kind, ModelId, ModelTree};
use crate::{Errno, OpTarget};

/// The attribute that holds a node's own ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds what new nodes in a directory get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: [u8; 4] = [2, 0, 0, 0];
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NOBODY: u32 = u32::MAX;

/// One line of an ACL: its tag, its permissions, and whom it names.
#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// An ACL with these permission bits and, if `named` says so, a user of this number with these permissions and a mask
/// that is the group's bits.
#[must_use]
pub fn encode(mode: u16, named: Option<(u32, u16)>) -> Vec<u8> {
    let entry = |tag, permissions, id| Entry {
        tag,
        permissions: permissions & 7,
        id,
    };
    let mut entries = vec![entry(OWNER, mode >> 6, NOBODY)];
    if let Some((id, permissions)) = named {
        entries.push(entry(USER, permissions, id));
    }
    entries.push(entry(OWNING_GROUP, mode >> 3, NOBODY));
    if named.is_some() {
        entries.push(entry(MASK, mode >> 3, NOBODY));
    }
    entries.push(entry(OTHER, mode, NOBODY));
    write(&entries)
}

fn write(entries: &[Entry]) -> Vec<u8> {
    let mut value = VERSION.to_vec();
    for entry in entries {
        value.extend(entry.tag.to_le_bytes());
        value.extend(entry.permissions.to_le_bytes());
        value.extend(entry.id.to_le_bytes());
    }
    value
}

fn read(value: &[u8]) -> Option<Vec<Entry>> {
    let entries = value.strip_prefix(&VERSION)?;
    let entry = |bytes: &[u8]| Entry {
        tag: u16::from_le_bytes([bytes[0], bytes[1]]),
        permissions: u16::from_le_bytes([bytes[2], bytes[3]]),
        id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    Some(entries.chunks_exact(8).map(entry).collect())
}

/// Where an entry's permissions stand in the mode, if they do: the mask's in place of the owning group's.
fn shift(entry: &Entry, has_mask: bool) -> Option<u16> {
    match entry.tag {
        OWNER => Some(6),
        OWNING_GROUP if !has_mask => Some(3),
        MASK => Some(3),
        OTHER => Some(0),
        _ => None,
    }
}

fn has_mask(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.tag == MASK)
}

/// The bits that say the same as far as bits can.
fn bits(entries: &[Entry]) -> u16 {
    let has_mask = has_mask(entries);
    let said = entries
        .iter()
        .filter_map(|entry| Some(entry.permissions << shift(entry, has_mask)?));
    said.fold(0, |bits, more| bits | more)
}

/// Whether bits say all of it.
fn is_only_bits(entries: &[Entry]) -> bool {
    entries
        .iter()
        .all(|entry| matches!(entry.tag, OWNER | OWNING_GROUP | OTHER))
}

/// Whether an attribute is an ACL.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl ModelTree {
    /// Sets (with a value) or removes an ACL. What changes nothing leaves the node untouched.
    pub(crate) fn set_acl(
        &mut self,
        file: &OpTarget,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), Errno> {
        let id = self.find(file)?;
        let node = self.node(id);
        let is_directory = matches!(node.kind, Kind::Directory(_));
        if matches!(node.kind, Kind::Symlink(_)) {
            return Err(Errno::EOPNOTSUPP);
        }
        if name == DEFAULT && !is_directory {
            return value.map_or(Ok(()), |_| Err(Errno::EACCES));
        }
        let entries = value.map(|value| read(value).ok_or(Errno::EINVAL));
        let entries = entries.transpose()?;
        let mut changed = node.clone();
        if let Some(entries) = entries.as_ref().filter(|_| name == ACCESS) {
            changed.mode = changed.mode & !0o777 | bits(entries);
        }
        match entries.filter(|entries| name == DEFAULT || !is_only_bits(entries)) {
            Some(entries) => changed.xattrs.insert(name.to_vec(), write(&entries)),
            None => changed.xattrs.remove(name),
        };
        if changed != *self.node(id) {
            *self.change(id) = changed;
        }
        Ok(())
    }

    /// A node's ACL follows its new permission bits.
    pub(crate) fn acl_follows(&mut self, id: ModelId) {
        let node = self.change(id);
        let mode = node.mode;
        let Some(mut entries) = node.xattrs.get(ACCESS).and_then(|value| read(value)) else {
            return;
        };
        let has_mask = has_mask(&entries);
        for entry in &mut entries {
            if let Some(shift) = shift(entry, has_mask) {
                entry.permissions = mode >> shift & 7;
            }
        }
        node.xattrs.insert(ACCESS.to_vec(), write(&entries));
    }

    /// What a new node gets of its directory's default ACL.
    pub(crate) fn inherit_acl(&mut self, directory: ModelId, id: ModelId) {
        let Some(default) = self.node(directory).xattrs.get(DEFAULT).cloned() else {
            return;
        };
        let node = self.change(id);
        let Some(mut entries) = read(&default).filter(|_| !matches!(node.kind, Kind::Symlink(_)))
        else {
            return;
        };
        if matches!(node.kind, Kind::Directory(_)) {
            node.xattrs.insert(DEFAULT.to_vec(), default);
        }
        let has_mask = has_mask(&entries);
        let mut left = node.mode;
        for entry in &mut entries {
            if let Some(shift) = shift(entry, has_mask) {
                entry.permissions &= left >> shift & 7;
                left = left & !(7 << shift) | entry.permissions << shift;
            }
        }
        node.mode = left;
        if !is_only_bits(&entries) {
            node.xattrs.insert(ACCESS.to_vec(), write(&entries));
        }
    }
}
