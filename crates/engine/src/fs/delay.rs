//! Delaying commits; see [`journal::CommitDelay`].

use journal::CommitDelay;
use sync::clock::Duration;

use crate::fs::InodeFs;

impl InodeFs {
    /// Delays commits of what is changed from now on, until [`InodeFs::end_delay`] or for `most` at most, so that it
    /// becomes durable together with a later change. Waits for a commit that is under way or delayed itself. `None` if
    /// the file system is read-only.
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

    /// Waits until all delays that have begun by now have ended.
    pub fn await_delays(&self) {
        if let Ok(live) = self.live() {
            live.writing().journal.await_delays();
        }
    }
}
