//! Extraction into a directory on Linux. All paths start at an open directory, so that no link can redirect a write.

mod directory;
mod host;
mod new_file;
mod pool;

use std::io;
use std::path::Path;

use sync::atomic::Ordering;

use super::{Existing, Options, Summary};
use crate::{Error, Fs, Ino};

/// Extracts the entries of the directory `from` into the directory `destination`, which gets the attributes of `from`.
/// It is created if it does not exist. An empty `lost+found` of the root is left out.
///
/// # Errors
/// If `from` is not a directory, or the destination can't be created or, with [`Existing::Refuse`], is not empty.
/// Errors of single entries are in the summary.
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
            let text = "it is not empty, and existing files would be replaced";
            Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, text))
        }
    });
    let (opened, last) =
        opened.map_err(|error| Error::host("extracting to", destination, error))?;
    directory::Extraction::new(fs, opened, options).tree(from, last)
}

/// Extracts one entry, a directory with everything in it, as `name` in the directory `parent`.
///
/// # Errors
/// If `parent` can't be opened. Errors of single entries are in the summary.
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
        // Relaxed: the thread that sets the flag publishes no data with it.
        self.cancel
            .is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// An error of the host at a path in the destination.
fn failed_at(operation: &'static str, path: &[u8], source: io::Error) -> Error {
    Error::host(operation, Path::new(&*device::host::name(path)), source)
}
