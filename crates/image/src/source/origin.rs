//! Where a tree's file data comes from, and how it is read again.
//!
//! A [`FileReader`] may be used by one thread; any number of them may be open at once. What an archive gives only
//! from its start goes through a [`DataSink`], in the archive's order.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use sync::Arc;

use super::error::SourceError;
use super::stream::Compression;
use super::tar::Rules;
use super::tree::{DataExtent, DataKind, NodeId, SourceId, Tree, halves};

/// An error of who receives data, passed through unchanged as [`SourceError::Sink`].
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Receives the data of an archive's files, one after another, in the archive's order.
pub trait DataSink {
    /// Item `index` of archive `source` begins: a file of `size` bytes, of which `data_bytes` follow and the rest are
    /// holes. Returns whether the data is wanted; when not, neither `data` nor `end` is called for it.
    ///
    /// During a scan an item may turn out unneeded: a later entry can replace it. The finished tree tells.
    ///
    /// # Errors
    /// Ends the scan with [`SourceError::Sink`]; so for the other methods.
    fn begin(
        &mut self,
        source: SourceId,
        index: u32,
        size: u64,
        data_bytes: u64,
    ) -> Result<bool, SinkError>;

    /// The bytes at `offset` of the file; offsets rise, pieces have any length but 0.
    ///
    /// # Errors
    /// As `begin`.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), SinkError>;

    /// All data of the item was delivered.
    ///
    /// # Errors
    /// As `begin`.
    fn end(&mut self) -> Result<(), SinkError>;
}

/// One input.
pub(crate) enum Source {
    /// A directory of this machine.
    Directory {
        root: OwnedFd,
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

/// The directory of the file opened last, by one thread.
#[derive(Debug, Default)]
pub struct Nearby {
    /// Source and number of the directory.
    place: Option<(u16, u32)>,
    /// Open from the second file on.
    fd: Option<OwnedFd>,
}

/// Reads one file's data.
pub struct FileReader<'t> {
    tree: &'t Tree,
    node: NodeId,
    fd: Result<OwnedFd, BorrowedFd<'t>>,
    /// Archives: the extents with the offset of their bytes. Directory sources: none, offsets are the file's own.
    packed: Option<Vec<(DataExtent, u64)>>,
}

impl Tree {
    /// Opens the data of file `id`, whose [`super::tree::Data`] is `Path` or `Range`. `nearby` is what the call before
    /// left there: files of one directory are opened faster one after another. Whether it is still what was scanned,
    /// [`FileReader::check`] says.
    ///
    /// # Errors
    /// When the file can't be opened.
    pub fn open(&self, id: NodeId, nearby: &mut Nearby) -> Result<FileReader<'_>, SourceError> {
        let node = &self.nodes[id.index()];
        match (&self.sources[usize::from(node.source)], node.data) {
            (Source::Directory { root, .. }, DataKind::Path) => {
                let fd = self
                    .open_path(root.as_fd(), node.source, halves(node.key), nearby)
                    .map_err(|errno| self.io(id, "open", errno.into()))?;
                Ok(FileReader {
                    tree: self,
                    node: id,
                    fd: Ok(fd),
                    packed: None,
                })
            }
            (Source::Archive(archive), DataKind::Range) => {
                let mut at = node.key;
                let packed = self
                    .extents(id)
                    .map(|extent| {
                        let place = (extent, at);
                        at += extent.len;
                        place
                    })
                    .collect();
                let fd = Err(archive.file.as_fd());
                Ok(FileReader {
                    tree: self,
                    node: id,
                    fd,
                    packed: Some(packed),
                })
            }
            _ => Err(SourceError::Tree {
                path: self.path(id).escape_ascii().to_string(),
                problem: "its data can only be read in the order of its archive".into(),
            }),
        }
    }

    /// Opens a directory source's file: through its directory from the second file of one on, so that the kernel has
    /// one name to look up and not a whole path.
    fn open_path(
        &self,
        root: BorrowedFd<'_>,
        source: u16,
        (directory, name): (u32, u32),
        nearby: &mut Nearby,
    ) -> Result<OwnedFd, Errno> {
        let file = self.name(name);
        let known = nearby.place == Some((source, directory));
        if directory == 0 {
            return open_beneath(root, file, OFlags::empty());
        }
        if !known {
            *nearby = Nearby {
                place: Some((source, directory)),
                fd: None,
            };
            let relative = self.relative(source, directory, name);
            return open_beneath(root, &relative, OFlags::empty());
        }
        if let Some(fd) = &nearby.fd {
            return open_beneath(fd.as_fd(), file, OFlags::empty());
        }
        let relative = self.relative_directory(source, directory);
        let fd = open_beneath(root, &relative, OFlags::DIRECTORY)?;
        let opened = open_beneath(fd.as_fd(), file, OFlags::empty());
        nearby.fd = Some(fd);
        opened
    }

    /// The path of a directory source's directory, which is not its root, from the root.
    fn relative_directory(&self, source: u16, directory: u32) -> Vec<u8> {
        let Source::Directory { directories, .. } = &self.sources[usize::from(source)] else {
            return Vec::new();
        };
        let (parent, name) = directories[directory as usize];
        self.relative(source, parent, name)
    }

