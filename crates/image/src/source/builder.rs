//! Puts sources together into one tree, later ones over earlier ones, and gives the result its lasting order.
//!
//! While it is built, a node keeps its number and a directory lists its names newest first; a name that was removed
//! stays behind as an entry without a node. [`Builder::finish`] sorts the names, numbers the nodes by the order in
//! which the tree is walked, and drops what was replaced.

use std::hash::BuildHasher;

use hashbrown::HashTable;

use super::inputs::Source;
use super::limits;
use super::time::Time;
use super::tree::{
    Attributes, Child, DataExtent, DataKind, NONE, NodeId, S_IFDIR, S_IFMT, SourceTree, TreeEntry,
    TreeNode, halves, join,
};
use super::xattrs::{XattrSet, Xattrs};

type Directories = hashbrown::HashSet<u32, foldhash::fast::FixedState>;

/// What one layer did to directories.
#[derive(Default)]
pub(crate) struct LayerMarks {
    /// Those in which it has nothing below it any more: looked at once only.
    cleared: Directories,
    /// Those that it put something in, and all above them, whether it names them or not.
    entered: Directories,
}

/// A tree under construction.
pub struct Builder {
    pub(crate) tree: SourceTree,
    /// Entry of each name that is in the tree, by directory and name; only while `indexed`.
    index: HashTable<u32>,
    indexed: bool,
    hasher: foldhash::fast::FixedState,
    /// The directory that the last resolved path led to.
    pub(super) last: Option<(u32, Vec<u8>, u32)>,
}

impl TreeNode {
    /// A node of type and mode `mode` without data.
    pub(crate) fn new(mode: u16, source: u16) -> Self {
        Self {
            size: 0,
            key: 0,
            atime: Time::EPOCH,
            mtime: Time::EPOCH,
            ctime: Time::EPOCH,
            uid: 0,
            gid: 0,
            xattrs: XattrSet::EMPTY,
            links: 0,
            mode,
            map: 0,
            source,
            data: DataKind::Empty,
        }
    }

