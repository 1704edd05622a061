//! The classic list of orphans: its head in the superblock, and in each inode's `dtime` the number of the next. The
//! form `orphan=list`, and the fallback of all others when no slot is free.
//!
//! One lock ([`Rank::OrphanList`]), taken before the handle and kept through apply; it protects the chain and every
//! `dtime` that names a neighbour. An inode remembers its place in the chain, so that it is found without a look along
//! it. What a crash leaves: the chain of the last committed epoch.

use std::collections::BTreeMap;

use journal::Handle;
use ondisk::Ino;
use sync::Arc;

use super::Chained;

/// [orphan list]
#[derive(Default)]
pub(super) struct List {
    /// In the order in which they came; the head is the last.
    chain: BTreeMap<u64, Arc<dyn Chained>>,
    /// The place that was given out last.
    last: u64,
    /// How often the head changed. Wraps.
    version: u32,
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// Puts an inode before the head; its place. The caller tells the committer of the new head.
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

    /// Takes out the inode at a place; the new head, if it was the head.
    pub(super) fn remove(&mut self, handle: &Handle<'_>, place: u64) -> Option<Ino> {
        let removed = self.chain.remove(&place)?;
        let next = self.chain.range(..place).next_back();
        let next = next.map_or(Ino(0), |(_, next)| next.ino());
        // The inode that named it was added after it.
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

    /// The version of a new head.
    pub(super) fn next_version(&mut self) -> u32 {
        self.version = self.version.wrapping_add(1);
        self.version
    }
}
