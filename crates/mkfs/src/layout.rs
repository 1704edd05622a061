//! The plan of an image: the place of everything, decided without any I/O.
//!
//! [`Layout::used`] covers what belongs to the layout itself: superblocks and their backups, group descriptors and the
//! blocks reserved for them, bitmaps, inode tables, and the contents of journal, resize inode, orphan file and
//! multi-mount protection. It does not cover the root directory and lost+found, which the caller that fills the image
//! places.

use ondisk::{BlockSize, Feature, FsBlock, Geometry, Group, Ino, Superblock};

use crate::file_map;
use crate::journal::JournalSize;
use crate::place::{self, GroupPlace, Placer};
use crate::shape::{LARGE_FILE_BYTES, Shape};
use crate::space::Space;
use crate::template::{self, FsIdentity};
use crate::{BlockRun, Error, Options, OtherSize, features, tables};

/// A file of the layout: its blocks in order, and those of its map.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilePlan {
    pub runs: Vec<BlockRun>,
    pub map: Vec<FsBlock>,
}

impl FilePlan {
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }
}

/// What is needed of the options after planning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub lazy_tables: bool,
    pub lazy_journal: bool,
    pub device_is_zero: bool,
    pub lost_found: bool,
    pub root_owner: (u32, u32),
    pub time: i64,
}

/// The plan of an image.
#[derive(Clone)]
pub struct Layout {
    pub(crate) shape: Shape,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) places: Vec<GroupPlace>,
    pub(crate) used: Vec<BlockRun>,
    pub(crate) habits: Habits,
    pub(crate) journal_size: JournalSize,
    pub(crate) journal: Option<FilePlan>,
    pub(crate) orphan: Option<(Ino, FilePlan)>,
    /// The block that lists the reserved descriptor blocks.
    pub(crate) resize: Option<FsBlock>,
    pub(crate) mmp: Option<FsBlock>,
    first_free_ino: Ino,
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Layout");
        out.field("shape", &self.shape);
        out.field("used", &self.used.len());
        out.finish_non_exhaustive()
    }
}

/// A size at which all options are possible.
const CHECKED_BYTES: u64 = 64 << 30;

impl Layout {
    /// Checks everything that does not depend on the size.
    ///
    /// # Errors
    /// Options that don't exist, contradict each other or are not supported, by name.
    pub fn check(options: &Options) -> Result<(), Error> {
        Shape::unsettled(CHECKED_BYTES, options).map(|_| ())
    }

    /// Plans an image of `size_bytes` as a whole, around blocks that are taken already.
    ///
    /// # Errors
    /// As [`Layout::plan_around`].
    pub(crate) fn plan_whole(
        size_bytes: u64,
        options: &Options,
        taken: &[BlockRun],
    ) -> Result<Layout, Error> {
        let shape = Shape::new(size_bytes, options)?;
        Layout::of_shape(shape, size_bytes, options, taken, None)
    }

    /// The layout of an image with these numbers. With `settled`, these blocks are kept free as well, and a last group
    /// that ends early has its bitmaps and its table in itself.
    pub(crate) fn of_shape(
        mut shape: Shape,
        size_bytes: u64,
        options: &Options,
        taken: &[BlockRun],
        settled: Option<&[BlockRun]>,
    ) -> Result<Layout, Error> {
        let journal_size = journal_size(&mut shape, options)?;
        if holds_large_file(&shape, journal_size) {
            let reason =
                "the journal has 2 GiB or more; leave that out, or make it smaller (-J size=)";
            shape.features =
                features::require(options, shape.features, Feature::LARGE_FILE, reason).map_err(
                    |error| match options.journal.size_mib {
                        // A smaller image has a smaller journal.
                        None => error.of_size(OtherSize::Smaller),
                        Some(_) => error,
                    },
                )?;
        }
        let identity = FsIdentity::of(options);
        let superblock = template::superblock(&shape, options, &identity)?;
        let geometry = template::geometry_of(&superblock, size_bytes)?;
        if taken.last().is_some_and(|run| run.end().0 > shape.blocks) {
            return Err(Error::TooSmall {
                what: "the data".into(),
                size: size_bytes,
                instead: "put less into it",
            });
        }
        let mut placer = Placer::new(&shape, &geometry, taken);
        placer
            .space
            .take_below(settled.unwrap_or_default(), shape.blocks);
        let places = placer.place_groups(options.packed_meta_blocks, settled.is_some())?;
        placer.space.round_to_clusters(shape.cluster_bits);
        let mut layout = Layout {
            superblock,
            geometry,
            places,
            used: Vec::new(),
            habits: habits(options, &identity),
            journal_size,
            journal: None,
            orphan: None,
            resize: None,
            mmp: None,
            first_free_ino: Ino::FIRST_UNRESERVED,
            shape: shape.clone(),
        };
        layout.place_files(&mut placer, options, taken)?;
        layout.used = without(placer.space.runs(shape.blocks), taken);
        layout.count_overhead();
        Ok(layout)
    }

