//! Walks a block map: direct pointers, then blocks of pointers of one, two and three levels.

use ondisk::indirect::{self, PointerPath};
use ondisk::{BlockSize, Corrupt, FsBlock, Ino, LBlock, Site};

use super::Mapping;
use crate::error::Error;
use crate::icache::LoadedInode;
use crate::sb::{Kind, OpenVolume};

/// A walk through the map of one inode.
pub(super) struct Map {
    ino: Ino,
    words: [u32; 15],
    size: BlockSize,
    /// Blocks of pointers that may still be read. A map that needs more than the device has is a loop.
    budget: u64,
    /// The block of pointers that was read last in each level; to read it again costs nothing.
    last: [FsBlock; 3],
}

/// What a path leads to.
enum End {
    /// A data block, and how many of the pointers after it continue it.
    Data(FsBlock, u64),
    /// No pointer; so many blocks from the one asked for on are not mapped.
    Hole(u64),
}

impl Map {
    /// Before the first run of the inode's map.
    pub(super) fn new(volume: &OpenVolume, inode: &LoadedInode) -> Map {
        Map {
            ino: inode.ino(),
            words: std::array::from_fn(|index| inode.block_word(index)),
            size: volume.geometry().block_size(),
            budget: volume.geometry().blocks_count(),
            last: [FsBlock(0); 3],
        }
    }

    /// The first run that ends after `from`, which begins there or later.
    pub(super) fn next(
        &mut self,
        volume: &OpenVolume,
        from: u64,
    ) -> Result<Option<Mapping>, Error> {
        let mut logical = from;
        // Each step moves forward by at least one block or ends.
        while let Ok(block) = u32::try_from(logical) {
            let Some(path) = PointerPath::to(LBlock(block), self.size) else {
                return Ok(None);
            };
            match self.follow(volume, &path)? {
                End::Hole(blocks) => logical += blocks,
                End::Data(first, more) => {
                    return Ok(Some(Mapping {
                        logical,
                        len: 1 + more,
                        physical: Some(first),
                        unwritten: false,
                    }));
                }
            }
        }
        Ok(None)
    }

    fn check(&self, volume: &OpenVolume, pointer: u32) -> Result<FsBlock, Error> {
        match volume.blocks().contains(&pointer.into()) {
            true => {
                volume.check_unowned(self.ino, FsBlock(pointer.into()), 1)?;
                Ok(FsBlock(pointer.into()))
            }
            false => {
                let corrupt = Corrupt::at(Site::IndirectPointer).ino(self.ino);
                Err(corrupt.block(FsBlock(pointer.into())).into())
            }
        }
    }

    fn follow(&mut self, volume: &OpenVolume, path: &PointerPath) -> Result<End, Error> {
        let mut pointer = self.words[path.word()];
        let levels = path.levels();
        if levels == 0 {
            let after = &self.words[path.word() + 1..indirect::DIRECT as usize];
            return self.end(volume, pointer, after.iter().copied());
        }
        // Walk down; at a missing pointer, skip the rest of what it would cover.
        for (index, below) in path.indices().iter().zip((0..levels).rev()) {
            if pointer == 0 {
                let covered = indirect::span(below + 1, self.size);
                return Ok(End::Hole(covered - path.offset_below(below + 1, self.size)));
            }
            let at = self.check(volume, pointer)?;
            self.spend(below, at)?;
            let block = volume.read_block(at, Kind::Pointers, Ino(0), |_| Ok(()))?;
            pointer = indirect::pointer(&block, *index).unwrap_or(0);
            if pointer == 0 && below > 0 {
                let after = (*index + 1..).map_while(|index| indirect::pointer(&block, index));
                let zeros = after.take_while(|next| *next == 0).count() as u64;
                let covered = (1 + zeros) * indirect::span(below, self.size);
                return Ok(End::Hole(covered - path.offset_below(below, self.size)));
            }
            if below == 0 {
                let all = (*index + 1..).map_while(|index| indirect::pointer(&block, index));
                return self.end(volume, pointer, all);
            }
        }
        Ok(End::Hole(1))
    }

    /// What a pointer to data and those after it say.
    fn end(
        &self,
        volume: &OpenVolume,
        pointer: u32,
        after: impl Iterator<Item = u32>,
    ) -> Result<End, Error> {
        if pointer == 0 {
            let zeros = after.take_while(|next| *next == 0).count();
            return Ok(End::Hole(1 + zeros as u64));
        }
        let first = self.check(volume, pointer)?;
        let limit = volume.blocks().end;
        let expected = first.0 + 1..limit;
        let more = after
            .zip(expected)
            .take_while(|(next, expected)| u64::from(*next) == *expected);
        let more = more.count() as u64;
        volume.check_unowned(self.ino, first, 1 + more)?;
        Ok(End::Data(first, more))
    }

    fn spend(&mut self, below: u8, block: FsBlock) -> Result<(), Error> {
        if std::mem::replace(&mut self.last[usize::from(below)], block) == block {
            return Ok(());
        }
        match self.budget.checked_sub(1) {
            Some(rest) => {
                self.budget = rest;
                Ok(())
            }
            None => Err(Corrupt::at(Site::IndirectLoop).ino(self.ino).into()),
        }
    }
}
