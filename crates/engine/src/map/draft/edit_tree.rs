//! An extent tree while it is edited: insertion with merging and splitting, removal, growth from the root in the inode
//! and back into it.
//!
//! Keys of index entries only separate while the draft is edited (all blocks below an entry are at or behind its key,
//! the first one's aside); [`TreeDraft::finish`] makes them exact and drops empty nodes. No recursion: a path is at
//! most six nodes.

use std::ops::Range;

use ondisk::extent::{
    self, Expect, Extent, ExtentEntries, ExtentIndex, MAX_DEPTH, MAX_LEN, ROOT_ENTRIES,
};
use ondisk::inode::BLOCK_AREA;
use ondisk::map::Run;
use ondisk::{FsBlock, LBlock};

use super::{Budget, Ground, Home, Outcome};
use crate::core::Error;
use crate::map::walk::read_node;

#[derive(Clone, Copy)]
enum Link {
    /// Not read.
    Disk(FsBlock),
    /// In the draft.
    Node(usize),
}

#[derive(Clone, Copy)]
struct Child {
    first: u32,
    link: Link,
}

enum Items {
    Extents(Vec<Extent>),
    Children(Vec<Child>),
}

impl Items {
    fn of(entries: ExtentEntries<'_>) -> Items {
        match entries {
            ExtentEntries::Extents(extents) => Items::Extents(extents.to_vec()),
            ExtentEntries::Indices(indices) => {
                let child = |index: &ExtentIndex| Child {
                    first: index.block(),
                    link: Link::Disk(index.leaf()),
                };
                Items::Children(indices.iter().map(child).collect())
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Items::Extents(extents) => extents.len(),
            Items::Children(children) => children.len(),
        }
    }

    fn first(&self) -> Option<u32> {
        match self {
            Items::Extents(extents) => extents.first().map(Extent::block),
            Items::Children(children) => children.first().map(|child| child.first),
        }
    }

    fn split_off(&mut self, at: usize) -> Items {
        match self {
            Items::Extents(extents) => Items::Extents(extents.split_off(at)),
            Items::Children(children) => Items::Children(children.split_off(at)),
        }
    }

    fn insert(&mut self, at: usize, item: Item) {
        match (self, item) {
            (Items::Extents(extents), Item::Extent(extent)) => extents.insert(at, extent),
            (Items::Children(children), Item::Child(child)) => children.insert(at, child),
            // A path goes down one level a step, and entries are put into the level they came from.
            _ => unreachable!("an entry of another level"),
        }
    }
}

#[derive(Clone, Copy)]
enum Item {
    Extent(Extent),
    Child(Child),
}

struct Node<'a> {
    home: Home<'a>,
    depth: u16,
    items: Items,
    is_dirty: bool,
    is_gone: bool,
}

/// From the root to a leaf: nodes, and the place in each.
struct Path {
    steps: Vec<(usize, usize)>,
    /// The logical block at which the next leaf begins.
    end: u64,
}

/// The tree; node 0 is the root.
pub(super) struct TreeDraft<'a> {
    pub(super) ground: Ground<'a>,
    nodes: Vec<Node<'a>>,
}

fn longest(unwritten: bool) -> u64 {
    u64::from(MAX_LEN) - u64::from(unwritten)
}

/// The extent of a piece that is no longer than one and ends within 2^32 blocks.
fn extent_of(piece: Run) -> Extent {
    let (logical, len) = (piece.logical as u32, piece.len as u16);
    Extent::new(LBlock(logical), len, piece.start, piece.unwritten)
}

/// Both as one extent, if they are one run.
fn join(left: &Extent, right: &Extent) -> Option<Extent> {
    let (mut left, right) = (Run::from(left), Run::from(right));
    let follows = left.is_continued_by(&right);
    left.len += right.len;
    (follows && left.len <= longest(left.unwritten)).then(|| extent_of(left))
}

