//! Decides where everything of a tree goes, and how large the image must be, before a byte is written.
//!
//! The walk over the tree ([`place`]) runs once over endless space, which tells what is needed; the smallest layout
//! that has it is searched; then the walk runs over that layout's free space. Only the maps of fragmented files can
//! need more there than in endless space: then the layout grows by what was missing, and the walk runs again.
//! Everything is a pure function of tree and options, the same on every host.

pub(crate) mod directories;
pub(crate) mod inodes;
pub(crate) mod maps;
pub(crate) mod place;
pub(crate) mod shape;
pub(crate) mod size;
pub(crate) mod space;
pub(crate) mod xattrs;

use mkfs::{Layout, Options};
use ondisk::BlockSize;
use ondisk::features::Feature;

use self::inodes::Inodes;
use self::place::{FilePlace, LOST_FOUND, Placement, Placer, StreamTable, VALUE};
use self::shape::Shape;
pub use self::size::{Extra, Size};
use self::size::{proportional_inodes, usable_bytes};
use self::space::Space;
use self::xattrs::XattrPlans;
use crate::source::{Kind, NodeId, Tree};

/// How often a layout may grow by what was missing before we give up; each time the shortage shrinks.
const GROW_TRIES: u32 = 32;
/// The largest image whose size is searched for: what 2^32 blocks of 64 KiB hold, less than 2^48 of 4 KiB.
const SIZE_MAX: u64 = 1 << 48;
/// Bytes from which on a file needs the feature large_file.
const LARGE_FILE_BYTES: u64 = 1 << 31;
/// Inode numbers have 32 bits.
const INODES_MAX: u64 = u32::MAX as u64;
/// Blocks from which on a file system has a journal, as from mke2fs.
const JOURNAL_FROM_BLOCKS: u64 = 2048;

/// What there is too little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shortage {
    /// So many clusters are missing, at least.
    Clusters(u64),
    /// So many inodes are missing, at least.
    Inodes(u64),
}

/// Why there is no plan.
#[derive(Debug)]
pub(crate) enum PlanError {
    /// The image is too small.
    Short(Shortage),
    /// One node can't be held.
    Node {
        /// Its path in the image.
        path: String,
        /// Why.
        problem: String,
    },
    /// A directory needs the feature large_dir.
    NeedsLargeDir,
    /// The file system can't be made.
    Mkfs(mkfs::Error),
    /// The image would need more bytes than given.
    TooSmall {
        /// Bytes given.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// More inodes than `-N` says are needed.
    TooFewInodes {
        /// Inodes given.
        given: u64,
        /// Inodes needed.
        needed: u64,
    },
}

impl From<mkfs::Error> for PlanError {
    fn from(error: mkfs::Error) -> PlanError {
        PlanError::Mkfs(error)
    }
}

/// Everything decided.
pub(crate) struct Plan {
    /// Where the metadata of the file system lies.
    pub layout: Layout,
    /// Its numbers.
    pub shape: Shape,
    /// Where the tree lies.
    pub placement: Placement,
    /// By node: blocks of a directory; 0 for other nodes.
    pub directory_blocks: Vec<u32>,
    /// The root's owner, where `-E root_owner` says so.
    pub root_owner: Option<(u32, u32)>,
}

impl Plan {
    /// Whether these are the blocks of a directory.
    pub(crate) fn is_directory(&self, file: &FilePlace) -> bool {
        match file.node {
            LOST_FOUND => true,
            VALUE => false,
            node => self.directory_blocks[node as usize] != 0,
        }
    }
}

/// What a tree needs, whatever the size.
#[derive(Clone, Copy, Debug)]
struct Demand {
    /// Clusters outside the layout.
    clusters: u64,
    /// Inodes, those of the layout included.
    inodes: u64,
    /// A journal, without which small file systems are made otherwise.
    journal: bool,
    /// The byte at which what is taken already ends.
    end: u64,
    /// Blocks a group, where the tree's inodes must not make the groups smaller: a given size is laid out alike from a
    /// file and from a pipe, whose groups are settled before its inodes are known.
    group_blocks: Option<u32>,
}

/// Plans an image of this size.
///
/// # Errors
/// When the tree does not fit, naming what is needed; when a node can't be held; when options contradict.
pub(crate) fn plan(tree: &Tree, options: &Options, size: Size) -> Result<Plan, PlanError> {
    // Below so many blocks the shape would have no journal, and none would be asked for.
    let with_journal = JOURNAL_FROM_BLOCKS << options.block_size_or(BlockSize::K4).bits();
    let least = first_guess(tree).max(with_journal);
    let guess = match size {
        Size::Fixed(bytes) => bytes.max(least),
        Size::Auto(_) => least,
    };
    let guess = guess.saturating_add(journal_room(options)).min(SIZE_MAX);
    plan_around(tree, options, size, guess, &Taken::default())
}

/// Blocks that are taken before there is a plan.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Whole clusters, ascending, not overlapping.
    pub runs: Vec<mkfs::Run>,
    /// The files they belong to.
    pub files: StreamTable,
}

