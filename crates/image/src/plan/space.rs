//! Free clusters handed out in ascending order, whole runs where they fit.
//!
//! A cursor walks the free ranges of the layout. A request that does not fit what is left of a range, but fits the
//! next one whole, moves on, and the rest of the range is kept as a gap; gaps are used when the cursor has
//! reached the end, so no cluster is ever lost: a request fails only when fewer clusters are free than it asks for.
//! The same requests give the same places, whatever the host.

use std::collections::VecDeque;
use std::ops::Range;

/// Requests above this many bytes are not moved to the next range for the sake of staying whole.
const WHOLE_LIMIT_BYTES: u64 = 8 << 20;

/// A run of clusters on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClusterRun {
    /// First cluster.
    pub start: u64,
    /// Number of clusters, at least 1.
    pub len: u64,
}

/// The free clusters of an image that is being planned.
#[derive(Clone, Debug)]
pub(crate) struct FreeClusters {
    /// Ranges not yet reached, ascending; the cursor is the start of the first.
    ranges: VecDeque<Range<u64>>,
    /// What was left behind, ascending.
    gaps: VecDeque<Range<u64>>,
    free: u64,
    whole_limit: u64,
}

impl FreeClusters {
    /// All clusters of `ranges`, which ascend and do not overlap, are free.
    pub(crate) fn new(
        ranges: impl Iterator<Item = Range<u64>>,
        cluster_bytes: u64,
    ) -> FreeClusters {
        let mut merged: VecDeque<Range<u64>> = VecDeque::new();
        for range in ranges.filter(|range| range.start < range.end) {
            match merged.back_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => merged.push_back(range),
            }
        }
        let free = merged.iter().map(|range| range.end - range.start).sum();
        FreeClusters {
            ranges: merged,
            gaps: VecDeque::new(),
            free,
            whole_limit: WHOLE_LIMIT_BYTES / cluster_bytes,
        }
    }

    /// Space without an end.
    pub(crate) fn unbounded(cluster_bytes: u64) -> FreeClusters {
        FreeClusters::new(std::iter::once(0..1 << 52), cluster_bytes)
    }

    /// Clusters not yet allocated.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// The cluster at which the next small request will be placed, if any is free.
    pub(crate) fn cursor(&self) -> Option<u64> {
        self.ranges
            .front()
            .or_else(|| self.gaps.front())
            .map(|range| range.start)
    }

    /// What is still free, ascending.
    pub(crate) fn into_free_ranges(self) -> Vec<Range<u64>> {
        let mut all: Vec<_> = self.gaps.into_iter().chain(self.ranges).collect();
        all.sort_unstable_by_key(|range| range.start);
        all
    }

    /// Adds free space, to be used last.
    pub(crate) fn extend(&mut self, more: FreeClusters) {
        self.free += more.free;
        self.gaps.extend(more.into_free_ranges());
    }

    /// The same space without `taken` (ascending, not overlapping).
    pub(crate) fn without(self, taken: &[Range<u64>], cluster_bytes: u64) -> FreeClusters {
        let mut left = Vec::new();
        let mut taken = taken.iter().peekable();
        for range in self.into_free_ranges() {
            let mut next = range.start;
            while let Some(hole) = taken.peek().filter(|hole| hole.start < range.end) {
                left.push(next..hole.start.max(next));
                next = next.max(hole.end);
                if hole.end > range.end {
                    break;
                }
                taken.next();
            }
            left.push(next.min(range.end)..range.end);
        }
        FreeClusters::new(left.into_iter(), cluster_bytes)
    }

    /// Takes `len` clusters, calls `run` for each run in ascending order of use, and says whether there were
    /// enough. Takes nothing when there were not.
    pub(crate) fn allocate(&mut self, len: u64, mut run: impl FnMut(ClusterRun)) -> bool {
        if len > self.free {
            return false;
        }
        self.free -= len;
        self.move_on_to_stay_whole(len);
        let mut left = len;
        while left > 0 {
            let queue = if self.ranges.is_empty() {
                &mut self.gaps
            } else {
                &mut self.ranges
            };
            // `free` counts what the two queues hold, and `len` was at most `free`.
            let Some(range) = queue.front_mut() else {
                return false;
            };
            let take = left.min(range.end - range.start);
            run(ClusterRun {
                start: range.start,
                len: take,
            });
            range.start += take;
            left -= take;
            if range.start == range.end {
                queue.pop_front();
            }
        }
        true
    }

    /// Leaves the rest of the current range behind when the request fits the next one whole and not this one.
    fn move_on_to_stay_whole(&mut self, len: u64) {
        if len <= 1 || len > self.whole_limit {
            return;
        }
        let (Some(current), Some(next)) = (self.ranges.front(), self.ranges.get(1)) else {
            return;
        };
        if current.end - current.start < len && next.end - next.start >= len {
            self.gaps.extend(self.ranges.pop_front());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(space: &mut FreeClusters, len: u64) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        assert!(space.allocate(len, |run| runs.push((run.start, run.len))));
        runs
    }

    #[test]
    fn runs_stay_whole_and_gaps_are_used_at_the_end() {
        let mut space = FreeClusters::new([0..10, 10..12, 20..30, 40..44].into_iter(), 4096);
        assert_eq!(space.free(), 26);
        assert_eq!(take(&mut space, 8), [(0, 8)]);
        assert_eq!(take(&mut space, 6), [(20, 6)]);
        assert_eq!(take(&mut space, 6), [(26, 4), (40, 2)]);
        assert_eq!(take(&mut space, 2), [(42, 2)]);
        assert_eq!(take(&mut space, 4), [(8, 4)]);
        assert_eq!(space.free(), 0);
        assert!(!space.allocate(1, |_| ()));
    }

    #[test]
    fn what_is_taken_elsewhere_is_left_out() {
        let space = FreeClusters::new([0..10, 20..30, 40..50].into_iter(), 4096);
        let space = space.without(&[2..4, 4..5, 8..22, 25..26, 29..45], 4096);
        assert_eq!(space.free(), 2 + 3 + 3 + 3 + 5);
        assert_eq!(
            space.into_free_ranges(),
            [0..2, 5..8, 22..25, 26..29, 45..50]
        );
    }

    #[test]
    fn a_request_too_large_takes_nothing() {
        let mut space = FreeClusters::new(std::iter::once(5..9), 4096);
        assert!(!space.allocate(5, |_| panic!("nothing may be taken")));
        assert_eq!(space.into_free_ranges(), vec![5..9; 1]);
    }
}
