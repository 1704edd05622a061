//! Makes the map of a file whose runs are known: an extent tree of any depth, or blocks of pointers.
//!
//! The blocks of the map are counted first ([`map_blocks`]), so that they can be placed, and written later
//! ([`build_map`]), once the inode's checksum seed is known. Nodes are full except the last of each level.

use super::{MapKind, Run};
use crate::extent::{self, Extent, ExtentEntries, ExtentIndex};
use crate::indirect::{self, PointerPath};
use crate::inode::BLOCK_AREA;
use crate::numbers::{BlockSize, FsBlock, LBlock};

impl MapKind {
    /// The most blocks that a written run may have: an extent holds at most [`extent::MAX_LEN`].
    #[must_use]
    pub fn max_run(self) -> u64 {
        match self {
            MapKind::Extents => extent::MAX_LEN.into(),
            MapKind::Pointers => u32::MAX.into(),
        }
    }

    /// The most blocks that a file may have, holes included.
    #[must_use]
    pub fn max_blocks(self, size: BlockSize) -> u64 {
        match self {
            // The kernel's largest logical block is 2^32 - 2.
            MapKind::Extents => u32::MAX.into(),
            MapKind::Pointers => indirect::max_blocks(size).min(u32::MAX.into()),
        }
    }
}

/// How many blocks the map of these runs takes in addition to the inode. The runs must be as for [`build_map`].
#[must_use]
pub fn map_blocks(kind: MapKind, runs: &[Run], size: BlockSize) -> u64 {
    match kind {
        MapKind::Extents => {
            let fit = usize::from(extent::block_entries(size.bytes()));
            let mut level = runs.len();
            let mut blocks = 0;
            while level > usize::from(extent::ROOT_ENTRIES) {
                level = level.div_ceil(fit);
                blocks += level as u64;
            }
            blocks
        }
        MapKind::Pointers => pointer_blocks(runs, size),
    }
}

/// Which blocks of pointers lead to a logical block, each counted over the whole file.
#[derive(Clone, Copy)]
struct PointerBlocksAbove {
    /// The block that names it.
    leaf: u64,
    /// The block that names the leaf; `None` for the inode.
    middle: Option<u64>,
    /// Whether the triple indirect block is above both.
    top: bool,
}

impl PointerBlocksAbove {
    /// Those above `logical`; `None` for one that the inode names.
    fn of(logical: u64, size: BlockSize) -> Option<PointerBlocksAbove> {
        let (one, two) = (indirect::span(1, size), indirect::span(2, size));
        let rest = logical.checked_sub(u64::from(indirect::DIRECT))?;
        let middle = match rest {
            rest if rest < one => None,
            rest if rest < one + two => Some(0),
            rest => Some(1 + (rest - one - two) / two),
        };
        Some(PointerBlocksAbove {
            leaf: rest / one,
            middle,
            top: middle.is_some_and(|middle| middle > 0),
        })
    }
}

fn pointer_blocks(runs: &[Run], size: BlockSize) -> u64 {
    let (mut leaves, mut middles, mut top) = (0, 0, false);
    let (mut next_leaf, mut next_middle) = (0, 0);
    for run in runs {
        let first = run.logical.max(u64::from(indirect::DIRECT));
        let first = PointerBlocksAbove::of(first, size);
        let (Some(first), Some(last)) = (first, PointerBlocksAbove::of(run.end() - 1, size)) else {
            continue;
        };
        leaves += (last.leaf + 1).saturating_sub(first.leaf.max(next_leaf));
        next_leaf = last.leaf + 1;
        if let Some(last_middle) = last.middle {
            let from = first.middle.unwrap_or(0).max(next_middle);
            middles += (last_middle + 1).saturating_sub(from);
            next_middle = last_middle + 1;
        }
        top |= last.top;
    }
    leaves + middles + u64::from(top)
}

/// Makes the map of these runs: returns the inode's block area, and calls `emit` with each block of the map.
///
/// The runs ascend without overlap and have at most [`MapKind::max_run`] blocks; the file has at most
/// [`MapKind::max_blocks`]. `places` are the blocks for the map, [`map_blocks`] of them. A tree takes them from its
/// leaves up, each level in the order of the file. Pointers take them as the file's blocks are reached: the triple
/// indirect block, the double one, the one above the data. `seed` is the inode's checksum seed where `metadata_csum`
/// is on.
///
/// # Errors
/// What `emit` returns.
///
/// # Panics
/// When a run is longer than an extent can hold.
pub fn build_map<E>(
    kind: MapKind,
    runs: &[Run],
    places: &[FsBlock],
    size: BlockSize,
    seed: Option<u32>,
    emit: impl FnMut(FsBlock, &[u8]) -> Result<(), E>,
) -> Result<[u8; BLOCK_AREA], E> {
    match kind {
        MapKind::Extents => build_extents(runs, places, size, seed, emit),
        MapKind::Pointers => build_pointers(runs, places, size, emit),
    }
}

/// The extent of a run, whose first block has 32 bits.
fn extent_of(run: &Run) -> Extent {
    // A longer run would lose blocks.
    let len = u16::try_from(run.len).expect("a run is no longer than an extent");
    Extent::new(LBlock(run.logical as u32), len, run.start, run.unwritten)
}

