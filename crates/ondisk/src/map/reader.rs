//! One reader for extent trees and maps of pointers. It does no I/O: it asks for the next block of the map, or yields a
//! run.

use core::ops::Range;

use super::pointers::PointerWalk;
use super::tree::TreeWalk;
use super::{MapKind, MapStep, Run};
use crate::extent::{Expect, ExtentEntries, ExtentNode};
use crate::inode::BLOCK_AREA;
use crate::numbers::BlockSize;
use crate::site::Corrupt;

/// A walk through one map, from any logical block on. `B` is the type in which the caller keeps a block; the reader
/// holds at most one block for each level.
pub struct MapReader<B>(Walk<B>);

enum Walk<B> {
    Tree(TreeWalk<B>),
    /// Boxed, because it is larger than a tree's walk and rarer, and a reader is moved several times before it reads.
    Pointers(Box<PointerWalk<B>>),
    /// After an error.
    Over,
}

impl<B: AsRef<[u8]>> MapReader<B> {
    /// A reader that begins before the first run of the map whose root is `area`. Entries may point to `blocks` only.
    ///
    /// # Errors
    /// When the root of an extent tree is wrong.
    pub fn new(
        area: &[u8; BLOCK_AREA],
        kind: MapKind,
        size: BlockSize,
        blocks: Range<u64>,
    ) -> Result<MapReader<B>, Corrupt> {
        Ok(MapReader(match kind {
            MapKind::Extents => Walk::Tree(TreeWalk::new(area, blocks)?),
            MapKind::Pointers => Walk::Pointers(Box::new(PointerWalk::new(area, size, blocks))),
        }))
    }

    /// The block of the map that the reader needs to go on, or the next run: the one with the smallest logical block
    /// among the runs that end after `from`. A run of an extent tree is a whole extent; a run of pointers begins at
    /// `from` or later and ends with its block of pointers at the latest. `from` must not be smaller than in earlier
    /// calls. Until [`MapReader::supply`] is called, the reader asks for the same block again.
    ///
    /// # Errors
    /// When a pointer leads out of the allowed blocks; the walk then ends.
    pub fn next(&mut self, from: u64) -> Result<MapStep, Corrupt> {
        match &mut self.0 {
            Walk::Tree(tree) => Ok(tree.next(from)),
            Walk::Pointers(pointers) => {
                let step = pointers.next(from);
                if step.is_err() {
                    self.0 = Walk::Over;
                }
                step
            }
            Walk::Over => Ok(MapStep::End),
        }
    }

    /// Supplies the block that [`MapReader::next`] last asked for. The caller checks the block's checksum.
    ///
    /// # Errors
    /// When the block is not a node of an extent tree that fits its place; the walk then ends. The error does not name
    /// the node, because the caller knows it.
    pub fn supply(&mut self, bytes: B) -> Result<(), Corrupt> {
        match &mut self.0 {
            Walk::Tree(tree) => {
                let supplied = tree.supply(bytes);
                if supplied.is_err() {
                    self.0 = Walk::Over;
                }
                supplied
            }
            Walk::Pointers(pointers) => {
                pointers.supply(bytes);
                Ok(())
            }
            Walk::Over => Ok(()),
        }
    }
}

/// The first step of [`MapReader::next`], if the tree consists of its root only, as most do. Copies nothing.
///
/// # Errors
/// When the root is wrong.
#[inline]
pub fn first_in_root(
    area: &[u8; BLOCK_AREA],
    blocks: Range<u64>,
    from: u64,
) -> Result<Option<Run>, Corrupt> {
    ExtentNode::verify(area, &Expect::root(blocks))?;
    let ExtentEntries::Extents(all) = ExtentNode::view(area) else {
        return Ok(None);
    };
    let at = all.partition_point(|extent| extent.end() <= from);
    Ok(all.get(at).map(Run::from))
}
