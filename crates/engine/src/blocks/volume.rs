//! The volume: a device whose superblock and geometry were verified, and the cache of its metadata blocks; for one
//! that is written to, its journal and its live blocks too.
//!
//! A metadata block is looked for where it is newest: live, then the journal's committed images, then the device. A
//! reader that put older bytes into the cache meanwhile finds the live block afterwards and takes them out again.

use buffer::{Block, Cache, Tag};
use device::BlockDevice;
use journal::Journal;
use ondisk::{
    Corrupt, Feature, FsBlock, Geometry, Ino, Site, Superblock, dirent, extent, htree, xattr,
};
use sync::{Arc, Mutex, Rank};

use crate::blocks::{AttributeBlocks, Discard, Live, Pin, Seal};
use crate::core::Error;
use crate::core::freeze::Gate;
use crate::core::options::{Atime, Clock, Synchronous};
use crate::core::sb::{Errors, Label, LateFeature, OnError, Reserve, Zones};

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
pub(crate) struct OpenVolume {
    cache: Cache,
    superblock: Superblock,
    geometry: Geometry,
    /// The block of the superblock's copy that was asked for; descriptors are read from behind it.
    backup: Option<FsBlock>,
    /// What it takes to write; `None` on a read-only volume.
    writing: Option<Arc<Writing>>,
}

/// What a volume that is written to has beside. All fields are constant after the mount.
pub(crate) struct Writing {
    pub(crate) journal: Journal,
    pub(crate) live: Live,
    /// Bytes in which it is kept which blocks of groups are free.
    pub(crate) group_bytes: usize,
    /// Where the file system's own blocks lie.
    zones: Zones,
    /// How many blocks each kind of request must leave free.
    pub(crate) reserve: Reserve,
    /// What was found to be corrupt, and what follows.
    pub(crate) errors: Errors,
    /// Whether files of 2 GiB are allowed for on disk.
    pub(crate) large_file: LateFeature,
    /// Whether attributes are allowed for on disk.
    pub(crate) ext_attr: LateFeature,
    pub(crate) label: Label,
    /// Whether free blocks are discarded on the device.
    pub(crate) discard: Discard,
    /// Whether new files are their directory's group's.
    pub(crate) bsd_groups: bool,
    /// The time now, for stamps on inodes.
    pub(crate) clock: Clock,
    /// Which reads change times of access.
    pub(crate) atime: Atime,
    /// Whether reading a directory changes its time of access at all.
    pub(crate) directory_atime: bool,
    /// Which changes are durable when they return, whatever flags an inode has.
    pub(crate) synchronous: Synchronous,
    /// Whether times of access wait in memory for the inode's next change, a sync, or the end.
    pub(crate) lazytime: bool,
    /// Held to move a directory to another parent. [rename]
    pub(crate) renames: Mutex<()>,
    /// Passed by every change.
    pub(crate) gate: Gate,
    /// Held by a step that changes a block of attributes, from before its handle on. [xattr block]
    pub(crate) attribute_blocks: Mutex<AttributeBlocks>,
}

impl Writing {
    pub(crate) fn new(
        geometry: &Geometry,
        journal: Journal,
        clock: Clock,
        choices: Choices,
    ) -> Writing {
        Writing {
            journal,
            live: Live::new(seal_image, choices.live_blocks),
            group_bytes: choices.group_bytes,
            zones: choices.zones,
            reserve: choices.reserve,
            errors: Errors::new(choices.errors),
            large_file: LateFeature::new(geometry, Feature::LARGE_FILE),
            ext_attr: LateFeature::new(geometry, Feature::EXT_ATTR),
            label: choices.label,
            discard: Discard::new(choices.discard),
            bsd_groups: choices.bsd_groups,
            clock,
            atime: choices.atime,
            directory_atime: choices.directory_atime,
            synchronous: choices.synchronous,
            lazytime: choices.lazytime,
            renames: Mutex::new(Rank::Rename, ()),
            gate: Gate::new(),
            attribute_blocks: Mutex::new(Rank::XattrBlock, AttributeBlocks::default()),
        }
    }

    /// Whether the journal has an area for fast commits.
    pub(crate) fn has_fast_log(&self) -> bool {
        self.journal.fast_blocks() > 0
    }

