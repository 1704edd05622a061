//! What a stream writes around: the places of an image that are settled before its first byte of data.

use ondisk::{Feature, FsBlock};

use crate::shape::{FULL_OF_DESCRIPTORS, LEAST_INODES, Shape};
use crate::sized::SizedStream;
use crate::{BlockRun, Error, Layout, Options, features};

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

/// What of an image is settled before its data comes through a pipe, and never changes after that: block and cluster
/// size, blocks a group, and the places of superblocks and group descriptors.
///
/// Data goes to the runs that [`StreamGeometry::clear_runs`] gives. Everything else is decided when the data is there.
/// A layout under options that hold this geometry ([`Options::stream`]) has the same settled places whatever their
/// number of inodes is, so what is decided last only goes where no data lies.
///
/// An image of a given size has all of its places from the start; only the length of the inode tables is open. An image
/// whose size is decided last has its bitmaps, tables, journal and its number of groups decided last, too.
#[derive(Clone, Debug)]
pub struct StreamGeometry(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Sized(SizedStream),
    Growing(GrowingStream),
}

impl StreamGeometry {
    /// The geometry of an image of `size_bytes`.
    ///
    /// # Errors
    /// As [`crate::Layout::plan`].
    pub fn sized(size_bytes: u64, options: &Options) -> Result<StreamGeometry, Error> {
        Ok(StreamGeometry(Kind::Sized(SizedStream::new(
            size_bytes, options,
        )?)))
    }

    /// The geometry of an image whose size is decided last.
    ///
    /// # Errors
    /// As [`crate::Layout::plan`], for options that no size can have.
    pub fn growing(options: &Options) -> Result<StreamGeometry, Error> {
        Ok(StreamGeometry(Kind::Growing(GrowingStream::new(options)?)))
    }

    /// A layout for questions whose answer depends neither on the number of inodes nor on the size. UUID, hash seed and
    /// time are taken from the options, because a geometry has none.
    ///
    /// # Errors
    /// As [`crate::Layout::plan`].
    pub fn layout(&self, options: &Options) -> Result<Layout, Error> {
        match &self.0 {
            Kind::Sized(sized) => sized.room_layout(options),
            Kind::Growing(growing) => growing.usual_layout(options),
        }
    }

    /// The runs that data may get, ascending.
    #[must_use]
    pub fn clear_runs(&self) -> Vec<BlockRun> {
        match &self.0 {
            Kind::Sized(sized) => sized.clear_runs(),
            Kind::Growing(growing) => growing.clear_runs(),
        }
    }

    /// The same geometry with more room for data, after `files` files; `None` where no more can be given. Runs that
    /// were clear stay so.
    #[must_use]
    pub fn more_room(&self, files: u64, options: &Options) -> Option<StreamGeometry> {
        let more = match &self.0 {
            Kind::Sized(sized) => Kind::Sized(sized.lower(files, options)?),
            Kind::Growing(growing) => Kind::Growing(growing.more_room(files)?),
        };
        Some(StreamGeometry(more))
    }

    pub(crate) fn as_sized(&self) -> Option<&SizedStream> {
        match &self.0 {
            Kind::Sized(sized) => Some(sized),
            Kind::Growing(_) => None,
        }
    }

