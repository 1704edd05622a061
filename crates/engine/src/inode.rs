//! Inodes: found in their group's table, verified, and kept: on a read-only volume as views of the table's cached
//! blocks, on one that is written to as [`LiveInode`]s.
//!
//! Code that reads works on a [`LoadedInode`], a snapshot that does not change under it.

use buffer::{Block, Tag};
use journal::{Folded, Handle, JournalError};
use ondisk::fast_commit;
use ondisk::inode::{self, Inode};
use ondisk::{Corrupt, Feature, FsBlock, Generation, Ino, Site};
use sync::clock::Duration;
use sync::{Arc, Lanes, Mutex, Rank};

use crate::blocks::{Kind, OpenVolume, Writing};
use crate::core::Error;
use crate::core::variants::{DirReserve, OrphanForm, VariantError, Variants};
use crate::space::group::{DescriptorInodes, Groups};
use crate::space::ialloc::Ialloc;
use crate::space::mballoc::{Goals, Preallocations};
use crate::space::orphan::{Doomed, Orphans};

mod absent;
mod changes;
mod in_place;
mod known_names;
mod live_inode;
mod loaded;
mod logging;
mod preallocated;
mod table;

pub(crate) use changes::{
    Batch, BlockRanges, Changes, EpochChanges, NAMES_MAX, NamePlace, Placed, UnloggedNames,
};
pub(crate) use in_place::InPlace;
use live_inode::SharedInode;
pub(crate) use live_inode::{Exclusive, LiveInode};
pub(crate) use loaded::LoadedInode;
use table::{InodesInMemory, LookOutcome, Stale};

/// How often a thread that adds an inode lets readers run and looks again, if far too many inodes are in memory.
const TRIES_TO_TRIM: usize = 64;
/// How long it waits for them in each round of the second half: 10 ms in all.
const READERS_TURN: Duration = Duration::from_micros(320);

/// Everything that inodes are loaded with. Shared by all threads; constant except for what is cached.
pub(crate) struct MountedFs {
    volume: OpenVolume,
    groups: Groups,
    /// Only used on a volume that is written to.
    inodes: InodesInMemory,
    /// Only used on a volume that is written to.
    orphans: Orphans,
    /// Inodes with a time of access that waits for a change, on the list of the thread that read them. [leaf, of that
    /// thread's list]
    lazy: Lanes<Lazy>,
    /// Only used on a volume that is written to.
    doomed: Doomed,
    /// Only used on a volume that is written to.
    goals: Goals,
    /// Only used on a volume that is written to.
    preallocations: Preallocations,
    ialloc: Box<Ialloc>,
    /// What changed since the last full commit; `None` if the journal has no area for fast commits. [const]
    changes: Option<Box<Changes>>,
    /// Memory of names that are known.
    known_names: known_names::Parts,
    /// The form of each mechanism that the options chose. Each mechanism also has a copy of its own form. [forms]
    variants: Mutex<Variants>,
}

/// A thread's list of inodes with a time of access that waits: others take it only to write all of them. [leaf]
struct Lazy(Mutex<Vec<Arc<LiveInode>>>);

impl Default for Lazy {
    fn default() -> Lazy {
        Lazy(Mutex::new(Rank::Leaf, Vec::new()))
    }
}

impl MountedFs {
    /// The inodes of a volume that is not written to; reads nothing.
    pub(crate) fn new(volume: OpenVolume) -> MountedFs {
        let orphans = Orphans::new(volume.geometry(), None, OrphanForm::default());
        MountedFs::with(volume, &[], orphans, 0, Variants::default())
    }

    /// The inodes of any volume; reads nothing. `said`: what each descriptor records, on a volume that is written to;
    /// `most`: about how many inodes are kept in memory.
    pub(crate) fn with(
        volume: OpenVolume,
        said: &[DescriptorInodes],
        orphans: Orphans,
        most: usize,
        variants: Variants,
    ) -> MountedFs {
        let groups = Groups::new(&volume, said, &variants);
        let goals = Goals::new(variants.stream_goal, volume.geometry());
        let has_fast_log = (volume.writing()).is_ok_and(|writing| writing.has_fast_log());
        MountedFs {
            changes: has_fast_log.then(|| Box::new(Changes::new())),
            volume,
            groups,
            inodes: InodesInMemory::new(most, variants.inode_lookup),
            orphans,
            lazy: Lanes::new(),
            doomed: Doomed::new(),
            goals,
            preallocations: Preallocations::new(variants.prealloc),
            ialloc: Box::new(Ialloc::new(variants.dir_ireserve)),
            known_names: known_names::Parts::default(),
            variants: Mutex::new(Rank::Forms, variants),
        }
    }

    /// Which form of each mechanism is used.
    pub(crate) fn variants(&self) -> Variants {
        *self.variants.lock()
    }

