//! Hands that go round a table and take out entries that no thread uses. Each hand has its own part of the buckets, so
//! several can move at once, and no list of entries is needed.
//!
//! A hand marks the entries of some buckets, and comes back to them after a grace period and after it has marked a
//! quarter of its part. An entry that was found meanwhile has lost its mark, and stays. `table.rs` explains why no
//! thread uses an entry that leaves.

use std::collections::VecDeque;
use std::ops::Range;

use crate::rcu::bucket::{self, Bucket};
use crate::rcu::domain::Kept;
use crate::rcu::table::{CountedTable, Gone, Keyed};

/// Buckets that are marked at a time.
const STEP: usize = 8;

/// One hand: where it is, and what it marked.
#[derive(Debug)]
pub struct Hand {
    part: usize,
    parts: usize,
    /// The table's length when the hand set its marks; if the table has another length, the hand begins again.
    buckets: usize,
    /// The next bucket to mark.
    at: usize,
    /// What it marked, and in which epoch.
    marked: VecDeque<(Range<usize>, u64)>,
}

/// Does a part of a sweep while what is reached is kept; or nothing, and returns false.
pub(super) type Enter<'a> = &'a dyn Fn(&mut dyn FnMut(Kept<'_>)) -> bool;

/// What a hand did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Swept {
    /// Entries that it took out.
    pub gone: usize,
    /// Entries that nobody had found since it marked them, and that stayed: they are in use, or may not go.
    pub stayed: usize,
    /// Whether it ended because readers from before were still there: a thread that lost its core while it looked keeps
    /// all hands waiting until it has one again.
    pub is_blocked: bool,
}

impl Hand {
    /// The hand over part `part` of `parts` parts of a table, which has at least `parts` buckets.
    #[must_use]
    pub fn new(part: usize, parts: usize) -> Hand {
        Hand {
            part,
            parts: parts.max(1),
            buckets: 0,
            at: 0,
            marked: VecDeque::new(),
        }
    }

    /// The buckets that are its own.
    fn range(&self) -> Range<usize> {
        let bound = |part| self.buckets * part / self.parts;
        bound(self.part)..bound(self.part + 1)
    }

    /// Marks are left where they are: they are met again.
    fn follow(&mut self, buckets: usize) {
        if self.buckets != buckets {
            self.buckets = buckets;
            self.marked.clear();
            self.at = self.range().start;
        }
    }

    /// The next buckets to mark.
    fn next(&mut self) -> Range<usize> {
        let range = self.range();
        if self.at >= range.end {
            self.at = range.start;
        }
        let next = self.at..(self.at + STEP).min(range.end);
        self.at = next.end;
        next
    }

    /// Steps between marking and looking again.
    fn lead(&self) -> usize {
        (self.range().len() / STEP / 4).max(1)
    }
}

impl<T: Keyed> CountedTable<T> {
    /// Takes out up to about `want` entries that nobody has, that nobody found since the hand marked them, and that
    /// `may_go`, which is asked under the bucket's lock and waits for nothing. Goes round once at most; where readers
    /// don't leave, it ends before. Takes one bucket's lock after another.
    #[track_caller]
    pub fn sweep(&self, hand: &mut Hand, want: usize, may_go: &mut dyn FnMut(&T) -> bool) -> Swept {
        let guarded = |work: &mut dyn FnMut(Kept<'_>)| {
            work(self.domain().enter().kept());
            true
        };
        self.sweep_kept(hand, want, may_go, &guarded).0
    }

    /// As [`CountedTable::sweep`]. `enter` does a part of the work while what is reached is kept, or nothing and
    /// returns false: then the sweep ends. A thread that has the table for itself waits for no grace period and takes
    /// no locks; what it took out is returned.
    #[track_caller]
    pub(super) fn sweep_kept(
        &self,
        hand: &mut Hand,
        want: usize,
        may_go: &mut dyn FnMut(&T) -> bool,
        enter: Enter<'_>,
    ) -> (Swept, Vec<Gone<'_, T>>) {
        let mut swept = Swept::default();
        let mut gone = Vec::new();
        let mut buckets = 0;
        if !enter(&mut |kept| buckets = self.array(kept).buckets.len()) {
            return (swept, gone);
        }
        hand.follow(buckets);
        // Once round, and what was marked before.
        let mut left = hand.range().len() + hand.marked.len() * STEP;
        while swept.gone < want && left > 0 {
            left = left.saturating_sub(STEP);
            if hand.marked.len() >= hand.lead() {
                match self.sweep_marked(hand, &mut swept, may_go, enter) {
                    None => {
                        swept.is_blocked = true;
                        break;
                    }
                    Some(taken) if taken.is_alone() => gone.push(taken),
                    // It is given to the domain at once.
                    Some(taken) => drop(taken),
                }
            }
            let next = hand.next();
            if !self.visit(hand.buckets, next.clone(), enter, &mut |bucket, _| {
                mark(bucket)
            }) {
                break;
            }
            hand.marked.push_back((next, self.domain().epoch()));
        }
        (swept, gone)
    }

    /// Looks again at what was marked first, and returns what it took out; `None` if readers from before are still
    /// there.
    fn sweep_marked(
        &self,
        hand: &mut Hand,
        swept: &mut Swept,
        may_go: &mut dyn FnMut(&T) -> bool,
        enter: Enter<'_>,
    ) -> Option<Gone<'_, T>> {
        let mut is_alone = false;
        enter(&mut |kept| is_alone = kept.is_alone());
        let mut gone = Gone::new(self, is_alone);
        let Some((range, epoch)) = hand.marked.front().cloned() else {
            return Some(gone);
        };
        let is_over = is_alone || (0..=2).any(|_| self.domain().advance() >= epoch + 2);
        if !is_over {
            return None;
        }
        hand.marked.pop_front();
        self.visit(hand.buckets, range, enter, &mut |first, kept| {
            self.sweep_bucket(first, kept, swept, may_go, &mut gone);
        });
        Some(gone)
    }

    /// Goes to the buckets where the entries of these are, with their locks, while the table has that many; false if it
    /// may not any more.
    fn visit(
        &self,
        buckets: usize,
        range: Range<usize>,
        enter: Enter<'_>,
        visit: &mut dyn FnMut(&Bucket<T>, Kept<'_>),
    ) -> bool {
        enter(&mut |kept| {
            let array = self.array(kept);
            if array.buckets.len() != buckets {
                return;
            }
            for index in range.clone() {
                CountedTable::at(array, index, kept, &mut |first| {
                    self.visit_bucket(buckets, first, kept, visit);
                });
            }
        })
    }

    /// Goes to a bucket with its lock, unless it moved or the table grew. That is looked at under the lock: while a
    /// table grows, hands of the smaller one and of the larger one come to the same bucket, and nobody may mark there,
    /// or take out what is marked, behind a hand of the larger one: it counts on the mark that it left.
    fn visit_bucket(
        &self,
        buckets: usize,
        first: &Bucket<T>,
        kept: Kept<'_>,
        visit: &mut dyn FnMut(&Bucket<T>, Kept<'_>),
    ) {
        let _lock = (!kept.is_alone()).then(|| first.lock.lock());
        if !first.is_moved() && self.array(kept).buckets.len() == buckets {
            visit(first, kept);
        }
    }

    fn sweep_bucket(
        &self,
        first: &Bucket<T>,
        kept: Kept<'_>,
        swept: &mut Swept,
        may_go: &mut dyn FnMut(&T) -> bool,
        gone: &mut Gone<'_, T>,
    ) {
        for line in first.lines() {
            for slot in 0..bucket::SLOTS {
                let entry = line.entry(slot);
                if entry.is_null() || !bucket::is_marked(entry) {
                    continue;
                }
                if CountedTable::is_unused(entry) && may_go(CountedTable::value(entry, kept)) {
                    gone.push(self.take_out(first, line, slot));
                    swept.gone += 1;
                } else {
                    line.put(slot, bucket::plain(entry));
                    swept.stayed += 1;
                }
            }
        }
    }
}

/// Marks the entries that no thread has. The caller has the bucket's lock.
fn mark<T: Keyed>(first: &Bucket<T>) {
    for line in first.lines() {
        for slot in 0..bucket::SLOTS {
            let entry = line.entry(slot);
            if !entry.is_null() && CountedTable::is_unused(entry) {
                line.put(slot, bucket::marked(entry));
            }
        }
    }
}

#[cfg(test)]
mod tests;
