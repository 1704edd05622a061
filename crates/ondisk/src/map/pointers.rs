//! A walk through a map of pointers: the blocks of pointers from the inode down to the data.

use core::ops::Range;

use super::{MapNode, MapStep, Run};
use crate::indirect::{self, DIRECT, PointerPath};
use crate::inode::BLOCK_AREA;
use crate::numbers::{BlockSize, FsBlock, LBlock};
use crate::site::{Corrupt, Site};

/// A block of pointers on the way.
struct PointerLevel<B> {
    bytes: B,
    place: PointerPlace,
}

/// What of the file a block of pointers maps.
#[derive(Clone, Copy)]
struct PointerPlace {
    /// The first logical block.
    first: u64,
    /// Blocks of pointers from this one to the data: 1 to 3.
    levels: u8,
}

impl PointerPlace {
    fn covers(&self, logical: u64, size: BlockSize) -> bool {
        (self.first..self.first + indirect::span(self.levels, size)).contains(&logical)
    }
}

/// A walk through the pointers of one inode.
pub(super) struct PointerWalk<B> {
    words: [u32; BLOCK_AREA / 4],
    size: BlockSize,
    blocks: Range<u64>,
    /// From the block that the inode names down; each is one level less deep. Only the first `depth` are in use.
    path: [Option<PointerLevel<B>>; 3],
    depth: usize,
    /// The block that was asked for last.
    wanted: Option<PointerPlace>,
    /// The logical block at which the walk asked for the last block; nothing is mapped between the caller's `from` and
    /// this one.
    reached: u64,
}

/// What lies at a logical block.
enum Found {
    /// No pointer; nothing before this logical block is mapped.
    Hole(u64),
    /// A pointer to this block of pointers.
    Node(FsBlock, PointerPlace),
    /// A pointer to data, and the number of pointers that follow on it.
    Data(FsBlock, u64),
}

impl<B: AsRef<[u8]>> PointerWalk<B> {
    pub(super) fn new(
        area: &[u8; BLOCK_AREA],
        size: BlockSize,
        blocks: Range<u64>,
    ) -> PointerWalk<B> {
        PointerWalk {
            // The area holds exactly these.
            words: core::array::from_fn(|word| indirect::pointer(area, word as u32).unwrap_or(0)),
            size,
            blocks,
            path: [None, None, None],
            depth: 0,
            wanted: None,
            reached: 0,
        }
    }

    pub(super) fn next(&mut self, from: u64) -> Result<MapStep, Corrupt> {
        let mut logical = from.max(self.reached);
        let end = indirect::max_blocks(self.size);
        // Each turn passes at least one block or ends.
        while logical < end {
            self.leave(logical);
            let deepest = self.depth.checked_sub(1);
            let found = match deepest.and_then(|last| self.path[last].as_ref()) {
                Some(level) => self.find_below(level, logical)?,
                None => self.find_in_root(logical)?,
            };
            match found {
                Found::Hole(after) => logical = after,
                Found::Node(block, place) => {
                    self.wanted = Some(place);
                    self.reached = logical;
                    return Ok(MapStep::Node(MapNode {
                        block,
                        depth: place.levels.into(),
                        logical: place.first,
                    }));
                }
                Found::Data(start, more) => {
                    return Ok(MapStep::Run(Run {
                        logical,
                        start,
                        len: 1 + more.min(end - logical - 1),
                        unwritten: false,
                    }));
                }
            }
        }
        Ok(MapStep::End)
    }

    pub(super) fn supply(&mut self, bytes: B) {
        // A block is asked for below those on the path, so at most two are.
        if let Some(place) = self.wanted.take()
            && let Some(level) = self.path.get_mut(self.depth)
        {
            *level = Some(PointerLevel { bytes, place });
            self.depth += 1;
        }
    }

    /// Leaves the blocks on the path that don't lead to `logical`.
    fn leave(&mut self, logical: u64) {
        while let Some(last) = self.depth.checked_sub(1) {
            let level = &mut self.path[last];
            let is_above = |level: &PointerLevel<B>| level.place.covers(logical, self.size);
            if level.as_ref().is_some_and(is_above) {
                return;
            }
            *level = None;
            self.depth = last;
        }
    }

    fn find_in_root(&self, logical: u64) -> Result<Found, Corrupt> {
        // Always: the walk ends where the map does, which is at most 2^32.
        let path = u32::try_from(logical).ok();
        let Some(path) = path.and_then(|logical| PointerPath::to(LBlock(logical), self.size))
        else {
            return Ok(Found::Hole(u64::MAX));
        };
        let pointer = self.words[path.word()];
        let levels = path.levels();
        if levels == 0 {
            let after = &self.words[path.word() + 1..DIRECT as usize];
            return self.data(logical, pointer, after.iter().copied());
        }
        let first = logical - path.offset_below(levels, self.size);
        if pointer == 0 {
            return Ok(Found::Hole(first + indirect::span(levels, self.size)));
        }
        let place = PointerPlace { first, levels };
        Ok(Found::Node(self.check(pointer)?, place))
    }

    fn find_below(&self, level: &PointerLevel<B>, logical: u64) -> Result<Found, Corrupt> {
        let bytes = level.bytes.as_ref();
        let below = level.place.levels - 1;
        let span = indirect::span(below, self.size);
        // Below the number of pointers in a block: the block covers `logical`.
        let index = ((logical - level.place.first) / span) as u32;
        let pointer = indirect::pointer(bytes, index).unwrap_or(0);
        let mut after = (index + 1..).map_while(|index| indirect::pointer(bytes, index));
        if below == 0 {
            return self.data(logical, pointer, after);
        }
        let first = level.place.first + u64::from(index) * span;
        if pointer == 0 {
            let zeros = after.by_ref().take_while(|next| *next == 0).count() as u64;
            return Ok(Found::Hole(first + (1 + zeros) * span));
        }
        let place = PointerPlace {
            first,
            levels: below,
        };
        Ok(Found::Node(self.check(pointer)?, place))
    }

    /// What a pointer to data and those after it mean.
    fn data(
        &self,
        logical: u64,
        pointer: u32,
        after: impl Iterator<Item = u32>,
    ) -> Result<Found, Corrupt> {
        if pointer == 0 {
            let zeros = after.take_while(|next| *next == 0).count() as u64;
            return Ok(Found::Hole(logical + 1 + zeros));
        }
        let start = self.check(pointer)?;
        let expected = start.0 + 1..self.blocks.end;
        let more = after
            .zip(expected)
            .take_while(|(next, expected)| u64::from(*next) == *expected);
        Ok(Found::Data(start, more.count() as u64))
    }

    fn check(&self, pointer: u32) -> Result<FsBlock, Corrupt> {
        let block = FsBlock(pointer.into());
        if self.blocks.contains(&block.0) {
            Ok(block)
        } else {
            Err(Corrupt::at(Site::IndirectPointer).block(block))
        }
    }
}
