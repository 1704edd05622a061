//! One walk over the tree in the order of its nodes: each gets its inode, then its blocks.
//!
//! A directory is followed by its files, and these by its subdirectories, so what is used together lies together: the
//! blocks in the order of the walk, the inode in the group in which its blocks begin, while there is room. The walk
//! is the same on every host, and decides everything; nothing is written here.
//!
//! The walk also serves to learn how much is needed: over [`FreeClusters::unbounded`] it never fails.

use hashbrown::HashMap;
use ondisk::map::{MapKind, Run, map_blocks};
use ondisk::{FsBlock, Group, Ino};

use super::error::{PlanError, Shortage};
use super::inodes::Inodes;
use super::shape::ImageFormat;
use super::space::{ClusterRun, FreeClusters};
use super::xattrs::{Home, XattrPlans, split};
use crate::source::{Data, Kind, NodeId, SourceId, SourceTree, lost_found};

/// Stands for "none" in tables of indices.
pub(crate) const NONE: u32 = u32::MAX;
/// Symbolic links shorter than this live in the inode.
pub(crate) const FAST_SYMLINK: usize = 60;

/// What a node got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodePlace {
    /// Its inode.
    pub ino: Ino,
    /// Index of its blocks in [`Placement::files`], or [`NONE`].
    pub file: u32,
    /// Index of its block of attributes in [`Placement::xattr_blocks`], or [`NONE`].
    pub xattr_block: u32,
}

/// What a run of blocks belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockOwner {
    /// A node of the tree.
    Node(NodeId),
    /// The value of an attribute, which has an inode of its own.
    Value,
}

/// The blocks of one inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilePlace {
    /// What they belong to.
    pub owner: BlockOwner,
    runs_at: u32,
    runs: u32,
    map_at: u32,
    map: u32,
    /// Clusters of data and map together.
    pub clusters: u64,
}

/// A block of attributes that nodes with equal sets share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XattrBlock {
    /// Where.
    pub block: u64,
    /// Number of the set.
    pub set: u32,
    /// How many inodes refer to it.
    pub references: u32,
}

/// An inode that holds a large value of an attribute, for all blocks that hold this set of attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueInode {
    /// Its number.
    pub ino: Ino,
    /// Its blocks: index in [`Placement::files`].
    pub file: u32,
    /// A node that has the set.
    pub owner: NodeId,
    /// Which of the set's attributes, in the order of [`super::xattrs::split`].
    pub attribute: u16,
    /// How many blocks of attributes refer to it.
    pub references: u32,
}

/// Identifies a file of an archive. The keys of one archive ascend in the order of its files.
pub(crate) type ArchiveKey = (SourceId, u64);

/// The key of a node's data; `None` if it does not come from an archive.
pub(crate) fn archive_key(data: Data) -> Option<ArchiveKey> {
    match data {
        Data::Range { source, offset } => Some((source, offset)),
        Data::Stream { source, index } => Some((source, index.into())),
        Data::Empty | Data::Path(_) => None,
    }
}

/// The files that got their blocks before the walk.
pub(crate) type StreamTable = HashMap<ArchiveKey, Streamed>;

/// Blocks that a file got before the walk, while its data streamed past.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streamed {
    /// Its runs, in order.
    pub runs: Vec<Run>,
    /// Clusters they take.
    pub clusters: u64,
}

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Placement {
    /// By node.
    pub nodes: Vec<NodePlace>,
    /// In order of the nodes.
    pub files: Vec<FilePlace>,
    runs: Vec<Run>,
    map_blocks: Vec<FsBlock>,
    /// In order of their first use.
    pub xattr_blocks: Vec<XattrBlock>,
    /// In order of their sets' first use; those of one set follow one another.
    pub values: Vec<ValueInode>,
    /// By set: index of its first value inode, or [`NONE`].
    pub first_value: Vec<u32>,
    /// Inodes in use.
    pub inodes: Inodes,
    /// By group: how many of the inodes are directories.
    pub directories: Vec<u32>,
    /// Clusters that stayed free.
    pub space: FreeClusters,
}

impl Placement {
    /// The runs of a file's data.
    pub(crate) fn runs(&self, file: &FilePlace) -> &[Run] {
        &self.runs[file.runs_at as usize..][..file.runs as usize]
    }

    /// The blocks of a file's map.
    pub(crate) fn map_blocks(&self, file: &FilePlace) -> &[FsBlock] {
        &self.map_blocks[file.map_at as usize..][..file.map as usize]
    }