    /// Uses another form of a mechanism from now on, `name=value`, whatever is under way. `also` switches the
    /// mechanisms that are kept elsewhere, under the same lock, so that two threads that choose at once leave all
    /// mechanisms in one form.
    pub(crate) fn choose_with(
        &self,
        option: &str,
        also: impl FnOnce(&Variants),
    ) -> Result<(), VariantError> {
        let mut variants = self.variants.lock();
        variants.set(option)?;
        self.orphans.choose(variants.orphan);
        self.goals.choose(variants.stream_goal);
        self.preallocations.choose(variants.prealloc);
        self.groups.choose(&variants);
        self.inodes.choose(variants.inode_lookup);
        self.ialloc.choose(variants.dir_ireserve);
        also(&variants);
        let form = variants.dir_ireserve;
        drop(variants);
        if form == DirReserve::Off {
            self.ialloc.draw_back(&self.groups);
        }
        if !self.preallocations.is_on() {
            self.give_back_all();
        }
        Ok(())
    }

    /// What changed since the last full commit, on a volume whose journal has an area for fast commits.
    pub(crate) fn changes(&self) -> Option<&Changes> {
        self.changes.as_deref()
    }

    /// A name stands for something else from this handle on. The caller has the locks of both inodes and the directory.
    pub(crate) fn note_name(
        &self,
        handle: &Handle<'_>,
        place: (Ino, &[u8]),
        before: Option<Ino>,
        now: Option<Ino>,
    ) {
        if let Some(changes) = self.changes() {
            changes.note_name(handle, place, before, now);
        }
    }

    /// Remembers an inode with a time of access that waits for a change; returns how many the calling thread
    /// remembered.
    pub(crate) fn add_lazy(&self, inode: Arc<LiveInode>) -> usize {
        let mut lazy = self.lazy.mine().0.lock();
        lazy.push(inode);
        lazy.len()
    }