/// As [`plan`], around blocks that are taken already; `guess` is about the size.
///
/// # Errors
/// As [`plan`].
pub(crate) fn plan_around(
    tree: &Tree,
    options: &Options,
    size: Size,
    guess: u64,
    taken: &Taken,
) -> Result<Plan, PlanError> {
    let settled = Settled::new(tree, options, guess, taken)?;
    let demand = settled.demand()?;
    let mut clusters = demand.clusters;
    for _ in 0..GROW_TRIES {
        let demand = Demand { clusters, ..demand };
        let layout = match size {
            Size::Fixed(bytes) if options.stream.is_some() => {
                settled.layout_around_stream(bytes, demand)?
            }
            _ => settled.layout(demand, size)?,
        };
        let space = settled.free_space(&layout);
        match settled.place(layout, space) {
            Err(PlanError::Short(Shortage::Clusters(missing))) => clusters += missing,
            Ok(plan) => match settled.missing_room(&plan, size) {
                0 => return Ok(plan),
                missing => clusters += missing,
            },
            Err(error) => return Err(error),
        }
    }
    Err(PlanError::Short(Shortage::Clusters(
        clusters - demand.clusters,
    )))
}

/// What does not depend on the size: the options with all that is random chosen, and what each node needs.
pub(crate) struct Settled<'a> {
    tree: &'a Tree,
    options: Options,
    shape: Shape,
    directory_blocks: Vec<u32>,
    xattrs: XattrPlans,
    taken: &'a Taken,
    /// Bytes of files' data.
    tree_bytes: u64,
}

impl<'a> Settled<'a> {
    /// Looks at every node, for an image of about `guess` bytes.
    ///
    /// # Errors
    /// As [`plan`], but for the size.
    pub(crate) fn new(
        tree: &'a Tree,
        options: &Options,
        guess: u64,
        taken: &'a Taken,
    ) -> Result<Self, PlanError> {
        let mut options = options.clone();
        let mut shape = probe(&mut options, guess)?;
        let directory_blocks = match directories::blocks(tree, &shape) {
            Err(PlanError::NeedsLargeDir) if options.may_have_feature(Feature::LARGE_DIR) => {
                let separator = if options.features.is_empty() { "" } else { "," };
                options.features.push_str(separator);
                options.features.push_str("large_dir");
                shape = probe(&mut options, guess)?;
                directories::blocks(tree, &shape)?
            }
            blocks => blocks?,
        };
        let xattrs = XattrPlans::of(tree, &shape)?;
        check_large_files(tree, &shape)?;
        Ok(Settled {
            tree,
            options,
            shape,
            directory_blocks,
            xattrs,
            taken,
            tree_bytes: data_bytes(tree),
        })
    }

    fn placer<'b>(&'b self, shape: &'b Shape) -> Placer<'b> {
        Placer {
            tree: self.tree,
            shape,
            directory_blocks: &self.directory_blocks,
            xattrs: &self.xattrs,
            streamed: &self.taken.files,
        }
    }

    /// Walks over space without an end.
    fn demand(&self) -> Result<Demand, PlanError> {
        let endless = Space::unbounded(self.shape.cluster_bytes());
        let all = endless.free();
        let reserved = self.shape.first_free_ino.0 - 1;
        let inodes = Inodes::new(1, u32::MAX, reserved);
        let placement = self.placer(&self.shape).place(endless, inodes)?;
        let end = self.taken.runs.last().map_or(0, |run| run.end().0);
        Ok(Demand {
            clusters: all - placement.space.free(),
            inodes: placement.inodes.used().iter().copied().map(u64::from).sum(),
            journal: self.shape.geometry.has(Feature::HAS_JOURNAL),
            end: end << self.shape.block_size.bits(),
            group_blocks: None,
        })
    }

