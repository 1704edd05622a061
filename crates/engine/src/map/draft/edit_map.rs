//! A block map (ext2, ext3) while it is edited: pointers set and cleared, blocks of pointers made when they are needed
//! and dropped when they are empty. No recursion: a path is at most three blocks.
//!
//! An image may come with blocks of pointers that name nothing: older kernels and e2fsck leave such. So what decides
//! whether a block of pointers is freed is that a change read it and that it names nothing afterwards, whether or not
//! it named something before.

use std::collections::HashMap;
use std::ops::Range;

use ondisk::indirect::{self, PointerPath};
use ondisk::inode::BLOCK_AREA;
use ondisk::map::Run;
use ondisk::{BlockSize, Corrupt, FsBlock, Ino, LBlock, Site};

use super::{Budget, Ground, Home, Outcome};
use crate::blocks::Kind;
use crate::core::Error;

struct Node<'a> {
    home: Home<'a>,
    /// The node above, and the pointer there.
    parent: (usize, usize),
    /// Levels below this node: 0 for one that points to data.
    depth: u8,
    words: Vec<u32>,
    /// Nodes below that are in the draft, by pointer.
    below: HashMap<usize, usize>,
    is_dirty: bool,
    is_gone: bool,
}

/// The map; node 0 is the inode's fifteen words.
pub(super) struct MapDraft<'a> {
    pub(super) ground: Ground<'a>,
    nodes: Vec<Node<'a>>,
    size: BlockSize,
}

/// Where a path leads.
enum Place {
    Pointer {
        node: usize,
        at: usize,
    },
    /// No block of pointers below `node`: this number of blocks from the one asked for on is not mapped.
    Hole {
        node: usize,
        blocks: u64,
    },
}

