//! What changed since the last full commit, as far as fast commits are about it: names, blocks of files, and the log of
//! the running transaction.
//!
//! Handles of an epoch note what they change in that epoch's tables, in shards by inode ([`Rank::LogChanges`], held for
//! a look); the committer forgets an epoch's tables and ends its log before it writes the transaction. Nothing is kept
//! on file systems whose journal has no area for fast commits.
//!
//! What a crash leaves: whatever the log commits say; see [`logtree`].

mod budget;
mod room;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use hashbrown::HashMap;
use journal::canary::{self, Canary};
use journal::{Epoch, Handle, Journal};
use logtree::closure::{Changes, Members, NAMES_MAX, NamePlace};
use logtree::{Batch, FsyncLog, LogArea};
use ondisk::{Ino, Tid};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Arc, CachePadded, Counter, Lanes, Mutex, Rank, RwLock};

use self::budget::Budget;
pub(crate) use self::budget::Cost;
use self::room::Leaf;
pub(crate) use self::room::Placed;
use crate::variants::{Chosen, LogUpdate, LogUse, Variants};

const SHARDS: usize = 64;
/// Ranges of one file beyond which it is committed in full.
const RANGES_MAX: usize = 512;
/// Names that changed in an epoch, and inodes, beyond which nothing more of it is noted: then all commits are full.
const NOTED_MAX: u64 = 1 << 17;
/// What is written home for a log's sake costs two flushes: that is worth it if logs let fsyncs go so many times before
/// a full commit ends them, on the average of so many logs. Those let go together count once: a full commit would have
/// served them together as well. If they do not, so many full commits go without before the next trial, twice as many
/// after each trial that fails.
const WORTHWHILE: u64 = 16;
const TRIED: u64 = 4;
const DECLINED_FIRST: u64 = 64;
const DECLINED_MOST: u64 = 4096;

/// Ranges of a file's blocks, joined where they meet: from the first block to the one behind the last.
#[derive(Clone, Default, Debug)]
pub(crate) struct BlockRanges(BTreeMap<u64, u64>);

impl BlockRanges {
    fn add(&mut self, range: Range<u64>) {
        let (mut from, mut to) = (range.start, range.end);
        let met: Vec<(u64, u64)> = (self.0.range(..=to).rev())
            .take_while(|(_, end)| **end >= from)
            .map(|(first, end)| (*first, *end))
            .collect();
        for (first, end) in met {
            self.0.remove(&first);
            (from, to) = (from.min(first), to.max(end));
        }
        self.0.insert(from, to);
    }

    /// In order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(first, end)| *first..*end)
    }
}

/// What changed of an inode.
#[derive(Default)]
struct OfInode {
    /// Names that stood for it before or after a change, and that changed since the log had them with it last.
    names: BTreeSet<NamePlace>,
    /// Blocks that changed in the epoch.
    ranges: BlockRanges,
    /// Of these, the ones that changed since the inode was put into the log.
    since_log: BlockRanges,
    has_too_many: bool,
    /// Its map had an index before or after one of these changes: nobody knows what replays make of it.
    had_index: bool,
    /// The most bytes that it had before it was cut.
    largest: u64,
    is_in_log: bool,
}

/// What changed of a name.
struct OfName {
    /// What it stood for at the epoch's beginning.
    base: Option<Ino>,
    now: Option<Ino>,
    /// All that it stood for, before and after each change since the log had it last.
    inodes: BTreeSet<Ino>,
}

/// What changed of a directory's names.
#[derive(Default)]
struct OfDirectory {
    /// Those that the log does not have as they are.
    unlogged: BTreeSet<Box<[u8]>>,
    /// The last batch that has one of the others.
    logged: Option<Batch>,
    /// Blocks that changed.
    leaves: BTreeMap<u32, Leaf>,
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<Ino, OfInode>,
    names: BTreeMap<NamePlace, OfName>,
    directories: HashMap<Ino, OfDirectory>,
}

/// What is left to log of a directory's names.
pub(crate) enum UnloggedNames {
    /// These.
    Names(Vec<NamePlace>),
    /// Nothing once this batch of the log is on disk.
    Nothing(Batch),
    /// It can't be told: they are too many, or no name changed.
    Unknown,
}

/// What changed in one epoch.
pub(crate) struct EpochChanges {
    /// By inode's number, names by their directory's. [log changes]
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// How many names and inodes there are. [atomic: Relaxed, hint]
    noted: AtomicU64,
    /// What a replay of the epoch's log costs.
    budget: Budget,
}

