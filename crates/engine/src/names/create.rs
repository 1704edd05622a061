//! New inodes with a name: files, directories, symbolic links, devices, pipes and sockets; with the ACLs that a
//! directory's default ACL gives them.
//!
//! One step. The slot for the name is found first, then the number (one that goes with those around the slot; and a
//! directory's or a long link's block) is taken; then the parent and the new inode are locked and the name is looked
//! for again. A long link's target is written to its block before anything names that. What a cut leaves: the name with
//! its inode, or neither; blocks and numbers that were taken are in no image. A number that the bitmap has as free,
//! although an inode with names is in memory under it, is refused as corrupt before it is locked: it may be the parent.
//! It is left out from then on, as long as the file system is open.

use buffer::Block;
use journal::Handle;
use ondisk::csum::crc32c;
use ondisk::dirent::{DirBlockWriter, DirForm};
use ondisk::extent::{self, Extent, ExtentEntries};
use ondisk::inode::{self, BLOCK_AREA, EXTRA_SIZE, Inode};
use ondisk::{
    Corrupt, Feature, FileType, Flags, FsBlock, Generation, Ino, LBlock, Site, Timestamp,
};
use sync::Arc;

use super::NameIn;
use super::lock::{self, Together};
use crate::blocks::{Kind, Pin, Seal};
use crate::core::Error;
use crate::core::limits;
use crate::dir::{self, DirDraft};
use crate::inode::{Exclusive, LiveInode, LoadedInode};
use crate::space::ialloc::{BLOCKS_AN_INODE, InodeNumber, InodeRequest, SlotHints};
use crate::space::mballoc::{BLOCKS_A_RUN, TakenBlocks};
use crate::token::LiveFs;
use crate::xattr;

/// The owner and the permissions of an inode that is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewInode {
    /// Permission bits, setuid, setgid, sticky: within 0o7777, as they were asked for.
    pub mode: u16,
    /// Permission bits that are taken off `mode`, unless the directory has a default ACL; a symbolic link has no use
    /// for them.
    pub umask: u16,
    /// Owner.
    pub uid: u32,
    /// Owning group; a directory with setgid set decides itself, and all do with [`crate::MountOptions::bsd_groups`].
    pub gid: u32,
    /// Whether the caller holds it from the start, as by [`crate::InodeFs::hold`].
    pub held: bool,
}

/// What an inode is made as.
#[derive(Clone, Copy, Debug)]
pub enum NewContent<'a> {
    /// A file without blocks.
    Empty,
    /// A directory without names.
    Directory,
    /// A symbolic link's target.
    Symlink(&'a [u8]),
    /// A device's major and minor number.
    Device(FileType, u32, u32),
    /// A pipe or a socket.
    Special(FileType),
}

impl NewContent<'_> {
    fn file_type(self) -> FileType {
        match self {
            NewContent::Empty => FileType::Regular,
            NewContent::Directory => FileType::Directory,
            NewContent::Symlink(_) => FileType::Symlink,
            NewContent::Device(file_type, ..) | NewContent::Special(file_type) => file_type,
        }
    }

    fn verify(self, mounted: &LiveFs) -> Result<(), Error> {
        let most = mounted.volume().geometry().block_size().bytes() - 1;
        match self {
            NewContent::Symlink(target) if target.len() > most.min(limits::PATH_BYTES) => {
                Err(Error::NameTooLong)
            }
            NewContent::Symlink(b"") => Err(Error::NotFound),
            NewContent::Symlink(target) if target.contains(&0) => Err(Error::InvalidArgument),
            NewContent::Device(_, major, minor) if major > 0xfff || minor > 0xf_ffff => {
                Err(Error::InvalidArgument)
            }
            NewContent::Device(FileType::CharDevice | FileType::BlockDevice, ..) => Ok(()),
            NewContent::Special(FileType::Fifo | FileType::Socket) => Ok(()),
            NewContent::Device(..) | NewContent::Special(_) => Err(Error::InvalidArgument),
            _ => Ok(()),
        }
    }
}

/// The block that a new inode begins with, and what is in it.
pub(crate) struct FirstBlock<'a> {
    blocks: TakenBlocks<'a>,
    /// For a directory; a link's target is on the device already.
    contents: Option<(Pin, Seal, Arc<Block>)>,
}

impl FirstBlock<'_> {
    /// Blocks of the handle that it uses.
    pub(crate) fn blocks(&self) -> u32 {
        BLOCKS_A_RUN + u32::from(self.contents.is_some())
    }

    /// The block is in use from the handle's epoch on.
    pub(crate) fn apply(self, handle: &Handle<'_>) {
        if let Some((pin, seal, bytes)) = self.contents {
            pin.replace(handle, seal, bytes);
        }
        self.blocks.apply(handle);
    }
}

