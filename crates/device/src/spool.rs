//! A file without a name, for waiting bytes that are too many for memory. It disappears with the process, however that
//! ends. No lock: its owner has one.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use crate::block_device::DeviceError;
use crate::host::{read_at, write_at};
use crate::system::files::open_unnamed;

/// Bytes in the folder that `TMPDIR` names.
pub(crate) struct SpoolFile {
    file: File,
    folder: PathBuf,
    len: u64,
}

impl SpoolFile {
    /// An empty one.
    ///
    /// # Errors
    /// When no file can be made there.
    pub(crate) fn new() -> Result<SpoolFile, DeviceError> {
        let folder = std::env::temp_dir();
        let opened = open_unnamed(&folder);
        let file = opened.map_err(|source| failed(folder.clone(), source))?;
        Ok(SpoolFile {
            file,
            folder,
            len: 0,
        })
    }

    /// Appends bytes; returns their offset.
    ///
    /// # Errors
    /// When the folder has no room for them.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<u64, DeviceError> {
        let at = self.len;
        let mut done = 0;
        while done < bytes.len() {
            let offset = at + done as u64;
            match write_at(&self.file, &bytes[done..], offset) {
                Ok(0) => return Err(failed(self.folder.clone(), ErrorKind::StorageFull.into())),
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
            match read_at(&self.file, &mut into[done..], offset) {
                Ok(0) => return Err(failed(self.folder.clone(), ErrorKind::UnexpectedEof.into())),
                Ok(count) => done += count,
                Err(source) => return Err(failed(self.folder.clone(), source)),
            }
        }
        Ok(())
    }
}

fn failed(folder: PathBuf, source: io::Error) -> DeviceError {
    DeviceError::Spool { folder, source }
}
