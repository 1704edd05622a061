//! A statistic that many threads add to without sharing a cache line. Only statistics: a sum read while others add
//! is some value between the one before and the one after.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// How many lanes a counter has; two threads on one lane are slower, never wrong.
const LANES: usize = 16;

/// A number that threads add to on lanes of their own.
#[derive(Debug, Default)]
pub struct Counter {
    lanes: [CachePadded<AtomicU64>; LANES],
}

thread_local! {
    static LANE: usize = lane_of_this_thread();
}

fn lane_of_this_thread() -> usize {
    // A thread-local's address differs from thread to thread: no table of threads is needed.
    thread_local!(static PLACE: u8 = const { 0 });
    let address = PLACE.with(|place| std::ptr::from_ref(place).addr());
    let mixed = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(mixed >> 60).unwrap_or(0) % LANES
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
        let lane = LANE.try_with(|lane| *lane).unwrap_or(0);
        // Relaxed: a statistic, it publishes nothing; pairs with the load in `sum`.
        self.lanes[lane].fetch_add(amount, Ordering::Relaxed);
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