/// Flags that a new inode inherits from its directory: a directory inherits all of these, other inodes fewer.
const INHERITED: [Flags; 11] = [
    Flags::SECURE_DELETE,
    Flags::UNDELETE,
    Flags::COMPRESS,
    Flags::SYNC,
    Flags::NO_DUMP,
    Flags::NO_ATIME,
    Flags::NO_COMPRESS,
    Flags::JOURNAL_DATA,
    Flags::NO_TAIL,
    Flags::DIR_SYNC,
    Flags::DAX,
];

fn inherited(parent: Flags, file_type: FileType) -> Flags {
    let applies = |flag: &Flags| match file_type {
        FileType::Directory => true,
        FileType::Regular => *flag != Flags::DIR_SYNC,
        _ => *flag == Flags::NO_DUMP || *flag == Flags::NO_ATIME,
    };
    INHERITED
        .into_iter()
        .filter(|flag| parent.contains(*flag) && applies(flag))
        .fold(Flags(0), Flags::with)
}

/// Extended attributes, whole name and value, that a new inode has from the start.
pub(crate) type NewAttributes<'a> = &'a [(&'a [u8], &'a [u8])];

/// Makes an inode and names it; returns its number.
pub(crate) fn create(
    mounted: &LiveFs,
    parent: Ino,
    name: &[u8],
    new: NewInode,
    content: NewContent<'_>,
    attributes: NewAttributes<'_>,
) -> Result<Ino, Error> {
    let above = mounted.get(parent)?;
    let slot = dir::find_slot(mounted, &above, name)?;
    lock::verify_new_name(name)?;
    content.verify(mounted)?;
    let file_type = content.file_type();
    let is_directory = file_type == FileType::Directory;
    let number = take_number(mounted, &above, is_directory, name, Some(&slot))?;
    let (number, own) = blank(mounted, number, &[parent])?;
    let ino = number.ino();
    let mut inodes = vec![Arc::clone(&above), own];
    inodes.sort_by_key(|inode| inode.ino());
    let locked = Together::lock(&inodes);
    let (above, own) = (locked.of(parent), locked.of(ino));
    let mut draft = DirDraft::new(mounted, above)?;
    if draft.find_seen(slot.seen(), name)?.is_some() {
        return Err(Error::Exists);
    }
    let directory = above.inode().snapshot();
    lock::may_add(&directory)?;
    if is_directory {
        lock::may_add_subdirectory(mounted, &directory)?;
    }
    draft.add_seen(slot.seen(), name, ino, file_type)?;
    let names = draft.finish()?;
    let now = mounted.now()?;
    let (mut record, mut lists) = record(mounted, own.inode(), &directory, new, content, now)?;
    xattr::add(&mut lists, file_type, attributes)?;
    let first = first_block(mounted, ino, parent, content, &mut record)?;
    let acls = xattr::XattrChange::prepare(mounted, ino, None, &lists)?;

    let first_blocks = first.as_ref().map_or(0, FirstBlock::blocks);
    let blocks = names.blocks() + 1 + BLOCKS_AN_INODE + first_blocks + acls.cost().0;
    let credits = mounted.reserve(blocks, 0)?;
    let acls = acls.lock()?;
    let handle = mounted.begin(credits)?;
    if new.held {
        own.inode().life.hold();
    }
    if let Some(first) = first {
        first.apply(&handle);
    }
    apply_record(&handle, number, own, &record, file_type);
    acls.apply(&handle, own);
    names.apply(&handle);
    mounted.note_name(&handle, (parent, name), None, Some(ino));
    above.change(&handle, |inode| {
        lock::stamp_names(inode, now);
        if is_directory {
            lock::add_subdirectory(inode);
        }
    });
    Ok(ino)
}

/// A number becomes an inode with a name in the handle's epoch. The caller has its lock.
fn apply_record(
    handle: &Handle<'_>,
    number: InodeNumber<'_>,
    own: &Exclusive<'_>,
    record: &Inode,
    file_type: FileType,
) {
    number.apply(handle, own.inode().of_ialloc());
    own.inode().life.set_linkable(false);
    let place = own.inode().was_in_place(record.extra_size());
    own.change_slot(handle, |slot| {
        slot.fill(0);
        record.write_to(slot);
    });
    own.inode().set_made(handle, file_type, place);
}

