//! How long something took, counted by powers of two: 64 words, no lock, no allocation. Only a statistic: a reading
//! taken while others add is some state between the one before and the one after.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Duration;

const BUCKETS: usize = 64;

/// Times, in classes of nanoseconds: class n holds those from 2^n up to 2^(n + 1). Meant for one writer at a time (a
/// committer); with many it stays right, and they share its cache lines.
#[derive(Debug)]
pub struct Histogram {
    /// [atomic: Relaxed, a statistic]
    classes: [AtomicU64; BUCKETS],
    /// The longest, in nanoseconds. [atomic: Relaxed, a statistic]
    most: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            classes: [const { AtomicU64::new(0) }; BUCKETS],
            most: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one time.
    pub fn add(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a statistic, it publishes nothing; pairs with the loads in `classes`.
        self.classes[nanoseconds.max(1).ilog2() as usize].fetch_add(1, Ordering::Relaxed);
        let longer = |most| (most < nanoseconds).then_some(nanoseconds);
        let most = &self.most;
        // Relaxed: a statistic, it publishes nothing; pairs with the load of `most`.
        let _ = most.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
    }

    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.classes().iter().sum()
    }

    /// The longest.
    #[must_use]
    pub fn most(&self) -> Duration {
        // Relaxed: a statistic; pairs with the maximum in `add`.
        Duration::from_nanos(self.most.load(Ordering::Relaxed))
    }

    /// How many times fell into each class.
    #[must_use]
    pub fn classes(&self) -> [u64; BUCKETS] {
        // Relaxed: a statistic; pairs with the addition in `add`.
        std::array::from_fn(|class| self.classes[class].load(Ordering::Relaxed))
    }

    /// A bound that this share of the times (0.99 for p99) does not exceed: the end of a class, so at most twice the
    /// true value, or the longest time if that is less. Zero if nothing was counted.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let classes = self.classes();
        let count: u64 = classes.iter().sum();
        // A count of times is far below 2^52.
        let wanted = (count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, here) in (1_u32..).zip(classes) {
            seen += here;
            if here > 0 && seen >= wanted {
                let end = 1_u64.checked_shl(class).unwrap_or(u64::MAX);
                return Duration::from_nanos(end).min(self.most());
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_bounds_within_a_factor_of_two() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.99), Duration::ZERO);
        for nanoseconds in 1..=1000 {
            histogram.add(Duration::from_nanos(nanoseconds));
        }
        assert_eq!(histogram.count(), 1000);
        let median = histogram.quantile(0.5).as_nanos();
        assert!((500..=1000).contains(&median), "{median}");
        assert_eq!(histogram.quantile(1.0), Duration::from_nanos(1000));
        histogram.add(Duration::ZERO);
        histogram.add(Duration::MAX);
        assert_eq!(histogram.count(), 1002);
        assert_eq!(histogram.quantile(0.9), Duration::from_nanos(1024));
    }
}
