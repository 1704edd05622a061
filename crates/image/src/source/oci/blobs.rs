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
use super::super::resolve::components;
use super::super::tar::{Entry, Stop, Visitor, What};
use super::digest::Digest;
use super::documents;

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
    by_name: HashMap<Vec<u8>, Member>,
    /// Bytes of their names and of the targets of links.
    bytes: usize,
    /// A name is not one that OCI or docker-save gives to its files.
    foreign: bool,
    /// The archive is beyond a limit, or a name leads out of it.
    given_up: bool,
}

#[derive(Clone)]
enum Member {
    /// Where its bytes begin in the archive, and how many it has.
    File(u64, u64),
    /// A symbolic link; a hard link to a later member is one from the archive's root.
    Link(Vec<u8>),
    /// Neither a file that lies in one piece, nor a link.
    Other,
}

/// Links that lead to one file: as many as Linux follows.
const FOLLOWED: usize = 40;

impl Members {
    /// The member `name`, by links within the archive: its root is above everything, as for `chroot`.
    fn resolve(&self, name: &[u8]) -> Option<&Member> {
        if name.len() > limits::TARGET {
            return None;
        }
        let mut left: Vec<&[u8]> = components(name).rev().collect();
        let mut path = Vec::new();
        let mut followed = 0;
        while let Some(part) = left.pop() {
            let parent = path.len();
            if part == b".." {
                let kept = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                path.truncate(kept);
                continue;
            }
            if parent > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(part);
            if let Some(Member::Link(target)) = self.by_name.get(&path) {
                followed += 1;
                if followed > FOLLOWED || target.len() > limits::TARGET {
                    return None;
                }
                path.truncate(if target.starts_with(b"/") { 0 } else { parent });
                left.extend(components(target).rev());
            }
        }
        self.by_name.get(&path)
    }

    fn has_file(&self, name: &[u8]) -> bool {
        matches!(self.resolve(name), Some(Member::File(..)))
    }
}

impl Visitor for Members {
    fn entry(&mut self, entry: Entry) -> Result<bool, Stop> {
        self.given_up = true;
        let path = clean(&entry.path)?;
        self.foreign |= !is_image_name(&path);
        let member = match entry.what {
            What::File {
                size,
                offset,
                extents: None,
                ..
            } => Member::File(offset, size),
            What::HardLink(target) => {
                let target = clean(&target)?;
                match self.by_name.get(&target) {
                    Some(known) => known.clone(),
                    None => Member::Link([b"/", &*target].concat()),
                }
            }
            What::Symlink(target) => Member::Link(target),
            What::Directory => {
                self.given_up = false;
                return Ok(false);
            }
            _ => Member::Other,
        };
        if let Member::Link(target) = &member {
            self.bytes += target.len();
        }
        self.bytes += path.len();
        if self.by_name.len() >= limits::BLOBS || self.bytes > limits::HELD_NAMES {
            return Err("more files than an image has".into());
        }
        self.by_name.insert(path, member);
        self.given_up = false;
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

    /// The members of `archive`; `None` when it is not an image.
    ///
    /// A `manifest.json` in the form of docker-save makes it one, whatever else it holds; so does an `index.json`
    /// beside an `oci-layout`. Without either, all names must be such as images have.
    pub(super) fn in_archive(archive: &Archive) -> Result<Option<Self>, SourceError> {
        let mut members = Members::default();
        let read = archive.read(&mut members);
        if members.given_up {
            return Ok(None);
        }
        let index = members.has_file(b"index.json");
        let foreign = members.foreign;
        let layout = index && (!foreign || members.has_file(b"oci-layout"));
        let blobs = Self::Archive(archive.clone(), members);
        let image = match documents::saved(&blobs) {
            Ok(Some(images)) => layout || !foreign || !images.0.is_empty(),
            Ok(None) => layout,
            Err(_) => layout || !foreign,
        };
        if !image {
            return Ok(None);
        }
        // The names are all that is looked at; a layer within says for itself how it ends.
        let _ = read?;
        Ok(Some(blobs))
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
                    return Err(self.wrong(format!("`{name}` is not a file")));
                }
                Ok(Some(Blob {
                    file: Arc::new(file),
                    start: 0,
                    len: found.len(),
                }))
            }
            Self::Archive(archive, members) => match members.resolve(name.as_bytes()) {
                None | Some(Member::Link(_)) => Ok(None),
                Some(Member::Other) => Err(self.wrong(format!(
                    "`{}` is not a file that the archive holds in one piece",
                    name.escape_debug()
                ))),
                Some(Member::File(offset, len)) => Ok(Some(Blob {
                    file: Arc::clone(&archive.file),
                    start: archive.start + offset,
                    len: *len,
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
