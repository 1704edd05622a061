//! What fast commits keep of an inode in memory: whether its changes can be logged, and which of them are.
//!
//! All of it belongs to epochs, and means nothing once its epoch is committed; an inode that goes from memory is clean,
//! so nothing is lost with it. No lock of its own but a leaf.

use journal::Epoch;
use ondisk::FileType;
use ondisk::inode::Inode;
use sync::{Guarded, Mutex, Rank, Stamp};

use crate::inode::changes::Batch;

/// Where an inode was put into the log.
#[derive(Clone, Copy)]
struct Logged {
    epoch: Epoch,
    batch: Batch,
    /// How often it had changed by then, and how often in what it takes to read its data.
    changes: u64,
    data_changes: u64,
    /// Bytes that it had.
    size: u64,
}

/// See the module.
pub(crate) struct Logging {
    /// The last epoch with a change that no record can tell. [lock, exclusive]
    unloggable: Guarded<u64>,
    /// Counts changes. [atomic: Release, Acquire; lock, exclusive]
    changes: Stamp,
    /// Counts changes of size, map, or what no record can tell. [atomic: Release, Acquire; lock, exclusive]
    data_changes: Stamp,
    /// What was in the new inode's place before has not been looked at. [lock, exclusive]
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

    /// Something changed.
    pub(crate) fn note(&self) {
        self.changes.advance(1);
    }

    /// Something changed that it takes to read the data.
    pub(crate) fn note_data(&self) {
        self.data_changes.advance(1);
    }

    /// Something changed in this epoch that no record can tell.
    pub(crate) fn set_unloggable(&self, epoch: Epoch) {
        self.unloggable.set(epoch.0);
    }

    /// All changes so far can be logged after all: the inode was made in this epoch.
    pub(crate) fn set_loggable(&self) {
        self.unloggable.set(0);
    }

    /// Says whether somebody must look at what was in the new inode's place before its record can be logged.
    pub(crate) fn set_place_unseen(&self, is_unseen: bool) {
        self.is_place_unseen.set(is_unseen);
    }

    /// What [`Logging::set_place_unseen`] said last.
    pub(crate) fn is_place_unseen(&self) -> bool {
        self.is_place_unseen.get()
    }

    /// Whether something changed in this epoch that no record can tell.
    pub(crate) fn is_unloggable(&self, epoch: Epoch) -> bool {
        // A directory's is read without its lock, as a name in it that changed has one that is held.
        self.unloggable.get() == epoch.0
    }

    /// The inode was put into the epoch's log as it is now. The caller has its lock.
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

    /// Bytes that the inode had when it was put into the epoch's log last.
    pub(crate) fn logged_size(&self, epoch: Epoch) -> Option<u64> {
        let logged = *self.logged.lock();
        let logged = logged.filter(|logged| logged.epoch == epoch);
        logged.map(|logged| logged.size)
    }

    /// The batch of the epoch's log in which the inode is as it is now.
    pub(crate) fn logged(&self, epoch: Epoch) -> Option<Batch> {
        let logged = (*self.logged.lock()).filter(|logged| logged.epoch == epoch)?;
        let is_same = self.changes.get() == logged.changes;
        is_same.then_some(logged.batch)
    }

    /// The batch of the epoch's log in which all is that it takes to read the inode's data as they are now.
    pub(crate) fn logged_data(&self, epoch: Epoch) -> Option<Batch> {
        let logged = (*self.logged.lock()).filter(|logged| logged.epoch == epoch)?;
        let is_same = self.data_changes.get() == logged.data_changes;
        is_same.then_some(logged.batch)
    }
}

/// Whether a record in the log can express the difference between two states of an inode; a directory's names and their
/// times do not belong to its own record.
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
