//! What changed in one epoch: names, and blocks of files, in shards by inode ([`Rank::LogChanges`], held for a look).
//!
//! What a crash leaves: nothing of it; see [`logtree`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use hashbrown::HashMap;
use logtree::Batch;
use logtree::closure::{Changes, Members, NAMES_MAX, NamePlace};
use ondisk::Ino;
use sync::atomic::{AtomicU64, Ordering};
use sync::{CachePadded, Mutex, Rank};

use super::budget::{Budget, Cost};
use super::room::{Leaf, Placed};

const SHARDS: usize = 64;
/// Ranges of one file beyond which it is committed in full.
const RANGES_MAX: usize = 512;
/// Names that changed in an epoch, and inodes, beyond which nothing more of it is noted: then all commits are full.
const NOTED_MAX: u64 = 1 << 17;

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
    pub(super) fn new() -> EpochChanges {
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

    pub(super) fn clear(&self) {
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
    pub(super) fn note_name(&self, place: NamePlace, before: Option<Ino>, now: Option<Ino>) {
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
    pub(super) fn note_placed(&self, directory: Ino, placed: &Placed, before: &[u8]) -> bool {
        let mut shard = self.shard(directory).lock();
        let leaves = &mut shard.directories.entry(directory).or_default().leaves;
        let leaf = leaves
            .entry(placed.leaf)
            .or_insert_with(|| Leaf::of(before, placed.form));
        leaf.place(placed)
    }

    /// A file is cut, which had so many bytes.
    pub(super) fn note_cut(&self, ino: Ino, bytes: u64) {
        let mut shard = self.shard(ino).lock();
        let changed = self.inode(&mut shard, ino);
        changed.largest = changed.largest.max(bytes);
    }

    /// Blocks of a file are mapped otherwise, in a map that has an index, or had one just before.
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

    /// What changed of an inode, which is counted when it is the first change.
    fn inode<'a>(&self, shard: &'a mut Shard, ino: Ino) -> &'a mut OfInode {
        shard.inodes.entry(ino).or_insert_with(|| {
            self.note();
            OfInode::default()
        })
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
