//! A file without a name, in which bytes wait that are too many for memory. It is gone with the process, whatever ends
//! that. No lock: its owner has one.

use std::fs::File;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::block_device::DeviceError;

/// How many names are tried where the file system makes no file without one.
const NAMES: u32 = 100;

/// Bytes in the folder that `TMPDIR` names.
pub(crate) struct Spool {
    file: File,
    folder: PathBuf,
    len: u64,
}

impl Spool {
    /// An empty one.
    ///
    /// # Errors
    /// When no file can be made there.
    pub(crate) fn new() -> Result<Spool, DeviceError> {
        let folder = std::env::temp_dir();
        let opened = open_unnamed(&folder);
        let file = opened.map_err(|source| failed(folder.clone(), source))?;
        Ok(Spool {
            file,
            folder,
            len: 0,
        })
    }

    /// Adds bytes at the end; gives their place.
    ///
    /// # Errors
    /// When the folder has no room for them.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<u64, DeviceError> {
        let at = self.len;
        let mut done = 0;
        while done < bytes.len() {
            let offset = at + done as u64;
            match retry_on_intr(|| rustix::io::pwrite(&self.file, &bytes[done..], offset)) {
                Ok(0) => return Err(failed(self.folder.clone(), Errno::NOSPC)),
                Ok(count) => done += count,
                Err(source) => return Err(failed(self.folder.clone(), source)),
            }
        }
        self.len += bytes.len() as u64;
        Ok(at)
    }

    /// Reads bytes that were added.
    ///
    /// # Errors
    /// When the medium fails.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < into.len() {
            let offset = at + done as u64;
            match retry_on_intr(|| rustix::io::pread(&self.file, &mut into[done..], offset)) {
                Ok(0) => return Err(failed(self.folder.clone(), Errno::IO)),
                Ok(count) => done += count,
                Err(source) => return Err(failed(self.folder.clone(), source)),
            }
        }
        Ok(())
    }
}

fn failed(folder: PathBuf, source: Errno) -> DeviceError {
    DeviceError::Spool {
        folder,
        source: source.into(),
    }
}

fn open_unnamed(folder: &PathBuf) -> Result<File, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match retry_on_intr(|| rustix::fs::open(folder, flags | OFlags::TMPFILE, mode)) {
        Ok(file) => return Ok(file.into()),
        // The file system, or an old kernel, makes none.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    for number in 0..NAMES {
        let path = folder.join(format!(".lanefs-{}-{number}.spool", std::process::id()));
        let flags = flags | OFlags::CREATE | OFlags::EXCL;
        match retry_on_intr(|| rustix::fs::open(&path, flags, mode)) {
            Ok(file) => {
                rustix::fs::unlink(&path)?;
                return Ok(file.into());
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::EXIST)
}
