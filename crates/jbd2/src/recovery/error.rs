//! Why a journal could not be replayed.

use device::DeviceError;
use ondisk::text::Uuid;
use ondisk::{Corrupt, Tid};

/// Why a journal could not be replayed. Nothing was written, unless [`crate::recovery::replay_to_device`] failed with
/// [`Error::Io`] while it wrote; then it can be repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The journal breaks the format, or refers to what it must not.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A device failed.
    #[error(transparent)]
    Io(#[from] DeviceError),
    /// The journal is right as far as one can see, but lanefs can't read it.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedLog),
    /// The journal is on a device that was not given.
    #[error("the file system needs its external journal (UUID {})", Uuid(*.0))]
    ExternalJournalMissing([u8; 16]),
    /// The given device is not the file system's journal.
    #[error("the device given as the journal {}; the file system's has UUID {}", Found(*.found), Uuid(*.expected))]
    ExternalJournalWrong {
        /// The UUID in the file system's superblock.
        expected: [u8; 16],
        /// The UUID of the journal on the device, if there is one.
        found: Option<[u8; 16]>,
    },
    /// Fast commits follow the log, whose replay onto the device would lose them.
    #[error(
        "the journal's fast-commit area holds {changes} changes of transaction {tid}, which were not replayed"
    )]
    FastCommitsPending {
        /// How many changes.
        changes: u32,
        /// The transaction they belong to.
        tid: Tid,
    },
}

/// Why lanefs can't read a journal that may be sound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnsupportedLog {
    /// The journal has features that lanefs does not know.
    #[error(
        "the journal has unknown features (incompatible {incompat:#x}, read-only {ro_compat:#x})"
    )]
    Features {
        /// Incompatible ones.
        incompat: u32,
        /// Read-only compatible ones.
        ro_compat: u32,
    },
    /// The area for fast commits has unknown features, so its records may mean anything.
    #[error("the journal's fast commits have unknown features")]
    FastCommits,
    /// Several file systems share an external journal.
    #[error(
        "the external journal is shared by {0} file systems, which Linux does not support either"
    )]
    SharedJournal(u32),
    /// The journal exceeds one of the [`super::limits`].
    #[error("the journal has {0}")]
    TooLarge(&'static str),
}

struct Found(Option<[u8; 16]>);

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(uuid) => write!(f, "is another one (UUID {})", Uuid(uuid)),
            None => f.write_str("holds no journal"),
        }
    }
}
