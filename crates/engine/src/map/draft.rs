//! A file's map while a change of it is prepared: the touched nodes as lists of entries, which are edited in memory,
//! and the blocks that the change takes and frees. Nothing live changes here; dropping a draft undoes it.
//!
//! The holder of the inode's exclusive lock makes a draft, edits it, and turns it into a [`MapChange`], whose apply
//! writes every touched node as a whole. Reading nodes, and taking blocks for new nodes, may block on I/O and may fail.
//! [`Budget`] bounds what one step touches.

use std::collections::BTreeSet;
use std::ops::Range;

use journal::Handle;
use ondisk::inode::{BLOCK_AREA, Inode};
use ondisk::map::Run;
use ondisk::{Feature, Flags, FsBlock, Geometry, Group, Ino};

mod edit_map;
mod edit_tree;

use edit_map::MapDraft;
use edit_tree::TreeDraft;

use crate::blocks::Kind;
use crate::blocks::{Pin, Seal};
use crate::core::Error;
use crate::core::sb::BlockPurpose;
use crate::inode::{Exclusive, LoadedInode};
use crate::space::mballoc::{self, Freeing, Reach, TakenBlocks};
use crate::token::LiveFs;

/// The most nodes that one step of removing changes, nodes above the leaves included.
const STEP_NODES: usize = 12;
/// Nodes of the longest path below the root.
const PATH_NODES: usize = 5;
/// The most leaves that a step of moving extents changes.
const SHIFT_NODES: usize = 40;
/// The most groups in which one step frees blocks; an attribute block may be in one more.
const STEP_GROUPS: usize = 14;
/// The most metadata blocks that one step frees, not counting an attribute block.
const STEP_REVOKES: usize = 255;

/// The place of a draft's node.
pub(super) enum Home<'a> {
    Root,
    Old(FsBlock),
    New(TakenBlocks<'a>),
}

impl Home<'_> {
    pub(super) fn block(&self) -> FsBlock {
        match self {
            Home::Root => FsBlock(0),
            Home::Old(block) => *block,
            Home::New(blocks) => blocks.run().start,
        }
    }

    /// Where the node was before, if it is below the root.
    pub(super) fn old(&self) -> Option<FsBlock> {
        match self {
            Home::Old(block) => Some(*block),
            Home::Root | Home::New(_) => None,
        }
    }
}

/// What one step may touch, and what it has touched so far.
pub(super) struct Budget {
    /// Whether the file's blocks count as metadata, which must be revoked when it is freed.
    is_metadata: bool,
    /// Whether what is taken out is put back, so that no node is freed.
    puts_back: bool,
    most_nodes: usize,
    groups: BTreeSet<Group>,
    /// Nodes above leaves that may change.
    above: BTreeSet<FsBlock>,
    /// Leaves that changed.
    pub(super) nodes: usize,
    /// Blocks that are to be revoked.
    revokes: usize,
}

impl Budget {
    /// How many of `len` blocks from `start` on this step may free.
    pub(super) fn spend(&mut self, mounted: &LiveFs, start: FsBlock, len: u64) -> u64 {
        let geometry = mounted.volume().geometry();
        let left = STEP_REVOKES.saturating_sub(self.revokes) as u64;
        if self.puts_back {
            return len;
        }
        let len = if self.is_metadata { len.min(left) } else { len };
        let mut granted = 0;
        while granted < len {
            let at = FsBlock(start.0 + granted);
            let Some(group) = geometry.group_of_block(at) else {
                break;
            };
            if !self.groups.contains(&group) && self.groups.len() >= STEP_GROUPS {
                break;
            }
            self.groups.insert(group);
            let end = geometry.group_first_block(group).0 + u64::from(geometry.blocks_per_group());
            granted = len.min(end.saturating_sub(start.0).max(granted + 1));
        }
        if self.is_metadata {
            // At most the number of revokes that are left.
            self.revokes += granted as usize;
        }
        granted
    }

    /// Begins a new step.
    fn begin(&mut self) {
        self.groups.clear();
        self.above.clear();
        (self.nodes, self.revokes) = (0, 0);
    }

    /// Counts a leaf that may be freed.
    pub(super) fn note(&mut self, mounted: &LiveFs, node: FsBlock) {
        self.groups
            .extend(mounted.volume().geometry().group_of_block(node));
    }

