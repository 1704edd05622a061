//! The block map of ext2 and ext3: 12 pointers in the inode, then blocks of pointers of one, two and three
//! levels. Pure arithmetic: which index to follow at each level.
//!
//! ```text
//! word 0..12   blocks 0..12                      word 13   the next p^2 blocks, through two levels
//! word 12      the next p blocks, through one    word 14   the next p^3 blocks (p = block size / 4)
//! ```

use crate::numbers::{BlockSize, LBlock};

/// Pointers in the inode that name data.
pub const DIRECT: u32 = 12;

/// How to reach a logical block: the word of the inode, then an index into each block on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PointerPath {
    indices: [u32; 4],
    levels: u8,
}

impl PointerPath {
    /// The path to `block`; `None` if three levels do not reach it.
    #[must_use]
    pub fn to(block: LBlock, size: BlockSize) -> Option<PointerPath> {
        let bits = size.bits() - 2;
        let pointers = 1u64 << bits;
        let mut rest = u64::from(block.0);
        if rest < u64::from(DIRECT) {
            return Some(PointerPath {
                indices: [block.0, 0, 0, 0],
                levels: 0,
            });
        }
        rest -= u64::from(DIRECT);
        for levels in 1..=3u8 {
            let reach = 1u64 << (bits * u32::from(levels));
            if rest < reach {
                let mut indices = [DIRECT + u32::from(levels) - 1, 0, 0, 0];
                for level in 1..=levels {
                    let shift = bits * u32::from(levels - level);
                    indices[usize::from(level)] = (rest >> shift & (pointers - 1)) as u32;
                }
                return Some(PointerPath { indices, levels });
            }
            rest -= reach;
        }
        None
    }

    /// Blocks of pointers on the way: 0 to 3.
    #[must_use]
    pub fn levels(&self) -> u8 {
        self.levels
    }

    /// Which of the inode's 15 words to begin with.
    #[must_use]
    pub fn word(&self) -> usize {
        self.indices[0] as usize
    }

    /// The index into each block of pointers, from the top.
    #[must_use]
    pub fn indices(&self) -> &[u32] {
        &self.indices[1..=usize::from(self.levels)]
    }

    /// How far the block lies from the first one that the last `levels` indices could name.
    #[must_use]
    pub fn offset_below(&self, levels: u8, size: BlockSize) -> u64 {
        let indices = self.indices();
        let skipped = indices.len().saturating_sub(usize::from(levels));
        let below = indices[skipped..].iter();
        below.fold(0, |offset, index| {
            offset << (size.bits() - 2) | u64::from(*index)
        })
    }
}

/// How many logical blocks one pointer covers that has `levels` blocks of pointers below it.
#[must_use]
pub fn span(levels: u8, size: BlockSize) -> u64 {
    1 << ((size.bits() - 2) * u32::from(levels.min(3)))
}

/// How many logical blocks the map can name (2^32 where three levels reach further).
#[must_use]
pub fn max_blocks(size: BlockSize) -> u64 {
    let reach = u64::from(DIRECT) + span(1, size) + span(2, size) + span(3, size);
    reach.min(1 << 32)
}

/// How many blocks of pointers a map without holes takes for this number of blocks, at most [`max_blocks`].
#[must_use]
pub fn pointer_blocks(blocks: u64, size: BlockSize) -> u64 {
    let mut rest = blocks.saturating_sub(u64::from(DIRECT));
    let mut taken = 0;
    for levels in 1..=3 {
        let here = rest.min(span(levels, size));
        // Those at the lowest level, and those that name them.
        let of = |level: u8| here.div_ceil(span(level, size));
        taken += (1..=levels).map(of).sum::<u64>();
        rest -= here;
    }
    taken
}

