//! The free blocks of one group as a buddy: a bitmap, and beside it which aligned runs of 2^order blocks are free and
//! part of no larger one. Plain memory under the group's lock; nothing of it is on disk.
//!
//! At any time each free block lies in exactly one chunk, no two chunks are each other's other half, and counts follow
//! from that. So a run of 2^n aligned blocks is found by looking at counts, and a run of any length mostly too.

use std::ops::Range;

use ondisk::bitmap;

/// Orders that a group can have: one of 64 KiB blocks has 2^19 of them.
pub(crate) const ORDERS: usize = 20;

/// Free blocks of a group. [group]
pub(crate) struct Buddy {
    /// A bit for each block, set if it is not available.
    used: Box<[u8]>,
    /// A bit for each chunk, one order after the other.
    chunks: Box<[u8]>,
    /// Where an order's bits begin in `chunks`.
    starts: [u32; ORDERS],
    /// Chunks of each order.
    counts: [u32; ORDERS],
    /// Blocks of the group.
    len: u32,
    free: u32,
    /// Runs of free blocks.
    runs: u32,
    /// No run of free blocks is longer.
    longest: u32,
}

impl Buddy {
    /// Of a bitmap of `len` blocks.
    pub(crate) fn new(used: &[u8], len: u32) -> Buddy {
        let mut starts = [0; ORDERS];
        let mut bytes = 0;
        for (order, start) in starts.iter_mut().enumerate() {
            *start = bytes;
            bytes += (len >> order).div_ceil(8);
        }
        let mut buddy = Buddy {
            // Everything in use; free runs are put in below.
            used: vec![0xff; len.div_ceil(8) as usize].into_boxed_slice(),
            chunks: vec![0; bytes as usize].into_boxed_slice(),
            starts,
            counts: [0; ORDERS],
            len,
            free: 0,
            runs: 0,
            longest: 0,
        };
        for (range, is_used) in bitmap::runs(used, len) {
            if !is_used {
                buddy.put(range);
            }
        }
        buddy
    }

    /// Free blocks.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// The mean length of runs of free blocks, rounded down; 0 without any.
    pub(crate) fn average_run(&self) -> u32 {
        self.free.checked_div(self.runs).unwrap_or(0)
    }

    /// A bound on runs of free blocks.
    pub(crate) fn longest(&self) -> u32 {
        // Between two chunks of the next order that are not free lie fewer blocks than two of them.
        let by_order = self
            .largest_order()
            .map_or(0, |order| (4_u32 << order).saturating_sub(2));
        self.longest.min(by_order)
    }

    /// The order of the largest free chunk.
    pub(crate) fn largest_order(&self) -> Option<u32> {
        let largest = self.counts.iter().rposition(|count| *count > 0);
        // Of a few orders.
        largest.map(|order| order as u32)
    }

    /// The first free block of a range within the group.
    pub(crate) fn first_free(&self, range: Range<u32>) -> Option<u32> {
        bitmap::find(&self.used, range.start, range.end, false)
    }

    /// The run of free blocks that begins exactly at `first`, cut to `most`.
    pub(crate) fn run_at(&self, first: u32, most: u32) -> Option<Range<u32>> {
        if first >= self.len || bitmap::test(&self.used, first) {
            return None;
        }
        let stop = self.len.min(first.saturating_add(most));
        let end = bitmap::find(&self.used, first, stop, true).unwrap_or(stop);
        Some(first..end)
    }

    /// The first run of `want` free blocks at or behind `from`.
    pub(crate) fn find_behind(&self, from: u32, want: u32) -> Option<Range<u32>> {
        if want > self.longest() {
            None
        } else {
            bitmap::find_clear_run(&self.used, from, self.len, want)
        }
    }

    /// A run of `want` free blocks that begins with a chunk: in the smallest chunk that holds it.
    pub(crate) fn find_chunk(&self, want: u32) -> Option<Range<u32>> {
        let least = order_holding(want) as usize;
        let order = (least..ORDERS).find(|order| self.counts[*order] > 0)?;
        let chunk = bitmap::find(self.order(order), 0, self.len >> order, true)?;
        let start = chunk << order;
        Some(start..start + want)
    }

    /// A run of `want` free blocks anywhere; a search without success is remembered.
    pub(crate) fn find(&mut self, want: u32) -> Option<Range<u32>> {
        let found = self.find_chunk(want).or_else(|| self.find_behind(0, want));
        if found.is_none() {
            self.longest = self.longest.min(want.saturating_sub(1));
        }
        found
    }

    /// The longest run of free blocks, the first of several; `None` without any.
    pub(crate) fn find_longest(&mut self) -> Option<Range<u32>> {
        let longest = bitmap::runs(&self.used, self.len)
            .filter(|(_, is_used)| !is_used)
            .map(|(range, _)| range)
            .max_by_key(|range| (range.end - range.start, std::cmp::Reverse(range.start)))?;
        self.longest = longest.end - longest.start;
        Some(longest)
    }

