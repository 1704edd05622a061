//! The names and blocks of files that changed in one epoch, in shards by inode ([`Rank::LogChanges`], held for one
//! access). The fsync log is made from them.
//!
//! What a crash leaves: nothing of these tables; what the log left is described in `fsync/log.rs`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use hashbrown::HashMap;
use ondisk::Ino;
use sync::{CachePadded, Mutex, Rank, Statistic};

use super::room::{Leaf, Placed};
use super::{Batch, NAMES_MAX, NamePlace};

const SHARDS: usize = 64;
/// With more changed ranges than this a file is not logged: its fsync is a full commit.
const RANGES_MAX: usize = 512;
/// After this number of changed names and inodes nothing more is noted in the epoch, and all its commits are full.
const NOTED_MAX: u64 = 1 << 17;

/// Ranges of a file's blocks, joined where they meet. Each is stored as its first block and the one behind its last.
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

    /// The ranges in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(first, end)| *first..*end)
    }
}

/// The changes of an inode.
#[derive(Default)]
struct OfInode {
    /// Names that stood for it before or after a change, except those that are in the log as they are.
    names: BTreeSet<NamePlace>,
    /// Blocks that changed in the epoch.
    ranges: BlockRanges,
    /// Those of these ranges that changed after the inode was last logged.
    since_log: BlockRanges,
    has_too_many: bool,
    /// Its map had an index before or after one of these changes, so the result of a replay is not known.
    had_index: bool,
    /// Its largest size before a truncation.
    largest: u64,
    is_in_log: bool,
}

/// The changes of a name.
struct OfName {
    /// The inode that it stood for when the epoch began.
    base: Option<Ino>,
    now: Option<Ino>,
    /// All inodes that it stood for before and after each change since it was last logged.
    inodes: BTreeSet<Ino>,
}

/// The changes of a directory's names.
#[derive(Default)]
struct OfDirectory {
    /// Changed names that are not in the log as they are.
    unlogged: BTreeSet<Box<[u8]>>,
    /// The last batch that contains one of the other changed names.
    logged: Option<Batch>,
    /// Directory blocks into which names were put.
    leaves: BTreeMap<u32, Leaf>,
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<Ino, OfInode>,
    names: BTreeMap<NamePlace, OfName>,
    directories: HashMap<Ino, OfDirectory>,
}

/// The changed names of a directory that must still be logged.
pub(crate) enum UnloggedNames {
    /// These names must be logged.
    Names(Vec<NamePlace>),
    /// No name must be logged; those that changed are durable once this batch of the log is on disk.
    Nothing(Batch),
    /// It is not known: too many names changed to note them, or none did.
    Unknown,
}

/// The changes of one epoch.
pub(crate) struct EpochChanges {
    /// By inode number; names by the number of their directory. [log changes]
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Number of changed names and inodes. [atomic: Relaxed, a statistic]
    noted: Statistic,
}

