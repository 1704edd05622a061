//! One value for each thread, on cache lines of its own, such as slots of handles, lists of changes and leases. Other
//! threads can visit all of them.
//!
//! A thread that asks for the first time gets the lowest index that no living thread has, and gives it back when it
//! ends. So the number of lanes follows the number of threads at one time, and a value outlives its thread and passes,
//! as it is, to the next thread of that index. Lanes never move and are freed with the [`Lanes`] only. A thread that
//! finds its lane writes nothing shared; the first time it takes one lock, the innermost of all.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
// Without a rank: a thread's first look at any lane may be under any lock, and under this one nothing is taken.
use parking_lot::Mutex;

/// Lanes of the first chunk; each later chunk doubles the total.
const FIRST: usize = 16;
const CHUNKS: usize = 24;

/// Indices that ended threads gave back, and the lowest never given out.
static FREE: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// A thread's index while it lives.
struct Index(usize);

impl Index {
    fn take() -> Index {
        let mut free = FREE.lock();
        let lowest = free
            .0
            .iter()
            .enumerate()
            .min_by_key(|(_, index)| **index)
            .map(|(place, _)| place);
        match lowest {
            Some(place) => Index(free.0.swap_remove(place)),
            None => {
                free.1 += 1;
                Index(free.1 - 1)
            }
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        FREE.lock().0.push(self.0);
    }
}

thread_local!(static INDEX: Index = Index::take());

/// The calling thread's index: small, and its own as long as it lives. While a thread is being torn down and its own
/// index is gone, it borrows 0; users that need exclusion must not be called from destructors of thread-locals.
#[must_use]
#[inline]
pub fn thread_index() -> usize {
    // A scheduled thread's index follows from the seed, too.
    if let Some(index) = crate::turn::index() {
        return index;
    }
    INDEX.try_with(|index| index.0).unwrap_or(0)
}

/// The calling thread's index if no other living thread can have it, under whatever schedule; else none.
#[inline]
pub(crate) fn own_index() -> Option<usize> {
    if cfg!(feature = "simulate") {
        // Threads of a schedule are numbered from 0, as all others are.
        None
    } else {
        INDEX.try_with(|index| index.0).ok()
    }
}

/// A value for each thread.
pub struct Lanes<T> {
    /// [set once each, by the first thread that needs the chunk; freed with the whole]
    chunks: [OnceLock<Box<[CachePadded<T>]>>; CHUNKS],
}

impl<T: Default> Default for Lanes<T> {
    fn default() -> Lanes<T> {
        Lanes::new()
    }
}

impl<T: Default> Lanes<T> {
    /// No lanes yet.
    #[must_use]
    pub const fn new() -> Lanes<T> {
        Lanes {
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// The calling thread's value.
    #[inline]
    pub fn mine(&self) -> &T {
        self.at(thread_index())
    }

    /// The value of the thread with this index ([`thread_index`]).
    #[inline]
    pub(crate) fn at(&self, index: usize) -> &T {
        let (chunk, within) = place(index);
        let lanes = self.chunks[chunk].get_or_init(|| Lanes::chunk(chunk));
        &lanes[within]
    }

    #[cold]
    fn chunk(chunk: usize) -> Box<[CachePadded<T>]> {
        (0..chunk_len(chunk))
            .map(|_| CachePadded::default())
            .collect()
    }

    /// Every lane that a thread may have used; a lane first used after the walk began may be missing.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks
            .iter()
            .filter_map(OnceLock::get)
            .flatten()
            .map(|lane| &**lane)
    }
}

/// Chunk 0 holds the first 16 lanes, chunk 1 the next 16, chunk 2 the next 32, and so on.
#[inline]
fn place(index: usize) -> (usize, usize) {
    if index < FIRST {
        return (0, index);
    }
    let chunk = (index / FIRST).ilog2() as usize;
    (chunk + 1, index - (FIRST << chunk))
}

fn chunk_len(chunk: usize) -> usize {
    FIRST << chunk.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for index in 0..5000 {
            let (chunk, within) = place(index);
            assert!(within < chunk_len(chunk), "{index}");
            assert!(seen.insert((chunk, within)), "{index}");
        }
    }

    #[test]
    fn living_threads_never_share_a_lane() {
        let lanes: Lanes<AtomicUsize> = Lanes::new();
        let barrier = std::sync::Barrier::new(40);
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..100 {
                        // Relaxed: this thread alone writes its lane; the sum is read after the join.
                        let before = lanes.mine().load(Ordering::Relaxed);
                        // Relaxed: this thread alone writes its lane; the sum is read after the join.
                        lanes.mine().store(before + 1, Ordering::Relaxed);
                    }
                    barrier.wait();
                });
            }
        });
        // Relaxed: all writers were joined.
        let sum: usize = lanes.iter().map(|lane| lane.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 4000);
    }
}
