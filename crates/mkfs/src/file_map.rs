//! Maps of files whose blocks are known from the start: an extent tree of at most two levels, or a block map.

use std::convert::Infallible;

use ondisk::map::{self, MapKind, Run};
use ondisk::{BlockSize, FsBlock, Inode, extent, indirect};

use crate::BlockRun;

/// The contents of one map block.
pub(crate) struct MapBlock {
    pub place: FsBlock,
    pub bytes: Vec<u8>,
}

/// How many map blocks a file of these runs needs besides its inode; `None` when two levels of extents are not enough.
pub(crate) fn map_blocks(runs: &[BlockRun], block_size: BlockSize, kind: MapKind) -> Option<u64> {
    let count = map::map_blocks(kind, &runs_of(runs, kind), block_size);
    (kind == MapKind::Pointers || count <= extent::ROOT_ENTRIES.into()).then_some(count)
}

/// Writes the map of `runs` into the inode and returns what goes into `places` (as many as [`map_blocks`] said).
/// `seed` is the inode's checksum seed, with metadata checksums.
pub(crate) fn write(
    inode: &mut Inode,
    runs: &[BlockRun],
    places: &[FsBlock],
    block_size: BlockSize,
    kind: MapKind,
    seed: Option<u32>,
) -> Vec<MapBlock> {
    let runs = runs_of(runs, kind);
    let places = match kind {
        MapKind::Extents => places.to_vec(),
        MapKind::Pointers => from_the_top(places, &runs, block_size),
    };
    let mut blocks = Vec::new();
    let emit = |place, bytes: &[u8]| {
        let bytes = bytes.to_vec();
        blocks.push(MapBlock { place, bytes });
        Ok::<(), Infallible>(())
    };
    let Ok(area) = map::build_map(kind, &runs, &places, block_size, seed, emit);
    *inode.block_area_mut() = area;
    blocks
}

/// The runs of a file without holes, in pieces that the map can hold.
fn runs_of(blocks: &[BlockRun], kind: MapKind) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut logical = 0;
    for run in blocks {
        let (mut start, end) = (run.start.0, run.end().0);
        while start < end {
            let len = kind.max_run().min(end - start);
            runs.push(Run {
                logical,
                start: FsBlock(start),
                len,
                unwritten: false,
            });
            (start, logical) = (start + len, logical + len);
        }
    }
    runs
}

/// `places` in the order in which [`map::build_map`] takes them. Files of a layout have their blocks of pointers level
/// by level, those above the data first.
fn from_the_top(places: &[FsBlock], runs: &[Run], size: BlockSize) -> Vec<FsBlock> {
    let mut ordered = Vec::new();
    let mut left = runs.last().map_or(0, Run::end);
    left = left.saturating_sub(indirect::DIRECT.into());
    let mut rest = places.iter().copied();
    for levels in 1..=3 {
        let covered = left.min(indirect::span(levels, size));
        left -= covered;
        let layers: Vec<Vec<FsBlock>> = (1..=levels)
            .map(|level| {
                let count = covered.div_ceil(indirect::span(level, size));
                rest.by_ref().take(count as usize).collect()
            })
            .collect();
        for leaf in 0..layers[0].len() {
            for (level, layer) in (0..levels).zip(&layers).rev() {
                let leaves = indirect::span(level, size) as usize;
                if leaf.is_multiple_of(leaves) {
                    ordered.push(layer[leaf / leaves]);
                }
            }
        }
    }
    ordered
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
            for kind in [MapKind::Pointers, MapKind::Extents] {
                let runs: Vec<BlockRun> =
                    (0..len).map(|block| run(100_000 + 2 * block, 1)).collect();
                let Some(count) = map_blocks(&runs, size, kind) else {
                    assert_eq!(kind, MapKind::Extents);
                    continue;
                };
                let places: Vec<FsBlock> = (1..=count).map(FsBlock).collect();
                let written = write(&mut Inode::zeroed(), &runs, &places, size, kind, Some(1));
                let used: Vec<FsBlock> = written.iter().map(|block| block.place).collect();
                assert_eq!(used.len() as u64, count, "{len} {size:?} {kind:?}");
                assert!(used.iter().all(|place| places.contains(place)));
            }
        }
    }

    #[test]
    fn a_journal_of_a_gibibyte_takes_one_leaf() {
        assert_eq!(
            map_blocks(&[run(0, 262_144)], BlockSize::K4, MapKind::Extents),
            Some(1)
        );
        assert_eq!(
            map_blocks(&[run(0, 131_072)], BlockSize::K4, MapKind::Extents),
            Some(0)
        );
        assert_eq!(
            map_blocks(&[run(0, 1 << 20)], BlockSize::K1, MapKind::Pointers),
            Some(1 + 257 + 3839 + 15 + 1)
        );
    }

    #[test]
    fn blocks_of_pointers_lie_level_by_level_behind_one_another() {
        let len = 12 + 256 + 65_536 + 600;
        let runs = [run(100_000, len)];
        let count = map_blocks(&runs, BlockSize::K1, MapKind::Pointers).unwrap();
        let places: Vec<FsBlock> = (1..=count).map(FsBlock).collect();
        let mut inode = Inode::zeroed();
        let written = write(
            &mut inode,
            &runs,
            &places,
            BlockSize::K1,
            MapKind::Pointers,
            None,
        );
        // One above the data; 256 and the one above them; three, one and one.
        let roots = [1, 258, 263];
        assert_eq!([12, 13, 14].map(|word| inode.block_word(word)), roots);
        let first = |place: u64| {
            let block = written.iter().find(|block| block.place.0 == place);
            indirect::pointer(&block.unwrap().bytes, 0).unwrap()
        };
        let firsts = [1, 2, 258, 259, 262, 263].map(first);
        let double = 100_012 + 256;
        assert_eq!(firsts, [100_012, double, 2, double + 65_536, 259, 262]);
    }
}
