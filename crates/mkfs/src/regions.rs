//! What a stream writes around: the places of an image that are settled before its first byte of data.

use ondisk::{Feature, FsBlock};

use crate::shape::{FULL_OF_DESCRIPTORS, Shape};
use crate::{Error, Options, Run, features, tables};

/// The most groups of an image whose size is decided last.
const GROWING_GROUPS_MAX: u64 = 1 << 20;
/// Bytes of descriptors, with those reserved for growth, of an image whose size is decided last: enough for 2 TiB in
/// blocks of 4 KiB.
const REGION_BYTES: u64 = 1 << 20;
const REGION_BLOCKS_MAX: u64 = 256;
/// In so many steps the room that is kept for inode tables can be lowered by a whole group.
const LOWER_STEPS: u64 = 128;
/// Bytes of the image whose numbers stand for one whose size is decided last; less where groups are small.
const GROWING_BYTES: u64 = 64 << 30;

/// What of an image is settled before its data comes through a pipe, and never changes after that: block and cluster
/// size, blocks a group, and the places of superblocks and group descriptors.
///
/// Data goes to the blocks that [`StreamGeometry::next_clear`] gives. Everything else is decided when the data is
/// there: the number of inodes, bitmaps, inode tables, journal and, for an image that grows, the number of groups. A
/// layout under options that hold this geometry ([`Options::stream`]) has the same settled places whatever their
/// number of inodes is, so what is decided last only goes where no data lies.
///
/// Without `flex_bg` each group holds its own bitmaps and inode table. Room for these is kept at the group's start,
/// and the group has at most as many inodes as that room holds. An image of a given size keeps as much as an inode
/// table can need, and [`StreamGeometry::lower`] gives some of it to data when all else is full.
#[derive(Clone, PartialEq, Debug)]
pub struct StreamGeometry {
    shape: Shape,
    /// Descriptor blocks, used and reserved, in a group that has them; unless `meta_bg` spreads them.
    region: u64,
    /// Blocks kept in each group for its inode table, where only the group itself can hold it.
    kept: u64,
    /// Fewer are not kept: the table for the usual number of inodes.
    kept_min: u64,
    is_growing: bool,
}

/// Asks for no more inodes than whole groups can have.
fn fill_groups(shape: &Shape, options: &mut Options) {
    let densest = shape.densest_ratio();
    options.inode_ratio = options.inode_ratio.map(|ratio| ratio.max(densest));
}

impl StreamGeometry {
    /// The geometry of an image of `size_bytes`.
    ///
    /// # Errors
    /// As [`crate::Layout::plan`].
    pub fn sized(size_bytes: u64, options: &Options) -> Result<StreamGeometry, Error> {
        let shape = Shape::new(size_bytes, options)?;
        let usual = shape.table_blocks;
        let most = (shape.inodes_per_group_max() * shape.inode_size) >> shape.block_size.bits();
        Ok(StreamGeometry {
            region: shape.desc_blocks() + shape.reserved_gdt,
            kept: most
                .min(shape.blocks_per_group / 2)
                .min(shape.blocks)
                .max(usual),
            kept_min: usual,
            shape,
            is_growing: false,
        })
    }

    /// The geometry of an image whose size is decided last.
    ///
    /// # Errors
    /// As [`crate::Layout::plan`], for options that no size can have.
    pub fn growing(options: &Options) -> Result<StreamGeometry, Error> {
        let mut options = options.clone();
        // The number of inodes is decided last, too; here it must not make the groups smaller.
        options.forget_inodes();
        let mut shape = Shape::unsettled(GROWING_BYTES, &options)?;
        let block = shape.block_size.bytes_u64();
        match options.inode_ratio {
            // How many inodes the last image has is decided last: it may end early in its only group.
            Some(_) if options.blocks_per_group.is_some() => fill_groups(&shape, &mut options),
            Some(ratio) => shape.shrink_for_ratio(ratio, &options)?,
            None => {}
        }
        let mut region = (REGION_BYTES / block).min(REGION_BLOCKS_MAX);
        if region > shape.blocks_per_group / 4 && !shape.has(Feature::META_BG) {
            // As for a given size: descriptors would fill most of a group. Where an option forbids to spread them, the
            // image has at most the groups that a quarter of a group describes.
            if shape
                .spread_descriptors(&options, FULL_OF_DESCRIPTORS)
                .is_err()
            {
                region = shape.blocks_per_group / 4;
            }
        }
        if let Some(wanted) = shape.resize_blocks(&options)? {
            region = region.max(wanted);
            if region > shape.blocks_per_group * 3 / 4 {
                shape.spread_descriptors(&options, FULL_OF_DESCRIPTORS)?;
            }
        }
        let most_groups = match shape.has(Feature::META_BG) {
            true => GROWING_GROUPS_MAX,
            false => region * block / shape.desc_size,
        };
        let most = shape.first_data_block + most_groups * shape.blocks_per_group;
        shape.blocks =
            (GROWING_BYTES / block).min(most) >> shape.cluster_bits << shape.cluster_bits;
        shape.blocks_given = shape.blocks;
        shape.groups = most_groups;
        let mut geometry = StreamGeometry {
            shape,
            region,
            kept: 0,
            kept_min: 0,
            is_growing: true,
        };
        let bytes = geometry.shape.blocks * block;
        // The usual number of inodes for the size: without flex_bg it is each group's share for good.
        let usual = geometry.shape_of(bytes, &options)?;
        // Groups have whole bytes of inodes, rounded down, and each needs its share in full.
        let rounded = (8 * usual.inode_size).div_ceil(block);
        let kept = usual.table_blocks + rounded;
        (geometry.kept, geometry.kept_min) = (kept, kept);
        Ok(geometry)
    }

