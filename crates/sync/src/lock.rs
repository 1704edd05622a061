//! parking_lot's locks with a rank. Waiting for a lock out of order panics in builds with debug assertions; trying
//! never waits, so it is allowed in any order. No poisoning: a panic while a lock is held unlocks it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::Rank;
use crate::held::{Held, Kept};
use crate::turn::{self, Released};

/// Mutual exclusion with a rank.
pub struct Mutex<T: ?Sized> {
    rank: Kept,
    inner: parking_lot::Mutex<T>,
}

/// The right to use what a [`Mutex`] protects, until dropped.
#[must_use = "the lock is released at once when its guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    // Before `held`, so that the lock is released first.
    inner: parking_lot::MutexGuard<'a, T>,
    _released: Released,
    _held: Held,
}

impl<T> Mutex<T> {
    /// A free lock of this rank around `value`.
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex {
            rank: Kept::new(rank),
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// Gives back the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the lock is free and takes it.
    ///
    /// # Panics
    /// In builds with debug assertions, when this thread holds a lock of the same or a later rank.
    #[track_caller]
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        Held::check(self.rank);
        MutexGuard {
            inner: turn::acquire(self, || self.inner.try_lock(), || self.inner.lock()),
            _released: Released::of(self),
            _held: Held::push(self.rank),
        }
    }

    /// Takes the lock if it is free. Never waits, so the order does not matter.
    #[track_caller]
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        turn::point();
        let inner = self.inner.try_lock()?;
        Some(MutexGuard {
            inner,
            _released: Released::of(self),
            _held: Held::push(self.rank),
        })
    }

    /// The value, without locking: no other thread can have it.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A place to wait, with a [`Mutex`] released meanwhile, until another thread reports a change.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// A condition that no thread waits for yet.
    #[must_use]
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Releases the lock, waits to be notified (or wakes for no reason), and takes the lock again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        if turn::wait(self, &mut guard.inner, &guard._released, None).is_none() {
            self.0.wait(&mut guard.inner);
        }
    }

    /// Waits like [`Condvar::wait`], but at most for `time`. Returns whether the time was up.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> bool {
        turn::wait(self, &mut guard.inner, &guard._released, Some(time))
            .unwrap_or_else(|| self.0.wait_for(&mut guard.inner, time).timed_out())
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        turn::notify(self, false);
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        turn::notify(self, true);
        self.0.notify_all();
    }
}

/// Many readers or one writer, with a rank.
pub struct RwLock<T: ?Sized> {
    rank: Kept,
    inner: parking_lot::RwLock<T>,
}

/// The right to read what a [`RwLock`] protects, until dropped.
#[must_use = "the lock is released at once when its guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _released: Released,
    _held: Held,
}

/// The right to change what a [`RwLock`] protects, until dropped.
#[must_use = "the lock is released at once when its guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _released: Released,
    _held: Held,
}

impl<T> RwLock<T> {
    /// A free lock of this rank around `value`.
    pub const fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock {
            rank: Kept::new(rank),
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// As [`RwLock::new`], for a lock that may be waited for while others of its rank with smaller keys are held.
    pub const fn keyed(rank: Rank, key: u64, value: T) -> RwLock<T> {
        RwLock {
            rank: Kept::keyed(rank, key),
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// Gives back the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock and takes it for reading.
    ///
    /// # Panics
    /// In builds with debug assertions, when this thread holds a lock of the same or a later rank.
    #[track_caller]
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        Held::check(self.rank);
        RwLockReadGuard {
            inner: turn::acquire(self, || self.inner.try_read(), || self.inner.read()),
            _released: Released::of(self),
            _held: Held::push(self.rank),
        }
    }

    /// Waits until no thread holds the lock and takes it for writing.
    ///
    /// # Panics
    /// In builds with debug assertions, when this thread holds a lock of the same or a later rank.
    #[track_caller]
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        Held::check(self.rank);
        RwLockWriteGuard {
            inner: turn::acquire(self, || self.inner.try_write(), || self.inner.write()),
            _released: Released::of(self),
            _held: Held::push(self.rank),
        }
    }

    /// Takes the lock for reading if that needs no waiting.
    #[track_caller]
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        turn::point();
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard {
            inner,
            _released: Released::of(self),
            _held: Held::push(self.rank),
        })
    }

    /// Takes the lock for writing if that needs no waiting.
    #[track_caller]
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        turn::point();
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard {
            inner,
            _released: Released::of(self),
            _held: Held::push(self.rank),
        })
    }

    /// The value, without locking: no other thread can have it.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_taken_in_order_are_fine_and_released_in_any_order() {
        let outer = Mutex::new(Rank::Job, 1);
        let inner = RwLock::new(Rank::Leaf, 2);
        let a = outer.lock();
        let b = inner.read();
        assert_eq!(*a + *b, 3);
        drop(a);
        drop(b);
        *outer.lock() = 5;
        *inner.write() += 1;
        assert_eq!((outer.into_inner(), inner.into_inner()), (5, 3));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn an_inversion_panics_and_names_both_places() {
        let outer = Mutex::new(Rank::Job, ());
        let inner = Mutex::new(Rank::Device, ());
        let line = line!() + 1;
        let held = inner.lock();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = outer.lock();
        }))
        .unwrap_err();
        drop(held);
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(
            message.contains("Job is waited for") && message.contains("Device is held"),
            "{message}"
        );
        assert!(message.contains(&format!("lock.rs:{line}:")), "{message}");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order")]
    fn two_locks_of_one_rank_are_an_inversion() {
        let a = Mutex::new(Rank::Device, ());
        let b = Mutex::new(Rank::Device, ());
        let _a = a.lock();
        let _b = b.lock();
    }

    #[test]
    fn trying_is_allowed_in_any_order() {
        let outer = Mutex::new(Rank::Job, ());
        let inner = Mutex::new(Rank::Device, ());
        let held = inner.lock();
        assert!(outer.try_lock().is_some());
        assert!(inner.try_lock().is_none());
        drop(held);
        assert!(inner.try_lock().is_some());
    }
}
