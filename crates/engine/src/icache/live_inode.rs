//! An inode that may change: its record as it is now, the images of sealed epochs, and its locks.
//!
//! `lock` ([`Rank::Inode`], keyed by number) protects names, map and attributes: shared to read what must agree,
//! exclusive to change, which also needs a handle. Writes of data in place hold it shared. `data` ([`Rank::InodeData`])
//! is held shared by reads of the file's data, and exclusively, besides `lock`, by what takes blocks away. The record
//! itself is read by snapshot at any time.
//!
//! What a crash leaves: the record as it was at the end of a committed epoch.

mod exclusive;
mod holders;
mod words;

use buffer::{Block, Tag};
use journal::{Epoch, Handle, Object, Stageable};
use ondisk::inode::{self, Inode, RECORD_WORDS};
use ondisk::{FileType, FsBlock, Generation, Ino, Timestamp};
use sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sync::{
    Arc, Guarded, Hint, Latest, Mutex, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, Stamp,
    Statistic,
};

pub(crate) use self::exclusive::Exclusive;
use self::words::{Rest, WORDS, split, words, words_with};
use crate::ialloc::OfInode;
use crate::icache::LoadedInode;
use crate::icache::in_place::{InPlace, LastInPlace};
use crate::icache::known_names::{KnownNames, Parts};
use crate::icache::logging::Logging;
use crate::mballoc::OfFile;
use crate::orphan::{Chained, Noted, OrphanPlace};
use crate::sb::OpenVolume;

/// An inode in memory, of a volume that is written to.
pub(crate) struct LiveInode {
    ino: Ino,
    /// The block of the inode table, and the record's first byte in it. [const]
    place: (FsBlock, usize),
    /// The file system's checksum seed, where inodes have checksums. [const]
    csum_seed: u32,
    has_checksum: bool,
    /// Bytes of the slot. [const]
    slot_bytes: usize,
    lock: RwLock<()>,
    data: RwLock<()>,
    /// Blocks that the file will need as it grows.
    kept: OfFile,
    /// Counts the beginnings and ends of changes of a directory's names: odd while one is under way. [lock,
    /// exclusive; atomic: SeqCst]
    names: AtomicU64,
    /// What was looked up in the directory.
    known_names: KnownNames,
    /// How many hold the inode, so that it stays without names. [atomic: SeqCst; from 0 up: lock, shared]
    holders: AtomicU32,
    /// Whether it was made without a name, and may get its first. [lock]
    linkable: Guarded<bool>,
    /// Where it is noted down among the orphans. [lock, exclusive]
    orphan: OrphanPlace,
    /// The epoch in which the inode was made; 0 if that was before it came into memory. [lock]
    born: Guarded<u64>,
    /// A time of access that is not in the record yet (`lazytime`). [leaf]
    lazy_atime: Mutex<Option<Timestamp>>,
    /// Whether there is one. [atomic: written under `lazy_atime`]
    has_lazy_atime: AtomicBool,
    /// Whether the record counts no links. [lock, exclusive; read: any time, a hint while others have the inode]
    is_nameless: Guarded<bool>,
    /// The last epoch that changed what it takes to read the data. [atomic: Release, Acquire]
    data_stamp: Stamp,
    /// The epoch that ran after data were last written in place. [atomic: Release, Acquire]
    overwritten: Stamp,
    /// The size as the record has it. [stage latch; read: any time, a hint]
    bytes: Hint<u64>,
    /// Where the file was overwritten last. [lock]
    in_place: LastInPlace,
    /// Whether someone saw the times since a write in place set them. [cleared under lock, exclusive]
    times_seen: Hint<bool>,
    /// How many write-outs failed behind their callers' backs.
    lost: Statistic<u32>,
    /// Of those, how many there were when someone was last told.
    told: Hint<u32>,
    /// What fast commits keep of it, where there are any.
    logging: Option<Logging>,
    /// What inode allocation keeps with it.
    of_ialloc: OfInode,
    /// The record. [lock, exclusive; read: any time, by snapshot]
    slot: Object<Arc<Block>>,
    /// The record once more, to be copied without the latch. [stage latch; read: any time]
    latest: Latest<WORDS>,
}

