//! The index of a hashed directory ("htree").
//!
//! ```text
//! block 0: | "." 12 | ".." 12 | root info 8 | entries ... | tail 8 |
//! a node:  | one free record of the whole block 8 | entries ... | tail 8 |
//! ```
//!
//! Both look like ordinary directory blocks without names to a reader that knows no index. An entry is a hash and a
//! directory block: that block holds the names whose hashes are at or above the entry's and below the next entry's. The
//! first entry covers all hashes below the second's; in place of a hash it has the number of entries and the number
//! that would fit. Below the root lie `levels` layers of nodes, then leaves. A hash's lowest bit marks a block that
//! continues the one before it, because the names of one hash did not fit in one block.
//!
//! Reading is safe for any bytes: [`root`] and [`node`] check everything that the accessors of [`IndexBlock`] rely on.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum::crc32c;
use crate::dirent::{self, DirForm, DirRecord};
use crate::dirhash::HashVersion;
use crate::inode_words::FileType;
use crate::numbers::{BlockSize, Ino, LBlock};
use crate::site::{Corrupt, Site};

/// The most layers of nodes below the root.
pub const LEVELS_MAX: u8 = 1;
/// The most layers of nodes below the root with the large_dir feature.
pub const LEVELS_MAX_LARGE: u8 = 2;
/// Bytes before the entries of a root.
const ROOT_START: usize = 32;
/// Bytes before the entries of a node.
const NODE_START: usize = 8;
/// The byte of a block 0 at which the root's description stands.
const INFO_OFFSET: usize = 24;
/// Bytes of that description, as it says itself.
const INFO_LEN: u8 = 8;
/// Bytes of an entry.
const ENTRY_LEN: usize = 8;
/// Bytes of an index block's checksum tail.
const TAIL_LEN: usize = 8;
/// The bits of an entry's block word that number the block.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;
/// The bit of the root's flags that no kernel reads.
const UNREADABLE_FLAG: u8 = 1;

/// The root's description (`dx_root_info`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct RootInfo {
    pub(crate) reserved_zero: U32,
    pub(crate) hash_version: u8,
    pub(crate) info_length: u8,
    pub(crate) indirect_levels: u8,
    pub(crate) unused_flags: u8,
}

/// An index entry (`dx_entry`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct IndexEntry {
    pub(crate) hash: U32,
    pub(crate) block: U32,
}

/// What the first entry holds in place of a hash (`dx_countlimit`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct CountLimit {
    pub(crate) limit: U16,
    pub(crate) count: U16,
}

/// The checksum of an index block (`dx_tail`), behind the place of its last possible entry.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct IndexTail {
    pub(crate) dt_reserved: U32,
    pub(crate) dt_checksum: U32,
}

/// What a root says of its tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// The hash function, as stored: the signed variant, whatever the superblock's flags make of it.
    pub version: HashVersion,
    /// Layers of nodes between the root and the leaves: 0 to 2.
    pub levels: u8,
}

/// Which kind of index block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Block 0 of the directory.
    Root,
    /// Any other.
    Node,
}

impl Kind {
    fn start(self) -> usize {
        match self {
            Kind::Root => ROOT_START,
            Kind::Node => NODE_START,
        }
    }

    /// How many entries fit such a block.
    #[must_use]
    pub fn limit(self, block_size: BlockSize, checksum: bool) -> usize {
        let tail = if checksum { TAIL_LEN } else { 0 };
        (block_size.bytes() - self.start() - tail) / ENTRY_LEN
    }
}

/// Whether a block of a hashed directory is a node rather than a leaf: one free record fills it.
#[must_use]
pub fn is_node(block: &[u8], form: DirForm) -> bool {
    let first = dirent::entries(block, form.without_checksum()).next();
    matches!(first, Some(Ok(entry)) if !entry.is_used() && entry.len == block.len())
}

