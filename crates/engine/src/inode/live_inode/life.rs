//! How an inode comes and goes: its holders, its first name, the epoch that made it, and its entry among the orphans.
//!
//! While there is a holder, an inode without names is not deleted. The last one deletes it. What a crash leaves: an
//! inode that is still held without names is an orphan, which the next mount deletes.
//!
//! The count of holders is changed without a lock by a thread that has the inode already, so that its memory can't be
//! reclaimed meanwhile: the table frees an inode (`inode/table.rs`). Interleavings:
//! `who_finds_a_file_that_is_being_deleted_waits_and_holds_it_or_is_told_that_it_is_gone` in `tests/writing/inodes.rs`,
//! and `threads_that_make_and_end_orphans_leave_each_epoch_whole_however_they_are_scheduled`.

use journal::Epoch;
use sync::Guarded;
use sync::atomic::{AtomicU32, Ordering};

use crate::space::orphan::{Noted, OrphanPlace};

/// What is in memory about an inode's beginning and end.
pub(crate) struct InodeLife {
    /// How many hold the inode, so that it stays without names. [atomic: SeqCst; from 0 up: lock, shared]
    holders: AtomicU32,
    /// Whether it was made without a name, and may get its first. [lock]
    linkable: Guarded<bool>,
    /// The epoch in which the inode was made; 0 if that was before it came into memory. [lock]
    born: Guarded<u64>,
    /// Where it is recorded among the orphans. [lock, exclusive]
    pub(super) orphan: OrphanPlace,
}

impl InodeLife {
    pub(super) fn new() -> InodeLife {
        InodeLife {
            holders: AtomicU32::new(0),
            linkable: Guarded::new(false),
            born: Guarded::new(0),
            orphan: OrphanPlace::default(),
        }
    }

    /// Adds a holder. The caller has the inode's lock, and saw that it is in use.
    pub(crate) fn hold(&self) {
        // SeqCst: pairs with the load in `is_held`; seen by the next thread that takes the lock exclusively.
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes `count` holders; returns whether they were the last.
    pub(crate) fn release(&self, count: u32) -> bool {
        // SeqCst: pairs with the load in `is_held`.
        self.holders.fetch_sub(count, Ordering::SeqCst) == count
    }

    /// The number of holders. No other thread has the inode.
    pub(in crate::inode) fn holders(&self) -> u32 {
        // Relaxed: the table's lock orders it.
        self.holders.load(Ordering::Relaxed)
    }

    /// Sets the number of holders. No other thread has the inode.
    pub(in crate::inode) fn set_holders(&self, holders: u32) {
        // Relaxed: the table's lock orders it.
        self.holders.store(holders, Ordering::Relaxed);
    }

    /// Whether the inode has a holder.
    pub(crate) fn is_held(&self) -> bool {
        // SeqCst: pairs with the changes in `hold` and `release`.
        self.holders.load(Ordering::SeqCst) > 0
    }

    /// Whether the inode has an entry among the orphans. The caller has its lock, or no other thread has the inode.
    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan.get() != Noted::Nowhere
    }

    /// Sets whether the inode, which has no name, may get one. The caller has its lock.
    pub(crate) fn set_linkable(&self, linkable: bool) {
        self.linkable.set(linkable);
    }

    /// Whether the inode, without names, may get one. The caller has its lock.
    pub(crate) fn is_linkable(&self) -> bool {
        self.linkable.get()
    }

    /// Records that the inode is made in this epoch. The caller has its lock.
    pub(crate) fn set_born(&self, epoch: Epoch) {
        self.born.set(epoch.0);
    }

    /// Whether the inode was made in this epoch, so that no earlier commit contains it.
    pub(crate) fn is_born_in(&self, epoch: Epoch) -> bool {
        self.born.get() == epoch.0
    }
}
