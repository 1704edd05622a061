//! One reader for both kinds of maps: it asks for the next block of the map, or yields a run.

use core::ops::Range;

use super::pointers::PointerWalk;
use super::tree::TreeWalk;
use super::{MapKind, Run};
use crate::extent::{Expect, ExtentEntries, ExtentNode};
use crate::inode::BLOCK_AREA;
use crate::numbers::{BlockSize, FsBlock};
use crate::site::Corrupt;

/// What a reader needs or found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapStep {
    /// This block of the map comes next: [`MapReader::supply`].
    Node(MapNode),
    /// The next run.
    Run(Run),
    /// No run is left.
    End,
}

/// A block of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapNode {
    /// Its place, which is one of the blocks that the reader's caller allows.
    pub block: FsBlock,
    /// The node's depth in an extent tree, 0 for one that holds extents. In a map of pointers, the number of blocks of
    /// pointers from this one to the data: 1 to 3.
    pub depth: u16,
    /// The first logical block that it may map.
    pub logical: u64,
}

/// A walk through one map, from any logical block on. `B` is what the caller keeps a block in; the reader holds at most
/// one for each level.
pub struct MapReader<B>(Walk<B>);

enum Walk<B> {
    Tree(TreeWalk<B>),
    /// Larger than a tree's, and rarer: a reader is moved several times before it reads.
    Pointers(Box<PointerWalk<B>>),
    /// After an error.
    Over,
}

impl<B: AsRef<[u8]>> MapReader<B> {
    /// A reader before the first run of the map whose root is `area`. Only `blocks` may be pointed to.
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

    /// The block of the map that is needed to go on, or the run with the smallest logical block among those that end
    /// after `from`; runs of extents are whole, those of pointers begin at `from` or later and end with their block of
    /// pointers. `from` must not be smaller than in earlier calls. Without [`MapReader::supply`] in between, a
    /// block is asked for again.
    ///
    /// # Errors
    /// When a pointer leads out of the blocks that are allowed; the walk is then over.
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

    /// Brings the block that [`MapReader::next`] asked for last. Checksums are the caller's task.
    ///
    /// # Errors
    /// When it is not a node of an extent tree that fits its place; the walk is then over. The error does not name the
    /// node, which the caller knows.
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

/// What [`MapReader::next`] would yield first, for a tree that consists of its root, as most do. Nothing is copied.
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
