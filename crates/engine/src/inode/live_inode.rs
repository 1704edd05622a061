//! An inode that may change: its record as it is now, the images of sealed epochs, and its locks.
//!
//! `lock` ([`Rank::Inode`], keyed by number) protects names, map and attributes: shared to read what must agree,
//! exclusive to change, which also needs a handle. Writes of data in place hold it shared. `data_lock`
//! ([`Rank::InodeData`]) is held shared by reads of the file's data, and exclusively, besides `lock`, by what takes
//! blocks away. The record itself is read by snapshot at any time.
//!
//! What a crash leaves: the record as it was at the end of a committed epoch.

mod data;
mod exclusive;
mod life;
mod names;
mod place;
mod record;
mod times;
mod words;
mod write_errors;

use journal::{Epoch, Handle, Stageable};
use ondisk::fast_commit;
use ondisk::inode::Inode;
use ondisk::{FileType, FsBlock, Generation, Ino};
use sync::atomic::{Ordering, fence};
use sync::{Arc, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::data::DataInMemory;
pub(crate) use self::exclusive::Exclusive;
use self::life::InodeLife;
use self::names::NamesInMemory;
use self::place::TablePlace;
use self::record::LiveRecord;
use self::times::TimesInMemory;
use self::write_errors::WriteErrors;
use crate::blocks::OpenVolume;
use crate::inode::in_place::InPlace;
use crate::inode::loaded::LoadedInode;
use crate::inode::logging::Logging;
use crate::space::ialloc::OfInode;
use crate::space::mballoc::OfFile;
use crate::space::orphan::{Chained, OrphanPlace};

/// An inode in memory, of a volume that is written to. Each group of fields that belong together has a room of its own.
pub(crate) struct LiveInode {
    place: TablePlace,
    /// Protects names, map and attributes; see the module. [inode, keyed by number]
    lock: RwLock<()>,
    /// Keeps the file's blocks while data are read; see the module. [inode data]
    data_lock: RwLock<()>,
    record: LiveRecord,
    pub(crate) life: InodeLife,
    pub(crate) names: NamesInMemory,
    pub(crate) data: DataInMemory,
    pub(crate) times: TimesInMemory,
    pub(crate) write_errors: WriteErrors,
    /// Blocks that the file will need as it grows.
    kept: OfFile,
    /// Its state for the fsync log, if the journal has an area for fast commits.
    logging: Option<Logging>,
    /// What inode allocation keeps with it.
    of_ialloc: OfInode,
}

/// The inode's lock, shared.
pub(crate) struct SharedInode<'a> {
    _lock: RwLockReadGuard<'a, ()>,
}

impl Stageable for LiveInode {
    fn block(&self) -> FsBlock {
        self.place.block
    }

    fn is_whole_block(&self) -> bool {
        false
    }

    fn stage(&self, sealed: Epoch, image: &mut [u8]) {
        let slot = self.record.slot.take_sealed(sealed);
        self.place.encode(&slot, image);
    }
}

impl LiveInode {
    /// Writes the record as it is now into its place: for a mistake made on purpose only.
    pub(crate) fn stage_live(&self, image: &mut [u8]) {
        let slot = self.record.slot.read(Arc::clone);
        self.place.encode(&slot, image);
    }
}

impl Chained for LiveInode {
    fn ino(&self) -> Ino {
        self.place.ino
    }

    fn place(&self) -> &OrphanPlace {
        &self.life.orphan
    }

    fn set_next(self: Arc<LiveInode>, handle: &Handle<'_>, next: Ino) {
        handle.change(
            &self,
            |inode| &inode.record.slot,
            |slot| {
                let slot = Arc::make_mut(slot).bytes_mut();
                // As in `Exclusive::change`.
                let mut inode = Inode::parse(slot).expect("a live inode parses");
                inode.set_dtime(next.0);
                inode.write_to(slot);
                self.record.replace_latest(&self.place, &inode, slot, true);
            },
        );
        self.set_unloggable(handle);
    }
}

/// What a fast commit's record of a new inode finds in its place on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WasInPlace {
    /// Nothing that lasts.
    Nothing,
    /// A map or attributes, which Linux and e2fsck leave there.
    Lasting,
    /// It has not been checked.
    Unseen,
}