impl EpochChanges {
    fn new() -> EpochChanges {
        let shard = || CachePadded::new(Mutex::new(Rank::LogChanges, Shard::default()));
        EpochChanges {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            noted: AtomicU64::new(0),
            budget: Budget::new(),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    fn note(&self) {
        // Relaxed: a bound; a few more do no harm.
        self.noted.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether something may have changed that was not noted.
    pub(crate) fn has_too_many(&self) -> bool {
        // Relaxed: as in `note`. Each thread sees its own.
        self.noted.load(Ordering::Relaxed) >= NOTED_MAX
    }

    fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
        // Relaxed: nobody notes anything in a sealed epoch.
        self.noted.store(0, Ordering::Relaxed);
        self.budget.renew();
    }

    /// Takes in what more records of the epoch's log cost a replay; whether they may be logged.
    pub(crate) fn spend(&self, more: Cost) -> bool {
        self.budget.spend(more)
    }

    /// Blocks of a file that changed in the epoch, and the most bytes that it had since the last full commit, beside
    /// those that it has.
    pub(crate) fn reach(&self, ino: Ino) -> (u64, u64) {
        let shard = self.shard(ino).lock();
        shard.inodes.get(&ino).map_or((0, 0), |changed| {
            let ranges = changed.ranges.iter();
            let blocks = ranges.map(|range| range.end - range.start).sum();
            (blocks, changed.largest)
        })
    }

    /// A name stands for something else.
    fn note_name(&self, place: NamePlace, before: Option<Ino>, now: Option<Ino>) {
        for ino in before.into_iter().chain(now) {
            let mut shard = self.shard(ino).lock();
            let inode = shard.inodes.entry(ino).or_default();
            inode.names.insert(place.clone());
        }
        let mut shard = self.shard(place.0).lock();
        let directory = shard.directories.entry(place.0).or_default();
        directory.unlogged.insert(place.1.clone());
        let name = match shard.names.entry(place) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.note();
                entry.insert(OfName {
                    base: before,
                    now,
                    inodes: BTreeSet::new(),
                })
            }
        };
        name.now = now;
        name.inodes.extend(before.into_iter().chain(now));
    }

    /// Names are put into a block of a directory, which holds `before` so far; whether a replay surely has room for
    /// all that were put there in this epoch.
    fn note_placed(&self, directory: Ino, placed: &Placed, before: &[u8]) -> bool {
        let mut shard = self.shard(directory).lock();
        let leaves = &mut shard.directories.entry(directory).or_default().leaves;
        let leaf = leaves
            .entry(placed.leaf)
            .or_insert_with(|| Leaf::of(before, placed.form));
        leaf.place(placed)
    }

    /// What a changed name stood for at first and stands for now.
    pub(crate) fn name(&self, place: &NamePlace) -> Option<(Option<Ino>, Option<Ino>)> {
        let shard = self.shard(place.0).lock();
        shard.names.get(place).map(|name| (name.base, name.now))
    }

    /// The names in a directory that the log does not have as they are.
    pub(crate) fn unlogged_in(&self, directory: Ino) -> UnloggedNames {
        let shard = self.shard(directory).lock();
        match shard.directories.get(&directory) {
            Some(names) if names.unlogged.len() > NAMES_MAX => UnloggedNames::Unknown,
            Some(names) if !names.unlogged.is_empty() => {
                let names = names.unlogged.iter();
                UnloggedNames::Names(names.map(|name| (directory, name.clone())).collect())
            }
            names => names
                .and_then(|names| names.logged)
                .map_or(UnloggedNames::Unknown, UnloggedNames::Nothing),
        }
    }

    /// Whether all that is left to log of a directory's names is among these.
    pub(crate) fn has_all_of(&self, directory: Ino, members: &Members) -> bool {
        match self.unlogged_in(directory) {
            UnloggedNames::Names(names) => names.iter().all(|name| members.names.contains(name)),
            UnloggedNames::Nothing(_) => true,
            UnloggedNames::Unknown => false,
        }
    }

