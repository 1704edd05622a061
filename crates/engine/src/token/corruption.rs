//! Corruption that an operation met: it is put on record in the superblock, and what the options ask for then is done.
//!
//! The record is a step of its own, under no lock. A crash before its commit forgets it.

use ondisk::Corrupt;

use crate::core::sb::OnError;
use crate::token::LiveFs;

impl LiveFs {
    /// Puts corruption that was met on record, and does what the options ask for then. Nothing is locked, and no handle
    /// open.
    pub(crate) fn note(&self, corrupt: Corrupt) {
        let writing = self.writing();
        writing.errors.meet();
        // A read that finds it does not wait until a frozen file system is thawed; the next one will say it again.
        let Some(_change) = writing.gate.try_enter() else {
            return;
        };
        let Ok(credits) = self.reserve(1, 0) else {
            // The journal is aborted, or everything is read only already: the first error is on record.
            return;
        };
        let time = u64::try_from(writing.clock.now().seconds).unwrap_or(0);
        let handle = writing.journal.begin(credits);
        writing.errors.record(&handle, corrupt, time);
        drop(handle);
        match writing.errors.policy() {
            OnError::Continue => {}
            OnError::ReadOnly => {
                writing.errors.set_read_only(corrupt);
                // If the commit fails, the journal is aborted, and every later change reports it.
                let _ = self.sync_all();
            }
            OnError::Abort => {
                // If the commit fails, the journal is aborted already.
                let _ = self.sync_all();
                writing.journal.abort(&corrupt.to_string());
            }
        }
    }
}
