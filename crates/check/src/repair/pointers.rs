//! Maps of pointers under repair, as ext2 and ext3 have them. Their blocks are counted by ranges and written one after
//! the other, the lowest level first.

use std::collections::HashSet;
use std::ops::Range;

use ondisk::{BlockSize, Inode, indirect};

use crate::map::MapRun;
use crate::repair::edit::Edit;
use crate::repair::map::FileMap;

/// Reads a map of pointers. None once the round's budget is used up, or where the device can't read a block of it.
pub fn read(edit: &Edit<'_, '_>, inode: &Inode, map: &mut FileMap) -> Option<()> {
    let bits = edit.geometry.block_size().bits() - 2;
    let mut met = HashSet::new();
    let mut lblk = 0;
    for word in 0..15_usize {
        let levels = (word as u32).saturating_sub(11);
        // Pointers that wait: level, logical block, pointer; the next one last.
        let mut stack = vec![(levels, lblk, u64::from(inode.block_word(word)))];
        while let Some((levels, lblk, pointer)) = stack.pop() {
            if pointer == 0 {
                continue;
            }
            edit.spend(1)?;
            if !edit.contains(pointer, 1) || lblk >= 1 << 32 {
                map.is_damaged = true;
                continue;
            }
            if levels == 0 {
                map.push(MapRun {
                    lblk,
                    pblk: pointer,
                    len: 1,
                    unwritten: false,
                });
                continue;
            }
            if edit.space.metadata().contains(pointer) || !met.insert(pointer) {
                map.is_damaged = true;
                continue;
            }
            let bytes = edit.block(pointer)?;
            map.nodes.push(pointer);
            map.claimed_nodes.push(pointer);
            for index in (0..1_u32 << bits).rev() {
                let below = indirect::pointer(&bytes, index).unwrap_or(0);
                if below != 0 {
                    let at = lblk + (u64::from(index) << (bits * (levels - 1)));
                    stack.push((levels - 1, at, below.into()));
                }
            }
        }
        lblk += 1 << (bits * levels);
    }
    Some(())
}

/// Blocks of a file that the first words of its inode point to.
const DIRECT: u64 = 12;

/// The blocks of a file that one word of its inode leads to.
struct WordSpan {
    word: usize,
    /// The blocks of pointers on the way to each.
    levels: u32,
    blocks: Range<u64>,
    /// The binary logarithm of the pointers in a block.
    bits: u32,
}

impl WordSpan {
    /// The spans of the words that lead to blocks of pointers.
    fn all(size: BlockSize) -> impl Iterator<Item = WordSpan> {
        let bits = size.bits() - 2;
        let mut start = DIRECT;
        (1..=3_u32).map(move |levels| {
            let blocks = start..start + (1 << (bits * levels));
            start = blocks.end;
            WordSpan {
                word: 11 + levels as usize,
                levels,
                blocks,
                bits,
            }
        })
    }

    /// The parts of runs within the span, as logical blocks counted from its beginning, and their first blocks.
    fn parts<'a>(&'a self, runs: &'a [MapRun]) -> impl Iterator<Item = (Range<u64>, u64)> + 'a {
        let start = self.blocks.start;
        runs.iter().filter_map(move |run| {
            let from = run.lblk.max(start);
            let to = (run.lblk + run.len).min(self.blocks.end);
            (from < to).then(|| (from - start..to - start, run.pblk + (from - run.lblk)))
        })
    }

    /// How many blocks of pointers these runs need.
    fn nodes(&self, runs: &[MapRun]) -> u64 {
        let mut nodes = 0;
        for level in 1..=self.levels {
            let bits = self.bits * level;
            let mut counted = 0;
            for (part, _) in self.parts(runs) {
                let from = (part.start >> bits).max(counted);
                counted = ((part.end - 1) >> bits) + 1;
                nodes += counted - from;
            }
        }
        nodes
    }
}

/// How many blocks of pointers a map with these runs needs; `None` if a run lies beyond what three levels reach, or its
/// blocks beyond what a pointer holds.
fn node_count(size: BlockSize, runs: &[MapRun]) -> Option<usize> {
    let is_possible = |run: &MapRun| {
        let last = run.lblk + run.len - 1;
        last < indirect::max_blocks(size) && u32::try_from(run.pblk + run.len - 1).is_ok()
    };
    if !runs.iter().all(is_possible) {
        return None;
    }
    let nodes = WordSpan::all(size)
        .map(|span| span.nodes(runs))
        .sum::<u64>();
    usize::try_from(nodes).ok()
}

