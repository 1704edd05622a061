//! The tree that an image will hold, in memory: about 80 bytes for each entry, in addition to its name.
//!
//! A finished [`SourceTree`] is the same for the same input, whatever order the input was listed in and however many
//! threads read it: children are in byte order of their names, and nodes are numbered so that a directory is
//! followed by its other children, and these by its subdirectories, each with all that is under it. Root is 0.
//!
//! It changes only through [`super::builder::Builder`]; afterwards it is read by any number of threads.

use super::time::Time;
use super::xattrs::{XattrSet, XattrTable};

/// A node's number: an index, dense from 0 (the root) in a finished tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The root directory.
    pub const ROOT: Self = Self(0);

    /// The number as an index of a table with one item a node.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which of the inputs something came from: a directory, an archive, or one layer of an OCI image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceId(pub u16);

/// What kind of inode a node becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind<'a> {
    /// A directory; see [`SourceTree::children`].
    Directory,
    /// A regular file of `size` bytes; see [`SourceTree::data`] and [`SourceTree::extents`].
    File {
        /// Bytes, holes included.
        size: u64,
    },
    /// A symbolic link and its target (1 to [`super::limits::TARGET`] bytes, no NUL).
    Symlink(&'a [u8]),
    /// A character device.
    CharDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// What an inode carries beside its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Permission bits and setuid, setgid, sticky: within 0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
}

impl Attributes {
    /// What a directory that no source describes gets: mode 0755, owner 0:0, all times 1970.
    pub const DEFAULT_DIRECTORY: Self = Self::new(0o755, 0, 0, Time::EPOCH);

    /// Attributes with one time for all three.
    #[must_use]
    pub const fn new(mode: u16, uid: u32, gid: u32, time: Time) -> Self {
        Self {
            mode,
            uid,
            gid,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }
}

/// A run of bytes of a file that are not a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataExtent {
    /// First byte, from the file's start.
    pub offset: u64,
    /// Bytes; never 0.
    pub len: u64,
}

/// Where a regular file's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// Nowhere: the file has no bytes (its size may still be more than 0: one hole).
    Empty,
    /// A file of a directory source: [`SourceTree::open`] gives a reader, any number of times, in any order.
    Path(SourceId),
    /// A range of an uncompressed archive: [`SourceTree::open`] works too.
    Range {
        /// The archive.
        source: SourceId,
        /// Where in the archive's file the bytes begin (holes are not stored).
        offset: u64,
    },
    /// Item `index` of an archive that can only be read from its start: [`SourceTree::stream`] gives all of them in
    /// order, or the sink got it during the scan.
    Stream {
        /// The archive.
        source: SourceId,
        /// Number of the item, rising in the order of the archive.
        index: u32,
    },
}

pub(crate) const NONE: u32 = u32::MAX;

/// Where a node's bytes come from, without the source's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum DataKind {
    Empty,
    Path,
    Range,
    Stream,
}

/// One inode, 64 bytes.
#[derive(Clone, Copy)]
pub(crate) struct TreeNode {
    /// Files: size. Directories: parent (high half) and offset of the name (low half). Symlinks: target's length.
    pub size: u64,
    /// Files: offset, stream index, or directory (high half) and name (low half) within a directory source.
    /// Directories: first child's entry (high half) and, in a finished tree, number of children (low half).
    /// Symlinks: offset of the target. Devices: major (high half) and minor (low half).
    pub key: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub uid: u32,
    pub gid: u32,
    pub xattrs: XattrSet,
    /// Names of this node; 0 when it was replaced. Directories: 1 while they are part of the tree.
    pub links: u16,
    /// Type and permission bits as in `st_mode`.
    pub mode: u16,
    /// Index of the sparse map plus one, or 0 when the file has no holes.
    pub map: u32,
    /// The source that wrote this node last.
    pub source: u16,
    pub data: DataKind,
}

const _: () = assert!(size_of::<TreeNode>() == 64);

/// One name.
#[derive(Clone, Copy)]
pub(crate) struct TreeEntry {
    pub parent: u32,
    /// `NONE` when the name was removed.
    pub node: u32,
    /// Offset in the names: a length byte, then the name.
    pub name: u32,
    /// The next entry of the same directory while the tree is built.
    pub next: u32,
}

