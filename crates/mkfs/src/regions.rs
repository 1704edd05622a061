//! What a stream writes around: the places of an image that are settled before its first byte of data.

use crate::layout::Layout;
use crate::shape::GrowingStream;
use crate::sized::SizedStream;
use crate::{BlockRun, Error, Options};

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
            Kind::Growing(growing) => {
                let (shape, bytes, options) = growing.usual_shape(options)?;
                Layout::of_shape(shape, bytes, &options, &[], None)
            }
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
