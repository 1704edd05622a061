//! The orphan file's slots in memory: a word each, and a count of free ones for each range of slots.
//!
//! ```text
//! on disk    block 0  | block 1  | block 2  |          each block of the file: its slots, and a tail
//! in memory  [lines]    [lines]    [lines]             16 words to a line; a block's lines are its own
//!            0    3   | 1    4   | 2    5   |          ranges: parts of blocks, each with a count on its own line
//! thread t begins at the t-th range, and there at the line of its own turn
//! ```
//!
//! A word holds an inode's number (0: free) and above it a version, which grows when the slot is claimed and when it is
//! released. A thread that wants a slot takes one off a range's count, if it is not 0 ([`Table::take`]), and then finds
//! a free word in the range and swaps its number in ([`Table::find`]). A thread that gives a slot back clears the word
//! and then increments the count. So a range has at least as many free words as the sum of its count and the threads
//! that took from it and still search.
//!
//! Invariants. A word that is not 0 below is changed by its owner only. Versions of a slot follow the epochs: a slot
//! that an apply in epoch E released is seen free by a claim whose handle then begins in E or later, because E can't
//! end while the apply runs. So within an epoch the highest version of a slot is the last, and from one epoch to the
//! next no version decreases.
//!
//! No locks: all forms work on these words, at the same time. The words of a block are allocated when the first of its
//! slots is claimed, so memory follows use; they stay until the table is dropped, so nothing needs reclaiming. What a
//! crash leaves: nothing of this; a claim reaches the disk only by what its apply appends to the epoch's list.
//! Interleavings: the tests of [`super::lockless`], and `tests/writing/orphan_slots.rs`.

use ondisk::Ino;
use sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sync::{CachePadded, Hint, OnceLock};

/// Words to a line: 128 bytes, for neighbouring lines of 64 bytes are often fetched together.
pub(super) const LINE: u32 = 16;

/// The fewest ranges, if the file has enough lines: up to this number of threads begin with counts of their own.
const RANGES: u32 = 128;

/// How the slots are laid out, and where threads begin.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Blocks of the file: at most 512.
    pub(super) blocks: u32,
    /// Slots of a block: at most 16,382.
    pub(super) slots: u32,
}

impl Shape {
    /// Lines of a block.
    pub(super) fn lines(self) -> u32 {
        self.slots.div_ceil(LINE)
    }

    /// Ranges that a block is divided into.
    pub(super) fn parts(self) -> u32 {
        match self.blocks {
            0 => 0,
            blocks => RANGES.div_ceil(blocks).min(self.lines()),
        }
    }

    /// Ranges of the file. Number `r` is part `r / blocks` of block `r % blocks`: neighbours are in different blocks.
    pub(super) fn ranges(self) -> u32 {
        self.blocks * self.parts()
    }

    /// The lines of a block that make up a part of it.
    pub(super) fn lines_of(self, part: u32) -> std::ops::Range<u32> {
        let lines = self.lines();
        part * lines / self.parts()..(part + 1) * lines / self.parts()
    }

    /// Slots of a range.
    fn slots_of(self, range: u32) -> u32 {
        let lines = self.lines_of(range / self.blocks);
        (lines.end * LINE).min(self.slots) - lines.start * LINE
    }

    /// The range that holds a slot.
    pub(super) fn range_of(self, slot: u32) -> u32 {
        let (block, line) = (slot / self.slots, slot % self.slots / LINE);
        // The last part that begins at or before the line.
        let part = ((line + 1) * self.parts()).div_ceil(self.lines()) - 1;
        part * self.blocks + block
    }

    /// Where the thread with this index begins: the range, and the line in it, counted from the range's first. No two
    /// threads share a range as long as there are no more of them than ranges, nor a line as long as there are no more
    /// than ranges times the lines of the smallest.
    pub(super) fn start(self, thread: usize) -> (u32, u32) {
        let ranges = self.ranges() as usize;
        // Both are below numbers of 32 bits.
        let range = (thread % ranges) as u32;
        let lines = self.lines_of(range / self.blocks).len();
        (range, (thread / ranges % lines) as u32)
    }
}