    pub(crate) fn as_growing(&self) -> Option<&GrowingStream> {
        match &self.0 {
            Kind::Sized(_) => None,
            Kind::Growing(growing) => Some(growing),
        }
    }
}

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
    fn new(options: &Options) -> Result<GrowingStream, Error> {
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

    /// A layout of the image that stands for all sizes. It has few inodes and no journal, because those for that size
    /// may not fit between small groups, and is the same whatever else only a size decides.
    fn usual_layout(&self, options: &Options) -> Result<Layout, Error> {
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
        Layout::of_shape(shape, bytes, &stands_for_all, &[], None)
    }

    fn clear_runs(&self) -> Vec<BlockRun> {
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
    fn more_room(&self, files: u64) -> Option<GrowingStream> {
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
    /// As [`Layout::plan`].
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

#[cfg(test)]
mod tests {
    use ondisk::BlockSize;

    use super::*;
    use crate::Layout;

    /// A run of one list that overlaps one of the other; both ascend.
    fn overlap(one: &[BlockRun], other: &[BlockRun]) -> Option<(BlockRun, BlockRun)> {
        one.iter().find_map(|run| {
            let at = other.partition_point(|next| next.end() <= run.start);
            let next = other.get(at).filter(|next| next.start < run.end())?;
            Some((*run, *next))
        })
    }

    /// A number of files for which each step of `more_room` is as short as possible.
    const MANY_FILES: u64 = 1 << 40;

    #[test]
    fn data_is_streamed_around_the_backups() {
        let options = Options {
            block_size: Some(BlockSize::K4),
            ..Options::default()
        };
        let geometry = StreamGeometry::growing(&options).unwrap();
        let clear = geometry.clear_runs();
        let clear = |index: usize| (clear[index].start.0, clear[index].end().0);
        assert_eq!(clear(0), (257, 32768));
        assert_eq!(clear(1), (32768 + 257, 98304));
        // 64 descriptors of 64 bytes a block.
        let end = geometry.clear_runs().last().unwrap().end().0;
        assert_eq!(end, 256 * 64 * 32768);
    }

    #[test]
    fn small_groups_can_grow() {
        for (block, group, features) in [
            (2048, 256, "meta_bg,^resize_inode,^flex_bg"),
            (1024, 256, ""),
            (1024, 256, "^flex_bg,^extents,^64bit"),
            (65536, 256, "^flex_bg"),
        ] {
            let options = Options {
                block_size: BlockSize::from_bytes(block),
                blocks_per_group: Some(group),
                features: features.into(),
                ..Options::default()
            };
            let layout = StreamGeometry::growing(&options).unwrap().layout(&options);
            assert!(layout.is_ok(), "{block} {group} {features}: {layout:?}");
        }
    }

    #[test]
    fn groups_of_an_image_that_grows_hold_the_inodes_that_a_ratio_asks_for() {
        for (block, ratio) in [(4096, 1024), (16_384, 4096), (65_536, 4096), (1024, 1024)] {
            let mut options = Options {
                block_size: BlockSize::from_bytes(block),
                inode_ratio: Some(ratio),
                ..Options::default()
            };
            options.stream = Some(StreamGeometry::growing(&options).unwrap());
            let size = 200 << 20;
            let layout = Layout::plan(size, &options).unwrap();
            let inodes = u64::from(layout.geometry().inodes_count());
            assert!(
                inodes >= layout.size_bytes() / ratio * 99 / 100,
                "{block} {ratio}: {inodes}"
            );
        }
    }

    #[test]
    fn room_that_tables_side_by_side_give_to_data_is_one_run() {
        let options = Options {
            block_size: BlockSize::from_bytes(4096),
            inode_size: Some(2048),
            blocks_per_group: Some(264),
            features: "^64bit".into(),
            ..Options::default()
        };
        let mut geometry = StreamGeometry::sized(500 << 20, &options).unwrap();
        let groups = (500 << 20) / (264 << 12);
        let mut steps = 0;
        while let Some(more) = geometry.more_room(MANY_FILES, &options) {
            let room = |geometry: &StreamGeometry| -> u64 {
                geometry.clear_runs().iter().map(|run| run.len).sum()
            };
            assert!(room(&more) > room(&geometry));
            geometry = more;
            steps += 1;
            // The tables of 16 groups are adjacent, except where a superblock separates two of them.
            let runs = geometry.clear_runs().len();
            assert!(
                runs < groups / 8,
                "{runs} of {groups} groups after {steps} steps"
            );
        }
        assert!(steps > 10, "{steps}");
    }

    #[test]
    fn no_room_is_kept_for_a_part_of_a_table_that_no_group_can_use() {
        for (inode_size, blocks_per_group) in [(256, 336), (512, 344), (1024, 1000)] {
            let options = Options {
                block_size: BlockSize::from_bytes(1024),
                inode_size: Some(inode_size),
                blocks_per_group: Some(blocks_per_group),
                features: "^flex_bg".into(),
                ..Options::default()
            };
            let mut next = StreamGeometry::sized(25_266_176, &options).ok();
            let mut steps = 0;
            while let Some(geometry) = next {
                let shape = geometry
                    .as_sized()
                    .unwrap()
                    .room_layout(&options)
                    .unwrap()
                    .shape;
                let used = shape.inodes_per_group * shape.inode_size;
                assert_eq!(
                    shape.table_blocks,
                    used.div_ceil(1024),
                    "after {steps} steps"
                );
                next = geometry.more_room(MANY_FILES, &options);
                steps += 1;
            }
            assert!(steps > 5, "{steps}");
        }
    }

    /// For features that move superblocks or descriptors: whatever the number of inodes is, and however much room data
    /// was given, nothing of the layout is placed where data may lie.
    #[test]
    fn what_is_decided_last_goes_where_no_data_may_lie() {
        let sizes = [3 << 20, 40 << 20, 300 << 20, 3 << 30];
        let mut layouts = 0;
        for (features, block) in [
            ("", BlockSize::K1),
            ("", BlockSize::K4),
            ("^flex_bg", BlockSize::K4),
            ("^flex_bg,^resize_inode", BlockSize::K1),
            ("^sparse_super,^resize_inode", BlockSize::K1),
            ("meta_bg,^resize_inode", BlockSize::K1),
            ("sparse_super2", BlockSize::K4),
            ("sparse_super2,^flex_bg", BlockSize::K1),
            ("bigalloc", BlockSize::K4),
            ("bigalloc", BlockSize::K1),
            ("^64bit", BlockSize::K1),
        ] {
            for (size, inodes) in sizes
                .into_iter()
                .flat_map(|size| [None, Some(500), Some(5000)].map(|inodes| (size, inodes)))
            {
                let options = Options {
                    block_size: Some(block),
                    features: features.into(),
                    ..Options::default()
                };
                let mut geometry = StreamGeometry::sized(size, &options).unwrap();
                let mut steps = 0;
                loop {
                    let clear = geometry.clear_runs();
                    let options = Options {
                        inodes,
                        stream: Some(geometry.clone()),
                        ..options.clone()
                    };
                    if let Ok(layout) = Layout::plan(size, &options) {
                        let both = overlap(layout.used(), &clear);
                        assert!(both.is_none(), "{features} {size} {inodes:?}: {both:?}");
                        layouts += 1;
                    }
                    steps += 1;
                    match geometry.more_room(MANY_FILES, &options) {
                        Some(more) if steps < 12 => geometry = more,
                        _ => break,
                    }
                }
            }
        }
        assert!(layouts > 500, "{layouts}");
    }
}