    /// The name was put into the log as standing for this. If it does so no more, it is left to be logged: the caller
    /// has the locks of all that it stood for, but another may be given it meanwhile.
    pub(crate) fn set_name_in_log(&self, place: &NamePlace, logged: Option<Ino>, batch: Batch) {
        let mut shard = self.shard(place.0).lock();
        let Some(name) = shard.names.get_mut(place).filter(|name| name.now == logged) else {
            return;
        };
        // What stood for it before matters no more: the log has what became of it.
        name.inodes.clear();
        let names = shard.directories.entry(place.0).or_default();
        names.unlogged.remove(&place.1);
        names.logged = names.logged.max(Some(batch));
    }

    /// All changed names of an inode were put into the log. The caller has its lock.
    pub(crate) fn set_names_in_log(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        if let Some(changed) = shard.inodes.get_mut(&ino) {
            changed.names.clear();
        }
    }

    /// The blocks of a file that changed since it was put into the log last, or in the epoch if it is not there; and
    /// whether it is. `None` if there are too many, or its map had an index since the epoch began and did not stay
    /// as it was (F15, F22).
    pub(crate) fn ranges(&self, ino: Ino) -> Option<(BlockRanges, bool)> {
        let shard = self.shard(ino).lock();
        let Some(changed) = shard.inodes.get(&ino) else {
            return Some((BlockRanges::default(), false));
        };
        let ranges = match changed.is_in_log {
            true => &changed.since_log,
            false => &changed.ranges,
        };
        let is_told = !changed.has_too_many && !changed.had_index;
        is_told.then(|| (ranges.clone(), changed.is_in_log))
    }

    /// Whether the inode was put into the log.
    pub(crate) fn is_in_log(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        shard.inodes.get(&ino).is_some_and(|inode| inode.is_in_log)
    }

    /// The inode was put into the log as it is now. The caller has its lock.
    pub(crate) fn set_in_log(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        let changed = shard.inodes.entry(ino).or_default();
        changed.is_in_log = true;
        changed.since_log = BlockRanges::default();
    }
}

impl Changes for EpochChanges {
    fn names_of(&self, ino: Ino) -> Vec<NamePlace> {
        let shard = self.shard(ino).lock();
        let changed = shard.inodes.get(&ino);
        changed.map_or(Vec::new(), |changed| {
            changed.names.iter().cloned().collect()
        })
    }

    fn inodes_of(&self, place: &NamePlace) -> Vec<Ino> {
        let shard = self.shard(place.0).lock();
        let changed = shard.names.get(place);
        changed.map_or(Vec::new(), |name| name.inodes.iter().copied().collect())
    }
}

/// A log, with a count of its users that those of one thread share.
pub(crate) type RunningLog = Arc<CachePadded<Arc<FsyncLog>>>;

/// The running epoch's log as one thread knows it.
struct Mine(Mutex<Option<(Epoch, RunningLog)>>);

impl Default for Mine {
    fn default() -> Mine {
        Mine(Mutex::new(Rank::Leaf, None))
    }
}

/// What logs were worth lately.
#[derive(Default)]
struct Worth {
    logs: u64,
    syncs: u64,
    /// How many full commits went without after the last trial that failed; 0 after one that did not.
    declined: u64,
}

impl Worth {
    /// A log ended that let fsyncs go so many times; how many commits are to go without, if that is decided now.
    fn ended(&mut self, syncs: u64) -> Option<u64> {
        self.logs += 1;
        self.syncs += syncs;
        if self.logs < TRIED {
            return None;
        }
        self.declined = match self.syncs < WORTHWHILE * TRIED {
            true => (2 * self.declined).clamp(DECLINED_FIRST, DECLINED_MOST),
            false => 0,
        };
        (self.logs, self.syncs) = (0, 0);
        Some(self.declined)
    }
}

/// Fast commits of a file system.
pub(crate) struct FastLog {
    /// By the epoch's lowest bit.
    epochs: [EpochChanges; 2],
    /// The log of the running epoch, once someone needed one. [log running; read: shared]
    running: RwLock<Option<(Epoch, Arc<FsyncLog>)>>,
    /// The same for each thread that asked, so that to ask writes no line that others write. Filled with `running`
    /// shared; an ended log goes from here after it went from there, so none stays. [leaf]
    known: Lanes<Mine>,
    update: Chosen<LogUpdate>,
    when: Chosen<LogUse>,
    /// Touched when a log ends. [leaf]
    worth: Mutex<Worth>,
    /// So many full commits are still to go without the log where it must be made ready first.
    /// [atomic: Relaxed, hint]
    declined: AtomicU64,
    /// What `worth` says is of no use any more. [atomic: Relaxed, hint]
    forgets: AtomicBool,
    pub(crate) statistics: logtree::LogStatistics,
    /// Why fsyncs were full commits: the epoch was not the next one, something can't be logged, a replay of the log
    /// would take too long, the log would not have been worth it, or was full, or ended meanwhile. [counters]
    pub(crate) not_next: Counter,
    pub(crate) unloggable: Counter,
    pub(crate) replay_budget: Counter,
    not_worth: Counter,
    pub(crate) ended: Counter,
    /// What the trees of logs that ended counted. [counters]
    updates: Counter,
    inserts: Counter,
    parent_write_locks: Counter,
    splits: Counter,
}

