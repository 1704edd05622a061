//! Where a tree's file data comes from, and how it is read again.
//!
//! A [`FileReader`] may be used by one thread; any number of them may be open at once. Data that an archive yields only
//! in its own order is passed to a [`DataSink`].

use std::fs::File;
use std::io;
use std::path::PathBuf;

use device::host;

use super::error::{SinkError, SourceError};
use super::inputs::{Archive, Source};
use super::system::beneath::{Root, open_file, open_folder};
use super::tree::{DataExtent, DataKind, NodeId, SourceId, SourceTree, halves};

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

/// The directory of the file opened last, by one thread.
#[derive(Debug, Default)]
pub struct Nearby {
    /// Source and number of the directory.
    place: Option<(u16, u32)>,
    /// Open from the second file on.
    folder: Option<Root>,
}

/// Reads one file's data.
pub struct FileReader<'t> {
    tree: &'t SourceTree,
    node: NodeId,
    file: Result<File, &'t File>,
    /// Archives: the extents with the offset of their bytes. Directory sources: none, offsets are the file's own.
    packed: Option<Vec<(DataExtent, u64)>>,
}

impl SourceTree {
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
                let file = self
                    .open_path(root, node.source, halves(node.key), nearby)
                    .map_err(|error| self.io(id, "open", error))?;
                Ok(FileReader {
                    tree: self,
                    node: id,
                    file: Ok(file),
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
                Ok(FileReader {
                    tree: self,
                    node: id,
                    file: Err(&archive.file),
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
        root: &Root,
        source: u16,
        (directory, name): (u32, u32),
        nearby: &mut Nearby,
    ) -> io::Result<File> {
        let file = self.name(name);
        let known = nearby.place == Some((source, directory));
        if directory == 0 {
            return open_file(root, file);
        }
        if !known {
            *nearby = Nearby {
                place: Some((source, directory)),
                folder: None,
            };
            let relative = self.relative(source, directory, name);
            return open_file(root, &relative);
        }
        if let Some(folder) = &nearby.folder {
            return open_file(folder, file);
        }
        let relative = self.relative_directory(source, directory);
        let folder = open_folder(root, &relative)?;
        let opened = open_file(&folder, file);
        nearby.folder = Some(folder);
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
        let node = &self.nodes[id.index()];
        match (&self.sources[usize::from(node.source)], node.data) {
            (Source::Directory { path, .. }, DataKind::Path) => {
                let (directory, name) = halves(node.key);
                let relative = self.relative(node.source, directory, name);
                path.join(host::name(&relative))
            }
            (Source::Archive(Archive { label, .. }), _) => {
                let path = self.path(id);
                PathBuf::from(format!("{label}:{}", String::from_utf8_lossy(&path)))
            }
            _ => PathBuf::from(host::name(&self.path(id)).into_owned()),
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
    /// Fills `buf` from byte `offset` of the file. The range must lie within one extent of [`SourceTree::extents`].
    ///
    /// # Errors
    /// When the file can't be read or is shorter than it was.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let mut at = self.position(offset);
        let mut rest = buf;
        while !rest.is_empty() {
            match host::read_at(self.file(), rest, at) {
                Ok(0) => return Err(self.changed("became shorter")),
                Ok(count) => {
                    at += count as u64;
                    rest = &mut rest[count..];
                }
                Err(error) => return Err(self.tree.io(self.node, "read", error)),
            }
        }
        Ok(())
    }

    /// The file that holds the bytes.
    fn file(&self) -> &File {
        match &self.file {
            Ok(owned) => owned,
            Err(borrowed) => borrowed,
        }
    }

    /// The position, in the file with the bytes, of byte `offset` of the entry. `offset` is within an extent.
    fn position(&self, offset: u64) -> u64 {
        let Some(packed) = &self.packed else {
            return offset;
        };
        let after = packed.partition_point(|(extent, _)| extent.offset <= offset);
        match after.checked_sub(1).map(|index| packed[index]) {
            Some((extent, at)) => at + (offset - extent.offset),
            None => offset,
        }
    }

    /// Checks that the file still has the size it was scanned with. The caller calls this after it has read the whole
    /// file, and also before it reads a file that takes long.
    ///
    /// # Errors
    /// If the file's size or time of change differs, or it is not a regular file any more.
    pub fn check(&self) -> Result<(), SourceError> {
        if self.packed.is_some() {
            return Ok(());
        }
        let found = self.file().metadata();
        let found = found.map_err(|error| self.tree.io(self.node, "read", error))?;
        let size = self.tree.nodes[self.node.index()].size;
        if !found.is_file() {
            return Err(self.changed("was replaced"));
        }
        let now = found.len();
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
