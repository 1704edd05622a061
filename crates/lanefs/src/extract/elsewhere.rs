//! Extraction into a directory on systems other than Linux is refused: with std alone, a hostile image could redirect a
//! write out of the destination. Extraction into a tar archive and reading single files are supported.

use std::io;
use std::path::Path;

use super::{Options, Summary};
use crate::{Error, Fs, Ino};

/// Refuses to extract a directory.
///
/// # Errors
/// Always, with the kind `Unsupported`.
pub fn to_directory(
    _fs: &Fs,
    _from: Ino,
    destination: &Path,
    _options: &Options<'_>,
) -> Result<Summary, Error> {
    Err(refusal("extracting to", destination))
}

/// Refuses to extract one entry.
///
/// # Errors
/// Always, with the kind `Unsupported`.
pub fn to_name(
    _fs: &Fs,
    _from: Ino,
    parent: &Path,
    _name: &[u8],
    _options: &Options<'_>,
) -> Result<Summary, Error> {
    Err(refusal("copying to", parent))
}

fn refusal(operation: &'static str, path: &Path) -> Error {
    let text = "on this system files can be extracted only to a tar archive";
    let source = io::Error::new(io::ErrorKind::Unsupported, text);
    Error::host(operation, path, source)
}
