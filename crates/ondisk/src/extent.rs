//! Extent trees: runs of blocks, sorted by logical block, in nodes of 12-byte entries.
//!
//! ```text
//! node    header (12) | entry 0 (12) | ... | entry max-1 | tail (4, not in the root)
//! ```
//!
//! The root fills the inode's block area; every other node fills a block. A node of depth 0 holds [`Extent`]s; a deeper
//! node holds [`ExtentIndex`]es, each of which covers the blocks from its own logical block to that of the next entry.
//! [`ExtentNode::verify`] is the only way from bytes to a node: the entries of the node that it returns are in bounds,
//! in order, without overlap, and inside the part of the file that the parent's entry covers.

use core::ops::Range;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum::crc32c;
use crate::numbers::{FsBlock, LBlock};
use crate::site::{Corrupt, Site};

/// The number that every node begins with.
pub const MAGIC: u16 = 0xf30a;
/// The greatest depth of a tree; 2^32 blocks never need more with blocks of 1 KiB or larger.
pub const MAX_DEPTH: u16 = 5;
/// The most blocks that a written extent can hold; an unwritten one holds one fewer.
pub const MAX_LEN: u16 = 1 << 15;
/// Entries that fit into the root.
pub const ROOT_ENTRIES: u16 = 4;
/// Bytes of a header and of an entry.
const ENTRY: usize = 12;
/// Bytes of a block's tail.
const TAIL: usize = 4;

/// The header of a node.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct ExtentHeader {
    pub(crate) eh_magic: U16,
    pub(crate) eh_entries: U16,
    pub(crate) eh_max: U16,
    pub(crate) eh_depth: U16,
    pub(crate) eh_generation: U32,
}

/// A run of blocks.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Extent {
    pub(crate) ee_block: U32,
    pub(crate) ee_len: U16,
    pub(crate) ee_start_hi: U16,
    pub(crate) ee_start_lo: U32,
}

/// A pointer to a node one level down.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct ExtentIndex {
    pub(crate) ei_block: U32,
    pub(crate) ei_leaf_lo: U32,
    pub(crate) ei_leaf_hi: U16,
    pub(crate) ei_unused: U16,
}

impl ExtentHeader {
    accessors! {
        /// The magic number, [`MAGIC`] in a valid node.
        magic, set_magic: u16 = eh_magic;
        /// Entries in use.
        entries, set_entries: u16 = eh_entries;
        /// Entries that fit.
        max, set_max: u16 = eh_max;
        /// Levels below this node; 0 for a node of extents.
        depth, set_depth: u16 = eh_depth;
        /// Used by Lustre only.
        generation, set_generation: u32 = eh_generation;
    }

    /// A header with the magic number.
    #[must_use]
    pub fn new(entries: u16, max: u16, depth: u16) -> ExtentHeader {
        ExtentHeader {
            eh_magic: MAGIC.into(),
            eh_entries: entries.into(),
            eh_max: max.into(),
            eh_depth: depth.into(),
            eh_generation: 0.into(),
        }
    }
}

impl Extent {
    accessors! {
        /// The first logical block.
        block, set_block: u32 = ee_block;
        /// The length as stored. Above [`MAX_LEN`] the run is unwritten, and has [`MAX_LEN`] blocks fewer.
        raw_len, set_raw_len: u16 = ee_len;
    }

    /// Makes an extent of `len` blocks.
    ///
    /// # Panics
    /// When `len` is 0, above [`MAX_LEN`], or [`MAX_LEN`] and unwritten.
    #[must_use]
    pub fn new(block: LBlock, len: u16, start: FsBlock, unwritten: bool) -> Extent {
        assert!(len != 0 && u32::from(len) + u32::from(unwritten) <= u32::from(MAX_LEN));
        Extent {
            ee_block: block.0.into(),
            ee_len: (len + if unwritten { MAX_LEN } else { 0 }).into(),
            ee_start_hi: ((start.0 >> 32 & 0xffff) as u16).into(),
            ee_start_lo: ((start.0 & 0xffff_ffff) as u32).into(),
        }
    }

    /// An extent from its bytes on disk, which may be one that no valid tree has.
    #[must_use]
    pub fn from_bytes(bytes: [u8; size_of::<Extent>()]) -> Extent {
        zerocopy::transmute!(bytes)
    }

    /// Its bytes on disk.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<Extent>()] {
        zerocopy::transmute!(self)
    }

    /// Blocks in the run.
    #[must_use]
    pub fn len(&self) -> u16 {
        match self.raw_len() {
            len @ 0..=MAX_LEN => len,
            len => len - MAX_LEN,
        }
    }

    /// Whether the run has no blocks; a valid extent has at least one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the run is allocated but reads as zeros.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.raw_len() > MAX_LEN
    }

    /// The first block of the run on the device.
    #[must_use]
    pub fn start(&self) -> FsBlock {
        FsBlock(u64::from(self.ee_start_lo.get()) | u64::from(self.ee_start_hi.get()) << 32)
    }

    /// The logical block after the run, which may be 2^32.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.block()) + u64::from(self.len())
    }
}

