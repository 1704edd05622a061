//! Places: bitmaps and inode tables by group, then the blocks of the files that belong to the layout.
//!
//! As mke2fs does it: with flex_bg, the block bitmaps of a flex group lie together at its first free blocks, then its
//! inode bitmaps, then its inode tables; without, each in its own group. What does not fit there (data were there
//! first) goes wherever there is room, which only flex_bg allows.

use ondisk::{Feature, FsBlock, Geometry, Group};

use crate::shape::Shape;
use crate::space::Space;
use crate::{BlockRun, Error};

/// Where a group's own metadata lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupPlace {
    /// The block bitmap.
    pub block_bitmap: FsBlock,
    /// The inode bitmap.
    pub inode_bitmap: FsBlock,
    /// The first block of the inode table.
    pub inode_table: FsBlock,
}

/// Which of a group's three pieces.
#[derive(Clone, Copy)]
enum Piece {
    BlockBitmap,
    InodeBitmap,
    Table,
}

/// Places the metadata of groups, and then files, in a space.
pub(crate) struct Placer<'a> {
    shape: &'a Shape,
    geometry: &'a Geometry,
    pub(crate) space: Space,
    /// Where the search for a place anywhere goes on.
    overflow: u64,
}

impl<'a> Placer<'a> {
    /// A space with the fixed metadata and what the caller has taken.
    pub(crate) fn new(shape: &'a Shape, geometry: &'a Geometry, taken: &[BlockRun]) -> Placer<'a> {
        let mut space = Space::default();
        // Block 0 belongs to no group with 1 KiB blocks, and to group 0's boot block with bigalloc.
        if geometry.primary_superblock().0 > 0 {
            space.take(0, 1);
        }
        for group in fixed_groups(shape) {
            let start = geometry.group_start(group);
            if let Some(block) = start.superblock {
                space.take(block.0, 1);
            }
            space.take(
                start.descriptors.start,
                start.reserved.end - start.descriptors.start,
            );
        }
        for run in taken {
            space.take(run.start.0, run.len);
        }
        Placer {
            shape,
            geometry,
            space,
            overflow: 0,
        }
    }

    /// Bitmaps and inode tables of all groups. `packed`: all at the beginning; `is_end_apart`: those of a last group
    /// that ends early in itself.
    pub(crate) fn place_groups(
        &mut self,
        packed: bool,
        is_end_apart: bool,
    ) -> Result<Vec<GroupPlace>, Error> {
        let mut places = vec![GroupPlace::default(); self.geometry.groups() as usize];
        let flex = 1 << self.shape.flex_bits;
        let at_once = if packed { places.len() } else { flex };
        let spread = self.shape.blocks - self.shape.first_data_block;
        let is_apart = is_end_apart && !spread.is_multiple_of(self.shape.blocks_per_group);
        let whole = places.len() - usize::from(is_apart);
        let (together, last) = places.split_at_mut(whole);
        let chunks = together.chunks_mut(at_once).chain([last]);
        let mut first = 0;
        for chunk in chunks.filter(|chunk| !chunk.is_empty()) {
            for piece in [Piece::BlockBitmap, Piece::InodeBitmap, Piece::Table] {
                self.place_pieces(piece, first, chunk)?;
            }
            first += chunk.len() as u64;
        }
        Ok(places)
    }

    fn place_pieces(
        &mut self,
        piece: Piece,
        first: u64,
        chunk: &mut [GroupPlace],
    ) -> Result<(), Error> {
        let len = match piece {
            Piece::Table => self.shape.table_blocks,
            Piece::BlockBitmap | Piece::InodeBitmap => 1,
        };
        let start = self.first_block(first);
        let end = self
            .first_block(first + chunk.len() as u64)
            .min(self.shape.blocks);
        let all = len * chunk.len() as u64;
        let mut together = self.space.find(start, end, all).map(|(block, _)| block);
        if let Some(block) = together {
            self.space.take(block, all);
        }
        // What was too small for one piece is too small for the next.
        let mut from = start;
        for place in chunk {
            let block = match &mut together {
                Some(next) => {
                    *next += len;
                    *next - len
                }
                None => {
                    let block = self.find_one(from, end, len)?;
                    self.space.take(block, len);
                    if (from..end).contains(&block) {
                        from = block + len;
                    }
                    block
                }
            };
            match piece {
                Piece::BlockBitmap => place.block_bitmap = FsBlock(block),
                Piece::InodeBitmap => place.inode_bitmap = FsBlock(block),
                Piece::Table => place.inode_table = FsBlock(block),
            }
        }
        Ok(())
    }

    fn find_one(&mut self, start: u64, end: u64, len: u64) -> Result<u64, Error> {
        if let Some((block, _)) = self.space.find(start, end, len) {
            return Ok(block);
        }
        if self.shape.has(Feature::FLEX_BG) {
            for from in [self.overflow, 0] {
                if let Some((block, _)) = self.space.find(from, self.shape.blocks, len) {
                    self.overflow = block + len;
                    return Ok(block);
                }
            }
        }
        Err(self.too_small("bitmaps and inode tables"))
    }

    pub(crate) fn first_block(&self, group: u64) -> u64 {
        self.shape.first_data_block + group * self.shape.blocks_per_group
    }

    pub(crate) fn too_small(&self, what: &str) -> Error {
        Error::TooSmall {
            what: what.into(),
            size: self.shape.blocks << self.shape.block_size.bits(),
            instead: "ask for fewer inodes (-N, -i), a smaller journal (-J size=) or none (-O ^has_journal)",
        }
    }

    /// Blocks for a file, whole clusters, from `goal` on and then from the beginning. The runs are in file order.
    pub(crate) fn place_file(
        &mut self,
        what: &str,
        goal: u64,
        blocks: u64,
    ) -> Result<Vec<BlockRun>, Error> {
        let bits = self.shape.cluster_bits;
        let mut left = blocks.div_ceil(1 << bits) << bits;
        let mut runs: Vec<BlockRun> = Vec::new();
        for (from, to) in [(goal, self.shape.blocks), (0, goal)] {
            let mut at = from;
            while left > 0 {
                let Some((start, end)) = self.space.find(at, to, 1) else {
                    break;
                };
                let start = start.div_ceil(1 << bits) << bits;
                let len = (end.saturating_sub(start) >> bits << bits).min(left);
                at = end.max(start);
                if len > 0 {
                    runs.push(BlockRun {
                        start: FsBlock(start),
                        len,
                    });
                    left -= len;
                }
            }
        }
        if left > 0 {
            return Err(self.too_small(what));
        }
        for run in &runs {
            self.space.take(run.start.0, run.len);
        }
        Ok(runs)
    }

    /// As [`Self::place_file`], in one run where there is one.
    pub(crate) fn place_in_one_run(
        &mut self,
        what: &str,
        goal: u64,
        blocks: u64,
    ) -> Result<Vec<BlockRun>, Error> {
        let slack = (1 << self.shape.cluster_bits) - 1;
        let one = self.space.find(goal, self.shape.blocks, blocks + slack);
        let one = one.or_else(|| self.space.find(0, self.shape.blocks, blocks + slack));
        self.place_file(what, one.map_or(goal, |(start, _)| start), blocks)
    }

    /// Where a journal begins best: in the middle, so that no file is far from it.
    pub(crate) fn journal_goal(&self) -> u64 {
        let middle =
            (self.shape.blocks - self.shape.first_data_block) / 2 / self.shape.blocks_per_group;
        let last = self.shape.groups - 1;
        let free = |group: u64| {
            let start = self.first_block(group);
            self.space.free(
                start,
                (start + self.shape.blocks_per_group).min(self.shape.blocks),
            )
        };
        let flex = 1 << self.shape.flex_bits;
        if flex > 1 && middle > flex {
            let start = middle & !(flex - 1);
            let group = (start..=last).find(|group| free(*group) > 0);
            return self.first_block(group.unwrap_or(start));
        }
        let mut best = middle.saturating_sub(1);
        for group in best + 1..=(middle + 1).min(last) {
            if free(group) > free(best) {
                best = group;
            }
        }
        self.first_block(best)
    }

    /// Whether a group's own bitmaps and table, and its fixed metadata, are all that it holds is decided by counting:
    /// this is that count, in clusters.
    pub(crate) fn own_clusters(
        geometry: &Geometry,
        shape: &Shape,
        group: Group,
        place: &GroupPlace,
    ) -> u64 {
        let first = geometry.group_first_block(group).0;
        let end = first + u64::from(geometry.group_blocks(group));
        let start = geometry.group_start(group);
        let within = |block: FsBlock, len: u64| {
            let (from, to) = (block.0.max(first), (block.0 + len).min(end));
            (from, to.saturating_sub(from))
        };
        let pieces = [
            within(place.block_bitmap, 1),
            within(place.inode_bitmap, 1),
            within(place.inode_table, shape.table_blocks),
        ];
        if shape.cluster_bits == 0 {
            // The usual case, without a map to build: the pieces don't overlap.
            return start.blocks() + pieces.iter().map(|(_, len)| len).sum::<u64>();
        }
        let mut own = Space::default();
        if group.0 == 0 && geometry.primary_superblock().0 > first {
            own.take(first, 1);
        }
        if let Some(block) = start.superblock {
            own.take(block.0, 1);
        }
        own.take(
            start.descriptors.start,
            start.reserved.end - start.descriptors.start,
        );
        for (from, len) in pieces {
            own.take(from, len);
        }
        own.round_to_clusters(shape.cluster_bits);
        (end - first).div_ceil(1 << shape.cluster_bits)
            - (own.free(first, end) >> shape.cluster_bits)
    }
}

/// The groups that may have metadata at their start, ascending: with sparse_super only a few of half a million.
pub(crate) fn fixed_groups(shape: &Shape) -> Vec<Group> {
    let groups = shape.groups;
    let is_sparse = shape.has(Feature::SPARSE_SUPER) || shape.has(Feature::SPARSE_SUPER2);
    if !is_sparse || shape.has(Feature::META_BG) {
        // Groups have 32-bit numbers.
        return (0..groups).map(|group| Group(group as u32)).collect();
    }
    let mut list = vec![0, 1];
    if shape.has(Feature::SPARSE_SUPER2) {
        list.extend(shape.backup_groups);
    } else {
        for base in [3, 5, 7] {
            list.extend(
                std::iter::successors(Some(base), |power| Some(power * base))
                    .take_while(|group| *group < groups),
            );
        }
    }
    list.sort_unstable();
    list.dedup();
    let list = list.into_iter().filter(|group| *group < groups);
    list.map(|group| Group(group as u32)).collect()
}
