//! The engine, called in this process by inode number, on a fresh image with `mkfs`'s default features.

use std::path::Path;

use device::{BlockDevice, FileDevice, MemoryDevice};
use engine::{Ino, NewInode, OpenOptions};
use lanefs::{Error, Fs};
use sync::Arc;

use crate::target::Target;

/// Whoever owns what workloads make.
const NEW_FILE: NewInode = NewInode {
    mode: 0o644,
    umask: 0,
    held: false,
    uid: 0,
    gid: 0,
};
const NEW_DIRECTORY: NewInode = NewInode {
    mode: 0o755,
    umask: 0,
    held: false,
    uid: 0,
    gid: 0,
};

/// A file system of our own.
pub struct InProcess {
    fs: Fs,
    root: Ino,
}

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}

impl InProcess {
    /// Makes a file system of `size` bytes in memory and opens it.
    ///
    /// # Errors
    /// When no file system of that size can be made.
    pub fn in_memory(size: u64, options: &OpenOptions) -> Result<InProcess, Error> {
        InProcess::new(Arc::new(MemoryDevice::new(size)), size, options)
    }

    /// Makes a file of `size` bytes that was not there, with a file system in it, and opens it. Removing the file is
    /// the caller's.
    ///
    /// # Errors
    /// When the file exists or can't be made, or no file system of that size can be.
    pub fn in_file(path: &Path, size: u64, options: &OpenOptions) -> Result<InProcess, Error> {
        let device = FileDevice::create_new(path, size).map_err(lanefs::make::MakeError::from)?;
        InProcess::new(Arc::new(device), size, options)
    }

    fn new(
        device: Arc<dyn BlockDevice>,
        size: u64,
        options: &OpenOptions,
    ) -> Result<InProcess, Error> {
        let make = lanefs::mkfs::Options {
            device_is_zero: true,
            ..lanefs::mkfs::Options::default()
        };
        let plan = lanefs::mkfs::Layout::plan(size, &make);
        plan.and_then(|layout| lanefs::mkfs::format(&*device, &layout))
            .map_err(lanefs::make::MakeError::from)?;
        Ok(InProcess {
            fs: Fs::open_for_writing_with(device, options, lanefs::now)?,
            root: Ino::ROOT,
        })
    }
}

fn said(source: engine::Error) -> Error {
    Error::Fs {
        path: Vec::new(),
        source,
    }
}

impl Target for InProcess {
    type Dir = Ino;
    type File = Ino;

    fn root(&self) -> &Ino {
        &self.root
    }

    fn mkdir(&self, parent: &Ino, name: &str) -> Result<Ino, Error> {
        let fs = self.fs.inodes();
        fs.mkdir(*parent, name.as_bytes(), NEW_DIRECTORY)
            .map_err(said)
    }

    fn rmdir(&self, parent: &Ino, name: &str) -> Result<(), Error> {
        let fs = self.fs.inodes();
        fs.rmdir(*parent, name.as_bytes()).map_err(said)
    }

    fn create(&self, parent: &Ino, name: &str) -> Result<Ino, Error> {
        let fs = self.fs.inodes();
        fs.create(*parent, name.as_bytes(), NEW_FILE).map_err(said)
    }

    fn unlink(&self, parent: &Ino, name: &str) -> Result<(), Error> {
        let fs = self.fs.inodes();
        fs.unlink(*parent, name.as_bytes()).map_err(said)
    }

    fn stat(&self, parent: &Ino, name: &str) -> Result<u64, Error> {
        let fs = self.fs.inodes();
        let ino = fs.lookup(*parent, name.as_bytes()).map_err(said)?;
        Ok(fs.metadata(ino).map_err(said)?.size)
    }

    fn write(&self, file: &Ino, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes.len() {
            let fs = self.fs.inodes();
            let written = fs.write(*file, offset + done as u64, &bytes[done..]);
            done += written.map_err(said)?;
        }
        Ok(())
    }

    fn truncate(&self, file: &Ino, size: u64) -> Result<(), Error> {
        self.fs.inodes().truncate(*file, size).map_err(said)
    }

    fn fsync(&self, file: &Ino) -> Result<(), Error> {
        self.fs.inodes().fsync(*file).map_err(said)
    }

    fn settle(&self) -> Result<(), Error> {
        self.fs.inodes().sync().map_err(said)
    }
}