    /// The path of a directory source's file, from the source's root.
    pub(crate) fn relative(&self, source: u16, directory: u32, name: u32) -> Vec<u8> {
        let Source::Directory { directories, .. } = &self.sources[usize::from(source)] else {
            return Vec::new();
        };
        let mut parts = vec![self.name(name)];
        let mut at = directory;
        while at != 0 {
            let (parent, name) = directories[at as usize];
            parts.push(self.name(name));
            at = parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Where file `id` comes from, for messages: a path of this machine, or the archive's name and the entry's path.
    #[must_use]
    pub fn origin(&self, id: NodeId) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let node = &self.nodes[id.index()];
        match (&self.sources[usize::from(node.source)], node.data) {
            (Source::Directory { path, .. }, DataKind::Path) => {
                let (directory, name) = halves(node.key);
                let relative = self.relative(node.source, directory, name);
                path.join(std::ffi::OsStr::from_bytes(&relative))
            }
            (Source::Archive(Archive { label, .. }), _) => {
                let path = self.path(id);
                PathBuf::from(format!("{label}:{}", String::from_utf8_lossy(&path)))
            }
            _ => PathBuf::from(std::ffi::OsStr::from_bytes(&self.path(id))),
        }
    }

    fn io(&self, id: NodeId, operation: &'static str, error: std::io::Error) -> SourceError {
        SourceError::Io {
            operation,
            path: self.origin(id),
            error,
        }
    }
}

impl FileReader<'_> {
    /// Fills `buf` from byte `offset` of the file. The range must lie within one extent of [`Tree::extents`].
    ///
    /// # Errors
    /// When the file can't be read or is shorter than it was.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let mut at = self.position(offset);
        let mut rest = buf;
        while !rest.is_empty() {
            match rustix::io::pread(self.fd(), &mut *rest, at) {
                Ok(0) => return Err(self.changed("became shorter")),
                Ok(count) => {
                    at += count as u64;
                    rest = &mut rest[count..];
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.tree.io(self.node, "read", errno.into())),
            }
        }
        Ok(())
    }

    /// The file that holds the bytes: for copies within the kernel, with [`FileReader::position`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Ok(owned) => owned.as_fd(),
            Err(borrowed) => *borrowed,
        }
    }

    /// Where in [`FileReader::fd`] byte `offset` of the file is; `offset` lies within an extent.
    #[must_use]
    pub fn position(&self, offset: u64) -> u64 {
        let Some(packed) = &self.packed else {
            return offset;
        };
        let after = packed.partition_point(|(extent, _)| extent.offset <= offset);
        match after.checked_sub(1).map(|index| packed[index]) {
            Some((extent, at)) => at + (offset - extent.offset),
            None => offset,
        }
    }

    /// Says whether the file still has the size it was scanned with: to be called when all is read, and before where
    /// that takes long.
    ///
    /// # Errors
    /// When the file's size or time of change is another one, or it is no regular file any more.
    pub fn check(&self) -> Result<(), SourceError> {
        if self.packed.is_some() {
            return Ok(());
        }
        let stat = rustix::fs::fstat(self.fd())
            .map_err(|errno| self.tree.io(self.node, "read", errno.into()))?;
        let size = self.tree.nodes[self.node.index()].size;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(self.changed("was replaced"));
        }
        let now = stat.st_size.max(0).cast_unsigned();
        if now != size {
            return Err(self.changed(&format!("changed its size from {size} to {now} bytes")));
        }
        Ok(())
    }

    fn changed(&self, what: &str) -> SourceError {
        SourceError::Changed {
            path: self.tree.origin(self.node),
            what: what.into(),
        }
    }
}

/// Longest path that one system call takes, with room for its NUL.
const ONE_CALL: usize = 4000;

/// Opens what is at `relative` below `root` for reading without following any symbolic link on the way; `more` is added
/// to the flags.
pub(crate) fn open_beneath(
    root: BorrowedFd<'_>,
    relative: &[u8],
    more: OFlags,
) -> Result<OwnedFd, Errno> {
    if relative.len() <= ONE_CALL {
        return open_once(root, relative, more);
    }
    let mut directory: Option<OwnedFd> = None;
    let mut rest = relative;
    while rest.len() > ONE_CALL {
        let slash = rest[..ONE_CALL].iter().rposition(|byte| *byte == b'/');
        let at = slash.ok_or(Errno::NAMETOOLONG)?;
        let from = directory.as_ref().map_or(root, |fd| fd.as_fd());
        directory = Some(open_once(from, &rest[..at], OFlags::DIRECTORY)?);
        rest = &rest[at + 1..];
    }
    open_once(directory.as_ref().map_or(root, |fd| fd.as_fd()), rest, more)
}

/// Opens the file at `name` for reading; symbolic links are followed as if `root` were the root of all, as for
/// `chroot`.
pub(crate) fn open_in_root(root: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat2(root, name, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        // Kernels before 5.6, and some sandboxes, do not have openat2(2). Then no symbolic link is followed.
        Err(Errno::NOSYS) => open_beneath(root, name.as_bytes(), OFlags::empty()),
        result => result,
    }
}

/// As [`open_beneath`], for a directory in which names are asked for through libc.
pub(crate) fn open_directory(root: BorrowedFd<'_>, relative: &[u8]) -> Result<OwnedFd, Errno> {
    if !device::host::follows_descriptors() {
        return open_beneath(root, relative, OFlags::DIRECTORY);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECTORY;
    let mut directory = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    let parts = relative.split(|byte| *byte == b'/');
    for part in parts.filter(|part| !part.is_empty() && *part != b".") {
        directory = rustix::fs::openat(&directory, part, flags, Mode::empty())?;
    }
    Ok(directory)
}

fn open_once(root: BorrowedFd<'_>, relative: &[u8], more: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | more;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    // Reading leaves no trace in the source where we may say so: only owners and root may.
    for flags in [flags | OFlags::NOATIME, flags] {
        match rustix::fs::openat2(root, relative, flags, Mode::empty(), resolve) {
            Err(Errno::PERM) => {}
            // Kernels before 5.6, and some sandboxes, do not have openat2(2).
            Err(Errno::NOSYS) => break,
            result => return result,
        }
    }
    rustix::fs::openat(root, relative, flags, Mode::empty())
}
