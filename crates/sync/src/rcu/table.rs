//! The table: find without a lock, change under one bucket's, grow while both go on.
//!
//! Why a reader finds what is there. An entry is stored before its tag, and the tag is cleared before the entry. A
//! bucket's entries are added to the next array before the bucket is marked as moved, and its own lines stay as they
//! were: a reader that began before the move continues, and finds what was there when it began. The next array's
//! buckets are reached through the moved one only, so filling them takes no lock.
//!
//! Why no thread uses an entry that leaves. A hand marks an entry, waits for every guard that is there then, takes the
//! bucket's lock and checks that the mark is still there and the table's count is the only one. A reader that meets the
//! mark removes it under the lock before it counts; a reader that met the entry without the mark had its guard before
//! the mark. So the hand sees every count: an entry that leaves the table is held by nothing else, and a thread that
//! loads it anew has the only instance.
//!
//! Memory: a removed entry, and an array whose buckets have all moved, are given to the table's [`Domain`], which drops
//! them after every guard that was there then; a bucket's further lines are freed with their array. Interleavings:
//! `under_many_schedules_an_entry_has_one_instance_and_loses_nothing` in `rcu/tests.rs`.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::rcu::bucket::{self, Array, Bucket, Link};
use crate::rcu::domain::{Domain, Kept};
use crate::{Arc, Counter, Mutex, Rank, turn};

/// Lines of entries in a bucket from which on the table grows even if it has few entries for its size.
const LONG: usize = 4;
/// Buckets that a thread moves when it adds an entry while the table grows.
const HELP: usize = 32;
/// Buckets at most.
const MOST: usize = 1 << 26;

/// What can be in a table.
pub trait Keyed: Send + Sync {
    /// By what it is found; always the same.
    fn key(&self) -> u64;
}

/// What the table gives to its domain.
pub(super) enum Garbage<T> {
    /// An entry. Dropping it is the point.
    Entry { _entry: Arc<T> },
    /// An array that has moved.
    Array { _array: Box<Array<T>> },
}

/// Counted entries, found by a number; see the module.
pub struct CountedTable<T: Keyed> {
    rank: Rank,
    /// [growth; read: rcu]
    current: Link<Array<T>>,
    domain: Domain<Garbage<T>>,
    /// Held by the thread that makes the next array; only tried. [leaf]
    growth: Mutex<()>,
    added: Counter,
    removed: Counter,
    /// The most entries that a bucket ever got. [atomic: Relaxed]
    longest: AtomicU64,
    /// How often it grew. [atomic: Relaxed]
    grown: AtomicU64,
}

/// How a table is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TableStatistics {
    /// Entries in it.
    pub entries: u64,
    /// Buckets.
    pub buckets: u64,
    /// The most entries that a bucket ever got.
    pub longest: u64,
    /// How often it grew.
    pub grown: u64,
    /// Things that wait for readers to be dropped.
    pub waiting: u64,
}

/// Entries whose slots were emptied. However it is dropped, readers who still see them keep them.
pub(super) struct Gone<'a, T: Keyed> {
    table: &'a CountedTable<T>,
    /// No other thread sees them.
    is_alone: bool,
    entries: Vec<Arc<T>>,
}

impl<'a, T: Keyed> Gone<'a, T> {
    pub(super) fn new(table: &'a CountedTable<T>, is_alone: bool) -> Gone<'a, T> {
        Gone {
            table,
            is_alone,
            entries: Vec::new(),
        }
    }

    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    pub(super) fn push(&mut self, entry: Arc<T>) {
        self.entries.push(entry);
    }
}

impl<T: Keyed> Drop for Gone<'_, T> {
    fn drop(&mut self) {
        if self.is_alone {
            return;
        }
        for entry in self.entries.drain(..) {
            self.table.domain.retire(Garbage::Entry { _entry: entry });
        }
    }
}

/// Where an entry was added.
pub(super) struct Added {
    /// Its line's number in the bucket, from 1 on.
    lines: usize,
    /// Its slot in the line.
    slot: usize,
    /// Whether the table grows.
    has_next: bool,
}