/// Takes a number for an inode in a directory; the slot is where its name goes.
fn take_number<'a>(
    mounted: &'a LiveFs,
    above: &LiveInode,
    is_directory: bool,
    name: &[u8],
    slot: Option<&dyn SlotHints>,
) -> Result<InodeNumber<'a>, Error> {
    let is_root = above.ino() == Ino::ROOT;
    let is_top = is_root || is_directory && above.snapshot().flags().contains(Flags::TOP_DIR);
    mounted.take_inode(&InodeRequest {
        parent: above.ino(),
        directory: above.of_ialloc(),
        is_directory,
        is_top,
        name,
        slot,
    })
}

/// A number that was just taken, with its live inode; `others` are the inodes that the caller locks together with it.
///
/// # Errors
/// `Corrupt` if the number is in use: the bitmap is wrong, and the inode with the number is known in memory. The next
/// caller gets another number.
fn blank<'a>(
    mounted: &LiveFs,
    number: InodeNumber<'a>,
    others: &[Ino],
) -> Result<(InodeNumber<'a>, Arc<LiveInode>), Error> {
    let ino = number.ino();
    let own = mounted.get_new(ino)?;
    if others.contains(&ino) || own.snapshot().links_count() > 0 {
        number.leave_out();
        return Err(Corrupt::at(Site::InodeInUse).ino(ino).into());
    }
    Ok((number, own))
}

/// Makes a file or a symbolic link without a name, which inherits from `parent` like a new file of that directory.
/// Returns its number, held for the caller. It is an orphan until it gets a name.
pub(crate) fn create_unnamed(
    mounted: &LiveFs,
    parent: Ino,
    new: NewInode,
    content: NewContent<'_>,
    attributes: NewAttributes<'_>,
) -> Result<Ino, Error> {
    content.verify(mounted)?;
    let directory = mounted.load_used(parent)?;
    if !directory.is(FileType::Directory) {
        return Err(Error::NotDirectory);
    }
    lock::may_add(&directory)?;
    let above = mounted.get(parent)?;
    let number = take_number(mounted, &above, false, b"", None)?;
    let (number, own) = blank(mounted, number, &[parent])?;
    let ino = number.ino();
    let inodes = [own];
    let locked = Together::lock(&inodes);
    let own = locked.of(ino);
    let now = mounted.now()?;
    let (mut record, mut lists) = record(mounted, own.inode(), &directory, new, content, now)?;
    xattr::add(&mut lists, FileType::Regular, attributes)?;
    let first = first_block(mounted, ino, parent, content, &mut record)?;
    record.set_links_count(0);
    let acls = xattr::XattrChange::prepare(mounted, ino, None, &lists)?;
    let entry = mounted.orphans().add(&**own.inode());
    let first_blocks = first.as_ref().map_or(0, FirstBlock::blocks);
    let blocks = 1 + BLOCKS_AN_INODE + first_blocks + entry.cost() + acls.cost().0;
    let credits = mounted.reserve(blocks, 0)?;
    let entry = entry.lock();
    let acls = acls.lock()?;
    let handle = mounted.begin(credits)?;
    if let Some(first) = first {
        first.apply(&handle);
    }
    number.apply(&handle, own.inode().of_ialloc());
    own.inode().life.set_born(handle.epoch());
    own.change_slot(&handle, |slot| {
        slot.fill(0);
        record.write_to(slot);
    });
    acls.apply(&handle, own);
    entry.apply(&handle, own.inode());
    own.inode().life.set_linkable(true);
    own.inode().life.hold();
    Ok(ino)
}

/// A whiteout to be made: the character device 0:0 that a rename leaves under the old name, by which overlayfs knows
/// that a name of a lower directory is deleted. It has no permissions.
pub(super) struct NewWhiteout<'a> {
    number: InodeNumber<'a>,
    own: Arc<LiveInode>,
    owner: (u32, u32),
}

/// A whiteout that is complete except for its name.
pub(super) struct PreparedWhiteout<'a> {
    number: InodeNumber<'a>,
    record: Inode,
    acls: xattr::XattrChange<'a>,
}

/// A whiteout in the next handle.
pub(super) struct LockedWhiteout<'a> {
    number: InodeNumber<'a>,
    record: Inode,
    acls: xattr::LockedXattrs<'a>,
}

