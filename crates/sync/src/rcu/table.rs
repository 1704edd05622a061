//! The table: entries are found without a lock and changed under their bucket's lock; it grows while both go on.
//!
//! Why a reader finds every entry. An entry is stored before its tag, and the tag is cleared before the entry. A
//! bucket's entries are added to the next array before the bucket is marked as moved, and the bucket's own lines stay
//! as they were: a reader that began before the move goes on in them and finds the entries of that moment. The next
//! array's buckets are reached only through the moved bucket, so filling them takes no lock.
//!
//! Why no thread uses an entry that leaves. A hand marks an entry, waits until all guards that exist at that moment are
//! gone, takes the bucket's lock, and checks that the mark is still set and that the table's count is the only one. A
//! reader that meets the mark removes it under the lock before it counts the entry; a reader that met the entry without
//! the mark had its guard before the mark was set. So the hand sees every count: no thread holds an entry that leaves
//! the table, and a thread that loads it again has the only instance.
//!
//! Memory: a removed entry, and an array whose buckets have all moved, are given to the table's [`Domain`], which drops
//! them when all guards that existed at that moment are gone; a bucket's further lines are freed with their array.
//! Interleavings: `under_many_schedules_an_entry_has_one_instance_and_loses_nothing` in `rcu/tests.rs`.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::rcu::bucket::{self, Array, Bucket, Link};
use crate::rcu::domain::{Domain, Kept};
use crate::{Arc, Counter, Mutex, Rank, turn};

/// If a bucket has this number of lines, the table grows even if it has few entries for its size.
const LONG: usize = 4;
/// How many buckets a thread moves when it adds an entry while the table grows.
const HELP: usize = 32;
/// The most buckets of a table.
const MOST: usize = 1 << 26;

/// An entry of a table.
pub trait Keyed: Send + Sync {
    /// The number by which the entry is found; it never changes.
    fn key(&self) -> u64;
}

/// What the table gives to its domain.
pub(super) enum Garbage<T> {
    /// A removed entry.
    Entry { _entry: Arc<T> },
    /// An array whose buckets have all moved.
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

/// Counts of a table at one moment.
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
    /// Removed entries and arrays that are not dropped yet, because readers may still see them.
    pub waiting: u64,
}

/// Entries whose slots were emptied. When this is dropped, the domain keeps them for readers that still see them.
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

/// What a thread that changed a bucket has to do after it released the bucket's lock.
pub(super) struct Left<'a, T: Keyed> {
    /// Entries to be dropped when the bucket is not locked any more.
    pub(super) gone: Gone<'a, T>,
    pub(super) added: Option<Added>,
}

/// One key's bucket, locked.
pub struct LockedBucket<'a, T: Keyed> {
    table: &'a CountedTable<T>,
    bucket: &'a Bucket<T>,
    kept: Kept<'a>,
    key: u64,
    /// Entries that were taken out, to be given to the domain when the lock is released.
    gone: &'a mut Vec<Arc<T>>,
    /// Where an entry was added: its line's number from 1 on, and its slot.
    added: (usize, usize),
}

impl<T: Keyed> CountedTable<T> {
    /// An empty table that begins with this many buckets of 64 bytes, rounded up to a power of two. `rank` is the rank
    /// of the buckets' locks.
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

    /// The readers of this table, and the removed entries and arrays that are kept for them.
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