    /// This layout with the numbers of `shape`, whose inode tables must not be longer. `last` is the place of the last
    /// group if this layout does not have that group. The blocks of `settled` count as used, too. Adjacent tables stay
    /// adjacent, so the blocks that they no longer need form one run after the last table.
    pub(crate) fn with_shape(
        &self,
        shape: Shape,
        last: Option<GroupPlace>,
        size_bytes: u64,
        options: &Options,
        settled: &[BlockRun],
    ) -> Result<Layout, Error> {
        let identity = FsIdentity::of(options);
        let mut superblock = template::superblock(&shape, options, &identity)?;
        let orphan = self.orphan.as_ref().map(|(ino, _)| *ino);
        superblock.set_orphan_file_ino(orphan);
        superblock.set_mmp_block(self.mmp.unwrap_or_default());
        let geometry = template::geometry_of(&superblock, size_bytes)?;
        let mut layout = Layout {
            superblock,
            geometry,
            habits: habits(options, &identity),
            shape,
            ..self.clone()
        };
        layout.pack_tables(self.shape.table_blocks);
        layout.places.extend(last);
        let mut space = Placer::new(&layout.shape, &geometry, &[]).space;
        space.take_below(settled, layout.shape.blocks);
        layout.take_groups(&mut space);
        layout.take_files(&mut space);
        space.round_to_clusters(layout.shape.cluster_bits);
        layout.used = space.runs(layout.shape.blocks);
        layout.count_overhead();
        Ok(layout)
    }

    /// Moves inode tables that were adjacent when each had `before` blocks together again, to the start of the blocks
    /// that they had.
    fn pack_tables(&mut self, before: u64) {
        let shorter = before - self.shape.table_blocks;
        let mut end = None;
        let mut moved = 0;
        for place in &mut self.places {
            let start = place.inode_table.0;
            moved = if end == Some(start) {
                moved + shorter
            } else {
                0
            };
            end = Some(start + before);
            place.inode_table = FsBlock(start - moved);
        }
    }

    /// Marks the blocks of bitmaps and inode tables as taken.
    fn take_groups(&self, space: &mut Space) {
        for place in &self.places {
            space.take(place.block_bitmap.0, 1);
            space.take(place.inode_bitmap.0, 1);
            space.take(place.inode_table.0, self.shape.table_blocks);
        }
    }

    /// Marks the blocks of the layout's own files as taken.
    fn take_files(&self, space: &mut Space) {
        let orphan = self.orphan.as_ref().map(|(_, plan)| plan);
        for plan in self.journal.iter().chain(orphan) {
            for run in &plan.runs {
                space.take(run.start.0, run.len);
            }
            for block in &plan.map {
                space.take(block.0, 1);
            }
        }
        for block in self.resize.iter().chain(&self.mmp) {
            space.take(block.0, 1);
        }
    }

