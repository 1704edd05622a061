//! Delaying commits for a caller that makes a change which must not become durable before a later one.
//!
//! A delay ends when its caller ends it, or when its time has passed. Every commit waits for the delays that began
//! before it, except a commit that freezes or closes the journal. While a commit waits or is under way no delay begins,
//! so a commit waits at most for the longest time of one delay. The client's fast commits are not delayed: a caller
//! that may cause one calls [`Journal::await_delays`] first.
//!
//! # Locking
//! [`sync::Rank::JournalLeader`] protects the delays.

use std::collections::BTreeMap;

use sync::clock::{Duration, Instant, now};

use super::Journal;

/// A delay that has begun: its number.
#[derive(PartialEq, Eq, Debug)]
pub struct CommitDelay(u64);

/// The delays of a journal.
#[derive(Default)]
pub(crate) struct Delays {
    /// For each delay, by its number, the time at which it ends at the latest.
    deadlines: BTreeMap<u64, Instant>,
    next: u64,
    /// How many threads wait for delays to end before they commit.
    pub(crate) waiting: usize,
}

impl Delays {
    /// The longest time that the delays with numbers below `before` can still last; `None` if none of them is left.
    /// Forgets all delays whose time has passed.
    pub(crate) fn left(&mut self, before: u64) -> Option<Duration> {
        let now = now();
        self.deadlines.retain(|_, deadline| *deadline > now);
        let last = self.deadlines.range(..before).map(|(_, end)| end).max();
        last.map(|deadline| deadline.saturating_duration_since(now))
    }
}

impl Journal {
    /// Delays commits of what is changed from now on, for `most` at most. Waits for a commit that is under way or that
    /// waits for other delays: the caller has no handle, and no lock that a thread with a handle may wait for.
    pub fn delay_commits(&self, most: Duration) -> CommitDelay {
        let mut leaders = self.leaders.lock();
        while (leaders.is_committing || leaders.delays.waiting > 0) && self.abort.check().is_ok() {
            self.changed.wait(&mut leaders);
        }
        let number = leaders.delays.next;
        leaders.delays.next += 1;
        leaders.delays.deadlines.insert(number, now() + most);
        CommitDelay(number)
    }

    /// Ends a delay, if its time has not passed already.
    pub fn end_delay(&self, delay: CommitDelay) {
        let mut leaders = self.leaders.lock();
        if leaders.delays.deadlines.remove(&delay.0).is_some() {
            drop(leaders);
            self.changed.notify_all();
        }
    }

    /// Waits until all delays that have begun by now have ended.
    pub fn await_delays(&self) {
        let mut leaders = self.leaders.lock();
        let begun = leaders.delays.next;
        while let Some(left) = leaders.delays.left(begun) {
            let _is_late = self.changed.wait_for(&mut leaders, left);
        }
    }
}