    /// What a layout leaves free, without what is taken.
    fn free_space(&self, layout: &Layout) -> Space {
        free_space(layout, &self.options, self.taken)
    }

    /// The layout for what is needed.
    fn layout(&self, demand: Demand, size: Size) -> Result<Layout, PlanError> {
        match size {
            Size::Fixed(bytes) => {
                // A given size has a journal if there is room for one, as from mke2fs.
                let demand = Demand {
                    group_blocks: self.usual_group_blocks(bytes),
                    ..demand
                };
                let modest = Demand {
                    journal: false,
                    ..demand
                };
                match self.attempt(bytes, modest, Room::Proportional)? {
                    Some(layout) => Ok(layout),
                    None => Err(self.too_small(bytes, demand)?),
                }
            }
            Size::Auto(Extra::None) => self.smallest(demand, Room::None),
            Size::Auto(Extra::Usable) => self.smallest(demand, Room::Usable),
            Size::Auto(extra) => {
                let bytes = extra.add(self.smallest(demand, Room::None)?.size_bytes());
                match self.attempt(bytes, demand, Room::Proportional)? {
                    Some(layout) => Ok(layout),
                    None => Err(self.too_small(bytes, demand)?),
                }
            }
        }
    }

    /// The layout of a given size around data that is already there, so no other size can be tried.
    fn layout_around_stream(&self, given: u64, demand: Demand) -> Result<Layout, PlanError> {
        let modest = Demand {
            journal: false,
            ..demand
        };
        if let Some(layout) = self.attempt(given, modest, Room::Proportional)? {
            return Ok(layout);
        }
        let free = match layout_for(&self.options, given, 0, self.taken) {
            Ok(layout) => self.free_space(&layout).free(),
            Err(PlanError::Mkfs(mkfs::Error::TooSmall { .. })) => 0,
            Err(error) => return Err(error),
        };
        let missing = demand.clusters.saturating_sub(free).max(1) * self.shape.cluster_bytes();
        // Bitmaps of one block describe the inodes of a group. The last group may end early.
        let groups = demand
            .inodes
            .div_ceil(8 * self.shape.block_size.bytes_u64());
        let group = u64::from(self.shape.geometry.blocks_per_group());
        let for_inodes = (groups.saturating_sub(1) * group) << self.shape.block_size.bits();
        Err(PlanError::TooSmall {
            given,
            needed: (given + missing).max(for_inodes),
        })
    }

    /// Clusters that the maps of fragmented files took from the room of a usable image.
    fn missing_room(&self, plan: &Plan, size: Size) -> u64 {
        if size != Size::Auto(Extra::Usable) {
            return 0;
        }
        let cluster = self.shape.cluster_bytes();
        let wanted = self.usable_bytes(&plan.layout).div_ceil(cluster);
        wanted.saturating_sub(plan.placement.space.free())
    }

    /// The bytes that are free in a usable image with this layout.
    fn usable_bytes(&self, layout: &Layout) -> u64 {
        let reserved = layout.superblock().reserved_blocks_count() << self.shape.block_size.bits();
        let cluster = self.shape.cluster_bytes();
        usable_bytes(layout.size_bytes(), self.tree_bytes, reserved, cluster)
    }

    /// Blocks a group in an image of this size with the usual number of inodes, or with the number that was asked for.
    fn usual_group_blocks(&self, bytes: u64) -> Option<u32> {
        let usual = Layout::plan(bytes, &self.options).ok()?;
        Some(usual.geometry().blocks_per_group())
    }

    /// The error that names the size that is needed.
    fn too_small(&self, given: u64, demand: Demand) -> Result<PlanError, PlanError> {
        let needed = self.smallest(demand, Room::None)?.size_bytes();
        Ok(PlanError::TooSmall { given, needed })
    }

    /// Places everything in `space` of a layout.
    fn place(&self, layout: Layout, space: Space) -> Result<Plan, PlanError> {
        let shape = Shape::of(&layout, self.options.lost_found);
        let inodes = Inodes::new(
            shape.groups,
            shape.inodes_per_group,
            shape.first_free_ino.0 - 1,
        );
        let placement = self.placer(&shape).place(space, inodes)?;
        Ok(Plan {
            layout,
            shape,
            placement,
            directory_blocks: self.directory_blocks.clone(),
            root_owner: self.options.root_owner,
        })
    }

