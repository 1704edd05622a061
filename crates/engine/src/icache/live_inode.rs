//! An inode that may change: its record as it is now, the images of sealed epochs, and its locks.
//!
//! `lock` ([`Rank::Inode`], keyed by number) protects names, map and attributes: shared to read what must agree,
//! exclusive to change, which also needs a handle. `data` ([`Rank::InodeData`]) is held shared by reads and writes of
//! the file's data and exclusively by what takes blocks away. The record itself is read by snapshot at any time.
//!
//! What a crash leaves: the record as it was at the end of a committed epoch.

use buffer::{Block, Tag};
use journal::{Epoch, Handle, Object, Stageable};
use ondisk::inode::{self, Inode};
use ondisk::{FsBlock, Ino, Timestamp};
use sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sync::{Arc, Mutex, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::icache::LoadedInode;
use crate::orphan::Chained;
use crate::sb::Volume;

/// An inode in memory, of a volume that is written to.
pub(crate) struct LiveInode {
    ino: Ino,
    /// The block of the inode table, and the record's first byte in it. [const]
    place: (FsBlock, usize),
    /// The file system's checksum seed, where inodes have checksums. [const]
    csum_seed: u32,
    has_checksum: bool,
    lock: RwLock<()>,
    data: RwLock<()>,
    /// Counts the beginnings and ends of changes of a directory's names: odd while one is under way. [lock,
    /// exclusive; atomic: SeqCst]
    names: AtomicU64,
    /// How many hold the inode, so that it stays without names. [atomic: SeqCst; from 0 up: lock, shared]
    holders: AtomicU32,
    /// Whether it was made without a name, and may get its first. [lock]
    linkable: AtomicBool,
    /// The epoch in which the inode was made; 0 if that was before it came into memory. [atomic: Relaxed; lock]
    born: AtomicU64,
    /// A time of access that is not in the record yet (`lazytime`). [leaf]
    lazy_atime: Mutex<Option<Timestamp>>,
    /// Whether there is one. [atomic: written under `lazy_atime`]
    has_lazy_atime: AtomicBool,
    /// Whether the record counts no links. [lock, exclusive; read: any time, a hint while others have the inode]
    is_nameless: AtomicBool,
    /// The last epoch that changed what it takes to read the data. [atomic: Release, Acquire]
    data_stamp: AtomicU64,
    /// The epoch that ran after data were last written in place. [atomic: Release, Acquire]
    overwritten: AtomicU64,
    /// A write-out failed, and nobody was told. [atomic: Relaxed]
    lost: AtomicBool,
    /// The record. [lock, exclusive; read: any time, by snapshot]
    slot: Object<Arc<Block>>,
}

/// The inode's lock, shared.
pub(crate) struct Shared<'a> {
    _lock: RwLockReadGuard<'a, ()>,
}

/// The inode's lock, exclusive: the right to change it under a handle.
pub(crate) struct Exclusive<'a> {
    inode: &'a Arc<LiveInode>,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Stageable for LiveInode {
    fn block(&self) -> FsBlock {
        self.place.0
    }

    fn is_whole_block(&self) -> bool {
        false
    }

    fn stage(&self, sealed: Epoch, image: &mut [u8]) {
        self.encode(&self.slot.take_sealed(sealed), image);
    }
}

impl LiveInode {
    /// Writes the record as it is now into its place: for a mistake made on purpose only.
    pub(crate) fn stage_live(&self, image: &mut [u8]) {
        let slot = self.slot.read(Arc::clone);
        self.encode(&slot, image);
    }

    fn encode(&self, slot: &[u8], image: &mut [u8]) {
        let place = &mut image[self.place.1..self.place.1 + slot.len()];
        place.copy_from_slice(slot);
        if self.has_checksum {
            inode::set_checksum(place, self.csum_seed, self.ino);
        }
    }
}

impl Chained for LiveInode {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn set_next(self: Arc<LiveInode>, handle: &Handle<'_>, next: Ino) {
        handle.change(
            &self,
            |inode| &inode.slot,
            |slot| {
                let slot = Arc::make_mut(slot).bytes_mut();
                // As in `Exclusive::change`.
                let mut inode = Inode::parse(slot).expect("a live inode parses");
                inode.set_dtime(next.0);
                inode.write_to(slot);
            },
        );
    }
}

impl LiveInode {
    /// The inode that was loaded from this place.
    pub(crate) fn new(volume: &Volume, place: (FsBlock, usize), loaded: &LoadedInode) -> LiveInode {
        let geometry = volume.geometry();
        let slot = Block::new(Tag(0), loaded.slot().into());
        LiveInode {
            ino: loaded.ino(),
            place,
            csum_seed: geometry.csum_seed(),
            has_checksum: geometry.has_metadata_csum(),
            lock: RwLock::keyed(Rank::Inode, u64::from(loaded.ino().0), ()),
            data: RwLock::keyed(Rank::InodeData, u64::from(loaded.ino().0), ()),
            names: AtomicU64::new(0),
            holders: AtomicU32::new(0),
            linkable: AtomicBool::new(false),
            born: AtomicU64::new(0),
            lazy_atime: Mutex::new(Rank::Leaf, None),
            has_lazy_atime: AtomicBool::new(false),
            is_nameless: AtomicBool::new(loaded.links_count() == 0),
            data_stamp: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            slot: Object::new(Arc::new(slot)),
        }
    }

