//! Atomic words whose memory ordering always has the same reason. The type gives the reason once, so that its uses need
//! no comment; an `Ordering` is written out only where the reason is a place's own.
//!
//! | type | which threads write and read it | ordering |
//! |---|---|---|
//! | [`Hint`] | all; a stale value costs time and never correctness | Relaxed |
//! | [`Statistic`] | all add; it is reported, or a bound that need not be exact | Relaxed |
//! | [`Balance`] | all add and take; the number is exact, and says nothing about other memory | Relaxed |
//! | [`OwnThread`] | the thread of its lane writes; others may read it as a hint | Relaxed |
//! | [`Guarded`] | a lock or the end of threads, which the field's documentation names, orders all accesses | Relaxed |
//! | [`Stamp`] | a thread that sees the stamp sees what was done before it was set | Release, Acquire |
//!
//! All are inlined to the one instruction of the atomic below, and are points of a schedule where that one is.

use std::fmt;

use crate::atomic::Ordering;

/// What one atomic word can hold: `bool` and the integers.
pub trait AtomicValue: sealed::WordValue {}

/// An [`AtomicValue`] that can be added to.
pub trait AtomicNumber: AtomicValue + sealed::WordSum {}

mod sealed {
    use crate::atomic::{self, Ordering};

    pub trait WordValue: Copy + PartialEq + Default + std::fmt::Debug {
        type Atomic;
        fn atomic(self) -> Self::Atomic;
        fn inner(atomic: &mut Self::Atomic) -> &mut Self;
        fn load(atomic: &Self::Atomic, order: Ordering) -> Self;
        fn store(self, atomic: &Self::Atomic, order: Ordering);
        fn swap(self, atomic: &Self::Atomic, order: Ordering) -> Self;
        fn replace(self, old: Self, atomic: &Self::Atomic, order: Ordering) -> Result<Self, Self>;
    }

    pub trait WordSum: WordValue + PartialOrd {
        fn fetch_add(self, atomic: &Self::Atomic, order: Ordering) -> Self;
        fn fetch_sub(self, atomic: &Self::Atomic, order: Ordering) -> Self;
        fn fetch_update(
            atomic: &Self::Atomic,
            order: Ordering,
            change: impl FnMut(Self) -> Option<Self>,
        ) -> Result<Self, Self>;
    }

    macro_rules! value {
        ($($value:ty, $atomic:ident;)*) => {$(
            impl super::AtomicValue for $value {}

            impl WordValue for $value {
                type Atomic = atomic::$atomic;

                #[inline]
                fn atomic(self) -> Self::Atomic {
                    atomic::$atomic::new(self)
                }

                #[inline]
                fn inner(atomic: &mut Self::Atomic) -> &mut $value {
                    atomic.get_mut()
                }

                #[inline]
                fn load(atomic: &Self::Atomic, order: Ordering) -> $value {
                    atomic.load(order)
                }

                #[inline]
                fn store(self, atomic: &Self::Atomic, order: Ordering) {
                    atomic.store(self, order);
                }

                #[inline]
                fn swap(self, atomic: &Self::Atomic, order: Ordering) -> $value {
                    atomic.swap(self, order)
                }

                #[inline]
                fn replace(
                    self,
                    old: $value,
                    atomic: &Self::Atomic,
                    order: Ordering,
                ) -> Result<$value, $value> {
                    // Relaxed: a value that was not replaced is only compared.
                    atomic.compare_exchange(old, self, order, Ordering::Relaxed)
                }
            }
        )*};
    }

    macro_rules! sum {
        ($($value:ty, $atomic:ident;)*) => {$(
            value!($value, $atomic;);

            impl super::AtomicNumber for $value {}

            impl WordSum for $value {
                #[inline]
                fn fetch_add(self, atomic: &Self::Atomic, order: Ordering) -> $value {
                    atomic.fetch_add(self, order)
                }

                #[inline]
                fn fetch_sub(self, atomic: &Self::Atomic, order: Ordering) -> $value {
                    atomic.fetch_sub(self, order)
                }

                #[inline]
                fn fetch_update(
                    atomic: &Self::Atomic,
                    order: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    // Relaxed: what is read is only compared; what is written has the caller's order.
                    atomic.fetch_update(order, Ordering::Relaxed, change)
                }
            }
        )*};
    }

