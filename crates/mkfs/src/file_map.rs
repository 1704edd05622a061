//! Maps of files whose blocks are known from the start: an extent tree of at most two levels, or a block map.

use ondisk::extent::{self, Extent, ExtentEntries, ExtentIndex};
use ondisk::{BlockSize, FsBlock, Inode, LBlock, indirect};

use crate::BlockRun;

/// The most entries of a root.
const ROOT: usize = extent::ROOT_ENTRIES as usize;
const MAX_LEN: u64 = extent::MAX_LEN as u64;

/// The contents of one map block.
pub(crate) struct MapBlock {
    pub place: FsBlock,
    pub bytes: Vec<u8>,
}

/// How many map blocks a file of these runs needs besides its inode; `None` when two levels of extents are not enough.
pub(crate) fn map_blocks(runs: &[BlockRun], block_size: BlockSize, extents: bool) -> Option<u64> {
    if !extents {
        let blocks = runs.iter().map(|run| run.len).sum();
        return Some(indirect_blocks(blocks, block_size));
    }
    let count: u64 = runs.iter().map(|run| run.len.div_ceil(MAX_LEN)).sum();
    if count <= ROOT as u64 {
        return Some(0);
    }
    let leaves = count.div_ceil(extent::block_entries(block_size.bytes()).into());
    (leaves <= ROOT as u64).then_some(leaves)
}

/// Indirect blocks for a file of so many blocks without holes.
fn indirect_blocks(blocks: u64, block_size: BlockSize) -> u64 {
    let pointers = block_size.bytes_u64() / 4;
    let mut left = blocks.saturating_sub(indirect::DIRECT.into());
    let mut total = 0;
    for level in 1..=3 {
        let covered = left.min(pointers.pow(level));
        // One block for each `pointers^depth` covered, for each depth down from the top of this level.
        total += (1..=level)
            .map(|depth| covered.div_ceil(pointers.pow(depth)))
            .sum::<u64>();
        left -= covered;
    }
    total
}

/// Writes the map of `runs` into the inode and returns what goes into `places` (as many as [`map_blocks`] said).
/// `seed` is the inode's checksum seed, with metadata checksums.
pub(crate) fn write(
    inode: &mut Inode,
    runs: &[BlockRun],
    places: &[FsBlock],
    block_size: BlockSize,
    extents: bool,
    seed: Option<u32>,
) -> Vec<MapBlock> {
    if !extents {
        return write_indirect(inode, runs, places, block_size);
    }
    let list = extent_list(runs);
    if places.is_empty() {
        extent::encode(inode.block_area_mut(), 0, ExtentEntries::Extents(&list));
        return Vec::new();
    }
    let per_leaf = usize::from(extent::block_entries(block_size.bytes()));
    let mut indices = Vec::new();
    let mut blocks = Vec::new();
    for (leaf, place) in list.chunks(per_leaf).zip(places) {
        let mut bytes = vec![0; block_size.bytes()];
        extent::encode(&mut bytes, 0, ExtentEntries::Extents(leaf));
        if let Some(seed) = seed {
            extent::set_tail(&mut bytes, seed);
        }
        let first = leaf.first().map_or(0, Extent::block);
        indices.push(ExtentIndex::new(LBlock(first), *place));
        blocks.push(MapBlock {
            place: *place,
            bytes,
        });
    }
    extent::encode(inode.block_area_mut(), 1, ExtentEntries::Indices(&indices));
    blocks
}

fn extent_list(runs: &[BlockRun]) -> Vec<Extent> {
    let mut list = Vec::new();
    let mut logical = 0;
    for run in runs {
        let mut done = 0;
        while done < run.len {
            // Both are below 2^32: files of the layout are far smaller than 2^32 blocks.
            let len = (run.len - done).min(MAX_LEN) as u16;
            list.push(Extent::new(
                LBlock(logical),
                len,
                FsBlock(run.start.0 + done),
                false,
            ));
            logical += u32::from(len);
            done += u64::from(len);
        }
    }
    list
}

fn write_indirect(
    inode: &mut Inode,
    runs: &[BlockRun],
    places: &[FsBlock],
    block_size: BlockSize,
) -> Vec<MapBlock> {
    let pointers = block_size.bytes() / 4;
    let mut free = places.iter().copied();
    let mut blocks: Vec<MapBlock> = Vec::new();
    // The pointers of one level after the other, from the data up: those of each block become one pointer above.
    let mut data = runs.iter().flat_map(|run| run.start.0..run.end().0);
    for word in 0..indirect::DIRECT as usize {
        inode.set_block_word(word, data.next().map_or(0, low));
    }
    for level in 1..=3u32 {
        let covered: Vec<u64> = data.by_ref().take(pointers.pow(level)).collect();
        if covered.is_empty() {
            break;
        }
        let mut layer = covered;
        for _ in 0..level {
            layer = layer
                .chunks(pointers)
                .map(|chunk| {
                    let mut bytes = vec![0; block_size.bytes()];
                    for (index, pointer) in (0..).zip(chunk) {
                        indirect::set_pointer(&mut bytes, index, low(*pointer));
                    }
                    // As many as `map_blocks` counted.
                    let place = free.next().unwrap_or_default();
                    blocks.push(MapBlock { place, bytes });
                    place.0
                })
                .collect();
        }
        let root = layer.first().copied().map_or(0, low);
        inode.set_block_word(indirect::DIRECT as usize + level as usize - 1, root);
    }
    blocks
}

/// A block number in a block map, which [`crate::shape::Shape`] keeps below 2^32 where there are block maps.
#[allow(clippy::cast_possible_truncation)]
fn low(block: u64) -> u32 {
    block as u32
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
    fn map_blocks_are_counted_as_they_are_written() {
        for (len, size) in [
            (5, BlockSize::K1),
            (13, BlockSize::K1),
            (269, BlockSize::K1),
            (66_000, BlockSize::K1),
            (8192, BlockSize::K4),
        ] {
            for extents in [false, true] {
                let runs: Vec<BlockRun> =
                    (0..len).map(|block| run(100_000 + 2 * block, 1)).collect();
                let Some(count) = map_blocks(&runs, size, extents) else {
                    assert!(extents);
                    continue;
                };
                let places: Vec<FsBlock> = (1..=count).map(FsBlock).collect();
                let written = write(&mut Inode::zeroed(), &runs, &places, size, extents, Some(1));
                let used: Vec<FsBlock> = written.iter().map(|block| block.place).collect();
                assert_eq!(used.len() as u64, count, "{len} {size:?} {extents}");
                assert!(used.iter().all(|place| places.contains(place)));
            }
        }
    }

    #[test]
    fn a_journal_of_a_gibibyte_takes_one_leaf() {
        assert_eq!(map_blocks(&[run(0, 262_144)], BlockSize::K4, true), Some(1));
        assert_eq!(map_blocks(&[run(0, 131_072)], BlockSize::K4, true), Some(0));
        assert_eq!(
            map_blocks(&[run(0, 1 << 20)], BlockSize::K1, false),
            Some(1 + 257 + 3839 + 15 + 1)
        );
    }
}
