//! A directory's window: numbers that are set aside for its files, one after the other or in the order of their names'
//! hashes. In memory only.
//!
//! Under the window's own lock ([`Rank::InodeWindow`]), which only those who make files in that directory take, and who
//! draws windows back. Filling it changes the group's words; taking from it touches nothing that others use. A window
//! belongs to the directory's inode in memory ([`super::OfInode`]), and its numbers go back when that leaves memory.

use ondisk::Group;
use sync::{Arc, CachePadded, Mutex, Rank};

use crate::group::{Chunk, InodeBits, Inodes};

/// So many free numbers beside a directory's own are used up before others are set aside.
const ENOUGH_BESIDE: u32 = 4;
/// Words of a group that are looked at for free numbers beside a directory's own.
const WORDS_BESIDE: usize = 8;

/// Numbers of one word.
struct Piece {
    word: u32,
    /// Those that it began with.
    all: u64,
    /// Those that are left.
    left: u64,
}

#[derive(Default)]
struct State {
    group: Group,
    /// In ascending order.
    pieces: Vec<Piece>,
    /// How many are left in all of them.
    left: u32,
    /// Behind the last number.
    end: u32,
    /// About how many names the directory has.
    names: u32,
    /// In which tick a number was taken last.
    used: u32,
}

/// Numbers set aside.
pub(crate) struct Window {
    /// Whose bits they are.
    inodes: Arc<Inodes>,
    /// On lines of its own: makers of files in other directories write the windows beside it. [inode window]
    state: CachePadded<Mutex<State>>,
}

/// What a window is filled with.
pub(super) struct Filling<'a> {
    pub(super) group: Group,
    /// The group's bits.
    pub(super) bits: &'a InodeBits,
    /// Numbers of which the caller has the share.
    pub(super) share: u32,
    /// Numbers of the group beside which others are looked for first, from the last one on.
    pub(super) beside: &'a [u32],
    /// About how many names the directory has, if that is news.
    pub(super) names: u32,
}

impl Window {
    /// An empty one.
    pub(super) fn new(inodes: &Arc<Inodes>) -> Window {
        Window {
            inodes: Arc::clone(inodes),
            state: CachePadded::new(Mutex::new(Rank::InodeWindow, State::default())),
        }
    }

    /// Takes a number: where a hash lies among all, there among the window's, so that files made together lie in the
    /// order in which their directory lists them; without a hash the lowest.
    pub(super) fn take(&self, hash: Option<u32>, tick: u32) -> Option<(Group, u32)> {
        let mut state = self.state.lock();
        self.take_locked(&mut state, hash, tick)
    }

    fn take_locked(&self, state: &mut State, hash: Option<u32>, tick: u32) -> Option<(Group, u32)> {
        let (piece, bit) = match hash {
            None => state.lowest(),
            Some(hash) => state.nearest(hash),
        }?;
        let piece = &mut state.pieces[piece];
        piece.left &= !(1 << bit);
        let index = piece.word * 64 + bit;
        state.left -= 1;
        state.names = state.names.saturating_add(1);
        state.used = tick;
        self.inodes.leave_window(1);
        Some((state.group, index))
    }

    /// About how many names the directory has; 0 if that is not known.
    pub(super) fn names(&self) -> u32 {
        self.state.lock().names
    }

    /// Fills the window, unless others did meanwhile, and takes a number. Gives what of the share was not used, and how
    /// many words were looked at.
    pub(super) fn fill_and_take(
        &self,
        filling: &Filling<'_>,
        hash: Option<u32>,
        tick: u32,
    ) -> (Option<(Group, u32)>, u32, u32) {
        let mut state = self.state.lock();
        if let Some(taken) = self.take_locked(&mut state, hash, tick) {
            return (Some(taken), filling.share, 0);
        }
        let behind = Some(state.end).filter(|end| state.group == filling.group && *end > 0);
        let (chunks, looked) = filling.gather(behind);
        let count = chunks.iter().map(|chunk| chunk.len()).sum();
        self.inodes.enter_window(count);
        state.put(filling.group, chunks, count);
        state.names = state.names.max(filling.names);
        let taken = self.take_locked(&mut state, hash, tick);
        (taken, filling.share - count, looked)
    }

    /// Gives all numbers back; how many.
    pub(super) fn draw_back(&self) -> u32 {
        let mut state = self.state.lock();
        give_back(&self.inodes, &mut state)
    }

    /// Gives all numbers back if none was taken for so many ticks; how many.
    pub(super) fn draw_back_idle(&self, tick: u32, ticks: u32) -> u32 {
        let mut state = self.state.lock();
        match state.left > 0 && tick.wrapping_sub(state.used) >= ticks {
            true => give_back(&self.inodes, &mut state),
            false => 0,
        }
    }

