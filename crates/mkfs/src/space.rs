//! The taken blocks of a planned image, as runs: an image of 2^34 blocks has only a few thousand runs of metadata.

use std::collections::BTreeMap;

use ondisk::FsBlock;

use crate::BlockRun;

/// The taken blocks: runs that neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// The end of each run, by its start.
    taken: BTreeMap<u64, u64>,
}

impl Space {
    /// Marks the blocks as taken; they may touch or overlap taken ones.
    pub(crate) fn take(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + len);
        if let Some((&before, &before_end)) = self.taken.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&after, &after_end)) = self.taken.range(start..=end).next() {
            end = end.max(after_end);
            self.taken.remove(&after);
        }
        self.taken.insert(start, end);
    }

    /// Marks the parts of `runs` below `end` as taken.
    pub(crate) fn take_below(&mut self, runs: &[BlockRun], end: u64) {
        for run in runs.iter().filter(|run| run.start.0 < end) {
            self.take(run.start.0, run.len.min(end - run.start.0));
        }
    }

    /// The first free run of at least `len` blocks that begins at `from` or later and ends at `to` or earlier: its
    /// start and its end.
    pub(crate) fn find(&self, from: u64, to: u64, len: u64) -> Option<(u64, u64)> {
        let mut at = from;
        if let Some((_, &end)) = self.taken.range(..=at).next_back() {
            at = at.max(end);
        }
        for (&start, &end) in self.taken.range(at..) {
            let limit = start.min(to);
            if limit >= at + len && limit > at {
                return Some((at, limit));
            }
            at = end;
            if at >= to {
                return None;
            }
        }
        (to >= at + len && to > at).then_some((at, to))
    }

    /// How many blocks of the range are free.
    pub(crate) fn free(&self, from: u64, to: u64) -> u64 {
        let mut at = from;
        let mut free = 0;
        while let Some((start, end)) = self.find(at, to, 1) {
            free += end - start;
            at = end;
        }
        free
    }

    /// Widens every run to whole clusters of `1 << bits` blocks.
    pub(crate) fn round_to_clusters(&mut self, bits: u32) {
        if bits == 0 {
            return;
        }
        let mut rounded = Space::default();
        for (&start, &end) in &self.taken {
            let (first, last) = (start >> bits, end.div_ceil(1 << bits));
            rounded.take(first << bits, (last - first) << bits);
        }
        *self = rounded;
    }

    /// The runs, ascending, up to the end of the image.
    pub(crate) fn runs(&self, end: u64) -> Vec<BlockRun> {
        let run = |(&start, &stop): (&u64, &u64)| BlockRun {
            start: FsBlock(start),
            len: stop.min(end) - start,
        };
        self.taken.iter().map(run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_gaps_are_found() {
        let mut space = Space::default();
        for (start, len) in [(10, 5), (20, 5), (15, 5), (40, 1), (38, 4), (0, 0)] {
            space.take(start, len);
        }
        assert_eq!(
            space.taken.clone().into_iter().collect::<Vec<_>>(),
            [(10, 25), (38, 42)]
        );
        assert_eq!(space.find(0, 100, 10), Some((0, 10)));
        assert_eq!(space.find(0, 100, 11), Some((25, 38)));
        assert_eq!(space.find(12, 100, 14), Some((42, 100)));
        assert_eq!(space.find(12, 50, 14), None);
        assert_eq!(space.find(38, 42, 1), None);
        assert_eq!(space.free(0, 50), 50 - 19);
    }

    #[test]
    fn clusters_are_taken_whole() {
        let mut space = Space::default();
        space.take(17, 1);
        space.take(30, 4);
        space.round_to_clusters(4);
        assert_eq!(space.taken.into_iter().collect::<Vec<_>>(), [(16, 48)]);
    }
}
