//! Contents of files, written by path.

use std::path::Path;

use crate::{Error, Fs};

impl Fs {
    /// Sets the size of a regular file: what is behind it goes, or a hole is added.
    ///
    /// # Errors
    /// As [`Fs::metadata`]; when it is no regular file, the size is too large, or as [`Fs::sync`].
    pub fn set_len(&self, path: impl AsRef<Path>, size: u64) -> Result<(), Error> {
        let ino = self.find(path.as_ref(), true)?;
        self.named(path.as_ref(), self.0.truncate(ino, size))
    }
}