    fn place_files(
        &mut self,
        placer: &mut Placer,
        options: &Options,
        taken: &[BlockRun],
    ) -> Result<(), Error> {
        let mut next_ino = Ino::FIRST_UNRESERVED.0 + u32::from(options.lost_found);
        let first = self.shape.first_data_block;
        if self.shape.has(Feature::RESIZE_INODE) {
            let runs = placer.place_file("the resize inode", first, 1)?;
            self.resize = runs.first().map(|run| run.start);
        }
        if self.journal_size.total > 0 {
            let goal = match options.journal.location {
                Some(block) if block >= self.shape.blocks => {
                    return Err(Error::option("-J location", "is beyond the end"));
                }
                Some(block) => block,
                None if options.packed_meta_blocks => first,
                None => placer.journal_goal(),
            };
            let blocks = self.journal_size.total;
            let runs = match taken {
                [] => placer.place_file("the journal", goal, blocks)?,
                _ => placer.place_in_one_run("the journal", goal, blocks)?,
            };
            if options.journal.location.is_some()
                && runs.first().map(|run| run.start.0) != options.journal.location
            {
                let reason = format!(
                    "block {goal} is taken by the file system's own structures; the next free one is {}",
                    runs.first().map_or(0, |run| run.start.0)
                );
                return Err(Error::option("-J location", reason));
            }
            self.journal = Some(self.with_map(placer, runs)?);
        }
        if self.shape.has(Feature::ORPHAN_FILE) {
            let blocks = self.orphan_blocks(options)?;
            let mut runs = placer.place_in_one_run("the orphan file", first, blocks)?;
            // A cluster can be longer than the longest orphan file, which then ends inside the cluster.
            keep_first(&mut runs, tables::ORPHAN_MAX);
            let plan = self.with_map(placer, runs)?;
            self.orphan = Some((Ino(next_ino), plan));
            self.superblock.set_orphan_file_ino(Some(Ino(next_ino)));
            next_ino += 1;
        } else if options.orphan_file_size.is_some() {
            return Err(Error::option("-E orphan_file_size", "needs -O orphan_file"));
        }
        if self.shape.has(Feature::MMP) {
            let runs = placer.place_file("the multi-mount block", first, 1)?;
            self.mmp = runs.first().map(|run| run.start);
            self.superblock.set_mmp_block(self.mmp.unwrap_or_default());
        }
        self.first_free_ino = Ino(next_ino);
        Ok(())
    }

    fn with_map(&self, placer: &mut Placer, runs: Vec<BlockRun>) -> Result<FilePlan, Error> {
        let count = file_map::map_blocks(&runs, self.shape.block_size, self.shape.map_kind())
            .ok_or_else(|| placer.too_small("an unbroken run for the journal"))?;
        let goal = runs.first().map_or(0, |run| run.start.0);
        let mut map = Vec::new();
        for _ in 0..count {
            let place = placer.place_file("the journal's map", goal, 1)?;
            map.extend(place.first().map(|run| run.start));
        }
        Ok(FilePlan { runs, map })
    }

    fn orphan_blocks(&self, options: &Options) -> Result<u64, Error> {
        let Some(size) = options.orphan_file_size else {
            return Ok(tables::orphan_blocks(self.shape.blocks));
        };
        let blocks = size.blocks(self.shape.block_size);
        if blocks == 0 || blocks > tables::ORPHAN_MAX {
            let most = tables::ORPHAN_MAX << self.shape.block_size.bits();
            let reason = format!(
                "must be from 1 to {} blocks ({most} bytes)",
                tables::ORPHAN_MAX
            );
            return Err(Error::option("-E orphan_file_size", reason));
        }
        Ok(blocks)
    }

    /// Counts what is never free: the metadata of the groups, and the journal.
    fn count_overhead(&mut self) {
        let journal = self.journal.as_ref().map_or(0, FilePlan::blocks);
        let bits = self.shape.cluster_bits;
        let groups = if bits == 0 {
            self.group_metadata()
        } else {
            self.group_metadata_in_clusters()
        };
        // An image never has more than 2^32 clusters of overhead, because it has fewer inodes than that.
        let clusters = u32::try_from((groups + journal) >> bits).unwrap_or(0);
        self.superblock.set_overhead_clusters(clusters);
    }

    fn group_metadata(&self) -> u64 {
        let fixed = place::fixed_groups(&self.shape).into_iter();
        let fixed: u64 = fixed
            .map(|group| self.geometry.group_start(group).blocks())
            .sum();
        // The block before the first group counts, too.
        fixed + self.shape.groups * (2 + self.shape.table_blocks) + self.shape.first_data_block
    }

    fn group_metadata_in_clusters(&self) -> u64 {
        let mut space = Placer::new(&self.shape, &self.geometry, &[]).space;
        self.take_groups(&mut space);
        space.round_to_clusters(self.shape.cluster_bits);
        self.shape.blocks - space.free(0, self.shape.blocks)
    }

