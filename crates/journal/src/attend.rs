//! The attendant: a thread of the user's that commits every so often, and does what is due, so that no operation has
//! to.
//!
//! It waits under [`Rank::JournalLeader`], and is called without it where nobody needs it ([`Attendant::call`] looks at
//! two words first). The journal starts no thread: a caller that wants an attendant lends a thread
//! ([`Journal::attend`]).
//!
//! [`Rank::JournalLeader`]: sync::Rank::JournalLeader

use sync::atomic::{AtomicBool, Ordering};
use sync::clock::{Duration, now};
use sync::{Condvar, Mutex};

use crate::client::Client;
use crate::commit::{Journal, Leaders};

/// The longest interval; a time further off may be none that the clock can tell.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// What the attendant and those who call it share.
#[derive(Default)]
pub(crate) struct Attendant {
    /// Someone attends. [atomic: Relaxed, hint]
    is_there: AtomicBool,
    /// It was called and has not come yet. [atomic: Relaxed, hint]
    is_called: AtomicBool,
    /// It is to go. [journal leader; atomic: Relaxed]
    is_dismissed: AtomicBool,
    called: Condvar,
}

impl Attendant {
    /// Calls the attendant, if there is one; says whether.
    pub(crate) fn call(&self, leaders: &Mutex<Leaders>) -> bool {
        // Relaxed: a hint; without an attendant the caller does what is due.
        if !self.is_there.load(Ordering::Relaxed) {
            return false;
        }
        // Relaxed: one caller wakes it; pairs with the store in `Journal::attend`, under the lock that the caller
        // takes.
        if !self.is_called.swap(true, Ordering::Relaxed) {
            drop(leaders.lock());
            self.called.notify_all();
        }
        true
    }
}

impl Journal {
    /// Attends to the journal until it is aborted or [`Journal::dismiss`] is called: commits what is older than
    /// `interval`, and commits and checkpoints when either is due. Runs on the caller's thread, which does nothing
    /// else.
    pub fn attend(&self, client: &dyn Client, interval: Duration) {
        let attendant = &self.attendant;
        let interval = interval.min(LONGEST);
        // Relaxed: a hint to those who would do its work themselves; here and at the end.
        attendant.is_there.store(true, Ordering::Relaxed);
        let mut last = now();
        while self.wait_for_call(last + interval) {
            if now() - last >= interval || self.is_commit_due() {
                last = now();
                // A failure aborts, and the next caller gets the error.
                let _ = self.commit_now(client, self.current_epoch());
            }
            if self.is_checkpoint_due() {
                let _ = self.checkpoint();
            }
        }
        // Relaxed: as above.
        attendant.is_there.store(false, Ordering::Relaxed);
    }

    /// Waits for a call or for that time; false when it is time to go.
    fn wait_for_call(&self, until: sync::clock::Instant) -> bool {
        let attendant = &self.attendant;
        let mut leaders = self.leaders.lock();
        loop {
            // Relaxed: written under the lock that is held.
            if attendant.is_dismissed.load(Ordering::Relaxed) || self.abort.check().is_err() {
                return false;
            }
            // Relaxed: the caller takes the lock after this, and then wakes us.
            let is_called = attendant.is_called.swap(false, Ordering::Relaxed);
            let left = until.saturating_duration_since(now());
            if is_called || left.is_zero() {
                return true;
            }
            attendant.called.wait_for(&mut leaders, left);
        }
    }

    /// Sends the attendant away, now or when one comes; [`Journal::attend`] returns soon.
    pub fn dismiss(&self) {
        let leaders = self.leaders.lock();
        // Relaxed: read under the same lock.
        self.attendant.is_dismissed.store(true, Ordering::Relaxed);
        drop(leaders);
        self.attendant.called.notify_all();
    }
}