    /// The inode's number.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// The block of the inode table that holds the inode.
    pub(crate) fn table_block(&self) -> FsBlock {
        self.place.0
    }

    /// The last epoch that may have changed the inode.
    pub(crate) fn stamp(&self) -> Epoch {
        self.slot.stamp()
    }

    /// The last epoch that changed what it takes to read the data: size or map.
    pub(crate) fn data_stamp(&self) -> Epoch {
        // Acquire: pairs with the Release in `stamp_data`.
        Epoch(self.data_stamp.load(Ordering::Acquire))
    }

    /// The handle changes what it takes to read the data.
    pub(crate) fn stamp_data(&self, handle: &Handle<'_>) {
        // Release: pairs with the Acquire in `data_stamp`.
        self.data_stamp.store(handle.epoch().0, Ordering::Release);
    }

    /// Data were written in place, and `running` was the epoch after that. Before the write returns to its caller.
    pub(crate) fn set_overwritten(&self, running: Epoch) {
        // Release: comes after the data; pairs with the Acquire in `overwritten`.
        self.overwritten.fetch_max(running.0, Ordering::Release);
    }

    /// What [`LiveInode::set_overwritten`] said last; 0 if it never did.
    pub(crate) fn overwritten(&self) -> Epoch {
        // Acquire: pairs with the Release in `set_overwritten`.
        Epoch(self.overwritten.load(Ordering::Acquire))
    }

    /// A write-out failed behind the caller's back.
    pub(crate) fn set_lost(&self) {
        // Relaxed: a flag without data behind it; pairs with `take_lost`.
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether a write-out failed since this was last asked.
    pub(crate) fn take_lost(&self) -> bool {
        // Relaxed: pairs with `set_lost`.
        self.lost.load(Ordering::Relaxed) && self.lost.swap(false, Ordering::Relaxed)
    }

    /// Whether nothing would be forgotten with the inode, whose last change is in an epoch up to `committed`, and whose
    /// data are durable up to the end of `flushed`.
    pub(crate) fn may_go(&self, committed: Epoch, flushed: Epoch) -> bool {
        self.stamp() <= committed
            && self.overwritten() <= flushed
            // Relaxed: as in `take_lost`.
            && !self.lost.load(Ordering::Relaxed)
    }

    /// One more holds the inode. The caller has its lock, and saw that it is in use.
    pub(crate) fn hold(&self) {
        // SeqCst: seen by whoever takes the lock exclusively next; pairs with the load in `is_held`.
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// `count` fewer hold the inode; whether they were the last.
    pub(crate) fn release(&self, count: u32) -> bool {
        // SeqCst: pairs with the load in `is_held`.
        self.holders.fetch_sub(count, Ordering::SeqCst) == count
    }

    /// How many hold the inode. Nobody else has it.
    pub(crate) fn holders(&self) -> u32 {
        // Relaxed: the table's lock orders it.
        self.holders.load(Ordering::Relaxed)
    }

    /// Sets how many hold the inode. Nobody else has it.
    pub(crate) fn set_holders(&self, holders: u32) {
        // Relaxed: the table's lock orders it.
        self.holders.store(holders, Ordering::Relaxed);
    }

    /// Whether the inode has no names. Nobody else has it.
    pub(crate) fn is_nameless(&self) -> bool {
        // Relaxed: nobody changes it.
        self.is_nameless.load(Ordering::Relaxed)
    }

    /// Whether someone holds the inode.
    pub(crate) fn is_held(&self) -> bool {
        // SeqCst: pairs with the changes in `hold` and `release`.
        self.holders.load(Ordering::SeqCst) > 0
    }

    /// Says whether the inode, without names, may get one. The caller has its lock.
    pub(crate) fn set_linkable(&self, linkable: bool) {
        // Relaxed: the lock orders it.
        self.linkable.store(linkable, Ordering::Relaxed);
    }

    /// What [`LiveInode::set_linkable`] said last.
    pub(crate) fn is_linkable(&self) -> bool {
        // Relaxed: the lock orders it.
        self.linkable.load(Ordering::Relaxed)
    }

    /// Says that the inode is made in this epoch. The caller has its lock.
    pub(crate) fn set_born(&self, epoch: Epoch) {
        // Relaxed: the lock orders it.
        self.born.store(epoch.0, Ordering::Relaxed);
    }

    /// Whether the inode was made in this epoch, so that no commit has it if that is not committed.
    pub(crate) fn is_born_in(&self, epoch: Epoch) -> bool {
        // Relaxed: the lock orders it.
        self.born.load(Ordering::Relaxed) == epoch.0
    }

    /// How often changes of the directory's names began and ended; odd while one is under way. What was read without
    /// a lock agrees if this was even before and is the same after.
    pub(crate) fn names_version(&self) -> u64 {
        // SeqCst: before and after the reads it guards; pairs with the adds in `change_names`.
        self.names.load(Ordering::SeqCst)
    }

    /// The inode as it is now.
    pub(crate) fn snapshot(&self) -> LoadedInode {
        let slot = self.slot.read(Arc::clone);
        let mut loaded = LoadedInode::of_slot(self.ino, self.csum_seed, slot);
        if self.has_lazy_atime()
            && let Some(atime) = *self.lazy_atime.lock()
        {
            loaded.inode.set_atime(atime);
        }
        loaded
    }

    /// Keeps a time of access until the record changes next; whether there was none before.
    pub(crate) fn set_lazy_atime(&self, atime: Timestamp) -> bool {
        let mut lazy = self.lazy_atime.lock();
        // Release: pairs with the Acquire in `has_lazy_atime`.
        self.has_lazy_atime.store(true, Ordering::Release);
        lazy.replace(atime).is_none()
    }

    /// Whether a time of access waits for the record's next change.
    pub(crate) fn has_lazy_atime(&self) -> bool {
        // Acquire: pairs with the Release in `set_lazy_atime`.
        self.has_lazy_atime.load(Ordering::Acquire)
    }

    fn take_lazy_atime(&self) -> Option<Timestamp> {
        if !self.has_lazy_atime() {
            return None;
        }
        let mut lazy = self.lazy_atime.lock();
        // Release: pairs with the Acquire in `has_lazy_atime`.
        self.has_lazy_atime.store(false, Ordering::Release);
        lazy.take()
    }

    /// Waits until no other thread changes the inode; others may read it too.
    #[track_caller]
    pub(crate) fn read_lock(&self) -> Shared<'_> {
        Shared {
            _lock: self.lock.read(),
        }
    }

    /// Waits until no other thread reads what must agree, or changes the inode.
    #[track_caller]
    pub(crate) fn write_lock(self: &Arc<LiveInode>) -> Exclusive<'_> {
        Exclusive {
            inode: self,
            _lock: self.lock.write(),
        }
    }

