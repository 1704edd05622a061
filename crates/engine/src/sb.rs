//! The volume: a device whose superblock and geometry were verified, and the cache of its metadata blocks; for one
//! that is written to, its journal and its live blocks too.
//!
//! A metadata block is looked for where it is newest: live, then the journal's committed images, then the device. A
//! reader that put older bytes into the cache meanwhile finds the live block afterwards and takes them out again.

use buffer::{Block, Cache, Tag};
use device::BlockDevice;
use journal::{Folded, Journal, JournalError};
use ondisk::{
    Corrupt, Feature, Features, FsBlock, Geometry, Group, GroupDesc, Ino, Site, Superblock,
    Timestamp, dirent, extent, htree, xattr,
};
use sync::{Arc, Mutex, Rank};

use crate::error::Error;
use crate::freeze::Gate;
use crate::fsync::log::FastLog;
use crate::live::{Live, Pin, Seal};
use crate::variants::Variants;

mod discard;
mod errors;
mod late_feature;
mod reserve;
mod sharing;
mod zones;

pub(crate) use discard::Discard;
pub(crate) use errors::Errors;
pub use errors::{OnError, Stopped};
pub(crate) use late_feature::{LateFeature, needs_large_file};
pub use reserve::{Acting, BlockClaimant};
pub(crate) use reserve::{BlockPurpose, Reserve};
pub(crate) use sharing::AttributeBlocks;
pub(crate) use zones::Zones;

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
    /// Where the journal has an area for fast commits.
    pub(crate) fast: Option<Box<FastLog>>,
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
    /// Whether the device is told what is free.
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
    /// Held to move a directory to another parent.
    pub(crate) renames: Mutex<()>,
    /// Passed by every change.
    pub(crate) gate: Gate,
    /// Held by a step that changes a block of attributes, from before its handle on.
    pub(crate) attribute_blocks: Mutex<AttributeBlocks>,
}

/// Where the times of changes come from.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// A function that is asked each time.
    Ask(fn() -> Timestamp),
    /// All changes are made at this moment (as SOURCE_DATE_EPOCH asks for).
    Fixed(Timestamp),
}

impl Clock {
    /// The time now.
    #[must_use]
    pub fn now(self) -> Timestamp {
        match self {
            Clock::Ask(clock) => clock(),
            Clock::Fixed(time) => time,
        }
    }
}

/// When reading changes a file's time of last access.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Atime {
    /// When the file changed since, or a day passed (`relatime`).
    #[default]
    Relative,
    /// Always (`strictatime`).
    Always,
    /// Never (`noatime`).
    Never,
}

/// Which changes are durable when the call that made them returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Synchronous {
    /// Those of files and directories whose flags ask for it (`chattr +S`, `+D`).
    #[default]
    Flagged,
    /// Also all changes of names (`dirsync`).
    Names,
    /// All changes, except times of access (`sync`).
    All,
}

