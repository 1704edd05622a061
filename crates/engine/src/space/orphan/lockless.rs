//! The scalable form (`orphan=lockless`): slots are claimed and released without a lock.
//!
//! Each thread begins at a range and a line of its own ([`super::slots::Shape::start`]) and, if that range is full,
//! goes round all others once: at most three passes over each that has a free slot, so a look ends; then the list
//! serves. Two threads that claim and release what they claimed write no line in common while each stays in its range.
//!
//! What a crash leaves: see [`super::slots`].

use ondisk::Ino;
use sync::thread_index;

use super::counts::Counts;
use super::slots::{Claim, Met, Slots, Table};

/// The form without a lock; see the module.
#[derive(Default)]
pub(super) struct Lockless {
    pub(super) counts: Box<Counts>,
}

impl Slots for Lockless {
    fn claim<'a>(&self, table: &'a Table, ino: Ino) -> Option<Claim<'a>> {
        let shape = table.shape();
        if shape.blocks == 0 {
            return None;
        }
        let (own, line) = shape.start(thread_index());
        let mut met = Met::default();
        let mut skipped = 0;
        let claim = (0..shape.ranges()).find_map(|step| {
            let range = (own + step) % shape.ranges();
            if !table.take(range) {
                skipped += 1;
                return None;
            }
            table.find(range, line, ino, &mut met)
        });
        self.counts.note(claim.is_some(), skipped, met);
        claim
    }

    fn release(&self, table: &Table, slot: u32) -> u32 {
        table.release(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sync::schedule::{self, SchedulePlan};
    use sync::{Mutex, Rank};

    use super::super::locked::Locked;
    use super::super::slots::Shape;
    use super::*;

    fn scheduled<R>(seed: u64, work: impl FnOnce() -> R) -> R {
        let points = 200_000;
        schedule::run(SchedulePlan { seed, points }, work)
            .unwrap()
            .0
    }

    /// Threads that claim and release in a file that is too small for all: no slot has two owners, a look that fails
    /// was at a file that was full at some moment, and in the end everything is free. Both forms at once, too.
    #[test]
    fn no_slot_has_two_owners_and_none_is_lost() {
        let mut failed = 0;
        let mut lost = 0;
        for seed in 0..400 {
            let shape = Shape {
                blocks: 1 + seed as u32 % 3,
                slots: 1 + seed as u32 / 3 % 3,
            };
            let table = Table::new(shape, &[]);
            let (lockless, locked) = (Lockless::default(), Locked::default());
            let owners = Mutex::new(Rank::Leaf, BTreeMap::new());
            let fails = Mutex::new(Rank::Leaf, 0);
            scheduled(seed, || {
                sync::thread::workers(4, |thread| {
                    let both = seed % 2 == 1 && thread % 2 == 1;
                    let form: &dyn Slots = if both { &locked } else { &lockless };
                    for round in 0..6 {
                        let ino = Ino(100 + thread as u32);
                        let Some(claim) = form.claim(&table, ino) else {
                            *fails.lock() += 1;
                            continue;
                        };
                        assert_eq!(owners.lock().insert(claim.slot(), thread), None);
                        let slot = claim.slot();
                        if round % 3 == 2 {
                            assert_eq!(owners.lock().remove(&slot), Some(thread));
                            drop(claim);
                            continue;
                        }
                        let (_, version) = claim.keep();
                        assert_eq!(owners.lock().remove(&slot), Some(thread));
                        assert_eq!(form.release(&table, slot), version.wrapping_add(1));
                    }
                });
            });
            assert!(table.is_empty(), "{seed}");
            assert!(owners.into_inner().is_empty());
            failed += fails.into_inner();
            lost += lockless.counts.cas_lost();
        }
        // Both were met: a full file, and a word that another thread took first.
        assert!(failed > 20 && lost > 20, "{failed} {lost}");
    }

    /// With a slot for each thread at each moment, no thread ever has to do without, however they meet.
    #[test]
    fn who_took_from_a_count_finds_a_slot_when_there_are_enough() {
        for seed in 0..300 {
            let shape = Shape {
                blocks: 2,
                slots: 2,
            };
            let table = Table::new(shape, &[]);
            let form = Lockless::default();
            let looks = scheduled(seed, || {
                let looks = Mutex::new(Rank::Leaf, 0);
                sync::thread::workers(2, |thread| {
                    for _ in 0..8 {
                        let claim = form.claim(&table, Ino(20 + thread as u32)).unwrap();
                        form.release(&table, claim.keep().0);
                        *looks.lock() += 1;
                    }
                });
                looks.into_inner()
            });
            assert_eq!(looks, 16);
            assert!(table.is_empty());
        }
    }

    /// The slot is cleared before `free` is incremented, so a thread that sees `free > 0` and has no competitor always
    /// finds a slot on its first scan.
    #[test]
    fn who_may_take_the_last_slot_finds_it_at_once() {
        let mut skipped = 0;
        for seed in 0..300 {
            let table = Table::new(
                Shape {
                    blocks: 1,
                    slots: 1,
                },
                &[],
            );
            let form = Lockless::default();
            scheduled(seed, || {
                sync::thread::workers(2, |thread| {
                    for _ in 0..8 {
                        if let Some(claim) = form.claim(&table, Ino(20 + thread as u32)) {
                            form.release(&table, claim.keep().0);
                        }
                    }
                });
            });
            assert_eq!(form.counts.in_vain(), 0, "{seed}");
            skipped += form.counts.skipped();
        }
        assert!(skipped > 20, "{skipped}");
    }

    /// The committer takes the highest version of a slot for the last change of it.
    #[test]
    fn versions_follow_the_order_in_which_a_slot_changes_hands() {
        for seed in 0..300 {
            let table = Table::new(
                Shape {
                    blocks: 1,
                    slots: 1,
                },
                &[],
            );
            let form = Lockless::default();
            // The version that the next owner's must follow; written by the slot's owner.
            let last = Mutex::new(Rank::Leaf, 0);
            scheduled(seed, || {
                sync::thread::workers(3, |thread| {
                    for _ in 0..5 {
                        let Some(claim) = form.claim(&table, Ino(20 + thread as u32)) else {
                            continue;
                        };
                        let (slot, version) = claim.keep();
                        assert_eq!(version, *last.lock() + 1);
                        *last.lock() = version + 1;
                        assert_eq!(form.release(&table, slot), version + 1);
                    }
                });
            });
            assert!(last.into_inner() >= 2);
        }
    }
}
