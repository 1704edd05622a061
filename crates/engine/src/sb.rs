//! The volume: a device whose superblock and geometry were verified, and the cache of its metadata blocks.

use buffer::{Block, Cache, Tag};
use device::BlockDevice;
use ondisk::{Feature, FsBlock, Geometry, Ino, Superblock};
use sync::Arc;

use crate::error::Error;

/// What a metadata block is read as. Part of the tag under which the cache keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Descriptors,
    InodeTable,
    Extents,
    Pointers,
    Xattrs,
    Directory,
}

impl Kind {
    /// The tag of such a block; `owner` is the inode whose checksum seed covers it, 0 for none.
    fn tag(self, owner: Ino) -> Tag {
        Tag((self as u64) << 32 | u64::from(owner.0))
    }
}

/// A verified superblock on its device. All fields are constant after the mount.
pub(crate) struct Volume {
    cache: Cache,
    superblock: Superblock,
    geometry: Geometry,
    /// The block of the superblock's copy that was asked for; descriptors are read from behind it.
    backup: Option<FsBlock>,
}

/// Reads and verifies a superblock: the first, or the copy at `backup` in units of 1 KiB.
pub(crate) fn read_superblock(
    device: &dyn BlockDevice,
    backup: Option<u64>,
) -> Result<Superblock, Error> {
    let mut bytes = [0; Superblock::SIZE];
    let offset = backup.map_or(Superblock::OFFSET, |block| block.saturating_mul(1024));
    // What is too short for a superblock is not ext4, and `verify` says so.
    if offset.saturating_add(Superblock::SIZE as u64) <= device.size() {
        device.read_at(offset, &mut bytes)?;
    }
    let superblock = *Superblock::view(&bytes);
    superblock.verify()?;
    Ok(superblock)
}

impl Volume {
    /// The volume with this superblock, whose numbers are checked here.
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        superblock: Superblock,
        backup: Option<u64>,
        cache_bytes: usize,
    ) -> Result<Volume, Error> {
        let geometry = Geometry::new(&superblock, device.size())?;
        let block_size = geometry.block_size();
        let backup = backup.map(|block| FsBlock(block.saturating_mul(1024) >> block_size.bits()));
        Ok(Volume {
            cache: Cache::new(device, block_size.bytes(), cache_bytes),
            superblock,
            geometry,
            backup,
        })
    }

    /// The superblock.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The geometry.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The cache of metadata blocks.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Whether the file system has the feature.
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.geometry.has(feature)
    }

    /// The block numbers that anything may point to.
    pub(crate) fn blocks(&self) -> core::ops::Range<u64> {
        self.geometry.first_data_block().0..self.geometry.blocks_count()
    }

    /// The block with descriptors number `index`, from the copy of them that is in use.
    pub(crate) fn descriptor_block(&self, index: u32) -> FsBlock {
        let in_meta_group = self.has(Feature::META_BG) && index >= self.superblock.first_meta_bg();
        match self.backup {
            Some(block) if !in_meta_group => FsBlock(block.0.saturating_add(1 + u64::from(index))),
            _ => self.geometry.desc_block(index),
        }
    }

    /// A metadata block, verified when it is first read as this kind for this owner (0: no one's).
    ///
    /// May block on I/O; takes a cache shard's lock shortly.
    pub(crate) fn read_block(
        &self,
        block: FsBlock,
        kind: Kind,
        owner: Ino,
        verify: impl FnOnce(&[u8]) -> Result<(), Error>,
    ) -> Result<Arc<Block>, Error> {
        let verify = |bytes: &[u8]| {
            verify(bytes).map_err(|error| match error {
                Error::Corrupt(corrupt) => Error::Corrupt(corrupt.block(block)),
                error => error,
            })
        };
        self.cache.read(block.0, kind.tag(owner), verify)
    }

    /// Data, straight from the device into the caller's buffer.
    pub(crate) fn read_bytes(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        Ok(self.cache.device().read_at(offset, buf)?)
    }
}