    /// The size of the image in bytes: a whole number of blocks.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.geometry.bytes()
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.shape.block_size
    }

    /// The image's geometry.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The superblock, complete except for the counts of free blocks and inodes.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The time of the layout's own time stamps, in seconds since 1970.
    #[must_use]
    pub fn time(&self) -> i64 {
        self.habits.time
    }

    /// Where a group's bitmaps and inode table lie.
    ///
    /// # Panics
    /// If the group does not exist.
    #[must_use]
    pub fn place(&self, group: Group) -> GroupPlace {
        self.places[group.0 as usize]
    }

    /// The number of groups.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.geometry.groups()
    }

    /// All blocks that the layout itself uses, as ascending runs of whole clusters that neither overlap nor touch.
    #[must_use]
    pub fn used(&self) -> &[BlockRun] {
        &self.used
    }

    /// The first inode number that is neither reserved nor special: 13 with lost+found (11) and an orphan file (12).
    #[must_use]
    pub fn first_free_ino(&self) -> Ino {
        self.first_free_ino
    }

    /// Blocks of the journal, with its fast-commit area; 0 without one or with one on another device.
    #[must_use]
    pub fn journal_blocks(&self) -> u64 {
        self.journal.as_ref().map_or(0, FilePlan::blocks)
    }
}

/// The journal's size. If the image is too small for a journal, drops the features that need one.
fn journal_size(shape: &mut Shape, options: &Options) -> Result<JournalSize, Error> {
    if !shape.has(Feature::HAS_JOURNAL) || options.journal.device.is_some() {
        return Ok(JournalSize::default());
    }
    if let Some(size) = JournalSize::of(shape, options)? {
        return Ok(size);
    }
    for feature in [
        Feature::HAS_JOURNAL,
        Feature::FAST_COMMIT,
        Feature::ORPHAN_FILE,
    ] {
        shape.features = shape.features.without(feature);
    }
    Ok(JournalSize::default())
}

/// True if the journal or the resize inode is 2 GiB or longer, which needs the feature large_file.
fn holds_large_file(shape: &Shape, journal: JournalSize) -> bool {
    let journal = journal.total << shape.block_size.bits();
    journal >= LARGE_FILE_BYTES || shape.has_large_resize_inode()
}

fn habits(options: &Options, identity: &FsIdentity) -> Habits {
    Habits {
        lazy_tables: options.lazy_itable_init,
        lazy_journal: options.lazy_journal_init,
        device_is_zero: options.device_is_zero,
        lost_found: options.lost_found,
        root_owner: options.root_owner.unwrap_or_default(),
        time: identity.time,
    }
}

/// Cuts the runs of a file after `blocks` blocks.
fn keep_first(runs: &mut Vec<BlockRun>, blocks: u64) {
    let mut left = blocks;
    for run in runs.iter_mut() {
        run.len = run.len.min(left);
        left -= run.len;
    }
    runs.retain(|run| run.len > 0);
}

/// The parts of `runs` outside `taken`; both ascending, `taken` within `runs`.
fn without(runs: Vec<BlockRun>, taken: &[BlockRun]) -> Vec<BlockRun> {
    let mut left = Vec::new();
    let mut taken = taken.iter().filter(|run| run.len > 0).peekable();
    for run in runs {
        let mut at = run.start.0;
        while let Some(next) = taken.next_if(|next| next.start.0 < run.end().0) {
            if next.start.0 > at {
                left.push(BlockRun {
                    start: FsBlock(at),
                    len: next.start.0 - at,
                });
            }
            at = at.max(next.end().0);
        }
        if run.end().0 > at {
            left.push(BlockRun {
                start: FsBlock(at),
                len: run.end().0 - at,
            });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u64) -> BlockRun {
        BlockRun {
            start: FsBlock(start),
            len,
        }
    }

    #[test]
    fn what_is_taken_is_cut_out() {
        let left = without(
            vec![run(0, 10), run(20, 10)],
            &[run(2, 2), run(4, 1), run(20, 3), run(28, 2)],
        );
        assert_eq!(left, [run(0, 2), run(5, 5), run(23, 5)]);
    }

    #[test]
    fn metadata_go_around_the_data() {
        let options = Options {
            block_size: Some(BlockSize::K4),
            ..Options::default()
        };
        let options = Options {
            stream: Some(crate::StreamGeometry::growing(&options).unwrap()),
            ..options
        };
        let taken = [run(257, 32768 - 257), run(32768 + 257, 60_000)];
        let layout = Layout::plan_around(1 << 30, &options, &taken).unwrap();
        let overlaps =
            |one: &BlockRun, other: &BlockRun| one.start < other.end() && other.start < one.end();
        for used in layout.used() {
            assert!(!taken.iter().any(|taken| overlaps(used, taken)), "{used:?}");
        }
        let total: u64 = layout.used().iter().map(|run| run.len).sum();
        let plain = Layout::plan(1 << 30, &options).unwrap();
        assert_eq!(total, plain.used().iter().map(|run| run.len).sum::<u64>());
        assert!(layout.journal.unwrap().runs.len() == 1);
    }
}
