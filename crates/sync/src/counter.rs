//! A statistic that many threads add to without sharing a cache line. Only statistics: a sum read while others add
//! is some value between the one before and the one after.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Lanes;

/// A number that threads add to on lanes of their own.
#[derive(Default)]
pub struct Counter {
    /// Apart, so that what has a dozen counters can be moved about. [atomic: Relaxed, a statistic]
    lanes: Box<Lanes<AtomicU64>>,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counter").field(&self.sum()).finish()
    }
}

impl Counter {
    /// A counter at 0.
    #[must_use]
    pub fn new() -> Counter {
        Counter::default()
    }

    /// Adds `amount` on the calling thread's lane.
    #[inline]
    pub fn add(&self, amount: u64) {
        // Relaxed: a statistic, it publishes nothing; pairs with the load in `sum`. Threads that are being torn down
        // share a lane, so it must be an addition.
        self.lanes.mine().fetch_add(amount, Ordering::Relaxed);
    }

    /// The sum of all lanes.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.lanes
            .iter()
            // Relaxed: a statistic; pairs with the addition in `add`.
            .map(|lane| lane.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_of_all_threads_are_in_the_sum() {
        let counter = Counter::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| counter.add(3)));
            }
        });
        assert_eq!(counter.sum(), 24_000);
    }
}