    /// The blocks of a node, if it has any.
    pub(crate) fn file_of(&self, node: NodeId) -> Option<&FilePlace> {
        self.files.get(self.nodes[node.index()].file as usize)
    }
}

/// What the walk reads.
pub(crate) struct TreePlacer<'a> {
    /// The tree.
    pub tree: &'a SourceTree,
    /// The format's sizes and features.
    pub shape: &'a ImageFormat,
    /// By node: blocks of a directory; 0 for other nodes.
    pub directory_blocks: &'a [u32],
    /// What the sets of attributes need.
    pub xattrs: &'a XattrPlans,
    /// Files that have blocks already.
    pub streamed: &'a StreamTable,
}

/// The walk's state.
struct Walk<'a> {
    from: &'a TreePlacer<'a>,
    placed: Placement,
    /// By set: its newest block, or [`NONE`].
    newest_block: Vec<u32>,
    /// Its lost+found, if the image is to have one.
    lost_found: Option<NodeId>,
    /// The group that the last blocks were placed in.
    goal: Group,
}

impl<'a> TreePlacer<'a> {
    /// Places the whole tree in `space`, with inodes from `inodes`.
    ///
    /// # Errors
    /// When there are too few clusters or inodes, or a file is larger than its map can hold.
    pub(crate) fn place(
        &'a self,
        space: FreeClusters,
        inodes: Inodes,
    ) -> Result<Placement, PlanError> {
        let groups = inodes.used().len();
        let mut walk = Walk {
            from: self,
            placed: Placement {
                nodes: Vec::with_capacity(self.tree.len()),
                files: Vec::new(),
                runs: Vec::new(),
                map_blocks: Vec::new(),
                xattr_blocks: Vec::new(),
                values: Vec::new(),
                first_value: vec![NONE; self.xattrs.len()],
                inodes,
                directories: vec![0; groups],
                space,
            },
            newest_block: vec![NONE; self.xattrs.len()],
            lost_found: lost_found(self.tree, self.shape),
            goal: Group(0),
        };
        for id in self.tree.nodes() {
            walk.node(id)?;
        }
        Ok(walk.placed)
    }
}

/// The directory that is to be lost+found, if the image has one.
pub(crate) fn lost_found(tree: &SourceTree, shape: &ImageFormat) -> Option<NodeId> {
    tree.find(lost_found::NAME).filter(|_| shape.lost_found)
}

impl<'a> Walk<'a> {
    fn node(&mut self, id: NodeId) -> Result<(), PlanError> {
        let ino = self.inode(id)?;
        self.placed.nodes.push(NodePlace {
            ino,
            file: NONE,
            xattr_block: NONE,
        });
        let kind = self.from.tree.kind(id);
        if kind == Kind::Directory {
            self.count_directory(ino);
        }
        self.xattr_block(id)?;
        let block_size = self.from.shape.block_size;
        match kind {
            Kind::Directory => {
                let blocks = self.from.directory_blocks[id.index()];
                self.blocks(
                    BlockOwner::Node(id),
                    std::iter::once((0, u64::from(blocks))),
                )
            }
            Kind::Symlink(target) if target.len() >= FAST_SYMLINK => {
                if target.len() >= block_size.bytes() {
                    return Err(self.too_large(id, "its target does not fit into a block"));
                }
                self.blocks(BlockOwner::Node(id), std::iter::once((0, 1)))
            }
            Kind::File { size } => {
                if block_size.blocks_for(size) > self.from.shape.map.max_blocks(block_size) {
                    return Err(
                        self.too_large(id, "it is larger than a file can be in this file system")
                    );
                }
                match self.streamed(id) {
                    Some(streamed) => self.already_placed(id, streamed),
                    None => {
                        let tree = self.from.tree;
                        let ranges = tree.extents(id).map(|extent| {
                            let first = extent.offset >> block_size.bits();
                            (first, block_size.blocks_for(extent.offset + extent.len))
                        });
                        self.blocks(BlockOwner::Node(id), ranges)
                    }
                }
            }
            _ => Ok(()),
        }
    }

    /// The inode of a node: the reserved ones for the root and lost+found, else one near its blocks.
    fn inode(&mut self, id: NodeId) -> Result<Ino, PlanError> {
        if id == NodeId::ROOT {
            return Ok(Ino::ROOT);
        }
        if self.lost_found == Some(id) {
            return Ok(self.from.shape.lost_found_ino);
        }
        if let Some(cluster) = self.placed.space.cursor() {
            self.goal = self.from.shape.group_of_cluster(cluster);
        }
        let left = self.from.tree.len() - id.index();
        self.placed
            .inodes
            .take(self.goal)
            .ok_or(PlanError::Short(Shortage::Inodes(left as u64)))
    }