/// Where an inode's number goes, and how many there are: the small face of the forms.
pub(super) trait Slots: Send + Sync {
    /// Takes a free slot for an inode; `None` if none was found.
    fn claim<'a>(&self, table: &'a Table, ino: Ino) -> Option<Claim<'a>>;

    /// Gives back the slot of an inode whose lock the caller has; the slot's new version. Takes no lock that is above
    /// the handle, and waits for no I/O.
    fn release(&self, table: &Table, slot: u32) -> u32;
}

/// A slot that was taken for an inode. Dropped, it is free again: nothing on disk knew of it.
pub(crate) struct Claim<'a> {
    table: &'a Table,
    slot: u32,
    version: u32,
}

impl Claim<'_> {
    /// The slot and its version, which from now on the inode keeps.
    pub(super) fn keep(self) -> (u32, u32) {
        let kept = (self.slot, self.version);
        // Nothing in it needs dropping but the claim itself.
        std::mem::forget(self);
        kept
    }

    #[cfg(test)]
    pub(super) fn slot(&self) -> u32 {
        self.slot
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.table.release(self.slot);
    }
}

/// Sixteen slots.
type Line = CachePadded<[AtomicU64; LINE as usize]>;

/// The slots; see the module.
pub(super) struct Table {
    /// [const after mount]
    shape: Shape,
    /// The lines of each block, once one of its slots was claimed. [atomic: swapped in by claims, stored by owners]
    blocks: Box<[OnceLock<Box<[Line]>>]>,
    /// [const; see its fields]
    ranges: Box<[CachePadded<Range>]>,
}

/// What is known of a range.
struct Range {
    /// Free slots, less those of threads that took one and still search for it. [atomic: Release, Acquire]
    free: AtomicU32,
    /// Added to the line where a thread begins its search, counted from the range's first line: a search begins where a
    /// slot was found last, and need not pass all lines that are full. [atomic: Relaxed, hint]
    turn: Hint<u32>,
}

/// What a search for a slot found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Met {
    /// Words that others took between the look and the swap.
    pub(super) lost: u64,
    /// Passes over a range that found nothing.
    pub(super) passes: u64,
}

/// Passes over a range that should have a free slot, before it is left for the next: others may take each free word
/// just before, and free one just behind, for ever.
const PASSES: u32 = 3;

impl Table {
    /// Slots of this shape, of which some are in use.
    pub(super) fn new(shape: Shape, used: &[(u32, Ino)]) -> Table {
        let ranges = (0..shape.ranges()).map(|range| Range {
            free: AtomicU32::new(shape.slots_of(range)),
            turn: Hint::new(0),
        });
        let table = Table {
            shape,
            blocks: (0..shape.blocks).map(|_| OnceLock::new()).collect(),
            ranges: ranges.map(CachePadded::new).collect(),
        };
        for (slot, ino) in used {
            // Relaxed: no other thread has the table yet; here and below.
            table.word(*slot).store(ino.0.into(), Ordering::Relaxed);
            let range = &table.ranges[shape.range_of(*slot) as usize];
            // Relaxed: no other thread has the table yet.
            range.free.fetch_sub(1, Ordering::Relaxed);
        }
        table
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    fn lines(&self, block: u32) -> &[Line] {
        self.blocks[block as usize].get_or_init(|| {
            let line = || CachePadded::new([const { AtomicU64::new(0) }; LINE as usize]);
            (0..self.shape.lines()).map(|_| line()).collect()
        })
    }

    fn word(&self, slot: u32) -> &AtomicU64 {
        let (block, within) = (slot / self.shape.slots, slot % self.shape.slots);
        &self.lines(block)[(within / LINE) as usize][(within % LINE) as usize]
    }

    /// Takes one off a range's count of free slots, if there is one: then [`Table::find`] is due.
    pub(super) fn take(&self, range: u32) -> bool {
        let count = &self.ranges[range as usize].free;
        // Relaxed: the swap decides.
        let mut free = count.load(Ordering::Relaxed);
        while free > 0 {
            // Acquire: the word that was cleared before the count rose is seen so; pairs with the Release in
            // `put_back`. Relaxed: a failure is looked at again only.
            match count.compare_exchange(free, free - 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => free = now,
            }
        }
        false
    }

    /// One more slot of a range can be taken.
    pub(super) fn put_back(&self, range: u32) {
        // Release: comes after the word was cleared; pairs with the Acquire in `take`.
        self.ranges[range as usize]
            .free
            .fetch_add(1, Ordering::Release);
    }

    /// Claims a slot of a range from which one was taken, for a thread that begins with this line of it; `None` if
    /// others were always faster, and then what was taken is put back.
    pub(super) fn find(&self, range: u32, own: u32, ino: Ino, met: &mut Met) -> Option<Claim<'_>> {
        let (block, part) = (range % self.shape.blocks, range / self.shape.blocks);
        let lines = self.shape.lines_of(part);
        let count = lines.len() as u32;
        let turn = &self.ranges[range as usize].turn;
        let last = turn.get();
        for _ in 0..PASSES {
            for step in 0..count {
                let line = lines.start + (own + last + step) % count;
                if let Some((place, version)) = self.find_in_line(block, line, ino, met) {
                    if step > 0 {
                        turn.set((last + step) % count);
                    }
                    let slot = block * self.shape.slots + line * LINE + place;
                    let table = self;
                    return Some(Claim {
                        table,
                        slot,
                        version,
                    });
                }
            }
            met.passes += 1;
        }
        self.put_back(range);
        None
    }