impl EpochChanges {
    pub(crate) fn new() -> EpochChanges {
        let shard = || CachePadded::new(Mutex::new(Rank::LogChanges, Shard::default()));
        EpochChanges {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            noted: Statistic::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    fn note(&self) {
        self.noted.add(1);
    }

    /// Whether changes may be missing because there were too many.
    pub(crate) fn has_too_many(&self) -> bool {
        self.noted.get() >= NOTED_MAX
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
        // No thread notes changes in a sealed epoch.
        self.noted.set(0);
    }

    /// How many blocks of a file changed in the epoch, and its largest size before a truncation in the epoch.
    pub(crate) fn reach(&self, ino: Ino) -> (u64, u64) {
        let shard = self.shard(ino).lock();
        shard.inodes.get(&ino).map_or((0, 0), |changed| {
            let ranges = changed.ranges.iter();
            let blocks = ranges.map(|range| range.end - range.start).sum();
            (blocks, changed.largest)
        })
    }

    /// Notes that a name stands for another inode, or none.
    pub(crate) fn note_name(&self, place: NamePlace, before: Option<Ino>, now: Option<Ino>) {
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

    /// Notes names that are put into a block of a directory, which contains `before` until then. Returns whether a
    /// replay is certain to have room for all names that were put there in this epoch.
    pub(super) fn note_placed(&self, directory: Ino, placed: &Placed, before: &[u8]) -> bool {
        let mut shard = self.shard(directory).lock();
        let leaves = &mut shard.directories.entry(directory).or_default().leaves;
        let leaf = leaves
            .entry(placed.leaf)
            .or_insert_with(|| Leaf::of(before, placed.form));
        leaf.place(placed)
    }

    /// Notes that a file of `bytes` bytes is truncated.
    pub(super) fn note_cut(&self, ino: Ino, bytes: u64) {
        let mut shard = self.shard(ino).lock();
        let changed = self.inode(&mut shard, ino);
        changed.largest = changed.largest.max(bytes);
    }

    /// Notes ranges of a file whose mapping changes. `has_index`: the map has an index, or had one before the change.
    pub(super) fn note_ranges(&self, ino: Ino, ranges: &[Range<u64>], has_index: bool) {
        let mut shard = self.shard(ino).lock();
        let changed = self.inode(&mut shard, ino);
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

    /// The changes of an inode, which is counted at its first change.
    fn inode<'a>(&self, shard: &'a mut Shard, ino: Ino) -> &'a mut OfInode {
        shard.inodes.entry(ino).or_insert_with(|| {
            self.note();
            OfInode::default()
        })
    }

    /// The inodes that a changed name stood for when the epoch began and stands for now.
    pub(crate) fn name(&self, place: &NamePlace) -> Option<(Option<Ino>, Option<Ino>)> {
        let shard = self.shard(place.0).lock();
        shard.names.get(place).map(|name| (name.base, name.now))
    }

    /// The changed names of a directory that are not in the log as they are.
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

    /// Whether `members` contains all names of a directory that must still be logged.
    pub(crate) fn has_all_of(&self, directory: Ino, members: &BTreeSet<NamePlace>) -> bool {
        match self.unlogged_in(directory) {
            UnloggedNames::Names(names) => names.iter().all(|name| members.contains(name)),
            UnloggedNames::Nothing(_) => true,
            UnloggedNames::Unknown => false,
        }
    }

    /// Notes that a name was logged as standing for `logged`. If it stands for another inode by now, it must still be
    /// logged: the caller has the locks of the inodes that it stood for, but another inode may have got the name.
    pub(crate) fn set_name_in_log(&self, place: &NamePlace, logged: Option<Ino>, batch: Batch) {
        let mut shard = self.shard(place.0).lock();
        let Some(name) = shard.names.get_mut(place).filter(|name| name.now == logged) else {
            return;
        };
        // The inodes that it stood for before no longer matter, because the log has the result.
        name.inodes.clear();
        let names = shard.directories.entry(place.0).or_default();
        names.unlogged.remove(&place.1);
        names.logged = names.logged.max(Some(batch));
    }

    /// Notes that all changed names of an inode were logged. The caller has its lock.
    pub(crate) fn set_names_in_log(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        if let Some(changed) = shard.inodes.get_mut(&ino) {
            changed.names.clear();
        }
    }

    /// The blocks of a file that changed since it was last logged (in the whole epoch, if it is not in the log), and
    /// whether it is in the log. `None` if there are too many, or its map changed while it had an index (F15, F22).
    pub(crate) fn ranges(&self, ino: Ino) -> Option<(BlockRanges, bool)> {
        let shard = self.shard(ino).lock();
        let Some(changed) = shard.inodes.get(&ino) else {
            return Some((BlockRanges::default(), false));
        };
        let ranges = if changed.is_in_log {
            &changed.since_log
        } else {
            &changed.ranges
        };
        let is_told = !changed.has_too_many && !changed.had_index;
        is_told.then(|| (ranges.clone(), changed.is_in_log))
    }

    /// Whether the inode is in the log.
    pub(crate) fn is_in_log(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        shard.inodes.get(&ino).is_some_and(|inode| inode.is_in_log)
    }

    /// Notes that the inode was logged as it is now. The caller has its lock.
    pub(crate) fn set_in_log(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        let changed = shard.inodes.entry(ino).or_default();
        changed.is_in_log = true;
        changed.since_log = BlockRanges::default();
    }

    /// The names that an inode had or has and that changed in this epoch since they were logged with it.
    pub(crate) fn names_of(&self, ino: Ino) -> Vec<NamePlace> {
        let shard = self.shard(ino).lock();
        let changed = shard.inodes.get(&ino);
        changed.map_or(Vec::new(), |changed| {
            changed.names.iter().cloned().collect()
        })
    }

    /// Whether [`EpochChanges::names_of`] has any.
    pub(crate) fn has_names(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        let changed = shard.inodes.get(&ino);
        changed.is_some_and(|changed| !changed.names.is_empty())
    }

    /// Every inode that a changed name stood for since it was logged, or else in this epoch: before its first change
    /// and now among them.
    pub(crate) fn inodes_of(&self, place: &NamePlace) -> Vec<Ino> {
        let shard = self.shard(place.0).lock();
        let changed = shard.names.get(place);
        changed.map_or(Vec::new(), |name| name.inodes.iter().copied().collect())
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

    const DIRECTORY: Ino = Ino(2);

    fn place(name: &[u8]) -> NamePlace {
        (DIRECTORY, name.into())
    }

    #[test]
    fn a_name_that_is_given_anew_while_it_is_logged_is_left_to_be_logged() {
        let changes = EpochChanges::new();
        changes.note_name(place(b"a"), Some(Ino(12)), None);
        // The log records that the name was removed, but by now another file has it.
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
}