    /// Bytes that a layout leaves free when all that is needed is placed; `None` if it has too little of anything.
    fn free_beside(&self, layout: &Layout, demand: Demand) -> Option<u64> {
        let enough = u64::from(layout.geometry().inodes_count()) >= demand.inodes
            && (!demand.journal || layout.geometry().has(Feature::HAS_JOURNAL))
            && demand
                .group_blocks
                .is_none_or(|blocks| layout.geometry().blocks_per_group() >= blocks);
        let free = self.free_space(layout).free().checked_sub(demand.clusters);
        free.filter(|_| enough)
            .map(|free| free * self.shape.cluster_bytes())
    }

    /// The layout of so many bytes, if it has what is needed.
    fn attempt(&self, bytes: u64, demand: Demand, room: Room) -> Result<Option<Layout>, PlanError> {
        let Some((layout, free)) = self.fitting(bytes, demand, demand.inodes)? else {
            return Ok(None);
        };
        if room == Room::None {
            return Ok(Some(layout));
        }
        let ratio = self.options.inode_ratio_or_default();
        let inode_size = self.shape.inode_size as u64;
        let more = proportional_inodes(demand.inodes, free, ratio, inode_size);
        let (layout, free) = match u64::from(layout.geometry().inodes_count()) < more {
            // Where so many can't be had, the tree alone still fits.
            true if self.options.inodes.is_none() => self
                .fitting(bytes, demand, more)
                .unwrap_or_default()
                .unwrap_or((layout, free)),
            _ => (layout, free),
        };
        let is_roomy = room == Room::Proportional || free >= self.usable_bytes(&layout);
        Ok(is_roomy.then_some(layout))
    }

