//! Decides where everything of a tree goes, and how large the image must be, before a byte is written.
//!
//! The walk over the tree ([`place`]) first runs over unbounded space, which gives the space that is needed. Then the
//! smallest layout with that space is searched for, and the walk runs over its free space. Only the maps of fragmented
//! files can need more there than in unbounded space: then the layout grows by what was missing, and the walk runs
//! again. Everything is a pure function of tree and options, the same on every host.

pub(crate) mod directories;
pub(crate) mod error;
pub(crate) mod inodes;
pub(crate) mod place;
pub(crate) mod shape;
pub(crate) mod size;
pub(crate) mod space;
pub(crate) mod xattrs;

use mkfs::{Layout, Options, OtherSize};
use ondisk::BlockSize;
use ondisk::features::Feature;

use self::error::{PlanError, Shortage};
use self::inodes::Inodes;
use self::place::{BlockOwner, FilePlace, Placement, StreamTable, TreePlacer};
use self::shape::ImageFormat;
pub use self::size::{Extra, Size};
use self::size::{proportional_inodes, usable_bytes};
use self::space::FreeClusters;
use self::xattrs::XattrPlans;
use crate::source::{Kind, NodeId, SourceTree};

/// How often a layout may grow by what was missing before we give up; each time the shortage shrinks.
const GROW_TRIES: u32 = 32;
/// The largest image whose size is searched for: what 2^32 blocks of 64 KiB hold, less than 2^48 of 4 KiB.
const SIZE_MAX: u64 = 1 << 48;
/// The search ends at this number of groups, or at this many times what is needed where that is more. Inode tables that
/// leave no room there leave none anywhere, and a search further on would only take memory.
const SEARCH_GROUPS: u64 = 1 << 14;
const SEARCH_TIMES: u64 = 256;
/// If an option rules out only sizes that are more than this many times what the tree needs, it is not the reason why
/// no size fits: in all smaller sizes, the inode tables left no room.
const REASON_TIMES: u64 = 1 << 10;
/// Bytes from which on a file needs the feature large_file.
const LARGE_FILE_BYTES: u64 = 1 << 31;
/// Inode numbers have 32 bits.
const INODES_MAX: u64 = u32::MAX as u64;
/// Blocks from which on a file system has a journal, as from mke2fs.
const JOURNAL_FROM_BLOCKS: u64 = 2048;

/// Everything decided.
pub(crate) struct ImagePlan {
    /// Where the metadata of the file system lies.
    pub layout: Layout,
    /// Its numbers.
    pub shape: ImageFormat,
    /// Where the tree lies.
    pub placement: Placement,
    /// By node: blocks of a directory; 0 for other nodes.
    pub directory_blocks: Vec<u32>,
    /// The root's owner, as given by `-E root_owner`.
    pub root_owner: Option<(u32, u32)>,
}