    /// Takes free blocks.
    pub(crate) fn take(&mut self, range: Range<u32>) {
        debug_assert!(bitmap::find(&self.used, range.start, range.end, true).is_none());
        let mut at = range.start;
        while at < range.end {
            let chunk = self.chunk_with(at);
            self.change_chunk(chunk.start, chunk.order, false);
            let end = chunk.start + (1 << chunk.order);
            self.put_chunks(chunk.start..range.start);
            self.put_chunks(range.end..end);
            at = end;
        }
        bitmap::set_range(&mut self.used, range.clone());
        self.free -= range.end - range.start;
        // One run becomes none, one or two.
        let rest = self.is_free_before(range.start) + self.is_free_at(range.end);
        self.runs = self.runs + rest - 1;
    }

    /// Adds blocks that are available from now on.
    pub(crate) fn put(&mut self, range: Range<u32>) {
        debug_assert!(bitmap::find(&self.used, range.start, range.end, false).is_none());
        let beside = self.is_free_before(range.start) + self.is_free_at(range.end);
        bitmap::clear_range(&mut self.used, range.clone());
        self.free += range.end - range.start;
        self.runs = self.runs + 1 - beside;
        self.merge_chunks(range.clone());
        // They may join their neighbours.
        let before = bitmap::find_back(&self.used, range.start, true);
        let start = before.map_or(0, |used| used + 1);
        let end = bitmap::find(&self.used, range.end, self.len, true).unwrap_or(self.len);
        self.longest = self.longest.max(end - start);
    }

    fn is_free_before(&self, block: u32) -> u32 {
        block
            .checked_sub(1)
            .map_or(0, |block| self.is_free_at(block))
    }

    fn is_free_at(&self, block: u32) -> u32 {
        u32::from(block < self.len && !bitmap::test(&self.used, block))
    }

    /// The bits of an order's chunks.
    fn order(&self, order: usize) -> &[u8] {
        let start = self.starts[order] as usize;
        &self.chunks[start..start + (self.len >> order).div_ceil(8) as usize]
    }

    fn has_chunk(&self, start: u32, order: u32) -> bool {
        let index = start >> order;
        index < self.len >> order && bitmap::test(self.order(order as usize), index)
    }

    fn change_chunk(&mut self, start: u32, order: u32, is_free: bool) {
        let at = self.starts[order as usize] as usize;
        let (bits, index) = (&mut self.chunks[at..], start >> order);
        if is_free {
            bitmap::set(bits, index)
        } else {
            bitmap::clear(bits, index)
        }
        let count = &mut self.counts[order as usize];
        *count = if is_free { *count + 1 } else { *count - 1 };
    }

    /// The chunk that a free block lies in.
    fn chunk_with(&self, block: u32) -> Chunk {
        let chunk = |order: u32| Chunk {
            start: block >> order << order,
            order,
        };
        (0..ORDERS as u32)
            .map(chunk)
            .find(|chunk| self.has_chunk(chunk.start, chunk.order))
            // Each free block lies in one chunk.
            .expect("a free block lies in a chunk")
    }

    /// Puts in what is left of a chunk: its neighbours are not free, so nothing merges. Empty for a range that ends
    /// before it begins.
    fn put_chunks(&mut self, range: Range<u32>) {
        for chunk in chunks(range) {
            self.change_chunk(chunk.start, chunk.order, true);
        }
    }

    fn merge_chunks(&mut self, range: Range<u32>) {
        for chunk in chunks(range) {
            let Chunk {
                mut start,
                mut order,
            } = chunk;
            while self.has_chunk(start ^ 1 << order, order) {
                self.change_chunk(start ^ 1 << order, order, false);
                start &= !(1 << order);
                order += 1;
            }
            self.change_chunk(start, order, true);
        }
    }
}

/// An aligned run of 2^order blocks.
#[derive(Clone, Copy)]
struct Chunk {
    start: u32,
    order: u32,
}

/// The order of the smallest chunk that holds `blocks` blocks; `blocks` is not 0.
pub(crate) fn order_holding(blocks: u32) -> u32 {
    blocks
        .saturating_sub(1)
        .checked_ilog2()
        .map_or(0, |order| order + 1)
}

/// The largest aligned chunks that make up a range, in ascending order.
fn chunks(range: Range<u32>) -> impl Iterator<Item = Chunk> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let room = range.end.checked_sub(start)?.checked_ilog2()?;
        let order = start.trailing_zeros().min(room).min(ORDERS as u32 - 1);
        let chunk = Chunk { start, order };
        start += 1 << order;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests;
