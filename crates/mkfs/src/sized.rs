//! A stream into an image of a given size: every place is chosen before the first byte of data.
//!
//! The layout is that of a file of the same size, with one difference: each inode table has room for more inodes than
//! usual, because the stream may turn out to have more names. Data goes only to blocks that this layout leaves free.
//! When they are full, [`SizedStream::lower`] gives the ends of the tables to the data. At the end, the tables get any
//! length up to the room that is left to them, and nothing is moved:
//!
//! ```text
//! usual table <= table of the image <= room left <= room at the start
//! ```
//!
//! A last group that long tables would fill completely gets data only when the tables have become short enough, so that
//! it can still be cut off at the end, as mke2fs does.

use ondisk::{Feature, FsBlock};
use sync::Arc;

use crate::layout::Layout;
use crate::place::{GroupPlace, fixed_groups};
use crate::shape::{LEAST_INODES, Shape};
use crate::template;
use crate::{BlockRun, Error, Options, features};

/// In this number of steps the room for inode tables shrinks by a whole group.
const LOWER_STEPS: u64 = 128;

/// Places of an image of a given size.
#[derive(Clone, Debug)]
pub(crate) struct SizedStream {
    /// The numbers with the usual number of inodes.
    usual: Shape,
    /// The starts of groups that hold superblocks and descriptors, with or without the last group.
    settled: Arc<Vec<BlockRun>>,
    /// The layout with the room for inode tables that is left.
    room: Arc<Layout>,
}

impl SizedStream {
    /// The places for an image of `size_bytes`.
    ///
    /// # Errors
    /// As [`Layout::plan`].
    pub(crate) fn new(size_bytes: u64, options: &Options) -> Result<SizedStream, Error> {
        let plain = Layout::plan_whole(size_bytes, options, &[])?;
        let usual = plain.shape.clone();
        let region = usual.desc_blocks() + usual.reserved_gdt;
        let most = most_table_blocks(&usual, options);
        let mut settled = fixed_runs(&usual, size_bytes, region, options)?;
        if let Ok(shortest) = usual.with_tables(most, options) {
            settled.extend(fixed_runs(&shortest, size_bytes, region, options)?);
        }
        let attempt = |tables: u64| -> Option<Layout> {
            let tables = usual.useful_tables(tables).max(usual.table_blocks);
            let shape = usual.with_tables(tables, options).ok()?;
            let layout = Layout::of_shape(shape, size_bytes, options, &[], Some(&settled)).ok()?;
            // A shorter image could have a smaller journal, or none.
            let is_same = layout.shape.features == usual.features;
            is_same.then_some(layout)
        };
        // Invariant: tables of `low` blocks have places, and those of `high` have none.
        let (mut low, mut high) = (usual.table_blocks, most);
        let mut room = attempt(most);
        if room.is_none() {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match attempt(middle) {
                    Some(layout) => (room, low) = (Some(layout), middle),
                    None => high = middle,
                }
            }
        }
        Ok(SizedStream {
            room: Arc::new(
                room.or_else(|| attempt(usual.table_blocks))
                    .unwrap_or(plain),
            ),
            usual,
            settled: Arc::new(settled),
        })
    }

    /// The layout with the space that is left for inode tables. UUID, hash seed and time are taken from the options.
    ///
    /// # Errors
    /// As [`Layout::plan`].
    pub(crate) fn room_layout(&self, options: &Options) -> Result<Layout, Error> {
        self.with_shape(self.room.shape.clone(), options, &self.settled)
    }

    /// Bytes of the image.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.usual.blocks_given << self.usual.block_size.bits()
    }

    /// The free runs that data may get, ascending.
    pub(crate) fn clear_runs(&self) -> Vec<BlockRun> {
        let mut clear = Vec::new();
        let mut next = self.usual.first_usable();
        for run in &self.room.used {
            if next < run.start.0 {
                let len = run.start.0 - next;
                let start = FsBlock(next);
                clear.push(BlockRun { start, len });
            }
            next = next.max(run.end().0);
        }
        if next < self.room.shape.blocks {
            let len = self.room.shape.blocks - next;
            let start = FsBlock(next);
            clear.push(BlockRun { start, len });
        }
        clear
    }

    /// The same places with less room for inode tables, once `files` files have filled the room for data; `None` if the
    /// tables can't be shorter.
    ///
    /// Each step frees a run for data at the end of each table, or of each row of adjacent tables. So a step is long
    /// while the tables are far longer than a tree of such files needs, and short after that.
    pub(crate) fn lower(&self, files: u64, options: &Options) -> Option<SizedStream> {
        let now = self.room.shape.table_blocks;
        if now <= self.usual.table_blocks {
            return None;
        }
        // An image may be shorter than its only group.
        let group = self.usual.blocks_per_group.min(self.usual.blocks);
        let half = now.saturating_sub(self.tables_foreseen(files)) / 2;
        let step = (group / LOWER_STEPS).max(half).max(1);
        let tables = self.usual.useful_tables(now.saturating_sub(step));
        let tables = tables.max(self.usual.table_blocks);
        let shape = self.usual.with_tables(tables, options).ok()?;
        let room = self.with_shape(shape, options, &self.settled).ok()?;
        Some(SizedStream {
            room: Arc::new(room),
            ..self.clone()
        })
    }

    /// How many blocks a group's table will need if the rest of the image is filled with files as large as the first
    /// `files`, which have filled the room for data so far. The estimate adds half of their inodes, because
    /// directories and links need inodes, too, and later files may be smaller.
    fn tables_foreseen(&self, files: u64) -> u64 {
        let data: u64 = self.clear_runs().iter().map(|run| run.len).sum();
        let shape = &self.room.shape;
        let inodes = u128::from(files + files / 2) * u128::from(shape.inode_size);
        let inode_blocks = inodes.div_ceil(shape.block_size.bytes_u64().into());
        let both = u128::from(data + shape.groups * shape.table_blocks);
        let tables = both * inode_blocks / (u128::from(data) + inode_blocks).max(1);
        // At most all blocks of the image.
        tables as u64 / shape.groups
    }

    /// The layout with the inodes that the options ask for.
    ///
    /// # Errors
    /// `TooSmall` where the room that is left does not hold them, and for another size.
    pub(crate) fn layout(&self, size_bytes: u64, options: &Options) -> Result<Layout, Error> {
        let mut shape = self.usual.clone();
        // It moves nothing.
        if features::resolve(options)?.has(Feature::LARGE_DIR) {
            shape.features = shape.features.with(Feature::LARGE_DIR);
        }
        let bits = shape.block_size.bits();
        if size_bytes >> bits >> shape.cluster_bits << shape.cluster_bits != shape.blocks_given {
            return Err(shape.too_small("data that is already there", size_bytes));
        }
        let most = shape.inodes_per_group_max();
        loop {
            let mut inodes = shape.inodes_asked(options)?.max(LEAST_INODES);
            if options.inodes.is_none() && options.inode_ratio.is_none() {
                inodes = inodes.min(most * shape.groups);
            }
            if inodes.div_ceil(shape.groups) > most {
                return Err(shape.too_small("the inodes", size_bytes));
            }
            shape.set_inodes(inodes, options)?;
            if shape.table_blocks > self.room.shape.table_blocks {
                return Err(shape.too_small("the inodes", size_bytes));
            }
            let groups = shape.groups;
            shape = shape.cut_end(options)?;
            if shape.groups == groups {
                break;
            }
        }
        if shape.groups < self.room.shape.groups {
            return Err(shape.too_small("data that is already there", size_bytes));
        }
        self.with_shape(shape, options, &[])
    }

    /// The layout with these numbers, and everything where it is.
    fn with_shape(
        &self,
        shape: Shape,
        options: &Options,
        settled: &[BlockRun],
    ) -> Result<Layout, Error> {
        let last = (shape.groups > self.room.shape.groups).then(|| self.last_place(&shape));
        self.room
            .with_shape(shape, last, self.size_bytes(), options, settled)
    }

    /// Where the last group has its bitmaps and its table, when it is not in the layout with long tables.
    fn last_place(&self, shape: &Shape) -> GroupPlace {
        let first = shape.first_data_block + (shape.groups - 1) * shape.blocks_per_group;
        let settled = self.settled.iter();
        let ends = settled
            .filter(|run| run.start.0 >= first)
            .map(|run| run.end().0);
        let start = ends.max().unwrap_or(first);
        GroupPlace {
            block_bitmap: FsBlock(start),
            inode_bitmap: FsBlock(start + 1),
            inode_table: FsBlock(start + 2),
        }
    }
}

