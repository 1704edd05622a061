//! What every step of an operation begins with: log space, a handle, and the time.
//!
//! Log space is reserved while preparing, without a handle, because that may commit and checkpoint. Takes no lock of
//! the engine's.

use journal::{Credits, Handle, JournalError};
use ondisk::Timestamp;

use crate::core::Error;
use crate::core::limits;
use crate::token::LiveFs;

impl LiveFs {
    /// Log space for a step that changes at most `blocks` metadata blocks and frees at most `revokes`. May commit and
    /// checkpoint: called while preparing, without a handle.
    ///
    /// # Errors
    /// `ReadOnly`; `Stopped` when the journal is aborted, `Aborted` when it becomes so, or the step is too large.
    pub(crate) fn reserve(&self, blocks: u32, revokes: u32) -> Result<Credits<'_>, Error> {
        let writing = self.writing();
        if writing.errors.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if blocks > limits::STEP_BLOCKS || revokes > limits::STEP_REVOKES {
            return Err(Error::NotSupported("changing this much in one step"));
        }
        let credits = writing.journal.reserve(self, blocks, revokes);
        credits.map_err(|error| match error {
            JournalError::Aborted(_) => Error::Stopped(error),
            error => error.into(),
        })
    }

    /// As [`LiveFs::reserve`], if the log has room now and nothing must be waited for; else `None`.
    ///
    /// # Errors
    /// `ReadOnly`; `Stopped` when the journal is aborted.
    pub(crate) fn reserve_at_once(
        &self,
        blocks: u32,
        revokes: u32,
    ) -> Result<Option<Credits<'_>>, Error> {
        let writing = self.writing();
        if writing.errors.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if blocks > limits::STEP_BLOCKS || revokes > limits::STEP_REVOKES {
            return Ok(None);
        }
        let credits = writing.journal.reserve_at_once(blocks, revokes);
        credits.map_err(Error::Stopped)
    }

    /// Begins the step that was prepared.
    ///
    /// # Errors
    /// `ReadOnly`.
    #[track_caller]
    pub(crate) fn begin<'a>(&'a self, credits: Credits<'a>) -> Result<Handle<'a>, Error> {
        Ok(self.writing().journal.begin(credits))
    }

    /// The time now, for stamps on inodes.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn now(&self) -> Result<Timestamp, Error> {
        Ok(self.writing().clock.now())
    }
}