impl Added {
    /// How many entries the bucket has, where no earlier slot is empty.
    fn entries(&self) -> u64 {
        ((self.lines - 1) * bucket::SLOTS + self.slot + 1) as u64
    }

    /// Whether it is the first entry of a further line.
    fn is_new_line(&self) -> bool {
        self.lines > 1 && self.slot == 0
    }
}

/// What is to be done behind a change.
pub(super) struct Left<'a, T: Keyed> {
    /// To be dropped when the bucket is not locked any more.
    pub(super) gone: Gone<'a, T>,
    pub(super) added: Option<Added>,
}

/// One key's bucket, locked.
pub struct LockedBucket<'a, T: Keyed> {
    table: &'a CountedTable<T>,
    bucket: &'a Bucket<T>,
    kept: Kept<'a>,
    key: u64,
    /// What was taken out, to be given away when the lock is released.
    gone: &'a mut Vec<Arc<T>>,
    /// Where an entry was added: its line's number from 1 on, and its slot.
    added: (usize, usize),
}

impl<T: Keyed> CountedTable<T> {
    /// An empty table with this many buckets of 64 bytes to begin with, rounded up to a power of two. The locks of
    /// buckets have this rank.
    #[must_use]
    pub fn new(rank: Rank, buckets: usize) -> CountedTable<T> {
        const { assert!(align_of::<T>() >= 2, "the lowest bit of a pointer is free") };
        let array = Array::new(rank, buckets.clamp(1, MOST).next_power_of_two());
        CountedTable {
            rank,
            current: Link::to(Box::into_raw(Box::new(array))),
            domain: Domain::new(),
            growth: Mutex::new(Rank::Leaf, ()),
            added: Counter::new(),
            removed: Counter::new(),
            longest: AtomicU64::new(0),
            grown: AtomicU64::new(0),
        }
    }

    /// The readers of this table, and what is kept for them.
    pub(super) fn domain(&self) -> &Domain<Garbage<T>> {
        &self.domain
    }

