//! What each thread touched, by cache line and place in the code, with the calls that led there. A thread writes its
//! own tables only, and only between `begin` and `end`. No locks; nothing survives the process.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Rounds that can be told apart.
pub const ROUNDS: usize = 256;
/// Bytes of the finest cache line.
pub const LINE: usize = 64;
/// Calls kept for a place.
const DEPTH: usize = 24;

type Table<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// What was done to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A plain read.
    Read,
    /// A plain write.
    Write,
    /// An atomic read.
    AtomicRead,
    /// An atomic write.
    AtomicWrite,
    /// An atomic operation that reads and writes: also one that compares and then does not write.
    ReadModifyWrite,
}

impl Kind {
    /// Whether the line becomes the thread's own.
    pub fn writes(self) -> bool {
        !matches!(self, Kind::Read | Kind::AtomicRead)
    }

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::AtomicRead => "atomic read",
            Kind::AtomicWrite => "atomic write",
            Kind::ReadModifyWrite => "read-modify-write",
        }
    }
}

/// The rounds in which something happened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rounds([u64; ROUNDS / 64]);

impl Rounds {
    /// Adds one.
    pub fn add(&mut self, round: usize) {
        self.0[round / 64 % self.0.len()] |= 1 << (round % 64);
    }

    /// Whether it is one of them.
    pub fn has(&self, round: usize) -> bool {
        self.0[round / 64 % self.0.len()] & (1 << (round % 64)) != 0
    }

    /// Adds others.
    pub fn join(&mut self, other: &Rounds) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    /// How many they are.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// All that one place in the code, reached by one chain of calls, did to one line.
#[derive(Clone, Debug)]
pub struct LineTouch {
    /// Which bytes of the line.
    pub bytes: u64,
    /// When.
    pub rounds: Rounds,
}

/// Where a touch belongs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TouchPlace {
    /// The line's address divided by [`LINE`].
    pub line: usize,
    /// What was done.
    pub kind: Kind,
    /// The chain of calls: an index in [`ThreadRecord::chains`].
    pub chain: usize,
}

/// What one thread did while it was watched.
#[derive(Default)]
pub struct ThreadRecord {
    /// By line and place.
    pub touches: Table<TouchPlace, LineTouch>,
    /// Addresses of code, innermost first.
    pub chains: Vec<Vec<usize>>,
    known: Table<Vec<usize>, usize>,
    stack: Vec<usize>,
    round: usize,
    /// Addresses that are the thread's stack's.
    own: std::ops::Range<usize>,
}

thread_local! {
    static OWN_MEMORY: Cell<bool> = const { Cell::new(false) };
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static RECORD: RefCell<Option<Box<ThreadRecord>>> = const { RefCell::new(None) };
}

/// Whether the calling thread is watched now.
pub fn is_watched() -> bool {
    WATCHED.try_with(Cell::get).unwrap_or(false)
}

/// Whether the calling thread works and gets memory of its own.
pub fn has_own_memory() -> bool {
    OWN_MEMORY.try_with(Cell::get).unwrap_or(false)
}

/// Gives the calling thread memory of its own while it does `work`.
pub fn with_own_memory<R>(work: impl FnOnce() -> R) -> R {
    OWN_MEMORY.set(true);
    let result = work();
    OWN_MEMORY.set(false);
    result
}

/// Watches the calling thread do `work`, as its round of this number.
pub fn watch<R>(round: usize, work: impl FnOnce() -> R) -> R {
    let here = std::ptr::from_ref(&round).addr();
    RECORD.with_borrow_mut(|record| {
        let record = record.get_or_insert_default();
        record.round = round;
        record.stack.clear();
        // A thread's stack is at most some megabytes; what lies above was the callers'.
        record.own = here.saturating_sub(2 << 20)..here + (16 << 10);
    });
    WATCHED.set(true);
    let result = work();
    WATCHED.set(false);
    result
}

/// What the calling thread did so far; then nothing is known of it.
pub fn take() -> ThreadRecord {
    RECORD
        .take()
        .map_or_else(ThreadRecord::default, |record| *record)
}

/// Runs `work` on the thread's record, without watching what that does.
fn with(work: impl FnOnce(&mut ThreadRecord)) {
    if !is_watched() {
        return;
    }
    WATCHED.set(false);
    let has_own = OWN_MEMORY.replace(false);
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            work(record);
        }
    });
    OWN_MEMORY.set(has_own);
    WATCHED.set(true);
}

/// A function was called from `place`.
pub fn called(place: usize) {
    with(|record| record.stack.push(place));
}

/// It returned.
pub fn returned() {
    with(|record| {
        record.stack.pop();
    });
}

/// Memory was touched, by the code at `place`.
pub fn touched(address: usize, bytes: usize, kind: Kind, place: usize) {
    with(|record| record.touched(address, bytes, kind, place));
}

impl ThreadRecord {
    fn touched(&mut self, address: usize, bytes: usize, kind: Kind, place: usize) {
        if self.own.contains(&address) || bytes == 0 {
            return;
        }
        let mut chain = Vec::with_capacity(DEPTH + 1);
        chain.push(place);
        chain.extend(self.stack.iter().rev().take(DEPTH));
        let chains = &mut self.chains;
        let chain = match self.known.get(&chain) {
            Some(number) => *number,
            None => {
                chains.push(chain.clone());
                self.known.insert(chain, chains.len() - 1);
                chains.len() - 1
            }
        };
        let end = address.saturating_add(bytes);
        for line in address / LINE..=(end - 1) / LINE {
            let from = address.max(line * LINE) % LINE;
            let len = end.min((line + 1) * LINE) - address.max(line * LINE);
            let mask = (u64::MAX >> (LINE - len)) << from;
            let touch = self.touches.entry(TouchPlace { line, kind, chain });
            let touch = touch.or_insert_with(|| LineTouch {
                bytes: 0,
                rounds: Rounds::default(),
            });
            touch.bytes |= mask;
            touch.rounds.add(self.round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crosses_a_line_is_recorded_on_both() {
        let mut record = ThreadRecord::default();
        record.touched(64 * 1000 + 60, 8, Kind::Write, 1);
        record.touched(64 * 1000 + 60, 8, Kind::Write, 1);
        let bytes = |line| {
            let place = TouchPlace {
                line,
                kind: Kind::Write,
                chain: 0,
            };
            record.touches[&place].bytes
        };
        assert_eq!((bytes(1000), bytes(1001)), (0xf << 60, 0xf));
        assert_eq!(record.touches.len(), 2);
    }

    #[test]
    fn nothing_is_recorded_of_who_is_not_watched() {
        touched(4096, 8, Kind::Read, 1);
        watch(3, || touched(8192, 8, Kind::Read, 1));
        touched(4096, 8, Kind::Read, 1);
        let record = take();
        let lines: Vec<usize> = record.touches.keys().map(|place| place.line).collect();
        assert_eq!(lines, [128]);
        assert!(
            record
                .touches
                .values()
                .all(|touch| touch.rounds.count() == 1)
        );
    }
}
