//! An image as its bytes: what `info`, `dump` and `map` look at. Nothing is replayed, repaired or trusted: numbers
//! from the disk are bounded by the geometry before they are used, and what can't be read says where.

use std::path::Path;

use device::{BlockDevice, DeviceError, Incomplete};
use ondisk::features::Feature;
use ondisk::inode::Inode;
use ondisk::{Corrupt, FsBlock, Geometry, GeometryError, Group, GroupDesc, Ino, Superblock};
use sync::Arc;

use crate::advice::{damaged, warn_of_cut};
use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::open::{location, open_for, open_fs};

pub mod walk;

/// The most bytes read at once, whatever the disk says.
const CHUNK: usize = 1 << 20;

/// An open image.
pub struct Raw {
    device: Arc<dyn BlockDevice>,
    /// The superblock in use.
    pub superblock: Superblock,
    /// What follows from it.
    pub geometry: Geometry,
    /// The block of the superblock's copy that was asked for; the descriptors behind it are used.
    backup: Option<FsBlock>,
}

impl Raw {
    /// Opens the image that the options name; the superblock in use must verify. An image that ends before its file
    /// system is shown as far as it goes, with a warning.
    pub fn open(context: &Context, path: &Path, options: &FsArgs) -> Result<Raw, Failure> {
        let (device, superblock) = read_superblock(context, path, options)?;
        let geometry = check(&superblock).map_err(|error| {
            let failure = Failure::new(error).at(path.display());
            match (error, options.superblock) {
                (GeometryError::Corrupt(_), None) => {
                    damaged(failure, path, &device, location(&options.image))
                }
                _ => failure,
            }
        })?;
        let (needed, present) = (geometry.bytes(), device.size());
        let device: Arc<dyn BlockDevice> = match present < needed {
            true => {
                warn_of_cut(context, path, needed, present, "");
                Arc::new(Incomplete::new(device, needed))
            }
            false => device,
        };
        let block = |kib: u64| FsBlock(kib.saturating_mul(1024) >> geometry.block_size().bits());
        Ok(Raw {
            device,
            superblock,
            geometry,
            backup: options.superblock.map(block),
        })
    }

    /// The same image with its journal replayed in memory, when there is something to replay and the options don't say
    /// otherwise. When the replay fails, the user is told why, and what is on disk has to do.
    pub fn replayed(&self, context: &Context, path: &Path, options: &FsArgs) -> Option<Raw> {
        if !self.needs_recovery() || options.no_replay || options.superblock.is_some() {
            return None;
        }
        let fs = match open_fs(context, path, options) {
            Ok(fs) => fs,
            Err(failure) => {
                context.warn(format!(
                    "{}; so changes in the journal are not shown",
                    failure.text()
                ));
                return None;
            }
        };
        Some(Raw {
            device: Arc::clone(fs.inodes().device()),
            superblock: *fs.inodes().superblock(),
            geometry: *fs.inodes().geometry(),
            backup: self.backup,
        })
    }

    /// Whether the journal holds what the blocks read here do not show yet.
    pub fn needs_recovery(&self) -> bool {
        self.geometry.has(Feature::NEEDS_RECOVERY)
    }