fn build_extents<E>(
    runs: &[Run],
    places: &[FsBlock],
    size: BlockSize,
    seed: Option<u32>,
    mut emit: impl FnMut(FsBlock, &[u8]) -> Result<(), E>,
) -> Result<[u8; BLOCK_AREA], E> {
    let extents: Vec<Extent> = runs.iter().map(extent_of).collect();
    let mut root = [0; BLOCK_AREA];
    if extents.len() <= usize::from(extent::ROOT_ENTRIES) {
        extent::encode(&mut root, 0, ExtentEntries::Extents(&extents));
        return Ok(root);
    }
    let fit = usize::from(extent::block_entries(size.bytes()));
    let mut places = places.iter().copied();
    let mut block = vec![0; size.bytes()];
    let mut level = Vec::new();
    let mut write = |depth, entries: ExtentEntries<'_>| {
        // `map_blocks` counts exactly these nodes.
        let place = places.next().unwrap_or_default();
        extent::encode(&mut block, depth, entries);
        if let Some(seed) = seed {
            extent::set_tail(&mut block, seed);
        }
        emit(place, &block).map(|()| place)
    };
    for leaf in extents.chunks(fit) {
        let place = write(0, ExtentEntries::Extents(leaf))?;
        level.push(ExtentIndex::new(LBlock(leaf[0].block()), place));
    }
    let mut depth = 1;
    while level.len() > usize::from(extent::ROOT_ENTRIES) {
        let mut above = Vec::new();
        for node in level.chunks(fit) {
            let place = write(depth, ExtentEntries::Indices(node))?;
            above.push(ExtentIndex::new(LBlock(node[0].block()), place));
        }
        level = above;
        depth += 1;
    }
    extent::encode(&mut root, depth, ExtentEntries::Indices(&level));
    Ok(root)
}

/// A block of pointers that is being filled.
struct OpenPointers {
    ordinal: Option<u64>,
    place: FsBlock,
    bytes: Vec<u8>,
}

impl OpenPointers {
    fn new(size: BlockSize) -> OpenPointers {
        OpenPointers {
            ordinal: None,
            place: FsBlock(0),
            bytes: vec![0; size.bytes()],
        }
    }

    /// Goes on to the block with this ordinal; returns whether it is another one than before.
    fn turn<E>(
        &mut self,
        ordinal: u64,
        places: &mut impl Iterator<Item = FsBlock>,
        emit: &mut impl FnMut(FsBlock, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.ordinal == Some(ordinal) {
            return Ok(false);
        }
        self.finish(emit)?;
        self.ordinal = Some(ordinal);
        // `map_blocks` counts exactly these blocks.
        self.place = places.next().unwrap_or_default();
        Ok(true)
    }

    fn finish<E>(
        &mut self,
        emit: &mut impl FnMut(FsBlock, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.ordinal.is_some() {
            emit(self.place, &self.bytes)?;
            self.bytes.fill(0);
        }
        Ok(())
    }

    /// The pointer to this block. Maps of pointers exist only where every block number has 32 bits.
    fn pointer(&self) -> u32 {
        self.place.0 as u32
    }

    fn set(&mut self, index: u32, pointer: u32) {
        indirect::set_pointer(&mut self.bytes, index, pointer);
    }
}

fn build_pointers<E>(
    runs: &[Run],
    places: &[FsBlock],
    size: BlockSize,
    mut emit: impl FnMut(FsBlock, &[u8]) -> Result<(), E>,
) -> Result<[u8; BLOCK_AREA], E> {
    let mut words = [0u32; BLOCK_AREA / 4];
    let mut places = places.iter().copied();
    let (mut leaf, mut middle, mut top) = (
        OpenPointers::new(size),
        OpenPointers::new(size),
        OpenPointers::new(size),
    );
    for run in runs {
        for index in 0..run.len {
            // Block numbers of the device and of the file have 32 bits where there are maps of pointers.
            let target = (run.start.0 + index) as u32;
            let logical = run.logical + index;
            let Some(above) = PointerBlocksAbove::of(logical, size) else {
                words[logical as usize] = target;
                continue;
            };
            let Some(path) = PointerPath::to(LBlock(logical as u32), size) else {
                continue;
            };
            let indices = path.indices();
            if above.top && top.turn(0, &mut places, &mut emit)? {
                words[path.word()] = top.pointer();
            }
            if let Some(ordinal) = above.middle
                && middle.turn(ordinal, &mut places, &mut emit)?
            {
                if above.top {
                    top.set(indices[0], middle.pointer())
                } else {
                    words[path.word()] = middle.pointer()
                }
            }
            if leaf.turn(above.leaf, &mut places, &mut emit)? {
                match indices.len() {
                    1 => words[path.word()] = leaf.pointer(),
                    levels => middle.set(indices[levels - 2], leaf.pointer()),
                }
            }
            leaf.set(indices[indices.len() - 1], target);
        }
    }
    for level in [&mut leaf, &mut middle, &mut top] {
        level.finish(&mut emit)?;
    }
    let mut area = [0; BLOCK_AREA];
    for (word, bytes) in words.iter().zip(area.chunks_exact_mut(4)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Ok(area)
}