    /// Counts a directory in the group that has its inode: with 8 inodes a group, lost+found is in the second one.
    fn count_directory(&mut self, ino: Ino) {
        let group = (ino.0 - 1) / self.from.shape.inodes_per_group;
        if let Some(count) = self.placed.directories.get_mut(group as usize) {
            *count += 1;
        }
    }

    /// The blocks of a file whose data streamed past already.
    fn streamed(&self, id: NodeId) -> Option<&'a Streamed> {
        let key = archive_key(self.from.tree.data(id))?;
        self.from.streamed.get(&key)
    }

    /// Takes over blocks that a file has already; only its map needs more.
    fn already_placed(&mut self, id: NodeId, streamed: &Streamed) -> Result<(), PlanError> {
        if streamed.runs.is_empty() {
            return Ok(());
        }
        let runs_at = self.placed.runs.len();
        self.placed.runs.extend_from_slice(&streamed.runs);
        self.file(BlockOwner::Node(id), runs_at, streamed.clusters)
    }

    /// Places the blocks of one owner: `ranges` are half-open, in order, and may overlap in their first and last block.
    fn blocks(
        &mut self,
        owner: BlockOwner,
        ranges: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(), PlanError> {
        let runs_at = self.placed.runs.len();
        let shape = self.from.shape;
        let mut placer = RangePlacer::default();
        for range in ranges {
            let placed = &mut self.placed;
            placer.place(&mut placed.space, shape, range, &mut placed.runs, runs_at)?;
        }
        if self.placed.runs.len() == runs_at {
            Ok(())
        } else {
            self.file(owner, runs_at, placer.clusters)
        }
    }

    /// Places the map of the runs from `runs_at` on, and notes the file.
    fn file(
        &mut self,
        owner: BlockOwner,
        runs_at: usize,
        data_clusters: u64,
    ) -> Result<(), PlanError> {
        let shape = self.from.shape;
        let runs = &self.placed.runs[runs_at..];
        let map = map_blocks(shape.map, runs, shape.block_size);
        let map_at = self.placed.map_blocks.len();
        let places = &mut self.placed.map_blocks;
        allocate(&mut self.placed.space, map, |run| {
            // One cluster holds one block of a map.
            let clusters = run.start..run.start + run.len;
            places.extend(clusters.map(|at| FsBlock(at << shape.cluster_bits)));
        })?;
        let index = self.placed.files.len() as u32;
        self.placed.files.push(FilePlace {
            owner,
            runs_at: runs_at as u32,
            runs: (self.placed.runs.len() - runs_at) as u32,
            map_at: map_at as u32,
            map: map as u32,
            clusters: data_clusters + map,
        });
        if let BlockOwner::Node(id) = owner {
            self.placed.nodes[id.index()].file = index;
        }
        Ok(())
    }

    /// Finds or places the block of a node's attributes that do not fit into its inode.
    fn xattr_block(&mut self, id: NodeId) -> Result<(), PlanError> {
        let set = self.from.tree.xattr_set(id);
        if !self.from.xattrs.needs_block(set) {
            return Ok(());
        }
        let set = set.0;
        let mut index = self.newest_block[set as usize];
        let full = self
            .placed
            .xattr_blocks
            .get(index as usize)
            .is_none_or(|block| block.references >= self.from.shape.xattr_references_max);
        if full {
            index = self.placed.xattr_blocks.len() as u32;
            let mut block = 0;
            allocate(&mut self.placed.space, 1, |run| {
                block = run.start << self.from.shape.cluster_bits;
            })?;
            self.placed.xattr_blocks.push(XattrBlock {
                block,
                set,
                references: 0,
            });
            self.newest_block[set as usize] = index;
            self.value_inodes(id, set)?;
        }
        self.placed.xattr_blocks[index as usize].references += 1;
        self.placed.nodes[id.index()].xattr_block = index;
        Ok(())
    }

    /// Places the values of a set that lie in inodes of their own, and counts a block that refers to them.
    fn value_inodes(&mut self, id: NodeId, set: u32) -> Result<(), PlanError> {
        let count = usize::from(self.from.xattrs.values(set));
        if count == 0 {
            return Ok(());
        }
        if self.placed.first_value[set as usize] == NONE {
            self.placed.first_value[set as usize] = self.placed.values.len() as u32;
            let shape = self.from.shape;
            let attributes = split(self.from.tree.xattrs(id), shape)
                .map_err(|problem| self.too_large(id, &problem))?;
            for (at, attribute) in attributes.iter().enumerate() {
                if attribute.home != Home::ValueInode {
                    continue;
                }
                let ino = self.placed.inodes.take(self.goal);
                let ino = ino.ok_or(PlanError::Short(Shortage::Inodes(1)))?;
                let blocks = shape.block_size.blocks_for(attribute.value.len() as u64);
                let file = self.placed.files.len() as u32;
                self.blocks(BlockOwner::Value, std::iter::once((0, blocks)))?;
                let attribute = at as u16;
                let value = ValueInode {
                    ino,
                    file,
                    owner: id,
                    attribute,
                    references: 0,
                };
                self.placed.values.push(value);
            }
        }
        let first = self.placed.first_value[set as usize] as usize;
        for value in &mut self.placed.values[first..first + count] {
            value.references += 1;
        }
        Ok(())
    }

    fn too_large(&self, id: NodeId, problem: &str) -> PlanError {
        PlanError::Node {
            path: self.from.tree.path(id).escape_ascii().to_string(),
            problem: problem.into(),
        }
    }
}

