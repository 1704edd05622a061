//! Files in a source directory, opened by whole paths.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use device::host;

/// The directory in which files are opened.
pub(in super::super) type Root = PathBuf;

/// Finds the directory with this path.
pub(in super::super) fn open_root(path: &Path) -> io::Result<Root> {
    if path.metadata()?.is_dir() {
        path.canonicalize()
    } else {
        Err(ErrorKind::NotADirectory.into())
    }
}

/// Opens the file at `relative` for reading. No symbolic link is followed.
pub(in super::super) fn open_file(root: &Root, relative: &[u8]) -> io::Result<File> {
    let path = found(root, relative)?;
    if path.symlink_metadata()?.is_file() {
        File::open(path)
    } else {
        // Opening a pipe would wait for a writer.
        Err(io::Error::other("it is no longer a regular file"))
    }
}

/// Finds the directory at `relative`. No symbolic link is followed.
pub(in super::super) fn open_folder(root: &Root, relative: &[u8]) -> io::Result<Root> {
    let path = found(root, relative)?;
    if path.symlink_metadata()?.is_dir() {
        Ok(path)
    } else {
        Err(ErrorKind::NotADirectory.into())
    }
}

/// Opens the file at `name` for reading. No symbolic link is followed.
pub(in super::super) fn open_in_root(root: &Root, name: &str) -> io::Result<File> {
    open_file(root, name.as_bytes())
}

/// The path of `relative`. Fails if one of its directories is a symbolic link.
pub(super) fn found(root: &Path, relative: &[u8]) -> io::Result<PathBuf> {
    let mut path = root.to_path_buf();
    for part in Path::new(&*host::name(relative)).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => continue,
            _ => return Err(ErrorKind::InvalidInput.into()),
        }
        if path.symlink_metadata()?.is_symlink() {
            return Err(io::Error::other("its path contains a symbolic link"));
        }
    }
    Ok(path)
}