impl LiveInode {
    /// The inode that was loaded from this place.
    pub(crate) fn new(
        volume: &OpenVolume,
        place: (FsBlock, usize),
        loaded: &LoadedInode,
    ) -> LiveInode {
        let geometry = volume.geometry();
        let has_fast_log = volume.writing().is_ok_and(|writing| writing.has_fast_log());
        let key = u64::from(loaded.ino().0);
        LiveInode {
            place: TablePlace {
                ino: loaded.ino(),
                block: place.0,
                at: place.1,
                slot_bytes: loaded.slot().len(),
                csum_seed: geometry.csum_seed(),
                has_checksum: geometry.has_metadata_csum(),
            },
            lock: RwLock::keyed(Rank::Inode, key, ()),
            data_lock: RwLock::keyed(Rank::InodeData, key, ()),
            record: LiveRecord::new(loaded),
            life: InodeLife::new(),
            names: NamesInMemory::new(),
            data: DataInMemory::new(),
            times: TimesInMemory::new(),
            write_errors: WriteErrors::new(),
            kept: OfFile::new(),
            logging: has_fast_log.then(Logging::new),
            of_ialloc: OfInode::new(),
        }
    }

    /// How large the file is, as a hint: others may change it.
    #[inline]
    pub(crate) fn bytes_hint(&self) -> u64 {
        self.record.bytes_hint()
    }

    /// What fast commits keep of the inode.
    pub(crate) fn logging(&self) -> Option<&Logging> {
        self.logging.as_ref()
    }

    /// Records that the inode was made under this handle. The caller has its lock. All of a file without attributes is
    /// in its record, unless a replay would leave something of what was in its place before.
    pub(crate) fn set_made(&self, handle: &Handle<'_>, file_type: FileType, place: WasInPlace) {
        self.life.set_born(handle.epoch());
        let logging = self.logging.as_ref();
        let is_loggable = file_type == FileType::Regular && place != WasInPlace::Lasting;
        if let Some(logging) = logging.filter(|_| is_loggable) {
            logging.set_loggable();
            logging.set_place_unseen(place == WasInPlace::Unseen);
        }
    }

    /// What was in the place of an inode that has just got its number, before its record is changed; `extra_size` of
    /// the record to come. The caller has its lock.
    pub(crate) fn was_in_place(&self, extra_size: u16) -> WasInPlace {
        if self.logging.is_none() {
            return WasInPlace::Nothing;
        }
        self.record.slot.read(|slot| {
            if slot.iter().all(|byte| *byte == 0) {
                return WasInPlace::Unseen;
            }
            if fast_commit::is_replaced_by_record(slot, extra_size.into()) {
                WasInPlace::Nothing
            } else {
                WasInPlace::Lasting
            }
        })
    }

    /// Something changes under this handle that no fast commit can tell.
    pub(crate) fn set_unloggable(&self, handle: &Handle<'_>) {
        if let Some(logging) = &self.logging {
            logging.set_unloggable(handle.epoch());
            logging.note();
            logging.note_data();
        }
    }

    /// The inode's number.
    pub(crate) fn ino(&self) -> Ino {
        self.place.ino
    }

    /// The blocks that are kept for the file.
    pub(crate) fn kept(&self) -> &OfFile {
        &self.kept
    }

    /// What inode allocation keeps with it.
    pub(crate) fn of_ialloc(&self) -> &OfInode {
        &self.of_ialloc
    }

    /// The block of the inode table that holds the inode.
    pub(crate) fn table_block(&self) -> FsBlock {
        self.place.block
    }

    /// The same, and the byte in it where the inode is.
    pub(crate) fn table_place(&self) -> (FsBlock, usize) {
        (self.place.block, self.place.at)
    }

    /// The last epoch that may have changed the inode.
    pub(crate) fn stamp(&self) -> Epoch {
        self.record.slot.stamp()
    }

    /// The handle changes what it takes to read the data.
    pub(crate) fn stamp_data(&self, handle: &Handle<'_>) {
        self.data.set_stamp(handle.epoch());
        self.logging.iter().for_each(Logging::note_data);
    }

