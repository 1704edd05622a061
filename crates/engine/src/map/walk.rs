//! Walks the map of an inode: [`MapReader`] asks for the blocks of the map, and the walk brings them from the cache. A
//! map that names blocks of the file system's own tables is refused.

use std::ops::Range;

use buffer::Block;
use ondisk::extent::{self, Expect, ExtentNode};
use ondisk::map::{MapKind, MapNode, MapReader, MapStep, first_in_root};
use ondisk::{Corrupt, Flags, FsBlock, Ino, Site};
use sync::Arc;

use super::Mapping;
use crate::blocks::{Kind, OpenVolume};
use crate::core::Error;
use crate::inode::LoadedInode;

/// A block of a map in the cache.
struct CachedNode(Arc<Block>);

impl AsRef<[u8]> for CachedNode {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A walk through the map of one inode.
pub(super) struct MapWalk {
    ino: Ino,
    seed: u32,
    reader: MapReader<CachedNode>,
    /// `None` for a tree.
    pointers: Option<Box<PointerBudget>>,
}

/// The blocks of pointers that a walk may read. A map that needs more than the device has is a loop.
struct PointerBudget {
    left: u64,
    /// The block that was read last in each level; to read it again costs nothing.
    last: [FsBlock; 3],
}

impl MapWalk {
    /// Before the first run of the inode's map; the root of a tree is verified here.
    pub(super) fn new(volume: &OpenVolume, inode: &LoadedInode) -> Result<MapWalk, Error> {
        let ino = inode.ino();
        let geometry = volume.geometry();
        let (kind, pointers) = if inode.flags().contains(Flags::EXTENTS) {
            (MapKind::Extents, None)
        } else {
            let left = geometry.blocks_count();
            let last = [FsBlock(0); 3];
            let budget = PointerBudget { left, last };
            (MapKind::Pointers, Some(Box::new(budget)))
        };
        let (area, size) = (inode.block_area(), geometry.block_size());
        let reader = MapReader::new(area, kind, size, volume.blocks());
        Ok(MapWalk {
            ino,
            seed: inode.seed(),
            reader: reader.map_err(|corrupt| corrupt.ino(ino))?,
            pointers,
        })
    }

    /// The first run that ends after `from`, which must not lie before that of earlier calls. The reader moves forward
    /// with each block.
    pub(super) fn next(
        &mut self,
        volume: &OpenVolume,
        from: u64,
    ) -> Result<Option<Mapping>, Error> {
        let ino = self.ino;
        loop {
            match self.reader.next(from).map_err(|corrupt| corrupt.ino(ino))? {
                MapStep::Node(node) => {
                    let block = self.load(volume, node)?;
                    let supplied = self.reader.supply(CachedNode(block));
                    supplied.map_err(|corrupt| corrupt.ino(ino).block(node.block))?;
                }
                MapStep::Run(run) => {
                    volume.check_unowned(ino, run.start, run.len)?;
                    return Ok(Some(run.into()));
                }
                MapStep::End => return Ok(None),
            }
        }
    }

    fn load(&mut self, volume: &OpenVolume, node: MapNode) -> Result<Arc<Block>, Error> {
        let Some(budget) = &mut self.pointers else {
            return load_node(volume, (self.ino, self.seed), node.block);
        };
        volume.check_unowned(self.ino, node.block, 1)?;
        budget
            .spend(node)
            .map_err(|corrupt| corrupt.ino(self.ino))?;
        volume.read_block(node.block, Kind::Pointers, Ino(0), |_| Ok(()))
    }
}

impl PointerBudget {
    fn spend(&mut self, node: MapNode) -> Result<(), Corrupt> {
        // The depth is 1 to 3.
        let last = self.last.get_mut(usize::from(node.depth).saturating_sub(1));
        if last.is_some_and(|last| std::mem::replace(last, node.block) == node.block) {
            return Ok(());
        }
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| Corrupt::at(Site::IndirectLoop))?;
        Ok(())
    }
}

/// Whether a tree that was verified before is its root.
pub(super) fn is_root_only(inode: &LoadedInode) -> bool {
    extent::depth(inode.block_area()) == 0
}

/// What [`MapWalk::next`] yields first, in a tree that is its root.
pub(super) fn next_in_root(
    volume: &OpenVolume,
    inode: &LoadedInode,
    from: u64,
) -> Result<Option<Mapping>, Error> {
    let ino = inode.ino();
    let run = first_in_root(inode.block_area(), volume.blocks(), from)
        .map_err(|corrupt| corrupt.ino(ino))?;
    let Some(run) = run else {
        return Ok(None);
    };
    volume.check_unowned(ino, run.start, run.len)?;
    Ok(Some(run.into()))
}

/// Reads and verifies the child in block `at` of a node of this depth, of the inode with this number and seed.
pub(super) fn read_node(
    volume: &OpenVolume,
    (ino, seed): (Ino, u32),
    at: FsBlock,
    covers: Range<u64>,
    depth: u16,
) -> Result<Arc<Block>, Error> {
    let block = load_node(volume, (ino, seed), at)?;
    let expect = Expect {
        depth: Some(depth.saturating_sub(1)),
        covers,
        blocks: volume.blocks(),
    };
    ExtentNode::verify(&block, &expect).map_err(|corrupt| corrupt.ino(ino).block(at))?;
    Ok(block)
}

/// Reads a node of the tree of the inode with this number and seed, and verifies its checksum.
fn load_node(
    volume: &OpenVolume,
    (ino, seed): (Ino, u32),
    at: FsBlock,
) -> Result<Arc<Block>, Error> {
    let has_checksum = volume.geometry().has_metadata_csum();
    volume.check_unowned(ino, at, 1)?;
    volume.read_block(at, Kind::Extents, ino, |bytes| {
        if has_checksum {
            extent::verify_tail(bytes, seed).map_err(|corrupt| corrupt.ino(ino).block(at))?;
        }
        Ok(())
    })
}