    /// Keeps the file's blocks where they are: for reads and writes of its data.
    #[track_caller]
    pub(crate) fn data_lock(&self) -> RwLockReadGuard<'_, ()> {
        self.data.read()
    }

    /// Waits until no read or write of the file's data is under way: for what takes blocks away.
    #[track_caller]
    pub(crate) fn data_lock_exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.data.write()
    }
}

impl Exclusive<'_> {
    /// The inode.
    pub(crate) fn inode(&self) -> &Arc<LiveInode> {
        self.inode
    }

    /// Changes several blocks of the directory as one step for those who read it without its lock. Takes no lock that
    /// is not free at once.
    pub(crate) fn change_names<R>(&self, change: impl FnOnce() -> R) -> R {
        // SeqCst: pairs with the loads in `names_version`, here and below.
        self.inode.names.fetch_add(1, Ordering::SeqCst);
        let result = change();
        // SeqCst: pairs with the loads in `names_version`.
        self.inode.names.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// Changes the fixed part of the record in the handle's epoch. Uses one of the handle's blocks the first time in
    /// an epoch.
    pub(crate) fn change<R>(&self, handle: &Handle<'_>, change: impl FnOnce(&mut Inode) -> R) -> R {
        let (result, concerns_data) = self.change_bytes(handle, |slot| {
            // The slot was parsed when it was loaded, and every change keeps its extra size.
            let mut inode = Inode::parse(slot).expect("a live inode parses");
            if let Some(atime) = self.inode.take_lazy_atime() {
                inode.set_atime(atime);
            }
            let before = (inode.size(true), *inode.block_area());
            let result = change(&mut inode);
            let after = (inode.size(true), *inode.block_area());
            inode.write_to(slot);
            let is_nameless = inode.links_count() == 0;
            // Relaxed: the inode's lock orders it.
            self.inode.is_nameless.store(is_nameless, Ordering::Relaxed);
            (result, before != after)
        });
        if concerns_data {
            self.inode.stamp_data(handle);
        }
        result
    }

    /// Changes the whole record, attributes in it included. Its checksum is not the caller's affair.
    pub(crate) fn change_slot<R>(
        &self,
        handle: &Handle<'_>,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let result = self.change_bytes(handle, change);
        self.inode.stamp_data(handle);
        result
    }

    fn change_bytes<R>(&self, handle: &Handle<'_>, change: impl FnOnce(&mut [u8]) -> R) -> R {
        handle.change(
            self.inode,
            |inode| &inode.slot,
            |slot| change(Arc::make_mut(slot).bytes_mut()),
        )
    }
}
