//! Where metadata lies: copies of the superblock and of the descriptors, bitmaps, inode tables and the multi-mount
//! block.
//!
//! An image may have millions of groups, so nothing here looks through the groups for a block: the runs are sorted and
//! merged once, and each question costs a search in them.

use std::collections::BTreeMap;
use std::ops::Range;

use ondisk::{Feature, FsBlock, Geometry, Group, GroupDesc, Superblock};

/// The blocks of metadata, as runs that neither overlap nor touch.
#[derive(Clone, Default, Debug)]
pub struct MetadataRuns {
    /// The first block of each run and the first one behind it.
    runs: BTreeMap<u64, u64>,
    /// First blocks of the pieces that begin within another one. Sorted.
    overlaps: Vec<u64>,
}

/// The block for multi-mount protection, if there is one.
pub fn mmp_block(sb: &Superblock, geometry: &Geometry) -> Option<FsBlock> {
    let block = sb.mmp_block();
    (geometry.has(Feature::MMP) && geometry.contains(block, 1)).then_some(block)
}

impl MetadataRuns {
    /// The metadata of the groups whose descriptors are given, and the multi-mount block.
    pub fn of(
        geometry: &Geometry,
        descriptors: impl IntoIterator<Item = (Group, GroupDesc)>,
        mmp: Option<FsBlock>,
    ) -> MetadataRuns {
        let table_blocks = u64::from(geometry.inode_table_blocks());
        let mut pieces: Vec<(u64, u64)> = mmp.iter().map(|block| (block.0, 1)).collect();
        for (group, desc) in descriptors {
            let start = geometry.group_start(group);
            pieces.extend(start.superblock.map(|block| (block.0, 1)));
            for range in [start.descriptors, start.reserved] {
                pieces.push((range.start, range.end - range.start));
            }
            pieces.push((desc.block_bitmap().0, 1));
            pieces.push((desc.inode_bitmap().0, 1));
            pieces.push((desc.inode_table().0, table_blocks));
        }
        pieces.retain(|(_, len)| *len > 0);
        pieces.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        let mut overlaps = Vec::new();
        for (first, len) in pieces {
            let end = first.saturating_add(len);
            match merged.last_mut() {
                Some((_, known)) if first <= *known => {
                    if first < *known {
                        overlaps.push(first);
                    }
                    *known = end.max(*known);
                }
                _ => merged.push((first, end)),
            }
        }
        MetadataRuns {
            runs: merged.into_iter().collect(),
            overlaps,
        }
    }

    /// Adds `count` blocks from `first` on.
    pub fn add(&mut self, first: u64, count: u64) {
        let (mut start, mut end) = (first, first.saturating_add(count));
        // Runs that the new one meets become part of it.
        while let Some((known, behind)) = self.runs.range(..=end).next_back()
            && *behind >= start
        {
            let known = *known;
            start = start.min(known);
            end = end.max(*behind);
            self.runs.remove(&known);
        }
        self.runs.insert(start, end);
    }

    /// Whether a block is metadata's.
    pub fn contains(&self, block: u64) -> bool {
        self.overlaps(block, 1)
    }

    /// Whether any of `count` blocks from `first` on is metadata's.
    pub fn overlaps(&self, first: u64, count: u64) -> bool {
        let last = self.runs.range(..first.saturating_add(count)).next_back();
        last.is_some_and(|(_, end)| *end > first)
    }

