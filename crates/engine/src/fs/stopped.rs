//! Whether a file system that was opened for writing still accepts changes, and why not.
//!
//! It stops for good when its journal is aborted, or when corruption is met and the options ask for that
//! ([`crate::OnError`]). The first cause is kept. No lock; nothing of it is on disk but what the journal and the
//! superblock record by themselves.

use sync::Arc;

use crate::core::sb::Stopped;
use crate::fs::InodeFs;

impl InodeFs {
    /// Why and when it stopped accepting changes; `None` while it accepts them, or was never opened for writing.
    #[must_use]
    pub fn stopped(&self) -> Option<Stopped> {
        let writing = self.live().ok()?.writing();
        let corrupt = writing.errors.stopped().cloned();
        corrupt.or_else(|| writing.journal.aborted().map(Stopped::from))
    }

    /// Has a stop reported by the thread that meets it: the hook takes no lock and waits for nothing. A stop that
    /// happened before is reported at once. It may be called more than once; only the first hook counts.
    pub fn on_stop(&self, hook: impl Fn(&Stopped) + Send + Sync + 'static) {
        let Ok(live) = self.live() else {
            return;
        };
        let writing = live.writing();
        let hook = Arc::new(hook);
        let lent = Arc::clone(&hook);
        writing
            .journal
            .on_abort(move |aborted| lent(&aborted.into()));
        writing
            .errors
            .on_stop(Box::new(move |stopped| hook(stopped)));
    }
}
