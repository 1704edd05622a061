//! One group's blocks in memory: which are available ([`Buddy`]), which are being freed, and how many are outstanding.
//! All under the group's lock; the parent module says when a block is available.
//!
//! A block is *outstanding* while memory records something about it that no image does: from when it is taken, or
//! claimed to be freed, until that is given back, or applied and durable. A group without outstanding blocks is the
//! same here as in the newest image, and may be dropped and read again.

use std::collections::BTreeMap;
use std::ops::Range;

use super::buddy::Buddy;

/// A group's blocks in memory. [group]
pub(crate) struct Bits {
    buddy: Buddy,
    /// Runs in use that a thread is about to free, or that an epoch freed that is not durable: length by first bit.
    leaving: BTreeMap<u32, u32>,
    outstanding: u32,
    /// An epoch took or freed some since they were read.
    has_changed: bool,
}

impl Bits {
    /// The blocks of a group of `len` blocks with this bitmap.
    pub(crate) fn new(used: &[u8], len: u32) -> Bits {
        Bits {
            buddy: Buddy::new(used, len),
            leaving: BTreeMap::new(),
            outstanding: 0,
            has_changed: false,
        }
    }

    /// The available blocks.
    pub(crate) fn buddy(&mut self) -> &mut Buddy {
        &mut self.buddy
    }

    /// Whether the newest image agrees, so that the bits may be dropped.
    pub(crate) fn may_go(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether an epoch took or freed some since they were read.
    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Takes available blocks.
    pub(crate) fn take(&mut self, range: Range<u32>) -> Range<u32> {
        self.outstanding += range.end - range.start;
        self.buddy.take(range.clone());
        range
    }

    /// Takes certain blocks, if all of them are available.
    pub(crate) fn take_exact(&mut self, range: Range<u32>) -> bool {
        let run = self.buddy.run_at(range.start, range.end - range.start);
        let is_free = run.as_ref() == Some(&range);
        if is_free {
            self.take(range);
        }
        is_free
    }

    /// Takes the available blocks of a range.
    pub(crate) fn take_free(&mut self, range: Range<u32>) -> Vec<Range<u32>> {
        let (mut taken, mut at) = (Vec::new(), range.start);
        while let Some(first) = self.buddy.first_free(at..range.end)
            && let Some(run) = self.buddy.run_at(first, range.end - first)
        {
            at = run.end;
            taken.push(self.take(run));
        }
        taken
    }

    /// The first run of at least `least` free blocks within a range; a run that begins before the range or ends after
    /// it counts with its part in it.
    pub(crate) fn long_run(&self, mut range: Range<u32>, least: u32) -> Option<Range<u32>> {
        while let Some(first) = self.buddy.first_free(range.clone())
            && let Some(run) = self.buddy.run_at(first, range.end - first)
        {
            if run.end - run.start >= least {
                return Some(run);
            }
            range.start = run.end;
        }
        None
    }

    /// Makes blocks available again that were taken.
    pub(crate) fn give_back(&mut self, range: Range<u32>) {
        self.outstanding -= range.end - range.start;
        self.buddy.put(range);
    }

    /// Counts `count` blocks that were taken and are now in use in a durable image.
    pub(crate) fn applied(&mut self, count: u32) {
        self.outstanding -= count;
        self.has_changed |= count > 0;
    }

    /// Announces that a thread is going to free blocks. The error is the first one that can't be freed: it is free, or
    /// being freed.
    pub(crate) fn leave(&mut self, range: Range<u32>) -> Result<(), u32> {
        if let Some(free) = self.buddy.first_free(range.clone()) {
            return Err(free);
        }
        if let Some((start, len)) = self.leaving.range(..range.end).next_back()
            && start + len > range.start
        {
            return Err((*start).max(range.start));
        }
        let len = range.end - range.start;
        self.leaving.insert(range.start, len);
        self.outstanding += len;
        Ok(())
    }

    /// They stay after all.
    pub(crate) fn stay(&mut self, first: u32) {
        self.outstanding -= self.leaving.remove(&first).unwrap_or(0);
    }

    /// Runs that were left are free, durably. Neighbours among them are put in as one.
    pub(crate) fn left(&mut self, mut runs: Vec<Range<u32>>) {
        self.has_changed |= !runs.is_empty();
        for run in &runs {
            self.stay(run.start);
        }
        runs.sort_unstable_by_key(|run| run.start);
        let mut runs = runs.into_iter();
        let Some(mut run) = runs.next() else { return };
        for next in runs {
            if next.start == run.end {
                run.end = next.end;
            } else {
                self.buddy.put(std::mem::replace(&mut run, next));
            }
        }
        self.buddy.put(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_must_be_in_use_and_leaves_once() {
        let mut bits = Bits::new(&[0xff, 0x0f, 0, 0], 32);
        assert_eq!(bits.leave(8..13), Err(12));
        assert_eq!(bits.leave(4..8), Ok(()));
        assert_eq!(bits.leave(0..5), Err(4));
        assert_eq!(bits.leave(7..8), Err(7));
        assert_eq!(bits.leave(0..4), Ok(()));
        bits.stay(4);
        assert_eq!(bits.leave(4..12), Ok(()));
        bits.left(vec![4..12, 0..4]);
        assert_eq!((bits.buddy().free(), bits.may_go()), (32, true));
        assert_eq!(bits.leave(4..5), Err(4));
    }

    #[test]
    fn a_long_run_is_measured_within_its_range() {
        let bits = Bits::new(&[0b0110_1101, 0xf8, 0, 0], 32);
        assert_eq!(bits.long_run(0..32, 1), Some(1..2));
        assert_eq!(bits.long_run(0..32, 2), Some(7..11));
        assert_eq!(bits.long_run(0..9, 3), None);
        assert_eq!(bits.long_run(9..32, 3), Some(16..32));
        assert_eq!(bits.long_run(20..24, 4), Some(20..24));
        assert_eq!(bits.long_run(20..24, 5), None);
        assert_eq!(bits.long_run(24..24, 1), None);
    }

    #[test]
    fn it_may_be_forgotten_when_nothing_is_on_its_way() {
        let mut bits = Bits::new(&[0, 0xff], 16);
        assert!(bits.may_go());
        bits.take(0..6);
        bits.give_back(2..4);
        assert_eq!(bits.leave(8..10), Ok(()));
        bits.applied(4);
        assert!(!bits.may_go());
        bits.stay(8);
        assert!(bits.may_go());
    }

    #[test]
    fn it_has_changed_when_an_epoch_took_or_freed_something() {
        let changed = |work: &dyn Fn(&mut Bits)| {
            let mut bits = Bits::new(&[0, 0xff], 16);
            work(&mut bits);
            bits.has_changed()
        };
        assert!(!changed(&|bits| {
            bits.take(0..6);
            bits.give_back(0..6);
            // An epoch that changed inodes of the group only.
            bits.applied(0);
            bits.left(Vec::new());
        }));
        assert!(changed(&|bits| {
            bits.take(0..6);
            bits.applied(6);
        }));
        assert!(changed(&|bits| {
            bits.leave(8..9).unwrap();
            bits.leave(12..13).unwrap();
            bits.left(vec![8..9, 12..13]);
        }));
    }
}