impl Writing {
    pub(crate) fn new(
        geometry: &Geometry,
        journal: Journal,
        clock: Clock,
        choices: Choices,
    ) -> Writing {
        Writing {
            fast: (journal.fast_blocks() > 0).then(|| Box::new(FastLog::new(&choices.variants))),
            journal,
            live: Live::new(seal_image, choices.live_blocks),
            group_bytes: choices.group_bytes,
            zones: choices.zones,
            reserve: choices.reserve,
            errors: Errors::new(choices.errors),
            large_file: LateFeature::new(geometry, Feature::LARGE_FILE),
            ext_attr: LateFeature::new(geometry, Feature::EXT_ATTR),
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

    /// As [`Writing::keep_bounds`], once in a while.
    fn look_at_bounds(&self) {
        if self.live.is_look_due() {
            self.keep_bounds();
        }
    }

    /// Lets go of live blocks where there are too many.
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
    pub(crate) discard: bool,
    pub(crate) bsd_groups: bool,
    pub(crate) atime: Atime,
    pub(crate) directory_atime: bool,
    pub(crate) synchronous: Synchronous,
    pub(crate) lazytime: bool,
    /// Which forms of the fsync log.
    pub(crate) variants: Variants,
}

/// Changes the superblock in the image of its block.
pub(crate) fn change_superblock(
    geometry: &Geometry,
    folded: &mut Folded<'_>,
    change: impl FnOnce(&mut Superblock),
) -> Result<(), JournalError> {
    let image = folded.image(geometry.primary_superblock())?;
    let start = match geometry.primary_superblock().0 {
        0 => Superblock::OFFSET as usize,
        _ => 0,
    };
    let raw = &mut image[start..start + Superblock::SIZE];
    // The slice is as long as the structure.
    let mut sb = *Superblock::view((&*raw).try_into().expect("a superblock's length"));
    change(&mut sb);
    sb.seal();
    raw.copy_from_slice(sb.bytes());
    Ok(())
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

/// What is where a superblock should be.
pub(crate) enum SuperblockFound {
    /// A superblock.
    Whole(Superblock),
    /// One that was torn, and is whole now.
    Mended(Superblock),
    /// None, and what is wrong with it.
    Damaged(Error),
}

/// Reads and verifies a superblock: the first, or the copy at `backup` in units of 1 KiB.
///
/// # Errors
/// When it can't be read, or is none and can't be mended.
pub(crate) fn read_superblock(
    device: &dyn BlockDevice,
    backup: Option<u64>,
) -> Result<Superblock, Error> {
    match find_superblock(device, backup)? {
        SuperblockFound::Whole(superblock) | SuperblockFound::Mended(superblock) => Ok(superblock),
        SuperblockFound::Damaged(wrong) => Err(wrong),
    }
}

/// Reads a superblock like [`read_superblock`], for a caller that can use a damaged one.
///
/// # Errors
/// When it can't be read; what is wrong with a copy that was asked for.
pub(crate) fn find_superblock(
    device: &dyn BlockDevice,
    backup: Option<u64>,
) -> Result<SuperblockFound, Error> {
    let mut bytes = [0; Superblock::SIZE];
    let offset = backup.map_or(Superblock::OFFSET, |block| block.saturating_mul(1024));
    // What is too short for a superblock is not ext4, and `verify` says so.
    if offset.saturating_add(Superblock::SIZE as u64) <= device.size() {
        device.read_at(offset, &mut bytes)?;
    }
    let superblock = *Superblock::view(&bytes);
    match superblock.verify() {
        Ok(()) => Ok(SuperblockFound::Whole(superblock)),
        Err(wrong) if backup.is_some() => Err(wrong.into()),
        Err(wrong) => Ok(match wrong.site() {
            Site::SuperblockChecksum => mend(device, superblock).map_or(
                SuperblockFound::Damaged(wrong.into()),
                SuperblockFound::Mended,
            ),
            _ => SuperblockFound::Damaged(wrong.into()),
        }),
    }
}

/// A first superblock whose write was torn. All that ever changes in it lies in its first sector, but for the checksum
/// in its second: what a cut leaves is the contents of one moment with the checksum of another. Nothing is written
/// here; the next write of the superblock puts it right. A second sector that holds something else is taken from a copy
/// in another group. `None` if the first does: what never changes must agree with such a copy, or where there is only
/// one group, with the checksum of that group's descriptor.
fn mend(device: &dyn BlockDevice, torn: Superblock) -> Option<Superblock> {
    let mut mended = torn;
    mended.seal();
    let geometry = Geometry::of(&mended).ok()?;
    let mut copies = geometry
        .all_groups()
        .skip(1)
        .take(MEND_GROUPS)
        .filter(|group| geometry.has_super(*group))
        .peekable();
    if copies.peek().is_some() {
        return copies.find_map(|group| {
            let at = geometry
                .group_first_block(group)
                .offset(geometry.block_size());
            let copy = read_superblock(device, Some(at / 1024)).ok()?;
            with_half_of(&torn, &copy)
        });
    }
    let (block, byte) = geometry.desc_place(Group(0));
    let mut raw = vec![0; geometry.desc_size()];
    let offset = block.offset(geometry.block_size()) + byte as u64;
    device.read_at(offset, &mut raw).ok()?;
    GroupDesc::verify(&raw, &geometry, Group(0)).ok()?;
    Some(mended)
}

/// The torn superblock, with the second sector of a copy in place of its own where that holds something else than what
/// never changes. `None` if not even the first sectors agree.
fn with_half_of(torn: &Superblock, copy: &Superblock) -> Option<Superblock> {
    let (mine, theirs) = (constant(*torn), constant(*copy));
    if mine[..SECTOR] != theirs[..SECTOR] {
        return None;
    }
    let mut bytes = *torn.bytes();
    if mine[SECTOR..] != theirs[SECTOR..] {
        bytes[SECTOR..].copy_from_slice(&copy.bytes()[SECTOR..]);
    }
    let mut mended = *Superblock::view(&bytes);
    mended.seal();
    Some(mended)
}

/// What the superblock is counted as ([`Handle::use_blocks_for`](journal::Handle::use_blocks_for)); no group has such a
/// number.
pub(crate) const COUNTED_AS: u64 = u64::MAX;

/// Bytes that a device writes whole.
const SECTOR: usize = 512;

/// Groups in which a copy of the superblock is looked for.
const MEND_GROUPS: usize = 64;

/// Features that come and go in the first superblock while its copies stay as they were made: those of a mount, those
/// that are turned on by the first file that needs them, and the one that tunes do.
const CHANGING_FEATURES: [Feature; 6] = [
    Feature::NEEDS_RECOVERY,
    Feature::ORPHAN_PRESENT,
    Feature::EXT_ATTR,
    Feature::LARGE_FILE,
    Feature::DIR_NLINK,
    Feature::FAST_COMMIT,
];

/// A superblock without what a mount, a tune or e2fsck changes in it, or what differs from copy to copy.
fn constant(mut superblock: Superblock) -> [u8; Superblock::SIZE] {
    let features = superblock.features();
    superblock.set_features(
        CHANGING_FEATURES
            .into_iter()
            .fold(features, Features::without),
    );
    let mut bytes = *superblock.bytes();
    for range in CHANGING {
        bytes[range].fill(0);
    }
    bytes
}

/// The bytes of counts of reserved and free blocks and inodes; of mount, write and check times and counts, state and
/// behaviour on errors; of the reserve's owner; of a copy's group; of the label and the last mount's place; of the
/// orphan list; of the hash of new directories and mount options by default; of a RAID's numbers, flags and what the
/// kernel counts and logs; of mount options as text; of the overhead; of high words of times; of the checksum.
const CHANGING: [core::ops::Range<usize>; 17] = [
    0x08..0x14,
    0x2C..0x38,
    0x3A..0x48,
    0x50..0x54,
    0x5A..0x5C,
    0x78..0xC8,
    0xE8..0xEC,
    0xFC..0xFD,
    0x100..0x104,
    0x154..0x15C,
    0x160..0x166,
    0x170..0x174,
    0x178..0x180,
    0x194..0x240,
    0x248..0x24C,
    0x274..0x280,
    0x3FC..0x400,
];

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

    /// Refuses the file system's own inodes but for the root directory: nothing names them.
    ///
    /// # Errors
    /// `Corrupt`, with the inode.
    pub(crate) fn check_ordinary(&self, ino: Ino) -> Result<(), Error> {
        let is_reserved = ino < self.geometry.first_ino() && ino != Ino::ROOT;
        let orphans = self.superblock.orphan_file_ino();
        let is_orphan_file = self.has(Feature::ORPHAN_FILE) && orphans == Some(ino);
        match is_reserved || is_orphan_file {
            true => Err(Corrupt::at(Site::InodeReserved).ino(ino).into()),
            false => Ok(()),
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
            // What was live already left the cache when it became so, and nobody keeps it there since.
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
    match live == wanted {
        true => Ok(()),
        false => Err(Corrupt::at(Site::BlockInOtherUse).block(block).into()),
    }
}
