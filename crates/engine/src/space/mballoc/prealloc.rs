//! Blocks kept for files that grow: out of the bitmaps in memory, in no image, so that a crash loses none of them.
//!
//! A file keeps pieces for logical ranges ([`OfFile`], with its inode in memory); a thread keeps runs for small files,
//! in ascending order, and for its directories ([`Lane`], [`beside`]). Each has a lock of its own
//! ([`Rank::Preallocation`]), held for a look: a thread that takes a part owns it alone, others find what is left. The
//! files that keep anything are on their threads' lists, so that a thread that finds no space can draw everything back.
//! Threads do that one at a time ([`Rank::DrawBack`]): a second one that finds no space waits until the first has given
//! back what it drew. A list has room for a few hundred files, and the file that is on it longest gives back first.
//!
//! Interleavings: `every_block_has_one_owner_and_none_is_left_when_space_ends`, under schedules.

use std::collections::VecDeque;

use ondisk::{FsBlock, Ino};
use sync::{Counter, Guarded, Hint, Lanes, Mutex, MutexGuard, Rank, Statistic};

use super::taken::Aside;
use crate::core::variants::{Chosen, Preallocation};

/// Pieces that one file keeps, at most.
const PIECES: usize = 8;
/// Files on one thread's list, at most.
const FILES: usize = 256;
/// Runs that one thread keeps for small files, at most: each for files of another part of the volume.
const RUNS: usize = 4;

mod beside;

use beside::Beside;

/// Blocks kept for a file from a logical block on.
struct Piece {
    logical: u64,
    blocks: Aside,
}

impl Piece {
    fn end(&self) -> u64 {
        self.logical + u64::from(self.blocks.run().len)
    }
}

/// What one file keeps.
pub(crate) struct OfFile {
    /// In ascending order, none over another. [preallocation]
    pieces: Mutex<Vec<Piece>>,
    /// Whether there are any. [preallocation; read: any time, a hint]
    has_any: Hint<bool>,
    /// Whether the file is on a thread's list. [preallocation]
    is_listed: Guarded<bool>,
}

/// Around a logical block: where the piece before it ends, and where the next one begins.
pub(crate) struct Neighbors {
    pub(crate) before: u64,
    pub(crate) behind: u64,
}

impl OfFile {
    /// Nothing.
    pub(crate) fn new() -> OfFile {
        OfFile {
            pieces: Mutex::new(Rank::Preallocation, Vec::new()),
            has_any: Hint::new(false),
            is_listed: Guarded::new(false),
        }
    }

    /// Whether nothing is kept. A hint, except for the holder of the inode's lock, which alone adds.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_any.get()
    }

    /// Takes up to `want` of what is kept for the logical block `at` and those behind it; not 0.
    pub(crate) fn take(&self, at: u64, want: u32) -> Option<Aside> {
        if self.is_empty() {
            return None;
        }
        let mut pieces = self.pieces.lock();
        let index = pieces
            .iter()
            .position(|piece| piece.logical <= at && at < piece.end())?;
        let mut piece = pieces.remove(index);
        let skipped = at - piece.logical;
        if skipped > 0 {
            // Within the piece.
            let blocks = piece.blocks.split(skipped as u32);
            let logical = piece.logical;
            pieces.insert(index, Piece { logical, blocks });
            piece.logical = at;
        }
        let taken = cut(&mut piece.blocks, want);
        let taken = match taken {
            Some(taken) => {
                let place = index + usize::from(skipped > 0);
                piece.logical += u64::from(taken.run().len);
                pieces.insert(place, piece);
                taken
            }
            None => piece.blocks,
        };
        self.has_any.set(!pieces.is_empty());
        Some(taken)
    }

    /// What is kept around the logical block `at`, for which nothing is.
    pub(crate) fn neighbors(&self, at: u64) -> Neighbors {
        let mut found = Neighbors {
            before: 0,
            behind: u64::MAX,
        };
        if self.is_empty() {
            return found;
        }
        for piece in self.pieces.lock().iter() {
            if piece.logical <= at {
                found.before = piece.end()
            } else {
                found.behind = found.behind.min(piece.logical)
            }
        }
        found
    }

    /// Keeps blocks from the logical block on, for which nothing is kept. Gives back what is too much, and returns
    /// whether the file must be put on a list.
    fn put(&self, logical: u64, blocks: Aside) -> (Option<Aside>, bool) {
        let mut pieces = self.pieces.lock();
        let index = pieces.partition_point(|piece| piece.logical < logical);
        pieces.insert(index, Piece { logical, blocks });
        self.has_any.set(true);
        let must_list = !self.is_listed.swap(true);
        let mut over = None;
        if pieces.len() > PIECES {
            // The first that is not the new one: writes tend to go on behind.
            over = Some(pieces.remove(usize::from(index == 0)).blocks);
        }
        (over, must_list)
    }

    /// Takes all; `is_off`: the file is on no list any more.
    fn drain(&self, is_off: bool) -> Vec<Aside> {
        if !is_off && self.is_empty() {
            return Vec::new();
        }
        let mut pieces = self.pieces.lock();
        self.has_any.set(false);
        if is_off {
            self.is_listed.set(false);
        }
        pieces.drain(..).map(|piece| piece.blocks).collect()
    }
}

