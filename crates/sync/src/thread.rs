//! Threads. Scoped ones end before the call that started them returns, so a library call leaves none behind.

use std::num::NonZero;

use crate::clock::Duration;
use crate::turn;

pub use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle, panicking, scope, spawn};

/// Lets another thread run, if one can.
pub fn yield_now() {
    if !turn::yield_now() {
        std::thread::yield_now();
    }
}

/// Waits for so long.
#[track_caller]
pub fn sleep(time: Duration) {
    if !turn::sleep(time) {
        std::thread::sleep(time);
    }
}

/// A moment's pause in a loop that waits for another core.
#[inline]
pub fn spin() {
    std::hint::spin_loop();
}

/// Checks up to `looks` times, with pauses in between, whether the condition is true; returns what it saw last. For
/// waits that end within microseconds; in a schedule, where each check would be a turn, it checks once.
#[inline]
pub fn spin_until(looks: u32, is_so: impl Fn() -> bool) -> bool {
    let looks = if turn::index().is_some() { 1 } else { looks };
    (0..looks).any(|_| {
        let so = is_so();
        if !so {
            spin();
        }
        so
    })
}

/// The number of threads that a schedule reports as able to run at once, so that a seed gives the same run on every
/// machine.
const SCHEDULED: usize = 4;

/// How many threads can run at once (at least 1; 1 when the system does not say).
#[must_use]
pub fn available_parallelism() -> usize {
    if turn::index().is_some() {
        return SCHEDULED;
    }
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs `work` on `count` threads at once (each gets its number from 0) and waits for all. One thread runs on the
/// caller's own; `count` 0 counts as 1. Called by a scheduled thread, its workers are scheduled with it; threads
/// started in other ways are not.
///
/// # Panics
/// When `work` panics on any thread.
#[track_caller]
pub fn workers(count: usize, work: impl Fn(usize) + Sync) {
    if turn::workers(count, &work) {
        return;
    }
    scope(|scope| {
        for number in 1..count {
            let work = &work;
            scope.spawn(move || work(number));
        }
        work(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_a_number_of_its_own() {
        let seen = crate::Mutex::new(crate::Rank::Leaf, Vec::new());
        workers(4, |number| seen.lock().push(number));
        let mut seen = seen.into_inner();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
    }

    #[test]
    fn a_short_wait_ends_when_it_is_so_and_after_its_looks() {
        use crate::atomic::{AtomicU32, Ordering};
        let looks = AtomicU32::new(0);
        // Relaxed: one thread.
        let fifth = || looks.fetch_add(1, Ordering::Relaxed) == 4;
        assert!(!spin_until(4, fifth));
        assert!(spin_until(4, fifth));
        assert!(!spin_until(7, fifth));
        // Relaxed: one thread.
        assert_eq!(looks.load(Ordering::Relaxed), 4 + 1 + 7);
    }
}