    /// The runs as first block and length, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.iter().map(|(first, end)| (*first, end - first))
    }

    /// The parts of these blocks that are metadata's, in order.
    pub fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.runs.range(..blocks.start).next_back();
        let runs = before
            .into_iter()
            .chain(self.runs.range(blocks.start..blocks.end));
        let cut =
            move |(first, end): (&u64, &u64)| (*first).max(blocks.start)..(*end).min(blocks.end);
        runs.map(cut).filter(|part| !part.is_empty())
    }

    /// The last of these blocks that is not metadata's and that `is_free` takes.
    pub fn last_free(&self, blocks: Range<u64>, is_free: impl Fn(u64) -> bool) -> Option<u64> {
        let mut end = blocks.end;
        while end > blocks.start {
            let before = self.runs.range(..end).next_back();
            let (first, behind) = before.map_or((blocks.start, blocks.start), |(a, b)| (*a, *b));
            let gap = behind.clamp(blocks.start, end)..end;
            if let Some(block) = gap.rev().find(|block| is_free(*block)) {
                return Some(block);
            }
            end = first;
        }
        None
    }

    /// The first of `count` blocks side by side among these that are not metadata's and that `is_free` takes.
    pub fn first_run(
        &self,
        blocks: Range<u64>,
        count: u64,
        is_free: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let mut start = blocks.start;
        let parts = self.within(blocks.clone());
        for part in parts.chain(std::iter::once(blocks.end..blocks.end)) {
            let mut first = start;
            for block in start..part.start {
                if !is_free(block) {
                    first = block + 1;
                } else if block + 1 - first == count {
                    return Some(first);
                }
            }
            start = part.end;
        }
        None
    }

    /// The first blocks of pieces that begin within another one. Sorted.
    pub fn overlapping(&self) -> &[u64] {
        &self.overlaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(parts: &[(u64, u64)]) -> MetadataRuns {
        let mut runs = MetadataRuns::default();
        for (first, end) in parts {
            runs.add(*first, end - first);
        }
        runs
    }

    #[test]
    fn runs_merge_as_blocks_are_added() {
        let mut all = runs(&[(5, 8), (10, 12), (0, 1)]);
        assert_eq!(all.iter().collect::<Vec<_>>(), [(0, 1), (5, 3), (10, 2)]);
        all.add(9, 1);
        all.add(6, 1);
        assert_eq!(all.iter().collect::<Vec<_>>(), [(0, 1), (5, 3), (9, 3)]);
        all.add(7, 2);
        assert_eq!(all.iter().collect::<Vec<_>>(), [(0, 1), (5, 7)]);
        let contained: Vec<u64> = (0..14).filter(|block| all.contains(*block)).collect();
        assert_eq!(contained, [0, 5, 6, 7, 8, 9, 10, 11]);
        assert!(all.overlaps(1, 5) && !all.overlaps(1, 4) && !all.overlaps(12, 9));
    }

    #[test]
    fn parts_are_cut_to_the_blocks_asked_for() {
        let all = runs(&[(2, 6), (8, 9), (12, 20)]);
        let parts: Vec<_> = all.within(4..14).collect();
        assert_eq!(parts, [4..6, 8..9, 12..14]);
        assert_eq!(all.within(6..8).count(), 0);
        assert!(all.within(13..14).eq(std::iter::once(13..14)));
    }

    #[test]
    fn the_last_free_block_is_searched_for_between_the_runs() {
        let all = runs(&[(2, 6), (8, 9), (12, 20)]);
        assert_eq!(all.last_free(0..20, |_| true), Some(11));
        assert_eq!(all.last_free(0..30, |_| true), Some(29));
        assert_eq!(all.last_free(0..20, |block| block < 8), Some(7));
        assert_eq!(all.last_free(0..20, |block| block < 7), Some(6));
        assert_eq!(all.last_free(0..20, |block| block < 6), Some(1));
        assert_eq!(all.last_free(3..6, |_| true), None);
        assert_eq!(all.last_free(12..12, |_| true), None);
    }

    #[test]
    fn the_first_run_lies_between_the_runs_and_is_free() {
        let all = runs(&[(2, 6), (9, 10), (15, 20)]);
        assert_eq!(all.first_run(0..30, 3, |_| true), Some(6));
        assert_eq!(all.first_run(0..30, 4, |_| true), Some(10));
        assert_eq!(all.first_run(0..30, 4, |block| block != 11), Some(20));
        assert_eq!(all.first_run(0..30, 3, |block| block != 7), Some(10));
        assert_eq!(all.first_run(0..30, 10, |_| true), Some(20));
        assert_eq!(all.first_run(0..30, 11, |_| true), None);
    }
}
