//! The holders of an inode: while there is one, an inode without names is not deleted. The last one deletes it.
//!
//! What a crash leaves: an inode that is still held without names is an orphan, which the next mount deletes.

use sync::atomic::{Ordering, fence};

use super::LiveInode;

impl LiveInode {
    /// One more holds the inode. The caller has its lock, and saw that it is in use.
    pub(crate) fn hold(&self) {
        // SeqCst: seen by whoever takes the lock exclusively next; pairs with the load in `is_held`.
        self.holders.fetch_add(1, Ordering::SeqCst);
    }

    /// `count` fewer hold the inode; whether they were the last.
    pub(crate) fn release(&self, count: u32) -> bool {
        // SeqCst: pairs with the load in `is_held`.
        self.holders.fetch_sub(count, Ordering::SeqCst) == count
    }

    /// How many hold the inode. Nobody else has it.
    pub(crate) fn holders(&self) -> u32 {
        // Relaxed: the table's lock orders it.
        self.holders.load(Ordering::Relaxed)
    }

    /// Sets how many hold the inode. Nobody else has it.
    pub(crate) fn set_holders(&self, holders: u32) {
        // Relaxed: the table's lock orders it.
        self.holders.store(holders, Ordering::Relaxed);
    }

    /// Whether the inode has no names. Nobody else has it.
    pub(crate) fn is_nameless(&self) -> bool {
        // Relaxed: nobody changes it.
        self.is_nameless.load(Ordering::Relaxed)
    }

    /// Whether someone holds the inode.
    pub(crate) fn is_held(&self) -> bool {
        // SeqCst: pairs with the changes in `hold` and `release`.
        self.holders.load(Ordering::SeqCst) > 0
    }

    /// Whether someone holds the inode after its last name was taken, so that the last holder finds it without names.
    pub(crate) fn is_held_still(&self) -> bool {
        // SeqCst: pairs with the fence in `is_released_for_good`. If this one comes first, a release that this load
        // does not see comes after it, and its thread sees that the names are gone. If that one comes first, this load
        // sees the release.
        fence(Ordering::SeqCst);
        self.is_held()
    }

    /// Whether the inode has no names, after its last holder released it.
    pub(crate) fn is_released_for_good(&self) -> bool {
        // SeqCst: pairs with the fence in `is_held_still`, with both cases there.
        fence(Ordering::SeqCst);
        self.snapshot().links_count() == 0
    }
}