impl FastLog {
    pub(crate) fn new(variants: &Variants) -> FastLog {
        FastLog {
            epochs: [EpochChanges::new(), EpochChanges::new()],
            running: RwLock::new(Rank::LogRunning, None),
            known: Lanes::new(),
            update: Chosen::new(variants.log_update),
            when: Chosen::new(variants.log_use),
            worth: Mutex::new(Rank::Leaf, Worth::default()),
            declined: AtomicU64::new(0),
            forgets: AtomicBool::new(false),
            statistics: logtree::LogStatistics::default(),
            not_next: Counter::new(),
            unloggable: Counter::new(),
            replay_budget: Counter::new(),
            not_worth: Counter::new(),
            ended: Counter::new(),
            updates: Counter::new(),
            inserts: Counter::new(),
            parent_write_locks: Counter::new(),
            splits: Counter::new(),
        }
    }

    /// From the next log on these forms are used. What `log_use=auto` has learnt is forgotten when it is chosen.
    pub(crate) fn choose(&self, variants: &Variants) {
        self.update.set(variants.log_update);
        if self.when.get() != variants.log_use {
            // Relaxed: hints; the first pairs with the swap in `end`.
            self.forgets.store(true, Ordering::Relaxed);
            // Relaxed: as above.
            self.declined.store(0, Ordering::Relaxed);
        }
        self.when.set(variants.log_use);
    }

    /// Whether an fsync that could begin a log should write home what was committed, without which there is none.
    pub(crate) fn is_worth_a_checkpoint(&self) -> bool {
        if self.when.get() == LogUse::Always {
            return true;
        }
        // Relaxed: a hint; pairs with the stores in `end`.
        if self.declined.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.not_worth.add(1);
        false
    }

    /// What changed in an epoch.
    pub(crate) fn changes(&self, epoch: Epoch) -> &EpochChanges {
        &self.epochs[(epoch.0 & 1) as usize]
    }

    /// A name stands for something else from this handle on.
    pub(crate) fn note_name(
        &self,
        handle: &Handle<'_>,
        place: (Ino, &[u8]),
        before: Option<Ino>,
        now: Option<Ino>,
    ) {
        let changes = self.changes(handle.epoch());
        if !changes.has_too_many() {
            changes.note_name((place.0, place.1.into()), before, now);
        }
    }

    /// Names are put into a block of a directory from this handle on, which holds `before` so far; whether a replay of
    /// fast commits surely has room for them. Before [`FastLog::note_name`].
    pub(crate) fn note_placed(
        &self,
        handle: &Handle<'_>,
        directory: Ino,
        placed: &Placed,
        before: &[u8],
    ) -> bool {
        let changes = self.changes(handle.epoch());
        changes.has_too_many() || changes.note_placed(directory, placed, before)
    }

    /// A file is cut from this handle on, which had so many bytes.
    pub(crate) fn note_cut(&self, handle: &Handle<'_>, ino: Ino, bytes: u64) {
        let changes = self.changes(handle.epoch());
        if changes.has_too_many() {
            return;
        }
        let mut shard = changes.shard(ino).lock();
        let changed = shard.inodes.entry(ino).or_insert_with(|| {
            changes.note();
            OfInode::default()
        });
        changed.largest = changed.largest.max(bytes);
    }

    /// Blocks of a file are mapped otherwise from this handle on, in a map that has an index, or had one just before.
    pub(crate) fn note_ranges(
        &self,
        handle: &Handle<'_>,
        ino: Ino,
        ranges: &[Range<u64>],
        has_index: bool,
    ) {
        let changes = self.changes(handle.epoch());
        if changes.has_too_many() || ranges.is_empty() && !has_index {
            return;
        }
        let mut shard = changes.shard(ino).lock();
        let changed = shard.inodes.entry(ino).or_insert_with(|| {
            changes.note();
            OfInode::default()
        });
        changed.had_index |= has_index;
        for range in ranges {
            changed.ranges.add(range.clone());
            changed.since_log.add(range.clone());
        }
        if changed.ranges.0.len() > RANGES_MAX {
            changed.has_too_many = true;
            (changed.ranges, changed.since_log) = Default::default();
        }
    }