/// The root in a directory's block 0.
///
/// `levels_max` is [`LEVELS_MAX`] or, with large_dir, [`LEVELS_MAX_LARGE`]; `siphash` says whether the directory is
/// encrypted and casefolded, and so must use that hash and no other.
///
/// # Errors
/// Whatever a kernel refuses: an unknown hash, unknown flags, too many levels, a description or a number of entries
/// that does not fit.
pub fn root(
    block: &[u8],
    form: DirForm,
    levels_max: u8,
    siphash: bool,
) -> Result<(Root, IndexBlock<'_>), Corrupt> {
    let info = block
        .get(INFO_OFFSET..)
        .and_then(|rest| RootInfo::ref_from_prefix(rest).ok());
    let Some((info, _)) = info.filter(|(info, _)| info.info_length == INFO_LEN) else {
        return Err(Corrupt::at(Site::HtreeInfoLength));
    };
    let version = HashVersion::from_code(info.hash_version).filter(|version| {
        *version == version.as_stored() && (*version == HashVersion::SipHash) == siphash
    });
    let Some(version) = version else {
        return Err(Corrupt::at(Site::HtreeHashVersion));
    };
    if info.unused_flags & UNREADABLE_FLAG != 0 {
        return Err(Corrupt::at(Site::HtreeFlags));
    }
    let levels = info.indirect_levels;
    if levels > levels_max {
        return Err(Corrupt::at(Site::HtreeLevels));
    }
    let index = index(block, form, Kind::Root)?;
    Ok((Root { version, levels }, index))
}

/// The index in a node's block.
///
/// # Errors
/// When it is not a node, or its number of entries does not fit.
pub fn node(block: &[u8], form: DirForm) -> Result<IndexBlock<'_>, Corrupt> {
    if !is_node(block, form) {
        return Err(Corrupt::at(Site::HtreeNode));
    }
    index(block, form, Kind::Node)
}

fn index(block: &[u8], form: DirForm, kind: Kind) -> Result<IndexBlock<'_>, Corrupt> {
    let expected = kind.limit(form.block_size, form.checksum);
    let limited = block
        .get(kind.start()..)
        .and_then(|rest| <[IndexEntry]>::ref_from_prefix_with_elems(rest, expected).ok())
        .filter(|(places, _)| usize::from(count_limit(places).limit.get()) == expected);
    let Some((places, _)) = limited else {
        return Err(Corrupt::at(Site::HtreeLimit));
    };
    let count = usize::from(count_limit(places).count.get());
    match places.get(..count) {
        Some(entries) if count > 0 => Ok(IndexBlock { entries }),
        _ => Err(Corrupt::at(Site::HtreeCount)),
    }
}

/// The first entry's hash word, read as what it is. `places` is not empty.
fn count_limit(places: &[IndexEntry]) -> CountLimit {
    let word = places[0].hash.get();
    // The two halves of the word.
    #[allow(clippy::cast_possible_truncation)]
    CountLimit {
        limit: (word as u16).into(),
        count: ((word >> 16) as u16).into(),
    }
}

/// The entries of an index block; at least one.
#[derive(Clone, Copy, Debug)]
pub struct IndexBlock<'a> {
    entries: &'a [IndexEntry],
}

impl core::fmt::Debug for IndexEntry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#010x} -> {}", self.hash, self.block)
    }
}

impl IndexBlock<'_> {
    /// How many entries there are; at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The hash at which entry `i` begins, with the continuation bit; 0 for the first.
    ///
    /// # Panics
    /// If the entry does not exist.
    #[must_use]
    pub fn hash(&self, i: usize) -> u32 {
        if i == 0 {
            0
        } else {
            self.entries[i].hash.get()
        }
    }

    /// Whether entry `i` continues the one before it, which ends in the same hash.
    ///
    /// # Panics
    /// If the entry does not exist.
    #[must_use]
    pub fn continues(&self, i: usize) -> bool {
        self.hash(i) & 1 != 0
    }

    /// The directory block that entry `i` leads to.
    ///
    /// # Panics
    /// If the entry does not exist.
    #[must_use]
    pub fn block(&self, i: usize) -> LBlock {
        LBlock(self.entries[i].block.get() & BLOCK_MASK)
    }

    /// The last entry that begins at `major` or below: where a search for that hash starts.
    #[must_use]
    pub fn find(&self, major: u32) -> usize {
        self.entries[1..].partition_point(|entry| entry.hash.get() <= major)
    }

    /// The first entry whose hash is below its predecessor's. Searches end whatever the order, but find less.
    ///
    /// # Errors
    /// [`Site::HtreeOrder`] when there is one.
    pub fn verify_order(&self) -> Result<(), Corrupt> {
        if self.entries[1..].is_sorted_by_key(|entry| entry.hash.get()) {
            Ok(())
        } else {
            Err(Corrupt::at(Site::HtreeOrder))
        }
    }
}

