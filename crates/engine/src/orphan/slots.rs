//! The orphan file's slots in memory: a word each, on cache lines that eight of them share.
//!
//! The word holds the inode's number and, above it, a version that grows with each change, so that the committer knows
//! which change of a slot is the last. Whoever changes a word has the lock on the orphans; the words are atomic so that
//! forms without that lock can use them as they are. What a crash leaves: the slots of the last committed epoch.

use ondisk::Ino;
use sync::CachePadded;
use sync::atomic::{AtomicU64, Ordering};

use crate::variants::OrphanForm;

/// Slots to a line.
const LINE: usize = 8;

/// Slots, or the lack of them: the small face of an orphan file.
pub(crate) trait Slots: Send + Sync {
    /// Takes a free slot for an inode; gives it and its new version. `None` if none is free.
    fn claim(&self, ino: Ino) -> Option<(u32, u32)>;

    /// Gives a slot back; its new version.
    fn release(&self, slot: u32) -> u32;
}

/// The slots of a form; `len` of them, of which some are in use.
pub(crate) fn of_form(form: OrphanForm, len: u32, used: &[(u32, Ino)]) -> Box<dyn Slots> {
    let table = Table::new(len, used);
    match form {
        OrphanForm::Locked => Box::new(table),
        OrphanForm::List => Box::new(Closed(table)),
    }
}

/// The plain table.
struct Table {
    /// [orphan list; atomic: Relaxed]
    lines: Box<[CachePadded<[AtomicU64; LINE]>]>,
    len: u32,
    /// Free ones. [orphan list; atomic: Relaxed]
    free: AtomicU64,
    /// Where the next look for a free one begins. [orphan list; atomic: Relaxed, hint]
    next: AtomicU64,
}

impl Table {
    fn new(len: u32, used: &[(u32, Ino)]) -> Table {
        let lines = (len as usize).div_ceil(LINE);
        let line = || CachePadded::new([const { AtomicU64::new(0) }; LINE]);
        let table = Table {
            lines: (0..lines).map(|_| line()).collect(),
            len,
            free: AtomicU64::new(u64::from(len).saturating_sub(used.len() as u64)),
            next: AtomicU64::new(0),
        };
        for (slot, ino) in used {
            if let Some(word) = table.word(*slot) {
                // Relaxed: nobody else has the table yet.
                word.store(ino.0.into(), Ordering::Relaxed);
            }
        }
        table
    }

    fn word(&self, slot: u32) -> Option<&AtomicU64> {
        let slot = slot as usize;
        Some(&self.lines.get(slot / LINE)?[slot % LINE])
    }

    /// Puts a number into a slot; gives its new version.
    fn put(&self, slot: u32, ino: Ino) -> u32 {
        let Some(word) = self.word(slot) else {
            return 0;
        };
        // Relaxed: the lock on the orphans orders all changes.
        let before = word.load(Ordering::Relaxed);
        let version = ((before >> 32) as u32).wrapping_add(1);
        // Relaxed: as above.
        word.store(
            u64::from(version) << 32 | u64::from(ino.0),
            Ordering::Relaxed,
        );
        version
    }
}

impl Slots for Table {
    fn claim(&self, ino: Ino) -> Option<(u32, u32)> {
        // Relaxed: the lock on the orphans orders all changes, here and below.
        if self.free.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // Relaxed: as above.
        let from = self.next.load(Ordering::Relaxed) as u32;
        let is_free = |slot: &u32| {
            let word = self.word(*slot);
            // Relaxed: as above.
            word.is_some_and(|word| word.load(Ordering::Relaxed) as u32 == 0)
        };
        let slot = (from..self.len).chain(0..from).find(is_free)?;
        // Relaxed: as above.
        self.next.store(u64::from(slot) + 1, Ordering::Relaxed);
        // Relaxed: as above.
        self.free.fetch_sub(1, Ordering::Relaxed);
        Some((slot, self.put(slot, ino)))
    }

    fn release(&self, slot: u32) -> u32 {
        // Relaxed: as in `claim`.
        self.next.store(slot.into(), Ordering::Relaxed);
        // Relaxed: as in `claim`.
        self.free.fetch_add(1, Ordering::Relaxed);
        self.put(slot, Ino(0))
    }
}

/// Slots that are given back only: the list takes what comes.
struct Closed(Table);

impl Slots for Closed {
    fn claim(&self, _: Ino) -> Option<(u32, u32)> {
        None
    }

    fn release(&self, slot: u32) -> u32 {
        self.0.release(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_claimed_once_and_their_versions_grow() {
        let slots = of_form(OrphanForm::Locked, 3, &[(1, Ino(50))]);
        let first = slots.claim(Ino(12)).unwrap();
        let second = slots.claim(Ino(13)).unwrap();
        assert_eq!((first, second), ((0, 1), (2, 1)));
        assert_eq!(slots.claim(Ino(14)), None);
        assert_eq!(slots.release(1), 1);
        assert_eq!(slots.claim(Ino(14)), Some((1, 2)));
        assert_eq!(slots.release(0), 2);
        let closed = of_form(OrphanForm::List, 3, &[(1, Ino(50))]);
        assert_eq!(closed.claim(Ino(12)), None);
        assert_eq!(closed.release(1), 1);
    }
}