    /// The layout of so many bytes with at least so many inodes, and the bytes that it leaves free.
    fn fitting(
        &self,
        bytes: u64,
        demand: Demand,
        inodes: u64,
    ) -> Result<Option<(Layout, u64)>, PlanError> {
        match self.layout_with(bytes, inodes, demand.inodes) {
            Ok(layout) => Ok(self.free_beside(&layout, demand).map(|free| (layout, free))),
            Err(PlanError::Mkfs(mkfs::Error::TooSmall { .. })) => Ok(None),
            // Where the size is ours, a journal that was asked for makes it larger.
            Err(PlanError::Mkfs(mkfs::Error::NoRoomForJournal { .. })) if demand.journal => {
                Ok(None)
            }
            // The size has too few groups for so many inodes.
            Err(PlanError::Mkfs(mkfs::Error::Option { option, .. }))
                if option == "-N"
                    && self
                        .options
                        .inodes
                        .is_none_or(|number| number <= INODES_MAX) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The layout of `bytes` bytes with about `inodes` inodes, and with at least `least`, which the tree needs, where
    /// these fit.
    fn layout_with(&self, bytes: u64, inodes: u64, least: u64) -> Result<Layout, PlanError> {
        let layout = layout_for(&self.options, bytes, inodes, self.taken)?;
        let is_enough = u64::from(layout.geometry().inodes_count()) >= least;
        if is_enough || self.options.inodes.is_some() {
            return Ok(layout);
        }
        // A group's inodes fill whole bytes of its bitmap, and the number was rounded down to these.
        let groups = u64::from(layout.geometry().groups()).max(1);
        let rounded = least.div_ceil(groups).next_multiple_of(8) * groups;
        layout_for(&self.options, bytes, rounded, self.taken)
    }

    /// The smallest layout that has what is needed, and the room.
    fn smallest(&self, demand: Demand, room: Room) -> Result<Layout, PlanError> {
        let unit = self.shape.cluster_bytes();
        // Invariant: `low` units are too few; `found` is enough.
        let mut low = demand.clusters.max(demand.end / unit).saturating_sub(1);
        let mut step = (low / 8).max(256);
        // A size may have too few groups for its inodes, and a larger one enough. If none has, the first such error is
        // the reason.
        let mut refused = None;
        let mut attempt = |units: u64| match self.attempt(units * unit, demand, room) {
            Err(error) if is_of_ratio(&error) => {
                refused.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(refused.take().unwrap_or(error)),
            attempt => attempt,
        };
        let (mut high, mut found) = loop {
            let high = low + step;
            match attempt(high)? {
                Some(layout) => break (high, layout),
                None if high * unit > SIZE_MAX => {
                    if let Some(error) = refused {
                        return Err(error);
                    }
                    // Asks once more for the error that says why.
                    return layout_for(&self.options, SIZE_MAX, demand.inodes, self.taken);
                }
                None => (low, step) = (high, step * 2),
            }
        };
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match attempt(middle)? {
                Some(layout) => (high, found) = (middle, layout),
                None => low = middle,
            }
        }
        Ok(found)
    }
}

/// Whether a size can't have its inodes by the ratio that was asked for.
fn is_of_ratio(error: &PlanError) -> bool {
    matches!(error, PlanError::Mkfs(mkfs::Error::Option { option, .. }) if option == "-i")
}

/// The room that a layout has beside the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    /// None.
    None,
    /// Inodes in proportion to what is free, whatever that is.
    Proportional,
    /// Also the free bytes of a usable image.
    Usable,
}

/// What a layout leaves free, without what is taken.
fn free_space(layout: &Layout, options: &Options, taken: &Taken) -> Space {
    let shape = Shape::of(layout, options.lost_found);
    let space = shape.free_space(layout);
    if taken.runs.is_empty() {
        return space;
    }
    let bits = shape.cluster_bits;
    let runs = taken.runs.iter();
    let clusters: Vec<_> = runs
        .map(|run| run.start.0 >> bits..run.end().0 >> bits)
        .collect();
    space.without(&clusters, shape.cluster_bytes())
}

/// Makes all later layouts have this one's UUID and hash seed.
pub(crate) fn keep_identity(options: &mut Options, layout: &Layout) {
    let superblock = layout.superblock();
    options.uuid = Some(superblock.uuid());
    let words = superblock.hash_seed();
    let mut seed = [0; 16];
    for (bytes, word) in seed.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    options.hash_seed = Some(seed);
}

/// The shape of an image of about this size. What is random is chosen here, once for all layouts: directories lie
/// in the order of hashes with a seed.
fn probe(options: &mut Options, bytes: u64) -> Result<Shape, PlanError> {
    // How many inodes there are changes nothing that is looked at here, and so many may need a larger size.
    let mut any = options.clone();
    (any.inodes, any.inode_ratio) = (None, None);
    let layout = layout_for(&any, bytes, 0, &Taken::default())?;
    keep_identity(options, &layout);
    Ok(Shape::of(&layout, options.lost_found))
}

/// Bytes for a journal that the options describe, which may be half of a file system at most.
pub(crate) fn journal_room(options: &Options) -> u64 {
    let size = options
        .journal
        .size_mib
        .unwrap_or(0)
        .saturating_mul(4 << 20);
    let fast_commit = options.journal.fast_commit_kib.unwrap_or(0);
    size.saturating_add(fast_commit.saturating_mul(4 << 10))
}

/// Refuses files that need a feature which the options leave out.
fn check_large_files(tree: &Tree, shape: &Shape) -> Result<(), PlanError> {
    if shape.geometry.has(Feature::LARGE_FILE) {
        return Ok(());
    }
    let is_large =
        |id: &NodeId| matches!(tree.kind(*id), Kind::File { size } if size >= LARGE_FILE_BYTES);
    match tree.nodes().find(is_large) {
        None => Ok(()),
        Some(id) => Err(PlanError::Node {
            path: tree.path(id).escape_ascii().to_string(),
            problem: "it has 2 GiB or more, and the file system is without large_file".into(),
        }),
    }
}

fn data_bytes(tree: &Tree) -> u64 {
    tree.nodes().map(|id| tree.data_bytes(id)).sum()
}

/// A size that surely holds the tree: for learning the shape only.
fn first_guess(tree: &Tree) -> u64 {
    let data = data_bytes(tree);
    let guess = data + data / 16 + (tree.len() as u64) * 1024 + (64 << 20);
    guess.min(SIZE_MAX)
}

/// The layout of so many bytes with at least so many inodes: mke2fs's ratio where it gives enough, else as many as
/// are needed. A number of inodes that the user gave stays.
fn layout_for(
    options: &Options,
    bytes: u64,
    inodes: u64,
    taken: &Taken,
) -> Result<Layout, PlanError> {
    let layout = Layout::plan_around(bytes, options, &taken.runs)?;
    let given = u64::from(layout.geometry().inodes_count());
    if given >= inodes {
        return Ok(layout);
    }
    if options.inodes.is_some() || inodes > INODES_MAX {
        return Err(PlanError::TooFewInodes {
            given,
            needed: inodes,
        });
    }
    let enough = Options {
        inodes: Some(inodes),
        ..options.clone()
    };
    Ok(Layout::plan_around(bytes, &enough, &taken.runs)?)
}
