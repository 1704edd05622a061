//! The attendant: a thread that commits at an interval, and does commits and checkpoints that are due, so that no
//! operation has to.
//!
//! The journal starts no thread: a caller that wants an attendant lends one ([`Journal::attend`]). The attendant waits
//! under [`Rank::JournalLeader`]. A thread that calls it takes that lock only if there is an attendant that was not
//! called yet; two words show that ([`Attendant::call`]).
//!
//! # Sleep
//!
//! After each commit the attendant is drowsy: the next handle that ends calls it. If it was drowsy for a whole interval
//! and nothing changed, it sleeps without a limit, so a file system that nobody changes wakes no thread. A thread that
//! ended a handle and did not see yet that the attendant is drowsy did so at the beginning of that interval, so its
//! change is seen at the end of it.
//!
//! [`Rank::JournalLeader`]: sync::Rank::JournalLeader

use sync::clock::{Duration, now};
use sync::{CachePadded, Condvar, Guarded, Hint, Mutex};

use super::{Journal, Leaders};
use crate::client::Client;
use crate::options::CommitCause;

/// The longest interval; a time further off may be none that the clock can tell.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// What the attendant shares with the threads that call it.
#[derive(Default)]
pub(crate) struct Attendant {
    /// Whether an attendant runs. [atomic: Relaxed, hint; written by the attendant]
    is_there: Hint<bool>,
    /// Whether the attendant was called and has not looked yet. [atomic: Relaxed, hint; taken back under journal
    /// leader]
    is_called: Hint<bool>,
    /// Whether the next handle that ends shall call the attendant. Each handle reads it, so it shares no line with what
    /// others write. [atomic: Relaxed, hint]
    is_drowsy: CachePadded<Hint<bool>>,
    /// Whether the attendant shall end. [journal leader]
    is_dismissed: Guarded<bool>,
    called: Condvar,
}

impl Attendant {
    /// Wakes the attendant; returns false if the journal has none.
    pub(crate) fn call(&self, leaders: &Mutex<Leaders>) -> bool {
        // Without an attendant, the caller does what is due.
        if !self.is_there.get() {
            return false;
        }
        // Of several callers, the first wakes the attendant, which looks under the lock that the caller takes.
        if !self.is_called.swap(true) {
            drop(leaders.lock());
            self.called.notify_all();
        }
        true
    }

    /// A handle has ended: calls the attendant if it is drowsy.
    pub(crate) fn rouse(&self, leaders: &Mutex<Leaders>) {
        // A thread that does not see it yet changes something in the interval before the attendant sleeps.
        if self.is_drowsy.get() {
            self.call(leaders);
        }
    }
}

impl Journal {
    /// Attends to the journal until it is aborted or [`Journal::dismiss`] is called: commits what is older than
    /// `interval`, and commits and checkpoints when either is due. Runs on the caller's thread, which does nothing
    /// else.
    pub fn attend(&self, client: &dyn Client, interval: Duration) {
        let attendant = &self.attendant;
        let interval = interval.min(LONGEST);
        attendant.is_there.set(true);
        let mut last = now();
        let mut limit = Some(last + interval);
        while self.wait_for_call(limit) {
            let is_over = limit.is_some_and(|limit| now() >= limit);
            // It stays set while this thread looks for a change: a handle that ends after the look calls.
            let is_drowsy = attendant.is_drowsy.get();
            if is_over && is_drowsy && !self.space.is_used(self.current_epoch()) {
                limit = None;
                continue;
            }
            // Until the next commit no handle needs to call.
            attendant.is_drowsy.set(false);
            if limit.is_none() {
                // The first change after a sleep waits for a whole interval.
                last = now();
            }
            let is_full = self.is_commit_due();
            if now() - last >= interval || is_full {
                last = now();
                let cause = if is_full {
                    CommitCause::Full
                } else {
                    CommitCause::Interval
                };
                // A failure aborts, and the next caller gets the error.
                let _ = self.commit_now(client, self.current_epoch(), cause);
                // A handle that does not see it ends in the next interval.
                attendant.is_drowsy.set(true);
            }
            limit = Some(last + interval);
            if self.is_checkpoint_due() {
                let _ = self.checkpoint();
            }
        }
        attendant.is_there.set(false);
    }

    /// Waits for a call, or for that time if there is one; false when it is time to go.
    fn wait_for_call(&self, until: Option<sync::clock::Instant>) -> bool {
        let attendant = &self.attendant;
        let mut leaders = self.leaders.lock();
        loop {
            if attendant.is_dismissed.get() || self.abort.check().is_err() {
                return false;
            }
            // The caller takes the lock after it set this, and then wakes the attendant.
            let is_called = attendant.is_called.swap(false);
            let left = until.map(|until| until.saturating_duration_since(now()));
            match left {
                _ if is_called => return true,
                Some(Duration::ZERO) => return true,
                Some(left) => {
                    let _is_late = attendant.called.wait_for(&mut leaders, left);
                }
                None => attendant.called.wait(&mut leaders),
            }
        }
    }

    /// Sends the attendant away, now or when one comes; [`Journal::attend`] returns soon.
    pub fn dismiss(&self) {
        let leaders = self.leaders.lock();
        self.attendant.is_dismissed.set(true);
        drop(leaders);
        self.attendant.called.notify_all();
    }
}