    /// Bytes of the image for a sized one; else of one that stands for all sizes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.shape.blocks_given.max(self.shape.blocks) << self.shape.block_size.bits()
    }

    /// Options for a layout of [`Self::size_bytes`] that is asked only for what no number of inodes and no size
    /// changes. Its journal is small, because one for a size that stands for all sizes may not fit between small
    /// groups.
    #[must_use]
    pub fn usual(&self, options: &Options) -> Options {
        let mut usual = options.clone();
        if !self.is_growing {
            return usual;
        }
        usual.forget_inodes();
        fill_groups(&self.shape, &mut usual);
        if usual.journal.size_mib.is_none() && usual.journal.fast_commit_kib.is_none() {
            let bytes = tables::JOURNAL_MIN << self.shape.block_size.bits();
            usual.journal.size_mib = Some(bytes.div_ceil(1 << 20));
        }
        usual
    }

    /// The block at which the largest such image ends.
    #[must_use]
    pub fn end(&self) -> FsBlock {
        match self.is_growing {
            true => FsBlock(
                self.shape.first_data_block + self.shape.groups * self.shape.blocks_per_group,
            ),
            false => FsBlock(self.shape.blocks),
        }
    }

    /// The next blocks from `from` on that data may get, up to the next settled place; empty at the end.
    #[must_use]
    pub fn next_clear(&self, from: FsBlock) -> Run {
        let end = self.end().0;
        let first = self.shape.first_data_block;
        let mut start = from.0.max(self.shape.first_usable());
        while start < end {
            let group = (start - first) / self.shape.blocks_per_group;
            let group_start = first + group * self.shape.blocks_per_group;
            start = start.max(group_start + self.settled_in(group));
            // One group's end is the next one's start, which may hold nothing settled.
            let mut next = group + 1;
            let mut stop = first + next * self.shape.blocks_per_group;
            while stop < end && self.settled_in(next) == 0 {
                next += 1;
                stop = first + next * self.shape.blocks_per_group;
            }
            if start < stop.min(end) {
                return Run {
                    start: FsBlock(start),
                    len: stop.min(end) - start,
                };
            }
            start = stop;
        }
        Run {
            start: FsBlock(end),
            len: 0,
        }
    }

    /// The same geometry with less room kept for inode tables; nothing where there is no more to give.
    #[must_use]
    pub fn lower(&self) -> Option<StreamGeometry> {
        if self.shape.has(Feature::FLEX_BG) || self.kept <= self.kept_min {
            return None;
        }
        // An image may be shorter than its only group.
        let group = self.shape.blocks_per_group.min(self.shape.blocks);
        let step = (group / LOWER_STEPS).max(1);
        let kept = self.kept.saturating_sub(step).max(self.kept_min);
        Some(StreamGeometry {
            kept,
            ..self.clone()
        })
    }

    /// Blocks at a group's start that are settled, or kept for what only this group can hold.
    fn settled_in(&self, group: u64) -> u64 {
        let shape = &self.shape;
        let descriptors = if shape.has(Feature::META_BG) {
            let per_block = shape.block_size.bytes_u64() / shape.desc_size;
            let at = group % per_block;
            u64::from(at <= 1 || at == per_block - 1)
        } else {
            self.region
        };
        let has_super = match self.is_growing && shape.has(Feature::SPARSE_SUPER2) {
            // Any group may be the last one, which holds a backup.
            true => true,
            false => shape.has_super(group),
        };
        let mut settled = match (has_super, shape.has(Feature::META_BG)) {
            (true, _) => 1 + descriptors,
            (false, true) => descriptors,
            (false, false) => 0,
        };
        if !shape.has(Feature::FLEX_BG) {
            settled += 2 + self.kept;
        }
        settled.min(shape.blocks_per_group)
    }

    /// Descriptor blocks, used and reserved, in a group that has them.
    pub(crate) fn region(&self) -> u64 {
        self.region
    }

    /// How many inodes a group of an image of this geometry can have.
    pub(crate) fn inodes_per_group_max(&self) -> u64 {
        let most = self.shape.inodes_per_group_max();
        match self.shape.has(Feature::FLEX_BG) || self.kept == 0 {
            true => most,
            false => most.min((self.kept << self.shape.block_size.bits()) / self.shape.inode_size),
        }
    }

    /// The numbers of an image of this geometry with as many inodes as the options ask for.
    ///
    /// # Errors
    /// `TooSmall` where the groups can't hold them, and for another size than that of a sized image.
    pub(crate) fn shape_of(&self, size_bytes: u64, options: &Options) -> Result<Shape, Error> {
        let mut shape = self.shape.clone();
        // It moves nothing.
        if features::resolve(options)?.has(Feature::LARGE_DIR) {
            shape.features = shape.features.with(Feature::LARGE_DIR);
        }
        let bits = shape.block_size.bits();
        if self.is_growing {
            shape.blocks = size_bytes >> bits >> shape.cluster_bits << shape.cluster_bits;
            shape.blocks_given = shape.blocks;
            shape.check_blocks(size_bytes, options)?;
            shape.settle_streamed(size_bytes, self, options)?;
        } else {
            if size_bytes >> bits >> shape.cluster_bits << shape.cluster_bits != shape.blocks_given
            {
                return Err(shape.too_small("data that is already there", size_bytes));
            }
            shape.spread_inodes(size_bytes, self, options)?;
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use ondisk::BlockSize;

    use super::*;
    use crate::Layout;
    use crate::place::Placer;

    #[test]
    fn data_is_streamed_around_the_backups() {
        let options = Options {
            block_size: Some(BlockSize::K4),
            ..Options::default()
        };
        let geometry = StreamGeometry::growing(&options).unwrap();
        let clear = |from| {
            let run = geometry.next_clear(FsBlock(from));
            (run.start.0, run.end().0)
        };
        assert_eq!(clear(0), (257, 32768));
        assert_eq!(clear(32767), (32767, 32768));
        assert_eq!(clear(32768), (32768 + 257, 98304));
        assert_eq!(clear(65536), (65536, 98304));
        // 64 descriptors of 64 bytes a block.
        assert_eq!(geometry.end().0, 256 * 64 * 32768);
    }

    #[test]
    fn small_groups_can_grow() {
        for (block, group, features) in [
            (2048, 256, "meta_bg,^resize_inode,^flex_bg"),
            (1024, 256, ""),
            (1024, 256, "^flex_bg,^extents,^64bit"),
            (65536, 256, "^flex_bg"),
        ] {
            let mut options = Options {
                block_size: BlockSize::from_bytes(block),
                blocks_per_group: Some(group),
                features: features.into(),
                ..Options::default()
            };
            let geometry = StreamGeometry::growing(&options).unwrap();
            options.stream = Some(geometry.clone());
            let layout = Layout::plan(geometry.size_bytes(), &geometry.usual(&options));
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

    /// For features that move superblocks or descriptors: settled places do not depend on inodes, nor on a size that
    /// is decided last.
    #[test]
    fn what_is_settled_is_where_any_number_of_inodes_has_it() {
        let sizes = [40 << 20, 300 << 20, 3 << 30];
        for (features, block) in [
            ("", BlockSize::K1),
            ("", BlockSize::K4),
            ("^flex_bg", BlockSize::K4),
            ("^sparse_super,^resize_inode", BlockSize::K1),
            ("meta_bg,^resize_inode", BlockSize::K1),
            ("sparse_super2", BlockSize::K4),
            ("bigalloc", BlockSize::K4),
            ("^64bit", BlockSize::K1),
        ] {
            let options = Options {
                block_size: Some(block),
                features: features.into(),
                ..Options::default()
            };
            for size in sizes {
                let sized = StreamGeometry::sized(size, &options).unwrap();
                let growing = StreamGeometry::growing(&options).unwrap();
                for geometry in [sized, growing] {
                    for inodes in [None, Some(500), Some(5000)] {
                        let options = Options {
                            inodes,
                            stream: Some(geometry.clone()),
                            ..options.clone()
                        };
                        let Ok(shape) = geometry.shape_of(size, &options) else {
                            continue;
                        };
                        let layout = Layout::plan(size, &options).unwrap();
                        let placer = Placer::new(&shape, layout.geometry(), &[]);
                        for run in placer.space.runs(shape.blocks) {
                            let clear = geometry.next_clear(run.start);
                            assert!(
                                clear.start >= run.end(),
                                "{features} {size} {inodes:?} {run:?} {clear:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}
