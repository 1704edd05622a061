//! The plain form (`orphan=locked`): one lock ([`Rank::Leaf`]) around the slots, held for the look for a free one and
//! for each change of one. The look begins where a slot was taken or given back last.
//!
//! After a switch of forms, threads that began in the other form may still work on the same words without this lock.
//! So this form takes counts and words with the same atomic operations. What a crash leaves: see [`super::slots`].

use ondisk::Ino;
use sync::{Mutex, Rank};

use super::counts::Counts;
use super::slots::{Claim, Met, Slots, Table};

/// The form with one lock; see the module.
pub(super) struct Locked {
    /// The range in which the next look begins. [leaf]
    next: Mutex<u32>,
    pub(super) counts: Box<Counts>,
}

impl Default for Locked {
    fn default() -> Locked {
        Locked {
            next: Mutex::new(Rank::Leaf, 0),
            counts: Box::default(),
        }
    }
}

impl Slots for Locked {
    fn claim<'a>(&self, table: &'a Table, ino: Ino) -> Option<Claim<'a>> {
        let shape = table.shape();
        if shape.blocks == 0 {
            return None;
        }
        let mut next = self.next.lock();
        let mut met = Met::default();
        let mut skipped = 0;
        let claim = (0..shape.ranges()).find_map(|step| {
            let range = (*next + step) % shape.ranges();
            if !table.take(range) {
                skipped += 1;
                return None;
            }
            let claim = table.find(range, 0, ino, &mut met)?;
            Some((range, claim))
        });
        self.counts.note(claim.is_some(), skipped, met);
        let (range, claim) = claim?;
        *next = range;
        Some(claim)
    }

    fn release(&self, table: &Table, slot: u32) -> u32 {
        let mut next = self.next.lock();
        *next = table.shape().range_of(slot);
        table.release(slot)
    }
}
