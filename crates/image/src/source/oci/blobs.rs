//! The files of an image: in a layout directory, or in a tar archive of one, where they are read in place.

use std::cell::RefCell;
use std::fs::File;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::Read;
use std::path::PathBuf;

use device::host;
use sync::Arc;

use super::super::error::SourceError;
use super::super::inputs::Range;
use super::super::limits;
use super::super::system::beneath::{Root, open_in_root};
use super::digest::Digest;
use super::members::{Member, Members};

/// A file of an image: a range of an open file.
#[derive(Clone)]
pub(super) struct Blob {
    pub(super) file: Arc<File>,
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Blob {
    /// Its bytes, from the first on.
    pub(super) fn bytes(&self) -> Range {
        Range {
            file: Arc::clone(&self.file),
            at: self.start,
            left: self.len,
        }
    }
}

/// Where the files are.
pub(in super::super) enum Blobs {
    Directory(PathBuf, Root),
    Archive {
        /// What messages call it.
        label: String,
        file: Arc<File>,
        members: RefCell<Members>,
    },
}

impl Blobs {
    /// The image whose members lie in `file`.
    pub(super) fn of_archive(label: &str, file: Arc<File>, members: Members) -> Self {
        Self::Archive {
            label: label.into(),
            file,
            members: RefCell::new(members),
        }
    }

    /// What messages call it.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Directory(path, _) => path.display().to_string(),
            Self::Archive { label, .. } => label.clone(),
        }
    }

    pub(super) fn wrong(&self, problem: String) -> SourceError {
        SourceError::Image {
            image: self.label(),
            problem,
        }
    }

    /// The file `name`; `None` if it does not exist.
    pub(super) fn open(&self, name: &str) -> Result<Option<Blob>, SourceError> {
        let io = |error: std::io::Error| self.wrong(format!("`{name}` can't be opened: {error}"));
        match self {
            Self::Directory(_, directory) => {
                let file = match open_in_root(directory, name) {
                    Ok(file) => file,
                    Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {
                        return Ok(None);
                    }
                    Err(error) => return Err(io(error)),
                };
                let found = file.metadata().map_err(io)?;
                if !found.is_file() {
                    return Err(self.wrong(format!("`{name}` is not a file")));
                }
                Ok(Some(Blob {
                    file: Arc::new(file),
                    start: 0,
                    len: found.len(),
                }))
            }
            Self::Archive { file, members, .. } => match members.borrow_mut().find(name) {
                None => Ok(None),
                Some(Member::Other) => Err(self.wrong(format!(
                    "`{}` is not a file that the archive holds in one piece",
                    name.escape_debug()
                ))),
                Some(Member::File(start, len)) => Ok(Some(Blob {
                    file: Arc::clone(file),
                    start,
                    len,
                })),
            },
        }
    }

    /// The blob that a descriptor names, of the size it says.
    pub(super) fn find(&self, digest: &Digest, size: Option<u64>) -> Result<Blob, SourceError> {
        let Some(blob) = self.open(&digest.path())? else {
            return Err(self.wrong(format!("the blob {digest} is missing")));
        };
        match size {
            Some(size) if size != blob.len => Err(self.wrong(format!(
                "the blob {digest} has {} bytes, but should have {size}",
                blob.len
            ))),
            _ => Ok(blob),
        }
    }

    /// Whether `bytes` are what `digest` says.
    pub(super) fn verify(&self, bytes: impl Read, digest: &Digest) -> Result<(), SourceError> {
        match digest.fits(bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.wrong(format!(
                "the blob {digest} has another digest: it is damaged"
            ))),
            Err(error) => Err(self.wrong(format!("the blob {digest} can't be read: {error}"))),
        }
    }

    /// A small file as text.
    pub(super) fn text(&self, blob: &Blob, name: &str) -> Result<Vec<u8>, SourceError> {
        if blob.len > limits::JSON {
            return Err(self.wrong(format!(
                "`{name}` has {} bytes, more than {}",
                blob.len,
                limits::JSON
            )));
        }
        let mut text = vec![0; blob.len as usize];
        let read = host::read_exact_at(&blob.file, &mut text, blob.start);
        read.map_err(|error| self.wrong(format!("`{name}` can't be read: {error}")))?;
        Ok(text)
    }
}