    value!(bool, AtomicBool;);
    sum! {
        u8, AtomicU8;
        u16, AtomicU16;
        u32, AtomicU32;
        u64, AtomicU64;
        usize, AtomicUsize;
        i32, AtomicI32;
        i64, AtomicI64;
    }
}

/// What all the types have: made from a value, shown as the value, and open to the thread that has it alone.
macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $bound:ident $(, $default:ty)?) => {
        $(#[$doc])*
        pub struct $name<T: $bound $(= $default)?>(T::Atomic);

        impl<T: $bound> $name<T> {
            /// A word with this value.
            #[inline]
            #[must_use]
            pub fn new(value: T) -> $name<T> {
                $name(value.atomic())
            }

            /// The value, for a caller that no other thread can disturb.
            #[inline]
            pub fn get_mut(&mut self) -> &mut T {
                T::inner(&mut self.0)
            }
        }

        impl<T: $bound> Default for $name<T> {
            fn default() -> $name<T> {
                $name::new(T::default())
            }
        }

        impl<T: $bound> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // Relaxed: shown only.
                T::load(&self.0, Ordering::Relaxed).fmt(f)
            }
        }
    };
}

word! {
    /// A value that may be stale when it is read: the reader looks again under a lock, or a wrong guess costs it time
    /// only.
    Hint, AtomicValue
}

impl<T: AtomicValue> Hint<T> {
    /// A value that it had a moment ago.
    #[inline]
    pub fn get(&self) -> T {
        // Relaxed: the reader does not rely on it, nor on anything written before it.
        T::load(&self.0, Ordering::Relaxed)
    }

    /// From now on this value, for readers that come late enough.
    #[inline]
    pub fn set(&self, value: T) {
        // Relaxed: as for `get`, no reader relies on it.
        value.store(&self.0, Ordering::Relaxed);
    }

    /// Sets the value like [`Hint::set`], but does not write a word that has the value already, so that its cache line
    /// stays shared.
    #[inline]
    pub fn set_if_new(&self, value: T) {
        if self.get() != value {
            self.set(value);
        }
    }

    /// Sets the value and returns the one before, which no other caller gets.
    #[inline]
    pub fn swap(&self, value: T) -> T {
        // Relaxed: as for `get`; one caller alone gets each value.
        value.swap(&self.0, Ordering::Relaxed)
    }
}

impl<T: AtomicNumber> Hint<T> {
    /// Sets a value that is larger than the one it has; else nothing is written.
    #[inline]
    pub fn raise(&self, value: T) {
        // Relaxed: as for `get`; the largest value stays.
        let _ = T::fetch_update(&self.0, Ordering::Relaxed, |now| {
            (now < value).then_some(value)
        });
    }

    /// Adds, and returns the value before.
    #[inline]
    pub fn add(&self, amount: T) -> T {
        // Relaxed: as for `get`; no addition is lost.
        amount.fetch_add(&self.0, Ordering::Relaxed)
    }

    /// Subtracts, and returns the value before.
    #[inline]
    pub fn sub(&self, amount: T) -> T {
        // Relaxed: as for `get`; no subtraction is lost.
        amount.fetch_sub(&self.0, Ordering::Relaxed)
    }
}

word! {
    /// A number that any thread adds to, to be reported, or to be a bound that may be exceeded by what several threads
    /// add at one moment. No addition is lost: when the threads have ended, the sum is exact. Threads that add often
    /// have a [`crate::Counter`] instead, which shares no cache line.
    Statistic, AtomicNumber, u64
}

impl<T: AtomicNumber> Statistic<T> {
    /// The sum, without what other threads are about to add.
    #[inline]
    pub fn get(&self) -> T {
        // Relaxed: the number is all that the reader wants.
        T::load(&self.0, Ordering::Relaxed)
    }

