//! The order lists (`mb_optimize_scan=1`): for each group one byte holds the order of its largest free chunk, another
//! that of its average run, eight groups to a word; so the next group with what is wanted, in the order of their
//! numbers, is found by looking at 64 groups a cache line.
//!
//! No lock, and no list with shared ends. A byte is changed by the holder of its group's lock, by one addition to its
//! word, and only when its order changes: groups within 128 of each other share a line, and nothing else is shared. A
//! thread that reads an old byte skips a group, or looks at one in vain; the last criterion uses other hints. Not
//! reached by a pointer, so nothing of it is reclaimed. A crash forgets it.

use std::ops::Range;

use ondisk::Group;
use sync::{CachePadded, Hint};

use super::Groups;
use super::scan::{Scan, ScanPurpose};

/// Groups to a word.
const A_WORD: u32 = 8;
/// Words to a line (two lines, which processors fetch in pairs).
const A_LINE: u32 = 16;
/// The lowest bit of each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
const HIGHS: u64 = ONES << 7;

/// A byte a group: an order plus one, or 0 for none.
pub(crate) struct Orders {
    /// [a byte is written under its group's lock]
    lines: Box<[CachePadded<[Hint<u64>; A_LINE as usize]>]>,
}

impl Orders {
    /// Of groups with these bytes.
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

    /// A group's byte becomes another one. Under the group's lock.
    pub(crate) fn change(&self, group: Group, old: u8, new: u8) {
        if old != new {
            let (line, word, shift) = place(group.0);
            // Bytes stay below 128, so nothing is carried into a neighbour.
            let change = (u64::from(new) << shift).wrapping_sub(u64::from(old) << shift);
            self.lines[line][word].add(change);
        }
    }

    /// The first group of a range whose byte is at least `least`, which is not 0 and below 128.
    pub(crate) fn next(&self, range: Range<u32>, least: u8) -> Option<Group> {
        let mut at = range.start;
        while at < range.end {
            let (line, word, shift) = place(at);
            let orders = self.lines.get(line)?[word].get();
            // In each byte the highest bit stays if the rest is not below `least`.
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

/// The line, the word in it, and the bit in that where a group's byte begins.
fn place(group: u32) -> (usize, usize, u32) {
    let (word, byte) = (group / A_WORD, group % A_WORD);
    ((word / A_LINE) as usize, (word % A_LINE) as usize, byte * 8)
}

/// See the module.
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
                // A run holds an aligned chunk of half its length, rounded down to an order.
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