/// The inode's lock, shared.
pub(crate) struct SharedInode<'a> {
    _lock: RwLockReadGuard<'a, ()>,
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

    fn place(&self) -> &OrphanPlace {
        &self.orphan
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
                self.replace_latest(&inode, slot, true);
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
    /// Nobody has looked.
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
        let slot = Block::new(Tag(0), loaded.slot().into());
        let latest = words(loaded, &slot, loaded.seed());
        let has_fast_log = volume.writing().is_ok_and(|writing| writing.fast.is_some());
        LiveInode {
            ino: loaded.ino(),
            place,
            csum_seed: geometry.csum_seed(),
            has_checksum: geometry.has_metadata_csum(),
            slot_bytes: slot.len(),
            lock: RwLock::keyed(Rank::Inode, u64::from(loaded.ino().0), ()),
            data: RwLock::keyed(Rank::InodeData, u64::from(loaded.ino().0), ()),
            kept: OfFile::new(),
            names: AtomicU64::new(0),
            known_names: KnownNames::new(),
            holders: AtomicU32::new(0),
            linkable: Guarded::new(false),
            orphan: OrphanPlace::default(),
            born: Guarded::new(0),
            lazy_atime: Mutex::new(Rank::Leaf, None),
            has_lazy_atime: AtomicBool::new(false),
            is_nameless: Guarded::new(loaded.links_count() == 0),
            data_stamp: Stamp::new(0),
            overwritten: Stamp::new(0),
            bytes: Hint::new(loaded.size(true)),
            in_place: LastInPlace::new(),
            times_seen: Hint::new(true),
            lost: Statistic::new(0),
            told: Hint::new(0),
            logging: has_fast_log.then(Logging::new),
            of_ialloc: OfInode::new(),
            slot: Object::new(Arc::new(slot)),
            latest: Latest::new(latest),
        }
    }

    /// The slot changed, if `only_record` says so in the record alone, and not in its generation. The record is this
    /// one now. Under the latch that serialises that.
    fn replace_latest(&self, inode: &Inode, slot: &[u8], only_record: bool) {
        debug_assert!(Inode::parse(slot).is_ok_and(|there| there.words() == inode.words()));
        let words = match only_record {
            true => words_with(inode, Rest::of_word(self.latest.word(RECORD_WORDS))),
            false => {
                let seed = inode::checksum_seed(self.csum_seed, self.ino, inode.generation());
                words(inode, slot, seed)
            }
        };
        self.latest.replace(&words);
        self.bytes.set(inode.size(true));
    }

    /// How large the file is, as a hint: others may change it.
    #[inline]
    pub(crate) fn bytes_hint(&self) -> u64 {
        self.bytes.get()
    }

    /// What fast commits keep of the inode.
    pub(crate) fn logging(&self) -> Option<&Logging> {
        self.logging.as_ref()
    }

    /// The inode was made under this handle, as its record says. The caller has its lock. All of a file without
    /// attributes is in its record, unless a replay would leave something of what was in its place before.
    pub(crate) fn set_made(&self, handle: &Handle<'_>, file_type: FileType, place: WasInPlace) {
        self.set_born(handle.epoch());
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
        self.slot.read(|slot| {
            if slot.iter().all(|byte| *byte == 0) {
                return WasInPlace::Unseen;
            }
            match inode::is_replaced_by_record(slot, extra_size.into()) {
                true => WasInPlace::Nothing,
                false => WasInPlace::Lasting,
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
        self.ino
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
        self.place.0
    }

    /// The same, and the byte in it where the inode is.
    pub(crate) fn table_place(&self) -> (FsBlock, usize) {
        self.place
    }

    /// The last epoch that may have changed the inode.
    pub(crate) fn stamp(&self) -> Epoch {
        self.slot.stamp()
    }

    /// The last epoch that changed what it takes to read the data: size or map.
    pub(crate) fn data_stamp(&self) -> Epoch {
        Epoch(self.data_stamp.get())
    }

    /// The handle changes what it takes to read the data.
    pub(crate) fn stamp_data(&self, handle: &Handle<'_>) {
        self.data_stamp.set(handle.epoch().0);
        self.logging.iter().for_each(Logging::note_data);
    }

    /// Data were written in place, and `running` was the epoch after that. Before the write returns to its caller.
    pub(crate) fn set_overwritten(&self, running: Epoch) {
        self.overwritten.raise(running.0);
    }

    /// What [`LiveInode::set_overwritten`] said last; 0 if it never did.
    pub(crate) fn overwritten(&self) -> Epoch {
        Epoch(self.overwritten.get())
    }

    /// A write-out failed behind the caller's back.
    pub(crate) fn set_lost(&self) {
        self.lost.add(1);
    }

    /// How many failed write-outs someone was told of: what who opens the file now counts as told.
    pub(crate) fn told(&self) -> u32 {
        self.told.get()
    }

    /// Whether a write-out failed that who counts so many as told was not told of; the count is brought up to date.
    pub(crate) fn tell_lost(&self, seen: &mut u32) -> bool {
        let now = self.lost.get();
        if now == *seen {
            return false;
        }
        *seen = now;
        // Of two handles that are told at once either count will do: at worst the other one is told again.
        self.told.set(now);
        true
    }

    /// Whether the inode has an entry among the orphans. The caller has its lock, or nobody else has the inode.
    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan.get() != Noted::Nowhere
    }

    /// Whether nothing would be forgotten with the inode, which nobody else has: no block is kept for it, it has no
    /// entry among the orphans, its last change is in an epoch up to `committed`, and its data are durable up to the
    /// end of `flushed`.
    pub(crate) fn may_go(&self, committed: Epoch, flushed: Epoch) -> bool {
        self.stamp() <= committed
            && self.overwritten() <= flushed
            && !self.is_orphan()
            && self.kept.is_empty()
            && self.lost.get() == self.told()
    }

    /// Says whether the inode, without names, may get one. The caller has its lock.
    pub(crate) fn set_linkable(&self, linkable: bool) {
        self.linkable.set(linkable);
    }

    /// What [`LiveInode::set_linkable`] said last.
    pub(crate) fn is_linkable(&self) -> bool {
        self.linkable.get()
    }

    /// Whether the inode may be the one that a handle with this generation means, as far as can be seen without its
    /// lock, whatever is being done with it. No while it is being made, for its record is blank till then.
    pub(crate) fn may_be(&self, generation: Generation) -> bool {
        let Some(words) = self.latest.copy() else {
            return true;
        };
        let (inode, _) = split(&words);
        inode.mode() != 0 && inode.generation() == generation
    }

    /// Says that the inode is made in this epoch. The caller has its lock.
    pub(crate) fn set_born(&self, epoch: Epoch) {
        self.born.set(epoch.0);
    }

    /// Whether the inode was made in this epoch, so that no commit has it if that is not committed.
    pub(crate) fn is_born_in(&self, epoch: Epoch) -> bool {
        self.born.get() == epoch.0
    }

    /// How often changes of the directory's names began and ended; odd while one is under way. What was read without
    /// a lock agrees if this was even before and is the same after.
    pub(crate) fn names_version(&self) -> u64 {
        // SeqCst: before and after the reads it guards; pairs with the adds in `change_names`.
        self.names.load(Ordering::SeqCst)
    }

    /// What a name of the directory stands for, if that is known.
    pub(super) fn known_name(&self, name: &[u8]) -> Option<Ino> {
        // At an odd version, while a change is under way, no name is known.
        self.known_names.find(self.names_version(), name)
    }

    /// A name stands for this inode at this version of the directory's names.
    pub(super) fn know_name(
        &self,
        version: u64,
        (name, ino): (&[u8], Ino),
        blocks: u64,
        all: &Parts,
    ) {
        self.known_names.add(version, name, ino, blocks, all);
    }

    /// Whether someone saw the times since [`LiveInode::set_times_unseen`].
    pub(crate) fn are_times_seen(&self) -> bool {
        self.times_seen.get()
    }

    /// Times are set that nobody has seen. Before the record changes; the caller has the inode's lock.
    pub(crate) fn set_times_unseen(&self) {
        // A thread that sees the new record sees this too, because the record's words order it, and sets it again
        // behind it.
        self.times_seen.set(false);
    }

    /// The times were seen, or set by hand: the next write sets them anew. After the record was read.
    pub(crate) fn set_times_seen(&self) {
        self.times_seen.set_if_new(true);
    }

    /// The record as it is now, for someone to see, without a lock, if no thread is in the way and all of it is there.
    pub(crate) fn record(&self) -> Option<Inode> {
        let words = self.latest.copy()?;
        self.set_times_seen();
        (!self.has_lazy_atime()).then(|| split(&words).0)
    }

    /// The inode as it is now, without a lock: if there is nothing but its record, and no thread is in the way.
    pub(crate) fn copy(&self) -> Option<LoadedInode> {
        let words = self.latest.copy()?;
        let (inode, rest) = split(&words);
        let is_all = !rest.has_more && !self.has_lazy_atime();
        is_all.then(|| LoadedInode::of_record(self.ino, inode, rest.seed, self.slot_bytes))
    }

    /// The inode as it is now.
    pub(crate) fn snapshot(&self) -> LoadedInode {
        if let Some(inode) = self.copy() {
            return inode;
        }
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

    /// Where the file was overwritten last, if that is known, and true as long as the lock is held.
    pub(crate) fn in_place(&self, _still: &SharedInode<'_>) -> Option<InPlace> {
        self.in_place.get()
    }

    /// Keeps where the file is overwritten, until it changes.
    pub(crate) fn set_in_place(&self, _still: &SharedInode<'_>, place: &InPlace) {
        self.in_place.set(place);
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
        self.data.read()
    }

    /// Waits until no read of the file's data is under way: for what takes blocks away. The caller has the inode's lock
    /// exclusively, so that no write in place is under way either.
    #[track_caller]
    pub(crate) fn data_lock_exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.data.write()
    }
}
