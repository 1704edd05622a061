//! The blocks in use, group by group, from two ascending lists of runs.

use std::iter::Peekable;
use std::ops::Range;
use std::slice::Iter;

use ondisk::{FsBlock, Geometry, Group};

use crate::{BlockRun, Error};

/// Walks two lists of runs, which must not overlap, from the first group to the last.
pub(crate) struct TakenRuns<'a> {
    layout: Peekable<Iter<'a, BlockRun>>,
    data: Peekable<Iter<'a, BlockRun>>,
    /// What the last run left for the next group.
    rest: Option<BlockRun>,
    /// Where the last run ended.
    end: u64,
}

impl<'a> TakenRuns<'a> {
    pub(crate) fn new(layout: &'a [BlockRun], data: &'a [BlockRun]) -> TakenRuns<'a> {
        TakenRuns {
            layout: layout.iter().peekable(),
            data: data.iter().peekable(),
            rest: None,
            end: 0,
        }
    }

    /// The next run that begins before `limit`.
    fn next_before(&mut self, limit: u64) -> Result<Option<BlockRun>, Error> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        let start = |run: Option<&&BlockRun>| run.map_or(u64::MAX, |run| run.start.0);
        let (layout, data) = (start(self.layout.peek()), start(self.data.peek()));
        if layout.min(data) >= limit {
            return Ok(None);
        }
        let next = if layout <= data {
            self.layout.next()
        } else {
            self.data.next()
        };
        let Some(run) = next.copied() else {
            return Ok(None);
        };
        if run.start.0 < self.end {
            return Err(Error::Usage(format!("block {} is used twice", run.start)));
        }
        self.end = run.end().0;
        Ok(Some(run))
    }

    /// The clusters in use in the next group, as bits of its bitmap: ascending, not overlapping. To be called for
    /// each group in turn.
    pub(crate) fn in_group(
        &mut self,
        geometry: &Geometry,
        group: Group,
    ) -> Result<Vec<Range<u32>>, Error> {
        let first = geometry.group_first_block(group).0;
        let limit = first + u64::from(geometry.group_blocks(group));
        let ratio = u64::from(geometry.cluster_ratio());
        let mut clusters: Vec<Range<u32>> = Vec::new();
        while let Some(run) = self.next_before(limit)? {
            if run.end().0 > limit {
                self.rest = Some(BlockRun {
                    start: FsBlock(limit),
                    len: run.end().0 - limit,
                });
            }
            // Block 0 lies before the first group where blocks have 1 KiB.
            let start = run.start.0.max(first) - first;
            let end = run.end().0.min(limit).saturating_sub(first);
            // Bits of a bitmap.
            let bits = (start / ratio) as u32..end.div_ceil(ratio) as u32;
            match clusters.last_mut() {
                Some(last) if last.end >= bits.start => last.end = last.end.max(bits.end),
                _ if bits.is_empty() => {}
                _ => clusters.push(bits),
            }
            if self.rest.is_some() {
                break;
            }
        }
        Ok(clusters)
    }

    /// After the last group: nothing may be left.
    pub(crate) fn check_end(&mut self) -> Result<(), Error> {
        match self.next_before(u64::MAX)? {
            None => Ok(()),
            Some(run) => Err(Error::Usage(format!(
                "block {} is beyond the end",
                run.start
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u64) -> BlockRun {
        BlockRun {
            start: FsBlock(start),
            len,
        }
    }

    #[test]
    fn overlaps_are_refused() {
        let (layout, data) = ([run(0, 10)], [run(9, 1)]);
        let mut taken = TakenRuns::new(&layout, &data);
        assert!(taken.next_before(100).unwrap().is_some());
        assert!(taken.next_before(100).is_err());
    }
}