    /// Counts a node above a leaf, which may change or be freed.
    pub(super) fn note_above(&mut self, mounted: &LiveFs, node: FsBlock) {
        self.note(mounted, node);
        self.above.insert(node);
    }

    /// Counts that a leaf became empty: it needs a revoke, and no new contents.
    pub(super) fn leaf_goes(&mut self) {
        if !self.puts_back {
            self.nodes -= 1;
            self.revokes += 1;
        }
    }

    /// Whether the step may work on another leaf: the leaf and the nodes above it may all be changed or freed.
    pub(super) fn has_room(&self) -> bool {
        let changed = if self.puts_back {
            self.nodes
        } else {
            self.nodes + self.above.len() + PATH_NODES
        };
        changed < self.most_nodes
            && self.revokes + 8 < STEP_REVOKES
            && self.groups.len() + 4 < STEP_GROUPS
    }
}

/// The settings for a draft's new nodes.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub(super) mounted: &'a LiveFs,
    pub(super) ino: Ino,
    pub(super) seed: u32,
    /// Where new nodes should lie.
    pub(super) goal: FsBlock,
    /// Which blocks new nodes may use.
    pub(super) reach: Reach,
    /// What new nodes are for.
    pub(super) purpose: BlockPurpose,
}

impl<'a> Ground<'a> {
    pub(super) fn new_home(&self) -> Result<Home<'a>, Error> {
        let blocks = self
            .mounted
            .take_row(self.purpose, self.goal, self.reach, 1..=1)?;
        Ok(Home::New(blocks))
    }
}

/// The result of a draft's nodes.
#[derive(Default)]
pub(super) struct Outcome<'a> {
    pub(super) root: Option<[u8; BLOCK_AREA]>,
    /// Nodes that changed or are new, with their contents.
    pub(super) nodes: Vec<(Home<'a>, Box<[u8]>)>,
    /// Nodes that are no longer needed.
    pub(super) gone: Vec<FsBlock>,
}

enum Form<'a> {
    Tree(TreeDraft<'a>),
    Map(MapDraft<'a>),
}

/// A map that is being edited.
pub(crate) struct ExtentDraft<'a> {
    ground: Ground<'a>,
    inode: &'a Exclusive<'a>,
    /// The space that the file took before the change.
    sectors: u64,
    form: Form<'a>,
    kind: Kind,
    budget: Budget,
    taken: Vec<TakenBlocks<'a>>,
    freed: Vec<(FsBlock, u64)>,
    /// Ranges that the change maps differently.
    touched: Vec<Range<u64>>,
    /// Whether the change moves blocks to other places in the file.
    shifts: bool,
}

