//! Extended attributes: a list of entries that grows up, their values growing down from the end.
//!
//! ```text
//! in the inode   magic (4)   | entry | entry | 0 (4)  ...  value | value |      offsets from the first entry
//! in a block     header (32) | entry | entry | 0 (4)  ...  value | value |      offsets from the block
//! ```
//!
//! A value that is too large may be stored in an inode of its own (`ea_inode`); the entry's hash then covers the
//! value's hash. [`entries`] checks a whole list before it returns an iterator over it: names and values are inside the
//! area, no value overlaps the list, and the list ends. Values may overlap each other, as the kernel allows too. An
//! entry takes at least 16 bytes, and a reader copies at most the area's size for each.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum::crc32c;
use crate::numbers::{FsBlock, Ino};
use crate::site::{Corrupt, Site};

/// The number that a list begins with.
pub const MAGIC: u32 = 0xea02_0000;
/// The longest value there may be.
pub const MAX_VALUE: u32 = 1 << 24;
/// The longest name after its prefix.
pub const MAX_NAME: usize = 255;
/// Bytes before the entries in an inode.
pub const INODE_HEADER: usize = 4;
/// Bytes before the entries in a block.
pub const BLOCK_HEADER: usize = size_of::<XattrBlockHeader>();
/// Bytes of an entry before its name.
pub const ENTRY_HEADER: usize = size_of::<EntryHeader>();
/// Where a block's checksum lies.
const CHECKSUM: usize = 16;

/// What a block of attributes begins with.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct XattrBlockHeader {
    pub(crate) h_magic: U32,
    pub(crate) h_refcount: U32,
    pub(crate) h_blocks: U32,
    pub(crate) h_hash: U32,
    pub(crate) h_checksum: U32,
    pub(crate) h_reserved: [U32; 3],
}

impl XattrBlockHeader {
    accessors! {
        /// Should be [`MAGIC`].
        magic, set_magic: u32 = h_magic;
        /// How many inodes share the block.
        references, set_references: u32 = h_refcount;
        /// Should be 1.
        blocks, set_blocks: u32 = h_blocks;
        /// A hash of the entries' hashes; 0 if the block must not be shared.
        hash, set_hash: u32 = h_hash;
        /// The block's checksum.
        checksum, set_checksum: u32 = h_checksum;
    }
}

/// An entry before its name.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct EntryHeader {
    pub(crate) e_name_len: u8,
    pub(crate) e_name_index: u8,
    pub(crate) e_value_offs: U16,
    pub(crate) e_value_inum: U32,
    pub(crate) e_value_size: U32,
    pub(crate) e_hash: U32,
}

/// Where a list lies, which decides from where its values' offsets count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListPlace<'a> {
    /// The part of an inode's slot after its extra fields.
    Inode(&'a [u8]),
    /// A whole block.
    Block(&'a [u8]),
}

/// Where an entry's value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// Here.
    Here(&'a [u8]),
    /// In an inode of its own.
    Inode {
        /// The inode that holds it.
        ino: Ino,
        /// Bytes in it; at most [`MAX_VALUE`].
        size: u32,
    },
}

/// One attribute of a verified list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XattrEntry<'a> {
    /// The number of the name's prefix.
    pub index: u8,
    /// The name after the prefix.
    pub name: &'a [u8],
    /// The value, or where it is.
    pub value: Value<'a>,
    /// The entry's hash as stored.
    pub hash: u32,
}

/// The prefixes by number. Those of the ACLs are whole names.
const PREFIXES: &[(u8, &str)] = &[
    (1, "user."),
    (2, "system.posix_acl_access"),
    (3, "system.posix_acl_default"),
    (4, "trusted."),
    (6, "security."),
    (INDEX_RICHACL, "system.richacl"),
    (7, "system."),
    (10, "gnu."),
];

/// The prefix number of names that begin with `system.`, as inline data's `system.data` does.
pub const INDEX_SYSTEM: u8 = 7;
/// The prefix number of the access ACL.
pub const INDEX_ACL_ACCESS: u8 = 2;
/// The prefix number of the default ACL.
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// The prefix number of rich ACLs, which Linux never had.
pub const INDEX_RICHACL: u8 = 8;
/// The prefix number under which fscrypt keeps its context (name `c`).
pub const INDEX_ENCRYPTION: u8 = 9;

