//! Why a journal can't be written to, or was stopped.

use device::DeviceError;
use ondisk::Corrupt;
use sync::Arc;

/// An error of the journal.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed; the journal is aborted if it was open.
    #[error("the journal's device failed: {0}")]
    Device(Arc<DeviceError>),
    /// The journal on disk is not one that can be written to.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The journal's superblock is of the first format, which has no features.
    #[error("the journal is of jbd's first format, which nothing has made for twenty years")]
    OldFormat,
    /// The log holds transactions that must be replayed before anything is written.
    #[error("the journal has not been replayed")]
    NotReplayed,
    /// The journal was aborted before, for this reason.
    #[error("the journal was aborted: {0}")]
    Aborted(Arc<str>),
    /// One step needs more blocks of the log than a transaction may have.
    #[error("a step wants {wanted} blocks of the log; a transaction has {most}")]
    TooLarge {
        /// Blocks of the log for all that the step may change, with descriptors and commit record.
        wanted: u32,
        /// Blocks of the largest transaction.
        most: u32,
    },
    /// A commit was needed while commits are held back.
    #[error("it does not fit one transaction, or needs space that it frees itself")]
    Held,
    /// The journal has no room for an area for fast commits in addition to the log.
    #[error(
        "the journal has {blocks} blocks; with an area for fast commits it needs {needed} (tune2fs makes a longer one)"
    )]
    TooShort {
        /// Blocks that it has.
        blocks: u32,
        /// Blocks that it should have at least.
        needed: u32,
    },
    /// An operation needs a log, and the file system has no journal.
    #[error("the file system has no journal")]
    NoLog,
}

impl From<DeviceError> for JournalError {
    fn from(error: DeviceError) -> JournalError {
        JournalError::Device(Arc::new(error))
    }
}

impl JournalError {
    /// The error number (Linux's `EIO` or `EFSCORRUPTED`) that the journal's superblock records when this error aborts
    /// the journal; `None` if neither the image nor the device is at fault.
    #[must_use]
    pub fn on_record(&self) -> Option<u32> {
        match self {
            JournalError::Device(_) | JournalError::Aborted(_) => Some(5),
            JournalError::Corrupt(_) => Some(117),
            _ => None,
        }
    }
}