    /// Claims a free word of a line: its place there, and its version.
    fn find_in_line(&self, block: u32, line: u32, ino: Ino, met: &mut Met) -> Option<(u32, u32)> {
        let rest = self.shape.slots - line * LINE;
        let words = self.lines(block)[line as usize].iter();
        (0..rest)
            .zip(words)
            .find_map(|(place, word)| Some((place, claim_word(word, ino, met)?)))
    }

    /// Frees a slot, as its owner; its new version.
    pub(super) fn release(&self, slot: u32) -> u32 {
        let word = self.word(slot);
        // Relaxed: no other thread changes a word that is in use.
        let version = ((word.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1);
        // Release: the thread that claims the slot next begins its handle after this one began; pairs with the Acquire
        // in `claim_word`.
        word.store(u64::from(version) << 32, Ordering::Release);
        self.put_back(self.shape.range_of(slot));
        version
    }

    /// Whether no slot is in use, if no other thread changes that meanwhile.
    pub(super) fn is_empty(&self) -> bool {
        let mut ranges = (0..self.shape.ranges()).zip(&self.ranges);
        // Acquire: pairs with the Release in `put_back`.
        ranges.all(|(range, of)| of.free.load(Ordering::Acquire) == self.shape.slots_of(range))
    }
}

/// Puts an inode's number into a word if it is free; the slot's new version.
fn claim_word(word: &AtomicU64, ino: Ino, met: &mut Met) -> Option<u32> {
    // Relaxed: the swap decides.
    let before = word.load(Ordering::Relaxed);
    if before as u32 != 0 {
        return None;
    }
    let version = ((before >> 32) as u32).wrapping_add(1);
    let new = u64::from(version) << 32 | u64::from(ino.0);
    // Acquire: pairs with the Release in `release`; see the invariants. Relaxed: a failure is passed over.
    let swapped = word.compare_exchange(before, new, Ordering::Acquire, Ordering::Relaxed);
    met.lost += u64::from(swapped.is_err());
    swapped.ok().map(|_| version)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Slots of blocks of 1, 2, 4 and 64 KiB.
    const SLOTS: [u32; 4] = [254, 510, 1022, 16_382];

    #[test]
    fn every_slot_lies_in_the_range_that_counts_it() {
        for slots in SLOTS {
            for blocks in [1, 2, 3, 13, 26, 32, 100, 127, 128, 512] {
                let shape = Shape { blocks, slots };
                let mut counted = vec![0; shape.ranges() as usize];
                for slot in (0..blocks * slots).step_by(1 + (blocks * slots / 50_000) as usize) {
                    let range = shape.range_of(slot);
                    let lines = shape.lines_of(range / blocks);
                    assert_eq!(range % blocks, slot / slots);
                    assert!(lines.contains(&(slot % slots / LINE)), "{blocks} {slot}");
                    counted[range as usize] += 1;
                }
                let sum: u32 = (0..shape.ranges()).map(|range| shape.slots_of(range)).sum();
                assert_eq!(sum, blocks * slots);
                if blocks * slots < 50_000 {
                    for (range, counted) in counted.iter().enumerate() {
                        assert_eq!(*counted, shape.slots_of(range as u32));
                    }
                }
            }
        }
    }

    #[test]
    fn starts_never_meet_whatever_the_number_of_blocks() {
        for slots in SLOTS {
            for blocks in 1..=512 {
                let shape = Shape { blocks, slots };
                let (mut lines, mut ranges) = (HashSet::new(), HashSet::new());
                let smallest = (0..shape.parts())
                    .map(|part| shape.lines_of(part).len())
                    .min();
                let most = shape.ranges() as usize * smallest.unwrap();
                // At least 16 lines, even in the smallest file; 128 in every file that has 128.
                assert!(most >= (blocks * shape.lines()).min(128) as usize / 2);
                for thread in 0..most.min(2000) {
                    let (range, line) = shape.start(thread);
                    let first_line = shape.lines_of(range / blocks).start;
                    assert!(
                        lines.insert((range % blocks, first_line + line)),
                        "{thread}"
                    );
                    let is_first = ranges.insert(range);
                    assert_eq!(is_first, thread < shape.ranges() as usize);
                    // As long as there are blocks for all, each begins in its own.
                    assert!(thread >= blocks as usize || range == thread as u32);
                }
            }
        }
    }

    #[test]
    fn a_dropped_claim_is_free_again_and_counted_so() {
        let table = Table::new(
            Shape {
                blocks: 1,
                slots: 3,
            },
            &[(1, Ino(50))],
        );
        let mut met = Met::default();
        let mut claim = |ino| {
            let has_one = table.take(0);
            has_one.then(|| table.find(0, 0, Ino(ino), &mut met).unwrap())
        };
        let first = claim(12).unwrap();
        assert_eq!((first.slot(), first.version), (0, 1));
        let second = claim(13).unwrap();
        assert_eq!((second.slot(), second.version), (2, 1));
        assert!(claim(14).is_none() && !table.is_empty());
        drop(first);
        assert_eq!(claim(14).unwrap().keep(), (0, 3));
        assert!(claim(15).is_none());
        assert_eq!((table.release(1), table.release(0)), (1, 4));
        drop(second);
        assert!(table.is_empty());
        assert_eq!(met, Met::default());
    }

    #[test]
    fn a_look_in_vain_ends_and_gives_back_what_it_took() {
        let table = Table::new(
            Shape {
                blocks: 1,
                slots: 1,
            },
            &[(0, Ino(50))],
        );
        // As if other threads were faster each time: a free slot is promised, and none is found.
        table.put_back(0);
        let mut met = Met::default();
        for look in 1..4 {
            assert!(table.take(0) && !table.take(0));
            assert!(table.find(0, 0, Ino(11), &mut met).is_none());
            assert_eq!(met.passes, look * u64::from(PASSES));
        }
    }

    #[test]
    fn versions_wrap() {
        let table = Table::new(
            Shape {
                blocks: 1,
                slots: 1,
            },
            &[],
        );
        // Relaxed: no other thread has it.
        table
            .word(0)
            .store(u64::from(u32::MAX) << 32, Ordering::Relaxed);
        assert!(table.take(0));
        let claim = table.find(0, 0, Ino(11), &mut Met::default()).unwrap();
        assert_eq!(claim.keep(), (0, 0));
        assert_eq!(table.release(0), 1);
    }
}
