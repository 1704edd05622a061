//! Records which inodes the kernel knows, and for each the number of its look-ups that were answered. The engine holds
//! such an inode once, until the kernel has forgotten all of these look-ups. The table has an entry for each inode of
//! the mount that the kernel has in memory. The kernel's own memory for it is some 30 times as large, and it forgets
//! inodes when it is short of memory.
//!
//! The table is a map in shards with a lock each ([`Rank::Leaf`]), held for one access. The root has a flag instead of
//! an entry, which is exchanged without a lock; nothing is reclaimed. Nothing of this outlives the mount; after a
//! crash, inodes without names are orphans.

use std::collections::HashMap;

use lanefs::Ino;
use sync::atomic::{AtomicBool, Ordering};
use sync::{CachePadded, Mutex, Rank};

const SHARDS: usize = 64;

/// Maps with room for fewer keep it.
const SHRUNK_FROM: usize = 64;

/// What the kernel knows of an inode.
#[derive(Default)]
struct Known {
    lookups: u64,
    /// Whether it may have the attributes as they were after the last change that was reported to it.
    has_attributes: bool,
    /// How many times the file is open to be written, if the kernel keeps what is written.
    writers: u32,
}

/// Counts of look-ups by inode; see the module.
pub(crate) struct Lookups {
    /// By inode number. [leaf]
    shards: Vec<CachePadded<Mutex<HashMap<u32, Known>>>>,
    /// Whether the kernel may have the root's attributes, which it never looks up. [atomic: AcqRel]
    has_root: AtomicBool,
}

impl Lookups {
    pub(crate) fn new() -> Lookups {
        let shard = || CachePadded::new(Mutex::new(Rank::Leaf, HashMap::new()));
        Lookups {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            has_root: AtomicBool::new(false),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<u32, Known>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Counts one more look-up of an inode that is known; false if it is not.
    pub(crate) fn again(&self, ino: Ino) -> bool {
        match self.shard(ino).lock().get_mut(&ino.0) {
            Some(known) => {
                known.lookups += 1;
                known.has_attributes = true;
                true
            }
            None => false,
        }
    }

    /// Counts a look-up of an inode that the caller has just held; false if it was known, so that one hold is too many.
    pub(crate) fn first(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        let known = shard.entry(ino.0).or_default();
        known.lookups += 1;
        known.has_attributes = true;
        known.lookups == 1
    }

    /// The kernel is about to be shown an inode's attributes, which are read after this. A look-up records that too.
    pub(crate) fn show(&self, ino: Ino) {
        if ino == Ino::ROOT {
            // AcqRel: pairs with the swap in `hide`: if that one comes first, the attributes that are read now include
            // its change.
            self.has_root.swap(true, Ordering::AcqRel);
        } else if let Some(known) = self.shard(ino).lock().get_mut(&ino.0) {
            known.has_attributes = true;
        }
    }

    /// An inode has changed: whether the kernel may have been shown its attributes since the last change, so that the
    /// change must be reported to it. What it is shown from now on is new.
    pub(crate) fn hide(&self, ino: Ino) -> bool {
        if ino == Ino::ROOT {
            // AcqRel: pairs with the swap in `show`: if that one comes first, the change is reported to the kernel.
            return self.has_root.swap(false, Ordering::AcqRel);
        }
        let mut shard = self.shard(ino).lock();
        let known = shard.get_mut(&ino.0);
        known.is_some_and(|known| std::mem::take(&mut known.has_attributes))
    }

    /// A file was opened to be written.
    pub(crate) fn opened_to_write(&self, ino: Ino) {
        if let Some(known) = self.shard(ino).lock().get_mut(&ino.0) {
            known.writers = known.writers.saturating_add(1);
        }
    }

    /// A file that was open to be written was closed.
    pub(crate) fn closed_to_write(&self, ino: Ino) {
        if let Some(known) = self.shard(ino).lock().get_mut(&ino.0) {
            known.writers = known.writers.saturating_sub(1);
        }
    }

    /// Whether a file is open to be written.
    pub(crate) fn is_open_to_write(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        shard.get(&ino.0).is_some_and(|known| known.writers > 0)
    }

    /// Takes back `times` look-ups; returns whether none is left, so that the caller must release the inode.
    pub(crate) fn forget(&self, ino: Ino, times: u64) -> bool {
        let mut known = self.shard(ino).lock();
        let Some(of) = known.get_mut(&ino.0) else {
            return false;
        };
        of.lookups = of.lookups.saturating_sub(times);
        let is_gone = of.lookups == 0;
        if is_gone {
            known.remove(&ino.0);
            // What the kernel forgot under pressure leaves memory here too.
            if known.capacity() > SHRUNK_FROM && known.len() < known.capacity() / 8 {
                let twice = known.len() * 2;
                known.shrink_to(twice);
            }
        }
        is_gone
    }

    /// Forgets all inodes; returns those that were known.
    pub(crate) fn forget_all(&self) -> Vec<Ino> {
        let known = self.shards.iter().flat_map(|shard| {
            let known = std::mem::take(&mut *shard.lock());
            known.into_keys().map(Ino)
        });
        known.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_gone_when_it_was_forgotten_as_often_as_looked_up() {
        let lookups = Lookups::new();
        assert!(!lookups.again(Ino(12)));
        assert!(lookups.first(Ino(12)) && !lookups.first(Ino(12)) && lookups.again(Ino(12)));
        assert!(!lookups.forget(Ino(12), 2) && lookups.forget(Ino(12), 1));
        assert!(!lookups.forget(Ino(12), 1) && lookups.first(Ino(12)));
        assert_eq!(lookups.forget_all(), [Ino(12)]);
    }

    #[test]
    fn the_kernel_is_told_of_a_change_if_it_was_shown_the_attributes_before() {
        let lookups = Lookups::new();
        assert!(!lookups.hide(Ino(12)) && !lookups.hide(Ino::ROOT));
        lookups.first(Ino(12));
        for ino in [Ino(12), Ino::ROOT] {
            lookups.show(ino);
            assert!(lookups.hide(ino) && !lookups.hide(ino));
            lookups.show(ino);
            assert!(lookups.hide(ino));
        }
        assert!(lookups.again(Ino(12)) && lookups.hide(Ino(12)));
        lookups.forget(Ino(12), 2);
        lookups.show(Ino(12));
        assert!(!lookups.hide(Ino(12)));
    }

    #[test]
    fn what_was_forgotten_takes_no_memory() {
        let lookups = Lookups::new();
        let room = || -> usize {
            let shards = lookups.shards.iter();
            shards.map(|shard| shard.lock().capacity()).sum()
        };
        for ino in 0..100_000 {
            lookups.first(Ino(ino));
        }
        assert!(room() >= 100_000);
        for ino in 1000..100_000 {
            assert!(lookups.forget(Ino(ino), 1));
        }
        assert!(room() < 20_000, "{}", room());
        assert!(lookups.again(Ino(999)));
    }
}