/// Writes a map of pointers into the inode. None, and the inode is unchanged, without space for it.
pub fn write(edit: &mut Edit<'_, '_>, inode: &mut Inode, map: &mut FileMap) -> Option<()> {
    let size = edit.geometry.block_size();
    let runs = std::mem::take(&mut map.runs);
    let mut blocks = edit.space.allocate_all(node_count(size, &runs)?)?;
    let mut words = [0_u32; 15];
    for run in &runs {
        for lblk in run.lblk..(run.lblk + run.len).min(DIRECT) {
            words[lblk as usize] = u32::try_from(run.pblk + (lblk - run.lblk)).ok()?;
        }
    }
    for span in WordSpan::all(size) {
        let pointers = span
            .parts(&runs)
            .flat_map(|(part, first)| part.zip(first..));
        let mut above = level(edit, span.bits, pointers, &mut blocks, map)?;
        for _ in 1..span.levels {
            above = level(edit, span.bits, above.into_iter(), &mut blocks, map)?;
        }
        if let Some((_, block)) = above.first() {
            words[span.word] = u32::try_from(*block).ok()?;
        }
    }
    map.runs = runs;
    for (index, word) in words.into_iter().enumerate() {
        inode.set_block_word(index, word);
    }
    Some(())
}

/// Writes the blocks that hold these pointers, each with its number among all pointers of its level. Returns the blocks
/// with their numbers.
fn level(
    edit: &mut Edit<'_, '_>,
    bits: u32,
    pointers: impl Iterator<Item = (u64, u64)>,
    blocks: &mut Vec<u64>,
    map: &mut FileMap,
) -> Option<Vec<(u64, u64)>> {
    let mut nodes: Vec<(u64, u64)> = Vec::new();
    let mut bytes = Vec::new();
    for (number, pointer) in pointers {
        let node = number >> bits;
        let last = nodes.last().copied();
        if last.is_none_or(|(last, _)| last != node) {
            if let Some((_, block)) = last {
                edit.set_block(block, std::mem::take(&mut bytes));
            }
            let block = blocks.pop()?;
            edit.clear_cluster(block);
            map.nodes.push(block);
            nodes.push((node, block));
            bytes = vec![0; edit.block_bytes()];
        }
        // A remainder of the pointers in a block.
        let index = (number & ((1 << bits) - 1)) as u32;
        indirect::set_pointer(&mut bytes, index, u32::try_from(pointer).ok()?);
    }
    if let Some((_, block)) = nodes.last() {
        edit.set_block(*block, bytes);
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use ondisk::LBlock;
    use ondisk::indirect::PointerPath;

    use super::*;

    fn run(lblk: u64, len: u64) -> MapRun {
        MapRun {
            lblk,
            pblk: 100,
            len,
            unwritten: false,
        }
    }

    #[test]
    fn blocks_of_pointers_are_counted_as_their_paths_are() {
        let p = 256;
        let (two, three) = (12 + p, 12 + p + p * p);
        let maps = [
            vec![],
            vec![run(0, 12)],
            vec![run(11, 2)],
            vec![run(0, 5), run(12, 1), run(two - 1, 2), run(two + p - 1, 2)],
            vec![run(two, 1), run(two + 1, 1), run(two + 7 * p, 3 * p + 1)],
            vec![run(three - 3, 2 * p * p), run(three + 9 * p * p, 1)],
            vec![run(three, 1), run(three + p - 1, 1), run(three + p, 1)],
        ];
        for runs in maps {
            let mut nodes: HashSet<(usize, Vec<u32>)> = HashSet::new();
            for lblk in runs.iter().flat_map(|run| run.lblk..run.lblk + run.len) {
                let path = PointerPath::to(LBlock(lblk as u32), BlockSize::K1).unwrap();
                for level in 0..path.indices().len() {
                    nodes.insert((path.word(), path.indices()[..level].to_vec()));
                }
            }
            let counted = node_count(BlockSize::K1, &runs);
            assert_eq!(counted, Some(nodes.len()), "{runs:?}");
        }
        let end = indirect::max_blocks(BlockSize::K1);
        assert!(node_count(BlockSize::K1, &[run(end - 1, 1)]).is_some());
        assert_eq!(node_count(BlockSize::K1, &[run(end, 1)]), None);
        let far = MapRun {
            pblk: (1 << 32) - 1,
            ..run(0, 2)
        };
        assert_eq!(node_count(BlockSize::K1, &[far]), None);
    }
}