    /// Adds, and returns the sum before.
    #[inline]
    pub fn add(&self, amount: T) -> T {
        // Relaxed: publishes nothing.
        amount.fetch_add(&self.0, Ordering::Relaxed)
    }

    /// Sets the sum to 0, and returns what it was.
    #[inline]
    pub fn take(&self) -> T {
        // Relaxed: publishes nothing; each addition is in one of the sums that are taken.
        T::default().swap(&self.0, Ordering::Relaxed)
    }

    /// Sets the sum to this value.
    #[inline]
    pub fn set(&self, value: T) {
        // Relaxed: publishes nothing.
        value.store(&self.0, Ordering::Relaxed);
    }
}

word! {
    /// An exact number of things that all threads share, such as free blocks: what a thread takes off it belongs to
    /// that thread. The number says nothing about other memory.
    Balance, AtomicNumber, i64
}

impl<T: AtomicNumber> Balance<T> {
    /// The number at one moment; others may take from it before the caller acts on it.
    #[inline]
    pub fn get(&self) -> T {
        // Relaxed: the number is all that the reader wants.
        T::load(&self.0, Ordering::Relaxed)
    }

    /// Adds (a negative amount too), and returns the number before.
    #[inline]
    pub fn add(&self, amount: T) -> T {
        // Relaxed: each change is one operation on the number, and publishes nothing.
        amount.fetch_add(&self.0, Ordering::Relaxed)
    }

    /// Changes the number if `change` gives another one. Returns the number before, as the error if it stayed.
    ///
    /// # Errors
    /// When `change` gave nothing.
    #[inline]
    pub fn update(&self, change: impl FnMut(T) -> Option<T>) -> Result<T, T> {
        // Relaxed: as for `add`.
        T::fetch_update(&self.0, Ordering::Relaxed, change)
    }

    /// Sets the number and returns the one before: what was in it belongs to the caller.
    #[inline]
    pub fn swap(&self, value: T) -> T {
        // Relaxed: as for `add`.
        value.swap(&self.0, Ordering::Relaxed)
    }
}

word! {
    /// A word on a thread's own lane ([`crate::Lanes`]): only that thread writes it. What others read is a hint.
    OwnThread, AtomicValue
}

impl<T: AtomicValue> OwnThread<T> {
    /// The value.
    #[inline]
    pub fn get(&self) -> T {
        // Relaxed: a thread sees its own stores; others do not rely on it.
        T::load(&self.0, Ordering::Relaxed)
    }

    /// From now on this value.
    #[inline]
    pub fn set(&self, value: T) {
        // Relaxed: a thread sees its own stores.
        value.store(&self.0, Ordering::Relaxed);
    }

    /// Sets the value and returns the one before.
    #[inline]
    pub fn swap(&self, value: T) -> T {
        // Relaxed: a thread sees its own stores.
        value.swap(&self.0, Ordering::Relaxed)
    }
}

word! {
    /// A word that is written and read only where something else orders the accesses: the lock that the field's
    /// documentation names, the drain of an epoch, or the start and the join of threads.
    Guarded, AtomicValue
}

impl<T: AtomicValue> Guarded<T> {
    /// The value.
    #[inline]
    pub fn get(&self) -> T {
        // Relaxed: what guards the word orders it.
        T::load(&self.0, Ordering::Relaxed)
    }

    /// From now on this value.
    #[inline]
    pub fn set(&self, value: T) {
        // Relaxed: what guards the word orders it.
        value.store(&self.0, Ordering::Relaxed);
    }

    /// Sets the value and returns the one before.
    #[inline]
    pub fn swap(&self, value: T) -> T {
        // Relaxed: what guards the word orders it.
        value.swap(&self.0, Ordering::Relaxed)
    }

    /// Sets the value if it is `old`: of several threads that share the lock, one does.
    ///
    /// # Errors
    /// The present value, if it is another one.
    #[inline]
    pub fn replace(&self, old: T, value: T) -> Result<T, T> {
        // Relaxed: what guards the word orders it.
        value.replace(old, &self.0, Ordering::Relaxed)
    }
}

