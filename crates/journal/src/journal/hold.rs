//! Holding commits back, so that all that happens meanwhile is one transaction or never was.
//!
//! [`Journal::hold`] commits what was before and empties the log; until [`Journal::commit_held`] nothing is committed,
//! and what would need a commit fails with [`JournalError::Held`]. Steps ask for more room than they use, and several
//! steps change the same block. So they are lent more room than the log has, and only the finished transaction is
//! measured. What a crash leaves: the state at the hold, or all that happened until the commit. A caller that gives up
//! just drops the journal: nothing of the epoch is in the log.

use super::Journal;
use crate::abort::JournalError;
use crate::client::Client;
use crate::options::CommitCause;

/// How many times the log's room is lent to the steps of one transaction.
const LENT: u64 = 16;

impl Journal {
    /// Makes everything so far durable and writes it home, and commits nothing from then on. Nobody else uses the
    /// journal meanwhile.
    ///
    /// # Errors
    /// [`JournalError::NoLog`] for a file system without a journal; as [`Journal::commit`] and
    /// [`Journal::checkpoint`].
    pub fn hold(&self, client: &dyn Client) -> Result<(), JournalError> {
        if self.log.is_none() {
            return Err(JournalError::NoLog);
        }
        self.commit_now(client, self.current_epoch(), CommitCause::Quiesce)?;
        self.checkpoint()?;
        let room = self.space.free_without_leases(&self.statistics);
        let most = room.min(self.options.staged_bytes / self.block_bytes as u64);
        self.space.lend(most * LENT);
        self.held_most.set(most.max(1));
        Ok(())
    }

    /// Commits all that happened since [`Journal::hold`] as one transaction; commits happen again from then on.
    ///
    /// # Errors
    /// [`JournalError::Held`] when it does not fit one: nothing was written then. As [`Journal::commit`]; the journal
    /// is aborted in any case.
    pub fn commit_held(&self, client: &dyn Client) -> Result<(), JournalError> {
        self.commit_any(client, self.current_epoch(), CommitCause::Quiesce)?;
        self.space.lend(0);
        self.held_most.set(0);
        Ok(())
    }

    /// Whether commits are held back.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.held_most() > 0
    }

    /// Blocks of the transaction that is being held back, at most; 0 if none is.
    #[inline]
    pub(crate) fn held_most(&self) -> u64 {
        self.held_most.get()
    }
}