    /// The array that everything is reached through.
    #[allow(unsafe_code)]
    pub(super) fn array<'g>(&self, _kept: Kept<'g>) -> &'g Array<T> {
        // SAFETY: never null; from `Box::into_raw`. When it is replaced, it is given to this table's domain, from which
        // the caller has a guard, and so outlives that; or the caller has the table for itself.
        unsafe { &*self.current.load() }
    }

    /// The array into which another moves; only if there is one.
    #[allow(unsafe_code)]
    pub(super) fn next<'g>(array: &Array<T>, _kept: Kept<'g>) -> Option<&'g Array<T>> {
        // SAFETY: null, or from `Box::into_raw` in `note_lines`. It is given away after it was the current array; a
        // caller that reached `array` has a guard from before that, which keeps this one too, or the table for itself.
        unsafe { array.next.load().as_ref() }
    }

    /// What an entry is, marked or not.
    #[allow(unsafe_code)]
    pub(super) fn value<'g>(entry: *mut T, _kept: Kept<'g>) -> &'g T {
        // SAFETY: from `Arc::into_raw`, loaded from a slot under a guard: the table's count of it is given to the
        // domain only after the slot was emptied, so it outlives the guard. A caller that has the table for itself
        // drops what it took out after it is done.
        unsafe { &*bucket::plain(entry) }
    }

    /// A count of an entry's own.
    #[allow(unsafe_code)]
    fn counted(entry: *mut T, _kept: Kept<'_>) -> Arc<T> {
        // Between meeting an entry and counting it, anything may happen.
        turn::point();
        let entry = bucket::plain(entry).cast_const();
        // SAFETY: as in `value`; the table's count is there, so there is one to add to.
        unsafe {
            Arc::increment_strong_count(entry);
            Arc::from_raw(entry)
        }
    }

    /// Whether the table's count of an entry is the only one. The caller has the bucket's lock.
    #[allow(unsafe_code)]
    pub(super) fn is_unused(entry: *mut T) -> bool {
        // SAFETY: from `Arc::into_raw`; it is in a slot, and the lock keeps it there. The count is not given up.
        let entry = unsafe { Arc::from_raw(bucket::plain(entry).cast_const()) };
        let entry = std::mem::ManuallyDrop::new(entry);
        let is_alone = Arc::strong_count(&entry) == 1;
        // Acquire: what others did to it is seen; pairs with the Release with which the last of them let it go.
        fence(Ordering::Acquire);
        is_alone
    }

    /// The table's count of an entry whose slot was emptied. Once for each entry, under the bucket's lock.
    #[allow(unsafe_code)]
    fn taken(entry: *mut T) -> Arc<T> {
        // SAFETY: from `Arc::into_raw` in `LockedBucket::insert`, and no slot has it any more: nobody else takes this
        // count.
        unsafe { Arc::from_raw(bucket::plain(entry).cast_const()) }
    }

    /// The entry with this key, if it is there; with the hand's mark, if it has one.
    #[inline]
    fn reach(&self, key: u64, kept: Kept<'_>) -> Option<*mut T> {
        let tag = Some(bucket::tag(key));
        let mut array = self.array(kept);
        loop {
            let first = &array.buckets[array.index(key)];
            if !first.is_moved() {
                let is = |entry: *mut T| CountedTable::value(entry, kept).key() == key;
                let found = first.lines().find_map(|line| line.find(tag, is));
                return found.map(|(_, entry)| entry);
            }
            // There is one, or nothing would have moved.
            array = CountedTable::next(array, kept)?;
        }
    }

    /// The entry with this key, counted. Takes no lock, unless a hand passed since it was last found.
    #[track_caller]
    pub fn find(&self, key: u64) -> Option<Arc<T>> {
        let guard = self.domain.enter();
        self.find_kept(key, guard.kept())
    }

    /// As [`CountedTable::find`].
    #[inline]
    #[track_caller]
    pub(super) fn find_kept(&self, key: u64, kept: Kept<'_>) -> Option<Arc<T>> {
        let entry = self.reach(key, kept)?;
        if bucket::is_marked(entry) {
            self.locked_kept(key, kept, |locked| locked.get()).0
        } else {
            Some(CountedTable::counted(entry, kept))
        }
    }

    /// Looks at the entry with this key, which is not counted: nothing is written that others read. The look is short,
    /// waits for nothing, and may meet an entry that is being changed. As [`CountedTable::find`] otherwise.
    #[track_caller]
    pub fn look<R>(&self, key: u64, look: impl FnOnce(&T) -> R) -> Option<R> {
        let guard = self.domain.enter();
        self.look_kept(key, guard.kept(), look)
    }

    /// As [`CountedTable::look`].
    #[inline]
    #[track_caller]
    pub(super) fn look_kept<R>(
        &self,
        key: u64,
        kept: Kept<'_>,
        look: impl FnOnce(&T) -> R,
    ) -> Option<R> {
        let mut entry = self.reach(key, kept)?;
        if bucket::is_marked(entry) {
            entry = self.locked_kept(key, kept, |locked| locked.used()).0?;
        }
        Some(look(CountedTable::value(entry, kept)))
    }

    /// As [`CountedTable::find`], of an entry that a test says yes to; the test is a look as in [`CountedTable::look`].
    #[track_caller]
    pub fn find_by(&self, key: u64, test: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let guard = self.domain.enter();
        self.find_by_kept(key, guard.kept(), test)
    }

    /// As [`CountedTable::find_by`].
    #[inline]
    #[track_caller]
    pub(super) fn find_by_kept(
        &self,
        key: u64,
        kept: Kept<'_>,
        test: impl FnOnce(&T) -> bool,
    ) -> Option<Arc<T>> {
        let entry = self.reach(key, kept)?;
        if !test(CountedTable::value(entry, kept)) {
            return None;
        }
        if bucket::is_marked(entry) {
            self.locked_kept(key, kept, |locked| locked.get()).0
        } else {
            Some(CountedTable::counted(entry, kept))
        }
    }

    /// Changes when an entry of this key's bucket is removed: a thread that read this, found no entry, and then
    /// read from elsewhere what was to be one, has something old if this has changed when it is to be added.
    pub fn version(&self, key: u64) -> u32 {
        let guard = self.domain.enter();
        self.version_kept(key, guard.kept())
    }

    /// As [`CountedTable::version`].
    pub(super) fn version_kept(&self, key: u64, kept: Kept<'_>) -> u32 {
        let mut array = self.array(kept);
        loop {
            let first = &array.buckets[array.index(key)];
            // Before the look whether it has moved: what is removed from the next array is not counted here.
            let version = first.version();
            if !first.is_moved() {
                return version;
            }
            array = match CountedTable::next(array, kept) {
                Some(next) => next,
                None => return version,
            };
        }
    }

    /// Works on one key's bucket with its lock held. The work waits for nothing but locks of later ranks, and does
    /// nothing else with this table.
    #[track_caller]
    pub fn locked<R>(&self, key: u64, work: impl FnOnce(&mut LockedBucket<'_, T>) -> R) -> R {
        let guard = self.domain.enter();
        let (result, left) = self.locked_kept(key, guard.kept(), work);
        let Left { gone, added } = left;
        drop(gone);
        drop(guard);
        if let Some(added) = added {
            self.note_chain(added.entries());
            if added.is_new_line() {
                self.note_lines(added.lines, self.domain.enter().kept());
            }
            if added.has_next {
                let moved = self.move_some(self.domain.enter().kept());
                if let Some(array) = moved {
                    self.domain.retire(Garbage::Array { _array: array });
                }
            }
        }
        result
    }

    /// As [`CountedTable::locked`], without what is to be done behind it. A thread that has the table for itself takes
    /// no lock.
    #[track_caller]
    pub(super) fn locked_kept<R>(
        &self,
        key: u64,
        kept: Kept<'_>,
        work: impl FnOnce(&mut LockedBucket<'_, T>) -> R,
    ) -> (R, Left<'_, T>) {
        let mut array = self.array(kept);
        let mut gone = Gone::new(self, kept.is_alone());
        let (result, (lines, slot)) = loop {
            let first = &array.buckets[array.index(key)];
            let lock = (!kept.is_alone()).then(|| first.lock.lock());
            if first.is_moved()
                && let Some(next) = CountedTable::next(array, kept)
            {
                drop(lock);
                array = next;
                continue;
            }
            let mut locked = LockedBucket {
                table: self,
                bucket: first,
                kept,
                key,
                gone: &mut gone.entries,
                added: (0, 0),
            };
            let result = work(&mut locked);
            break (result, locked.added);
        };
        let has_next = !self.array(kept).next.load().is_null();
        let added = (lines > 0).then_some(Added {
            lines,
            slot,
            has_next,
        });
        (result, Left { gone, added })
    }

    /// What is to be done behind [`CountedTable::locked_kept`], by a thread that has the table for itself: what it
    /// returns is to be dropped when others may have the table again.
    pub(super) fn grow_alone(&self, added: &Added, kept: Kept<'_>) -> Option<Box<Array<T>>> {
        self.note_chain(added.entries());
        if added.is_new_line() {
            self.note_lines(added.lines, kept);
        }
        added.has_next.then(|| self.move_some(kept)).flatten()
    }

    /// Entries in it. A sum over all threads' counts: not for every call.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.added.sum().saturating_sub(self.removed.sum())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How the table is.
    #[must_use]
    pub fn statistics(&self) -> TableStatistics {
        self.statistics_kept(self.domain.enter().kept())
    }

    /// As [`CountedTable::statistics`].
    pub(super) fn statistics_kept(&self, kept: Kept<'_>) -> TableStatistics {
        TableStatistics {
            entries: self.len(),
            buckets: self.array(kept).buckets.len() as u64,
            // Relaxed: a statistic.
            longest: self.longest.load(Ordering::Relaxed),
            // Relaxed: a statistic.
            grown: self.grown.load(Ordering::Relaxed),
            waiting: self.domain.waiting() as u64,
        }
    }

    /// Drops what was removed and nobody sees any more, without waiting for more of it.
    pub fn flush(&self) {
        self.domain.flush();
    }

    /// Looks at all entries that are there from the beginning to the end, once each, and at some of the others. The
    /// looks are as in [`CountedTable::look`]; nothing is freed meanwhile.
    pub fn for_each(&self, look: impl FnMut(&T)) {
        self.for_each_kept(self.domain.enter().kept(), look);
    }

    /// As [`CountedTable::for_each`].
    pub(super) fn for_each_kept(&self, kept: Kept<'_>, mut look: impl FnMut(&T)) {
        let array = self.array(kept);
        for index in 0..array.buckets.len() {
            CountedTable::at(array, index, kept, &mut |bucket| {
                for line in bucket.lines() {
                    // Never yes: all are looked at.
                    let looked = line.find(None, |entry| {
                        look(CountedTable::value(entry, kept));
                        false
                    });
                    debug_assert!(looked.is_none(), "no entry is asked for");
                }
            });
        }
    }

    /// Goes to the buckets in which the entries of an array's bucket are now.
    pub(super) fn at<'g>(
        array: &'g Array<T>,
        index: usize,
        kept: Kept<'g>,
        visit: &mut dyn FnMut(&'g Bucket<T>),
    ) {
        let bucket = &array.buckets[index];
        if !bucket.is_moved() {
            return visit(bucket);
        }
        let mut places = vec![(array, index)];
        while let Some((array, index)) = places.pop() {
            let bucket = &array.buckets[index];
            match bucket.is_moved().then(|| CountedTable::next(array, kept)) {
                Some(Some(next)) => {
                    places.push((next, index));
                    places.push((next, index + array.buckets.len()));
                }
                _ => visit(bucket),
            }
        }
    }

    /// Takes an entry out of a line of a locked bucket.
    pub(super) fn take_out(&self, first: &Bucket<T>, line: &Bucket<T>, slot: usize) -> Arc<T> {
        // Under the lock: what was found there is there.
        let entry = line.entry(slot);
        line.clear(slot);
        first.removed();
        self.removed.add(1);
        CountedTable::taken(entry)
    }

    /// A bucket got this number of entries.
    fn note_chain(&self, entries: u64) {
        let longer = |longest| (longest < entries).then_some(entries);
        let longest = &self.longest;
        // Relaxed: a statistic; where it does not grow, nothing is written.
        let _ = longest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
    }

    /// A bucket got this number of lines: it may be time to grow.
    fn note_lines(&self, lines: usize, kept: Kept<'_>) {
        let array = self.array(kept);
        let (buckets, entries) = (array.buckets.len(), self.len());
        let is_crowded = entries > 2 * buckets as u64;
        let is_long = lines >= LONG && 8 * entries > buckets as u64;
        if !(is_crowded || is_long) || buckets >= MOST || !array.next.load().is_null() {
            return;
        }
        // If another does it, that will do.
        let Some(_growth) = self.growth.try_lock() else {
            return;
        };
        // It may have been done, and even have moved: then `array` is not the current one, and has a next one.
        if array.next.load().is_null() {
            let next = Box::new(Array::new(self.rank, 2 * buckets));
            array.next.store(Box::into_raw(next));
            // Relaxed: a statistic.
            self.grown.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves some buckets of the current array into the next one, if the table grows. Returns the array if all of its
    /// buckets have moved now: it is to be kept for its readers.
    fn move_some(&self, kept: Kept<'_>) -> Option<Box<Array<T>>> {
        let array = self.array(kept);
        let next = CountedTable::next(array, kept)?;
        let buckets = array.buckets.len();
        // Relaxed: it only gives out numbers.
        let from = array.claimed.fetch_add(HELP, Ordering::Relaxed);
        let to = (from + HELP).min(buckets);
        if from >= to {
            return None;
        }
        (from..to).for_each(|index| self.move_bucket(array, next, index, kept));
        // AcqRel: the last one sees all others' moves, which its store publishes; pairs with itself.
        let moved = array.moved.fetch_add(to - from, Ordering::AcqRel) + to - from;
        (moved == buckets).then(|| {
            let old = std::ptr::from_ref(array).cast_mut();
            self.current.store(std::ptr::from_ref(next).cast_mut());
            CountedTable::taken_array(old)
        })
    }

    /// An array whose last bucket has moved.
    #[allow(unsafe_code)]
    fn taken_array(old: *mut Array<T>) -> Box<Array<T>> {
        // SAFETY: from `Box::into_raw`; it was the current array until its last bucket had moved, which one thread
        // finds out, and nothing leads to it any more. A thread that still reads it has a guard that the domain waits
        // for: this is given to the domain, or no other thread is in the table.
        unsafe { Box::from_raw(old) }
    }

    /// Moves one bucket. Its two buckets in the next array are reached through it only.
    fn move_bucket(&self, array: &Array<T>, next: &Array<T>, index: usize, kept: Kept<'_>) {
        let from = &array.buckets[index];
        let _lock = (!kept.is_alone()).then(|| from.lock.lock());
        for index in [index, index + array.buckets.len()] {
            next.buckets[index].continue_version(from);
        }
        for line in from.lines() {
            let added = line.find(None, |entry| {
                let key = CountedTable::value(entry, kept).key();
                next.buckets[next.index(key)].add(self.rank, bucket::tag(key), entry);
                false
            });
            debug_assert!(added.is_none(), "no entry is asked for");
        }
        from.set_moved();
    }
}

impl<T: Keyed> Drop for CountedTable<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let guard = self.domain.enter();
        let array = self.array(guard.kept());
        let mut entries = Vec::new();
        // In a large table most buckets are bare.
        let used = |index: &usize| !array.buckets[*index].is_bare();
        for index in (0..array.buckets.len()).filter(used) {
            CountedTable::at(array, index, guard.kept(), &mut |bucket| {
                for line in bucket.lines() {
                    let found = line.find(None, |entry| {
                        entries.push(entry);
                        false
                    });
                    debug_assert!(found.is_none(), "no entry is asked for");
                }
            });
        }
        drop(guard);
        for entry in entries {
            // Nobody else has the table, so nothing is in its slots for anyone.
            drop(CountedTable::taken(entry));
        }
        let mut array = self.current.load();
        while !array.is_null() {
            // SAFETY: from `Box::into_raw`; nobody else has the table, and arrays before the current one were given to
            // the domain.
            let owned = unsafe { Box::from_raw(array) };
            array = owned.next.load();
        }
    }
}

impl<T: Keyed> LockedBucket<'_, T> {
    fn place(&self) -> Option<(&Bucket<T>, usize, *mut T)> {
        let tag = Some(bucket::tag(self.key));
        let is = |entry: *mut T| CountedTable::value(entry, self.kept).key() == self.key;
        self.bucket.lines().find_map(|line| {
            let (slot, entry) = line.find(tag, is)?;
            Some((line, slot, entry))
        })
    }

    /// The entry with the key, without the hand's mark from now on.
    fn used(&self) -> Option<*mut T> {
        let (line, slot, entry) = self.place()?;
        if bucket::is_marked(entry) {
            line.put(slot, bucket::plain(entry));
        }
        Some(entry)
    }

    /// The entry with the key, counted.
    #[must_use]
    pub fn get(&self) -> Option<Arc<T>> {
        Some(CountedTable::counted(self.used()?, self.kept))
    }

    /// As [`CountedTable::version`].
    #[must_use]
    pub fn version(&self) -> u32 {
        self.bucket.version()
    }

    /// Counts a removal: what was read elsewhere before is stale from now on.
    pub fn outdate(&mut self) {
        self.bucket.removed();
    }

    /// Adds an entry with the bucket's key; in the place of the one that is there, if there is one, which it gives.
    ///
    /// # Panics
    /// When the entry's key is another.
    pub fn insert(&mut self, entry: Arc<T>) -> Option<Arc<T>> {
        assert_eq!(entry.key(), self.key, "an entry goes into its own bucket");
        let entry = Arc::into_raw(entry).cast_mut();
        if let Some((line, slot, old)) = self.place() {
            line.put(slot, entry);
            self.bucket.removed();
            let old = CountedTable::taken(old);
            self.gone.push(Arc::clone(&old));
            return Some(old);
        }
        let tag = bucket::tag(self.key);
        self.added = self.bucket.add(self.table.rank, tag, entry);
        self.table.added.add(1);
        None
    }

    /// Takes the entry with the key out. Others may still use it.
    pub fn remove(&mut self) -> Option<Arc<T>> {
        let (line, slot, _) = self.place()?;
        let old = self.table.take_out(self.bucket, line, slot);
        self.gone.push(Arc::clone(&old));
        Some(old)
    }
}
