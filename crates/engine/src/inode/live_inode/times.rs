//! What memory holds about an inode's times in addition to its record: a time of access that is not in the record yet
//! (`lazytime`), and whether the times that a write in place set have been seen (read by a caller, or set by hand
//! since). A crash forgets both.

use ondisk::Timestamp;
use sync::atomic::{AtomicBool, Ordering};
use sync::{Hint, Mutex, Rank};

/// What memory holds about an inode's times.
pub(crate) struct TimesInMemory {
    /// A time of access that is not in the record yet. [leaf]
    lazy_atime: Mutex<Option<Timestamp>>,
    /// Whether `lazy_atime` holds a time. [atomic: written under `lazy_atime`]
    has_lazy_atime: AtomicBool,
    /// Whether a caller has seen the times since a write in place set them. [cleared under the inode's lock, exclusive]
    seen: Hint<bool>,
}

impl TimesInMemory {
    pub(super) fn new() -> TimesInMemory {
        TimesInMemory {
            lazy_atime: Mutex::new(Rank::Leaf, None),
            has_lazy_atime: AtomicBool::new(false),
            seen: Hint::new(true),
        }
    }

    /// Whether a caller has seen the times since [`TimesInMemory::set_unseen`].
    pub(crate) fn are_seen(&self) -> bool {
        self.seen.get()
    }

    /// Records that the times are new and no caller has seen them. Called before the record changes, under the inode's
    /// lock.
    pub(crate) fn set_unseen(&self) {
        // A thread that sees the new record sees this store too, because the record's words order it, and sets `seen`
        // again after it.
        self.seen.set(false);
    }

    /// Records that the times were seen, or set by hand: the next write sets new ones. Called after the record was
    /// read.
    pub(crate) fn set_seen(&self) {
        self.seen.set_if_new(true);
    }

    /// Keeps a time of access until the record changes next; returns whether none was kept before.
    pub(crate) fn set_lazy_atime(&self, atime: Timestamp) -> bool {
        let mut lazy = self.lazy_atime.lock();
        // Release: pairs with the Acquire in `has_lazy_atime`.
        self.has_lazy_atime.store(true, Ordering::Release);
        lazy.replace(atime).is_none()
    }

    /// Whether a time of access is kept for the record's next change.
    pub(crate) fn has_lazy_atime(&self) -> bool {
        // Acquire: pairs with the Release in `set_lazy_atime`.
        self.has_lazy_atime.load(Ordering::Acquire)
    }

    /// The time of access that is kept.
    pub(super) fn lazy_atime(&self) -> Option<Timestamp> {
        if self.has_lazy_atime() {
            *self.lazy_atime.lock()
        } else {
            None
        }
    }

    /// Takes the time of access that is kept, to put it into the record.
    pub(super) fn take_lazy_atime(&self) -> Option<Timestamp> {
        if !self.has_lazy_atime() {
            return None;
        }
        let mut lazy = self.lazy_atime.lock();
        // Release: pairs with the Acquire in `has_lazy_atime`.
        self.has_lazy_atime.store(false, Ordering::Release);
        lazy.take()
    }
}
