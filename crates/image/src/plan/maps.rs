//! From a file's runs to its block map: an extent tree of any depth, or the pointers of ext2 and ext3.
//!
//! The blocks of the map are counted first ([`map_blocks`]), so that the planner can place them, and written later
//! ([`encode`]) once the inode's checksum seed is known. Nodes are full but for the last of each level.

use ondisk::extent::{self, Extent, ExtentEntries, ExtentIndex};
use ondisk::indirect;
use ondisk::inode::BLOCK_AREA;
use ondisk::{BlockSize, FsBlock, LBlock};

/// Blocks of a file that lie together on the device. Extents hold at most [`extent::MAX_LEN`] of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileRun {
    /// First block on the device.
    pub start: u64,
    /// First block in the file.
    pub logical: u32,
    /// Number of blocks, at least 1.
    pub len: u32,
}

/// Which kind of map a file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MapKind {
    /// An extent tree.
    Extents,
    /// Pointers through up to three levels.
    Pointers,
}

impl MapKind {
    /// The most blocks a run may have.
    pub(crate) fn max_run(self) -> u32 {
        match self {
            MapKind::Extents => extent::MAX_LEN.into(),
            MapKind::Pointers => u32::MAX,
        }
    }

    /// The most blocks a file may have, holes included.
    pub(crate) fn max_blocks(self, size: BlockSize) -> u64 {
        match self {
            // The kernel's largest logical block is 2^32 - 2.
            MapKind::Extents => u64::from(u32::MAX),
            MapKind::Pointers => indirect::max_blocks(size).min(u64::from(u32::MAX)),
        }
    }
}

/// How many blocks the map of these runs takes beside the inode.
pub(crate) fn map_blocks(kind: MapKind, runs: &[FileRun], size: BlockSize) -> u64 {
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

/// The place of a logical block among the blocks of pointers: which last-level block names it, which
/// second-to-last block names that one (`None` for the inode), and whether the triple block is above both.
fn pointer_place(logical: u64, size: BlockSize) -> Option<(u64, Option<u64>, bool)> {
    let p = indirect::span(1, size);
    let rest = logical.checked_sub(u64::from(indirect::DIRECT))?;
    let leaf = rest / p;
    Some(match rest {
        rest if rest < p => (leaf, None, false),
        rest if rest < p + p * p => (leaf, Some(0), false),
        rest => (leaf, Some(1 + (rest - p - p * p) / (p * p)), true),
    })
}

fn pointer_blocks(runs: &[FileRun], size: BlockSize) -> u64 {
    let (mut leaves, mut middles, mut top) = (0, 0, false);
    let (mut next_leaf, mut next_middle) = (0, 0);
    for run in runs {
        let last = u64::from(run.logical) + u64::from(run.len) - 1;
        let first = u64::from(run.logical).max(u64::from(indirect::DIRECT));
        let (Some(first), Some(last)) = (pointer_place(first, size), pointer_place(last, size))
        else {
            continue;
        };
        let from = first.0.max(next_leaf);
        leaves += (last.0 + 1).saturating_sub(from);
        next_leaf = last.0 + 1;
        if let Some(last_middle) = last.1 {
            let from = first.1.unwrap_or(0).max(next_middle);
            middles += (last_middle + 1).saturating_sub(from);
            next_middle = last_middle + 1;
        }
        top |= last.2;
    }
    leaves + middles + u64::from(top)
}

/// Writes the map of these runs: the inode's block area is returned, and `emit` gets each block of the map, which
/// lie at `places` ([`map_blocks`] of them). `seed` is the inode's checksum seed where `metadata_csum` is on.
pub(crate) fn encode<E>(
    kind: MapKind,
    runs: &[FileRun],
    places: &[u64],
    size: BlockSize,
    seed: Option<u32>,
    emit: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<[u8; BLOCK_AREA], E> {
    match kind {
        MapKind::Extents => encode_extents(runs, places, size, seed, emit),
        MapKind::Pointers => encode_pointers(runs, places, size, emit),
    }
}

fn encode_extents<E>(
    runs: &[FileRun],
    places: &[u64],
    size: BlockSize,
    seed: Option<u32>,
    mut emit: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<[u8; BLOCK_AREA], E> {
    let extents: Vec<Extent> = runs
        .iter()
        // The planner cuts runs at `MapKind::max_run`, so the cast keeps the length.
        .map(|run| {
            Extent::new(
                LBlock(run.logical),
                run.len as u16,
                FsBlock(run.start),
                false,
            )
        })
        .collect();
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
        // `places` holds `map_blocks` blocks, which counts exactly these nodes.
        let place = places.next().unwrap_or_default();
        extent::encode(&mut block, depth, entries);
        if let Some(seed) = seed {
            extent::set_tail(&mut block, seed);
        }
        emit(place, &block).map(|()| FsBlock(place))
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
struct Pointers {
    ordinal: Option<u64>,
    place: u64,
    bytes: Vec<u8>,
}

impl Pointers {
    fn new(size: BlockSize) -> Pointers {
        Pointers {
            ordinal: None,
            place: 0,
            bytes: vec![0; size.bytes()],
        }
    }

    /// Goes on to the block with this ordinal, if it is another one; says whether it is.
    fn turn<E>(
        &mut self,
        ordinal: u64,
        places: &mut impl Iterator<Item = u64>,
        emit: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.ordinal == Some(ordinal) {
            return Ok(false);
        }
        self.finish(emit)?;
        self.ordinal = Some(ordinal);
        // `places` holds `map_blocks` blocks, which counts exactly these.
        self.place = places.next().unwrap_or_default();
        Ok(true)
    }

    fn finish<E>(&mut self, emit: &mut impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        if self.ordinal.is_some() {
            emit(self.place, &self.bytes)?;
            self.bytes.fill(0);
        }
        Ok(())
    }
}

fn encode_pointers<E>(
    runs: &[FileRun],
    places: &[u64],
    size: BlockSize,
    mut emit: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<[u8; BLOCK_AREA], E> {
    let mut words = [0u32; BLOCK_AREA / 4];
    let mut places = places.iter().copied();
    let (mut leaf, mut middle, mut top) = (
        Pointers::new(size),
        Pointers::new(size),
        Pointers::new(size),
    );
    for run in runs {
        for index in 0..run.len {
            // Maps of pointers exist only where every block number has 32 bits.
            let target = (run.start + u64::from(index)) as u32;
            let logical = run.logical + index;
            let Some((leaf_at, middle_at, triple)) = pointer_place(logical.into(), size) else {
                words[logical as usize] = target;
                continue;
            };
            let Some(path) = indirect::PointerPath::to(LBlock(logical), size) else {
                continue;
            };
            let indices = path.indices();
            if triple && top.turn(0, &mut places, &mut emit)? {
                words[path.word()] = top.place as u32;
            }
            if let Some(ordinal) = middle_at
                && middle.turn(ordinal, &mut places, &mut emit)?
            {
                match triple {
                    true => indirect::set_pointer(&mut top.bytes, indices[0], middle.place as u32),
                    false => words[path.word()] = middle.place as u32,
                }
            }
            if leaf.turn(leaf_at, &mut places, &mut emit)? {
                match indices.len() {
                    1 => words[path.word()] = leaf.place as u32,
                    levels => {
                        let index = indices[levels - 2];
                        indirect::set_pointer(&mut middle.bytes, index, leaf.place as u32);
                    }
                }
            }
            indirect::set_pointer(&mut leaf.bytes, indices[indices.len() - 1], target);
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