impl ExtentIndex {
    accessors! {
        /// The first logical block that the node below covers.
        block, set_block: u32 = ei_block;
    }

    /// A pointer to the node in block `leaf`.
    #[must_use]
    pub fn new(block: LBlock, leaf: FsBlock) -> ExtentIndex {
        ExtentIndex {
            ei_block: block.0.into(),
            ei_leaf_lo: ((leaf.0 & 0xffff_ffff) as u32).into(),
            ei_leaf_hi: ((leaf.0 >> 32 & 0xffff) as u16).into(),
            ei_unused: 0.into(),
        }
    }

    /// The block of the node below.
    #[must_use]
    pub fn leaf(&self) -> FsBlock {
        FsBlock(u64::from(self.ei_leaf_lo.get()) | u64::from(self.ei_leaf_hi.get()) << 32)
    }
}

/// The entries of a verified node.
#[derive(Clone, Copy, Debug)]
pub enum ExtentEntries<'a> {
    /// Depth 0: runs in ascending order, without overlap.
    Extents(&'a [Extent]),
    /// Depth 1 and more: pointers in ascending order.
    Indices(&'a [ExtentIndex]),
}

/// A node that passed [`ExtentNode::verify`].
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    header: &'a ExtentHeader,
    entries: ExtentEntries<'a>,
}

/// What a node is checked against.
#[derive(Clone, Debug)]
pub struct Expect {
    /// The node's depth; `None` for a root, which may have any up to [`MAX_DEPTH`].
    pub depth: Option<u16>,
    /// The logical blocks that the parent's entry covers (for a root, all blocks).
    pub covers: Range<u64>,
    /// The blocks that entries may point to.
    pub blocks: Range<u64>,
}

impl Expect {
    /// What a root is checked against, on a file system whose blocks are `blocks`.
    #[must_use]
    pub fn root(blocks: Range<u64>) -> Expect {
        Expect {
            depth: None,
            covers: 0..1 << 32,
            blocks,
        }
    }
}

