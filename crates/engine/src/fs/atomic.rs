//! Makes all changes between two calls one transaction: after a crash, all of them or none are there. The work is done
//! in `mount/hold.rs`, which describes it; the caller has the file system alone, so no lock is needed.

use crate::attr;
use crate::core::Error;
use crate::fs::InodeFs;
use crate::mount;

impl InodeFs {
    /// Whether it was opened for writing, whatever became of it.
    #[must_use]
    pub fn is_opened_for_writing(&self) -> bool {
        self.mounted.volume().is_writable()
    }

    /// Whether it can be changed: it was opened for writing, its journal was not aborted, it was not closed, and no
    /// corruption was met after which nothing is to be changed ([`crate::OnError`]).
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.mounted.live().is_ok_and(|live| {
            let writing = live.writing();
            writing.journal.check().is_ok()
                && !writing.errors.is_read_only()
                && !writing.gate.is_retired()
        })
    }

    /// Makes all that is done from here on one transaction: [`InodeFs::close_atomic`] commits it, [`InodeFs::abandon`]
    /// forgets it. What a crash leaves: the state at this call, or that at the end. Nobody else uses the file system
    /// meanwhile. What does not fit one transaction of the journal fails with `Aborted` where it no longer fits, and so
    /// does what needs space that was freed since; bytes of files that were there before can't be changed in place.
    ///
    /// # Errors
    /// `ReadOnly`; `Aborted`, also without a journal; `Unwritable` while files are being deleted.
    pub fn begin_atomic(&mut self) -> Result<(), Error> {
        let live = self.mounted.live()?;
        attr::write_lazy(live)?;
        // It commits every so often.
        self.attendant = None;
        mount::hold(live)
    }

    /// Commits all that was done since [`InodeFs::begin_atomic`] as one transaction, and closes the file system.
    /// Afterwards it may only be dropped.
    ///
    /// # Errors
    /// `Aborted` when it does not fit one; then nothing was changed. As [`InodeFs::close`].
    pub fn close_atomic(&mut self) -> Result<(), Error> {
        mount::unmount_held(self.live()?)
    }

    /// Closes the file system as it was at [`InodeFs::begin_atomic`]. Afterwards it may only be dropped.
    ///
    /// # Errors
    /// `ReadOnly`, `Io`; the changes are dropped nevertheless.
    pub fn abandon(&mut self) -> Result<(), Error> {
        mount::abandon(self.live()?)
    }
}