/// Cuts `want` blocks off the front; `None` if that is all there are.
fn cut(blocks: &mut Aside, want: u32) -> Option<Aside> {
    (want < blocks.run().len).then(|| blocks.split(want))
}

/// A run for small files.
struct LaneRun {
    /// The part of the volume that it was taken for.
    home: u32,
    blocks: Aside,
}

/// What one thread keeps.
#[derive(Default)]
struct Lane {
    kept: Shelf,
    /// Blocks that this thread kept, less those that it used or gave back: any number, only the sum over all lanes
    /// means something. [atomic: Relaxed, a statistic]
    blocks: Statistic<i64>,
}

/// The lane's own lists.
struct Shelf {
    /// The one used last at the end. [preallocation]
    runs: Mutex<Vec<LaneRun>>,
    /// For directories. [preallocation]
    beside: Mutex<Beside>,
    /// Files that keep something, the one that is on the list longest first. [preallocation]
    files: Mutex<VecDeque<Ino>>,
}

impl Default for Shelf {
    fn default() -> Shelf {
        Shelf {
            runs: Mutex::new(Rank::Preallocation, Vec::new()),
            beside: Mutex::new(Rank::Preallocation, Beside::default()),
            files: Mutex::new(Rank::Preallocation, VecDeque::new()),
        }
    }
}

/// All that is kept on a volume, and what is counted.
pub(crate) struct Preallocations {
    form: Chosen<Preallocation>,
    /// What each thread keeps; see its fields.
    lanes: Lanes<Lane>,
    /// [draw back]
    drawing_back: Mutex<()>,
    /// Requests answered from what a file kept.
    pub(crate) hits: Counter,
    /// Requests answered from what a thread keeps.
    pub(crate) lane_hits: Counter,
    /// Runs taken out of the bitmaps for files.
    pub(crate) refills: Counter,
    /// Runs taken out of the bitmaps for threads.
    pub(crate) lane_refills: Counter,
    /// Runs given back since a thread found no space.
    pub(crate) discards: Counter,
}

impl Preallocations {
    pub(crate) fn new(form: Preallocation) -> Preallocations {
        Preallocations {
            form: Chosen::new(form),
            lanes: Lanes::new(),
            drawing_back: Mutex::new(Rank::DrawBack, ()),
            hits: Counter::new(),
            lane_hits: Counter::new(),
            refills: Counter::new(),
            lane_refills: Counter::new(),
            discards: Counter::new(),
        }
    }

    /// From now on blocks are kept, or not. What is kept stays until it is used or given back.
    pub(crate) fn choose(&self, form: Preallocation) {
        self.form.set(form);
    }

    /// Whether blocks are kept.
    pub(crate) fn is_on(&self) -> bool {
        self.form.get() == Preallocation::On
    }

    /// Blocks that are kept: out of the bitmaps, and free nevertheless. Exact when nothing is under way.
    pub(crate) fn blocks(&self) -> u64 {
        let lanes = self.lanes.iter().map(|lane| lane.blocks.get());
        u64::try_from(lanes.sum::<i64>()).unwrap_or(0)
    }

    fn count(&self, blocks: &Aside, sign: i64) {
        let change = sign * i64::from(blocks.run().len);
        self.lanes.mine().blocks.add(change);
    }

    /// Takes from what a file keeps: see [`OfFile::take`].
    pub(crate) fn take(&self, file: &OfFile, at: u64, want: u32) -> Option<Aside> {
        let taken = file.take(at, want)?;
        self.count(&taken, -1);
        self.hits.add(1);
        Some(taken)
    }