    /// As [`Writing::keep_bounds`], once in a while.
    fn look_at_bounds(&self) {
        if self.live.is_look_due() {
            self.keep_bounds();
        }
    }

    /// Evicts live blocks if too many are in memory.
    pub(crate) fn keep_bounds(&self) {
        if self.live.is_full() {
            self.live.trim(self.journal.committed_epoch());
        }
    }
}

/// How a volume is written to: from its superblock, its descriptors, and what was asked for.
pub(crate) struct Choices {
    /// How many changed metadata blocks are kept in memory.
    pub(crate) live_blocks: usize,
    /// Bytes in which it is kept which blocks of groups are free.
    pub(crate) group_bytes: usize,
    pub(crate) zones: Zones,
    pub(crate) reserve: Reserve,
    pub(crate) errors: OnError,
    pub(crate) label: Label,
    pub(crate) discard: bool,
    pub(crate) bsd_groups: bool,
    pub(crate) atime: Atime,
    pub(crate) directory_atime: bool,
    pub(crate) synchronous: Synchronous,
    pub(crate) lazytime: bool,
}

/// Writes the checksum of a metadata block's image.
fn seal_image(seal: Seal, number: FsBlock, image: &mut [u8]) {
    match seal {
        Seal::None => {}
        Seal::Entries(seed) => dirent::seal(image, seed),
        Seal::IndexRoot(seed) => htree::seal(image, htree::Kind::Root, seed),
        Seal::IndexNode(seed) => htree::seal(image, htree::Kind::Node, seed),
        Seal::Extents(seed) => extent::set_tail(image, seed),
        Seal::Xattrs(seed) => xattr::set_block_checksum(image, seed, number),
    }
}

