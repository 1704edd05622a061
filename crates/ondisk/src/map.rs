//! The map of a file, which names its blocks: an extent tree ([`crate::extent`]) or the pointers of ext2 and ext3
//! ([`crate::indirect`]). It is read by a [`MapReader`] and made by [`build_map`]; both do without I/O.
//!
//! A reader holds the root and asks for each block of the map that it needs; the caller brings it and bounds how many
//! it brings. What a reader yields has passed the checks of the format: runs ascend, don't overlap, and lie in the
//! blocks that the caller allows. A walk only moves forward: through a tree that is at most six nodes deep, or through
//! three levels of pointers, over at most 2^32 blocks of a file.
//!
//! ```
//! use ondisk::map::{MapKind, MapReader, MapStep, Run};
//! # use lanefs_ondisk as ondisk;
//! # use ondisk::{BlockSize, Corrupt, FsBlock};
//!
//! fn runs(
//!     area: &[u8; 60],
//!     mut read_block: impl FnMut(FsBlock) -> Vec<u8>,
//! ) -> Result<Vec<Run>, Corrupt> {
//!     let mut reader = MapReader::new(area, MapKind::Extents, BlockSize::K4, 0..1 << 20)?;
//!     let mut runs: Vec<Run> = Vec::new();
//!     loop {
//!         let from = runs.last().map_or(0, Run::end);
//!         match reader.next(from)? {
//!             MapStep::Node(node) => reader.supply(read_block(node.block))?,
//!             MapStep::Run(run) => runs.push(run),
//!             MapStep::End => return Ok(runs),
//!         }
//!     }
//! }
//! # assert!(runs(&[0; 60], |_| Vec::new()).is_err());
//! ```

use core::ops::Range;

use crate::extent::Extent;
use crate::numbers::FsBlock;

mod build;
mod pointers;
mod reader;
mod tree;

pub use build::{build_map, map_blocks};
pub use reader::{MapReader, first_in_root};

/// Which kind of map a file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapKind {
    /// An extent tree.
    Extents,
    /// Pointers, through up to three levels of blocks.
    Pointers,
}

/// What a reader needs next, or has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapStep {
    /// The reader needs this block of the map: see [`MapReader::supply`].
    Node(MapNode),
    /// The next run.
    Run(Run),
    /// No run is left.
    End,
}

/// A block of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapNode {
    /// The block's number, which is one of the blocks that may be pointed to.
    pub block: FsBlock,
    /// In an extent tree, the depth of the node; 0 for a node that holds extents. In a map of pointers, the number of
    /// blocks of pointers from this one to the data: 1 to 3.
    pub depth: u16,
    /// The first logical block that it may map.
    pub logical: u64,
}

/// Blocks that are adjacent in a file and on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first block, counted from the file's start.
    pub logical: u64,
    /// The first block on the device.
    pub start: FsBlock,
    /// The number of blocks, not 0.
    pub len: u64,
    /// Whether the blocks are allocated but read as zeros.
    pub unwritten: bool,
}

impl Run {
    /// The logical block after the run.
    #[must_use]
    #[inline]
    pub fn end(&self) -> u64 {
        self.logical + self.len
    }

    /// The part of the run in `range`, which must overlap it.
    #[must_use]
    #[inline]
    pub fn cut(self, range: &Range<u64>) -> Run {
        let logical = self.logical.max(range.start);
        Run {
            logical,
            start: FsBlock(self.start.0 + (logical - self.logical)),
            len: self.end().min(range.end) - logical,
            ..self
        }
    }

    /// Whether `next` continues this run, in the file and on the device.
    #[must_use]
    #[inline]
    pub fn is_continued_by(&self, next: &Run) -> bool {
        self.end() == next.logical
            && self.start.0 + self.len == next.start.0
            && self.unwritten == next.unwritten
    }
}

impl From<&Extent> for Run {
    #[inline]
    fn from(extent: &Extent) -> Run {
        Run {
            logical: extent.block().into(),
            start: extent.start(),
            len: extent.len().into(),
            unwritten: extent.is_unwritten(),
        }
    }
}

#[cfg(test)]
mod tests;