    /// Keeps blocks for a file from a logical block on. The caller holds the inode's lock, and gives back what is
    /// returned, and what the files keep that are.
    #[must_use]
    pub(crate) fn keep(
        &self,
        ino: Ino,
        file: &OfFile,
        logical: u64,
        blocks: Aside,
    ) -> (Option<Aside>, Option<Ino>) {
        self.count(&blocks, 1);
        let (over, must_list) = file.put(logical, blocks);
        if let Some(over) = &over {
            self.count(over, -1);
        }
        (over, must_list.then(|| self.list(ino)).flatten())
    }

    /// Puts a file on the calling thread's list; returns the file that has no room there any more.
    fn list(&self, ino: Ino) -> Option<Ino> {
        let mut files = self.lanes.mine().kept.files.lock();
        files.push_back(ino);
        if files.len() > FILES {
            files.pop_front()
        } else {
            None
        }
    }

    /// Takes all that a file keeps; `is_off`: it is on no list any more.
    pub(crate) fn drain(&self, file: &OfFile, is_off: bool) -> Vec<Aside> {
        let drained = file.drain(is_off);
        drained.iter().for_each(|blocks| self.count(blocks, -1));
        drained
    }

    /// The files on all lists, which are empty then.
    pub(crate) fn take_listed(&self) -> Vec<Ino> {
        let lists = self.lanes.iter();
        lists
            .flat_map(|lane| std::mem::take(&mut *lane.kept.files.lock()))
            .collect()
    }

    /// Takes up to `want` blocks, not 0, that begin with `start`, if the calling thread keeps them for small files.
    pub(crate) fn take_at(&self, start: FsBlock, want: u32) -> Option<Aside> {
        let mut runs = self.lanes.mine().kept.runs.lock();
        let index = runs
            .iter()
            .position(|run| run.blocks.run().start == start)?;
        let taken = take_from(&mut runs, index, want);
        drop(runs);
        self.count(&taken, -1);
        self.lane_hits.add(1);
        Some(taken)
    }

    /// Takes `want` blocks that the calling thread keeps for small files of `home`; else all that it keeps for these,
    /// which is too little, to be given back.
    pub(crate) fn take_near(&self, home: u32, want: u32) -> Result<Aside, Option<Aside>> {
        let mut runs = self.lanes.mine().kept.runs.lock();
        let found = runs.iter().position(|run| run.home == home);
        let index = found.ok_or(None)?;
        let has = runs[index].blocks.run().len;
        let taken = take_from(&mut runs, index, want);
        drop(runs);
        self.count(&taken, -1);
        if has < want {
            return Err(Some(taken));
        }
        self.lane_hits.add(1);
        Ok(taken)
    }

    /// Keeps a run for the calling thread's small files of `home`; returns a run that has no room any more.
    #[must_use]
    pub(crate) fn keep_near(&self, home: u32, blocks: Aside) -> Option<Aside> {
        self.count(&blocks, 1);
        let mut runs = self.lanes.mine().kept.runs.lock();
        runs.push(LaneRun { home, blocks });
        let over = (runs.len() > RUNS).then(|| runs.remove(0).blocks);
        drop(runs);
        if let Some(over) = &over {
            self.count(over, -1);
        }
        over
    }

    /// The right to draw everything back: no other thread is drawing back.
    #[track_caller]
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.drawing_back.lock()
    }

    /// Takes all that threads keep for small files and for directories.
    pub(crate) fn take_runs(&self) -> Vec<Aside> {
        let mut runs = Vec::new();
        for lane in self.lanes.iter() {
            let of_files = std::mem::take(&mut *lane.kept.runs.lock());
            runs.extend(of_files.into_iter().map(|run| run.blocks));
            runs.extend(lane.kept.beside.lock().drain());
        }
        runs.iter().for_each(|blocks| self.count(blocks, -1));
        runs
    }
}

/// Takes up to `want` blocks off a run, which becomes the one used last.
fn take_from(runs: &mut Vec<LaneRun>, index: usize, want: u32) -> Aside {
    let mut run = runs.remove(index);
    match cut(&mut run.blocks, want) {
        Some(taken) => {
            runs.push(run);
            taken
        }
        None => run.blocks,
    }
}

#[cfg(test)]
mod tests;