impl<'a> NewWhiteout<'a> {
    /// Takes a number for a whiteout in a directory, for a user and a group; `others` are locked together with it.
    ///
    /// # Errors
    /// `NoSpace` when no inode is free; `Corrupt` as [`blank`]; `Io`.
    pub(super) fn take(
        mounted: &'a LiveFs,
        old: NameIn<'_>,
        owner: (u32, u32),
        others: &[Ino],
    ) -> Result<NewWhiteout<'a>, Error> {
        let above = mounted.get(old.directory)?;
        let number = take_number(mounted, &above, false, old.name, None)?;
        let (number, own) = blank(mounted, number, others)?;
        Ok(NewWhiteout { number, own, owner })
    }

    /// The inode, to be locked in the order of its number.
    pub(super) fn own(&self) -> &Arc<LiveInode> {
        &self.own
    }

    /// Fills its record, with the ACL that it has from its directory. The caller has the locks of both.
    ///
    /// # Errors
    /// `Corrupt` for a default ACL of the directory that can't be read; `NoSpace`, `Io`.
    pub(super) fn prepare(
        self,
        mounted: &'a LiveFs,
        directory: &LoadedInode,
        now: Timestamp,
    ) -> Result<PreparedWhiteout<'a>, Error> {
        let new = NewInode {
            mode: 0,
            umask: 0,
            uid: self.owner.0,
            gid: self.owner.1,
            held: false,
        };
        let content = NewContent::Device(FileType::CharDevice, 0, 0);
        let (record, acls) = record(mounted, &self.own, directory, new, content, now)?;
        Ok(PreparedWhiteout {
            acls: xattr::XattrChange::prepare(mounted, self.own.ino(), None, &acls)?,
            number: self.number,
            record,
        })
    }
}

impl<'a> PreparedWhiteout<'a> {
    /// Blocks of the handle that makes it.
    pub(super) fn blocks(&self) -> u32 {
        1 + BLOCKS_AN_INODE + self.acls.cost().0
    }

    /// Whether [`PreparedWhiteout::lock`] takes the lock on blocks of attributes.
    pub(super) fn locks_attribute_blocks(&self) -> bool {
        self.acls.needs_block()
    }

    /// Takes the lock on blocks of attributes if its ACL needs one: before the handle, after all other locks.
    ///
    /// # Errors
    /// `NoSpace`, `Corrupt`, `Io`.
    pub(super) fn lock(self) -> Result<LockedWhiteout<'a>, Error> {
        Ok(LockedWhiteout {
            number: self.number,
            record: self.record,
            acls: self.acls.lock()?,
        })
    }
}

impl LockedWhiteout<'_> {
    /// Makes it in the handle's epoch, in which it also gets its name.
    pub(super) fn apply(self, handle: &Handle<'_>, own: &Exclusive<'_>) {
        apply_record(handle, self.number, own, &self.record, FileType::CharDevice);
        self.acls.apply(handle, own);
    }
}

/// The new inode's record, except what [`first_block`] adds; and the ACLs that it has from its directory.
fn record(
    mounted: &LiveFs,
    own: &LiveInode,
    parent: &LoadedInode,
    new: NewInode,
    content: NewContent<'_>,
    now: Timestamp,
) -> Result<(Inode, xattr::Lists), Error> {
    let volume = mounted.volume();
    let file_type = content.file_type();
    let mut inode = Inode::zeroed();
    let extra = extra_size(mounted);
    inode.set_extra_size(extra);
    let asked = (new.mode & 0o7777, new.umask);
    let (mode, acls) = xattr::inherit(mounted, parent, file_type, asked, extra)?;
    // As Linux: with `bsdgroups`, directories don't hand set-group-ID down.
    let bsd_groups = mounted.writing().bsd_groups;
    let has_bit = parent.mode() & SET_GID != 0;
    let takes_group = bsd_groups || has_bit;
    let keeps_bit = has_bit && !bsd_groups && file_type == FileType::Directory;
    let mode = mode | if keeps_bit { SET_GID } else { 0 };
    inode.set_mode(file_type.mode_bits() | mode);
    inode.set_uid(new.uid);
    inode.set_gid(if takes_group { parent.gid() } else { new.gid });
    inode.set_links_count(if file_type == FileType::Directory {
        2
    } else {
        1
    });
    inode.set_flags(inherited(parent.flags(), file_type));
    inode.set_generation(generation(mounted, own, now)?);
    inode.set_atime(now);
    inode.set_mtime(now);
    inode.set_ctime(now);
    inode.set_crtime(now);
    let has_extents = match content {
        NewContent::Empty | NewContent::Directory => true,
        NewContent::Symlink(target) => target.len() >= BLOCK_AREA,
        NewContent::Device(..) | NewContent::Special(_) => false,
    };
    if has_extents && volume.has(Feature::EXTENT) {
        inode.set_flags(inode.flags().with(Flags::EXTENTS));
        extent::encode(inode.block_area_mut(), 0, ExtentEntries::Extents(&[]));
    }
    match content {
        NewContent::Device(_, major, minor) => inode.set_device_number(major, minor),
        NewContent::Symlink(target) if !has_extents => {
            inode.block_area_mut()[..target.len()].copy_from_slice(target);
            inode.set_size(target.len() as u64);
        }
        _ => {}
    }
    Ok((inode, acls))
}

