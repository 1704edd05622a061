//! The error of a repair.

use device::DeviceError;
use jbd2::offline;
use jbd2::recovery;

/// Why a repair failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum RepairError {
    /// The check can't come to a verdict.
    Check(check::Error),
    /// The device failed. If that was during a transaction, the next replay completes or discards the transaction.
    Device(DeviceError),
    /// The device failed while the journal was used.
    Journal(offline::Error),
    /// The journal may hold data that was synced, and can't be replayed: it is on a device of its own, lanefs does not
    /// support it, or it was not the same each time it was read. The image is unchanged.
    Replay(recovery::Error),
    /// Lanefs does not support fast commits on such a file system. The image is unchanged.
    FastCommits(Box<engine::Error>),
    /// A device did not return the same bytes each time, so another program may write to it. The image is unchanged.
    Changed {
        /// It was the device of the journal, not the image.
        is_journal: bool,
        /// The byte from which on they differed.
        offset: u64,
    },
    /// A block does not hold what was just written to it, so the device is unreliable.
    Unreliable {
        /// The number of the block.
        block: u64,
    },
}

impl RepairError {
    /// Whether the journal's device was not given, or a wrong one was given.
    #[must_use]
    pub fn wants_journal_device(&self) -> bool {
        matches!(
            self,
            RepairError::Replay(
                recovery::Error::ExternalJournalMissing(_)
                    | recovery::Error::ExternalJournalWrong { .. }
            )
        )
    }
}

impl std::fmt::Display for RepairError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RepairError::Check(error) => error.fmt(f),
            RepairError::Device(error) => error.fmt(f),
            RepairError::Journal(error) => error.fmt(f),
            RepairError::Replay(error) => error.fmt(f),
            RepairError::FastCommits(error) => error.fmt(f),
            RepairError::Changed { is_journal, offset } => {
                let device = if *is_journal {
                    "journal's device"
                } else {
                    "image"
                };
                write!(
                    f,
                    "the bytes at byte {offset} of the {device} changed while the log was read"
                )
            }
            RepairError::Unreliable { block } => {
                write!(f, "block {block} does not hold what was just written to it")
            }
        }
    }
}

impl std::error::Error for RepairError {}

impl From<check::Error> for RepairError {
    fn from(error: check::Error) -> RepairError {
        RepairError::Check(error)
    }
}

impl From<DeviceError> for RepairError {
    fn from(error: DeviceError) -> RepairError {
        RepairError::Device(error)
    }
}

impl From<recovery::Error> for RepairError {
    fn from(error: recovery::Error) -> RepairError {
        match error {
            recovery::Error::Io(error) => RepairError::Device(error),
            error => RepairError::Replay(error),
        }
    }
}

impl From<offline::Error> for RepairError {
    fn from(error: offline::Error) -> RepairError {
        match error {
            offline::Error::Device(error) => RepairError::Device(error),
            error => RepairError::Journal(error),
        }
    }
}