/// Takes clusters, or says how many are missing.
fn allocate(
    space: &mut FreeClusters,
    clusters: u64,
    run: impl FnMut(ClusterRun),
) -> Result<(), PlanError> {
    if space.allocate(clusters, run) {
        Ok(())
    } else {
        Err(PlanError::Short(Shortage::Clusters(
            clusters - space.free(),
        )))
    }
}

/// Places ranges of a file's blocks one after the other. A cluster is placed once, however many ranges touch it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangePlacer {
    /// The last logical cluster that has a place, and the place.
    last: Option<(u64, u64)>,
    next_block: u64,
    /// Clusters placed so far.
    pub clusters: u64,
}

impl RangePlacer {
    /// Places blocks `start..end`, which begin at or after the start of the range before (what was placed already
    /// stays), and appends the runs to `runs`, joining those that continue one another from index `from` on.
    ///
    /// # Errors
    /// When there are too few clusters.
    pub(crate) fn place(
        &mut self,
        space: &mut FreeClusters,
        shape: &ImageFormat,
        (start, end): (u64, u64),
        runs: &mut Vec<Run>,
        from: usize,
    ) -> Result<(), PlanError> {
        let bits = shape.cluster_bits;
        let start = start.max(self.next_block);
        if start >= end {
            return Ok(());
        }
        self.next_block = end;
        let mut first_cluster = start >> bits;
        let end_cluster = ((end - 1) >> bits) + 1;
        if let Some((logical, place)) = self.last
            && logical == first_cluster
        {
            let stop = end.min((logical + 1) << bits);
            let at = (place << bits) + (start - (logical << bits));
            push_run(runs, from, shape.map, at, start, stop - start);
            first_cluster += 1;
        }
        let count = end_cluster.saturating_sub(first_cluster);
        if count == 0 {
            return Ok(());
        }
        self.clusters += count;
        let mut logical = first_cluster;
        let last = &mut self.last;
        allocate(space, count, |run| {
            let block = (logical << bits).max(start);
            let stop = ((logical + run.len) << bits).min(end);
            let at = (run.start << bits) + (block - (logical << bits));
            push_run(runs, from, shape.map, at, block, stop - block);
            logical += run.len;
            *last = Some((logical - 1, run.start + run.len - 1));
        })
    }
}

/// Appends a run in pieces that the map can hold, joined to the one before where they continue each other.
fn push_run(runs: &mut Vec<Run>, from: usize, map: MapKind, at: u64, logical: u64, len: u64) {
    let max = map.max_run();
    let mut rest = Run {
        logical,
        start: FsBlock(at),
        len,
        unwritten: false,
    };
    if runs.len() > from
        && let Some(last) = runs.last_mut()
        && last.is_continued_by(&rest)
    {
        let more = len.min(max - last.len);
        last.len += more;
        rest = rest.cut(&(logical + more..logical + len));
    }
    while rest.len > 0 {
        let end = rest.logical + rest.len.min(max);
        runs.push(rest.cut(&(rest.logical..end)));
        rest = rest.cut(&(end..rest.end()));
    }
}