    pub(crate) fn set_attributes(&mut self, attributes: &Attributes) {
        self.mode = self.mode & S_IFMT | attributes.mode & 0o7777;
        self.uid = attributes.uid;
        self.gid = attributes.gid;
        self.atime = attributes.atime;
        self.mtime = attributes.mtime;
        self.ctime = attributes.ctime;
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A tree of a root directory with [`Attributes::DEFAULT_DIRECTORY`].
    #[must_use]
    pub fn new() -> Self {
        let mut tree = SourceTree::default();
        let mut root = TreeNode::new(S_IFDIR, u16::MAX);
        root.set_attributes(&Attributes::DEFAULT_DIRECTORY);
        root.links = 1;
        root.key = join(NONE, 0);
        tree.nodes.push(root);
        Self {
            tree,
            index: HashTable::new(),
            indexed: false,
            hasher: foldhash::fast::FixedState::default(),
            last: None,
        }
    }

    /// Takes `source` in and returns its number.
    pub(crate) fn add_source(&mut self, source: Source) -> Result<u16, String> {
        let number = self.tree.sources.len();
        if number >= limits::SOURCES {
            return Err(format!("more than {} sources and layers", limits::SOURCES));
        }
        self.tree.sources.push(source);
        Ok(number as u16)
    }

    /// Number of entries so far, removed ones included: a mark for [`Builder::clear_older`].
    pub(crate) fn mark(&self) -> usize {
        self.tree.entries.len()
    }

    /// Keeps `name` and returns its place.
    pub(crate) fn add_name(&mut self, name: &[u8]) -> Result<u32, String> {
        let length = u8::try_from(name.len()).map_err(|_| {
            format!(
                "a name of {} bytes is longer than {}",
                name.len(),
                limits::NAME
            )
        })?;
        let at = self.room(name.len() + 1)?;
        self.tree.names.push(length);
        self.tree.names.extend_from_slice(name);
        Ok(at)
    }

    /// Makes `node` a symbolic link to `target`.
    pub(crate) fn set_target(&mut self, node: &mut TreeNode, target: &[u8]) -> Result<(), String> {
        if target.is_empty() || target.contains(&0) {
            return Err("a symbolic link's target is empty or holds a NUL byte".into());
        }
        if target.len() > limits::TARGET {
            return Err(format!(
                "a symbolic link's target of {} bytes is longer than {}",
                target.len(),
                limits::TARGET
            ));
        }
        node.key = u64::from(self.room(target.len())?);
        node.size = target.len() as u64;
        self.tree.names.extend_from_slice(target);
        Ok(())
    }

    fn room(&self, bytes: usize) -> Result<u32, String> {
        let at = self.tree.names.len();
        let end = at
            .checked_add(bytes)
            .and_then(|end| u32::try_from(end).ok());
        if end.is_none_or(|end| end == NONE) {
            return Err("the names of all entries take more than 4 GiB".into());
        }
        Ok(at as u32)
    }

    /// Gives `node` its data extents: within its size, in order, apart.
    pub(crate) fn set_extents(
        &mut self,
        node: &mut TreeNode,
        extents: &[DataExtent],
    ) -> Result<(), String> {
        let tree = &mut self.tree;
        if tree.extents.len() + extents.len() > limits::EXTENTS {
            return Err(format!(
                "sparse files of more than {} data extents",
                limits::EXTENTS
            ));
        }
        tree.maps
            .push((tree.extents.len() as u32, extents.len() as u32));
        tree.extents.extend_from_slice(extents);
        node.map = tree.maps.len() as u32;
        Ok(())
    }

    /// Keeps a set of extended attributes.
    pub(crate) fn intern(&mut self, set: Xattrs) -> Result<XattrSet, String> {
        self.tree.xattrs.intern(set)
    }

    fn hash(hasher: &foldhash::fast::FixedState, parent: u32, name: &[u8]) -> u64 {
        hasher.hash_one((parent, name))
    }

    fn build_index(&mut self) {
        let (tree, hasher) = (&self.tree, &self.hasher);
        self.index.reserve(tree.entries.len(), |_| 0);
        for (number, entry) in tree.entries.iter().enumerate() {
            if entry.node != NONE {
                let hash = Self::hash(hasher, entry.parent, tree.name(entry.name));
                self.index.insert_unique(hash, number as u32, |at| {
                    let entry = &tree.entries[*at as usize];
                    Self::hash(hasher, entry.parent, tree.name(entry.name))
                });
            }
        }
        self.indexed = true;
    }

    /// The entry `name` of directory `parent`.
    fn entry(&mut self, parent: u32, name: &[u8]) -> Option<u32> {
        if !self.indexed {
            self.build_index();
        }
        let tree = &self.tree;
        let same = |at: &u32| {
            let entry = &tree.entries[*at as usize];
            entry.parent == parent && tree.name(entry.name) == name
        };
        self.index
            .find(Self::hash(&self.hasher, parent, name), same)
            .copied()
    }

    /// The node `name` of directory `parent`.
    pub(crate) fn lookup(&mut self, parent: u32, name: &[u8]) -> Option<u32> {
        let entry = self.entry(parent, name)?;
        Some(self.tree.entries[entry as usize].node)
    }

    pub(crate) fn node(&self, id: u32) -> &TreeNode {
        &self.tree.nodes[id as usize]
    }

    pub(crate) fn node_mut(&mut self, id: u32) -> &mut TreeNode {
        &mut self.tree.nodes[id as usize]
    }

    /// Adds a node without a name.
    pub(crate) fn add_node(&mut self, node: TreeNode) -> Result<u32, String> {
        if self.tree.nodes.len() >= limits::ENTRIES {
            return Err(format!("more than {} entries", limits::ENTRIES));
        }
        self.tree.nodes.push(node);
        Ok((self.tree.nodes.len() - 1) as u32)
    }

    /// Gives `node` the name `name`, already kept at `place`, in `parent`, where it must be new.
    pub(crate) fn add_entry(&mut self, parent: u32, place: u32, node: u32) -> Result<(), String> {
        let tree = &mut self.tree;
        if tree.entries.len() >= limits::ENTRIES {
            return Err(format!("more than {} entries", limits::ENTRIES));
        }
        let target = &mut tree.nodes[node as usize];
        if target.links >= limits::LINKS {
            return Err(format!(
                "a file has more than {} names, ext4's limit",
                limits::LINKS
            ));
        }
        target.links += 1;
        if target.is_directory() {
            target.size = join(parent, place);
        }
        let (next, count) = halves(tree.nodes[parent as usize].key);
        let number = tree.entries.len() as u32;
        tree.nodes[parent as usize].key = join(number, count);
        tree.entries.push(TreeEntry {
            parent,
            node,
            name: place,
            next,
        });
        if self.indexed {
            let (tree, hasher) = (&self.tree, &self.hasher);
            let rehash = |at: &u32| {
                let entry = &tree.entries[*at as usize];
                Self::hash(hasher, entry.parent, tree.name(entry.name))
            };
            let hash = Self::hash(hasher, parent, tree.name(place));
            self.index.insert_unique(hash, number, rehash);
        }
        Ok(())
    }

    /// Puts `node` at `name` in `parent`: a directory over a directory changes its attributes and keeps what is in it;
    /// anything else takes the place of what was there.
    pub(crate) fn put(
        &mut self,
        parent: u32,
        name: &[u8],
        mut node: TreeNode,
    ) -> Result<u32, String> {
        if let Some(old) = self.lookup(parent, name) {
            if node.is_directory() && self.node(old).is_directory() {
                self.overlay(old, &node);
                return Ok(old);
            }
            self.remove(parent, name);
        }
        if node.is_directory() {
            node.key = join(NONE, 0);
        }
        let place = self.add_name(name)?;
        let id = self.add_node(node)?;
        self.add_entry(parent, place, id)?;
        Ok(id)
    }

    /// Gives directory `old` the attributes of `node`.
    pub(crate) fn overlay(&mut self, old: u32, node: &TreeNode) {
        let old = self.node_mut(old);
        old.mode = node.mode;
        old.uid = node.uid;
        old.gid = node.gid;
        old.atime = node.atime;
        old.mtime = node.mtime;
        old.ctime = node.ctime;
        old.xattrs = node.xattrs;
        old.source = node.source;
    }

    /// Gives the node `target` another name.
    pub(crate) fn link(&mut self, parent: u32, name: &[u8], target: u32) -> Result<(), String> {
        if self.node(target).is_directory() {
            return Err("a hard link to a directory".into());
        }
        if let Some(old) = self.lookup(parent, name) {
            if old == target {
                return Ok(());
            }
            self.remove(parent, name);
        }
        if self.node(target).links == 0 {
            return Err("a hard link takes the place of the directory its target is in".into());
        }
        let place = self.add_name(name)?;
        self.add_entry(parent, place, target)
    }

    /// Removes `name` from `parent`, with all that is in it.
    pub(crate) fn remove(&mut self, parent: u32, name: &[u8]) {
        let Some(entry) = self.entry(parent, name) else {
            return;
        };
        let mut directories = Vec::new();
        self.drop_entry(entry, &mut directories);
        while let Some(directory) = directories.pop() {
            self.empty(directory, &mut directories);
        }
    }

    /// Drops all names of `directory`; the directories among them are added to `more`.
    fn empty(&mut self, directory: u32, more: &mut Vec<u32>) {
        let (mut at, count) = halves(self.node(directory).key);
        self.node_mut(directory).key = join(NONE, count);
        while at != NONE {
            let next = self.tree.entries[at as usize].next;
            if self.tree.entries[at as usize].node != NONE {
                self.drop_entry(at, more);
            }
            at = next;
        }
    }

    fn drop_entry(&mut self, number: u32, directories: &mut Vec<u32>) {
        self.last = None;
        let entry = self.tree.entries[number as usize];
        if self.indexed {
            let hash = Self::hash(&self.hasher, entry.parent, self.tree.name(entry.name));
            if let Ok(found) = self.index.find_entry(hash, |at| *at == number) {
                found.remove();
            }
        }
        self.tree.entries[number as usize].node = NONE;
        let node = self.node_mut(entry.node);
        node.links -= 1;
        if node.is_directory() {
            directories.push(entry.node);
        }
    }

    /// Removes from `directory` (or only its name `name`) what was put there before `mark` and not touched by `source`
    /// since: what a whiteout of a layer hides. A directory that the layer put again, or put something in, stays, and
    /// its own entries are removed by the same rule.
    pub(crate) fn clear_older(
        &mut self,
        directory: u32,
        name: Option<&[u8]>,
        mark: usize,
        source: u16,
        marks: &mut LayerMarks,
    ) {
        let mut doomed = Vec::new();
        let mut walk = Vec::new();
        match name {
            Some(name) => {
                let Some(entry) = self.entry(directory, name) else {
                    return;
                };
                self.judge(entry, (mark, source), marks, &mut doomed, &mut walk);
            }
            None => walk.push(directory),
        }
        while let Some(directory) = walk.pop() {
            if !marks.cleared.insert(directory) {
                continue;
            }
            let (mut at, count) = halves(self.node(directory).key);
            let mut kept = NONE;
            while at != NONE {
                let TreeEntry { next, node, .. } = self.tree.entries[at as usize];
                if node != NONE && !self.judge(at, (mark, source), marks, &mut doomed, &mut walk) {
                    // The list keeps only what stays, so that clearing it again costs nothing.
                    self.tree.entries[at as usize].next = kept;
                    kept = at;
                }
                at = next;
            }
            self.node_mut(directory).key = join(kept, count);
        }
        let mut directories = Vec::new();
        for entry in doomed {
            self.drop_entry(entry, &mut directories);
        }
        while let Some(directory) = directories.pop() {
            self.empty(directory, &mut directories);
        }
    }

    /// Notes that a layer puts something in `directory`.
    pub(crate) fn enter(&self, directory: u32, marks: &mut LayerMarks) {
        let mut at = directory;
        // The root is its own parent.
        while marks.entered.insert(at) {
            at = halves(self.node(at).size).0;
        }
    }

    /// Whether entry `number` is older than the layer; if it is not and a directory, `walk` gets it.
    fn judge(
        &self,
        number: u32,
        (mark, source): (usize, u16),
        marks: &LayerMarks,
        doomed: &mut Vec<u32>,
        walk: &mut Vec<u32>,
    ) -> bool {
        let entry = self.tree.entries[number as usize];
        let node = self.node(entry.node);
        let stays =
            number as usize >= mark || node.source == source || marks.entered.contains(&entry.node);
        if !stays {
            doomed.push(number);
        } else if node.is_directory() {
            walk.push(entry.node);
        }
        !stays
    }
}

impl Builder {
    /// Gives everything to one owner and group.
    pub(crate) fn own(&mut self, uid: u32, gid: u32) {
        for node in &mut self.tree.nodes {
            (node.uid, node.gid) = (uid, gid);
        }
    }

