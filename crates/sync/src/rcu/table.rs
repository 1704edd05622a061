//! The table: find without a lock, change under one bucket's, grow beside both.
//!
//! Why a reader finds what is there. An entry is stored before its tag, and the tag is cleared before the entry. A
//! bucket's entries are added to the next array before the bucket says that they moved, and stay as they were behind
//! that: a reader that began before continues, and finds what was there when it began. The next array's buckets are
//! reached through the moved one only, so filling them takes no lock.
//!
//! Why an entry that goes is used by nobody. A hand marks an entry, waits for every guard that is there then, takes
//! the bucket's lock and looks whether the mark is still there and the table's count is the only one. A reader that
//! meets the mark takes it off under the lock before it counts; one that met the entry without the mark had its guard
//! before. So a count that the hand does not see yet can't be: what leaves the table lives nowhere else, and a
//! thread that loads it anew has the only one.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::rcu::bucket::{self, Array, Bucket, Link};
use crate::rcu::domain::{Domain, Guard};
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
    entries: Vec<Arc<T>>,
}

impl<'a, T: Keyed> Gone<'a, T> {
    pub(super) fn new(table: &'a CountedTable<T>) -> Gone<'a, T> {
        let entries = Vec::new();
        Gone { table, entries }
    }

    pub(super) fn push(&mut self, entry: Arc<T>) {
        self.entries.push(entry);
    }
}

impl<T: Keyed> Drop for Gone<'_, T> {
    fn drop(&mut self) {
        for entry in self.entries.drain(..) {
            self.table.domain.retire(Garbage::Entry { _entry: entry });
        }
    }
}

