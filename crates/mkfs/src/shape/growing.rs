//! The numbers of an image whose size is decided last, and the places in it that data may get before that.

use ondisk::{Feature, FsBlock};

use super::descriptors::FULL_OF_DESCRIPTORS;
use super::{LEAST_INODES, Shape};
use crate::{BlockRun, Error, Options, features};

/// The most groups of an image whose size is decided last.
const GROWING_GROUPS_MAX: u64 = 1 << 20;
/// Bytes of descriptors, with those reserved for growth, of an image whose size is decided last: enough for 2 TiB in
/// blocks of 4 KiB.
const REGION_BYTES: u64 = 1 << 20;
const REGION_BLOCKS_MAX: u64 = 256;
/// The share of a group that descriptors may fill: less where every group may have them, so that long tables fit.
const REGION_SHARE: u64 = 4;
const REGION_SHARE_EVERYWHERE: u64 = 32;
/// Bytes of the image whose numbers stand for one whose size is decided last; less where groups are small.
const GROWING_BYTES: u64 = 64 << 30;
/// Groups without `flex_bg` are opened by this share of those that are open.
const OPEN_SHARE: u64 = 16;

/// Places of an image whose size is decided last.
///
/// Without `flex_bg` each group holds its own bitmaps and inode table. Room for these is kept at the end of each open
/// group. Groups are opened as data needs them; before that, the room is cut to what the files so far need, because the
/// first groups can't know how many there will be.
#[derive(Clone, Debug)]
pub(crate) struct GrowingStream {
    shape: Shape,
    /// Descriptor blocks, used and reserved, in a group that has them; unless `meta_bg` spreads them.
    region: u64,
    /// The most groups that the image can have.
    groups: u64,
    /// Groups that data may get.
    open: u64,
    /// Inodes of the whole image, where they are asked for.
    inodes: Option<u64>,
    /// Blocks kept in each group for its inode table, where only the group itself can hold it.
    kept: u64,
    /// Fewer are not kept where the number of inodes is not asked for: the table for the usual number.
    usual: u64,
}

/// Asks for no more inodes than whole groups can have.
fn fill_groups(shape: &Shape, options: &mut Options) {
    let densest = shape.densest_ratio();
    options.inode_ratio = options.inode_ratio.map(|ratio| ratio.max(densest));
}

impl GrowingStream {
    pub(crate) fn new(options: &Options) -> Result<GrowingStream, Error> {
        let inodes = options.inodes;
        let mut options = options.clone();
        // The number of inodes is decided last, too; here it must not make the groups smaller.
        options.forget_inodes();
        let mut shape = Shape::unsettled(GROWING_BYTES, &options)?;
        let block = shape.block_size.bytes_u64();
        if let Some(ratio) = options.inode_ratio {
            let fits = options.blocks_per_group.is_none() && shape.shrink_for_ratio(ratio);
            // How many inodes the last image has is decided last: it may end early in its only group.
            if !fits {
                fill_groups(&shape, &mut options);
            }
        }
        if let (Some(inodes), None) = (inodes, options.blocks_per_group) {
            shape.shrink_for_growth(inodes, &options)?;
        }
        let region = settle_region(&mut shape, &options)?;
        let groups = if shape.has(Feature::META_BG) {
            GROWING_GROUPS_MAX
        } else {
            region * block / shape.desc_size
        };
        let most = shape.first_data_block + groups * shape.blocks_per_group;
        shape.blocks =
            (GROWING_BYTES / block).min(most) >> shape.cluster_bits << shape.cluster_bits;
        shape.blocks_given = shape.blocks;
        let has_flex = shape.has(Feature::FLEX_BG);
        let mut stream = GrowingStream {
            shape,
            region,
            groups,
            open: if has_flex { groups } else { 1 },
            inodes,
            kept: 0,
            usual: 0,
        };
        if !has_flex {
            let bytes = stream.shape.blocks * block;
            // What only a size decides has nothing to do with the table's length.
            options.backup_superblocks = None;
            let usual = stream.unsettled(bytes, &options)?;
            let usual = stream.settled(usual, bytes, &options)?;
            // Groups have whole bytes of inodes, rounded down, and each needs its share in full.
            stream.usual = usual.table_blocks + (8 * usual.inode_size).div_ceil(block);
            let data = stream.shape.blocks_per_group - stream.settled_in(0);
            stream.kept = match inodes {
                Some(inodes) => stream.tables_for(inodes),
                // Half of a group is for data, whose files tell how long the tables must be.
                None => stream.tables_most().min(data / 2).max(stream.usual),
            };
        }
        Ok(stream)
    }

