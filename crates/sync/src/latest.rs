//! A few words that are replaced as a whole and copied by readers without a lock: a sequence lock over atomics.
//!
//! One thread at a time replaces them: the caller of [`Latest::replace`] holds the owner's lock. A copy is what one
//! replacement left. It fails if the reader was disturbed [`TRIES`] times; the reader then takes the owner's lock.
//! Reading writes nothing. The words live in the owner, so no memory is reclaimed.
//!
//! Interleavings: `latest::tests::under_many_schedules_a_copy_is_what_one_replacement_left` (feature `simulate`).

use std::sync::atomic::AtomicU64;

use crate::atomic::{self, Ordering, fence};
use crate::{thread, turn};

/// How often a reader begins again.
const TRIES: usize = 16;

/// `N` words; see the module.
#[derive(Debug)]
pub struct Latest<const N: usize> {
    /// How often a replacement began or ended: odd while one is under way. [the owner's lock; read: any time, Acquire]
    version: atomic::AtomicU64,
    /// [the owner's lock; read: any time, between two loads of `version`]
    words: [AtomicU64; N],
}

impl<const N: usize> Latest<N> {
    /// These words.
    #[must_use]
    pub fn new(words: [u64; N]) -> Latest<N> {
        Latest {
            version: atomic::AtomicU64::new(0),
            words: words.map(AtomicU64::new),
        }
    }

    /// Replaces the words. The caller holds the owner's lock.
    pub fn replace(&self, words: &[u64; N]) {
        // Relaxed: the owner's lock orders it among replacements.
        let before = self.version.load(Ordering::Relaxed);
        // Relaxed: the fence below puts it before the words.
        self.version.store(before + 1, Ordering::Relaxed);
        // Release: a reader that sees one of the words sees that they change; pairs with the Acquire fence in `copy`.
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            // Relaxed: the fence above and the store below order them.
            place.store(*word, Ordering::Relaxed);
        }
        turn::point();
        // Release: after the words; pairs with the first load in `copy`.
        self.version.store(before + 2, Ordering::Release);
    }

    /// One of the words. The caller holds the owner's lock.
    #[must_use]
    pub fn word(&self, at: usize) -> u64 {
        // Relaxed: the owner's lock orders it.
        self.words[at].load(Ordering::Relaxed)
    }

    /// The words as one replacement left them; none if there were too many meanwhile.
    #[must_use]
    #[inline]
    pub fn copy(&self) -> Option<[u64; N]> {
        for _ in 0..TRIES {
            // Acquire: before the words; pairs with the last store in `replace`.
            let before = self.version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                // Relaxed: the load above and the fence below order them.
                let words = std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
                // Acquire: after the words; pairs with the fence in `replace`.
                fence(Ordering::Acquire);
                // Relaxed: the fence above puts it after the words.
                if self.version.load(Ordering::Relaxed) == before {
                    return Some(words);
                }
            }
            thread::spin();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::workers;
    use crate::{Mutex, Rank};

    fn replaced_and_copied(rounds: u64) -> u64 {
        let latest = Latest::new([0; 8]);
        let writers = Mutex::new(Rank::Leaf, 0);
        let copied = atomic::AtomicU64::new(0);
        workers(3, |thread| {
            let mut last = 0;
            for _ in 0..rounds {
                if thread > 0 {
                    let mut number = writers.lock();
                    *number += 1;
                    latest.replace(&[*number; 8]);
                } else if let Some(words) = latest.copy() {
                    assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                    assert!(words[0] >= last, "{words:?} after {last}");
                    last = words[0];
                    // Relaxed: read after the workers ended.
                    copied.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        assert_eq!(latest.copy(), Some([2 * rounds; 8]));
        copied.into_inner()
    }

    #[test]
    fn a_copy_is_what_one_replacement_left() {
        assert!(replaced_and_copied(100_000) > 0);
    }

    #[test]
    #[cfg(feature = "simulate")]
    fn under_many_schedules_a_copy_is_what_one_replacement_left() {
        let mut copied = 0;
        for seed in 0..500 {
            let plan = crate::schedule::SchedulePlan {
                seed,
                points: 100_000,
            };
            copied += crate::schedule::run(plan, || replaced_and_copied(6))
                .unwrap()
                .0;
        }
        assert!(copied > 500, "{copied}");
    }
}