impl<'a> ExtentDraft<'a> {
    /// The map of a locked inode as it is now; reads nothing below its root.
    ///
    /// # Errors
    /// `Corrupt` when the root is broken.
    pub(crate) fn new(
        mounted: &'a LiveFs,
        inode: &'a Exclusive<'a>,
    ) -> Result<ExtentDraft<'a>, Error> {
        ExtentDraft::of(mounted, inode, &inode.inode().snapshot())
    }

    /// Makes a draft for a caller that has loaded the locked inode already.
    ///
    /// # Errors
    /// Those of [`ExtentDraft::new`].
    pub(crate) fn of(
        mounted: &'a LiveFs,
        inode: &'a Exclusive<'a>,
        loaded: &LoadedInode,
    ) -> Result<ExtentDraft<'a>, Error> {
        let volume = mounted.volume();
        let is_tree = loaded.flags().contains(Flags::EXTENTS);
        let ground = Ground {
            mounted,
            ino: loaded.ino(),
            seed: loaded.seed(),
            goal: goal_of(mounted, loaded.ino(), is_tree),
            reach: Reach::of_map(is_tree),
            purpose: BlockPurpose::Growing,
        };
        let form = if is_tree {
            Form::Tree(TreeDraft::new(ground, loaded.block_area())?)
        } else {
            Form::Map(MapDraft::new(ground, |index| loaded.block_word(index)))
        };
        Ok(ExtentDraft {
            ground,
            inode,
            sectors: loaded.sectors(
                volume.has(Feature::HUGE_FILE),
                volume.geometry().block_size(),
            ),
            form,
            kind: if is_tree {
                Kind::Extents
            } else {
                Kind::Pointers
            },
            budget: Budget {
                is_metadata: !loaded.is(ondisk::FileType::Regular),
                puts_back: false,
                most_nodes: STEP_NODES,
                groups: BTreeSet::new(),
                above: BTreeSet::new(),
                nodes: 0,
                revokes: 0,
            },
            taken: Vec::new(),
            freed: Vec::new(),
            touched: Vec::new(),
            shifts: false,
        })
    }

    /// Maps new blocks from a logical block on, one run after the other. Nothing is mapped there yet.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace` for new nodes, `Corrupt`, `Io`.
    pub(crate) fn insert(
        &mut self,
        at: u64,
        runs: Vec<TakenBlocks<'a>>,
        unwritten: bool,
    ) -> Result<(), Error> {
        let mut logical = at;
        for blocks in runs {
            let run = blocks.run();
            let piece = Run {
                logical,
                start: run.start,
                len: run.len.into(),
                unwritten,
            };
            self.set_goal(FsBlock(run.start.0 + u64::from(run.len)));
            self.put(piece)?;
            logical = piece.end();
            self.taken.push(blocks);
        }
        Ok(())
    }

    /// Maps blocks that belong to the file already.
    pub(crate) fn put(&mut self, piece: Run) -> Result<(), Error> {
        self.touched.push(piece.logical..piece.end());
        match &mut self.form {
            Form::Tree(tree) => tree.insert(piece),
            Form::Map(map) => map.insert(piece),
        }
    }

    fn set_goal(&mut self, goal: FsBlock) {
        match &mut self.form {
            Form::Tree(tree) => tree.ground.goal = goal,
            Form::Map(map) => map.ground.goal = goal,
        }
    }

    /// Unmaps the first part of a range, as much of it as one step may. Returns what was mapped, whose blocks still
    /// belong to the file, and the block where the rest of the range begins.
    ///
    /// # Errors
    /// `NoSpace` when an extent is split and needs a new node; `Corrupt`, `Io`.
    pub(crate) fn take(&mut self, range: Range<u64>) -> Result<(Vec<Run>, u64), Error> {
        let (pieces, done) = match &mut self.form {
            Form::Tree(tree) => tree.take(range, &mut self.budget),
            Form::Map(map) => map.take(range, &mut self.budget),
        }?;
        // A hole changes nothing.
        let touched = pieces.iter().map(|piece| piece.logical..piece.end());
        self.touched.extend(touched);
        Ok((pieces, done))
    }

    /// Unmaps and frees the first part of a range, as much of it as one step may. Returns the block where the rest of
    /// the range begins.
    ///
    /// # Errors
    /// As [`ExtentDraft::take`].
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Result<u64, Error> {
        match &mut self.form {
            Form::Tree(tree) => tree.ground.purpose = BlockPurpose::Freeing,
            Form::Map(map) => map.ground.purpose = BlockPurpose::Freeing,
        }
        let (pieces, done) = self.take(range)?;
        for piece in pieces {
            match self.freed.last_mut() {
                Some((start, len)) if start.0 + *len == piece.start.0 => *len += piece.len,
                _ => self.freed.push((piece.start, piece.len)),
            }
        }
        Ok(done)
    }

    /// Unmaps a range of any size in this draft, to try what comes after it; the draft is then dropped.
    ///
    /// # Errors
    /// As [`ExtentDraft::take`].
    pub(crate) fn remove_for_trial(&mut self, range: Range<u64>) -> Result<(), Error> {
        let mut at = range.start;
        while at < range.end {
            at = self.take(at..range.end)?.1;
            self.budget.begin();
        }
        Ok(())
    }

    /// All blocks that the map maps or consists of.
    ///
    /// # Errors
    /// As [`ExtentDraft::take`].
    pub(crate) fn into_blocks(mut self) -> Result<Vec<(FsBlock, u64)>, Error> {
        let (mut blocks, mut at, end) = (Vec::new(), 0, 1 << 32);
        while at < end {
            let (pieces, done) = self.take(at..end)?;
            blocks.extend(pieces.iter().map(|piece| (piece.start, piece.len)));
            at = done;
            self.budget.begin();
        }
        // Every node was visited.
        let nodes: Vec<FsBlock> = match &self.form {
            Form::Tree(tree) => tree.old_nodes().collect(),
            Form::Map(map) => map.old_nodes().collect(),
        };
        blocks.extend(nodes.into_iter().map(|node| (node, 1)));
        Ok(blocks)
    }

    /// Makes the mapped blocks of the first part of a range written or unwritten, as much of it as one step may.
    /// Returns the block where the rest of the range begins.
    ///
    /// # Errors
    /// As [`ExtentDraft::take`].
    pub(crate) fn convert(&mut self, range: Range<u64>, unwritten: bool) -> Result<u64, Error> {
        self.budget.puts_back = true;
        let (pieces, done) = self.take(range)?;
        for piece in pieces {
            self.put(Run { unwritten, ..piece })?;
        }
        Ok(done)
    }

    /// Moves everything from block `from` on by `by` blocks, in one step. Nothing is mapped where it moves to.
    ///
    /// # Errors
    /// `FileTooLarge` when the end would be beyond what a map can express; `NotSupported` when more nodes would change
    /// than one step may change; as [`ExtentDraft::take`].
    pub(crate) fn shift(&mut self, from: u64, by: i64) -> Result<(), Error> {
        self.budget.puts_back = true;
        self.budget.most_nodes = SHIFT_NODES;
        self.shifts = true;
        let end = 1 << 32;
        let (pieces, done) = self.take(from..end)?;
        if done < end {
            return Err(Error::NotSupported(
                "moving this many extents of one file at once",
            ));
        }
        for piece in pieces {
            let logical = piece.logical.checked_add_signed(by);
            let logical = logical.ok_or(Error::FileTooLarge)?;
            self.put(Run { logical, ..piece })?;
        }
        Ok(())
    }

    /// Finishes preparing, and pins all nodes that change.
    ///
    /// # Errors
    /// `FileTooLarge` when the inode can't count the file's blocks; `Corrupt`, `Io`.
    pub(crate) fn prepare(self) -> Result<MapChange<'a>, Error> {
        let volume = self.ground.mounted.volume();
        let outcome = match self.form {
            Form::Tree(tree) => tree.finish()?,
            Form::Map(map) => map.finish(),
        };
        let seal = if self.kind == Kind::Extents && volume.geometry().has_metadata_csum() {
            Seal::Extents(self.ground.seed)
        } else {
            Seal::None
        };
        let mut change = MapChange {
            mounted: self.ground.mounted,
            inode: self.inode,
            root: outcome.root,
            sectors: self.sectors,
            nodes: Vec::new(),
            taken: self.taken,
            freed: self.freed,
            freeing: None,
            forgotten: Vec::new(),
            touched: (self.kind == Kind::Extents && !self.shifts).then_some(self.touched),
        };
        if self.budget.is_metadata {
            let blocks = |(start, len): &(FsBlock, u64)| start.0..start.0 + len;
            change.forgotten = change.freed.iter().flat_map(blocks).map(FsBlock).collect();
        }
        for (home, bytes) in outcome.nodes {
            let (block, kind, ino) = (home.block(), self.kind, self.ground.ino);
            // Blocks of pointers are read without an owner, because they have no checksum.
            let owner = if kind == Kind::Extents { ino } else { Ino(0) };
            let pin = match home {
                Home::New(blocks) => {
                    change.taken.push(blocks);
                    volume.pin_new(block, kind, owner, seal)?
                }
                _ => volume.pin(block, kind, owner, seal, |_| Ok(()))?,
            };
            change.nodes.push((pin, bytes));
        }
        change
            .freed
            .extend(outcome.gone.iter().map(|block| (*block, 1)));
        change.forgotten.extend(outcome.gone);
        change.finish()
    }
}