/// One key's bucket, locked.
pub struct LockedBucket<'a, T: Keyed> {
    table: &'a CountedTable<T>,
    bucket: &'a Bucket<T>,
    guard: &'a Guard<'a>,
    key: u64,
    /// What was taken out, to be given away when the lock is released.
    gone: Gone<'a, T>,
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
    pub(super) fn array<'g>(&self, _guard: &'g Guard<'_>) -> &'g Array<T> {
        // SAFETY: never null; from `Box::into_raw`. When it is replaced, it is given to the domain of the guard, which
        // every caller took from this table's domain, and so outlives the guard.
        unsafe { &*self.current.load() }
    }

    /// The array into which another moves; only if there is one.
    #[allow(unsafe_code)]
    pub(super) fn next<'g>(array: &Array<T>, _guard: &'g Guard<'_>) -> Option<&'g Array<T>> {
        // SAFETY: null, or from `Box::into_raw` in `note_lines`. It is given away after it was the current array; who
        // reached `array` has a guard from before that, which keeps this one too.
        unsafe { array.next.load().as_ref() }
    }

    /// What an entry is, marked or not.
    #[allow(unsafe_code)]
    pub(super) fn value<'g>(entry: *mut T, _guard: &'g Guard<'_>) -> &'g T {
        // SAFETY: from `Arc::into_raw`, loaded from a slot under the guard: the table's count of it is given to the
        // domain only after the slot was emptied, so it outlives the guard.
        unsafe { &*bucket::plain(entry) }
    }

    /// A count of an entry's own.
    #[allow(unsafe_code)]
    fn counted(entry: *mut T, _guard: &Guard<'_>) -> Arc<T> {
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
    fn reach(&self, key: u64, guard: &Guard<'_>) -> Option<*mut T> {
        let tag = Some(bucket::tag(key));
        let mut array = self.array(guard);
        loop {
            let first = &array.buckets[array.index(key)];
            if !first.is_moved() {
                let is = |entry: *mut T| CountedTable::value(entry, guard).key() == key;
                let found = first.lines().find_map(|line| line.find(tag, is));
                return found.map(|(_, entry)| entry);
            }
            // There is one, or nothing would have moved.
            array = CountedTable::next(array, guard)?;
        }
    }

    /// The entry with this key, counted. Takes no lock, unless a hand passed since it was last found.
    #[track_caller]
    pub fn find(&self, key: u64) -> Option<Arc<T>> {
        let guard = self.domain.enter();
        let entry = self.reach(key, &guard)?;
        match bucket::is_marked(entry) {
            true => self.locked(key, |locked| locked.get()),
            false => Some(CountedTable::counted(entry, &guard)),
        }
    }

    /// Looks at the entry with this key, which is not counted: nothing is written that others read. The look is short,
    /// waits for nothing, and may meet an entry that is being changed. As [`CountedTable::find`] otherwise.
    #[track_caller]
    pub fn look<R>(&self, key: u64, look: impl FnOnce(&T) -> R) -> Option<R> {
        let guard = self.domain.enter();
        let mut entry = self.reach(key, &guard)?;
        if bucket::is_marked(entry) {
            entry = self.locked(key, |locked| locked.used())?;
        }
        Some(look(CountedTable::value(entry, &guard)))
    }

    /// As [`CountedTable::find`], of an entry that a test says yes to; the test is a look as in [`CountedTable::look`].
    #[track_caller]
    pub fn find_by(&self, key: u64, test: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let guard = self.domain.enter();
        let entry = self.reach(key, &guard)?;
        if !test(CountedTable::value(entry, &guard)) {
            return None;
        }
        match bucket::is_marked(entry) {
            true => self.locked(key, |locked| locked.get()),
            false => Some(CountedTable::counted(entry, &guard)),
        }
    }

    /// Changes when an entry of this key's bucket is removed: a thread that read this, found no entry, and then
    /// read from elsewhere what was to be one, has something old if this has changed when it is to be added.
    pub fn version(&self, key: u64) -> u32 {
        let guard = self.domain.enter();
        let mut array = self.array(&guard);
        loop {
            let first = &array.buckets[array.index(key)];
            // Before the look whether it has moved: what is removed from the next array is not counted here.
            let version = first.version();
            if !first.is_moved() {
                return version;
            }
            array = match CountedTable::next(array, &guard) {
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
        let mut array = self.array(&guard);
        let (result, gone, (lines, slot)) = loop {
            let first = &array.buckets[array.index(key)];
            let lock = first.lock.lock();
            if first.is_moved()
                && let Some(next) = CountedTable::next(array, &guard)
            {
                drop(lock);
                array = next;
                continue;
            }
            let mut locked = LockedBucket {
                table: self,
                bucket: first,
                guard: &guard,
                key,
                gone: Gone::new(self),
                added: (0, 0),
            };
            let result = work(&mut locked);
            break (result, locked.gone, locked.added);
        };
        let has_next = !self.array(&guard).next.load().is_null();
        drop(gone);
        drop(guard);
        if lines > 0 {
            self.note_chain(((lines - 1) * bucket::SLOTS + slot + 1) as u64);
        }
        if lines > 1 && slot == 0 {
            self.note_lines(lines);
        }
        if lines > 0 && has_next {
            self.move_some();
        }
        result
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
        let guard = self.domain.enter();
        TableStatistics {
            entries: self.len(),
            buckets: self.array(&guard).buckets.len() as u64,
            // Relaxed: statistics, both.
            longest: self.longest.load(Ordering::Relaxed),
            // Relaxed: as above.
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
    pub fn for_each(&self, mut look: impl FnMut(&T)) {
        let guard = self.domain.enter();
        let array = self.array(&guard);
        for index in 0..array.buckets.len() {
            CountedTable::at(array, index, &guard, &mut |bucket| {
                for line in bucket.lines() {
                    // Never yes: all are looked at.
                    let looked = line.find(None, |entry| {
                        look(CountedTable::value(entry, &guard));
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
        guard: &'g Guard<'_>,
        visit: &mut dyn FnMut(&'g Bucket<T>),
    ) {
        let bucket = &array.buckets[index];
        if !bucket.is_moved() {
            return visit(bucket);
        }
        let mut places = vec![(array, index)];
        while let Some((array, index)) = places.pop() {
            let bucket = &array.buckets[index];
            match bucket.is_moved().then(|| CountedTable::next(array, guard)) {
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
    fn note_lines(&self, lines: usize) {
        let guard = self.domain.enter();
        let array = self.array(&guard);
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

    /// Moves some buckets of the current array into the next one, if there is one.
    fn move_some(&self) {
        let guard = self.domain.enter();
        let array = self.array(&guard);
        let Some(next) = CountedTable::next(array, &guard) else {
            return;
        };
        let buckets = array.buckets.len();
        // Relaxed: it only gives out numbers.
        let from = array.claimed.fetch_add(HELP, Ordering::Relaxed);
        let to = (from + HELP).min(buckets);
        if from >= to {
            return;
        }
        (from..to).for_each(|index| self.move_bucket(array, next, index));
        // AcqRel: the last one sees all others' moves, which its store publishes; pairs with itself.
        let moved = array.moved.fetch_add(to - from, Ordering::AcqRel) + to - from;
        if moved == buckets {
            let old = std::ptr::from_ref(array).cast_mut();
            self.current.store(std::ptr::from_ref(next).cast_mut());
            drop(guard);
            self.retire_array(old);
        }
    }

    #[allow(unsafe_code)]
    fn retire_array(&self, old: *mut Array<T>) {
        // SAFETY: from `Box::into_raw`; it was the current array until its last bucket had moved, which one thread
        // finds out, and nothing leads to it any more. A thread that still reads it has a guard that the domain waits
        // for.
        let array = unsafe { Box::from_raw(old) };
        self.domain.retire(Garbage::Array { _array: array });
    }

    /// Moves one bucket. Its two buckets in the next array are reached through it only.
    fn move_bucket(&self, array: &Array<T>, next: &Array<T>, index: usize) {
        let guard = self.domain.enter();
        let from = &array.buckets[index];
        let _lock = from.lock.lock();
        for index in [index, index + array.buckets.len()] {
            next.buckets[index].continue_version(from);
        }
        for line in from.lines() {
            let added = line.find(None, |entry| {
                let key = CountedTable::value(entry, &guard).key();
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
        let array = self.array(&guard);
        let mut entries = Vec::new();
        // In a large table most buckets are bare.
        let used = |index: &usize| !array.buckets[*index].is_bare();
        for index in (0..array.buckets.len()).filter(used) {
            CountedTable::at(array, index, &guard, &mut |bucket| {
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
        let is = |entry: *mut T| CountedTable::value(entry, self.guard).key() == self.key;
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
        Some(CountedTable::counted(self.used()?, self.guard))
    }

    /// As [`CountedTable::version`].
    #[must_use]
    pub fn version(&self) -> u32 {
        self.bucket.version()
    }

    /// As if an entry had been removed: what was read elsewhere before is old from now on.
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
