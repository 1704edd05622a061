//! The version of a directory's names, by which threads that read them without its lock know whether they agree, and
//! the names that were looked up at that version.
//!
//! The version is a word of the inode, freed with it. Interleavings:
//! `under_schedules_whoever_looks_a_name_up_finds_where_it_is` and `a_rename_sees_both_its_names_at_one_moment`.

use ondisk::Ino;
use sync::atomic::{AtomicU64, Ordering};

use crate::inode::known_names::{KnownNames, Parts};

/// What is in memory about a directory's names.
pub(crate) struct NamesInMemory {
    /// Counts the beginnings and ends of changes of the names: odd while one is under way. [lock, exclusive; atomic:
    /// SeqCst]
    version: AtomicU64,
    /// What was looked up in the directory.
    known: KnownNames,
}

impl NamesInMemory {
    pub(super) fn new() -> NamesInMemory {
        NamesInMemory {
            version: AtomicU64::new(0),
            known: KnownNames::new(),
        }
    }

    /// How often changes of the names began and ended; odd while one is under way. What was read without a lock agrees
    /// if this was even before and is the same after.
    pub(crate) fn version(&self) -> u64 {
        // SeqCst: before and after the reads it guards; pairs with the adds in `change`.
        self.version.load(Ordering::SeqCst)
    }

    /// Changes several blocks of the directory in one step for threads that read it without its lock. The caller has
    /// the directory's lock, exclusive.
    pub(super) fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        // SeqCst: pairs with the loads in `version`. If the reader's first load comes after this add, it sees an odd
        // version; if it comes before, the reader's second load sees another version, unless all that it read came
        // before this add.
        self.version.fetch_add(1, Ordering::SeqCst);
        let result = change();
        // SeqCst: after the change; pairs with the loads in `version`: a reader that begins with this version reads
        // what the change left.
        self.version.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// What a name stands for, if that is known.
    pub(in crate::inode) fn known(&self, name: &[u8]) -> Option<Ino> {
        // At an odd version, while a change is under way, no name is known.
        self.known.find(self.version(), name)
    }

    /// A name stands for this inode at this version of the names.
    pub(in crate::inode) fn know(
        &self,
        version: u64,
        (name, ino): (&[u8], Ino),
        blocks: u64,
        all: &Parts,
    ) {
        self.known.add(version, name, ino, blocks, all);
    }
}
