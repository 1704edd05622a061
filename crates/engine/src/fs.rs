//! The engine's interface: a file system by inode number.
//!
//! All methods take `&self`, may be called from any number of threads, and may block on I/O. None holds a lock
//! while it does.

mod atomic;
mod attendant;
#[cfg(test)]
mod block_tests;
mod counters;
mod delay;
mod handles;
mod inode;
mod label;
mod names;
#[cfg(test)]
mod orphan_tests;
mod statfs;
mod stopped;
mod trim;

use device::BlockDevice;
use jbd2::recovery;
use ondisk::{Flags, Geometry, Ino, Superblock, Timestamp};
use sync::Arc;

use attendant::Attendant;
pub use inode::{FoundInode, InodeRef, Metadata};
pub use statfs::StatFs;

use crate::attr::{self, SetAttributes};
use crate::core::Error;
use crate::core::freeze::Entered;
use crate::core::options::Clock;
use crate::core::sb::{Acting, BlockClaimant};
use crate::core::variants::{VariantError, Variants};
use crate::data::{self, Allocate};
use crate::dir::{self, DirListing};
use crate::fsync::{self, SyncScope};
use crate::inode::MountedFs;
use crate::map::Mappings;
use crate::mount::{self, FoundAtOpen, MountOptions};
use crate::names::resolve;
use crate::reap;
use crate::token::{LiveFs, OpenFs};
use crate::xattr::{self, Xattr};

/// An open file system.
pub struct InodeFs {
    mounted: OpenFs,
    /// Dropped before the other fields, so that its thread has ended.
    attendant: Option<Attendant>,
    /// What opening the file system found on the device.
    met: FoundAtOpen,
    /// The thread that deletes inodes without names, if the options asked for one.
    reaper: Option<sync::thread::JoinHandle<()>>,
}

impl Drop for InodeFs {
    fn drop(&mut self) {
        self.mounted.doomed().serve(false);
        if let Ok(live) = self.mounted.live() {
            let writing = live.writing();
            // The journal's threads may wait for a thaw.
            writing.journal.thaw();
            if !writing.gate.is_retired() {
                writing.gate.open();
            }
        }
        if let Some(reaper) = self.reaper.take() {
            // A panic of the thread was reported where it happened; the inodes that it did not delete are among the
            // orphans.
            let _ = reaper.join();
        }
    }
}

impl InodeFs {
    /// Opens the file system on a device, which is not written to.
    ///
    /// # Errors
    /// When the device holds no ext2/3/4, one that is broken at its root, or one that lanefs can't read.
    pub fn open(device: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<InodeFs, Error> {
        let (volume, met) = mount::mount(device, options)?;
        Ok(InodeFs {
            mounted: OpenFs::Reading(Box::new(MountedFs::new(volume))),
            attendant: None,
            met,
            reaper: None,
        })
    }

    /// Opens the file system on a device for reading and writing. The contents of its journal are written home first.
    /// `clock` supplies the times of changes, unless the options fix one.
    ///
    /// # Errors
    /// As [`InodeFs::open`]; `UnwritableFeature` and `Unsupported` if the file system can only be read: nothing is
    /// changed then.
    pub fn open_for_writing(
        device: Arc<dyn BlockDevice>,
        options: &MountOptions,
        clock: fn() -> Timestamp,
    ) -> Result<InodeFs, Error> {
        let clock = options.time.map_or(Clock::Ask(clock), Clock::Fixed);
        let (mounted, met) = mount::mount_for_writing(device, options, clock)?;
        let attendant = match options.commit_interval {
            Some(interval) => Some(Attendant::start(&mounted, interval)?),
            None => None,
        };
        let reaper = options.reaper_thread.then(|| {
            mounted.doomed().serve(true);
            let mounted = Arc::clone(&mounted);
            sync::thread::spawn(move || reap::serve(&mounted))
        });
        Ok(InodeFs {
            mounted: OpenFs::Writing(mounted),
            attendant,
            met,
            reaper,
        })
    }

    /// Runs an operation that changes the file system. The caller holds no lock and no handle. The operation waits
    /// while the file system is frozen, and fails once the journal is aborted. If it finds no space, all blocks that
    /// can be freed are freed and it is tried again, the last time with no other change under way. Corruption that it
    /// finds is recorded.
    fn change<T>(
        &self,
        mut operation: impl FnMut(&LiveFs) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let live = self.live()?;
        let change = enter(live)?;
        reap::catch_up(live);
        let done = match reap::with_room(live, &mut operation) {
            Ok(Some(done)) => Ok(done),
            Ok(None) => {
                drop(change);
                change_alone(live, operation)
            }
            Err(error) => Err(error),
        };
        self.noting(done)
    }

    /// Records the corruption that an operation found.
    fn noting<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let Ok(live) = self.mounted.live() else {
            return outcome;
        };
        if let Err(Error::Corrupt(corrupt)) = &outcome {
            live.note(*corrupt);
        }
        for corrupt in live.groups().take_broken() {
            live.note(corrupt);
        }
        outcome
    }