    /// The log of an epoch, if there is one.
    pub(crate) fn running(&self, epoch: Epoch) -> Option<RunningLog> {
        let mine = &self.known.mine().0;
        if let Some((_, log)) = mine.lock().as_ref().filter(|(of, _)| *of == epoch) {
            return Some(Arc::clone(log));
        }
        let running = self.running.read();
        let (_, log) = running.as_ref().filter(|(of, _)| *of == epoch)?;
        let log = Arc::new(CachePadded::new(Arc::clone(log)));
        *mine.lock() = Some((epoch, Arc::clone(&log)));
        Some(log)
    }

    /// The log of an epoch of which the caller has a handle, begun if need be; `None` if there can't be one now.
    pub(crate) fn log(
        &self,
        handle: &Handle<'_>,
        journal: &Journal,
        block_bytes: usize,
    ) -> Option<RunningLog> {
        let epoch = handle.epoch();
        let tid: Tid = journal.fast_tid(epoch)?;
        if let Some(log) = self.running(epoch) {
            return Some(log);
        }
        let mut running = self.running.write();
        if running.as_ref().is_none_or(|(of, _)| *of != epoch) {
            let update = match self.update.get() {
                LogUpdate::InPlace => logtree::LogUpdate::InPlace,
                LogUpdate::Insert => logtree::LogUpdate::Insert,
            };
            let log = Arc::new(FsyncLog::new(tid, block_bytes, update));
            *running = Some((epoch, log));
        }
        drop(running);
        // The handle keeps it.
        self.running(epoch)
    }

    /// Ends the log of a sealed epoch, and forgets what changed in it; whether the area was written.
    pub(crate) fn end(&self, sealed: Epoch) -> bool {
        let mut running = self.running.write();
        let log = running.take_if(|(epoch, _)| *epoch <= sealed);
        drop(running);
        self.changes(sealed).clear();
        let Some((_, log)) = log else {
            // Relaxed: a hint, which the committer alone counts down.
            let left = self.declined.load(Ordering::Relaxed);
            // Relaxed: as above.
            self.declined
                .store(left.saturating_sub(1), Ordering::Relaxed);
            return false;
        };
        for known in self.known.iter() {
            known.0.lock().take_if(|(epoch, _)| *epoch <= sealed);
        }
        let ended = log.close();
        let mut worth = self.worth.lock();
        // Relaxed: a hint; pairs with the store in `choose`.
        if self.forgets.swap(false, Ordering::Relaxed) {
            *worth = Worth::default();
        }
        if let Some(declined) = worth.ended(ended.syncs) {
            // Relaxed: a hint.
            self.declined.store(declined, Ordering::Relaxed);
        }
        drop(worth);
        let counted = log.counters();
        self.updates.add(counted.updates.sum());
        self.inserts.add(counted.inserts.sum());
        self.parent_write_locks
            .add(counted.parent_write_locks.sum());
        let splits = counted.leaf_splits.sum() + counted.node_splits.sum();
        self.splits.add(splits);
        ended.is_touched
    }

    /// What was counted.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let running = self.running.read();
        let of = |count: &dyn Fn(&logtree::TreeCounters) -> u64| {
            running.as_ref().map_or(0, |(_, log)| count(log.counters()))
        };
        let said = &self.statistics;
        vec![
            ("fsync.log_commits", said.log_commits.sum()),
            ("fsync.log_blocks", said.log_blocks.sum()),
            ("fsync.log_commits_of_one_block", said.one_block.sum()),
            ("fsync.already_logged", said.already_logged.sum()),
            ("fsync.followers", said.followers.sum()),
            ("fsync.joined", said.joined.sum()),
            ("fsync.surprises", said.surprises.sum()),
            ("fsync.full_not_next", self.not_next.sum()),
            ("fsync.full_unloggable", self.unloggable.sum()),
            ("fsync.full_replay_budget", self.replay_budget.sum()),
            ("fsync.full_not_worth", self.not_worth.sum()),
            ("fsync.full_log_ended", self.ended.sum()),
            (
                "fsync.items_in_place",
                self.updates.sum() + of(&|counters| counters.updates.sum()),
            ),
            (
                "fsync.items_inserted",
                self.inserts.sum() + of(&|counters| counters.inserts.sum()),
            ),
            (
                "fsync.parent_write_locks",
                self.parent_write_locks.sum() + of(&|counters| counters.parent_write_locks.sum()),
            ),
            (
                "fsync.splits",
                self.splits.sum()
                    + of(&|counters| counters.leaf_splits.sum() + counters.node_splits.sum()),
            ),
        ]
    }
}