/// One name of a finished tree.
#[derive(Clone, Copy)]
pub(crate) struct Child {
    /// As [`TreeEntry::name`].
    pub name: u32,
    pub node: u32,
}

pub(crate) const S_IFMT: u16 = 0o170_000;
pub(crate) const S_IFSOCK: u16 = 0o140_000;
pub(crate) const S_IFLNK: u16 = 0o120_000;
pub(crate) const S_IFREG: u16 = 0o100_000;
pub(crate) const S_IFBLK: u16 = 0o060_000;
pub(crate) const S_IFDIR: u16 = 0o040_000;
pub(crate) const S_IFCHR: u16 = 0o020_000;
pub(crate) const S_IFIFO: u16 = 0o010_000;

pub(crate) const fn halves(value: u64) -> (u32, u32) {
    ((value >> 32) as u32, (value & 0xffff_ffff) as u32)
}

pub(crate) const fn join(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

impl TreeNode {
    pub(crate) fn is_directory(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }
}

/// A tree of inodes and names, ready to be built into an image.
#[derive(Default)]
pub struct SourceTree {
    pub(crate) nodes: Vec<TreeNode>,
    /// While the tree is built.
    pub(crate) entries: Vec<TreeEntry>,
    /// When it is finished: by directory, in order of the names.
    pub(crate) children: Vec<Child>,
    /// Names (length byte first) and symlink targets.
    pub(crate) names: Vec<u8>,
    pub(crate) maps: Vec<(u32, u32)>,
    pub(crate) extents: Vec<DataExtent>,
    pub(crate) xattrs: XattrTable,
    pub(crate) sources: Vec<super::inputs::Source>,
    /// How many of the nodes were made for the image, and come from no source and no option.
    pub(crate) made: usize,
    /// What is odd about the sources, and was read nevertheless.
    pub(crate) warnings: Vec<String>,
}

impl SourceTree {
    /// Number of inodes, the root included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What is odd about the sources, and was read nevertheless: a sentence each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether there is nothing but the root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() <= 1
    }

    /// All nodes in order of their numbers.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// What `id` is.
    #[must_use]
    pub fn kind(&self, id: NodeId) -> Kind<'_> {
        let node = &self.nodes[id.index()];
        let (major, minor) = halves(node.key);
        match node.mode & S_IFMT {
            S_IFDIR => Kind::Directory,
            S_IFREG => Kind::File { size: node.size },
            S_IFLNK => Kind::Symlink(&self.names[node.key as usize..][..node.size as usize]),
            S_IFCHR => Kind::CharDevice { major, minor },
            S_IFBLK => Kind::BlockDevice { major, minor },
            S_IFIFO => Kind::Fifo,
            _ => Kind::Socket,
        }
    }

    /// Whether `id` is a directory.
    #[must_use]
    pub fn is_directory(&self, id: NodeId) -> bool {
        self.nodes[id.index()].is_directory()
    }

    /// Type and permission bits as an inode's mode field holds them.
    #[must_use]
    pub fn mode(&self, id: NodeId) -> u16 {
        self.nodes[id.index()].mode
    }

    /// Mode, owner and times of `id`.
    #[must_use]
    pub fn attributes(&self, id: NodeId) -> Attributes {
        let node = &self.nodes[id.index()];
        Attributes {
            mode: node.mode & 0o7777,
            uid: node.uid,
            gid: node.gid,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
        }
    }

    /// How many names `id` has (for directories: 1; counting `.` and `..` is the builder's business).
    #[must_use]
    pub fn links(&self, id: NodeId) -> u32 {
        u32::from(self.nodes[id.index()].links)
    }

    /// The extended attributes of `id`, in byte order of their full names (`security.capability`, ...). POSIX ACLs
    /// are in the kernel's xattr form (version 2), as `system.posix_acl_access` and `system.posix_acl_default`.
    pub fn xattrs(&self, id: NodeId) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.xattrs.get(self.nodes[id.index()].xattrs)
    }

    /// Which set of extended attributes `id` has: equal numbers mean equal sets, and the empty set is
    /// [`XattrSet::EMPTY`].
    #[must_use]
    pub fn xattr_set(&self, id: NodeId) -> XattrSet {
        self.nodes[id.index()].xattrs
    }

    /// Names and nodes in directory `id`, in byte order of the names; nothing for other kinds.
    pub fn children(&self, id: NodeId) -> impl ExactSizeIterator<Item = (&[u8], NodeId)> + Clone {
        let node = &self.nodes[id.index()];
        let (first, count) = if node.is_directory() {
            halves(node.key)
        } else {
            (0, 0)
        };
        let first = first as usize;
        let children = &self.children[first..first + count as usize];
        children
            .iter()
            .map(|child| (self.name(child.name), NodeId(child.node)))
    }

    /// The name and node of number `index` of [`SourceTree::children`] of directory `id`.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn child_at(&self, id: NodeId, index: usize) -> (&[u8], NodeId) {
        let (first, _) = halves(self.nodes[id.index()].key);
        let child = self.children[first as usize + index];
        (self.name(child.name), NodeId(child.node))
    }

    /// The directory that holds directory `id`; the root is in itself. For other kinds the directory of the first
    /// name in the tree's order.
    #[must_use]
    pub fn parent(&self, id: NodeId) -> NodeId {
        if self.is_directory(id) {
            return NodeId(halves(self.nodes[id.index()].size).0);
        }
        // A directory is followed by its other children before any directory comes.
        let before = self.nodes[..id.index()]
            .iter()
            .rposition(TreeNode::is_directory);
        NodeId(before.unwrap_or(0) as u32)
    }

    /// The path of `id` from the root, with a leading `/`: for messages. The first name when there are several.
    #[must_use]
    pub fn path(&self, id: NodeId) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut at = id;
        if !self.is_directory(id) {
            at = self.parent(id);
            let found = self.children(at).find(|(_, node)| *node == id);
            parts.push(found.map_or(&b"?"[..], |(name, _)| name));
        }
        while at != NodeId::ROOT {
            let (parent, name) = halves(self.nodes[at.index()].size);
            parts.push(self.name(name));
            at = NodeId(parent);
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// Finds the node at `path` (components divided by `/`; symlinks are not followed).
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<NodeId> {
        let mut at = NodeId::ROOT;
        for part in path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
        {
            let node = &self.nodes[at.index()];
            if !node.is_directory() {
                return None;
            }
            let (first, count) = halves(node.key);
            let children = &self.children[first as usize..][..count as usize];
            let index = children
                .binary_search_by(|child| self.name(child.name).cmp(part))
                .ok()?;
            at = NodeId(children[index].node);
        }
        Some(at)
    }

    /// Where the bytes of file `id` are; [`Data::Empty`] for other kinds.
    #[must_use]
    pub fn data(&self, id: NodeId) -> Data {
        let node = &self.nodes[id.index()];
        let source = SourceId(node.source);
        match node.data {
            DataKind::Empty => Data::Empty,
            DataKind::Path => Data::Path(source),
            DataKind::Range => Data::Range {
                source,
                offset: node.key,
            },
            DataKind::Stream => Data::Stream {
                source,
                index: halves(node.key).1,
            },
        }
    }

    /// The runs of file `id` that are not holes, in order and apart, all below its size. A file without holes has one
    /// run (none when it is empty).
    pub fn extents(&self, id: NodeId) -> impl ExactSizeIterator<Item = DataExtent> + Clone + '_ {
        let node = &self.nodes[id.index()];
        let whole = DataExtent {
            offset: 0,
            len: node.size,
        };
        let (runs, dense): (&[DataExtent], usize) = if node.mode & S_IFMT != S_IFREG {
            (&[], 0)
        } else if let Some(map) = node.map.checked_sub(1) {
            let (first, count) = self.maps[map as usize];
            (&self.extents[first as usize..][..count as usize], 0)
        } else {
            (&[], usize::from(node.size > 0))
        };
        // One of the two is always empty.
        (0..runs.len() + dense).map(move |index| runs.get(index).copied().unwrap_or(whole))
    }

    /// Whether file `id` has holes.
    #[must_use]
    pub fn is_sparse(&self, id: NodeId) -> bool {
        let node = &self.nodes[id.index()];
        node.mode & S_IFMT == S_IFREG && node.map != 0
    }

    /// Bytes of file `id` outside its holes.
    #[must_use]
    pub fn data_bytes(&self, id: NodeId) -> u64 {
        self.extents(id).map(|extent| extent.len).sum()
    }

    pub(crate) fn name(&self, offset: u32) -> &[u8] {
        let at = offset as usize;
        &self.names[at + 1..][..usize::from(self.names[at])]
    }
}