/// Makes `block` a root: `.`, `..`, the description, and the entries, each a hash (with its continuation bit; the
/// first one's is not stored) and a block. The tail is cleared; with checksums, [`seal`] comes next.
///
/// # Panics
/// When there are no entries or more than the limit, or the block has another size than the form's.
pub fn write_root(
    block: &mut [u8],
    form: DirForm,
    root: Root,
    ino: Ino,
    parent: Ino,
    entries: impl ExactSizeIterator<Item = (u32, LBlock)>,
) {
    begin(block, form);
    let plain = form.without_checksum();
    let dots: [(&[u8], Ino, usize, usize); 2] = [
        (b".", ino, 0, 12),
        (b"..", parent, 12, form.block_size.bytes() - 12),
    ];
    for (name, ino, offset, len) in dots {
        let dot = DirRecord {
            offset,
            len,
            ino,
            name,
            file_type: Some(FileType::Directory),
            hash: None,
        };
        dirent::write(block, plain, &dot);
    }
    let info = RootInfo {
        reserved_zero: 0.into(),
        hash_version: root.version.as_stored().code(),
        info_length: INFO_LEN,
        indirect_levels: root.levels,
        unused_flags: 0,
    };
    block[INFO_OFFSET..ROOT_START].copy_from_slice(info.as_bytes());
    write_entries(block, form, Kind::Root, entries);
}

/// Makes `block` a node with these entries: as [`write_root`].
///
/// # Panics
/// As [`write_root`].
pub fn write_node(
    block: &mut [u8],
    form: DirForm,
    entries: impl ExactSizeIterator<Item = (u32, LBlock)>,
) {
    begin(block, form);
    let whole = DirRecord {
        offset: 0,
        len: form.block_size.bytes(),
        ino: Ino(0),
        name: b"",
        file_type: None,
        hash: None,
    };
    dirent::write(block, form.without_checksum(), &whole);
    write_entries(block, form, Kind::Node, entries);
}

fn begin(block: &mut [u8], form: DirForm) {
    assert_eq!(block.len(), form.block_size.bytes());
    block.fill(0);
}

fn write_entries(
    block: &mut [u8],
    form: DirForm,
    kind: Kind,
    entries: impl ExactSizeIterator<Item = (u32, LBlock)>,
) {
    let limit = kind.limit(form.block_size, form.checksum);
    let count = entries.len();
    assert!((1..=limit).contains(&count));
    // A 64 KiB block has room for 8,191 entries.
    #[allow(clippy::cast_possible_truncation)]
    let first = u32::from(limit as u16) | (u32::from(count as u16) << 16);
    let places = block[kind.start()..].chunks_exact_mut(ENTRY_LEN);
    for (i, ((hash, to), place)) in entries.zip(places).enumerate() {
        let entry = IndexEntry {
            hash: if i == 0 { first } else { hash }.into(),
            block: to.0.into(),
        };
        place.copy_from_slice(entry.as_bytes());
    }
}

/// Where an index block's checksum stands, and what it is over: the used part of the block, and the tail without the
/// sum. None when limit or count do not fit the block.
fn checksum(block: &[u8], kind: Kind, seed: u32) -> Option<(usize, u32)> {
    let (first, _) = CountLimit::ref_from_prefix(block.get(kind.start()..)?).ok()?;
    let (limit, count) = (
        usize::from(first.limit.get()),
        usize::from(first.count.get()),
    );
    let tail_at = kind.start() + limit * ENTRY_LEN;
    let (tail, _) = IndexTail::ref_from_prefix(block.get(tail_at..)?).ok()?;
    if count > limit {
        return None;
    }
    let used = &block[..kind.start() + count * ENTRY_LEN];
    let blank = IndexTail {
        dt_reserved: tail.dt_reserved,
        dt_checksum: 0.into(),
    };
    let sum = crc32c(crc32c(seed, used), blank.as_bytes());
    Some((tail_at + 4, sum))
}

/// Sets an index block's checksum. `seed` is the directory inode's: over number and generation.
///
/// # Panics
/// When the block's limit or count do not fit it: it was not written by [`write_root`] or [`write_node`].
pub fn seal(block: &mut [u8], kind: Kind, seed: u32) {
    let Some((at, sum)) = checksum(block, kind, seed) else {
        panic!("sealing an index block that was not written");
    };
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Checks an index block's checksum.
///
/// # Errors
/// [`Site::HtreeChecksum`] if the checksum differs, or the block has no room for one.
pub fn verify_checksum(block: &[u8], kind: Kind, seed: u32) -> Result<(), Corrupt> {
    match checksum(block, kind, seed) {
        Some((at, sum)) if block[at..at + 4] == sum.to_le_bytes() => Ok(()),
        _ => Err(Corrupt::at(Site::HtreeChecksum)),
    }
}

#[cfg(test)]
mod tests;