/// The prefix that a number stands for; `None` for numbers that Linux does not show.
#[must_use]
pub fn prefix(index: u8) -> Option<&'static str> {
    PREFIXES
        .iter()
        .find(|(number, _)| *number == index)
        .map(|(_, prefix)| *prefix)
}

/// Splits a whole name into its prefix's number and the rest; `None` if no prefix fits.
#[must_use]
pub fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|(index, prefix)| {
        let rest = name.strip_prefix(prefix.as_bytes())?;
        // A prefix is followed by a name, a whole name by nothing.
        (rest.is_empty() != prefix.ends_with('.')).then_some((*index, rest))
    })
}

/// Whether this is a prefix that needs a name after it, and has none. Linux's system calls do not treat `system.` as
/// such a prefix.
#[must_use]
pub fn is_bare_prefix(name: &[u8]) -> bool {
    PREFIXES.iter().any(|(index, prefix)| {
        *index != INDEX_SYSTEM && prefix.ends_with('.') && prefix.as_bytes() == name
    })
}

/// Bytes of an entry with a name of this length.
#[must_use]
pub fn entry_size(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len).next_multiple_of(4)
}

/// Bytes that a value of this length takes in its area.
#[must_use]
pub fn value_size(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn hash_name(name: &[u8], signed: bool) -> u32 {
    name.iter().fold(0u32, |hash, byte| {
        let byte = if signed {
            i32::from(byte.cast_signed()).cast_unsigned()
        } else {
            u32::from(*byte)
        };
        hash.rotate_left(5) ^ byte
    })
}

fn hash_words(hash: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// The hash of an entry whose value lies in the same block. (In an inode the kernel stores 0.)
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    hash_words(hash_name(name, false), value)
}

/// The hash of a value in an inode of its own, which that inode stores as its access time.
#[must_use]
pub fn value_hash(fs_seed: u32, value: &[u8]) -> u32 {
    crc32c(fs_seed, value)
}

/// The hash of an entry whose value lies in an inode of its own, from the value's hash.
#[must_use]
pub fn inode_entry_hash(name: &[u8], value_hash: u32) -> u32 {
    hash_words(hash_name(name, false), &value_hash.to_le_bytes())
}

/// Whether `hash` is [`inode_entry_hash`], or what kernels with signed characters made of it.
#[must_use]
pub fn is_inode_entry_hash(hash: u32, name: &[u8], value_hash: u32) -> bool {
    let value_hash = value_hash.to_le_bytes();
    hash == hash_words(hash_name(name, false), &value_hash)
        || hash == hash_words(hash_name(name, true), &value_hash)
}

/// The hash of a block, from its entries' hashes in order.
#[must_use]
pub fn block_hash(hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut hash = 0u32;
    for entry in hashes {
        if entry == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ entry;
    }
    hash
}

/// Whether an inode's area begins like a list.
#[must_use]
pub fn is_area(bytes: &[u8]) -> bool {
    U32::ref_from_prefix(bytes).is_ok_and(|(magic, _)| magic.get() == MAGIC)
}

/// Checks a list and returns its entries in the order on disk; none if an inode's area has no list.
///
/// # Errors
/// When the magic (of a block), an entry, a name or a value is wrong.
pub fn entries(area: ListPlace<'_>) -> Result<XattrEntries<'_>, Corrupt> {
    let (base, list) = match area {
        ListPlace::Inode(bytes) => match U32::ref_from_prefix(bytes) {
            Ok((magic, rest)) if magic.get() == MAGIC => (rest, rest),
            _ => (&bytes[..0], &bytes[..0]),
        },
        ListPlace::Block(bytes) => {
            let (_, rest) = XattrBlockHeader::ref_from_prefix(bytes)
                .ok()
                .filter(|(header, _)| header.magic() == MAGIC && header.blocks() == 1)
                .ok_or_else(|| Corrupt::at(Site::XattrBlockHeader))?;
            (bytes, rest)
        }
    };
    let list_start = base.len() - list.len();
    let list_len = list_length(list).ok_or_else(|| Corrupt::at(Site::XattrEntry))?;
    let all = XattrEntries {
        base,
        rest: &list[..list_len],
    };
    let values_start = list_start + list_len + if list.is_empty() { 0 } else { 4 };
    if all.clone().any(|entry| entry.name.contains(&0)) {
        return Err(Corrupt::at(Site::XattrName));
    }
    let mut rest = all.rest;
    while let Some((header, _, next)) = split_entry(rest) {
        rest = next;
        let size = header.e_value_size.get();
        let here = header.e_value_inum.get() == 0;
        let start = usize::from(header.e_value_offs.get());
        let fits = match here {
            true if size == 0 => true,
            true => {
                let padded = u64::from(size).next_multiple_of(4);
                start >= values_start && start as u64 + padded <= base.len() as u64
            }
            false => size != 0,
        };
        if !fits || size > MAX_VALUE {
            return Err(Corrupt::at(Site::XattrValue));
        }
    }
    Ok(all)
}

/// The first entry of a list, its name, and what follows it; `None` at the list's end or a broken entry.
fn split_entry(list: &[u8]) -> Option<(&EntryHeader, &[u8], &[u8])> {
    let (header, rest) = EntryHeader::ref_from_prefix(list).ok()?;
    let name = rest.get(..usize::from(header.e_name_len))?;
    let next = list.get(entry_size(name.len())..)?;
    Some((header, name, next))
}

/// Bytes of the entries before the four zero bytes that end them; `None` if nothing ends them.
fn list_length(list: &[u8]) -> Option<usize> {
    let mut rest = list;
    loop {
        match rest {
            [] if list.is_empty() => return Some(0),
            [0, 0, 0, 0, ..] => return Some(list.len() - rest.len()),
            // Every entry takes at least 16 bytes, so this ends.
            _ => rest = split_entry(rest)?.2,
        }
    }
}

/// The entries of a verified list.
#[derive(Clone, Debug)]
pub struct XattrEntries<'a> {
    base: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Iterator for XattrEntries<'a> {
    type Item = XattrEntry<'a>;

    fn next(&mut self) -> Option<XattrEntry<'a>> {
        let (header, name, next) = split_entry(self.rest)?;
        self.rest = next;
        let size = header.e_value_size.get();
        let value = match header.e_value_inum.get() {
            0 => {
                let start = usize::from(header.e_value_offs.get());
                let end = start.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
                Value::Here(self.base.get(start..end).unwrap_or_default())
            }
            ino => Value::Inode {
                ino: Ino(ino),
                size,
            },
        };
        Some(XattrEntry {
            index: header.e_name_index,
            name,
            value,
            hash: header.e_hash.get(),
        })
    }
}