    /// The array into which another moves, if the table grows.
    #[allow(unsafe_code)]
    pub(super) fn next<'g>(array: &Array<T>, _kept: Kept<'g>) -> Option<&'g Array<T>> {
        // SAFETY: null, or from `Box::into_raw` in `note_lines`. It is given away after it was the current array; a
        // caller that reached `array` has a guard from before that, which keeps this one too, or the table for itself.
        unsafe { array.next.load().as_ref() }
    }

    /// The entry behind a slot's pointer, with the hand's mark or without.
    #[allow(unsafe_code)]
    pub(super) fn value<'g>(entry: *mut T, _kept: Kept<'g>) -> &'g T {
        // SAFETY: from `Arc::into_raw`, loaded from a slot under a guard: the table's count of it is given to the
        // domain only after the slot was emptied, so it outlives the guard. A caller that has the table for itself
        // drops what it took out after it is done.
        unsafe { &*bucket::plain(entry) }
    }

    /// A further count of an entry.
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
        // SAFETY: from `Arc::into_raw`; the entry is in a slot, and the lock keeps it there. The count is not given up.
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
            // A next array exists, or the bucket would not have moved.
            array = CountedTable::next(array, kept)?;
        }
    }

    /// The entry with this key, counted. Takes no lock, unless a hand marked the entry since it was last found.
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

    /// Calls `look` with the entry with this key, without counting the entry: nothing is written that other threads
    /// read. `look` is short and waits for nothing; the entry may be changed meanwhile. As [`CountedTable::find`]
    /// otherwise.
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

    /// The entry that [`CountedTable::find`] returns, if `test` accepts it; `test` is a look as in
    /// [`CountedTable::look`].
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

    /// A number that changes when an entry of this key's bucket is removed. A thread that finds no entry and reads its
    /// contents from elsewhere reads this number before; if the number has changed when the thread adds the entry, the
    /// contents are out of date.
    pub fn version(&self, key: u64) -> u32 {
        let guard = self.domain.enter();
        self.version_kept(key, guard.kept())
    }

    /// As [`CountedTable::version`].
    pub(super) fn version_kept(&self, key: u64, kept: Kept<'_>) -> u32 {
        let mut array = self.array(kept);
        loop {
            let first = &array.buckets[array.index(key)];
            // Read before `is_moved`: a removal in the next array does not change this bucket's version.
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

    /// Calls `work` with one key's bucket, whose lock is held meanwhile. `work` waits for nothing but locks of later
    /// ranks, and does nothing else with this table.
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

    /// As [`CountedTable::locked`], but leaves to the caller what is to be done after the lock was released. A thread
    /// that has the table for itself takes no lock.
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

    /// Does what is to be done after [`CountedTable::locked_kept`], for a thread that has the table for itself. The
    /// returned array is to be dropped when other threads may have the table again.
    pub(super) fn grow_alone(&self, added: &Added, kept: Kept<'_>) -> Option<Box<Array<T>>> {
        self.note_chain(added.entries());
        if added.is_new_line() {
            self.note_lines(added.lines, kept);
        }
        added.has_next.then(|| self.move_some(kept)).flatten()
    }

    /// The number of entries: a sum over all threads' counts, too slow for every call.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.added.sum().saturating_sub(self.removed.sum())
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The table's counts now.
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

    /// Drops removed entries and arrays that no reader sees any more; does not wait for readers.
    pub fn flush(&self) {
        self.domain.flush();
    }

    /// Calls `look` once with each entry that is in the table all the time, and with some of the others. The calls are
    /// as in [`CountedTable::look`]; nothing is freed meanwhile.
    pub fn for_each(&self, look: impl FnMut(&T)) {
        self.for_each_kept(self.domain.enter().kept(), look);
    }

    /// As [`CountedTable::for_each`].
    pub(super) fn for_each_kept(&self, kept: Kept<'_>, mut look: impl FnMut(&T)) {
        let array = self.array(kept);
        for index in 0..array.buckets.len() {
            CountedTable::at(array, index, kept, &mut |bucket| {
                for line in bucket.lines() {
                    // The test never accepts an entry, so that every entry is looked at.
                    let looked = line.find(None, |entry| {
                        look(CountedTable::value(entry, kept));
                        false
                    });
                    debug_assert!(looked.is_none(), "no entry is asked for");
                }
            });
        }
    }

    /// Calls `visit` with the buckets that hold the entries of an array's bucket now.
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
        // The bucket is locked, so the entry that was found in the slot is still there.
        let entry = line.entry(slot);
        line.clear(slot);
        first.removed();
        self.removed.add(1);
        CountedTable::taken(entry)
    }

    /// Records that a bucket has this number of entries.
    fn note_chain(&self, entries: u64) {
        let longer = |longest| (longest < entries).then_some(entries);
        let longest = &self.longest;
        // Relaxed: a statistic; where it does not grow, nothing is written.
        let _ = longest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
    }

    /// Makes the table grow, if a bucket that has this number of lines now calls for it.
    fn note_lines(&self, lines: usize, kept: Kept<'_>) {
        let array = self.array(kept);
        let (buckets, entries) = (array.buckets.len(), self.len());
        let is_crowded = entries > 2 * buckets as u64;
        let is_long = lines >= LONG && 8 * entries > buckets as u64;
        if !(is_crowded || is_long) || buckets >= MOST || !array.next.load().is_null() {
            return;
        }
        // Another thread that holds the lock makes the next array.
        let Some(_growth) = self.growth.try_lock() else {
            return;
        };
        // Another thread may have made it, and all buckets may even have moved: then `array` is not the current one,
        // and has a next array.
        if array.next.load().is_null() {
            let next = Box::new(Array::new(self.rank, 2 * buckets));
            array.next.store(Box::into_raw(next));
            // Relaxed: a statistic.
            self.grown.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves some buckets of the current array into the next one, if the table grows. If that moved the last bucket,
    /// returns the array, which is to be kept for its readers.
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

    /// An array whose last bucket has moved, as a value to be dropped.
    #[allow(unsafe_code)]
    fn taken_array(old: *mut Array<T>) -> Box<Array<T>> {
        // SAFETY: from `Box::into_raw`; it was the current array until its last bucket had moved, which one thread
        // finds out, and nothing leads to it any more. A thread that still reads it has a guard that the domain waits
        // for: this is given to the domain, or no other thread is in the table.
        unsafe { Box::from_raw(old) }
    }

    /// Moves one bucket. The two buckets of the next array that take its entries are reached only through it.
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
        // In a large table most buckets have no entry.
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
            // No other thread has the table, so no reader sees the entries of its slots.
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

    /// The entry with the key; removes the hand's mark from it.
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

    /// Counts a removal without removing an entry: contents that a thread read elsewhere before are out of date.
    pub fn outdate(&mut self) {
        self.bucket.removed();
    }

    /// Adds an entry with the bucket's key. If one with this key is there, replaces it and returns it.
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

    /// Takes out the entry with the key. Other threads may still use it.
    pub fn remove(&mut self) -> Option<Arc<T>> {
        let (line, slot, _) = self.place()?;
        let old = self.table.take_out(self.bucket, line, slot);
        self.gone.push(Arc::clone(&old));
        Some(old)
    }
}