/// Where the nodes of a map should be if nothing else is known: in the inode's group.
fn goal_of(mounted: &LiveFs, ino: Ino, is_tree: bool) -> FsBlock {
    let geometry = mounted.volume().geometry();
    geometry.group_first_block(home_group(geometry, ino, is_tree))
}

/// The group that an inode's blocks should be in if nothing else is known: its own. Pointers of a map without extents
/// have 32 bits; inodes in groups that they do not reach are spread evenly over the groups that they do reach.
pub(crate) fn home_group(geometry: &Geometry, ino: Ino, is_tree: bool) -> Group {
    let own = geometry.group_of_ino(ino).map_or(0, |(group, _)| group.0);
    Group(own % Reach::of_map(is_tree).groups(geometry))
}

/// Sorts runs and joins adjacent ones, so that each group is visited once, for few runs.
fn merge(runs: &mut Vec<(FsBlock, u64)>) {
    runs.sort_unstable();
    runs.dedup_by(|(start, len), (before, before_len)| {
        let follows = before.0 + *before_len == start.0;
        if follows {
            *before_len += *len;
        }
        follows
    });
}

/// A prepared change of a map: everything that its apply needs.
pub(crate) struct MapChange<'a> {
    mounted: &'a LiveFs,
    inode: &'a Exclusive<'a>,
    root: Option<[u8; BLOCK_AREA]>,
    /// The space that the file takes, in sectors: before the change until [`MapChange::finish`] ran, then after it.
    sectors: u64,
    nodes: Vec<(Pin, Box<[u8]>)>,
    taken: Vec<TakenBlocks<'a>>,
    freed: Vec<(FsBlock, u64)>,
    /// The blocks to be freed, claimed; set when everything is prepared.
    freeing: Option<Freeing<'a>>,
    forgotten: Vec<FsBlock>,
    /// The changed ranges for the fsync log; `None` for changes that fast commits can't express.
    touched: Option<Vec<Range<u64>>>,
}