/// One pointer of a block of pointers; `None` beyond its end.
#[must_use]
pub fn pointer(block: &[u8], index: u32) -> Option<u32> {
    let at = usize::try_from(index).ok()?.checked_mul(4)?;
    let bytes = block.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Sets one pointer of a block of pointers.
///
/// # Panics
/// When `index` is beyond the block's end.
pub fn set_pointer(block: &mut [u8], index: u32, pointer: u32) {
    let at = index as usize * 4;
    block[at..at + 4].copy_from_slice(&pointer.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_begins_where_the_one_before_ends() {
        for log in 0..=6 {
            let size = BlockSize::from_log(log).unwrap();
            let pointers = size.bytes_u64() / 4;
            let starts = [12, 12 + pointers, 12 + pointers + pointers * pointers];
            for (level, start) in starts.into_iter().enumerate() {
                let Ok(start) = u32::try_from(start) else {
                    continue;
                };
                let path = PointerPath::to(LBlock(start), size).unwrap();
                assert_eq!(path.word(), 12 + level);
                assert_eq!(path.indices(), vec![0; level + 1]);
                let before = PointerPath::to(LBlock(start - 1), size).unwrap();
                assert_eq!(usize::from(before.levels()), level);
                let last = (pointers - 1) as u32;
                assert!(before.indices().iter().all(|index| *index == last));
            }
        }
    }

    /// The words of a file's map and the blocks of pointers under it, made by mke2fs; what debugfs says of them.
    const GOLDEN: &[u8] = include_bytes!("../tests/golden/indirect.bin");
    const POINTER_BLOCKS: [u32; 6] = [70, 327, 328, 354, 355, 356];
    const MAPPED: [(u32, u32, u32); 4] =
        [(0, 58, 12), (12, 71, 256), (268, 329, 25), (66_000, 357, 1)];

    /// The byte of [`GOLDEN`] where the pointers in this block begin.
    fn place(block: u32) -> usize {
        let at = POINTER_BLOCKS.iter().position(|known| *known == block);
        60 + 1024 * at.expect("a block of pointers")
    }

    #[test]
    fn pointers_of_mke2fs_are_read_and_written_back_identical() {
        let mut written = vec![0; GOLDEN.len()];
        let mut seen = 0;
        for (first, start, len) in MAPPED {
            for index in 0..len {
                let path = PointerPath::to(LBlock(first + index), BlockSize::K1).unwrap();
                let (mut at, mut word) = (0, path.word() as u32);
                for below in path.indices() {
                    let block = pointer(&GOLDEN[at..], word).unwrap();
                    set_pointer(&mut written[at..], word, block);
                    (at, word) = (place(block), *below);
                }
                assert_eq!(pointer(&GOLDEN[at..], word), Some(start + index));
                set_pointer(&mut written[at..], word, start + index);
                seen += 1;
            }
        }
        assert_eq!(seen, 294);
        assert!(written == GOLDEN);
    }

    #[test]
    fn one_kilobyte_blocks_end_after_three_levels() {
        let max = max_blocks(BlockSize::K1);
        assert_eq!(max, 12 + 256 + 256 * 256 + 256 * 256 * 256);
        let last = u32::try_from(max - 1).unwrap();
        assert_eq!(
            PointerPath::to(LBlock(last), BlockSize::K1)
                .unwrap()
                .indices(),
            [255, 255, 255]
        );
        let path = PointerPath::to(LBlock(12 + 256 + 256 * 3 + 7), BlockSize::K1).unwrap();
        assert_eq!(path.indices(), [3, 7]);
        assert_eq!(path.offset_below(1, BlockSize::K1), 7);
        assert_eq!(path.offset_below(2, BlockSize::K1), 3 * 256 + 7);
        assert_eq!(PointerPath::to(LBlock(last + 1), BlockSize::K1), None);
        assert!(PointerPath::to(LBlock(u32::MAX), BlockSize::K64).is_some());
    }

    #[test]
    fn pointers_beyond_the_block_are_none() {
        let mut block = [0; 1024];
        set_pointer(&mut block, 255, 7);
        assert_eq!(pointer(&block, 255), Some(7));
        assert_eq!(pointer(&block, 256), None);
    }
}
