//! What memory holds about an inode for the fsync log: whether its changes can be logged, and which of them are.
//!
//! Everything here belongs to an epoch, and is meaningless once that epoch is committed. An inode that leaves memory is
//! clean, so nothing is lost with it. The only lock is a leaf.

use journal::Epoch;
use ondisk::FileType;
use ondisk::inode::Inode;
use sync::{Guarded, Mutex, Rank, Stamp};

use crate::inode::changes::Batch;

/// The state in which an inode was put into the log.
#[derive(Clone, Copy)]
struct Logged {
    epoch: Epoch,
    batch: Batch,
    /// The values of `changes` and `data_changes` then.
    changes: u64,
    data_changes: u64,
    /// The file's size in bytes then.
    size: u64,
}

/// The state for one inode; see the module.
pub(crate) struct Logging {
    /// The last epoch with a change that no record can express. [lock, exclusive]
    unloggable: Guarded<u64>,
    /// Counts changes. [atomic: Release, Acquire; lock, exclusive]
    changes: Stamp,
    /// Counts changes of size or map, and changes that no record can express. [atomic: Release, Acquire; lock,
    /// exclusive]
    data_changes: Stamp,
    /// Whether the former contents of a new inode's slot have not been checked yet. [lock, exclusive]
    is_place_unseen: Guarded<bool>,
    /// [leaf]
    logged: Mutex<Option<Logged>>,
}

impl Logging {
    pub(crate) fn new() -> Logging {
        Logging {
            unloggable: Guarded::new(0),
            changes: Stamp::new(0),
            data_changes: Stamp::new(0),
            is_place_unseen: Guarded::new(false),
            logged: Mutex::new(Rank::Leaf, None),
        }
    }

    /// Counts a change.
    pub(crate) fn note(&self) {
        self.changes.advance(1);
    }

    /// Counts a change of what it takes to read the data.
    pub(crate) fn note_data(&self) {
        self.data_changes.advance(1);
    }

    /// Records that a change in this epoch can't be expressed by a record.
    pub(crate) fn set_unloggable(&self, epoch: Epoch) {
        self.unloggable.set(epoch.0);
    }

    /// Records that all changes so far can be logged after all, because the inode was made in this epoch.
    pub(crate) fn set_loggable(&self) {
        self.unloggable.set(0);
    }

    /// Sets whether the former contents of the new inode's slot must be checked before its record can be logged.
    pub(crate) fn set_place_unseen(&self, is_unseen: bool) {
        self.is_place_unseen.set(is_unseen);
    }

    /// Whether the former contents of the new inode's slot must be checked.
    pub(crate) fn is_place_unseen(&self) -> bool {
        self.is_place_unseen.get()
    }

    /// Whether a change in this epoch can't be expressed by a record.
    pub(crate) fn is_unloggable(&self, epoch: Epoch) -> bool {
        // For a directory this is read without its lock; the lock of an inode whose name in it changed is held.
        self.unloggable.get() == epoch.0
    }

    /// Records that the inode was put into the epoch's log as it is now. The caller has its lock.
    pub(crate) fn set_logged(&self, epoch: Epoch, batch: Batch, size: u64) {
        let changes = self.changes.get();
        let data_changes = self.data_changes.get();
        *self.logged.lock() = Some(Logged {
            epoch,
            batch,
            changes,
            data_changes,
            size,
        });
    }

    /// The file's size in bytes when it was last put into the epoch's log.
    pub(crate) fn logged_size(&self, epoch: Epoch) -> Option<u64> {
        let logged = *self.logged.lock();
        let logged = logged.filter(|logged| logged.epoch == epoch);
        logged.map(|logged| logged.size)
    }

    /// The batch of the epoch's log that has the inode as it is now.
    pub(crate) fn logged(&self, epoch: Epoch) -> Option<Batch> {
        let logged = (*self.logged.lock()).filter(|logged| logged.epoch == epoch)?;
        let is_same = self.changes.get() == logged.changes;
        is_same.then_some(logged.batch)
    }

    /// The batch of the epoch's log that has everything that it takes to read the inode's data as they are now.
    pub(crate) fn logged_data(&self, epoch: Epoch) -> Option<Batch> {
        let logged = (*self.logged.lock()).filter(|logged| logged.epoch == epoch)?;
        let is_same = self.data_changes.get() == logged.data_changes;
        is_same.then_some(logged.batch)
    }
}

/// Whether a record in the log can express the difference between two states of an inode. A directory's names and the
/// times of their changes do not belong to its own record.
pub(crate) fn is_loggable(before: &Inode, after: &Inode) -> bool {
    let is_directory = before.file_type() == Some(FileType::Directory);
    let stays = before.file_type() == after.file_type()
        && before.flags() == after.flags()
        && before.xattr_block() == after.xattr_block()
        && before.project() == after.project()
        && before.generation() == after.generation();
    let stays_directory = || {
        (before.mode(), before.uid(), before.gid()) == (after.mode(), after.uid(), after.gid())
            && before.links_count() == after.links_count()
            && before.size(true) == after.size(true)
            && before.block_area() == after.block_area()
    };
    stays && (!is_directory || stays_directory())
}
