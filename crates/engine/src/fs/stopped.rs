//! Whether a file system that was opened for writing still accepts changes, and why not.
//!
//! It stops for good when its journal is aborted, or when corruption is met and the options ask for that
//! ([`crate::OnError`]). The first cause is kept. No lock; nothing of it is on disk but what the journal and the
//! superblock record by themselves.

use sync::Arc;

use crate::core::Error;
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

    /// Stops all changes for good, as a power cut would (the ioctl `EXT4_IOC_SHUTDOWN` with `NOLOGFLUSH`). Waits for
    /// the changes under way, and for a thaw if the file system is frozen. No change, commit or checkpoint begins after
    /// this; one that another thread writes at this moment may write on after this returns, until it ends or is given
    /// up. The next mount replays the journal and finds what was synced; all else may be lost.
    ///
    /// # Errors
    /// `ReadOnly` if it was not opened for writing.
    pub fn shut_down(&self) -> Result<(), Error> {
        let writing = self.live()?.writing();
        // `None` if the gate is retired: no change is under way then. Or if this thread is within a change.
        let _alone = writing.gate.enter_alone();
        writing
            .journal
            .shut_down("the file system was shut down by a request");
        Ok(())
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
