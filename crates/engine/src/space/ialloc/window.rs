//! A directory's window: numbers that are set aside for its files, in ascending order or in the order of their names'
//! hashes. In memory only.
//!
//! Under the window's own lock ([`Rank::InodeWindow`]), which is taken only by threads that make files in that
//! directory or draw windows back. Filling a window changes the group's words; taking from it writes nothing that
//! others use. A window belongs to the directory's inode in memory ([`super::OfInode`]), and its numbers are given back
//! when that leaves memory.
//!
//! A window remembers which numbers it had and which the directory's files have. Numbers that were freed are used again
//! before others, so a directory in which files are made and removed keeps to the blocks of the inode table that it
//! has.

use ondisk::Group;
use sync::{Arc, CachePadded, Mutex, Rank};

use crate::space::group::{Chunk, InodeBits, InodeNumbers};

/// If this number of free numbers lies among and next to a directory's own, they are used before others are set aside.
const ENOUGH_BESIDE: u32 = 4;
/// Words of a group that are looked at for free numbers beside a directory's own.
const WORDS_BESIDE: usize = 8;
/// Words of a group in which a directory's own numbers are remembered: those of 4,096 numbers.
const WORDS_OWN: usize = 64;
/// Numbers of a block of the inode table, as large as that usually is.
const BLOCK: u32 = 16;

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
    /// After the last number that was set aside and is not one of the directory's own; 0 if none was.
    end: u32,
    /// Numbers of the group that were set aside for the directory, or that its files were seen to have: at most
    /// [`WORDS_OWN`] words of them, in ascending order.
    own: Vec<Chunk>,
    /// About how many names the directory has.
    names: u32,
    /// How often its names will have changed once all numbers that were taken have theirs, if every change since they
    /// were all seen is one of those. Too many where a number that was taken got no name, so it is a hint.
    changes: Option<u64>,
    /// How many it had at most when numbers were set aside behind the last ones.
    most_names: u32,
    /// In which tick a number was taken last.
    used: u32,
}

/// Numbers set aside.
pub(crate) struct Window {
    /// Whose bits they are.
    inodes: Arc<InodeNumbers>,
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
    /// How often its names had changed when these were all of them, if that was seen now.
    pub(super) all_at: Option<u64>,
}

impl Window {
    /// An empty one.
    pub(super) fn new(inodes: &Arc<InodeNumbers>) -> Window {
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
        state.changes = state.changes.map(|changes| changes.saturating_add(1));
        state.used = tick;
        self.inodes.leave_window(1);
        Some((state.group, index))
    }

    /// About how many names the directory has, 0 if that is not known; and whether a look at its blocks would not help
    /// to fill the window: since all names were seen, names were only added, with numbers of the window.
    pub(super) fn names(&self, changes: Option<u64>) -> (u32, bool) {
        let state = self.state.lock();
        let only_grew = changes.zip(state.changes);
        let only_grew = only_grew.is_some_and(|(now, counted)| now <= counted);
        (state.names, only_grew && !state.goes_beside())
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
        state.see(filling.group, filling.beside);
        state.changes = filling.all_at.or(state.changes);
        let (chunks, looked) = filling.gather(&mut state);
        let count = chunks.iter().map(|chunk| chunk.len()).sum();
        self.inodes.enter_window(count);
        state.put(chunks, count);
        state.names = filling.names;
        let taken = self.take_locked(&mut state, hash, tick);
        (taken, filling.share - count, looked)
    }

    /// Gives back all inode numbers that are left, and returns their count.
    pub(super) fn draw_back(&self) -> u32 {
        let mut state = self.state.lock();
        give_back(&self.inodes, &mut state)
    }