impl<'a> TreeDraft<'a> {
    pub(super) fn new(ground: Ground<'a>, root: &[u8; BLOCK_AREA]) -> Result<TreeDraft<'a>, Error> {
        let expect = Expect::root(ground.mounted.volume().blocks());
        let node =
            extent::ExtentNode::verify(root, &expect).map_err(|corrupt| corrupt.ino(ground.ino))?;
        let root = Node {
            home: Home::Root,
            depth: node.depth(),
            items: Items::of(node.entries()),
            is_dirty: false,
            is_gone: false,
        };
        Ok(TreeDraft {
            ground,
            nodes: vec![root],
        })
    }

    /// Puts a run into the tree, where nothing is mapped.
    pub(super) fn insert(&mut self, piece: Run) -> Result<(), Error> {
        if piece.end() > u64::from(u32::MAX) {
            return Err(Error::FileTooLarge);
        }
        let mut at = piece.logical;
        while at < piece.end() {
            let end = piece.end().min(at + longest(piece.unwritten));
            self.insert_one(extent_of(piece.cut(&(at..end))))?;
            at = end;
        }
        Ok(())
    }

    fn insert_one(&mut self, extent: Extent) -> Result<(), Error> {
        let path = self.path(extent.block().into())?;
        let (leaf, at) = path.leaf();
        let extents = self.extents(leaf);
        let left = at.checked_sub(1).map(|left| extents[left]);
        let right = extents.get(at).copied();
        assert!(
            left.is_none_or(|left| left.end() <= extent.block().into())
                && right.is_none_or(|right| u64::from(right.block()) >= extent.end()),
            "blocks are mapped where there are some"
        );
        let with_left = left.and_then(|left| join(&left, &extent));
        let with_right = right.and_then(|right| join(&with_left.unwrap_or(extent), &right));
        match (with_left, with_right) {
            (None, None) => return self.insert_item(&path.steps, Item::Extent(extent)),
            (Some(joined), None) => extents[at - 1] = joined,
            (None, Some(joined)) => extents[at] = joined,
            (Some(_), Some(joined)) => {
                extents[at - 1] = joined;
                extents.remove(at);
            }
        }
        self.nodes[leaf].is_dirty = true;
        Ok(())
    }

    /// Puts an item at the end of a path, splitting what is full on the way up.
    fn insert_item(&mut self, steps: &[(usize, usize)], item: Item) -> Result<(), Error> {
        let mut item = item;
        let mut is_leaf = true;
        for &(node, at) in steps.iter().rev() {
            // A new neighbour stands behind the node that was split.
            let at = if is_leaf { at } else { at + 1 };
            is_leaf = false;
            self.nodes[node].is_dirty = true;
            let room = self.room(node);
            if self.nodes[node].items.len() < room {
                self.nodes[node].items.insert(at, item);
                return Ok(());
            }
            if node == 0 {
                let below = self.grow()?;
                self.nodes[below].items.insert(at, item);
                return Ok(());
            }
            item = self.split(node, at, item)?;
        }
        Ok(())
    }

    /// Splits a full node, puts an item into one of the halves, and gives the entry of the new one.
    fn split(&mut self, node: usize, at: usize, item: Item) -> Result<Item, Error> {
        let depth = self.nodes[node].depth;
        let len = self.nodes[node].items.len();
        // What grows at its end leaves full nodes behind.
        let middle = if at == len { len } else { len / 2 };
        let mut right = self.nodes[node].items.split_off(middle);
        match at.checked_sub(middle) {
            Some(at) if at > 0 || middle == len => right.insert(at, item),
            _ => self.nodes[node].items.insert(at, item),
        }
        // The right half has an entry: the item, or half of those that filled a node.
        let first = right.first().unwrap_or(0);
        let new = self.add_node(depth, right)?;
        let link = Link::Node(new);
        Ok(Item::Child(Child { first, link }))
    }

    /// Moves the root's entries into a new node below it.
    fn grow(&mut self) -> Result<usize, Error> {
        let depth = self.nodes[0].depth;
        if depth >= MAX_DEPTH {
            return Err(Error::FileTooLarge);
        }
        let items = self.nodes[0].items.split_off(0);
        let first = items.first().unwrap_or(0);
        let below = self.add_node(depth, items)?;
        let link = Link::Node(below);
        self.nodes[0].items = Items::Children(vec![Child { first, link }]);
        self.nodes[0].depth = depth + 1;
        Ok(below)
    }

    fn add_node(&mut self, depth: u16, items: Items) -> Result<usize, Error> {
        self.nodes.push(Node {
            home: self.ground.new_home()?,
            depth,
            items,
            is_dirty: true,
            is_gone: false,
        });
        Ok(self.nodes.len() - 1)
    }

    fn room(&self, node: usize) -> usize {
        let block_bytes = self.ground.mounted.volume().geometry().block_size().bytes();
        match node {
            0 => ROOT_ENTRIES.into(),
            _ => extent::block_entries(block_bytes).into(),
        }
    }

    fn extents(&mut self, leaf: usize) -> &mut Vec<Extent> {
        match &mut self.nodes[leaf].items {
            Items::Extents(extents) => extents,
            // A path ends at depth 0, whose entries are extents.
            Items::Children(_) => unreachable!("a leaf has extents"),
        }
    }

    /// The way to a logical block: in the leaf, the place of the first extent that begins behind it.
    fn path(&mut self, block: u64) -> Result<Path, Error> {
        let mut path = Path {
            steps: Vec::new(),
            end: 1 << 32,
        };
        let (mut node, mut start) = (0, 0);
        // Each child was verified to be one level less deep than its parent.
        loop {
            let children = match &self.nodes[node].items {
                Items::Extents(extents) => {
                    let at = extents.partition_point(|extent| u64::from(extent.block()) <= block);
                    path.steps.push((node, at));
                    return Ok(path);
                }
                Items::Children(children) => children,
            };
            let after = children.partition_point(|child| u64::from(child.first) <= block);
            let at = after.saturating_sub(1);
            let child = children[at];
            path.end = children
                .get(at + 1)
                .map_or(path.end, |next| next.first.into());
            start = u64::from(child.first).max(start);
            path.steps.push((node, at));
            node = match child.link {
                Link::Node(node) => node,
                Link::Disk(home) => self.load(node, at, home, start..path.end)?,
            };
        }
    }

    fn load(
        &mut self,
        parent: usize,
        at: usize,
        home: FsBlock,
        covers: Range<u64>,
    ) -> Result<usize, Error> {
        let Ground {
            mounted, ino, seed, ..
        } = self.ground;
        let depth = self.nodes[parent].depth;
        let block = read_node(mounted.volume(), (ino, seed), home, covers, depth)?;
        self.nodes.push(Node {
            home: Home::Old(home),
            depth: extent::depth(&block),
            items: Items::of(extent::ExtentNode::view(&block)),
            is_dirty: false,
            is_gone: false,
        });
        let node = self.nodes.len() - 1;
        if let Items::Children(children) = &mut self.nodes[parent].items {
            children[at].link = Link::Node(node);
        }
        Ok(node)
    }

    /// Takes the runs of a range out; see [`super::draft::ExtentDraft::take`].
    pub(super) fn take(
        &mut self,
        range: Range<u64>,
        budget: &mut Budget,
    ) -> Result<(Vec<Run>, u64), Error> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            if !budget.has_room() {
                return Ok((pieces, at));
            }
            let path = self.path(at)?;
            for (node, _) in &path.steps {
                match (&self.nodes[*node].home, self.nodes[*node].depth) {
                    (Home::Root, _) => {}
                    (home, 0) => budget.note(self.ground.mounted, home.block()),
                    (home, _) => budget.note_above(self.ground.mounted, home.block()),
                }
            }
            let end = path.end.min(range.end);
            let done = self.take_from_leaf(&path, at..end, budget, &mut pieces)?;
            if done < end {
                return Ok((pieces, done));
            }
            at = path.end;
        }
        Ok((pieces, range.end))
    }

    /// Takes the part of a range that one leaf has, and returns the end of that part.
    fn take_from_leaf(
        &mut self,
        path: &Path,
        range: Range<u64>,
        budget: &mut Budget,
        pieces: &mut Vec<Run>,
    ) -> Result<u64, Error> {
        let (leaf, behind) = path.leaf();
        let mounted = self.ground.mounted;
        // The extent before the place may reach into the range.
        let mut at = behind.saturating_sub(1);
        // An image may come with leaves that hold nothing: such a leaf is freed, which the step pays for too.
        let mut is_counted = self.extents(leaf).is_empty();
        budget.nodes += usize::from(is_counted);
        while let Some(extent) = self.extents(leaf).get(at).copied() {
            let whole = Run::from(&extent);
            if whole.logical >= range.end {
                break;
            }
            if whole.end() <= range.start {
                at += 1;
                continue;
            }
            let wanted = whole.cut(&range);
            let volume = mounted.volume();
            volume.check_unowned(self.ground.ino, wanted.start, wanted.len)?;
            let granted = budget.spend(mounted, wanted.start, wanted.len);
            if granted == 0 {
                return Ok(wanted.logical);
            }
            if !std::mem::replace(&mut is_counted, true) {
                budget.nodes += 1;
            }
            let piece = wanted.cut(&(wanted.logical..wanted.logical + granted));
            pieces.push(piece);
            self.nodes[leaf].is_dirty = true;
            let head = (piece.logical > whole.logical)
                .then(|| extent_of(whole.cut(&(whole.logical..piece.logical))));
            let tail = (piece.end() < whole.end())
                .then(|| extent_of(whole.cut(&(piece.end()..whole.end()))));
            match (head, tail) {
                (None, None) => {
                    self.extents(leaf).remove(at);
                }
                (Some(kept), None) | (None, Some(kept)) => {
                    self.extents(leaf)[at] = kept;
                    at += 1;
                }
                (Some(head), Some(tail)) => {
                    self.extents(leaf)[at] = head;
                    let mut steps = path.steps.clone();
                    steps.last_mut().unwrap_or(&mut (0, 0)).1 = at + 1;
                    self.insert_item(&steps, Item::Extent(tail))?;
                    return Ok(piece.end());
                }
            }
            if granted < wanted.len {
                return Ok(piece.end());
            }
        }
        if self.extents(leaf).is_empty() && leaf != 0 {
            budget.leaf_goes();
        }
        Ok(range.end)
    }

    /// Where nodes are that were read.
    pub(super) fn old_nodes(&self) -> impl Iterator<Item = FsBlock> {
        self.nodes.iter().filter_map(|node| node.home.old())
    }

    /// Drops empty nodes, makes keys exact and the tree no deeper than it needs to be, and encodes what changed.
    pub(super) fn finish(mut self) -> Result<Outcome<'a>, Error> {
        for depth in 1..=self.nodes[0].depth {
            for node in 0..self.nodes.len() {
                if self.nodes[node].depth == depth && !self.nodes[node].is_gone {
                    self.tidy(node);
                }
            }
        }
        if self.nodes[0].items.len() == 0 {
            self.nodes[0].items = Items::Extents(Vec::new());
            self.nodes[0].depth = 0;
        }
        while let Items::Children(children) = &self.nodes[0].items
            && let [
                Child {
                    link: Link::Node(only),
                    ..
                },
            ] = children[..]
            && self.nodes[only].items.len() <= usize::from(ROOT_ENTRIES)
        {
            self.nodes[0].items = self.nodes[only].items.split_off(0);
            self.nodes[0].depth -= 1;
            self.nodes[0].is_dirty = true;
            self.nodes[only].is_gone = true;
        }
        Ok(self.encode())
    }

    /// Takes a node's empty children away, and sets the keys of the others that are in the draft.
    fn tidy(&mut self, node: usize) {
        let Items::Children(children) = &self.nodes[node].items else {
            return;
        };
        let mut kept = Vec::with_capacity(children.len());
        let (mut gone, mut is_changed) = (Vec::new(), false);
        for child in children {
            let mut child = *child;
            if let Link::Node(below) = child.link {
                match self.nodes[below].items.first() {
                    None => {
                        gone.push(below);
                        continue;
                    }
                    Some(first) => {
                        is_changed |= first != child.first;
                        child.first = first;
                    }
                }
            }
            kept.push(child);
        }
        is_changed |= !gone.is_empty();
        self.nodes[node].items = Items::Children(kept);
        self.nodes[node].is_dirty |= is_changed;
        for below in gone {
            self.nodes[below].is_gone = true;
        }
    }

    fn encode(self) -> Outcome<'a> {
        let block_bytes = self.ground.mounted.volume().geometry().block_size().bytes();
        let homes: Vec<FsBlock> = self.nodes.iter().map(|node| node.home.block()).collect();
        let mut outcome = Outcome::default();
        for node in self.nodes {
            if node.is_gone {
                // A new one goes back by being dropped.
                if let Home::Old(block) = node.home {
                    outcome.gone.push(block);
                }
                continue;
            }
            if !node.is_dirty {
                continue;
            }
            let bytes = |bytes: &mut [u8]| match &node.items {
                Items::Extents(all) => {
                    extent::encode(bytes, node.depth, ExtentEntries::Extents(all))
                }
                Items::Children(children) => {
                    let index = |child: &Child| {
                        let leaf = match child.link {
                            Link::Disk(block) => block,
                            Link::Node(node) => homes[node],
                        };
                        ExtentIndex::new(LBlock(child.first), leaf)
                    };
                    let indices: Vec<ExtentIndex> = children.iter().map(index).collect();
                    extent::encode(bytes, node.depth, ExtentEntries::Indices(&indices));
                }
            };
            match node.home {
                Home::Root => {
                    let mut root = [0; BLOCK_AREA];
                    bytes(&mut root);
                    outcome.root = Some(root);
                }
                home => {
                    let mut block = vec![0; block_bytes].into_boxed_slice();
                    bytes(&mut block);
                    outcome.nodes.push((home, block));
                }
            }
        }
        outcome
    }
}

impl Path {
    fn leaf(&self) -> (usize, usize) {
        // A path has at least the root.
        self.steps.last().copied().unwrap_or((0, 0))
    }
}
