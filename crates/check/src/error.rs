//! Why a check ends without a verdict.

use std::fmt;

use ondisk::Unsupported;

/// Why a check ended without a verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The superblock can't be read.
    Unreadable,
    /// The file system uses a feature that this checker does not know.
    Unsupported(Unsupported),
    /// The caller could not replay the journal.
    Replay(String),
    /// A repair needs the record of blocks in use for the whole file system at once, and the memory allowed is less.
    Memory {
        /// Bytes of that record.
        needed: u64,
    },
    /// The caller ended the check.
    Cancelled,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreadable => f.write_str("the superblock can't be read"),
            Error::Unsupported(unsupported) => unsupported.fmt(f),
            Error::Replay(reason) => write!(f, "the journal can't be replayed: {reason}"),
            Error::Memory { needed } => write!(
                f,
                "a repair needs {} KiB of memory for the record of blocks in use",
                needed.div_ceil(1024)
            ),
            Error::Cancelled => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}