    /// Gives all numbers back if none was taken for `ticks` ticks; returns how many.
    pub(super) fn draw_back_idle(&self, tick: u32, ticks: u32) -> u32 {
        let mut state = self.state.lock();
        if state.left > 0 && tick.wrapping_sub(state.used) >= ticks {
            give_back(&self.inodes, &mut state)
        } else {
            0
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

fn give_back(inodes: &InodeNumbers, state: &mut State) -> u32 {
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

    /// The directory's files are in this group, and have these numbers.
    fn see(&mut self, group: Group, numbers: &[u32]) {
        if self.group != group {
            (self.group, self.end, self.most_names) = (group, 0, 0);
            self.own.clear();
            // Those that it has there are not known.
            self.changes = None;
        }
        let mut numbers = numbers.iter().peekable();
        while let Some(index) = numbers.next() {
            let word = index / 64;
            let mut bits = 1 << (index % 64);
            // Most lie together, so a word is looked for once for all of them that follow one another.
            while let Some(next) = numbers.next_if(|next| **next / 64 == word) {
                bits |= 1 << (next % 64);
            }
            match self.place(word) {
                Ok(at) => self.own[at].bits |= bits,
                Err(at) if self.own.len() < WORDS_OWN => self.own.insert(at, Chunk { word, bits }),
                Err(_) => (),
            }
        }
    }

    /// Whether numbers beside the directory's files are looked for: where all of its own are known, what is beside them
    /// is others'.
    fn goes_beside(&self) -> bool {
        self.end == 0 || self.own.len() == WORDS_OWN
    }

    /// Where a word is among the directory's own, or would be.
    fn place(&self, word: u32) -> Result<usize, usize> {
        self.own.binary_search_by_key(&word, |own| own.word)
    }

    /// Numbers are the directory's own now. Where there are too many words, that with the fewest is forgotten.
    fn remember(&mut self, chunk: Chunk) {
        match self.place(chunk.word) {
            Ok(at) => self.own[at].bits |= chunk.bits,
            Err(at) => self.own.insert(at, chunk),
        }
        if self.own.len() > WORDS_OWN {
            let fewest = (0..self.own.len()).min_by_key(|at| self.own[*at].len());
            fewest.map(|at| self.own.remove(at));
        }
    }

    fn put(&mut self, mut chunks: Vec<Chunk>, count: u32) {
        chunks.sort_unstable_by_key(|chunk| chunk.first());
        let piece = |chunk: &Chunk| Piece {
            word: chunk.word,
            all: chunk.bits,
            left: chunk.bits,
        };
        self.pieces = chunks.iter().map(piece).collect();
        self.left = count;
        for chunk in chunks {
            self.remember(chunk);
        }
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

/// The numbers of a word to take again, given a directory's own numbers in it. If they are most of a block of the inode
/// table, all of that block, because the rest is unused or will be the directory's; if they are at least `least`, just
/// them; otherwise none, so that the directory's files leave blocks in which they are few among others'.
fn worth_taking(own: Chunk, least: u32) -> Chunk {
    let of_block = |block: u32| {
        let all = 0xffff << (block * BLOCK);
        match (own.bits & all).count_ones() {
            count if count > BLOCK / 2 => all,
            count if count >= least => own.bits & all,
            _ => 0,
        }
    };
    let bits = (0..64 / BLOCK).map(of_block).sum();
    Chunk { bits, ..own }
}

impl Filling<'_> {
    /// Takes numbers: those of the directory's own that are free again, so that a directory in which files come and go
    /// keeps to its blocks of the inode table; else free ones beside those that its files have; else behind the last
    /// window; else a chunk of its own, and what follows it.
    fn gather(&self, state: &mut State) -> (Vec<Chunk>, u32) {
        let mut chunks = Vec::new();
        let mut looked = self.gather_own(&state.own, &mut chunks);
        if self.is_enough(&chunks) {
            return (chunks, looked);
        }
        if state.goes_beside() {
            looked += self.gather_beside(&mut chunks);
        }
        if !self.is_enough(&chunks) {
            looked += self.gather_behind(state, &mut chunks);
        }
        (chunks, looked)
    }

    /// Behind the last window; else a chunk of its own, and what follows it. Gives how many words were looked at.
    fn gather_behind(&self, state: &mut State, chunks: &mut Vec<Chunk>) -> u32 {
        let mut looked = 0;
        let mut rest = self.rest(chunks);
        if state.most_names >= self.names.max(1) {
            // It does not grow: its own numbers only wait for a commit.
            rest = rest.min(BLOCK);
        }
        state.most_names = state.most_names.max(self.names);
        while rest > 0 {
            let size = (1 << rest.ilog2()).min(64);
            let behind = Some(state.end).filter(|end| *end > 0);
            let next = behind.and_then(|end| self.bits.take_behind(end, size));
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
            state.end = chunk.end();
            chunks.push(chunk);
        }
        looked
    }

    /// What is left of the share.
    fn rest(&self, chunks: &[Chunk]) -> u32 {
        self.share - chunks.iter().map(|chunk| chunk.len()).sum::<u32>()
    }

    /// Whether others need not be set aside.
    fn is_enough(&self, chunks: &[Chunk]) -> bool {
        self.share - self.rest(chunks) >= (self.share / 2).clamp(1, ENOUGH_BESIDE)
    }

    /// Takes numbers from the directory's own chunks; returns how many words were read.
    fn gather_own(&self, own: &[Chunk], chunks: &mut Vec<Chunk>) -> u32 {
        let least = (self.names / 4).clamp(1, BLOCK / 2);
        let own = own.iter().map(|own| worth_taking(*own, least));
        let mut looked = 0;
        // The lowest ones first, so that its files get together where they are apart.
        for these in own.filter(|these| these.bits != 0) {
            let rest = self.rest(chunks);
            if rest == 0 {
                break;
            }
            looked += 1;
            chunks.extend(self.bits.take_among(these, rest));
        }
        looked
    }

    /// Takes numbers next to those of the directory's files; returns how many words were read.
    fn gather_beside(&self, chunks: &mut Vec<Chunk>) -> u32 {
        // Words of which the directory's own were taken: what else is free there is others'.
        let mut seen: Vec<u32> = chunks.iter().map(|chunk| chunk.word).collect();
        let mut looked = 0;
        for index in self.beside.iter().rev().copied() {
            if self.is_enough(chunks) || seen.len() >= WORDS_BESIDE {
                break;
            }
            if !seen.contains(&(index / 64)) {
                seen.push(index / 64);
                looked += 1;
                chunks.extend(self.bits.take_beside(index, self.rest(chunks)));
            }
        }
        looked
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
