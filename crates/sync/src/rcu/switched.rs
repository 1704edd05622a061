//! A table that is used without a lock or, in its plain form, under one lock; the form may be changed while threads
//! use it.
//!
//! ```text
//! shared   a reader has a guard, a change the lock of a bucket, and what is taken out is kept for readers
//! both     as shared, each also under the one lock: while the form changes
//! alone    under the one lock and nothing else: no guard, no bucket's lock, and what is taken out is dropped at once
//! ```
//!
//! Why no other thread is in the table while a thread has it alone. A thread that finds the form `shared` looks once
//! more after it published its guard, and works only if it is still `shared`. A change to `alone` sets `both`, waits
//! for a grace period, takes the one lock and sets `alone`. If the thread's second look comes first, its guard was
//! published before the grace period, which waits for it. If the store of `both` comes first, the second look finds it,
//! and the thread takes the one lock, under which the form is read again. All of these are SeqCst.
//!
//! A change back to `shared` is made under the one lock, so that no thread has the table alone then. What was done
//! alone is seen by a thread that finds the form `shared`.
//!
//! Memory: while a thread has the table alone, it drops what it takes out at once, because no reader can have reached
//! it; in the other forms the table's domain drops it (`rcu/domain.rs`). Interleavings:
//! `under_many_schedules_nothing_is_lost_while_the_form_changes` in `rcu/tests.rs`.

use crate::atomic::{AtomicU32, Ordering};
use crate::rcu::domain::{Guard, Kept};
use crate::rcu::hand::{Hand, Swept};
use crate::rcu::table::{CountedTable, Keyed, LockedBucket, TableStatistics};
use crate::{Arc, CachePadded, Mutex, MutexGuard, Rank, thread};

const SHARED: u32 = 0;
const BOTH: u32 = 1;
const ALONE: u32 = 2;

/// A [`CountedTable`] that can be switched, while threads use it, to a plain form under one lock and back.
pub struct SwitchedTable<T: Keyed> {
    table: CountedTable<T>,
    /// [one lock; read: any time, SeqCst]
    form: CachePadded<AtomicU32>,
    /// The one lock, and how often the form was changed. [the rank given to `new`]
    whole: CachePadded<Mutex<u64>>,
}

/// How a thread is in the table.
enum Stay<'a> {
    Shared(Guard<'a>),
    Both {
        guard: Guard<'a>,
        _whole: MutexGuard<'a, u64>,
    },
    Alone {
        _whole: MutexGuard<'a, u64>,
    },
}

impl Stay<'_> {
    #[allow(unsafe_code)]
    fn kept(&self) -> Kept<'_> {
        match self {
            Stay::Shared(guard) | Stay::Both { guard, .. } => guard.kept(),
            // SAFETY: the one lock is held and the form is `ALONE`: no thread is in the table without the lock, and
            // none enters before it is released; see the module.
            Stay::Alone { .. } => unsafe { Kept::alone() },
        }
    }
}

impl<T: Keyed> SwitchedTable<T> {
    /// An empty table with this many buckets to begin with. The one lock has the rank `whole`, the locks of buckets the
    /// later rank `bucket`.
    #[must_use]
    pub fn new(whole: Rank, bucket: Rank, buckets: usize, is_plain: bool) -> SwitchedTable<T> {
        SwitchedTable {
            table: CountedTable::new(bucket, buckets),
            form: CachePadded::new(AtomicU32::new(if is_plain { ALONE } else { SHARED })),
            whole: CachePadded::new(Mutex::new(whole, 0)),
        }
    }

    /// From the return on, everything is done under the one lock, or without it. Waits for readers.
    pub fn choose(&self, is_plain: bool) {
        let mut changes = self.whole.lock();
        *changes += 1;
        let change = *changes;
        // Relaxed: written under the lock only.
        let now = self.form.load(Ordering::Relaxed);
        if !is_plain || now == ALONE {
            let form = if is_plain { ALONE } else { SHARED };
            // SeqCst: after all that was done alone; pairs with the loads in `enter_shared`.
            self.form.store(form, Ordering::SeqCst);
            return;
        }
        // SeqCst: before the grace period; pairs with the second load in `enter_shared`.
        self.form.store(BOTH, Ordering::SeqCst);
        drop(changes);
        let domain = self.table.domain();
        let epoch = domain.epoch();
        // A guard is short and waits for nothing.
        while domain.advance() < epoch + 2 {
            thread::yield_now();
        }
        let changes = self.whole.lock();
        if *changes == change {
            // SeqCst: after the grace period, so no guard of the old form is left; pairs with the loads in
            // `enter_shared`.
            self.form.store(ALONE, Ordering::SeqCst);
        }
    }

