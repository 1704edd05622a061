//! Why a file system could not be made: what, where, and what to do.

use device::DeviceError;

/// Where the sizes lie at which a file system may be possible that is not possible at one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OtherSize {
    /// Only above.
    Larger,
    /// Only below.
    Smaller,
    /// Above or below.
    Any,
    /// Only below, because ext4 has a limit there.
    WithinLimits,
}

/// Why a file system could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that ext4, or this program, does not have.
    #[error("{option}: {reason}")]
    Option {
        /// The option as mke2fs spells it (`-b`, `-O bigalloc`, `-E stride`).
        option: String,
        /// What is wrong with it, and what would do.
        reason: String,
    },
    /// An option that a file system of this size can't have, and one of another size can.
    #[error("{option}: {reason}")]
    OptionForSize {
        /// The option as mke2fs spells it.
        option: String,
        /// What is wrong with it, and what would do.
        reason: String,
        /// Which sizes are possible with it.
        instead: OtherSize,
    },
    /// What was asked for does not fit in the size given.
    #[error(
        "the file system does not fit: {what} ({size} bytes given); make it larger, or {instead}"
    )]
    TooSmall {
        /// What does not fit.
        what: String,
        /// The size given, in bytes.
        size: u64,
        /// What else would help.
        instead: &'static str,
    },
    /// A journal was asked for, and the file system is too small for one.
    #[error(
        "{option}: a file system of {size} bytes is too small for a journal; make it at least {least} bytes, or leave \
         the journal out (-O ^has_journal)"
    )]
    NoRoomForJournal {
        /// The option that asks for it.
        option: &'static str,
        /// The size given, in bytes.
        size: u64,
        /// The least size with a journal, in bytes.
        least: u64,
    },
    /// The usage given to [`crate::Layout::finish`] contradicts the layout.
    #[error("usage and layout disagree: {0}")]
    Usage(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Error {
    pub(crate) fn option(option: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Option {
            option: option.into(),
            reason: reason.into(),
        }
    }

    pub(crate) fn for_size(
        option: impl Into<String>,
        reason: impl Into<String>,
        instead: OtherSize,
    ) -> Error {
        Error::OptionForSize {
            option: option.into(),
            reason: reason.into(),
            instead,
        }
    }

    /// The same error about an option, which images of these other sizes can have.
    pub(crate) fn of_size(self, instead: OtherSize) -> Error {
        match self {
            Error::Option { option, reason } | Error::OptionForSize { option, reason, .. } => {
                Error::for_size(option, reason, instead)
            }
            error => error,
        }
    }

    /// The sizes at which the same options may be possible; `None` where the size is not the cause.
    #[must_use]
    pub fn other_size(&self) -> Option<OtherSize> {
        match self {
            Error::OptionForSize { instead, .. } => Some(*instead),
            Error::TooSmall { .. } | Error::NoRoomForJournal { .. } => Some(OtherSize::Larger),
            Error::Option { .. } | Error::Usage(_) | Error::Device(_) => None,
        }
    }
}
