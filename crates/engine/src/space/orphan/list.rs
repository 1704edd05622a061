//! The classic list of orphans: the superblock holds its head, and each inode's `dtime` the number of the next inode.
//! It is the form `orphan=list`, and what all other forms use when no slot is free.
//!
//! One lock ([`Rank::OrphanList`]), taken before the handle and kept through apply; it protects the chain and every
//! `dtime` that names a neighbour. An inode remembers its place in the chain, so it is removed without a walk along the
//! chain. CRASH: the chain of the last committed epoch remains.

use std::collections::BTreeMap;

use journal::Handle;
use ondisk::Ino;
use sync::Arc;

use super::Chained;

/// The chain. [orphan list]
#[derive(Default)]
pub(super) struct List {
    /// The inodes by their places, in the order in which they were added; the last one is the head.
    chain: BTreeMap<u64, Arc<dyn Chained>>,
    /// The place that was given out last.
    last: u64,
    /// How often the head has changed. Wraps.
    version: u32,
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// Adds an inode as the new head; returns its place. The caller tells the committer the new head.
    pub(super) fn push(&mut self, inode: Arc<dyn Chained>, handle: Option<&Handle<'_>>) -> u64 {
        if let Some(handle) = handle {
            let next = self.chain.last_entry();
            let next = next.map_or(Ino(0), |head| head.get().ino());
            Arc::clone(&inode).set_next(handle, next);
        }
        self.last += 1;
        self.chain.insert(self.last, inode);
        self.last
    }

    /// Removes the inode at a place; returns the new head if the inode was the head.
    pub(super) fn remove(&mut self, handle: &Handle<'_>, place: u64) -> Option<Ino> {
        let removed = self.chain.remove(&place)?;
        let next = self.chain.range(..place).next_back();
        let next = next.map_or(Ino(0), |(_, next)| next.ino());
        // The inode that points to this one was added after it.
        let before = self.chain.range(place..).next();
        let head = match before {
            Some((_, before)) => {
                Arc::clone(before).set_next(handle, next);
                None
            }
            None => Some(next),
        };
        removed.set_next(handle, Ino(0));
        head
    }

    /// The version for a new head.
    pub(super) fn next_version(&mut self) -> u32 {
        self.version = self.version.wrapping_add(1);
        self.version
    }
}
