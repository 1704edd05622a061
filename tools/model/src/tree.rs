//! The state of the model: nodes by number, the names in directories, and the files that are open.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::{Device, Errno, FileBytes, ModelPath, OpTarget};

/// A node's number in the model; never reused, and not the inode number of any image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModelId(pub u64);

impl ModelId {
    /// The root directory.
    pub const ROOT: ModelId = ModelId(0);
}

/// What a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File(FileBytes),
    /// A directory: its names, without `.` and `..`.
    Directory(BTreeMap<Vec<u8>, ModelId>),
    /// A symbolic link: its target.
    Symlink(Vec<u8>),
    /// A device, pipe or socket.
    Device(Device),
}

/// One inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelNode {
    /// The node's type and contents.
    pub kind: Kind,
    /// Permission bits, within 0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The link count: the number of names; for a directory, 2 plus the number of its subdirectories.
    pub links: u32,
    /// Whether the node was made by `O_TMPFILE` and has had no name since, so that it may be linked without having one.
    pub linkable: bool,
    /// Extended attributes by their full names, such as `user.a`.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A whole file system. Clones share the nodes that neither of them has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelTree {
    pub(crate) nodes: BTreeMap<ModelId, Rc<ModelNode>>,
    pub(crate) slots: BTreeMap<u8, ModelId>,
    next: u64,
}

impl Default for ModelTree {
    fn default() -> ModelTree {
        ModelTree::new()
    }
}

impl ModelTree {
    /// An empty file system: a root directory of mode 0755.
    #[must_use]
    pub fn new() -> ModelTree {
        let mut tree = ModelTree {
            nodes: BTreeMap::new(),
            slots: BTreeMap::new(),
            next: 0,
        };
        let root = tree.add(Kind::Directory(BTreeMap::new()), 0o755);
        debug_assert_eq!(root, ModelId::ROOT);
        tree
    }

    /// The node with this number.
    ///
    /// # Panics
    /// If the node does not exist. Callers have the number from this tree.
    #[must_use]
    pub fn node(&self, id: ModelId) -> &ModelNode {
        &self.nodes[&id]
    }

    /// All nodes, including open files without a name.
    pub fn nodes(&self) -> impl Iterator<Item = (ModelId, &ModelNode)> {
        self.nodes.iter().map(|(id, node)| (*id, &**node))
    }

    /// The names in a directory with their nodes, in byte order; none if the node is not a directory.
    pub fn children(&self, id: ModelId) -> impl Iterator<Item = (&[u8], ModelId)> {
        let names = match &self.node(id).kind {
            Kind::Directory(names) => Some(names),
            _ => None,
        };
        names.into_iter().flatten().map(|(name, id)| (&**name, *id))
    }

    /// Every path in the tree with its node, level by level from the root; the names of a directory in byte order.
    #[must_use]
    pub fn walk(&self) -> Vec<(ModelPath, ModelId)> {
        let mut found = vec![(ModelPath(Vec::new()), ModelId::ROOT)];
        let mut next = 0;
        while next < found.len() {
            let (path, id) = found[next].clone();
            found.extend(
                self.children(id)
                    .map(|(name, child)| (path.join(name), child)),
            );
            next += 1;
        }
        found
    }

    /// The node that a path names. A symbolic link at the path's end is not followed. One before that gives `ENOENT`,
    /// because the generator makes no link whose target exists.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
    pub fn lookup(&self, path: &ModelPath) -> Result<ModelId, Errno> {
        let mut id = ModelId::ROOT;
        for name in &path.0 {
            let names = self.names(id)?;
            if name.len() > 255 {
                return Err(Errno::ENAMETOOLONG);
            }
            id = *names.get(name).ok_or(Errno::ENOENT)?;
        }
        Ok(id)
    }

    /// The names in a node that a path leads through.
    ///
    /// # Errors
    /// `ENOENT` for a symbolic link, `ENOTDIR` for anything else that is not a directory.
    pub(crate) fn names(&self, id: ModelId) -> Result<&BTreeMap<Vec<u8>, ModelId>, Errno> {
        match &self.node(id).kind {
            Kind::Directory(names) => Ok(names),
            Kind::Symlink(_) => Err(Errno::ENOENT),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The node that an operation works on.
    ///
    /// # Errors
    /// Those of [`ModelTree::lookup`] for a path, and `EBADF` for a slot without an open file.
    pub fn find(&self, target: &OpTarget) -> Result<ModelId, Errno> {
        match target {
            OpTarget::Path(path) => self.lookup(path),
            OpTarget::Slot(slot) => self.slots.get(slot).copied().ok_or(Errno::EBADF),
        }
    }

    pub(crate) fn add(&mut self, kind: Kind, mode: u16) -> ModelId {
        let id = ModelId(self.next);
        self.next += 1;
        let links = if matches!(kind, Kind::Directory(_)) {
            2
        } else {
            1
        };
        let node = ModelNode {
            kind,
            mode,
            uid: 0,
            gid: 0,
            links,
            linkable: false,
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(id, Rc::new(node));
        id
    }

    /// The node with this number, to be changed. It is copied first if another clone shares it.
    pub(crate) fn change(&mut self, id: ModelId) -> &mut ModelNode {
        // Callers have just got the id from `lookup` or `add`.
        Rc::make_mut(self.nodes.get_mut(&id).expect("the node exists"))
    }

    /// Removes a node if neither a name nor a slot leads to it.
    pub(crate) fn release(&mut self, id: ModelId) {
        if self.node(id).links == 0 && !self.slots.values().any(|open| *open == id) {
            self.nodes.remove(&id);
        }
    }

    /// Adds a node that was found on an image under a path whose parents exist. `node.links` is ignored, because the
    /// tree counts names as they are added.
    ///
    /// # Errors
    /// Those of [`ModelTree::apply`] for a creation.
    pub fn put(&mut self, path: &ModelPath, node: ModelNode) -> Result<ModelId, Errno> {
        let id = if path.0.is_empty() {
            ModelId::ROOT
        } else {
            self.create(path, node.mode, node.kind)?
        };
        let found = self.change(id);
        (found.mode, found.uid, found.gid, found.xattrs) =
            (node.mode, node.uid, node.gid, node.xattrs);
        Ok(id)
    }

    /// Whether no operation has touched `id` since one of the two trees was cloned from the other: they share the node,
    /// or neither has it.
    pub(crate) fn is_untouched(&self, other: &ModelTree, id: ModelId) -> bool {
        match (self.nodes.get(&id), other.nodes.get(&id)) {
            (Some(mine), Some(theirs)) => Rc::ptr_eq(mine, theirs),
            (None, None) => true,
            _ => false,
        }
    }

    /// The node with this number, if it exists.
    pub(crate) fn get(&self, id: ModelId) -> Option<&ModelNode> {
        self.nodes.get(&id).map(|node| &**node)
    }

    /// The tree after a crash and recovery: no file is open, and nodes without a name are deleted.
    #[must_use]
    pub fn recovered(&self) -> ModelTree {
        let mut tree = self.clone();
        tree.slots.clear();
        tree.nodes.retain(|_, node| node.links > 0);
        tree
    }
}