    /// The tree, in its lasting order.
    #[must_use]
    pub fn finish(mut self) -> SourceTree {
        self.index = HashTable::new();
        let tree = &mut self.tree;
        let mut numbers = vec![NONE; tree.nodes.len()];
        let mut all: Vec<Child> = Vec::with_capacity(tree.entries.len());
        let mut next = 1_u32;
        numbers[0] = 0;
        let mut directories = vec![0_u32];
        while let Some(directory) = directories.pop() {
            if numbers[directory as usize] == NONE {
                numbers[directory as usize] = next;
                next += 1;
            }
            let first = all.len();
            tree.children_of(directory, &mut all);
            let children = &all[first..];
            tree.nodes[directory as usize].key = join(first as u32, children.len() as u32);
            for entry in children {
                if !tree.nodes[entry.node as usize].is_directory()
                    && numbers[entry.node as usize] == NONE
                {
                    numbers[entry.node as usize] = next;
                    next += 1;
                }
            }
            let below = children.iter().rev().map(|entry| entry.node);
            directories.extend(below.filter(|node| tree.nodes[*node as usize].is_directory()));
        }
        tree.entries = Vec::new();
        for child in &mut all {
            child.node = numbers[child.node as usize];
        }
        tree.children = all;
        tree.renumber(numbers, next);
        self.tree
    }
}

impl SourceTree {
    /// Appends the entries of `directory`, sorted by name, to `all`.
    pub(super) fn children_of(&self, directory: u32, all: &mut Vec<Child>) {
        let first = all.len();
        let (mut at, _) = halves(self.nodes[directory as usize].key);
        while at != NONE {
            let entry = self.entries[at as usize];
            if entry.node != NONE {
                all.push(Child {
                    name: entry.name,
                    node: entry.node,
                });
            }
            at = entry.next;
        }
        let children = &mut all[first..];
        // They were linked newest first and often come sorted.
        children.reverse();
        if !children.is_sorted_by(|a, b| self.name(a.name) < self.name(b.name)) {
            children.sort_unstable_by(|a, b| self.name(a.name).cmp(self.name(b.name)));
        }
    }

