//! Delaying commits; see [`journal::CommitDelay`].

use journal::CommitDelay;
use sync::clock::Duration;

use crate::fs::InodeFs;

impl InodeFs {
    /// Keeps what happens from now on from being committed, until [`InodeFs::end_delay`] or for this time at most, so
    /// that a later change is durable with it. Waits for a commit that is under way. `None` if the file system is
    /// read-only.
    #[must_use]
    pub fn delay_commits(&self, most: Duration) -> Option<CommitDelay> {
        let live = self.live().ok()?;
        Some(live.writing().journal.delay_commits(most))
    }

    /// Ends a delay.
    pub fn end_delay(&self, delay: CommitDelay) {
        if let Ok(live) = self.live() {
            live.writing().journal.end_delay(delay);
        }
    }

    /// Waits until the delays that are there now have ended, each at the end of its time at the latest.
    pub fn await_delays(&self) {
        if let Ok(live) = self.live() {
            live.writing().journal.await_delays();
        }
    }
}