    /// The directory is gone.
    pub(super) fn forget(&self) {
        let mut state = self.state.lock();
        give_back(&self.inodes, &mut state);
        *state = State::default();
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        give_back(&self.inodes, self.state.get_mut());
    }
}

fn give_back(inodes: &Inodes, state: &mut State) -> u32 {
    for piece in std::mem::take(&mut state.pieces) {
        if piece.left != 0 {
            let (word, bits) = (piece.word, piece.left);
            inodes.give_back_windowed(state.group, Chunk { word, bits });
        }
    }
    std::mem::take(&mut state.left)
}

impl State {
    fn lowest(&self) -> Option<(usize, u32)> {
        let place = self.pieces.iter().position(|piece| piece.left != 0)?;
        Some((place, self.pieces[place].left.trailing_zeros()))
    }

    /// The number that is left nearest to where a hash belongs among all that the window began with.
    fn nearest(&self, hash: u32) -> Option<(usize, u32)> {
        let count: u32 = self.pieces.iter().map(|piece| piece.all.count_ones()).sum();
        // Below `count`.
        let mut rank = ((u64::from(hash) * u64::from(count)) >> 32) as u32;
        for (place, piece) in self.pieces.iter().enumerate() {
            let here = piece.all.count_ones();
            if rank >= here {
                rank -= here;
                continue;
            }
            let at = nth_bit(piece.all, rank);
            let above = || {
                let same = piece.left & (u64::MAX << at);
                let later = (place + 1..self.pieces.len()).map(|at| (at, self.pieces[at].left));
                std::iter::once((place, same))
                    .chain(later)
                    .find(|(_, left)| *left != 0)
            };
            let below = || {
                let same = piece.left & !(u64::MAX << at);
                let before = (0..place).rev().map(|at| (at, self.pieces[at].left));
                std::iter::once((place, same))
                    .chain(before)
                    .find(|(_, left)| *left != 0)
            };
            return above()
                .map(|(place, left)| (place, left.trailing_zeros()))
                .or_else(|| below().map(|(place, left)| (place, 63 - left.leading_zeros())));
        }
        None
    }

    fn put(&mut self, group: Group, mut chunks: Vec<Chunk>, count: u32) {
        chunks.sort_unstable_by_key(|chunk| chunk.first());
        let piece = |chunk: &Chunk| Piece {
            word: chunk.word,
            all: chunk.bits,
            left: chunk.bits,
        };
        self.pieces = chunks.iter().map(piece).collect();
        self.left = count;
        self.group = group;
        let end = |chunk: &Chunk| chunk.word * 64 + 64 - chunk.bits.leading_zeros();
        self.end = chunks.last().map_or(0, end);
    }
}

/// The place of a set bit that `rank` set bits are below.
fn nth_bit(bits: u64, rank: u32) -> u32 {
    let mut rest = bits;
    for _ in 0..rank {
        rest &= rest.wrapping_sub(1);
    }
    rest.trailing_zeros().min(63)
}

impl Filling<'_> {
    /// Takes numbers: free ones beside those that the directory's files have; else behind the last window; else a chunk
    /// of its own, and what follows it.
    fn gather(&self, behind: Option<u32>) -> (Vec<Chunk>, u32) {
        let (mut chunks, mut looked) = self.gather_beside();
        let taken: u32 = chunks.iter().map(|chunk| chunk.len()).sum();
        if taken >= self.enough_beside() {
            return (chunks, looked);
        }
        let mut rest = self.share - taken;
        let mut end = behind;
        while rest > 0 {
            let size = (1 << rest.ilog2()).min(64);
            let next = end.and_then(|end| self.bits.take_behind(end, size));
            let chunk = match next {
                None if chunks.is_empty() => {
                    let (chunk, words) = self.bits.take_chunk(size);
                    looked += words;
                    chunk
                }
                next => next,
            };
            let Some(chunk) = chunk else { break };
            rest -= chunk.len();
            end = Some(chunk.word * 64 + 64 - chunk.bits.leading_zeros());
            chunks.push(chunk);
        }
        (chunks, looked)
    }

    fn enough_beside(&self) -> u32 {
        (self.share / 2).clamp(1, ENOUGH_BESIDE)
    }

    fn gather_beside(&self) -> (Vec<Chunk>, u32) {
        let (mut chunks, mut seen) = (Vec::new(), Vec::new());
        let mut rest = self.share;
        for index in self.beside.iter().rev().copied() {
            if seen.contains(&(index / 64)) {
                continue;
            }
            seen.push(index / 64);
            if let Some(chunk) = self.bits.take_beside(index, rest) {
                rest -= chunk.len();
                chunks.push(chunk);
            }
            let is_enough = self.share - rest >= self.enough_beside();
            if rest == 0 || is_enough || seen.len() == WORDS_BESIDE {
                break;
            }
        }
        // Eight at most.
        (chunks, seen.len() as u32)
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
