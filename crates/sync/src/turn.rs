//! Where the primitives ask whose turn it is. Without the feature `simulate` every answer is that the thread is not
//! scheduled, which the compiler knows; with it, [`crate::schedule`] answers for the threads that it runs.

#[cfg(feature = "simulate")]
pub(crate) use crate::schedule::turn::*;
#[cfg(not(feature = "simulate"))]
pub(crate) use unscheduled::*;

#[cfg(not(feature = "simulate"))]
mod unscheduled {
    use crate::clock::{Duration, Instant};
    use crate::gauge::{Gauge, Reading};

    /// Notifies a schedule that a lock is free again.
    #[derive(Debug)]
    pub(crate) struct Released;

    impl Released {
        #[inline]
        pub(crate) fn of<T: ?Sized>(_lock: &T) -> Released {
            Released
        }
    }

    #[inline]
    pub(crate) fn point() {}

    #[inline]
    pub(crate) fn acquire<L: ?Sized, G>(
        _lock: &L,
        _attempt: impl Fn() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> G {
        wait()
    }

    #[inline]
    pub(crate) fn wait<C, T: ?Sized>(
        _condvar: &C,
        _guard: &mut parking_lot::MutexGuard<'_, T>,
        _released: &Released,
        _time: Option<Duration>,
    ) -> Option<bool> {
        None
    }

    #[inline]
    pub(crate) fn notify<C>(_condvar: &C, _all: bool) {}

    #[inline]
    pub(crate) fn yield_now() -> bool {
        false
    }

    #[inline]
    pub(crate) fn sleep(_time: Duration) -> bool {
        false
    }

    #[inline]
    pub(crate) fn workers(_count: usize, _work: &(impl Fn(usize) + Sync)) -> bool {
        false
    }

    #[inline]
    pub(crate) fn instant() -> Option<Instant> {
        None
    }

    #[inline]
    pub(crate) fn wall() -> Option<(i64, u32)> {
        None
    }

    #[inline]
    pub(crate) fn index() -> Option<usize> {
        None
    }

    #[inline]
    pub(crate) fn count(_gauge: Gauge, _begins: bool) {}

    #[inline]
    pub(crate) fn reading() -> Reading {
        Reading::default()
    }
}