impl<T: AtomicNumber> Guarded<T> {
    /// Changes the value if `change` gives another one. Returns the value before, as the error if it stayed.
    ///
    /// # Errors
    /// When `change` gave nothing.
    #[inline]
    pub fn update(&self, change: impl FnMut(T) -> Option<T>) -> Result<T, T> {
        // Relaxed: what guards the word orders it.
        T::fetch_update(&self.0, Ordering::Relaxed, change)
    }

    /// Adds, and returns the value before. Threads that share the lock may add at one time.
    #[inline]
    pub fn add(&self, amount: T) -> T {
        // Relaxed: what guards the word orders it; no addition is lost.
        amount.fetch_add(&self.0, Ordering::Relaxed)
    }

    /// Subtracts, and returns the value before. Threads that share the lock may subtract at one time.
    #[inline]
    pub fn sub(&self, amount: T) -> T {
        // Relaxed: what guards the word orders it; no subtraction is lost.
        amount.fetch_sub(&self.0, Ordering::Relaxed)
    }
}

word! {
    /// When something last changed, or how often it did: a thread that sees the stamp sees what the thread that set it
    /// did before.
    Stamp, AtomicNumber, u64
}

impl<T: AtomicNumber> Stamp<T> {
    /// The latest stamp.
    #[inline]
    pub fn get(&self) -> T {
        // Acquire: what was done before the stamp was set is seen; pairs with the Release in `set`, `advance` and
        // `raise`.
        T::load(&self.0, Ordering::Acquire)
    }

    /// Publishes this stamp for everything that the caller did before.
    #[inline]
    pub fn set(&self, value: T) {
        // Release: after what the caller did; pairs with the Acquire in `get`.
        value.store(&self.0, Ordering::Release);
    }

    /// Counts one more of what the caller did before.
    #[inline]
    pub fn advance(&self, by: T) {
        // Release: after what the caller did; pairs with the Acquire in `get`.
        by.fetch_add(&self.0, Ordering::Release);
    }

    /// Sets the stamp like [`Stamp::set`], but a later stamp stays. The word is written in any case: a thread that sees
    /// the stamp sees what all threads did before they raised it.
    #[inline]
    pub fn raise(&self, value: T) {
        // Release: after what the caller did; pairs with the Acquire in `get`.
        let _ = T::fetch_update(&self.0, Ordering::Release, |now| {
            Some(if now < value { value } else { now })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_what_was_set() {
        let hint = Hint::new(7u32);
        hint.set_if_new(8);
        assert_eq!(
            (hint.swap(9), hint.add(1), hint.sub(4), hint.get()),
            (8, 9, 10, 6)
        );
        let statistic = Statistic::<u64>::default();
        assert_eq!(
            (
                statistic.add(2),
                statistic.add(3),
                statistic.take(),
                statistic.get()
            ),
            (0, 2, 5, 0)
        );
        let balance = Balance::new(5i64);
        let take = |want: i64| balance.update(|have| (have >= want).then_some(have - want));
        assert_eq!(
            (take(3), take(3), balance.add(-2), balance.swap(4)),
            (Ok(5), Err(2), 2, 0)
        );
        let mut own = OwnThread::new(false);
        assert!(!own.swap(true) && own.get() && *own.get_mut());
        let guarded = Guarded::new(1usize);
        assert_eq!(
            (guarded.add(2), guarded.sub(1), format!("{guarded:?}")),
            (1, 3, "2".to_owned())
        );
        let stamp = Stamp::new(3u64);
        stamp.raise(2);
        stamp.advance(1);
        assert_eq!(stamp.get(), 4);
        stamp.raise(9);
        assert_eq!(stamp.get(), 9);
    }

    #[test]
    fn a_thread_that_sees_a_stamp_sees_what_was_done_before() {
        let stamps = (Guarded::new(0u64), Stamp::new(0u64));
        crate::thread::workers(2, |thread| {
            for round in 1..10_000 {
                if thread == 0 {
                    stamps.0.set(round);
                    stamps.1.set(round);
                } else {
                    let seen = stamps.1.get();
                    assert!(stamps.0.get() >= seen);
                }
            }
        });
    }
}
