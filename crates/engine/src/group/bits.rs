//! One group's bitmaps in memory. All under the group's lock; see the module above for what the bits mean.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ondisk::bitmap;

/// A group's bitmaps in memory. [group]
pub(crate) struct Bits {
    /// A bit a block that can't be had.
    blocks: Vec<u8>,
    /// Bits of blocks that the group has.
    len: u32,
    free_blocks: u32,
    /// No run of free blocks is longer.
    longest: u32,
    /// Runs in use that someone is about to free, or that an epoch freed that is not durable: length by first bit.
    leaving: BTreeMap<u32, u32>,
    /// A bit an inode that can't be had.
    inodes: Vec<u8>,
    inodes_len: u32,
    free_inodes: u32,
    /// Inodes as `leaving` for blocks.
    leaving_inodes: BTreeSet<u32>,
}

impl Bits {
    /// With these bitmaps, for so many blocks and inodes.
    pub(crate) fn new(blocks: Vec<u8>, len: u32, inodes: Vec<u8>, inodes_len: u32) -> Bits {
        let free_blocks = len - bitmap::count(&blocks, len);
        let free_inodes = inodes_len - bitmap::count(&inodes, inodes_len);
        Bits {
            blocks,
            len,
            free_blocks,
            longest: free_blocks,
            leaving: BTreeMap::new(),
            inodes,
            inodes_len,
            free_inodes,
            leaving_inodes: BTreeSet::new(),
        }
    }

    pub(crate) fn free_blocks(&self) -> u32 {
        self.free_blocks
    }

    /// A bound on runs of free blocks.
    pub(crate) fn longest(&self) -> u32 {
        self.longest
    }

    pub(crate) fn free_inodes(&self) -> u32 {
        self.free_inodes
    }

    /// Takes `want` blocks in a row, the first ones behind `from` if there are any there.
    pub(crate) fn take_whole(&mut self, from: u32, want: u32) -> Option<Range<u32>> {
        if want > self.longest {
            return None;
        }
        let found = bitmap::find_clear_run(&self.blocks, from, self.len, want)
            .or_else(|| bitmap::find_clear_run(&self.blocks, 0, self.len, want));
        match found {
            Some(range) => Some(self.take(range)),
            None => {
                self.longest = want - 1;
                None
            }
        }
    }

    /// Takes the longest run of free blocks, cut to `want`.
    pub(crate) fn take_longest(&mut self, want: u32) -> Option<Range<u32>> {
        let free = bitmap::runs(&self.blocks, self.len)
            .filter(|(_, is_set)| !is_set)
            .map(|(range, _)| range);
        let longest =
            free.max_by_key(|range| (range.end - range.start, std::cmp::Reverse(range.start)))?;
        self.longest = longest.end - longest.start;
        Some(self.take(longest.start..longest.end.min(longest.start + want)))
    }

    fn take(&mut self, range: Range<u32>) -> Range<u32> {
        bitmap::set_range(&mut self.blocks, range.clone());
        self.free_blocks -= range.end - range.start;
        range
    }

    /// Blocks that were taken can be had again.
    pub(crate) fn give_back(&mut self, first: u32, len: u32) {
        let end = first + len;
        bitmap::clear_range(&mut self.blocks, first..end);
        self.free_blocks += len;
        // They may join their neighbours.
        let start = bitmap::find_back(&self.blocks, first, true).map_or(0, |used| used + 1);
        let end = bitmap::find(&self.blocks, end, self.len, true).unwrap_or(self.len);
        self.longest = self.longest.max(end - start);
    }

    /// Someone is going to free blocks; the first one that can't be freed, if any: it is free, or being freed.
    pub(crate) fn leave(&mut self, first: u32, len: u32) -> Result<(), u32> {
        let end = first + len;
        if let Some(free) = bitmap::find(&self.blocks, first, end, false) {
            return Err(free);
        }
        if let Some((start, len)) = self.leaving.range(..end).next_back()
            && start + len > first
        {
            return Err((*start).max(first));
        }
        self.leaving.insert(first, len);
        Ok(())
    }

    /// They stay after all.
    pub(crate) fn stay(&mut self, first: u32) {
        self.leaving.remove(&first);
    }

    /// They are free, durably.
    pub(crate) fn left(&mut self, first: u32, len: u32) {
        self.leaving.remove(&first);
        self.give_back(first, len);
    }

    /// Takes the first free inode.
    pub(crate) fn take_inode(&mut self) -> Option<u32> {
        let index = bitmap::find(&self.inodes, 0, self.inodes_len, false)?;
        bitmap::set(&mut self.inodes, index);
        self.free_inodes -= 1;
        Some(index)
    }

    /// An inode that was taken can be had again.
    pub(crate) fn give_back_inode(&mut self, index: u32) {
        bitmap::clear(&mut self.inodes, index);
        self.free_inodes += 1;
    }

    /// Someone is going to free an inode; whether that can be.
    pub(crate) fn leave_inode(&mut self, index: u32) -> bool {
        bitmap::test(&self.inodes, index) && self.leaving_inodes.insert(index)
    }

    /// It stays after all.
    pub(crate) fn stay_inode(&mut self, index: u32) {
        self.leaving_inodes.remove(&index);
    }

    /// It is free, durably.
    pub(crate) fn left_inode(&mut self, index: u32) {
        self.leaving_inodes.remove(&index);
        self.give_back_inode(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_must_be_in_use_and_leaves_once() {
        let mut bits = Bits::new(vec![0xff, 0x0f, 0, 0], 32, vec![1, 0], 16);
        assert_eq!(bits.leave(8, 5), Err(12));
        assert_eq!(bits.leave(4, 4), Ok(()));
        assert_eq!(bits.leave(0, 5), Err(4));
        assert_eq!(bits.leave(7, 1), Err(7));
        assert_eq!(bits.leave(0, 4), Ok(()));
        bits.stay(4);
        assert_eq!(bits.leave(4, 8), Ok(()));
        bits.left(4, 8);
        assert_eq!(bits.free_blocks(), 28);
        assert_eq!(bits.leave(4, 1), Err(4));
        assert!(bits.leave_inode(0) && !bits.leave_inode(0) && !bits.leave_inode(1));
        bits.left_inode(0);
        assert!(!bits.leave_inode(0));
    }

    #[test]
    fn the_bound_on_runs_never_hides_one() {
        let mut bits = Bits::new(vec![0b0001_1000, 0xff, 0, 0xff], 32, vec![0], 8);
        assert_eq!(bits.take_whole(0, 9), None);
        assert_eq!(bits.take_whole(0, 8), Some(16..24));
        assert_eq!(bits.take_longest(9), Some(0..3));
        bits.give_back(0, 3);
        bits.give_back(16, 8);
        assert_eq!(bits.take_whole(3, 8), Some(16..24));
        bits.give_back(20, 4);
        assert_eq!(bits.longest(), 8);
        assert_eq!((bits.take_whole(0, 5), bits.longest()), (None, 4));
        bits.give_back(8, 2);
        bits.give_back(10, 10);
        assert_eq!(bits.longest(), 19);
        assert_eq!(bits.take_whole(0, 19), Some(5..24));
    }
}
