//! The inputs of a tree, kept while file data is still to be read from them.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use device::host;
use sync::Arc;

use super::stream::Compression;
use super::system::beneath::Root;
use super::tar::ending::Rules;

/// One input.
pub(crate) enum Source {
    /// A directory of this machine.
    Directory {
        root: Root,
        path: PathBuf,
        /// Parent and name of each directory below the root, which is number 0.
        directories: Vec<(u32, u32)>,
    },
    /// An archive in a file: data of an uncompressed one lies at offsets of `file`.
    Archive(Archive),
    /// What has no data of its own, or gave it all during the scan.
    Spent,
}

/// An archive that lies in a file, or is a range of one.
#[derive(Clone)]
pub(crate) struct Archive {
    /// Shared by the layers that lie in one file.
    pub(crate) file: Arc<File>,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) compression: Compression,
    /// What messages call it.
    pub(crate) label: String,
    pub(crate) rules: Rules,
}

impl Archive {
    /// Its bytes as they are stored.
    pub(super) fn bytes(&self) -> Range {
        Range {
            file: Arc::clone(&self.file),
            at: self.start,
            left: self.len,
        }
    }
}

/// A range of a file as a reader with its own position.
pub(super) struct Range {
    pub(super) file: Arc<File>,
    pub(super) at: u64,
    pub(super) left: u64,
}

impl Read for Range {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let want = self.left.min(buf.len() as u64) as usize;
        let got = host::read_at(&self.file, &mut buf[..want], self.at)?;
        self.at += got as u64;
        self.left -= got as u64;
        Ok(got)
    }
}
