//! Extraction into a directory, on systems other than Linux: it is refused, because std alone can't keep a hostile
//! image from leading a write out of the destination. A tar archive holds the same, and any file can be read by itself.

use std::io;
use std::path::Path;

use super::{Options, Summary};
use crate::{Error, Fs, Ino};

/// Refuses to extract what is below a directory.
///
/// # Errors
/// Always: of the kind `Unsupported`.
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
/// Always: of the kind `Unsupported`.
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
    let text = "on this system files are extracted to a tar archive only";
    let source = io::Error::new(io::ErrorKind::Unsupported, text);
    Error::host(operation, path, source)
}