    /// The inodes that any thread remembered; no more are then.
    pub(crate) fn take_lazy(&self) -> Vec<Arc<LiveInode>> {
        let lanes = self.lazy.iter();
        lanes
            .flat_map(|lane| std::mem::take(&mut *lane.0.lock()))
            .collect()
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &OpenVolume {
        &self.volume
    }

    /// The orphans.
    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// Where the first blocks of large files go.
    pub(crate) fn goals(&self) -> &Goals {
        &self.goals
    }

    /// The inodes in memory.
    pub(crate) fn inodes(&self) -> &InodesInMemory {
        &self.inodes
    }

    /// Which numbers new inodes get.
    pub(crate) fn ialloc(&self) -> &Ialloc {
        &self.ialloc
    }

    /// The inodes that wait to be deleted.
    pub(crate) fn doomed(&self) -> &Doomed {
        &self.doomed
    }

    /// The groups.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// An inode as it is now, in use or not, its checksum verified when it was read.
    pub(crate) fn load(&self, ino: Ino) -> Result<LoadedInode, Error> {
        if !self.volume.is_writable() {
            return self.load_from_table(ino);
        }
        // Mostly it is in memory, and the copy takes no lock and no count.
        match self.inodes.look(ino, LiveInode::copy) {
            Some(Some(inode)) => Ok(inode),
            Some(None) => Ok(self.get(ino)?.snapshot()),
            None => Ok(self.bring(ino)?.snapshot()),
        }
    }

    /// The record of an inode in use, copied without a lock and, once it is in memory, without a count; nothing where
    /// that can't be.
    ///
    /// # Errors
    /// As [`MountedFs::load_used`].
    pub(crate) fn record(&self, ino: Ino) -> Result<Option<Inode>, Error> {
        if !self.volume.is_writable() {
            return Ok(None);
        }
        let record = match self.inodes.look(ino, LiveInode::record) {
            Some(record) => record,
            None => self.bring(ino)?.record(),
        };
        if let Some(record) = &record {
            self.verify_used(ino, record)?;
        }
        Ok(record)
    }

    /// Someone sees the times of an inode.
    pub(crate) fn note_times_seen(&self, ino: Ino) {
        // The times of an inode that is not in memory were not set since.
        self.inodes.look(ino, |inode| inode.times.set_seen());
    }

    /// What a name stands for in a directory, if that was looked up often enough since its names changed last. Takes
    /// no lock and no count.
    pub(crate) fn known_name(&self, directory: Ino, name: &[u8]) -> Option<Ino> {
        let look = |directory: &LiveInode| directory.names.known(name);
        self.inodes.look(directory, look).flatten()
    }

    /// Records that a name stands for this inode at a version of the names of a directory of `blocks` blocks.
    pub(crate) fn know_name(
        &self,
        directory: &LiveInode,
        version: u64,
        name: (&[u8], Ino),
        blocks: u64,
    ) {
        directory
            .names
            .know(version, name, blocks, &self.known_names);
    }

    /// The live inode with this number, loaded if it is not in memory. May block on I/O.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` for a number that no inode has; `Corrupt`, `Io`.
    pub(crate) fn get(&self, ino: Ino) -> Result<Arc<LiveInode>, Error> {
        self.volume.writing()?;
        match self.inodes.find(ino) {
            Some(inode) => Ok(inode),
            None => self.bring(ino),
        }
    }

    /// Loads an inode that was not in memory a moment ago, and adds it.
    fn bring(&self, ino: Ino) -> Result<Arc<LiveInode>, Error> {
        loop {
            let version = Some(self.inodes.version(ino));
            let loaded = self.load_from_table(ino)?;
            let place = self.place(ino)?;
            let inode = LiveInode::new(&self.volume, place, &loaded);
            if let Ok(inode) = self.insert(inode, version) {
                return Ok(inode);
            }
        }
    }

    /// The live inode that a stored handle refers to: with this number and this generation. It may be in the middle of
    /// its deletion, which a caller sees only under its lock. May block on I/O; an inode of another generation is not
    /// put into memory.
    ///
    /// # Errors
    /// `Stale` if no inode has this number and generation, or it is being made; those of [`MountedFs::get`].
    pub(crate) fn get_by_handle(
        &self,
        ino: Ino,
        generation: Generation,
    ) -> Result<Arc<LiveInode>, Error> {
        loop {
            match self.inodes.find_by(ino, |inode| inode.may_be(generation)) {
                LookOutcome::Found(inode) => return Ok(inode),
                LookOutcome::Refused => return Err(Error::Stale),
                LookOutcome::Absent => {}
            }
            let version = self.inodes.version(ino);
            match self.load_from_table(ino) {
                Ok(inode) if inode.generation() == generation && inode.links_count() > 0 => {
                    self.get(ino)?;
                }
                // The inode may have been in memory, and have left it in between.
                Ok(_) if self.inodes.version(ino) != version => {}
                Ok(_) | Err(Error::NotFound) => return Err(Error::Stale),
                Err(error) => return Err(error),
            }
        }
    }

    /// The inode's lock, shared; counts a wait for the thread that makes or deletes the inode.
    #[track_caller]
    pub(crate) fn settled<'a>(&self, inode: &'a LiveInode) -> SharedInode<'a> {
        inode.try_read_lock().unwrap_or_else(|| {
            self.inodes.waited();
            inode.read_lock()
        })
    }

    /// The live inode of a number that was just taken: what its slot held before is not read. Its record is blank
    /// until the caller changes it under a handle.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` for a number that no inode has; `Corrupt`, `Io` from the group's descriptor.
    pub(crate) fn get_new(&self, ino: Ino) -> Result<Arc<LiveInode>, Error> {
        self.volume.writing()?;
        if let Some(inode) = self.inodes.find(ino) {
            return Ok(inode);
        }
        let place = self.place(ino)?;
        let geometry = self.volume.geometry();
        let slot = Block::new(Tag(0), vec![0; geometry.inode_size()].into_boxed_slice());
        let blank = LoadedInode::of_slot(ino, geometry.csum_seed(), Arc::new(slot));
        let blank = LiveInode::new(&self.volume, place, &blank);
        // Nothing was loaded that could be old. If another thread looked at the number in between, its instance is
        // returned.
        self.insert(blank, None).map_err(|Stale| Error::NotFound)
    }

    /// Encodes every inode in memory that shares a block of an inode table with one that is staged, as it is now: a
    /// mistake, because a later epoch's change does not belong to this one.
    pub(crate) fn encode_neighbours(&self, folded: &mut Folded<'_>) -> Result<(), JournalError> {
        let blocks: Vec<FsBlock> = folded.blocks().collect();
        for ino in self.inodes.numbers() {
            let Some(inode) = self.inodes.find(ino) else {
                continue;
            };
            if blocks.contains(&inode.table_block()) {
                inode.stage_live(folded.image(inode.table_block())?);
            }
        }
        Ok(())
    }

    /// Evicts inodes and blocks that are not in use and whose last change is committed, if too many are in memory. The
    /// table block of an inode that changed leaves the cache first, because it is older than what is committed.
    pub(crate) fn keep_bounds(&self) {
        let Ok(writing) = self.volume.writing() else {
            return;
        };
        writing.keep_bounds();
        self.keep_inodes_bounded(writing);
    }

    fn keep_inodes_bounded(&self, writing: &Writing) {
        let journal = &writing.journal;
        let (committed, flushed) = (journal.committed_epoch(), journal.flushed_epoch());
        let may_go = |inode: &LiveInode| {
            let may_go = inode.may_go(committed, flushed);
            if may_go && inode.stamp().0 > 0 {
                self.volume.cache().remove(inode.table_block().0);
            }
            may_go
        };
        for time in 0..TRIES_TO_TRIM {
            let is_behind =
                (self.inodes.excess()).is_some_and(|want| self.inodes.trim(want, &may_go));
            if !is_behind {
                return;
            }
            // Readers lost their cores to threads that add.
            if time < TRIES_TO_TRIM / 2 {
                sync::thread::yield_now()
            } else {
                sync::thread::sleep(READERS_TURN)
            }
        }
    }

    /// Releases an inode `times` times without loading it: it is not in memory, and so has names.
    pub(crate) fn release_absent(&self, ino: Ino, times: u32) -> bool {
        self.inodes.release_absent(ino, times)
    }

    /// [`table::InodesInMemory::insert`], within the bounds.
    fn insert(&self, inode: LiveInode, version: Option<u32>) -> Result<Arc<LiveInode>, Stale> {
        let (inode, is_time) = self.inodes.insert(Arc::new(inode), version);
        if is_time && let Ok(writing) = self.volume.writing() {
            self.keep_inodes_bounded(writing);
        }
        inode
    }

    /// The block of the inode table that holds an inode, and the byte in it.
    fn place(&self, ino: Ino) -> Result<(FsBlock, usize), Error> {
        let geometry = self.volume.geometry();
        let (group, index) = geometry.group_of_ino(ino).ok_or(Error::NotFound)?;
        let table = self.groups.inode_table(&self.volume, group)?;
        Ok(geometry.inode_place(table, index))
    }

    /// Whether a fast commit's record of a new inode leaves nothing of what was in its place. May read a block of the
    /// inode table.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn is_place_blank(&self, inode: &LiveInode, extra_size: u16) -> Result<bool, Error> {
        let (block, at) = inode.table_place();
        let bytes = (self.volume).read_block(block, Kind::InodeTable, Ino(0), |_| Ok(()))?;
        let slot = bytes.get(at..at + self.volume.geometry().inode_size());
        Ok(slot.is_some_and(|slot| fast_commit::is_replaced_by_record(slot, extra_size.into())))
    }

    fn load_from_table(&self, ino: Ino) -> Result<LoadedInode, Error> {
        let geometry = self.volume.geometry();
        let (block, at) = self.place(ino)?;
        let kind = Kind::InodeTable;
        let block = self.volume.read_block(block, kind, Ino(0), |_| Ok(()))?;
        let len = geometry.inode_size();
        // An inode lies within its block, as its size divides the block's.
        let slot = block.get(at..at + len).unwrap_or_default();
        let inode = Inode::parse(slot).map_err(|corrupt| corrupt.ino(ino))?;
        if geometry.has_metadata_csum() && !is_blank(slot) {
            inode::verify_checksum(slot, geometry.csum_seed(), ino)?;
        }
        let seed = inode::checksum_seed(geometry.csum_seed(), ino, inode.generation());
        Ok(LoadedInode::of_block(ino, inode, seed, (block, at, len)))
    }

    /// Loads an inode that something refers to; it must be in use.
    pub(crate) fn load_used(&self, ino: Ino) -> Result<LoadedInode, Error> {
        let inode = self.load(ino)?;
        self.verify_used(ino, &inode)?;
        Ok(inode)
    }

    /// A live inode as it is now; it must be in use.
    ///
    /// # Errors
    /// Those of [`MountedFs::load_used`], except I/O.
    pub(crate) fn used(&self, live: &LiveInode) -> Result<LoadedInode, Error> {
        let inode = live.snapshot();
        self.verify_used(live.ino(), &inode)?;
        Ok(inode)
    }

    fn verify_used(&self, ino: Ino, inode: &Inode) -> Result<(), Error> {
        if self.volume.is_writable() && inode.mode() == 0 && inode.links_count() == 0 {
            // Deleted while the caller held its number.
            return Err(Error::NotFound);
        }
        if inode.file_type().is_none() {
            return Err(Corrupt::at(Site::InodeType).ino(ino).into());
        }
        // Sizes are signed for system calls.
        if i64::try_from(inode.size(self.volume.has(Feature::LARGE_DIR))).is_err() {
            return Err(Corrupt::at(Site::FileSize).ino(ino).into());
        }
        Ok(())
    }
}

/// Whether a slot was never written: a lazily made inode table holds zeros, without checksums.
fn is_blank(slot: &[u8]) -> bool {
    let (words, rest) = slot.as_chunks::<8>();
    let bits = |bits, word: &[u8; 8]| bits | u64::from_ne_bytes(*word);
    words.iter().fold(0, bits) == 0 && rest.iter().all(|byte| *byte == 0)
}