    /// The longest table of a group.
    fn tables_most(&self) -> u64 {
        let most = self.shape.inodes_per_group_max();
        (most * self.shape.inode_size).div_ceil(self.shape.block_size.bytes_u64())
    }

    /// The table of a group for its share of `inodes` inodes.
    fn tables_for(&self, inodes: u64) -> u64 {
        let share = inodes.div_ceil(self.open) + self.shape.inodes_beside();
        let blocks = (share * self.shape.inode_size).div_ceil(self.shape.block_size.bytes_u64());
        blocks.min(self.tables_most())
    }

    /// The numbers of the image that stands for all sizes, its size, and its options. It has few inodes and no journal,
    /// because those for that size may not fit between small groups, and is the same whatever else only a size decides.
    pub(crate) fn usual_shape(&self, options: &Options) -> Result<(Shape, u64, Options), Error> {
        let stands_for_all = Options {
            inodes: Some(LEAST_INODES),
            inode_ratio: None,
            backup_superblocks: None,
            journal: crate::JournalOptions {
                device: Some([0; 16]),
                ..crate::JournalOptions::default()
            },
            ..options.clone()
        };
        let bytes = self.shape.blocks << self.shape.block_size.bits();
        let shape = self.unsettled(bytes, &stands_for_all)?;
        let shape = self.settled(shape, bytes, &stands_for_all)?;
        Ok((shape, bytes, stands_for_all))
    }

    pub(crate) fn clear_runs(&self) -> Vec<BlockRun> {
        let mut clear: Vec<BlockRun> = Vec::new();
        for group in 0..self.open {
            let first = self.shape.first_data_block + group * self.shape.blocks_per_group;
            let start = (first + self.settled_in(group)).max(self.shape.first_usable());
            let end = first + self.shape.blocks_per_group - self.kept_in_group();
            if start >= end {
                continue;
            }
            match clear.last_mut() {
                // One group's end is the next one's start, which may hold nothing settled.
                Some(last) if last.end().0 == start => last.len += end - start,
                _ => clear.push(BlockRun {
                    start: FsBlock(start),
                    len: end - start,
                }),
            }
        }
        clear
    }

    /// Cuts the tables to what the files so far need, or opens more groups.
    pub(crate) fn more_room(&self, files: u64) -> Option<GrowingStream> {
        let wanted = |stream: &GrowingStream| match stream.inodes {
            Some(inodes) => stream.tables_for(inodes),
            // Half more than so far.
            None => stream.tables_for(files + files / 2).max(stream.usual),
        };
        let mut more = self.clone();
        if self.inodes.is_none() && wanted(self) < self.kept {
            more.kept = wanted(self);
            return Some(more);
        }
        if self.open == self.groups {
            return None;
        }
        more.open = (self.open + (self.open / OPEN_SHARE).max(1)).min(self.groups);
        if self.inodes.is_some() {
            more.kept = wanted(&more).min(self.kept);
        }
        Some(more)
    }

    /// Blocks at a group's end that are kept for what only this group can hold.
    fn kept_in_group(&self) -> u64 {
        if self.shape.has(Feature::FLEX_BG) {
            0
        } else {
            (2 + self.kept).min(self.shape.blocks_per_group)
        }
    }

