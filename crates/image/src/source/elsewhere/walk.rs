//! A scan of one directory, on the calling thread.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use device::host::{self, Moment, Special};

use super::super::batch::{Batch, Found};
use super::super::error::SourceError;
use super::super::exclude::Excludes;
use super::super::time::Time;
use super::super::tree::{
    Attributes, DataKind, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK, TreeNode,
    join,
};
use super::super::xattrs::Xattrs;
use super::beneath::{Root, found};

/// The attributes and extended attributes of the source directory.
pub(in super::super) fn top(root: &Root) -> io::Result<(Attributes, Xattrs)> {
    let own = host::HostAttributes::of(&root.metadata()?);
    Ok((attributes(&own), Xattrs::default()))
}

/// A scan of one directory, on the calling thread.
pub(in super::super) struct Walk<'a> {
    root: &'a Root,
    path: &'a Path,
    excludes: &'a Excludes,
    /// The identities of the output files, which are left out.
    outputs: &'a [(u64, u64)],
    source: u16,
}

/// A directory to be listed: its number, and its path in the source.
struct Task {
    number: u32,
    path: Vec<u8>,
}

impl<'a> Walk<'a> {
    pub(in super::super) fn new(
        root: &'a Root,
        path: &'a Path,
        excludes: &'a Excludes,
        outputs: &'a [(u64, u64)],
        source: u16,
    ) -> Self {
        Self {
            root,
            path,
            excludes,
            outputs,
            source,
        }
    }

    /// Walks the tree, and passes the entries of each directory to `collect`, parents first.
    pub(in super::super) fn run(
        self,
        _threads: usize,
        mut collect: impl FnMut(Batch) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let mut directories = 1;
        let mut unreadable = Vec::new();
        let mut tasks = vec![Task {
            number: 0,
            path: Vec::new(),
        }];
        while let Some(task) = tasks.pop() {
            match self.list(&task, &mut directories, &mut tasks) {
                Ok(batch) => collect(batch)?,
                Err((path, error)) => match error.kind() {
                    ErrorKind::PermissionDenied => unreadable.push((self.full(&path), error)),
                    _ => {
                        return Err(SourceError::Io {
                            operation: "list",
                            path: self.full(&path),
                            error,
                        });
                    }
                },
            }
        }
        unreadable.sort_by(|one, other| one.0.cmp(&other.0));
        if unreadable.is_empty() {
            Ok(())
        } else {
            Err(SourceError::Unreadable(unreadable))
        }
    }

    /// Lists one directory, and adds its subdirectories to `tasks`. On an error, returns the path that failed.
    fn list(
        &self,
        task: &Task,
        directories: &mut u32,
        tasks: &mut Vec<Task>,
    ) -> Result<Batch, (Vec<u8>, io::Error)> {
        let failed = |error| (task.path.clone(), error);
        let folder = found(self.root, &task.path).map_err(failed)?;
        let names = folder.read_dir().map_err(failed)?;
        let names: io::Result<Vec<OsString>> = names.map(|entry| Ok(entry?.file_name())).collect();
        let mut names = names.map_err(failed)?;
        names.sort_unstable();
        let mut batch = Batch {
            directory: task.number,
            found: Vec::with_capacity(names.len()),
            text: Vec::new(),
            xattrs: Vec::new(),
            extents: Vec::new(),
            linked: Vec::new(),
        };
        let first = tasks.len();
        for name in names {
            let path = if task.path.is_empty() {
                name.as_encoded_bytes().to_vec()
            } else {
                [&task.path, &b"/"[..], name.as_encoded_bytes()].concat()
            };
            match self.look(&folder.join(&name), &name, &path, *directories, &mut batch) {
                Ok(true) => {
                    let number = *directories;
                    tasks.push(Task { number, path });
                    *directories += 1;
                }
                Ok(false) => {}
                // It was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err((path, error)),
            }
        }
        // The last task is the next one.
        tasks[first..].reverse();
        Ok(batch)
    }

    /// Adds an entry to the batch, unless it is excluded. Returns whether it is a directory, which then has
    /// `number`.
    fn look(
        &self,
        place: &Path,
        text: &OsString,
        path: &[u8],
        number: u32,
        batch: &mut Batch,
    ) -> io::Result<bool> {
        let metadata = place.symlink_metadata()?;
        let is_output = || {
            let identity = host::identity(place);
            identity.is_some_and(|identity| self.outputs.contains(&identity))
        };
        if self.excludes.matches(path, metadata.is_dir())
            || (metadata.is_file() && !self.outputs.is_empty() && is_output())
        {
            return Ok(false);
        }
        let name = text.as_encoded_bytes();
        if *host::name(name) != **text {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "its name is not Unicode",
            ));
        }
        let name_len = u16::try_from(name.len());
        let name_len = name_len.map_err(|_| ErrorKind::InvalidFilename)?;
        let target = if metadata.is_symlink() {
            target_of(place)?
        } else {
            Vec::new()
        };
        let index = batch.found.len() as u32;
        let own = host::HostAttributes::of(&metadata);
        if own.nlink > 1
            && !metadata.is_dir()
            && let Some(identity) = own.identity
        {
            batch.linked.push((index, identity));
        }
        batch.found.push(Found {
            node: self.node(&metadata, &own),
            name: batch.text.len() as u32,
            name_len,
            target_len: target.len() as u16,
            number,
        });
        batch.text.extend_from_slice(name);
        batch.text.extend_from_slice(&target);
        Ok(metadata.is_dir())
    }

    fn node(&self, metadata: &Metadata, own: &host::HostAttributes) -> TreeNode {
        let kind = metadata.file_type();
        let kind = if kind.is_file() {
            S_IFREG
        } else if kind.is_dir() {
            S_IFDIR
        } else if kind.is_symlink() {
            S_IFLNK
        } else {
            match host::special_of(kind) {
                Special::CharDevice => S_IFCHR,
                Special::BlockDevice => S_IFBLK,
                Special::Fifo => S_IFIFO,
                Special::Socket => S_IFSOCK,
            }
        };
        let mut node = TreeNode::new(kind, self.source);
        node.set_attributes(&attributes(own));
        if kind == S_IFREG && metadata.len() > 0 {
            node.size = metadata.len();
            node.data = DataKind::Path;
        }
        if matches!(kind, S_IFCHR | S_IFBLK) {
            node.key = join(own.rdev.0, own.rdev.1);
        }
        node
    }

    fn full(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() {
            self.path.to_path_buf()
        } else {
            self.path.join(&*host::name(path))
        }
    }
}

/// The target of a symbolic link, with `/` between its parts.
fn target_of(place: &Path) -> io::Result<Vec<u8>> {
    let target = host::path_bytes(&place.read_link()?).into_owned();
    if target.len() > usize::from(u16::MAX) {
        Err(ErrorKind::InvalidFilename.into())
    } else {
        Ok(target)
    }
}

fn attributes(own: &host::HostAttributes) -> Attributes {
    let time = |(seconds, nanoseconds): Moment| Time::new(seconds, nanoseconds);
    Attributes {
        mode: own.mode,
        uid: own.uid,
        gid: own.gid,
        atime: time(own.atime),
        mtime: time(own.mtime),
        ctime: time(own.ctime),
    }
}
