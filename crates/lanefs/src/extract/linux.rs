//! Extraction into a directory, on Linux: by what is open, so that nothing leads a write astray.

mod directory;
mod host;
mod new_file;
mod pool;

use std::io;
use std::path::Path;

use sync::atomic::Ordering;

use super::{Existing, Options, Summary};
use crate::{Error, Fs, Ino};

/// Extracts what is below the directory `from` into the directory `destination`, which takes over the attributes of
/// `from`. It is created when it is not there. An empty `lost+found` of the root is left out.
///
/// # Errors
/// When `from` is not a directory, or the destination can't be made or, with [`Existing::Refuse`], is not empty. Errors
/// of single entries are in the summary.
pub fn to_directory(
    fs: &Fs,
    from: Ino,
    destination: &Path,
    options: &Options<'_>,
) -> Result<Summary, Error> {
    let metadata = fs.inodes().inode(from)?.metadata();
    let umask = (!options.keep.mode).then_some(options.umask);
    let opened = host::open_destination(destination, Some(&metadata), umask);
    let opened = opened.and_then(|(opened, last)| {
        if options.existing != Existing::Refuse || host::is_empty(&opened)? {
            Ok((opened, last))
        } else {
            let text = "it is not empty, and what is there would be replaced";
            Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, text))
        }
    });
    let (opened, last) =
        opened.map_err(|error| Error::host("extracting to", destination, error))?;
    directory::Extraction::new(fs, opened, options).tree(from, last)
}

/// Extracts one entry, with all below it when it is a directory, as `name` in the directory `parent`.
///
/// # Errors
/// When `parent` can't be opened. Errors of single entries are in the summary.
pub fn to_name(
    fs: &Fs,
    from: Ino,
    parent: &Path,
    name: &[u8],
    options: &Options<'_>,
) -> Result<Summary, Error> {
    let opened = host::open_destination(parent, None, None);
    let (opened, _) = opened.map_err(|error| Error::host("copying to", parent, error))?;
    directory::Extraction::new(fs, opened, options).entry(from, name)
}

impl Options<'_> {
    fn is_cancelled(&self) -> bool {
        // Relaxed: nothing but the flag itself is passed on by the thread that sets it.
        self.cancel
            .is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// What failed of the host at a path below the destination.
fn failed_at(operation: &'static str, path: &[u8], source: io::Error) -> Error {
    Error::host(operation, Path::new(&*device::host::name(path)), source)
}