    /// Recorded errors: those of earlier mounts that e2fsck has not seen, and those found since. If there are any,
    /// e2fsck should be run; until then nothing that is broken is changed.
    #[must_use]
    pub fn recorded_errors(&self) -> u32 {
        let superblock = self.superblock();
        let is_marked = superblock.state() & ondisk::superblock::state::ERROR != 0;
        let before = superblock.error_count().max(is_marked.into());
        let live = self.mounted.live();
        before.saturating_add(live.map_or(0, |live| live.writing().errors.met()))
    }

    /// Until the value is dropped, the calling thread takes blocks on behalf of `caller`. The blocks reserved for root
    /// are available only if `caller` is root, or the user or in the group that the superblock names. Without this
    /// value, [`MountOptions::as_root`] decides.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn act_for(&self, caller: BlockClaimant<'_>) -> Result<Acting<'_>, Error> {
        Ok(self.live()?.writing().reserve.act_for(caller))
    }

    /// Changes an inode's permissions, owner or times in one step, and stamps its ctime. If the size is to be changed
    /// too, that is done before ([`InodeFs::truncate`]).
    ///
    /// # Errors
    /// `ReadOnly`, as [`InodeFs::inode`], `Aborted`; as [`InodeFs::truncate`] if the size is to be changed.
    pub fn set_attributes(&self, ino: Ino, attributes: &SetAttributes) -> Result<(), Error> {
        if let Some(size) = attributes.size {
            self.truncate(ino, size)?;
            if attributes.is_empty_but_size() {
                return Ok(());
            }
        }
        // An ACL that follows the permissions may need a block.
        self.change(|mounted| attr::set(mounted, ino, attributes))
    }

    /// Sets those of an inode's flags that can be changed (`FS_IOC_SETFLAGS`), in one step; the others stay as they
    /// are.
    ///
    /// # Errors
    /// `ReadOnly`, as [`InodeFs::inode`], `Aborted`; `NotSupported` for a flag that the type of file does not have, or
    /// that lanefs can't change.
    pub fn set_flags(&self, ino: Ino, flags: Flags) -> Result<(), Error> {
        let live = self.live()?;
        let _change = enter(live)?;
        attr::set_flags(live, ino, flags)
    }

    /// The time now by the file system's clock, for [`SetAttributes`].
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn now(&self) -> Result<Timestamp, Error> {
        self.live()?.now()
    }

    /// Writes `bytes` at byte `offset` of a regular file, which grows to hold them. Returns how many bytes were
    /// written: fewer than all only if an error stopped the write after the first byte. Holes before `offset` stay
    /// holes. Durable after [`InodeFs::fsync`] or [`InodeFs::sync`]; a crash before that leaves a prefix of what was
    /// added, and any part of what was overwritten.
    ///
    /// # Errors
    /// `ReadOnly`; as [`InodeFs::inode`]; `IsDirectory`, `NotRegular`, `NotPermitted` (immutable, append-only),
    /// `Encrypted`, `NotSupported` (data in the inode or in the journal), `FileTooLarge`, `NoSpace`, `Aborted`,
    /// `Corrupt`, `Io`.
    pub fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize, Error> {
        let (written, flags) = self.change(|mounted| data::write(mounted, ino, offset, bytes))?;
        self.live()?.settle(ino, flags)?;
        Ok(written)
    }

    /// Writes as [`InodeFs::write`] does, at the end that the file has when it is locked, so two threads that append at
    /// once do not overwrite each other's bytes. Returns where the bytes begin and how many were written.
    ///
    /// # Errors
    /// As [`InodeFs::write`].
    pub fn append(&self, ino: Ino, bytes: &[u8]) -> Result<(u64, usize), Error> {
        let (at, written, flags) = self.change(|mounted| data::append(mounted, ino, bytes))?;
        self.live()?.settle(ino, flags)?;
        Ok((at, written))
    }

    /// Sets the size of a regular file: bytes after it are removed, or a hole is added. A crash leaves the old size or
    /// the new one.
    ///
    /// # Errors
    /// As [`InodeFs::write`].
    pub fn truncate(&self, ino: Ino, size: u64) -> Result<(), Error> {
        let flags = self.change(|mounted| data::truncate(mounted, ino, size))?;
        self.live()?.settle(ino, flags)
    }

    /// Reserves, frees, zeroes or moves a part of a regular file (`fallocate`). A crash leaves it done for a prefix of
    /// the range; a move is done as a whole or not at all.
    ///
    /// # Errors
    /// As [`InodeFs::write`]; `InvalidArgument` for an empty range, for parts of blocks where whole blocks are moved,
    /// or for a range at the end; `NotSupported` for anything but [`Allocate::Punch`] in a file without extents, and
    /// for moving more extents than one step changes.
    pub fn allocate(&self, ino: Ino, how: Allocate, offset: u64, len: u64) -> Result<(), Error> {
        let flags = self.change(|mounted| data::allocate(mounted, ino, how, offset, len))?;
        self.live()?.settle(ino, flags)
    }

    /// The first byte at or after `offset` that is data; `None` if no such byte exists (`SEEK_DATA`).
    ///
    /// # Errors
    /// As [`InodeFs::inode`]; `Corrupt`, `Io`.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<Option<u64>, Error> {
        self.noting(data::seek(&self.mounted, ino, offset, false))
    }

    /// The first byte at or after `offset` that is in a hole; the end of the file counts as a hole. `None` if `offset`
    /// is not before the end (`SEEK_HOLE`).
    ///
    /// # Errors
    /// As [`InodeFs::seek_data`].
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<Option<u64>, Error> {
        self.noting(data::seek(&self.mounted, ino, offset, true))
    }

    /// The runs of a file's blocks in a range of blocks, holes included, all as they were at one moment (`FIEMAP`).
    ///
    /// # Errors
    /// As [`InodeFs::seek_data`].
    pub fn mappings_in(
        &self,
        ino: Ino,
        blocks: std::ops::Range<u64>,
    ) -> Result<Vec<crate::Mapping>, Error> {
        self.noting(data::mappings(&self.mounted, ino, blocks))
    }

    /// Makes an inode's data and attributes durable, and all changes that were made before its last change. Returns at
    /// once if they are durable.
    ///
    /// # Errors
    /// As [`InodeFs::sync`]; as [`InodeFs::inode`].
    pub fn fsync(&self, ino: Ino) -> Result<(), Error> {
        let live = self.live()?;
        attr::write_lazy_of(live, ino)?;
        fsync::fsync(live, ino, SyncScope::All, None)
    }

    /// How many failed write-outs of a file have been reported to a caller: the initial count of a new handle on it,
    /// for [`InodeFs::fsync_of`].
    ///
    /// # Errors
    /// As [`InodeFs::inode`].
    pub fn write_failures(&self, ino: Ino) -> Result<u32, Error> {
        Ok(self.mounted.get(ino)?.write_errors.reported())
    }

    /// Does what [`InodeFs::fsync`] does, or [`InodeFs::fdatasync`] with `data_only`, for one of several handles on a
    /// file that is held. Each handle reports a failed write-out once, whatever the other handles reported. `seen` is
    /// the handle's own count.
    ///
    /// # Errors
    /// As [`InodeFs::fsync`].
    pub fn fsync_of(&self, ino: Ino, data_only: bool, seen: &mut u32) -> Result<(), Error> {
        let live = self.live()?;
        if data_only {
            return fsync::fsync(live, ino, SyncScope::Data, Some(seen));
        }
        attr::write_lazy_of(live, ino)?;
        fsync::fsync(live, ino, SyncScope::All, Some(seen))
    }

    /// Makes an inode's data durable, and what it takes to read them, but not its times, owner or permissions.
    ///
    /// # Errors
    /// As [`InodeFs::fsync`].
    pub fn fdatasync(&self, ino: Ino) -> Result<(), Error> {
        fsync::fsync(self.live()?, ino, SyncScope::Data, None)
    }

    /// Makes everything that was done before this call durable.
    ///
    /// # Errors
    /// `ReadOnly`; `Aborted` when the journal could not be written: then only what was reported durable before is
    /// durable.
    pub fn sync(&self) -> Result<(), Error> {
        // While changes are shut out, no time of access waits in memory, and inodes without names are deleted later.
        let live = self.live()?;
        if let Some(_change) = live.writing().gate.try_enter() {
            attr::write_lazy(live)?;
            reap::catch_up(live);
        }
        live.sync_all()
    }

    /// Writes home what is durable in the journal, and then empties the journal (the ioctl `EXT4_IOC_CHECKPOINT`).
    /// Other threads may change the file system meanwhile.
    ///
    /// # Errors
    /// As [`InodeFs::sync`].
    pub fn checkpoint(&self) -> Result<(), Error> {
        Ok(self.live()?.writing().journal.checkpoint()?)
    }

    /// Writes everything home and leaves a clean image. If the file system is dropped without it, the journal is
    /// replayed when the file system is opened next, and everything that was synced is there. A file system without a
    /// journal must be closed; otherwise e2fsck has to repair it.
    ///
    /// # Errors
    /// As [`InodeFs::sync`].
    pub fn close(mut self) -> Result<(), Error> {
        self.close_in_place()
    }

    /// Closes the file system, as [`InodeFs::close`], for an owner that can't move the value. Afterwards it may only be
    /// dropped.
    ///
    /// # Errors
    /// As [`InodeFs::close`].
    pub fn close_in_place(&mut self) -> Result<(), Error> {
        if let OpenFs::Writing(live) = &self.mounted {
            mount::thaw(live)?;
            attr::write_lazy(live)?;
            // The attendant may be in the middle of a commit.
            self.attendant = None;
            mount::unmount(live)?;
        }
        Ok(())
    }

    /// Closes the file system, as [`InodeFs::close`], while other threads still use it: from then on their changes fail
    /// with `Closed`, and their reads still work. Waits for the changes that are under way. Files without names that
    /// are held stay, and are deleted when the image is opened next.
    ///
    /// # Errors
    /// As [`InodeFs::sync`]; then nothing is closed.
    pub fn retire(&self) -> Result<(), Error> {
        self.mounted
            .live()
            .map_or(Ok(()), |live| mount::retire(live))
    }

    /// Whether [`InodeFs::retire`] closed it.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        let live = self.mounted.live();
        live.is_ok_and(|live| live.writing().gate.is_retired())
    }

    /// Waits for the changes that are under way, writes everything home, and lets no other change begin until
    /// [`InodeFs::thaw`]. Changes wait until then; reads do not. Meanwhile the device holds a clean image, which may be
    /// copied. A second call has no further effect. Must not be called within a change.
    ///
    /// # Errors
    /// As [`InodeFs::sync`]; then nothing is frozen.
    pub fn freeze(&self) -> Result<(), Error> {
        mount::freeze(self.live()?)
    }

    /// Lets changes begin again; does nothing if the file system is not frozen.
    ///
    /// # Errors
    /// `ReadOnly`; `Io` when the superblock can't be marked as in use: then nothing is written any more.
    pub fn thaw(&self) -> Result<(), Error> {
        mount::thaw(self.live()?)
    }

    /// What the journal has counted so far; `None` for a file system that is not written to.
    #[must_use]
    pub fn journal_statistics(&self) -> Option<&journal::JournalStatistics> {
        let live = self.mounted.live().ok()?;
        Some(live.writing().journal.statistics())
    }

    /// Blocks of the journal's log that are in use or promised, and the total; zeros without a journal.
    pub(crate) fn log_usage(&self) -> (u64, u64) {
        let live = self.mounted.live();
        live.map_or((0, 0), |live| live.writing().journal.log_usage())
    }

    /// The places in the code whose handles delayed a commit by more than a millisecond, and how often. Empty for a
    /// file system that is not written to.
    #[must_use]
    pub fn long_handles(&self) -> Vec<(String, u64)> {
        let live = self.mounted.live();
        live.map_or(Vec::new(), |live| live.writing().journal.long_handles())
    }

    /// The form of each mechanism that is used now.
    #[must_use]
    pub fn variants(&self) -> Variants {
        self.mounted.variants()
    }

    /// Uses another form of a mechanism from now on, `name=value` as in [`Variants::set`], on the live file system and
    /// under load: an operation that is under way ends in the form in which it began. Waits for nothing; nothing of it
    /// is written to disk.
    ///
    /// # Errors
    /// When the option does not exist or does not take this value; then nothing changes.
    pub fn choose(&self, option: &str) -> Result<(), VariantError> {
        self.mounted.choose(option)
    }

    /// The token that allows changes.
    ///
    /// # Errors
    /// `ReadOnly`.
    fn live(&self) -> Result<&LiveFs, Error> {
        Ok(self.mounted.live()?)
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.mounted.volume().superblock()
    }

    /// The numbers from which the places of structures are computed.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.mounted.volume().geometry()
    }

    /// What was found in the journal; `None` if it needed no replay, or was to be ignored.
    #[must_use]
    pub fn recovery_report(&self) -> Option<&recovery::ReplayReport> {
        self.met.recovery.as_ref()
    }

    /// Which part is missing of a device that ends before the file system; `None` if it is complete.
    #[must_use]
    pub fn cut(&self) -> Option<mount::CutDevice> {
        self.met.cut
    }

    /// Whether the first superblock was torn or lost when the file system was opened, and was restored from the journal
    /// or from a copy in another group. If the file system was opened for writing, the superblock has been written back
    /// to its place.
    #[must_use]
    pub fn had_lost_superblock(&self) -> bool {
        self.met.lost_superblock
    }

    /// Counts of the cache of metadata blocks.
    #[must_use]
    pub fn cache_statistics(&self) -> buffer::CacheStatistics {
        self.mounted.volume().cache().statistics()
    }

    /// The device that is read, with the replayed changes.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        self.mounted.volume().cache().device()
    }

    /// An inode that is in use.
    ///
    /// # Errors
    /// `NotFound` for a number that no inode has; `Corrupt` for an inode that is free or broken.
    pub fn inode(&self, ino: Ino) -> Result<InodeRef<'_>, Error> {
        let inode = self.in_use(ino)?;
        self.mounted.note_times_seen(ino);
        Ok(inode)
    }

    /// The same inode, for a caller that does not show its times.
    fn in_use(&self, ino: Ino) -> Result<InodeRef<'_>, Error> {
        Ok(InodeRef {
            mounted: &self.mounted,
            inode: self.noting(self.mounted.load_used(ino))?,
        })
    }

    /// What `stat` reports of an inode.
    ///
    /// # Errors
    /// As [`InodeFs::inode`].
    pub fn metadata(&self, ino: Ino) -> Result<Metadata, Error> {
        match self.noting(self.mounted.record(ino))? {
            Some(record) => Ok(Metadata::of(self.mounted.volume(), ino, &record)),
            None => Ok(self.inode(ino)?.metadata()),
        }
    }

    /// The mode (with the type) and the group of an inode, for a server that decides what a caller's change costs. The
    /// times are not marked as seen, so writes in place may still leave them as they are.
    ///
    /// # Errors
    /// As [`InodeFs::inode`].
    pub fn mode_and_group(&self, ino: Ino) -> Result<(u16, u32), Error> {
        let InodeRef { inode, .. } = self.in_use(ino)?;
        Ok((inode.mode(), inode.gid()))
    }

    /// Fills `buf` from byte `offset` of a regular file; fewer bytes only at its end.
    ///
    /// # Errors
    /// As [`InodeFs::inode`] and [`InodeRef::read`].
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.noting(self.in_use(ino)?.read(offset, buf))
    }

    /// Does what [`InodeFs::read`] does, but leaves the time of access unchanged, as with `O_NOATIME`.
    ///
    /// # Errors
    /// As [`InodeFs::read`].
    pub fn read_noatime(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.noting(self.in_use(ino)?.read_noatime(offset, buf))
    }

    /// The inode that a name, which may be `.` or `..`, stands for in a directory. Names of casefolded directories are
    /// compared without case; those of encrypted ones are passed in the form in which [`InodeFs::read_dir`] returns
    /// them.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`; as [`InodeFs::inode`]; `Corrupt` when the part of the directory that
    /// was searched is broken.
    pub fn lookup(&self, directory: Ino, name: &[u8]) -> Result<Ino, Error> {
        self.noting(dir::lookup_in(&self.mounted, directory, name))
    }

    /// All entries of a directory, including `.` and `..`, in the order of its blocks.
    ///
    /// # Errors
    /// `NotDirectory`; those of [`InodeFs::inode`]. The iterator returns the errors of later blocks.
    pub fn read_dir(&self, directory: Ino) -> Result<DirListing<'_>, Error> {
        self.read_dir_from(directory, 0)
    }

    /// The entries of a directory after the one with this cookie; 0 for all.
    ///
    /// # Errors
    /// As [`InodeFs::read_dir`].
    pub fn read_dir_from(&self, directory: Ino, cookie: u64) -> Result<DirListing<'_>, Error> {
        let entries = match &self.mounted {
            OpenFs::Reading(mounted) => {
                DirListing::new(mounted.volume(), mounted.load_used(directory)?, cookie)?
            }
            OpenFs::Writing(live) => DirListing::of(live, directory, cookie)?,
        };
        inode::note_access(&self.mounted, directory);
        Ok(entries)
    }

    /// The inode that a path leads to from the root directory, with or without a leading slash. Symbolic links are
    /// followed; one at the end of the path only with `follow_last` or if a slash follows it.
    ///
    /// # Errors
    /// As [`InodeFs::lookup`] and [`InodeFs::read_link`]; `TooManyLinks` after 40 links; `NameTooLong` for a path of
    /// 4096 bytes or more.
    pub fn resolve(&self, path: &[u8], follow_last: bool) -> Result<Ino, Error> {
        self.resolve_in(Ino::ROOT, path, follow_last)
    }

    /// Does what [`InodeFs::resolve`] does, as if `root` were the root directory: a path does not lead out of it,
    /// neither by `..` nor by a symbolic link. There is one exception: if another thread moves a directory out of
    /// `root` meanwhile, `..` in that directory leads out.
    ///
    /// # Errors
    /// As [`InodeFs::resolve`].
    pub fn resolve_in(&self, root: Ino, path: &[u8], follow_last: bool) -> Result<Ino, Error> {
        self.noting(resolve(&self.mounted, root, path, follow_last))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As [`InodeFs::inode`] and [`InodeRef::read_link`].
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>, Error> {
        self.noting(self.in_use(ino)?.read_link())
    }

    /// The value of one extended attribute, by its whole name.
    ///
    /// # Errors
    /// `NoAttribute`; `NameLength`, `InvalidArgument`, `NotSupported` for invalid names, as in [`InodeFs::set_xattr`];
    /// as [`InodeFs::xattrs`].
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Error> {
        self.noting(xattr::read_one(&self.mounted, ino, name))
    }

    /// All extended attributes of an inode.
    ///
    /// # Errors
    /// As [`InodeFs::inode`] and [`InodeRef::xattrs`].
    pub fn xattrs(&self, ino: Ino) -> Result<Vec<Xattr>, Error> {
        self.noting(self.in_use(ino)?.xattrs())
    }

    /// The runs of an inode's blocks.
    ///
    /// # Errors
    /// As [`InodeFs::inode`] and [`InodeRef::mappings`].
    pub fn mappings(&self, ino: Ino) -> Result<Mappings<'_>, Error> {
        Mappings::new(
            self.mounted.volume(),
            &self.mounted.load_used(ino)?,
            0..u64::MAX,
        )
    }
}

/// Begins a change; waits while the file system is frozen. Fails once it is retired or its journal is aborted.
fn enter(live: &LiveFs) -> Result<Entered<'_>, Error> {
    let writing = live.writing();
    let entered = writing.gate.enter().ok_or(Error::Closed)?;
    writing.journal.check().map_err(Error::Stopped)?;
    Ok(entered)
}

/// Runs a change that found no space while other threads changed the file system, now without them: blocks that they
/// took and did not use are free again, and no other thread takes what a commit frees.
fn change_alone<T>(
    live: &LiveFs,
    operation: impl FnMut(&LiveFs) -> Result<T, Error>,
) -> Result<T, Error> {
    let writing = live.writing();
    let _alone = match writing.gate.enter_alone() {
        Some(alone) => alone,
        None if writing.gate.is_retired() => return Err(Error::Closed),
        None => return Err(Error::NoSpace),
    };
    writing.journal.check().map_err(Error::Stopped)?;
    reap::with_room(live, operation)?.ok_or(Error::NoSpace)
}