/// The longest table that a group may need.
fn most_table_blocks(usual: &Shape, options: &Options) -> u64 {
    if options.inodes.is_some() {
        // What a tree may have beyond the number that is asked for: see `Shape::inodes_beside`.
        let more =
            (usual.inodes_beside() * usual.inode_size).div_ceil(usual.block_size.bytes_u64());
        return usual.table_blocks + more;
    }
    let most = usual
        .inodes_per_group_max()
        .min(u64::from(u32::MAX) / usual.groups);
    let blocks = (most * usual.inode_size) >> usual.block_size.bits();
    blocks.min(usual.blocks).max(usual.table_blocks)
}

/// Superblocks and descriptors of an image with these numbers, each with room for `region` blocks of descriptors.
fn fixed_runs(
    shape: &Shape,
    size_bytes: u64,
    region: u64,
    options: &Options,
) -> Result<Vec<BlockRun>, Error> {
    let geometry = template::geometry(shape, size_bytes, options)?;
    let groups = fixed_groups(shape).into_iter();
    let runs = groups.map(|group| {
        let start = geometry.group_start(group);
        let at = start
            .superblock
            .map_or(start.descriptors.start, |block| block.0);
        let len = match start.superblock {
            Some(_) if !shape.has(Feature::META_BG) => 1 + region,
            _ => start.blocks(),
        };
        let start = FsBlock(at);
        BlockRun { start, len }
    });
    Ok(runs.filter(|run| run.len > 0).collect())
}