impl MapChange<'_> {
    fn finish(mut self) -> Result<Self, Error> {
        let volume = self.mounted.volume();
        let (huge, size) = (
            volume.has(Feature::HUGE_FILE),
            volume.geometry().block_size(),
        );
        let taken: u64 = self
            .taken
            .iter()
            .map(|blocks| u64::from(blocks.run().len))
            .sum();
        let freed: u64 = self.freed.iter().map(|(_, len)| len).sum();
        let inode_number = self.inode.inode().ino();
        let sectors = self.sectors.saturating_add(taken << (size.bits() - 9));
        self.sectors = sectors.saturating_sub(freed << (size.bits() - 9));
        // Whether the count fits is the same for all inodes.
        if !Inode::zeroed().set_sectors(self.sectors, huge, size) {
            return Err(Error::FileTooLarge);
        }
        merge(&mut self.freed);
        self.freeing = Some(self.mounted.claim_blocks(inode_number, &self.freed)?);
        Ok(self)
    }

    /// How many blocks and revokes of its handle the apply uses, the inode's block included.
    pub(crate) fn cost(&self) -> (u32, u32) {
        let freed = self.freeing.as_ref().map_or(0, Freeing::cost);
        // A step touches some dozens of nodes and runs.
        let blocks = 1 + self.nodes.len() as u32 + mballoc::BLOCKS_A_RUN * self.taken.len() as u32;
        (blocks + freed, self.forgotten.len() as u32)
    }

    /// Changes the map, the inode's space, and the bitmaps in the handle's epoch.
    pub(crate) fn apply(self, handle: &Handle<'_>) {
        self.apply_and(handle, |_| {});
    }

    /// Does what [`MapChange::apply`] does, and also changes the inode's record by `and`.
    pub(crate) fn apply_and<R>(self, handle: &Handle<'_>, and: impl FnOnce(&mut Inode) -> R) -> R {
        let volume = self.mounted.volume();
        let (huge, size) = (
            volume.has(Feature::HUGE_FILE),
            volume.geometry().block_size(),
        );
        for (pin, bytes) in &self.nodes {
            pin.change(handle, |block| block.copy_from_slice(bytes));
        }
        let (result, has_index) = self.inode.change(handle, |inode| {
            let had_index = ondisk::extent::depth(inode.block_area()) > 0;
            if let Some(root) = self.root {
                *inode.block_area_mut() = root;
            }
            // The count fits: `finish` tried it.
            let _ = inode.set_sectors(self.sectors, huge, size);
            let has_index = had_index || ondisk::extent::depth(inode.block_area()) > 0;
            (and(inode), has_index)
        });
        if let Some(changes) = self.mounted.changes() {
            let ino = self.inode.inode().ino();
            match &self.touched {
                Some(touched) => changes.note_ranges(handle, ino, touched, has_index),
                None => self.inode.inode().set_unloggable(handle),
            }
        }
        for blocks in self.taken {
            blocks.apply(handle);
        }
        for block in self.forgotten {
            handle.forget(block);
        }
        if let Some(freeing) = self.freeing {
            freeing.apply(handle);
        }
        result
    }
}