    /// Blocks at a group's start that are settled.
    fn settled_in(&self, group: u64) -> u64 {
        let shape = &self.shape;
        let descriptors = if shape.has(Feature::META_BG) {
            let per_block = shape.block_size.bytes_u64() / shape.desc_size;
            let at = group % per_block;
            u64::from(at <= 1 || at == per_block - 1)
        } else {
            self.region
        };
        // Any group may be the last one, which holds a backup with sparse_super2.
        let has_super = shape.has(Feature::SPARSE_SUPER2) || shape.has_super(group);
        // Block 0 lies before the superblock of a bigalloc image with blocks of 1 KiB.
        let boot =
            u64::from(group == 0 && shape.first_data_block == 0 && shape.block_size.bits() == 10);
        match (has_super, shape.has(Feature::META_BG)) {
            (true, _) => boot + 1 + descriptors,
            (false, true) => descriptors,
            (false, false) => 0,
        }
    }

    /// Descriptor blocks, used and reserved, in a group that has them.
    pub(crate) fn region(&self) -> u64 {
        self.region
    }

    /// How many inodes a group of an image of this geometry can have.
    pub(crate) fn inodes_per_group_max(&self) -> u64 {
        let most = self.shape.inodes_per_group_max();
        if self.shape.has(Feature::FLEX_BG) || self.kept == 0 {
            most
        } else {
            most.min((self.kept << self.shape.block_size.bits()) / self.shape.inode_size)
        }
    }

    /// The numbers of an image of this geometry that do not depend on how many inodes there are.
    ///
    /// # Errors
    /// As [`Shape::new`].
    pub(crate) fn unsettled(&self, size_bytes: u64, options: &Options) -> Result<Shape, Error> {
        let mut shape = self.shape.clone();
        // It moves nothing.
        if features::resolve(options)?.has(Feature::LARGE_DIR) {
            shape.features = shape.features.with(Feature::LARGE_DIR);
        }
        let bits = shape.block_size.bits();
        shape.blocks = size_bytes >> bits >> shape.cluster_bits << shape.cluster_bits;
        shape.blocks_given = shape.blocks;
        shape.check_blocks(size_bytes, options)?;
        shape.count_groups(size_bytes)?;
        Ok(shape)
    }

    /// Unsettled numbers of this geometry, with as many inodes as the options ask for.
    ///
    /// # Errors
    /// `TooSmall` where the groups can't hold them.
    pub(crate) fn settled(
        &self,
        mut shape: Shape,
        size_bytes: u64,
        options: &Options,
    ) -> Result<Shape, Error> {
        shape.settle_streamed(size_bytes, self, options)?;
        Ok(shape)
    }
}

/// Chooses the number of descriptor blocks, used and reserved; spreads the descriptors where that is too much.
///
/// # Errors
/// `-E resize`, where descriptors for it would fill most of a group, or the resize inode can't list them.
fn settle_region(shape: &mut Shape, options: &Options) -> Result<u64, Error> {
    let block = shape.block_size.bytes_u64();
    let mut region = (REGION_BYTES / block).min(REGION_BLOCKS_MAX);
    let is_everywhere = shape.has(Feature::SPARSE_SUPER2) || !shape.has(Feature::SPARSE_SUPER);
    let share = if is_everywhere {
        REGION_SHARE_EVERYWHERE
    } else {
        REGION_SHARE
    };
    if region > shape.blocks_per_group / share && !shape.has(Feature::META_BG) {
        // As at a given size, descriptors would fill most of a group. If an option forbids to spread them, they may
        // fill the same part of a group as there.
        if shape
            .spread_descriptors(options, FULL_OF_DESCRIPTORS)
            .is_err()
        {
            region = region.min(shape.blocks_per_group / 4 * 3);
        }
    }
    if let Some(wanted) = shape.resize_blocks(options)? {
        // The smallest image has one descriptor block.
        shape.check_growth(options, 0, 1)?;
        region = region.max(wanted);
        if region > shape.blocks_per_group * 3 / 4 {
            shape.spread_descriptors(options, FULL_OF_DESCRIPTORS)?;
        }
    }
    Ok(region)
}
