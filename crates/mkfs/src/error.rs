//! Why a file system could not be made: what is wrong, with which option, and what to do.

use device::DeviceError;

/// At which other sizes a file system may be possible that is impossible at one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OtherSize {
    /// Only at larger sizes.
    Larger,
    /// Only at smaller sizes.
    Smaller,
    /// At larger or smaller sizes.
    Any,
    /// Only at smaller sizes, because ext4 has a limit there.
    WithinLimits,
}

/// Why a file system could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that ext4 or this program does not support.
    #[error("{option}: {reason}")]
    Option {
        /// The option as mke2fs spells it (`-b`, `-O bigalloc`, `-E stride`).
        option: String,
        /// What is wrong with it, and which value would be possible.
        reason: String,
    },
    /// An option that is impossible for a file system of this size, but possible at another size.
    #[error("{option}: {reason}")]
    OptionForSize {
        /// The option as mke2fs spells it.
        option: String,
        /// What is wrong with it, and which value would be possible.
        reason: String,
        /// At which sizes the option is possible.
        instead: OtherSize,
    },
    /// What the options ask for does not fit in the given size.
    #[error(
        "the file system does not fit: {what} ({size} bytes given); make it larger, or {instead}"
    )]
    TooSmall {
        /// What does not fit.
        what: String,
        /// The given size in bytes.
        size: u64,
        /// What else would help.
        instead: &'static str,
    },
    /// The options ask for a journal, and the file system is too small for one.
    #[error(
        "{option}: a file system of {size} bytes is too small for a journal; make it at least {least} bytes, or leave \
         the journal out (-O ^has_journal)"
    )]
    NoRoomForJournal {
        /// The option that asks for it.
        option: &'static str,
        /// The given size in bytes.
        size: u64,
        /// The smallest size with a journal, in bytes.
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

    /// Returns the same error about an option, which is possible at these other sizes.
    pub(crate) fn of_size(self, instead: OtherSize) -> Error {
        match self {
            Error::Option { option, reason } | Error::OptionForSize { option, reason, .. } => {
                Error::for_size(option, reason, instead)
            }
            error => error,
        }
    }

    /// The other sizes at which the same options may be possible; `None` if the size is not the cause.
    #[must_use]
    pub fn other_size(&self) -> Option<OtherSize> {
        match self {
            Error::OptionForSize { instead, .. } => Some(*instead),
            Error::TooSmall { .. } | Error::NoRoomForJournal { .. } => Some(OtherSize::Larger),
            Error::Option { .. } | Error::Usage(_) | Error::Device(_) => None,
        }
    }
}
