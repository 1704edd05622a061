//! Opening an image that is not in use, to write it or to read what does not change meanwhile. What counts as a use,
//! and what does not: [`device::in_use`].

use std::path::Path;

use device::FileDevice;
pub use device::in_use::Replaced;

use crate::Error;

/// Opens a file or block device to be written to, with a lock that holds until it is dropped.
///
/// # Errors
/// `InUse`, with its holder; when it can't be opened.
pub fn open_unused(path: impl AsRef<Path>) -> Result<FileDevice, Error> {
    Ok(device::in_use::open_to_write(path.as_ref())?)
}

/// Opens a file or block device to be read for as long as it is open, with a lock that keeps writers away.
///
/// # Errors
/// As [`open_unused`].
pub fn open_unchanging(path: impl AsRef<Path>) -> Result<FileDevice, Error> {
    Ok(device::in_use::open_to_read(path.as_ref())?)
}