/// The journal's area.
pub(crate) struct JournalArea<'a>(pub(crate) &'a Journal);

impl LogArea for JournalArea<'_> {
    fn write(&self, first: u32, blocks: &[u8]) -> Result<(), String> {
        let written = self.0.write_fast(first, blocks);
        written.map_err(|error| error.to_string())
    }

    fn flush_data(&self) -> Result<(), String> {
        if canary::makes(Canary::TailBeforeData) {
            return Ok(());
        }
        let flushed = self.0.flush_before_fast();
        flushed.map_err(|error| error.to_string())
    }

    fn blocks(&self) -> u32 {
        self.0.fast_blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_joined() {
        let mut ranges = BlockRanges::default();
        for range in [10..20, 30..40, 20..25, 5..7, 6..12, 39..39, 41..50, 24..30] {
            ranges.add(range);
        }
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [5..40, 41..50]);
    }

    #[test]
    fn logs_that_end_early_are_done_without_for_longer_and_longer() {
        let mut worth = Worth::default();
        let mut tried = |syncs: &[u64]| -> Option<u64> {
            let said: Vec<_> = syncs.iter().map(|count| worth.ended(*count)).collect();
            let (last, before) = said.split_last().unwrap();
            assert!(before.iter().all(Option::is_none));
            *last
        };
        assert_eq!(tried(&[1, 1, 2, 100]), Some(0));
        assert_eq!(tried(&[1, 20, 20, 20]), Some(DECLINED_FIRST));
        assert_eq!(tried(&[0; 4]), Some(2 * DECLINED_FIRST));
        for _ in 0..10 {
            tried(&[1; 4]);
        }
        assert_eq!(tried(&[2; 4]), Some(DECLINED_MOST));
        assert_eq!(tried(&[16; 4]), Some(0));
        assert_eq!(tried(&[15; 4]), Some(DECLINED_FIRST));
    }

    const DIRECTORY: Ino = Ino(2);

    fn place(name: &[u8]) -> NamePlace {
        (DIRECTORY, name.into())
    }

    #[test]
    fn a_name_that_is_given_anew_while_it_is_logged_is_left_to_be_logged() {
        let changes = EpochChanges::new();
        changes.note_name(place(b"a"), Some(Ino(12)), None);
        // The log is told that the name is gone, but by now it is another file's.
        changes.note_name(place(b"a"), None, Some(Ino(13)));
        changes.set_name_in_log(&place(b"a"), None, Batch(1));
        match changes.unlogged_in(DIRECTORY) {
            UnloggedNames::Names(names) => assert_eq!(names, [place(b"a")]),
            _ => panic!("the new name is not left to be logged"),
        }
        changes.set_name_in_log(&place(b"a"), Some(Ino(13)), Batch(2));
        let unlogged = changes.unlogged_in(DIRECTORY);
        assert!(matches!(unlogged, UnloggedNames::Nothing(Batch(2))));
    }

    #[test]
    fn a_name_that_went_on_brings_only_what_stood_for_it_since_the_log_had_it() {
        let changes = EpochChanges::new();
        let (passing, mut before) = (place(b"passing"), None);
        for number in 0..4_u8 {
            let ino = Ino(100 + u32::from(number));
            let own = place(&[b'0' + number]);
            changes.note_name(passing.clone(), None, Some(ino));
            let members = logtree::closure::close(&changes, [ino], []).unwrap();
            let expected: BTreeSet<Ino> = before.into_iter().chain([ino]).collect();
            assert_eq!(members.inodes, expected);
            for ino in &members.inodes {
                changes.set_names_in_log(*ino);
            }
            for name in &members.names {
                let (_, now) = changes.name(name).unwrap();
                changes.set_name_in_log(name, now, Batch(1 + u64::from(number)));
            }
            changes.note_name(passing.clone(), Some(ino), None);
            changes.note_name(own, None, Some(ino));
            before = Some(ino);
        }
    }
}
