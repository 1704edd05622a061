//! What can go wrong. One kind each for what callers tell apart; errno is chosen further up.

use device::DeviceError;
use jbd2::recovery;
use ondisk::{Corrupt, GeometryError};

/// Why the engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing has this name, or this inode number.
    #[error("no such file or directory")]
    NotFound,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory has no bytes to read.
    #[error("is a directory")]
    IsDirectory,
    /// Only regular files have bytes to read.
    #[error("not a regular file")]
    NotRegular,
    /// Only symbolic links have a target.
    #[error("not a symbolic link")]
    NotSymlink,
    /// A path with more symbolic links than Linux follows.
    #[error("too many levels of symbolic links")]
    TooManyLinks,
    /// A name of more than 255 bytes, or a path of more than Linux takes.
    #[error("file name too long")]
    NameTooLong,
    /// The contents or names are encrypted, and lanefs has no keys.
    #[error("encrypted (fscrypt), which lanefs can't read")]
    Encrypted,
    /// The image has something that lanefs can't read.
    #[error("{0} can't be read by lanefs")]
    Unsupported(&'static str),
    /// The image as a whole can't be read by lanefs.
    #[error("{0}")]
    UnsupportedImage(ondisk::Unsupported),
    /// The device ends before the file system does.
    #[error("the image is truncated: the file system has {needed} bytes, the device {present}")]
    Truncated {
        /// Bytes that the file system has.
        needed: u64,
        /// Bytes that the device has.
        present: u64,
    },
    /// The journal has changes that can't be replayed.
    #[error(transparent)]
    Journal(recovery::Error),
    /// The journal has fast commits, whose fsyncs returned, that can't be replayed; without them the file system would
    /// be shown as it was before.
    #[error("the fast commits in its journal can't be replayed: {0}")]
    FastCommits(Box<Error>),
    /// The image has a feature that lanefs can read but not write yet.
    #[error("file systems with the feature {0} can't be written to yet")]
    UnwritableFeature(ondisk::Feature),
    /// The image can be read but not written to as it is, or as it was to be opened, and why.
    #[error("it can't be written to: {0}")]
    Unwritable(&'static str),
    /// Images of this kind can be read and not written to, and why.
    #[error("it can't be written to: {0}")]
    OnlyRead(&'static str),
    /// No inode has the number and the generation of a handle any more.
    #[error("stale file handle")]
    Stale,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// The inode has no attribute of this name.
    #[error("no such attribute")]
    NoAttribute,
    /// An attribute's value of more bytes than Linux takes.
    #[error("the value is too large")]
    ValueTooLarge,
    /// An attribute's name that is empty, or of more than 255 bytes.
    #[error("the name is empty or too long")]
    NameLength,
    /// A default ACL on an inode that is not a directory.
    #[error("permission denied")]
    AccessDenied,
    /// A file that was not opened to be read, or not to be written.
    #[error("it was not opened for that")]
    NotOpenedSo,
    /// The directory holds names.
    #[error("directory not empty")]
    NotEmpty,
    /// An inode has the most names, or a directory the most subdirectories, that can be counted.
    #[error("too many links")]
    LinkLimit,
    /// Others kept changing the names in question.
    #[error("the names keep changing")]
    Busy,
    /// The directory's index has no room left.
    #[error("the directory is full")]
    DirectoryFull,
    /// No block or inode is free.
    #[error("no space left on the file system")]
    NoSpace,
    /// The file would be larger than its map can name.
    #[error("file too large")]
    FileTooLarge,
    /// An offset or a length that the operation does not take; a name that no directory can hold; a directory that
    /// would lie in itself.
    #[error("invalid argument")]
    InvalidArgument,
    /// A flag of the file or of its directory forbids the change; or directories do not support it.
    #[error("operation not permitted")]
    NotPermitted,
    /// The operation is not supported on this kind of file.
    #[error("{0} is not supported")]
    NotSupported(&'static str),
    /// The file system is open for reading only.
    #[error("the file system is open for reading only")]
    ReadOnly,
    /// The file system was closed by [`crate::InodeFs::retire`] while other threads still used it.
    #[error("the file system was closed, so nothing is changed any more")]
    Closed,
    /// The journal was aborted before, and this is why: nothing is changed any more.
    #[error("{0}, so nothing is changed any more")]
    Stopped(journal::JournalError),
    /// The journal failed or was aborted: nothing more is written, and what was to be durable may not be.
    #[error(transparent)]
    Aborted(#[from] journal::JournalError),
    /// The image breaks the format.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The device failed.
    #[error(transparent)]
    Io(#[from] DeviceError),
}

impl Error {
    /// Whether the error means that the image is of a kind that can only be read, whatever is done to it first.
    #[must_use]
    pub fn is_only_read(&self) -> bool {
        matches!(self, Error::UnwritableFeature(_) | Error::OnlyRead(_))
    }
}

impl From<GeometryError> for Error {
    fn from(error: GeometryError) -> Error {
        match error {
            GeometryError::Corrupt(corrupt) => Error::Corrupt(corrupt),
            GeometryError::Unsupported(unsupported) => Error::UnsupportedImage(unsupported),
            GeometryError::Truncated { needed, present } => Error::Truncated { needed, present },
        }
    }
}

impl From<recovery::Error> for Error {
    fn from(error: recovery::Error) -> Error {
        match error {
            recovery::Error::Corrupt(corrupt) => Error::Corrupt(corrupt),
            recovery::Error::Io(error) => Error::Io(error),
            other => Error::Journal(other),
        }
    }
}