/// Writes the zeros, entries and values of a list over `base`, whose entries begin at `list_start`.
/// `false` if they do not fit.
fn encode(base: &mut [u8], list_start: usize, entries: &[XattrEntry<'_>]) -> bool {
    base[list_start..].fill(0);
    let (mut at, mut value_at) = (list_start, base.len());
    for entry in entries {
        let (offset, inum, size) = match entry.value {
            Value::Inode { ino, size } => (0, ino.0, size as usize),
            Value::Here([]) => (0, 0, 0),
            Value::Here(value) => {
                let Some(start) = value_at.checked_sub(value_size(value.len())) else {
                    return false;
                };
                value_at = start;
                (start, 0, value.len())
            }
        };
        let end = at + entry_size(entry.name.len());
        // The list's end takes four bytes.
        if entry.name.len() > MAX_NAME || end + 4 > value_at {
            return false;
        }
        let header = EntryHeader {
            e_name_len: entry.name.len() as u8,
            e_name_index: entry.index,
            e_value_offs: (offset as u16).into(),
            e_value_inum: inum.into(),
            e_value_size: (size as u32).into(),
            e_hash: entry.hash.into(),
        };
        base[at..at + ENTRY_HEADER].copy_from_slice(header.as_bytes());
        base[at + ENTRY_HEADER..at + ENTRY_HEADER + entry.name.len()].copy_from_slice(entry.name);
        if let Value::Here(value) = entry.value {
            base[offset..offset + value.len()].copy_from_slice(value);
        }
        at = end;
    }
    true
}

/// Writes a list over the area of an inode, in the order given. `false` if it does not fit; the area is
/// then zeros or worse and must be written again. The hashes of values that lie here should be 0.
#[must_use]
pub fn encode_inode_area(area: &mut [u8], entries: &[XattrEntry<'_>]) -> bool {
    if area.len() < INODE_HEADER {
        return entries.is_empty();
    }
    let (magic, list) = area.split_at_mut(INODE_HEADER);
    magic.copy_from_slice(&MAGIC.to_le_bytes());
    encode(list, 0, entries)
}

/// Whether entries of these name and value lengths fit into `bytes` after a list's header.
#[must_use]
pub fn fits(bytes: usize, entries: impl IntoIterator<Item = (usize, usize)>) -> bool {
    let sizes = entries
        .into_iter()
        .map(|(name, value)| entry_size(name) + value_size(value));
    sizes.sum::<usize>() + 4 <= bytes
}

/// The order of entries in a block: by prefix number, then by length of name, then by name.
#[must_use]
pub fn compare(a: (u8, &[u8]), b: (u8, &[u8])) -> core::cmp::Ordering {
    (a.0, a.1.len(), a.1).cmp(&(b.0, b.1.len(), b.1))
}

/// Writes a list over a block: one reference, sorted, with the block's hash, without its checksum.
/// Each entry's hash must be [`entry_hash`] or [`inode_entry_hash`]. `false` if it does not fit.
#[must_use]
pub fn encode_block(block: &mut [u8], entries: &mut [XattrEntry<'_>]) -> bool {
    entries.sort_by(|a, b| compare((a.index, a.name), (b.index, b.name)));
    let header = XattrBlockHeader {
        h_magic: MAGIC.into(),
        h_refcount: 1.into(),
        h_blocks: 1.into(),
        h_hash: block_hash(entries.iter().map(|entry| entry.hash)).into(),
        h_checksum: 0.into(),
        h_reserved: [U32::ZERO; 3],
    };
    block[..BLOCK_HEADER].copy_from_slice(header.as_bytes());
    encode(block, BLOCK_HEADER, entries)
}

/// The checksum of a block that lies at `at`. The block is longer than its header.
fn block_checksum(block: &[u8], fs_seed: u32, at: FsBlock) -> u32 {
    let crc = crc32c(fs_seed, &at.0.to_le_bytes());
    let crc = crc32c(crc, &block[..CHECKSUM]);
    let crc = crc32c(crc, &[0; 4]);
    crc32c(crc, &block[CHECKSUM + 4..])
}

/// Compares a block's checksum with its contents; only where `metadata_csum` is on.
///
/// # Errors
/// When it differs, or the block is shorter than its header.
pub fn verify_block_checksum(block: &[u8], fs_seed: u32, at: FsBlock) -> Result<(), Corrupt> {
    let matches = XattrBlockHeader::ref_from_prefix(block)
        .is_ok_and(|(header, _)| header.checksum() == block_checksum(block, fs_seed, at));
    if matches {
        Ok(())
    } else {
        Err(Corrupt::at(Site::XattrBlockChecksum).block(at))
    }
}

/// How many inodes share a block that was verified.
#[must_use]
pub fn references(block: &[u8]) -> u32 {
    XattrBlockHeader::ref_from_prefix(block).map_or(1, |(header, _)| header.references())
}

/// The hash of a block's contents as stored; 0 for one that is not to be shared.
#[must_use]
pub fn hash(block: &[u8]) -> u32 {
    XattrBlockHeader::ref_from_prefix(block).map_or(0, |(header, _)| header.hash())
}

/// Sets how many inodes share a block.
pub fn set_references(block: &mut [u8], references: u32) {
    if let Ok((header, _)) = XattrBlockHeader::mut_from_prefix(block) {
        header.set_references(references);
    }
}

/// Writes the checksum of a block that lies at `at` into it; the last thing to be written.
///
/// # Panics
/// When the block is shorter than its header.
pub fn set_block_checksum(block: &mut [u8], fs_seed: u32, at: FsBlock) {
    let checksum = block_checksum(block, fs_seed, at);
    block[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
}

#[cfg(test)]
mod tests;