impl ImagePlan {
    /// Whether these are the blocks of a directory.
    pub(crate) fn is_directory(&self, file: &FilePlace) -> bool {
        match file.owner {
            BlockOwner::Value => false,
            BlockOwner::Node(id) => self.directory_blocks[id.index()] != 0,
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
pub(crate) fn plan(
    tree: &SourceTree,
    options: &Options,
    size: Size,
) -> Result<ImagePlan, PlanError> {
    plan_around(tree, options, size, &EarlyBlocks::default())
}

/// About the size of the image, from the tree alone: the same for a file and a pipe.
fn guess(tree: &SourceTree, options: &Options, size: Size) -> u64 {
    // An image below this size would have no journal, unless an option asks for one.
    let with_journal = JOURNAL_FROM_BLOCKS << options.block_size_or(BlockSize::K4).bits();
    let least = first_guess(tree).max(with_journal);
    let guess = match size {
        Size::Fixed(bytes) => bytes.max(least),
        Size::Auto(_) => least,
    };
    guess.saturating_add(journal_room(options)).min(SIZE_MAX)
}

/// Blocks that are taken before there is a plan.
#[derive(Debug, Default)]
pub(crate) struct EarlyBlocks {
    /// Whole clusters, ascending, not overlapping.
    pub runs: Vec<mkfs::BlockRun>,
    /// The files they belong to.
    pub files: StreamTable,
}

/// As [`plan`], around blocks that are taken already.
///
/// # Errors
/// As [`plan`].
pub(crate) fn plan_around(
    tree: &SourceTree,
    options: &Options,
    size: Size,
    taken: &EarlyBlocks,
) -> Result<ImagePlan, PlanError> {
    let guess = guess(tree, options, size);
    let mut settled = Settled::new(tree, options, guess, taken)?;
    let demand = settled.demand()?;
    settled.check_inodes(demand)?;
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
    tree: &'a SourceTree,
    options: Options,
    shape: ImageFormat,
    directory_blocks: Vec<u32>,
    xattrs: XattrPlans,
    taken: &'a EarlyBlocks,
    /// Bytes of files' data.
    tree_bytes: u64,
}

impl<'a> Settled<'a> {
    /// Looks at every node, for an image of about `guess` bytes.
    ///
    /// # Errors
    /// Those of [`plan`], except the size.
    pub(crate) fn new(
        tree: &'a SourceTree,
        options: &Options,
        guess: u64,
        taken: &'a EarlyBlocks,
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

    /// Compares the number of inodes that was asked for with what the tree needs. A whole block of an inode table may
    /// hold more than was asked for, and the tree may have these whatever the number of groups is.
    ///
    /// # Errors
    /// When they are too few.
    fn check_inodes(&mut self, demand: Demand) -> Result<(), PlanError> {
        let Some(asked) = self.options.inodes else {
            return Ok(());
        };
        let per_block = self.shape.block_size.bytes_u64() / self.shape.inode_size as u64;
        let given = asked.next_multiple_of(per_block.max(8));
        if demand.inodes > given {
            return Err(PlanError::TooFewInodes {
                given,
                needed: demand.inodes,
            });
        }
        self.options.inodes = Some(asked.max(demand.inodes));
        Ok(())
    }

    fn placer<'b>(&'b self, shape: &'b ImageFormat) -> TreePlacer<'b> {
        TreePlacer {
            tree: self.tree,
            shape,
            directory_blocks: &self.directory_blocks,
            xattrs: &self.xattrs,
            streamed: &self.taken.files,
        }
    }

    /// Walks over space without an end.
    fn demand(&self) -> Result<Demand, PlanError> {
        let endless = FreeClusters::unbounded(self.shape.cluster_bytes());
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
    fn free_space(&self, layout: &Layout) -> FreeClusters {
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
                    Attempt::Fits(layout) => Ok(*layout),
                    Attempt::Refused(..) => Err(self.too_small(bytes, demand)),
                }
            }
            Size::Auto(Extra::None) => self.smallest(demand, Room::None, 0),
            Size::Auto(Extra::Usable) => self.smallest(demand, Room::Usable, 0),
            Size::Auto(extra) => {
                let bytes = extra.add(self.smallest(demand, Room::None, 0)?.size_bytes());
                self.smallest(demand, Room::Proportional, bytes)
            }
        }
    }

    /// The layout of a given size around data that is already there, so no other size can be tried.
    fn layout_around_stream(&self, given: u64, demand: Demand) -> Result<Layout, PlanError> {
        let modest = Demand {
            journal: false,
            ..demand
        };
        if let Attempt::Fits(layout) = self.attempt(given, modest, Room::Proportional)? {
            return Ok(*layout);
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
    fn missing_room(&self, plan: &ImagePlan, size: Size) -> u64 {
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
    fn too_small(&self, given: u64, demand: Demand) -> PlanError {
        match self.smallest(demand, Room::None, 0) {
            Ok(layout) => PlanError::TooSmall {
                given,
                needed: layout.size_bytes(),
            },
            Err(_) => PlanError::TooSmallForAny { given },
        }
    }

    /// Places everything in `space` of a layout.
    fn place(&self, layout: Layout, space: FreeClusters) -> Result<ImagePlan, PlanError> {
        let shape = ImageFormat::of(&layout, self.options.lost_found);
        let inodes = Inodes::new(
            shape.groups,
            shape.inodes_per_group,
            shape.first_free_ino.0 - 1,
        );
        let placement = self.placer(&shape).place(space, inodes)?;
        Ok(ImagePlan {
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

    /// The layout of this number of bytes, if it has what is needed.
    ///
    /// # Errors
    /// What no other size mends.
    fn attempt(&self, bytes: u64, demand: Demand, room: Room) -> Result<Attempt, PlanError> {
        let (layout, free) = match self.fitting(bytes, demand, demand.inodes) {
            Ok(Some(fitting)) => fitting,
            Ok(None) => return Ok(Attempt::Refused(OtherSize::Larger, None)),
            Err(error) => return of_this_size(error),
        };
        if room == Room::None {
            return Ok(Attempt::Fits(layout.into()));
        }
        let ratio = self.options.inode_ratio_or_default();
        let inode_size = self.shape.inode_size as u64;
        let more = proportional_inodes(demand.inodes, free, ratio, inode_size);
        let needs_more = u64::from(layout.geometry().inodes_count()) < more;
        let (layout, free) = if needs_more && self.options.inodes.is_none() {
            // If the image can't have this number of inodes, the tree alone still fits.
            self.fitting(bytes, demand, more)
                .unwrap_or_default()
                .unwrap_or((layout, free))
        } else {
            (layout, free)
        };
        if room == Room::Proportional || free >= self.usable_bytes(&layout) {
            Ok(Attempt::Fits(layout.into()))
        } else {
            Ok(Attempt::Refused(OtherSize::Larger, None))
        }
    }

    /// The layout of this number of bytes with `inodes` inodes or more, and the bytes that it leaves free; `None` if it
    /// has too little of anything.
    fn fitting(
        &self,
        bytes: u64,
        demand: Demand,
        inodes: u64,
    ) -> Result<Option<(Layout, u64)>, PlanError> {
        let layout = self.layout_with(bytes, inodes, demand.inodes)?;
        Ok(self.free_beside(&layout, demand).map(|free| (layout, free)))
    }

    /// The layout of `bytes` bytes with about `inodes` inodes, and with at least `least`, which the tree needs, where
    /// these fit.
    fn layout_with(&self, bytes: u64, inodes: u64, least: u64) -> Result<Layout, PlanError> {
        let layout = layout_for(&self.options, bytes, inodes, self.taken)?;
        if u64::from(layout.geometry().inodes_count()) >= least {
            return Ok(layout);
        }
        // A group's inodes fill whole bytes of its bitmap, and the number was rounded down to these.
        let groups = u64::from(layout.geometry().groups()).max(1);
        let rounded = least.div_ceil(groups).next_multiple_of(8) * groups;
        layout_for(&self.options, bytes, rounded, self.taken)
    }

    /// The smallest layout of at least `least` bytes that has what is needed, and the room.
    ///
    /// # Errors
    /// What no size mends; where no size fits, the option that is the reason.
    fn smallest(&self, demand: Demand, room: Room, least: u64) -> Result<Layout, PlanError> {
        let unit = self.shape.cluster_bytes();
        let needed = demand.clusters.max(demand.end / unit);
        let low = needed.max(least.div_ceil(unit)).saturating_sub(1);
        let most = low
            .saturating_mul(SEARCH_TIMES)
            .max(SEARCH_GROUPS * u64::from(self.shape.geometry.clusters_per_group()));
        let mut search = Search {
            needed: low,
            low,
            high: most.min(SIZE_MAX / unit),
            found: None,
            refused: None,
        };
        let mut step = if least > 0 {
            1
        } else {
            (search.low / 8).max(256)
        };
        while search.found.is_none() && search.high - search.low > 1 {
            let units = (search.low + step).min(search.low + (search.high - search.low) / 2);
            search.take(units, self.attempt(units * unit, demand, room)?);
            step *= 2;
        }
        while search.found.is_some() && search.high - search.low > 1 {
            let units = search.low + (search.high - search.low) / 2;
            search.take(units, self.attempt(units * unit, demand, room)?);
        }
        let refused = search.refused.unwrap_or(PlanError::NoSize);
        search.found.ok_or(refused)
    }
}

/// What came of one size.
enum Attempt {
    /// All has room.
    Fits(Box<Layout>),
    /// The sizes that are left to try, and the reason where an option is one.
    Refused(OtherSize, Option<PlanError>),
}

/// The refusal of one size.
///
/// # Errors
/// What no other size mends.
fn of_this_size(error: PlanError) -> Result<Attempt, PlanError> {
    let PlanError::Mkfs(cause) = &error else {
        return Err(error);
    };
    match cause.other_size() {
        None => Err(error),
        Some(other) => {
            // What a larger size mends is not why no size fits.
            let is_reason = matches!(other, OtherSize::Smaller | OtherSize::Any);
            Ok(Attempt::Refused(other, is_reason.then_some(error)))
        }
    }
}

/// A search for the smallest size. Sizes are numbers of clusters.
struct Search {
    /// The clusters that the tree needs, without the file system's own structures.
    needed: u64,
    /// A size that is too small.
    low: u64,
    /// The smallest size that fits, or from which on none does.
    high: u64,
    found: Option<Layout>,
    /// Why an option was refused at the first size that refused it.
    refused: Option<PlanError>,
}

impl Search {
    fn take(&mut self, units: u64, attempt: Attempt) {
        match attempt {
            Attempt::Fits(layout) => (self.high, self.found) = (units, Some(*layout)),
            Attempt::Refused(other, error) => {
                match other {
                    OtherSize::Larger | OtherSize::Any => self.low = units,
                    OtherSize::Smaller | OtherSize::WithinLimits => self.high = units,
                }
                let is_reason = other == OtherSize::Any || units / REASON_TIMES <= self.needed;
                self.refused = self.refused.take().or(error.filter(|_| is_reason));
            }
        }
    }
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
fn free_space(layout: &Layout, options: &Options, taken: &EarlyBlocks) -> FreeClusters {
    let shape = ImageFormat::of(layout, options.lost_found);
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

/// The shape of an image of about this size, or of one that was streamed. What is random is chosen here, once for all
/// layouts: directories lie in the order of hashes with a seed.
///
/// # Errors
/// What an image of this size, planned as a whole, can't have.
fn probe(options: &mut Options, bytes: u64) -> Result<ImageFormat, PlanError> {
    // These options may need another size, and change nothing that is looked at here.
    let mut any = options.clone();
    (any.inodes, any.inode_ratio) = (None, None);
    (any.backup_superblocks, any.resize) = (None, None);
    any.stream = None;
    let planned = layout_for(&any, bytes, 0, &EarlyBlocks::default())?;
    let layout = match &options.stream {
        Some(stream) => stream.layout(options)?,
        None => planned,
    };
    keep_identity(options, &layout);
    Ok(ImageFormat::of(&layout, options.lost_found))
}

/// Bytes for a journal that the options describe, which may be half of a file system at most.
fn journal_room(options: &Options) -> u64 {
    let size = options
        .journal
        .size_mib
        .unwrap_or(0)
        .saturating_mul(4 << 20);
    let fast_commit = options.journal.fast_commit_kib.unwrap_or(0);
    size.saturating_add(fast_commit.saturating_mul(4 << 10))
}

/// Refuses files that need a feature which the options leave out.
fn check_large_files(tree: &SourceTree, shape: &ImageFormat) -> Result<(), PlanError> {
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

fn data_bytes(tree: &SourceTree) -> u64 {
    tree.nodes().map(|id| tree.data_bytes(id)).sum()
}

/// A size that surely holds the tree: for learning the shape only.
fn first_guess(tree: &SourceTree) -> u64 {
    let data = data_bytes(tree);
    let guess = data + data / 16 + (tree.len() as u64) * 1024 + (64 << 20);
    guess.min(SIZE_MAX)
}

/// The layout of `bytes` bytes with about `inodes` inodes: by mke2fs's ratio if that gives enough, otherwise `inodes`.
fn layout_for(
    options: &Options,
    bytes: u64,
    inodes: u64,
    taken: &EarlyBlocks,
) -> Result<Layout, PlanError> {
    let layout = Layout::plan_around(bytes, options, &taken.runs)?;
    let given = u64::from(layout.geometry().inodes_count());
    if given >= inodes {
        return Ok(layout);
    }
    if inodes > INODES_MAX {
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