const SET_GID: u16 = 0o2000;

/// Bytes of extra fields that new inodes have.
fn extra_size(mounted: &LiveFs) -> u16 {
    let geometry = mounted.volume().geometry();
    let superblock = mounted.volume().superblock();
    let room = geometry.inode_size().saturating_sub(inode::BASE_SIZE);
    let wanted = if geometry.has(Feature::EXTRA_ISIZE) {
        superblock
            .want_extra_isize()
            .max(superblock.min_extra_isize())
            .max(EXTRA_SIZE)
    } else {
        EXTRA_SIZE
    };
    match usize::from(wanted) <= room && wanted.is_multiple_of(4) {
        true => wanted,
        false if room == 0 => 0,
        false => EXTRA_SIZE,
    }
}

/// A generation that the number's last user did not have: a number comes back in a later epoch or mount only.
fn generation(mounted: &LiveFs, own: &LiveInode, now: Timestamp) -> Result<Generation, Error> {
    let before = own.snapshot().generation();
    let epoch = mounted.writing().journal.current_epoch().0;
    let seed = crc32c(before.0, &own.ino().0.to_le_bytes());
    let seed = crc32c(seed, &epoch.to_le_bytes());
    let seed = crc32c(seed, &now.seconds.to_le_bytes());
    let mixed = crc32c(seed, &now.nanoseconds.to_le_bytes());
    Ok(Generation(if mixed == before.0 {
        mixed.wrapping_add(1)
    } else {
        mixed
    }))
}

/// Takes and fills the block that a directory or a long symbolic link begins with, and maps it in the record.
pub(crate) fn first_block<'a>(
    mounted: &'a LiveFs,
    ino: Ino,
    parent: Ino,
    content: NewContent<'_>,
    record: &mut Inode,
) -> Result<Option<FirstBlock<'a>>, Error> {
    let volume = mounted.volume();
    let geometry = volume.geometry();
    let block_bytes = geometry.block_size().bytes();
    let is_needed = match content {
        NewContent::Directory => true,
        NewContent::Symlink(target) => target.len() >= BLOCK_AREA,
        _ => false,
    };
    if !is_needed {
        return Ok(None);
    }
    let (group, _) = geometry.group_of_ino(ino).ok_or(Error::NotFound)?;
    let blocks = mounted.take_beside(group)?;
    let at = blocks.run().start;
    let mut first = FirstBlock {
        blocks,
        contents: None,
    };
    let bytes = match content {
        NewContent::Symlink(target) => {
            let mut padded = vec![0; block_bytes];
            padded[..target.len()].copy_from_slice(target);
            let device = volume.cache().device();
            device.write_at(at.offset(geometry.block_size()), &padded)?;
            target.len()
        }
        _ => {
            let seed = inode::checksum_seed(geometry.csum_seed(), ino, record.generation());
            let seal = if geometry.has_metadata_csum() {
                Seal::Entries(seed)
            } else {
                Seal::None
            };
            let pin = volume.pin_new(at, Kind::Directory, ino, seal)?;
            let mut contents = pin.bytes();
            let block = Arc::make_mut(&mut contents);
            let form = DirForm::of(geometry, record.flags());
            let mut writer = DirBlockWriter::new(block.bytes_mut(), form);
            writer.push_dots(ino, parent);
            writer.finish();
            first.contents = Some((pin, seal, contents));
            block_bytes
        }
    };
    map_first(record, at)?;
    record.set_size(bytes as u64);
    let sectors = geometry.block_size().bytes_u64() / 512;
    let has_huge_file = volume.has(Feature::HUGE_FILE);
    // One block's sectors fit.
    let _fits = record.set_sectors(sectors, has_huge_file, geometry.block_size());
    Ok(Some(first))
}

fn map_first(record: &mut Inode, at: FsBlock) -> Result<(), Error> {
    if record.flags().contains(Flags::EXTENTS) {
        let one = [Extent::new(LBlock(0), 1, at, false)];
        extent::encode(record.block_area_mut(), 0, ExtentEntries::Extents(&one));
        return Ok(());
    }
    // Files without extents lie in the first 2^32 blocks.
    let pointer = u32::try_from(at.0).map_err(|_| Error::NoSpace)?;
    record.set_block_word(0, pointer);
    Ok(())
}
