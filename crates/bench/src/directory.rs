//! A directory of the host: of the kernel's ext4, of a FUSE mount, of anything that is mounted.
//!
//! One system call an operation, relative to an open directory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use lanefs::Error;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::target::Target;

/// A host's directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    root: OwnedFd,
}

impl Directory {
    /// Opens a directory.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn open(path: &Path) -> Result<Directory, Error> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        Ok(Directory {
            path: path.to_owned(),
            root: root.map_err(|errno| host("opening", path, errno))?,
        })
    }

    fn said(&self, operation: &'static str, errno: rustix::io::Errno) -> Error {
        host(operation, &self.path, errno)
    }
}

fn host(operation: &'static str, path: &Path, errno: rustix::io::Errno) -> Error {
    Error::Host {
        operation,
        path: path.to_owned(),
        source: errno.into(),
    }
}

impl Target for Directory {
    type Dir = OwnedFd;
    type File = OwnedFd;

    fn root(&self) -> &OwnedFd {
        &self.root
    }

    fn mkdir(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))
            .and_then(|()| rustix::fs::openat(parent, name, flags, Mode::empty()))
            .map_err(|errno| self.said("making a directory in", errno))
    }

    fn rmdir(&self, parent: &OwnedFd, name: &str) -> Result<(), Error> {
        rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
            .map_err(|errno| self.said("removing a directory of", errno))
    }

    fn create(&self, parent: &OwnedFd, name: &str) -> Result<OwnedFd, Error> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644))
            .map_err(|errno| self.said("making a file in", errno))
    }

    fn unlink(&self, parent: &OwnedFd, name: &str) -> Result<(), Error> {
        rustix::fs::unlinkat(parent, name, AtFlags::empty())
            .map_err(|errno| self.said("removing a file of", errno))
    }

    fn stat(&self, parent: &OwnedFd, name: &str) -> Result<u64, Error> {
        rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| stat.st_size.unsigned_abs())
            .map_err(|errno| self.said("looking at a file of", errno))
    }

    fn write(&self, file: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes.len() {
            let written = rustix::io::pwrite(file, &bytes[done..], offset + done as u64)
                .map_err(|errno| self.said("writing to a file of", errno))?;
            done += written;
        }
        Ok(())
    }

    fn truncate(&self, file: &OwnedFd, size: u64) -> Result<(), Error> {
        rustix::fs::ftruncate(file, size).map_err(|errno| self.said("truncating a file of", errno))
    }

    fn fsync(&self, file: &OwnedFd) -> Result<(), Error> {
        rustix::fs::fsync(file).map_err(|errno| self.said("syncing a file of", errno))
    }

    fn settle(&self) -> Result<(), Error> {
        rustix::fs::syncfs(&self.root).map_err(|errno| self.said("syncing", errno))
    }
}