impl OpenVolume {
    /// The volume with this superblock, whose numbers are checked here.
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        superblock: Superblock,
        backup: Option<u64>,
        cache_bytes: usize,
    ) -> Result<OpenVolume, Error> {
        let geometry = Geometry::new(&superblock, device.size())?;
        let block_size = geometry.block_size();
        let backup = backup.map(|block| FsBlock(block.saturating_mul(1024) >> block_size.bits()));
        Ok(OpenVolume {
            cache: Cache::new(device, block_size.bytes(), cache_bytes),
            superblock,
            geometry,
            backup,
            writing: None,
        })
    }

    /// The same volume, to be written to.
    pub(crate) fn writable(self, writing: Arc<Writing>) -> OpenVolume {
        OpenVolume {
            writing: Some(writing),
            ..self
        }
    }

    /// What it takes to write.
    ///
    /// # Errors
    /// `ReadOnly` on a volume that is not written to.
    #[inline]
    pub(crate) fn writing(&self) -> Result<&Writing, Error> {
        match &self.writing {
            Some(writing) => Ok(writing),
            None => Err(Error::ReadOnly),
        }
    }

    /// Whether the volume is written to.
    pub(crate) fn is_writable(&self) -> bool {
        self.writing.is_some()
    }

    /// The superblock.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The geometry.
    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The cache of metadata blocks.
    #[inline]
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

    /// Where the file system's own blocks lie; nowhere on a volume that is not written to.
    pub(crate) fn zones(&self) -> &Zones {
        static NONE: Zones = Zones::NONE;
        self.writing
            .as_ref()
            .map_or(&NONE, |writing| &writing.zones)
    }

    /// Refuses blocks that an inode names although they are the file system's own, on a volume that is written to:
    /// before they are read as the inode's metadata, or its data are read or written there.
    ///
    /// # Errors
    /// `Corrupt`, with the inode and the first such block.
    pub(crate) fn check_unowned(&self, ino: Ino, start: FsBlock, len: u64) -> Result<(), Error> {
        match self.zones().find(start.0..start.0.saturating_add(len), ino) {
            Some(block) => Err(Corrupt::at(Site::ZoneNamed).ino(ino).block(block).into()),
            None => Ok(()),
        }
    }

    /// Refuses the file system's own inodes except the root directory: nothing names them.
    ///
    /// # Errors
    /// `Corrupt`, with the inode.
    pub(crate) fn check_ordinary(&self, ino: Ino) -> Result<(), Error> {
        let is_reserved = ino < self.geometry.first_ino() && ino != Ino::ROOT;
        let orphans = self.superblock.orphan_file_ino();
        let is_orphan_file = self.has(Feature::ORPHAN_FILE) && orphans == Some(ino);
        if is_reserved || is_orphan_file {
            Err(Corrupt::at(Site::InodeReserved).ino(ino).into())
        } else {
            Ok(())
        }
    }

    /// The block with descriptors number `index`, from the copy of them that is in use.
    pub(crate) fn descriptor_block(&self, index: u32) -> FsBlock {
        match self.backup {
            Some(block) => self.geometry.desc_block_of_copy(block, index),
            None => self.geometry.desc_block(index),
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
        let tag = kind.tag(owner);
        let Some(writing) = &self.writing else {
            return self.cache.read(block.0, tag, verify);
        };
        if let Some(live) = live_block(writing, block, tag)? {
            return Ok(live);
        }
        let load = |bytes: &mut [u8]| self.load_newest(block, bytes);
        let read = self.cache.read_with(block.0, tag, load, verify)?;
        match live_block(writing, block, tag)? {
            Some(live) => {
                self.cache.remove(block.0);
                Ok(live)
            }
            None => Ok(read),
        }
    }

    /// A metadata block's contents where it is not live: the journal's newest committed image, or the device's.
    pub(crate) fn load_newest(&self, block: FsBlock, bytes: &mut [u8]) -> Result<(), Error> {
        match self
            .writing
            .as_ref()
            .and_then(|writing| writing.journal.newest(block))
        {
            Some(image) => bytes.copy_from_slice(&image),
            None => self
                .cache
                .device()
                .read_at(block.offset(self.geometry.block_size()), bytes)?,
        }
        Ok(())
    }

    /// Pins a metadata block, so that an apply can change it: loads and verifies it first. The caller holds the lock
    /// of the inode that owns it and no handle.
    ///
    /// # Errors
    /// `ReadOnly`; as [`OpenVolume::read_block`].
    pub(crate) fn pin(
        &self,
        block: FsBlock,
        kind: Kind,
        owner: Ino,
        seal: Seal,
        verify: impl FnOnce(&[u8]) -> Result<(), Error>,
    ) -> Result<Pin, Error> {
        let writing = self.writing()?;
        if let Some(pin) = writing.live.find(block) {
            check_use(block, pin.tag(), kind.tag(owner))?;
            return Ok(pin);
        }
        let bytes = self.read_block(block, kind, owner, verify)?;
        let (pin, is_new) = writing.live.pin(block, seal, || bytes);
        if is_new {
            // A block that was live already left the cache when it became so, and is not cached since.
            self.cache.remove(block.0);
            writing.look_at_bounds();
        }
        Ok(pin)
    }

    /// Pins a block that was just allocated and becomes metadata: all zeros.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn pin_new(
        &self,
        block: FsBlock,
        kind: Kind,
        owner: Ino,
        seal: Seal,
    ) -> Result<Pin, Error> {
        let writing = self.writing()?;
        let pin = writing.live.pin_new(
            block,
            seal,
            kind.tag(owner),
            self.geometry.block_size().bytes(),
        );
        self.cache.remove(block.0);
        writing.look_at_bounds();
        Ok(pin)
    }

    /// Data, straight from the device into the caller's buffer.
    pub(crate) fn read_bytes(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        Ok(self.cache.device().read_at(offset, buf)?)
    }
}

/// A block's live bytes; an error if they are another kind of block, or another inode's.
fn live_block(writing: &Writing, block: FsBlock, tag: Tag) -> Result<Option<Arc<Block>>, Error> {
    let live = writing.live.snapshot(block);
    if let Some(live) = &live {
        check_use(block, live.tag(), tag)?;
    }
    Ok(live)
}

/// An error if a live block is used as something else, or by another inode.
fn check_use(block: FsBlock, live: Tag, wanted: Tag) -> Result<(), Error> {
    if live == wanted {
        Ok(())
    } else {
        Err(Corrupt::at(Site::BlockInOtherUse).block(block).into())
    }
}
