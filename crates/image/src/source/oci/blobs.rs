//! The files of an image: in a layout directory, or in a tar archive of one, where they are read in place.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use hashbrown::HashMap;
use rustix::fs::OFlags;
use sync::Arc;

use super::super::apply::{clean, is_image_name};
use super::super::archive::Range;
use super::super::error::SourceError;
use super::super::limits;
use super::super::origin::{Archive, open_beneath};
use super::super::tar::{Entry, Stop, Visitor, What};
use super::digest::Digest;

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
pub(super) enum Blobs {
    Directory(PathBuf, File),
    Archive(Archive, Members),
}

/// Members of an archive by name.
#[derive(Default)]
pub(super) struct Members {
    files: HashMap<Vec<u8>, (u64, u64)>,
    /// Symbolic and hard links, to a name from the archive's root.
    links: HashMap<Vec<u8>, Vec<u8>>,
    other: bool,
}

/// How many links lead to one file.
const FOLLOWED: usize = 8;

impl Visitor for Members {
    fn entry(&mut self, entry: Entry) -> Result<bool, Stop> {
        let path = clean(&entry.path)?;
        if !is_image_name(&path) || self.files.len() + self.links.len() >= limits::BLOBS {
            // No image: the caller reads it as a plain archive.
            self.other = true;
            return Err("not an image".into());
        }
        match entry.what {
            What::File {
                size,
                offset,
                extents: None,
                ..
            } => {
                self.links.remove(&path);
                self.files.insert(path, (offset, size));
            }
            What::HardLink(target) => {
                self.links.insert(path, clean(&target)?);
            }
            What::Symlink(target) => {
                let directory = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                // Old docker-save archives have `../ID/layer.tar`, from a directory of the root.
                let target = match target.strip_prefix(b"../") {
                    Some(target) => target.to_vec(),
                    None => [&path[..directory], b"/", &target].concat(),
                };
                self.links.insert(path, clean(&target)?);
            }
            _ => {}
        }
        Ok(false)
    }

    fn data(&mut self, _offset: u64, _bytes: &[u8]) -> Result<(), Stop> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

impl Blobs {
    pub(super) fn in_directory(path: PathBuf) -> Result<Self, SourceError> {
        match File::open(&path) {
            Ok(directory) => Ok(Self::Directory(path, directory)),
            Err(error) => Err(SourceError::Io {
                operation: "open",
                path,
                error,
            }),
        }
    }

    /// The members of `archive`; `None` when it is no image.
    pub(super) fn in_archive(archive: &Archive) -> Result<Option<Self>, SourceError> {
        let mut members = Members::default();
        let read = archive.read(&mut members);
        let has = |name: &[u8]| members.files.contains_key(name);
        if members.other || !(has(b"index.json") || has(b"manifest.json")) {
            return Ok(None);
        }
        // The names are all that is looked at; a layer within says for itself how it ends.
        let _ = read?;
        Ok(Some(Self::Archive(archive.clone(), members)))
    }

    /// What messages call it.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Directory(path, _) => path.display().to_string(),
            Self::Archive(archive, _) => archive.label.clone(),
        }
    }

    pub(super) fn wrong(&self, problem: String) -> SourceError {
        SourceError::Image {
            image: self.label(),
            problem,
        }
    }

    /// The file `name`; `None` when there is none.
    pub(super) fn open(&self, name: &str) -> Result<Option<Blob>, SourceError> {
        let io = |error: std::io::Error| self.wrong(format!("`{name}` can't be opened: {error}"));
        match self {
            Self::Directory(_, directory) => {
                use rustix::io::Errno;
                let fd = match open_beneath(
                    std::os::fd::AsFd::as_fd(directory),
                    name.as_bytes(),
                    OFlags::empty(),
                ) {
                    Ok(fd) => fd,
                    Err(Errno::NOENT) => return Ok(None),
                    Err(errno) => return Err(io(errno.into())),
                };
                let file = File::from(fd);
                let found = file.metadata().map_err(io)?;
                if !found.is_file() {
                    return Err(self.wrong(format!("`{name}` is no file")));
                }
                Ok(Some(Blob {
                    file: Arc::new(file),
                    start: 0,
                    len: found.len(),
                }))
            }
            Self::Archive(archive, members) => {
                let mut name = clean(name.as_bytes()).map_err(|text| self.wrong(text))?;
                for _ in 0..FOLLOWED {
                    if let Some((offset, len)) = members.files.get(&name) {
                        let start = archive.start + offset;
                        let file = Arc::clone(&archive.file);
                        return Ok(Some(Blob {
                            file,
                            start,
                            len: *len,
                        }));
                    }
                    let Some(target) = members.links.get(&name) else {
                        break;
                    };
                    name.clone_from(target);
                }
                Ok(None)
            }
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

    /// Whether the uncompressed `bytes` of layer `name` are what the configuration says.
    pub(super) fn verify_layer(
        &self,
        bytes: impl Read,
        digest: &Digest,
        name: &str,
    ) -> Result<(), SourceError> {
        let wrong = |problem: String| SourceError::Image {
            image: name.into(),
            problem,
        };
        match digest.fits(bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(wrong(format!(
                "uncompressed it has another digest than {digest}, which the configuration has for it (diff_ids): it \
                 is damaged, or a layer of another image"
            ))),
            Err(error) => Err(wrong(format!("it can't be read: {error}"))),
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
        let read = blob.file.read_exact_at(&mut text, blob.start);
        read.map_err(|error| self.wrong(format!("`{name}` can't be read: {error}")))?;
        Ok(text)
    }
}