    /// Moves each node to its number in place; those without one (from `live` on) are dropped.
    fn renumber(&mut self, mut numbers: Vec<u32>, live: u32) {
        for node in &mut self.nodes {
            if node.is_directory() {
                let (parent, name) = halves(node.size);
                let parent = numbers[parent as usize];
                node.size = join(parent, name);
            }
        }
        let mut dead = live;
        for number in &mut numbers {
            if *number == NONE {
                *number = dead;
                dead += 1;
            }
        }
        for at in 0..numbers.len() {
            while numbers[at] as usize != at {
                let to = numbers[at] as usize;
                self.nodes.swap(at, to);
                numbers.swap(at, to);
            }
        }
        self.nodes.truncate(live as usize);
        self.nodes.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    /// Numbers the sets of extended attributes by first use in the order of nodes, so that the numbers do not depend on
    /// which source was read first.
    pub(crate) fn number_xattrs(&mut self) {
        let mut numbers = vec![NONE; self.xattrs.len()];
        let mut order = vec![XattrSet::EMPTY];
        numbers[0] = 0;
        for node in &mut self.nodes {
            let number = &mut numbers[node.xattrs.0 as usize];
            if *number == NONE {
                *number = order.len() as u32;
                order.push(node.xattrs);
            }
            node.xattrs = XattrSet(*number);
        }
        self.xattrs.reorder(&order);
    }

    /// Number of names in the tree.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.children.len()
    }

    /// The node that comes first in directory `id` with `name`.
    #[must_use]
    pub fn child(&self, id: NodeId, name: &[u8]) -> Option<NodeId> {
        self.children(id)
            .find(|(other, _)| *other == name)
            .map(|(_, node)| node)
    }
}