impl<'a> ExtentNode<'a> {
    /// Checks a node: `bytes` is a root (60 bytes) or a whole block. Checksums are checked by [`verify_tail`].
    ///
    /// # Errors
    /// When the magic, the depth, a count, a pointer or the order is wrong.
    pub fn verify(bytes: &'a [u8], expect: &Expect) -> Result<ExtentNode<'a>, Corrupt> {
        let (header, rest) = ExtentHeader::ref_from_prefix(bytes)
            .ok()
            .filter(|(header, _)| header.magic() == MAGIC)
            .ok_or_else(|| Corrupt::at(Site::ExtentMagic))?;
        let depth = header.depth();
        if depth > MAX_DEPTH || expect.depth.is_some_and(|expected| expected != depth) {
            return Err(Corrupt::at(Site::ExtentDepth));
        }
        let count = usize::from(header.entries());
        let fit = rest.len() / ENTRY;
        if count > usize::from(header.max()) || usize::from(header.max()) > fit {
            return Err(Corrupt::at(Site::ExtentCount));
        }
        // An index node without entries leads nowhere; only the root of an empty tree, of depth 0, has no entries.
        if count == 0 && depth != 0 {
            return Err(Corrupt::at(Site::ExtentEmptyIndex));
        }
        let bytes = &rest[..count * ENTRY];
        let entries = match depth {
            0 => {
                let extents = <[Extent]>::ref_from_bytes(bytes);
                ExtentEntries::Extents(extents.unwrap_or_else(|_| unreachable!()))
            }
            _ => {
                let indices = <[ExtentIndex]>::ref_from_bytes(bytes);
                ExtentEntries::Indices(indices.unwrap_or_else(|_| unreachable!()))
            }
        };
        match entries {
            ExtentEntries::Extents(extents) => verify_extents(extents, expect)?,
            ExtentEntries::Indices(indices) => verify_indices(indices, expect)?,
        }
        Ok(ExtentNode { header, entries })
    }

    /// The entries of a node that was verified before. Bytes that were not verified yield no entries, or wrong ones.
    #[must_use]
    pub fn view(bytes: &'a [u8]) -> ExtentEntries<'a> {
        let none = ExtentEntries::Extents(&[]);
        let Ok((header, rest)) = ExtentHeader::ref_from_prefix(bytes) else {
            return none;
        };
        let count = usize::from(header.entries());
        match header.depth() {
            0 => <[Extent]>::ref_from_prefix_with_elems(rest, count)
                .map_or(none, |(extents, _)| ExtentEntries::Extents(extents)),
            _ => <[ExtentIndex]>::ref_from_prefix_with_elems(rest, count)
                .map_or(none, |(indices, _)| ExtentEntries::Indices(indices)),
        }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &'a ExtentHeader {
        self.header
    }

    /// Levels below this node.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.header.depth()
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> ExtentEntries<'a> {
        self.entries
    }
}

fn verify_extents(extents: &[Extent], expect: &Expect) -> Result<(), Corrupt> {
    let mut next = expect.covers.start;
    for extent in extents {
        if extent.is_empty() {
            return Err(Corrupt::at(Site::ExtentLength));
        }
        if u64::from(extent.block()) < next || extent.end() > expect.covers.end {
            return Err(Corrupt::at(Site::ExtentOrder));
        }
        next = extent.end();
        let start = extent.start().0;
        if start < expect.blocks.start || start + u64::from(extent.len()) > expect.blocks.end {
            return Err(Corrupt::at(Site::ExtentPointer).block(extent.start()));
        }
    }
    Ok(())
}

fn verify_indices(indices: &[ExtentIndex], expect: &Expect) -> Result<(), Corrupt> {
    let mut next = expect.covers.start;
    for index in indices {
        let block = u64::from(index.block());
        if block < next || block >= expect.covers.end {
            return Err(Corrupt::at(Site::ExtentIndexOrder));
        }
        next = block + 1;
        if !expect.blocks.contains(&index.leaf().0) {
            return Err(Corrupt::at(Site::ExtentIndexPointer).block(index.leaf()));
        }
    }
    Ok(())
}

/// The depth of a node that was verified before.
#[must_use]
pub fn depth(bytes: &[u8]) -> u16 {
    ExtentHeader::ref_from_prefix(bytes).map_or(0, |(header, _)| header.depth())
}

/// Whether the map below a root that was verified before has more than one leaf.
#[must_use]
pub fn has_many_leaves(root: &[u8]) -> bool {
    ExtentHeader::ref_from_prefix(root)
        .is_ok_and(|(header, _)| header.depth() > 1 || header.depth() == 1 && header.entries() > 1)
}

/// Whether an inode's block area is not the root of an extent tree, or is a valid root without entries.
#[must_use]
pub fn is_blank(area: &[u8; crate::inode::BLOCK_AREA]) -> bool {
    // The header can always be read, because it is shorter than the area.
    ExtentHeader::ref_from_prefix(area).is_ok_and(|(header, _)| {
        let is_ordinary = usize::from(header.max()) == (area.len() - ENTRY) / ENTRY;
        header.magic() != MAGIC || header.entries() == 0 && header.depth() == 0 && is_ordinary
    })
}

/// Entries that fit into a block of this size.
#[must_use]
pub fn block_entries(block_bytes: usize) -> u16 {
    // 64 KiB hold 5461 entries, so the cast keeps the number.
    ((block_bytes.min(1 << 16) - ENTRY) / ENTRY) as u16
}

/// The offset of the tail in a block of extents, if the block has room for a tail.
fn tail_of(block: &[u8]) -> Option<usize> {
    let (header, _) = ExtentHeader::ref_from_prefix(block).ok()?;
    let at = ENTRY + usize::from(header.max()) * ENTRY;
    (at + TAIL <= block.len()).then_some(at)
}

/// Compares a block's checksum with its contents; for file systems with `metadata_csum`. `seed` is the inode's.
///
/// # Errors
/// When it differs, or the entries leave no room for a tail.
pub fn verify_tail(block: &[u8], seed: u32) -> Result<(), Corrupt> {
    let matches = tail_of(block).is_some_and(|at| {
        let stored = [block[at], block[at + 1], block[at + 2], block[at + 3]];
        crc32c(seed, &block[..at]) == u32::from_le_bytes(stored)
    });
    if matches {
        Ok(())
    } else {
        Err(Corrupt::at(Site::ExtentChecksum))
    }
}

/// Writes a block's checksum into its tail. `seed` is the inode's.
///
/// # Panics
/// When the block has no valid header or no room for a tail, which [`encode`] always leaves.
pub fn set_tail(block: &mut [u8], seed: u32) {
    // A block made by `encode` has a tail.
    let at = tail_of(block).expect("an extent block has a tail");
    let checksum = crc32c(seed, &block[..at]);
    block[at..at + TAIL].copy_from_slice(&checksum.to_le_bytes());
}

/// Writes a node over `bytes` (a root's 60 bytes or a block): header, entries, zeros. [`set_tail`] writes the checksum.
///
/// # Panics
/// When the entries do not fit.
pub fn encode(bytes: &mut [u8], depth: u16, entries: ExtentEntries<'_>) {
    let max = match bytes.len() {
        crate::inode::BLOCK_AREA => ROOT_ENTRIES,
        len => block_entries(len),
    };
    let entries = match entries {
        ExtentEntries::Extents(extents) => extents.as_bytes(),
        ExtentEntries::Indices(indices) => indices.as_bytes(),
    };
    let count = entries.len() / ENTRY;
    assert!(count <= usize::from(max));
    bytes.fill(0);
    let header = ExtentHeader::new(count as u16, max, depth);
    bytes[..ENTRY].copy_from_slice(header.as_bytes());
    bytes[ENTRY..ENTRY + entries.len()].copy_from_slice(entries);
}

#[cfg(test)]
mod tests;
