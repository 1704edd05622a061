//! The order lists (`mb_optimize_scan=1`). For each group, one byte holds the order of its largest free chunk and
//! another byte the order of its average run; a word has the bytes of eight groups. A search for the next group with a
//! wanted order, in the order of the groups' numbers, reads one cache line for 64 groups.
//!
//! No lock is needed, and no two threads write to the ends of a shared list. A byte is changed by the holder of its
//! group's lock, by one addition to its word, and only when the group's order changes. Groups within 128 of each other
//! share a cache line. A thread that reads an outdated byte skips a group, or looks at one that has nothing; the last
//! criterion uses other hints. The words live as long as the table, so nothing has to be reclaimed. A crash forgets
//! them.

use std::ops::Range;

use ondisk::Group;
use sync::{CachePadded, Hint};

use super::Groups;
use super::scan::{Scan, ScanPurpose};

/// Groups in a word.
const A_WORD: u32 = 8;
/// Words in a line, which is a pair of cache lines, because processors fetch them in pairs.
const A_LINE: u32 = 16;
/// The lowest bit of each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
const HIGHS: u64 = ONES << 7;

/// One byte for each group: an order plus one, or 0 for none.
pub(crate) struct Orders {
    /// [a byte is written under its group's lock]
    lines: Box<[CachePadded<[Hint<u64>; A_LINE as usize]>]>,
}

impl Orders {
    /// The table for groups with these bytes.
    pub(crate) fn new(bytes: impl ExactSizeIterator<Item = u8>) -> Orders {
        let lines = bytes.len().div_ceil((A_WORD * A_LINE) as usize);
        let mut lines: Box<[CachePadded<[Hint<u64>; A_LINE as usize]>]> =
            (0..lines).map(|_| CachePadded::default()).collect();
        for (group, byte) in (0..).zip(bytes) {
            let (line, word, shift) = place(group);
            *lines[line][word].get_mut() |= u64::from(byte) << shift;
        }
        Orders { lines }
    }

    /// Changes a group's byte from `old` to `new`. The caller holds the group's lock.
    pub(crate) fn change(&self, group: Group, old: u8, new: u8) {
        if old != new {
            let (line, word, shift) = place(group.0);
            // Bytes stay below 128, so nothing is carried into a neighbour.
            let change = (u64::from(new) << shift).wrapping_sub(u64::from(old) << shift);
            self.lines[line][word].add(change);
        }
    }

    /// The first group of a range whose byte is at least `least`, which is from 1 to 127.
    pub(crate) fn next(&self, range: Range<u32>, least: u8) -> Option<Group> {
        let mut at = range.start;
        while at < range.end {
            let (line, word, shift) = place(at);
            let orders = self.lines.get(line)?[word].get();
            // The highest bit of each byte stays set if the byte's lower bits are at least `least`.
            let enough = ((orders | HIGHS) - ONES * u64::from(least)) & HIGHS;
            let found = enough >> shift;
            if found != 0 {
                let group = at + found.trailing_zeros() / 8;
                return (group < range.end).then_some(Group(group));
            }
            at = (at / A_WORD + 1) * A_WORD;
        }
        None
    }
}

/// The index of the line, of the word in it, and of the bit where a group's byte begins.
fn place(group: u32) -> (usize, usize, u32) {
    let (word, byte) = (group / A_WORD, group % A_WORD);
    ((word / A_LINE) as usize, (word % A_LINE) as usize, byte * 8)
}

/// The search by the order lists; see the module.
pub(super) struct Ordered;

impl Scan for Ordered {
    fn next(&self, groups: &Groups, mut range: Range<u32>, wanted: ScanPurpose) -> Option<Group> {
        // Orders are below 32.
        let byte = |order: u32| order as u8 + 1;
        match wanted {
            ScanPurpose::Chunk(order) => groups.largest.next(range, byte(order)),
            ScanPurpose::Average(order) => groups.average.next(range, byte(order)),
            ScanPurpose::Any => groups.largest.next(range, 1),
            ScanPurpose::Run(want) => {
                // Every run contains an aligned chunk of half its length, rounded down to an order.
                let order = want.checked_ilog2().unwrap_or(0).saturating_sub(1);
                loop {
                    let group = groups.largest.next(range.clone(), byte(order))?;
                    if groups.may_have(group, wanted) {
                        return Some(group);
                    }
                    range.start = group.0 + 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
