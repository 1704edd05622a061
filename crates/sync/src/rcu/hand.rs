//! Hands that go round a table and take out what nobody uses: each over a part of the buckets, so that several go at
//! once, and nothing is listed anywhere.
//!
//! A hand marks the entries of some buckets and comes back for them later: behind a grace period, and when it has
//! marked a quarter of its part, or all that it was asked to look at. What was found in between lost its mark and
//! stays. Why what goes is used by nobody: `table.rs`.

use std::collections::VecDeque;
use std::ops::Range;

use crate::rcu::bucket::{self, Bucket};
use crate::rcu::domain::Guard;
use crate::rcu::table::{CountedTable, Gone, Keyed};

/// Buckets that are marked at a time.
const STEP: usize = 8;

/// One hand: where it is, and what it marked.
#[derive(Debug)]
pub struct Hand {
    part: usize,
    parts: usize,
    /// The table's length when it marked; at another, it begins anew.
    buckets: usize,
    /// The next bucket to mark.
    at: usize,
    /// What it marked, and in which epoch.
    marked: VecDeque<(Range<usize>, u64)>,
}

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
    /// The hand over part `part` of `parts` parts of a table, which has at least as many buckets.
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
        let mut swept = Swept::default();
        let mut left = {
            let guard = self.domain().enter();
            hand.follow(self.array(&guard).buckets.len());
            // Once round, and what was marked before.
            hand.range().len() + hand.marked.len() * STEP
        };
        while swept.gone < want && left > 0 {
            left = left.saturating_sub(STEP);
            let is_led = hand.marked.len() >= hand.lead();
            if is_led && !self.sweep_marked(hand, &mut swept, may_go) {
                swept.is_blocked = true;
                break;
            }
            let next = hand.next();
            self.visit(hand.buckets, next.clone(), &mut |bucket, _| mark(bucket));
            hand.marked.push_back((next, self.domain().epoch()));
        }
        swept
    }

    /// Looks again at what was marked first; false if readers from before are still there.
    fn sweep_marked(
        &self,
        hand: &mut Hand,
        swept: &mut Swept,
        may_go: &mut dyn FnMut(&T) -> bool,
    ) -> bool {
        let Some((range, epoch)) = hand.marked.front().cloned() else {
            return true;
        };
        let is_over = (0..=2).any(|_| self.domain().advance() >= epoch + 2);
        if !is_over {
            return false;
        }
        hand.marked.pop_front();
        let mut gone = Gone::new(self);
        self.visit(hand.buckets, range, &mut |first, guard| {
            self.sweep_bucket(first, guard, swept, may_go, &mut gone);
        });
        true
    }

    /// Goes to the buckets where the entries of these are, with their locks, while the table has that many.
    fn visit(
        &self,
        buckets: usize,
        range: Range<usize>,
        visit: &mut dyn FnMut(&Bucket<T>, &Guard<'_>),
    ) {
        let guard = self.domain().enter();
        let array = self.array(&guard);
        if array.buckets.len() != buckets {
            return;
        }
        for index in range {
            CountedTable::at(array, index, &guard, &mut |first| {
                self.visit_bucket(buckets, first, &guard, visit);
            });
        }
    }

    /// Goes to a bucket with its lock, unless it moved or the table grew. That is looked at under the lock: while a
    /// table grows, hands of the smaller one and of the larger one come to the same bucket, and nobody may mark there,
    /// or take out what is marked, behind a hand of the larger one: it counts on the mark that it left.
    fn visit_bucket(
        &self,
        buckets: usize,
        first: &Bucket<T>,
        guard: &Guard<'_>,
        visit: &mut dyn FnMut(&Bucket<T>, &Guard<'_>),
    ) {
        let _lock = first.lock.lock();
        if !first.is_moved() && self.array(guard).buckets.len() == buckets {
            visit(first, guard);
        }
    }

    fn sweep_bucket(
        &self,
        first: &Bucket<T>,
        guard: &Guard<'_>,
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
                if CountedTable::is_unused(entry) && may_go(CountedTable::value(entry, guard)) {
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

/// Marks what nobody has. The caller has the bucket's lock.
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