impl<'a> MapDraft<'a> {
    pub(super) fn new(ground: Ground<'a>, word: impl Fn(usize) -> u32) -> MapDraft<'a> {
        let root = Node {
            home: Home::Root,
            parent: (0, 0),
            depth: 3,
            words: (0..BLOCK_AREA / 4).map(word).collect(),
            below: HashMap::new(),
            is_dirty: false,
            is_gone: false,
        };
        MapDraft {
            ground,
            nodes: vec![root],
            size: ground.mounted.volume().geometry().block_size(),
        }
    }

    /// Puts a run into the map, where nothing is mapped.
    pub(super) fn insert(&mut self, piece: Run) -> Result<(), Error> {
        if piece.start.0 + piece.len > 1 << 32 {
            // Pointers have 32 bits, and the blocks below 2^32 are taken.
            return Err(Error::NoSpace);
        }
        for step in 0..piece.len {
            let path = self
                .path_to(piece.logical + step)
                .ok_or(Error::FileTooLarge)?;
            let Place::Pointer { node, at } = self.follow(&path, true)? else {
                // What is missing is made.
                unreachable!("a path that was made");
            };
            let node = &mut self.nodes[node];
            assert!(
                node.words[at] == 0,
                "blocks are mapped where there are some"
            );
            // Below 2^32, as was checked.
            node.words[at] = (piece.start.0 + step) as u32;
            node.is_dirty = true;
        }
        Ok(())
    }

    /// Takes the runs of a range out; see [`super::draft::ExtentDraft::take`].
    pub(super) fn take(
        &mut self,
        range: Range<u64>,
        budget: &mut Budget,
    ) -> Result<(Vec<Run>, u64), Error> {
        let mut pieces: Vec<Run> = Vec::new();
        let mut logical = range.start;
        let mut last = usize::MAX;
        while logical < range.end {
            let Some(path) = self.path_to(logical) else {
                return Ok((pieces, range.end));
            };
            if path.levels() > 0 && logical != range.start && !budget.has_room() {
                return Ok((pieces, logical));
            }
            let place = self.follow(&path, false)?;
            let (Place::Pointer { node, .. } | Place::Hole { node, .. }) = place;
            if std::mem::replace(&mut last, node) != node {
                self.note(node, budget);
            }
            let at = match place {
                Place::Hole { blocks, .. } => {
                    logical = logical.saturating_add(blocks);
                    continue;
                }
                Place::Pointer { at, .. } => at,
            };
            let pointer = self.nodes[node].words[at];
            if pointer != 0 {
                let physical = self.check(pointer)?;
                if budget.spend(self.ground.mounted, physical, 1) == 0 {
                    return Ok((pieces, logical));
                }
                self.nodes[node].words[at] = 0;
                self.nodes[node].is_dirty = true;
                push(&mut pieces, logical, physical);
            }
            logical += 1;
        }
        Ok((pieces, range.end))
    }

    /// Counts a node that was read, and those above it: each may change or be freed.
    fn note(&self, node: usize, budget: &mut Budget) {
        let mut here = node;
        while here != 0 {
            let Node { home, depth, .. } = &self.nodes[here];
            match depth {
                0 => {
                    budget.nodes += 1;
                    budget.note(self.ground.mounted, home.block());
                }
                _ => budget.note_above(self.ground.mounted, home.block()),
            }
            here = self.nodes[here].parent.0;
        }
    }

    fn path_to(&self, logical: u64) -> Option<PointerPath> {
        let logical = u32::try_from(logical).ok()?;
        PointerPath::to(LBlock(logical), self.size)
    }

    fn check(&self, pointer: u32) -> Result<FsBlock, Error> {
        let block = FsBlock(pointer.into());
        let volume = self.ground.mounted.volume();
        if volume.blocks().contains(&block.0) {
            volume.check_unowned(self.ground.ino, block, 1)?;
            Ok(block)
        } else {
            let corrupt = Corrupt::at(Site::MapPointer).ino(self.ground.ino);
            Err(corrupt.block(block).into())
        }
    }

    /// Follows a path to its last pointer, making what is missing on the way if `makes`.
    fn follow(&mut self, path: &PointerPath, makes: bool) -> Result<Place, Error> {
        let (mut node, mut at) = (0, path.word());
        for (index, below) in path.indices().iter().zip((0..path.levels()).rev()) {
            let known = self.nodes[node].below.get(&at).copied();
            let child = match (known, self.nodes[node].words[at]) {
                (Some(child), _) => child,
                (None, 0) if makes => self.make(node, at, below)?,
                (None, 0) => {
                    let covered = indirect::span(below + 1, self.size);
                    let skipped = path.offset_below(below + 1, self.size);
                    let blocks = covered - skipped;
                    return Ok(Place::Hole { node, blocks });
                }
                (None, pointer) => self.load(node, at, pointer, below)?,
            };
            (node, at) = (child, *index as usize);
        }
        Ok(Place::Pointer { node, at })
    }

    fn make(&mut self, parent: usize, at: usize, depth: u8) -> Result<usize, Error> {
        let home = self.ground.new_home()?;
        let pointer = u32::try_from(home.block().0).map_err(|_| Error::NoSpace)?;
        self.nodes[parent].words[at] = pointer;
        self.nodes[parent].is_dirty = true;
        let words = vec![0; self.size.bytes() / 4];
        Ok(self.add(parent, at, depth, home, words, true))
    }

    fn load(&mut self, parent: usize, at: usize, pointer: u32, depth: u8) -> Result<usize, Error> {
        let home = self.check(pointer)?;
        if self
            .nodes
            .iter()
            .any(|node| matches!(node.home, Home::Old(block) if block == home))
        {
            let corrupt = Corrupt::at(Site::MapShared).ino(self.ground.ino);
            return Err(corrupt.block(home).into());
        }
        let volume = self.ground.mounted.volume();
        let block = volume.read_block(home, Kind::Pointers, Ino(0), |_| Ok(()))?;
        let pointers = 0..(self.size.bytes() / 4) as u32;
        let words = pointers
            .map(|index| indirect::pointer(&block, index).unwrap_or(0))
            .collect();
        Ok(self.add(parent, at, depth, Home::Old(home), words, false))
    }

    fn add(
        &mut self,
        parent: usize,
        at: usize,
        depth: u8,
        home: Home<'a>,
        words: Vec<u32>,
        is_dirty: bool,
    ) -> usize {
        self.nodes.push(Node {
            home,
            parent: (parent, at),
            depth,
            words,
            below: HashMap::new(),
            is_dirty,
            is_gone: false,
        });
        let node = self.nodes.len() - 1;
        self.nodes[parent].below.insert(at, node);
        node
    }

    /// Where blocks of pointers are that were read.
    pub(super) fn old_nodes(&self) -> impl Iterator<Item = FsBlock> {
        self.nodes.iter().filter_map(|node| node.home.old())
    }

    /// Drops the blocks of pointers that name nothing, and encodes what changed.
    pub(super) fn finish(mut self) -> Outcome<'a> {
        for depth in 0..3 {
            for node in 1..self.nodes.len() {
                let this = &self.nodes[node];
                let is_empty = this.words.iter().all(|word| *word == 0);
                if this.depth == depth && is_empty {
                    let (parent, at) = this.parent;
                    self.nodes[node].is_gone = true;
                    self.nodes[parent].words[at] = 0;
                    self.nodes[parent].is_dirty = true;
                }
            }
        }
        let mut outcome = Outcome::default();
        for node in self.nodes {
            let bytes: Vec<u8> = node
                .words
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            match node.home {
                Home::Old(block) if node.is_gone => outcome.gone.push(block),
                // A new one goes back by being dropped.
                Home::New(_) if node.is_gone => {}
                _ if !node.is_dirty => {}
                // The root has fifteen words.
                Home::Root => outcome.root = bytes.try_into().ok(),
                home => outcome.nodes.push((home, bytes.into())),
            }
        }
        outcome
    }
}

/// Adds a block to runs.
fn push(pieces: &mut Vec<Run>, logical: u64, start: FsBlock) {
    let block = Run {
        logical,
        start,
        len: 1,
        unwritten: false,
    };
    match pieces.last_mut() {
        Some(last) if last.is_continued_by(&block) => last.len += 1,
        _ => pieces.push(block),
    }
}