    /// Whether nothing would be lost if the inode, which no other thread has, left memory: no block is kept for it, it
    /// has no entry among the orphans, its last change is in an epoch up to `committed`, and its data are durable up to
    /// the end of `flushed`.
    pub(crate) fn may_go(&self, committed: Epoch, flushed: Epoch) -> bool {
        self.stamp() <= committed
            && self.data.overwritten() <= flushed
            && !self.life.is_orphan()
            && self.kept.is_empty()
            && self.write_errors.are_reported()
    }

    /// Whether the inode may be the one that a handle with this generation refers to, as far as that can be seen
    /// without its lock, whatever is being done with it. False while it is being made, because its record is blank
    /// until then.
    pub(crate) fn may_be(&self, generation: Generation) -> bool {
        let Some((inode, _)) = self.record.copy() else {
            return true;
        };
        inode.mode() != 0 && inode.generation() == generation
    }

    /// The record as it is now, for a caller to see, without a lock; `None` if another thread is in the way or the
    /// record is not whole.
    pub(crate) fn record(&self) -> Option<Inode> {
        let (inode, _) = self.record.copy()?;
        self.times.set_seen();
        (!self.times.has_lazy_atime()).then_some(inode)
    }

    /// The inode as it is now, without a lock: if there is nothing but its record, and no thread is in the way.
    pub(crate) fn copy(&self) -> Option<LoadedInode> {
        let (inode, rest) = self.record.copy()?;
        let is_all = !rest.has_more && !self.times.has_lazy_atime();
        let place = &self.place;
        is_all.then(|| LoadedInode::of_record(place.ino, inode, rest.seed, place.slot_bytes))
    }

    /// The inode as it is now.
    pub(crate) fn snapshot(&self) -> LoadedInode {
        if let Some(inode) = self.copy() {
            return inode;
        }
        let slot = self.record.slot.read(Arc::clone);
        let loaded = LoadedInode::of_slot(self.place.ino, self.place.csum_seed, slot);
        match self.times.lazy_atime() {
            Some(atime) => loaded.with_atime(atime),
            None => loaded,
        }
    }

    /// Whether the record counts no links. No other thread has the inode.
    pub(super) fn is_nameless(&self) -> bool {
        self.record.is_nameless()
    }

    /// Whether the inode still has a holder after its last name was removed. If it has, its last holder will see that
    /// it has no names.
    pub(crate) fn is_held_still(&self) -> bool {
        // SeqCst: pairs with the fence in `is_released_for_good`. If this fence comes first, a release that our load
        // does not see comes after it, and the releasing thread sees that the names are gone. If that fence comes
        // first, our load sees the release.
        fence(Ordering::SeqCst);
        self.life.is_held()
    }

    /// Whether the inode has no names, after its last holder released it.
    pub(crate) fn is_released_for_good(&self) -> bool {
        // SeqCst: pairs with the fence in `is_held_still`. If this fence comes first, that thread sees the release; if
        // that one does, the record that is read here has no names.
        fence(Ordering::SeqCst);
        self.snapshot().links_count() == 0
    }

    /// Where the file was overwritten last, if that is known, and true as long as the lock is held.
    pub(crate) fn in_place(&self, _still: &SharedInode<'_>) -> Option<InPlace> {
        self.data.in_place.get()
    }

    /// Keeps where the file is overwritten, until it changes.
    pub(crate) fn set_in_place(&self, _still: &SharedInode<'_>, place: &InPlace) {
        self.data.in_place.set(place);
    }

    /// As [`LiveInode::read_lock`], if no other thread changes the inode.
    pub(crate) fn try_read_lock(&self) -> Option<SharedInode<'_>> {
        let _lock = self.lock.try_read()?;
        Some(SharedInode { _lock })
    }

    /// Waits until no other thread changes the inode; others may read it too.
    #[track_caller]
    pub(crate) fn read_lock(&self) -> SharedInode<'_> {
        SharedInode {
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

    /// Keeps the file's blocks where they are: for reads of its data.
    #[track_caller]
    pub(crate) fn data_lock(&self) -> RwLockReadGuard<'_, ()> {
        self.data_lock.read()
    }

    /// Waits until no read of the file's data is under way: for what takes blocks away. The caller has the inode's lock
    /// exclusively, so that no write in place is under way either.
    #[track_caller]
    pub(crate) fn data_lock_exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.data_lock.write()
    }
}
