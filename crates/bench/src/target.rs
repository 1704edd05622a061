//! What a workload may do to a file system, whichever it is.
//!
//! All operations may be called from many threads at once. Nothing survives a run: what a workload makes it removes.

use lanefs::Error;

/// A file system that is measured.
pub trait Target: Sync {
    /// A directory in hand, so that no path is walked.
    type Dir: Send + Sync;
    /// A file in hand, open for writing until it is dropped.
    type File: Send;

    /// The directory in which workloads make theirs.
    fn root(&self) -> &Self::Dir;

    /// Makes a directory.
    ///
    /// # Errors
    /// What the file system says; so for all that follow.
    fn mkdir(&self, parent: &Self::Dir, name: &str) -> Result<Self::Dir, Error>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the file system says.
    fn rmdir(&self, parent: &Self::Dir, name: &str) -> Result<(), Error>;

    /// Makes an empty file that was not there, and opens it.
    ///
    /// # Errors
    /// What the file system says.
    fn create(&self, parent: &Self::Dir, name: &str) -> Result<Self::File, Error>;

    /// Removes a name.
    ///
    /// # Errors
    /// What the file system says.
    fn unlink(&self, parent: &Self::Dir, name: &str) -> Result<(), Error>;

    /// A name's size in bytes: looks it up and reads its inode.
    ///
    /// # Errors
    /// What the file system says.
    fn stat(&self, parent: &Self::Dir, name: &str) -> Result<u64, Error>;

    /// Writes all of `bytes` at byte `offset`.
    ///
    /// # Errors
    /// What the file system says.
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Sets a file's size in bytes.
    ///
    /// # Errors
    /// What the file system says.
    fn truncate(&self, file: &Self::File, size: u64) -> Result<(), Error>;

    /// Makes a file durable.
    ///
    /// # Errors
    /// What the file system says.
    fn fsync(&self, file: &Self::File) -> Result<(), Error>;

    /// Ends what the last round left to be written, so that it does not burden the next one.
    ///
    /// # Errors
    /// What the file system says.
    fn settle(&self) -> Result<(), Error>;
}
