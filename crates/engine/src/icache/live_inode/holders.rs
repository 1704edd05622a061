//! The holders of an inode: while there is one, an inode without names is not deleted. The last one deletes it.
//!
//! What a crash leaves: an inode that is still held without names is an orphan, which the next mount deletes.

use sync::atomic::{Ordering, fence};

use super::LiveInode;

impl LiveInode {
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
    pub(crate) fn holders(&self) -> u32 {
        // Relaxed: the table's lock orders it.
        self.holders.load(Ordering::Relaxed)
    }

    /// Sets the number of holders. No other thread has the inode.
    pub(crate) fn set_holders(&self, holders: u32) {
        // Relaxed: the table's lock orders it.
        self.holders.store(holders, Ordering::Relaxed);
    }

    /// Whether the inode has no names. No other thread has the inode.
    pub(crate) fn is_nameless(&self) -> bool {
        self.is_nameless.get()
    }

    /// Whether the inode has a holder.
    pub(crate) fn is_held(&self) -> bool {
        // SeqCst: pairs with the changes in `hold` and `release`.
        self.holders.load(Ordering::SeqCst) > 0
    }

    /// Whether the inode still has a holder after its last name was removed. If it has, its last holder will see that
    /// it has no names.
    pub(crate) fn is_held_still(&self) -> bool {
        // SeqCst: pairs with the fence in `is_released_for_good`. If this fence comes first, a release that our load
        // does not see comes after it, and the releasing thread sees that the names are gone. If that fence comes
        // first, our load sees the release.
        fence(Ordering::SeqCst);
        self.is_held()
    }

    /// Whether the inode has no names, after its last holder released it.
    pub(crate) fn is_released_for_good(&self) -> bool {
        // SeqCst: pairs with the fence in `is_held_still`, where both orders are explained.
        fence(Ordering::SeqCst);
        self.snapshot().links_count() == 0
    }
}
