//! A handle: the right to change metadata, in one epoch, within the blocks it asked for.
//!
//! While it is open its thread does no I/O, waits for nothing and runs no code of others; so an epoch drains in the
//! time of the longest step. Dropping it ends it: what it asked for and did not use is given back to the thread's
//! lease.

use std::cell::Cell;
use std::panic::Location;

use ondisk::FsBlock;
use sync::Arc;
use sync::clock::Duration;

use crate::canary::{self, Canary};
use crate::epoch::{Epoch, Presence};
use crate::journal::Journal;
use crate::lists::EpochLists;
use crate::object::{Object, Stageable};

/// An open handle. It stays on its thread and does not nest.
pub struct Handle<'a> {
    pub(crate) journal: &'a Journal,
    /// Dropped last of all, when what it used is on record.
    pub(crate) presence: Presence<'a>,
    /// Blocks that the step may change, and numbers that it may revoke.
    asked: (u32, u32),
    /// Blocks that became part of the epoch through this handle. [the handle's thread]
    dirtied: Cell<u32>,
    /// Blocks whose copies in the log must not be replayed. [the handle's thread]
    revoked: Cell<u32>,
    /// Whether the step makes blocks of data part of a file. [the handle's thread]
    maps_data: Cell<bool>,
    /// The place in the code that began it.
    site: &'static Location<'static>,
}

/// A handle that a sealer has waited for longer than this is counted when it ends.
const LONG: Duration = Duration::from_millis(1);

impl<'a> Handle<'a> {
    #[track_caller]
    pub(crate) fn new(
        journal: &'a Journal,
        presence: Presence<'a>,
        blocks: u32,
        revokes: u32,
    ) -> Handle<'a> {
        Handle {
            journal,
            presence,
            asked: (blocks, revokes),
            dirtied: Cell::new(0),
            revoked: Cell::new(0),
            maps_data: Cell::new(false),
            site: Location::caller(),
        }
    }

    /// The epoch that the changes belong to.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.presence.epoch()
    }

    /// Counts one more block as changed by this step: [`Handle::change`] does it for objects, the client for blocks
    /// that its own lists change.
    ///
    /// # Panics
    /// If more blocks are changed than were reserved by [`Journal::reserve`]: the log might not hold them.
    pub fn use_block(&self) {
        self.dirtied.set(self.dirtied.get() + 1);
        assert!(
            self.dirtied.get() <= self.asked.0,
            "a step changed more than the {} blocks it asked for",
            self.asked.0
        );
    }

    /// Counts `blocks` blocks as changed that the thread's steps change again and again, as the bitmap of a group:
    /// those for the same `what` (not 0) count once an epoch and thread, as they are in a transaction once.
    ///
    /// # Panics
    /// As [`Handle::use_block`].
    pub fn use_blocks_for(&self, what: u64, blocks: u32) {
        if !self.journal.space.is_charged(self.epoch(), what) {
            (0..blocks).for_each(|_| self.use_block());
        }
    }

    /// Records that the step makes data readable that were written before it: they must be durable before its epoch is.
    pub fn maps_data(&self) {
        self.maps_data.set(true);
    }

    /// Records that `block` no longer holds metadata: its copies in the log are not replayed over what comes next, and
    /// not written home once this epoch is committed. It may be used again only when [`crate::Client::committed`] was
    /// called for this epoch.
    ///
    /// # Panics
    /// As [`Handle::use_block`], for the number of revokes.
    pub fn forget(&self, block: FsBlock) {
        self.revoked.set(self.revoked.get() + 1);
        assert!(
            self.revoked.get() <= self.asked.1,
            "a step revoked more than the {} blocks it asked for",
            self.asked.1
        );
        if canary::makes(Canary::CancelledAtFree) {
            self.journal.table.cancel(block);
        }
        self.journal.forgotten.push(self, block);
    }
}

impl Handle<'_> {
    /// Changes an object's value in this handle's epoch, and puts the object on the epoch's list the first time,
    /// which uses one of the handle's blocks. The caller holds the lock that protects the object.
    ///
    /// # Panics
    /// When more objects become dirty than the handle has blocks.
    pub fn change<O, T, R>(
        &self,
        object: &Arc<O>,
        value: impl FnOnce(&O) -> &Object<T>,
        change: impl FnOnce(&mut T) -> R,
    ) -> R
    where
        O: Stageable + 'static,
        T: Clone,
    {
        let (result, is_first) = value(object).change_in(self.epoch(), change);
        if is_first {
            self.use_block();
            self.journal
                .dirty
                .push(self, Arc::clone(object) as Arc<dyn Stageable>);
        }
        result
    }
}

impl<T> EpochLists<T> {
    /// Appends to the calling thread's list of the handle's epoch.
    pub fn push(&self, handle: &Handle<'_>, item: T) {
        self.append(handle.epoch(), item);
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if sync::thread::panicking() {
            // What the step changed so far is in memory and must not become durable. The panic's message has the cause.
            self.journal.abort("a panic within a step");
        }
        let did = (self.dirtied.get(), self.revoked.get());
        self.journal
            .space
            .end(self.epoch(), self.asked, did, self.maps_data.get());
        if did != (0, 0) {
            self.journal.attendant.rouse(&self.journal.leaders);
        }
        if self.journal.epochs.waited_for() > LONG {
            self.journal.long_handles.count(self.site);
        }
    }
}
