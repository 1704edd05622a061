//! Walks an extent tree: a stack of verified nodes from the root to a leaf, and a place in each.

use std::ops::Range;

use buffer::Block;
use ondisk::Ino;
use ondisk::extent::{self, Expect, Extent, ExtentEntries, ExtentNode};
use ondisk::inode::BLOCK_AREA;
use sync::Arc;

use super::Mapping;
use crate::error::Error;
use crate::icache::LoadedInode;
use crate::sb::{Kind, OpenVolume};

enum Bytes {
    Root([u8; BLOCK_AREA]),
    Block(Arc<Block>),
}

/// A verified node and the entry at which the walk is.
struct Level {
    bytes: Bytes,
    /// The first logical block after those that the node covers.
    end: u64,
    at: usize,
}

impl Level {
    fn entries(&self) -> ExtentEntries<'_> {
        ExtentNode::view(match &self.bytes {
            Bytes::Root(bytes) => bytes,
            Bytes::Block(block) => block,
        })
    }

    /// Moves to the entry that covers `from`, or the first one after it.
    fn seek(&mut self, from: u64) {
        self.at = match self.entries() {
            ExtentEntries::Extents(all) => all.partition_point(|extent| extent.end() <= from),
            ExtentEntries::Indices(all) => all
                .partition_point(|index| u64::from(index.block()) <= from)
                .saturating_sub(1),
        };
    }
}

/// The nodes from the root to the deepest; most trees are a root, which takes no memory of its own.
struct Levels {
    root: Option<Level>,
    below: Vec<Level>,
}

impl Levels {
    fn last(&self) -> Option<&Level> {
        self.below.last().or(self.root.as_ref())
    }

    fn last_mut(&mut self) -> Option<&mut Level> {
        self.below.last_mut().or(self.root.as_mut())
    }

    fn push(&mut self, level: Level) {
        self.below.push(level);
    }

    fn pop(&mut self) {
        if self.below.pop().is_none() {
            self.root = None;
        }
    }
}

/// A walk through the tree of one inode.
pub(super) struct Tree {
    ino: Ino,
    seed: u32,
    /// From the root to a leaf; empty when the walk is over.
    levels: Levels,
    /// The logical block at which the walk is; 0 before it began.
    at: u64,
    began: bool,
}

impl Tree {
    /// Before the first run of the inode's tree; the root is verified here.
    pub(super) fn new(volume: &OpenVolume, inode: &LoadedInode) -> Result<Tree, Error> {
        let root = *inode.block_area();
        let ino = inode.ino();
        ExtentNode::verify(&root, &Expect::root(volume.blocks()))
            .map_err(|corrupt| corrupt.ino(ino))?;
        let level = Level {
            bytes: Bytes::Root(root),
            end: 1 << 32,
            at: 0,
        };
        Ok(Tree {
            ino,
            seed: inode.seed(),
            levels: Levels {
                root: Some(level),
                below: Vec::new(),
            },
            at: 0,
            began: false,
        })
    }

    /// The first run that ends after `from`, which must not lie before that of earlier calls.
    pub(super) fn next(
        &mut self,
        volume: &OpenVolume,
        from: u64,
    ) -> Result<Option<Mapping>, Error> {
        if !self.began {
            self.began = true;
            self.descend(volume, from)?;
        }
        debug_assert!(from >= self.at);
        self.at = from;
        while let Some(level) = self.levels.last_mut() {
            match level.entries() {
                ExtentEntries::Extents(all) => {
                    let Some(extent) = all.get(level.at) else {
                        self.levels.pop();
                        self.step();
                        continue;
                    };
                    let run = run_of(extent);
                    let start = extent.start();
                    level.at += 1;
                    if run.end() > from {
                        volume.check_unowned(self.ino, start, run.len)?;
                        return Ok(Some(run));
                    }
                }
                ExtentEntries::Indices(all) if level.at < all.len() => {
                    self.descend(volume, from)?
                }
                ExtentEntries::Indices(_) => {
                    self.levels.pop();
                    self.step();
                }
            }
        }
        Ok(None)
    }

    /// Moves the deepest node left on the path to its next entry.
    fn step(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.at += 1;
        }
    }

    /// Goes down from the deepest node to a leaf, towards `from`. The tree's depth bounds the loop: each child
    /// was verified to be one level less deep than its parent.
    fn descend(&mut self, volume: &OpenVolume, from: u64) -> Result<(), Error> {
        while let Some(level) = self.levels.last_mut() {
            // A node that was just reached is searched; one that was stepped on has its place already.
            if level.at == 0 {
                level.seek(from);
            }
            let ExtentEntries::Indices(all) = level.entries() else {
                return Ok(());
            };
            let Some(index) = all.get(level.at) else {
                return Ok(());
            };
            let next = all.get(level.at + 1);
            let end = next.map_or(level.end, |next| next.block().into());
            let covers = u64::from(index.block())..end;
            let (leaf, depth) = (index.leaf(), self.depth());
            let block = read_node(volume, (self.ino, self.seed), leaf, covers, depth)?;
            self.levels.push(Level {
                bytes: Bytes::Block(block),
                end,
                at: 0,
            });
        }
        Ok(())
    }

    /// The depth of the deepest node on the path.
    fn depth(&self) -> u16 {
        self.levels.last().map_or(0, |level| match &level.bytes {
            Bytes::Root(bytes) => extent::depth(bytes),
            Bytes::Block(block) => extent::depth(block),
        })
    }
}

fn run_of(extent: &Extent) -> Mapping {
    Mapping {
        logical: extent.block().into(),
        len: extent.len().into(),
        physical: Some(extent.start()),
        unwritten: extent.is_unwritten(),
    }
}

/// Whether a tree is its root, as that says.
pub(super) fn is_root_only(inode: &LoadedInode) -> bool {
    extent::depth(inode.block_area()) == 0
}

/// As [`Tree::next`], once, in a tree that is its root.
pub(super) fn next_in_root(
    volume: &OpenVolume,
    inode: &LoadedInode,
    from: u64,
) -> Result<Option<Mapping>, Error> {
    let (root, ino) = (inode.block_area(), inode.ino());
    ExtentNode::verify(root, &Expect::root(volume.blocks())).map_err(|corrupt| corrupt.ino(ino))?;
    let ExtentEntries::Extents(all) = ExtentNode::view(root) else {
        return Ok(None);
    };
    let at = all.partition_point(|extent| extent.end() <= from);
    let Some(extent) = all.get(at) else {
        return Ok(None);
    };
    let run = run_of(extent);
    volume.check_unowned(ino, extent.start(), run.len)?;
    Ok(Some(run))
}

/// Reads and verifies the child in block `at` of a node of this depth, of the inode with this number and seed.
pub(super) fn read_node(
    volume: &OpenVolume,
    (ino, seed): (Ino, u32),
    at: ondisk::FsBlock,
    covers: Range<u64>,
    depth: u16,
) -> Result<Arc<Block>, Error> {
    let has_checksum = volume.geometry().has_metadata_csum();
    let place = |corrupt: ondisk::Corrupt| corrupt.ino(ino).block(at);
    volume.check_unowned(ino, at, 1)?;
    let block = volume.read_block(at, Kind::Extents, ino, |bytes| {
        if has_checksum {
            extent::verify_tail(bytes, seed).map_err(place)?;
        }
        Ok(())
    })?;
    let expect = Expect {
        depth: Some(depth.saturating_sub(1)),
        covers,
        blocks: volume.blocks(),
    };
    ExtentNode::verify(&block, &expect).map_err(place)?;
    Ok(block)
}