    /// Reads one block.
    pub fn block(&self, block: FsBlock) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; self.geometry.block_size().bytes()];
        self.read(block, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads bytes from a byte of a block on.
    pub fn read(&self, block: FsBlock, skip: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        if block.0 >= self.geometry.blocks_count() {
            let last = self.geometry.blocks_count() - 1;
            return Err(Failure::new(format!(
                "no block {block}: the last is {last}"
            )));
        }
        let offset = block.offset(self.geometry.block_size()) + skip as u64;
        self.device.read_at(offset, bytes).map_err(Failure::new)
    }

    /// The bytes of one group's descriptor.
    pub fn desc_bytes(&self, group: Group) -> Result<Vec<u8>, Failure> {
        if group.0 >= self.geometry.groups() {
            let last = self.geometry.groups() - 1;
            return Err(Failure::new(format!(
                "no group {group}: the last is {last}"
            )));
        }
        let (_, byte) = self.geometry.desc_place(group);
        let block = self.desc_block(group.0 / self.geometry.descs_per_block());
        let mut bytes = vec![0; self.geometry.desc_size()];
        self.read(block, byte, &mut bytes)?;
        Ok(bytes)
    }

    /// Where a block of the descriptors in use lies.
    fn desc_block(&self, index: u32) -> FsBlock {
        match self.backup {
            Some(block) => self.geometry.desc_block_of_copy(block, index),
            None => self.geometry.desc_block(index),
        }
    }

    /// One group's descriptor, verified.
    pub fn desc(&self, group: Group) -> Result<GroupDesc, Failure> {
        let bytes = self.desc_bytes(group)?;
        GroupDesc::verify(&bytes, &self.geometry, group).map_err(Failure::new)
    }

    /// Calls `visit` with every group in order; a descriptor that does not verify comes as what is wrong with it.
    /// Where the image ends before its descriptors do, returns how many groups were not visited.
    pub fn descs(
        &self,
        mut visit: impl FnMut(Group, Result<GroupDesc, Corrupt>) -> Result<(), Failure>,
    ) -> Result<Option<Unvisited>, Failure> {
        let per_block = self.geometry.descs_per_block() as usize;
        let mut groups = self.geometry.all_groups();
        let mut block = vec![0; self.geometry.block_size().bytes()];
        for index in 0..self.geometry.desc_blocks() {
            let offset = self.desc_block(index).offset(self.geometry.block_size());
            match self.device.read_at(offset, &mut block) {
                Ok(()) => {}
                Err(error @ DeviceError::Missing { .. }) => {
                    return Ok(Some(Unvisited {
                        groups: groups.len() as u64,
                        why: error.to_string(),
                    }));
                }
                Err(error) => return Err(Failure::new(error)),
            }
            let raws = block.chunks_exact(self.geometry.desc_size());
            for (group, raw) in groups.by_ref().take(per_block).zip(raws) {
                visit(group, GroupDesc::verify(raw, &self.geometry, group))?;
            }
        }
        Ok(None)
    }

    /// The bytes of an inode in its table.
    pub fn slot(&self, ino: Ino) -> Result<Vec<u8>, Failure> {
        let Some((group, index)) = self.geometry.group_of_ino(ino) else {
            let last = self.geometry.inodes_count();
            return Err(Failure::new(format!("no inode {ino}: the last is {last}")));
        };
        let table = self.desc(group)?.inode_table();
        let (block, byte) = self.geometry.inode_place(table, index);
        let mut bytes = vec![0; self.geometry.inode_size()];
        self.read(block, byte, &mut bytes)?;
        Ok(bytes)
    }

    /// Calls `visit` with every inode in use that the group's inode bitmap names, and its bytes.
    pub fn used_inodes(
        &self,
        group: Group,
        desc: &GroupDesc,
        mut visit: impl FnMut(Ino, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let geometry = &self.geometry;
        if desc.has(ondisk::group_desc::flags::INODE_UNINIT) {
            return Ok(());
        }
        let bits = self.block(desc.inode_bitmap())?;
        let end = geometry
            .inodes_per_group()
            .saturating_sub(desc.itable_unused());
        let size = geometry.inode_size();
        let chunk_inodes = (CHUNK / size) as u32;
        let mut bytes = Vec::new();
        let mut loaded = 0..0;
        let mut from = 0;
        while let Some(index) = ondisk::bitmap::find(&bits, from, end, true) {
            from = index + 1;
            if !loaded.contains(&index) {
                // A whole block at least, and no more than up to the table's end.
                let first = index - index % geometry.inodes_per_block();
                let last = end.min(first + chunk_inodes);
                loaded = first..last;
                bytes.resize((last - first) as usize * size, 0);
                let (block, byte) = geometry.inode_place(desc.inode_table(), first);
                self.read(block, byte, &mut bytes)?;
            }
            let at = (index - loaded.start) as usize * size;
            visit(geometry.ino_of(group, index), &bytes[at..at + size])?;
        }
        Ok(())
    }

    /// The first block of an inode's contents, if it has one.
    pub fn first_block(&self, slot: &[u8], ino: Ino) -> Result<Option<FsBlock>, Failure> {
        let inode = Inode::parse(slot).map_err(|corrupt| Failure::new(corrupt.ino(ino)))?;
        let mut found = None;
        let mut budget = walk::BUDGET;
        walk::walk(self, ino, &inode, &mut budget, &mut |piece| {
            match piece {
                walk::Piece::Run { lblk: 0, start, .. } => found = Some(start),
                _ if found.is_none() => return Ok(walk::Go::On),
                _ => {}
            }
            Ok(walk::Go::Stop)
        })?;
        Ok(found)
    }
}

/// Groups whose descriptors are missing.
pub struct Unvisited {
    /// How many.
    pub groups: u64,
    /// What is missing.
    pub why: String,
}

/// The device that the options name, and the superblock in use, unchecked.
pub fn read_superblock(
    context: &Context,
    path: &Path,
    options: &FsArgs,
) -> Result<(Arc<dyn BlockDevice>, Superblock), Failure> {
    let device = open_for(context, path, options)?;
    let offset = match options.superblock {
        None => Superblock::OFFSET,
        Some(kib) => kib.saturating_mul(1024),
    };
    let mut bytes = [0; Superblock::SIZE];
    device
        .read_at(offset, &mut bytes)
        .map_err(|error| Failure::new(error).at(path.display()))?;
    Ok((device, *Superblock::view(&bytes)))
}

/// What follows from a superblock, or what is wrong with it.
pub fn check(superblock: &Superblock) -> Result<Geometry, GeometryError> {
    superblock.verify()?;
    Geometry::of(superblock)
}