    #[inline]
    #[track_caller]
    fn enter(&self) -> Stay<'_> {
        loop {
            if let Some(guard) = self.enter_shared() {
                return Stay::Shared(guard);
            }
            if let Some(stay) = self.enter_locked() {
                return stay;
            }
        }
    }

    /// A guard, if the form is `SHARED`.
    #[inline]
    fn enter_shared(&self) -> Option<Guard<'_>> {
        // Relaxed: a hint; it is read again.
        if self.form.load(Ordering::Relaxed) != SHARED {
            return None;
        }
        let guard = self.table.domain().enter();
        // SeqCst: after the guard was published; pairs with the stores in `choose`.
        (self.form.load(Ordering::SeqCst) == SHARED).then_some(guard)
    }

    /// The one lock, unless the form is `SHARED` under it.
    #[cold]
    #[track_caller]
    fn enter_locked(&self) -> Option<Stay<'_>> {
        let _whole = self.whole.lock();
        // Relaxed: written under the lock only.
        match self.form.load(Ordering::Relaxed) {
            ALONE => Some(Stay::Alone { _whole }),
            BOTH => Some(Stay::Both {
                guard: self.table.domain().enter(),
                _whole,
            }),
            _ => None,
        }
    }

    /// [`CountedTable::find`].
    #[inline]
    #[track_caller]
    pub fn find(&self, key: u64) -> Option<Arc<T>> {
        let stay = self.enter();
        self.table.find_kept(key, stay.kept())
    }

    /// [`CountedTable::find_by`].
    #[inline]
    #[track_caller]
    pub fn find_by(&self, key: u64, test: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let stay = self.enter();
        self.table.find_by_kept(key, stay.kept(), test)
    }

    /// [`CountedTable::look`].
    #[inline]
    #[track_caller]
    pub fn look<R>(&self, key: u64, look: impl FnOnce(&T) -> R) -> Option<R> {
        let stay = self.enter();
        self.table.look_kept(key, stay.kept(), look)
    }

    /// [`CountedTable::version`].
    #[track_caller]
    pub fn version(&self, key: u64) -> u32 {
        let stay = self.enter();
        self.table.version_kept(key, stay.kept())
    }

    /// [`CountedTable::locked`].
    #[track_caller]
    pub fn locked<R>(&self, key: u64, work: impl FnOnce(&mut LockedBucket<'_, T>) -> R) -> R {
        let stay = self.enter();
        if !matches!(stay, Stay::Alone { .. }) {
            return self.table.locked(key, work);
        }
        let (result, left) = self.table.locked_kept(key, stay.kept(), work);
        let moved = left
            .added
            .as_ref()
            .and_then(|added| self.table.grow_alone(added, stay.kept()));
        drop(stay);
        // With nothing locked.
        drop((left, moved));
        result
    }

    /// [`CountedTable::sweep`]. In the plain form it takes the one lock for all of it, and waits for no readers; a
    /// sweep without the lock ends when the form changes.
    #[track_caller]
    #[allow(unsafe_code)]
    pub fn sweep(&self, hand: &mut Hand, want: usize, may_go: &mut dyn FnMut(&T) -> bool) -> Swept {
        // Relaxed: a hint; it is read again.
        let is_shared = self.form.load(Ordering::Relaxed) == SHARED;
        let whole = (!is_shared).then(|| self.whole.lock());
        // Relaxed: written under the lock only.
        let is_alone = whole.is_some() && self.form.load(Ordering::Relaxed) == ALONE;
        // A guard over all of the sweep would keep what it marks.
        let enter = |work: &mut dyn FnMut(Kept<'_>)| {
            if is_alone {
                // SAFETY: as in `Stay::kept`; the lock is held until the sweep has ended.
                work(unsafe { Kept::alone() });
                return true;
            }
            let guard = match &whole {
                Some(_) => Some(self.table.domain().enter()),
                None => self.enter_shared(),
            };
            guard.as_ref().map(|guard| work(guard.kept())).is_some()
        };
        let (swept, gone) = self.table.sweep_kept(hand, want, may_go, &enter);
        drop(whole);
        // With nothing locked.
        drop(gone);
        swept
    }

    /// [`CountedTable::for_each`].
    #[track_caller]
    pub fn for_each(&self, look: impl FnMut(&T)) {
        let stay = self.enter();
        self.table.for_each_kept(stay.kept(), look);
    }

    /// [`CountedTable::len`].
    #[must_use]
    pub fn len(&self) -> u64 {
        self.table.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// [`CountedTable::statistics`].
    #[must_use]
    pub fn statistics(&self) -> TableStatistics {
        let stay = self.enter();
        self.table.statistics_kept(stay.kept())
    }

    /// The table below.
    #[cfg(test)]
    pub(super) fn counted(&self) -> &CountedTable<T> {
        &self.table
    }

    /// [`CountedTable::flush`].
    pub fn flush(&self) {
        self.table.flush();
    }
}
