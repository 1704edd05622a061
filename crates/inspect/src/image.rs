//! An image as its bytes: blocks, group descriptors and inodes. Numbers from the disk are bounded by the geometry
//! before they are used.

use core::ops::ControlFlow;

use device::{BlockDevice, DeviceError};
use ondisk::features::Feature;
use ondisk::inode::Inode;
use ondisk::{Corrupt, FsBlock, Geometry, GeometryError, Group, GroupDesc, Ino, Superblock};
use sync::Arc;

use crate::error::InspectError;

/// The most bytes read at once, whatever the disk says.
const CHUNK: usize = 1 << 20;

/// An image, and the superblock by which it is read. Any number of threads may read it.
pub struct RawImage {
    device: Arc<dyn BlockDevice>,
    /// The superblock in use.
    pub superblock: Superblock,
    /// The geometry that follows from it.
    pub geometry: Geometry,
    /// The block of the superblock's copy that was asked for; the descriptors behind it are used.
    backup: Option<FsBlock>,
}

impl RawImage {
    /// An image of this superblock and the geometry that follows from it. `backup` is the place of the superblock's
    /// copy in units of 1 KiB, where a copy is used.
    #[must_use]
    pub fn new(
        device: Arc<dyn BlockDevice>,
        superblock: Superblock,
        geometry: Geometry,
        backup: Option<u64>,
    ) -> RawImage {
        let block = |kib: u64| FsBlock(kib.saturating_mul(1024) >> geometry.block_size().bits());
        RawImage {
            device,
            superblock,
            geometry,
            backup: backup.map(block),
        }
    }

    /// Whether the journal holds changes that the blocks read here do not show yet.
    #[must_use]
    pub fn needs_recovery(&self) -> bool {
        self.geometry.has(Feature::NEEDS_RECOVERY)
    }

    /// Reads one block.
    ///
    /// # Errors
    /// `NoBlock` and `Device`.
    pub fn block(&self, block: FsBlock) -> Result<Vec<u8>, InspectError> {
        let mut bytes = vec![0; self.geometry.block_size().bytes()];
        self.read(block, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads bytes from byte `skip` of a block on.
    ///
    /// # Errors
    /// `NoBlock` and `Device`.
    pub fn read(&self, block: FsBlock, skip: usize, bytes: &mut [u8]) -> Result<(), InspectError> {
        if block.0 >= self.geometry.blocks_count() {
            let last = self.geometry.blocks_count() - 1;
            return Err(InspectError::NoBlock { block, last });
        }
        let offset = block.offset(self.geometry.block_size()) + skip as u64;
        Ok(self.device.read_at(offset, bytes)?)
    }

    /// The bytes of one group's descriptor.
    ///
    /// # Errors
    /// `NoGroup` and `Device`.
    pub fn desc_bytes(&self, group: Group) -> Result<Vec<u8>, InspectError> {
        if group.0 >= self.geometry.groups() {
            let last = self.geometry.groups() - 1;
            return Err(InspectError::NoGroup { group, last });
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
    ///
    /// # Errors
    /// `NoGroup`, `Corrupt` and `Device`.
    pub fn desc(&self, group: Group) -> Result<GroupDesc, InspectError> {
        let bytes = self.desc_bytes(group)?;
        Ok(GroupDesc::verify(&bytes, &self.geometry, group)?)
    }

    /// Calls `visit` with every group in order, and with its descriptor or what is wrong with it. If the image ends
    /// before its descriptors do, returns how many groups were not visited.
    ///
    /// # Errors
    /// `Device` if the descriptors can't be read.
    pub fn descs(
        &self,
        mut visit: impl FnMut(Group, Result<GroupDesc, Corrupt>),
    ) -> Result<Option<Unvisited>, InspectError> {
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
                Err(error) => return Err(error.into()),
            }
            let raws = block.chunks_exact(self.geometry.desc_size());
            for (group, raw) in groups.by_ref().take(per_block).zip(raws) {
                visit(group, GroupDesc::verify(raw, &self.geometry, group));
            }
        }
        Ok(None)
    }

    /// The bytes of an inode in its table, whether it is in use or not.
    ///
    /// # Errors
    /// `NoInode`, `Corrupt` if the group's descriptor does not verify, and `Device`.
    pub fn slot(&self, ino: Ino) -> Result<Vec<u8>, InspectError> {
        let Some((group, index)) = self.geometry.group_of_ino(ino) else {
            let last = self.geometry.inodes_count();
            return Err(InspectError::NoInode { ino, last });
        };
        let table = self.desc(group)?.inode_table();
        let (block, byte) = self.geometry.inode_place(table, index);
        let mut bytes = vec![0; self.geometry.inode_size()];
        self.read(block, byte, &mut bytes)?;
        Ok(bytes)
    }

    /// Calls `visit` with every inode that the group's inode bitmap has in use, and its bytes, until `visit` breaks
    /// off.
    ///
    /// # Errors
    /// `NoBlock` and `Device`.
    pub fn used_inodes(
        &self,
        group: Group,
        desc: &GroupDesc,
        visit: impl FnMut(Ino, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), InspectError> {
        self.inodes(group, desc, true, visit)
    }

    /// Calls `visit` with every inode that is free in the group's inode bitmap and still records when it was deleted,
    /// until `visit` breaks off. Inodes that were never used, or are in use again, are left out.
    ///
    /// # Errors
    /// `NoBlock` and `Device`.
    pub fn deleted_inodes(
        &self,
        group: Group,
        desc: &GroupDesc,
        mut visit: impl FnMut(Ino, &Inode) -> ControlFlow<()>,
    ) -> Result<(), InspectError> {
        self.inodes(group, desc, false, |ino, bytes| match Inode::parse(bytes) {
            Ok(inode) if inode.dtime() != 0 && inode.links_count() == 0 => visit(ino, &inode),
            _ => ControlFlow::Continue(()),
        })
    }

    /// Calls `visit` with the bytes of every inode of the group that is in use, or of every one that is not.
    fn inodes(
        &self,
        group: Group,
        desc: &GroupDesc,
        are_used: bool,
        mut visit: impl FnMut(Ino, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), InspectError> {
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
        while let Some(index) = ondisk::bitmap::find(&bits, from, end, are_used) {
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
            if visit(geometry.ino_of(group, index), &bytes[at..at + size]).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// An inode, parsed.
    ///
    /// # Errors
    /// `NoInode`, `Corrupt` and `Device`.
    pub fn inode(&self, ino: Ino) -> Result<Inode, InspectError> {
        let inode = Inode::parse(&self.slot(ino)?);
        inode.map_err(|corrupt| corrupt.ino(ino).into())
    }
}

/// Groups whose descriptors are missing.
pub struct Unvisited {
    /// How many.
    pub groups: u64,
    /// Where the image ends, as a sentence.
    pub why: String,
}

/// The geometry that follows from a superblock.
///
/// # Errors
/// `GeometryError` says what is wrong with the superblock.
pub fn geometry_of(superblock: &Superblock) -> Result<Geometry, GeometryError> {
    superblock.verify()?;
    Geometry::of(superblock)
}
