//! The plain table of inodes in memory: a map under one lock ([`Rank::IcacheBucket`]), held for a look.
//!
//! An inode that someone holds may leave memory like any other while it has names; how many hold it stays here, and
//! goes with it when it is loaded again.

use hashbrown::HashMap;
use ondisk::Ino;
use sync::atomic::{Ordering, fence};
use sync::{Arc, Mutex, Rank};

use crate::icache::{InodeTable, LiveInode};
use crate::limits;

/// The table; see the module.
pub(crate) struct LockedTable {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    inodes: HashMap<u32, Arc<LiveInode>>,
    /// How many hold an inode that is not in memory; no zeros.
    holders: HashMap<u32, u32>,
}

impl LockedTable {
    pub(crate) fn new() -> LockedTable {
        LockedTable {
            inner: Mutex::new(Rank::IcacheBucket, Inner::default()),
        }
    }
}

impl InodeTable for LockedTable {
    fn find(&self, ino: Ino) -> Option<Arc<LiveInode>> {
        self.inner.lock().inodes.get(&ino.0).cloned()
    }

    fn insert(&self, inode: Arc<LiveInode>) -> Arc<LiveInode> {
        let number = inode.ino().0;
        let inner = &mut *self.inner.lock();
        if let Some(there) = inner.inodes.get(&number) {
            return Arc::clone(there);
        }
        inode.set_holders(inner.holders.remove(&number).unwrap_or(0));
        inner.inodes.insert(number, Arc::clone(&inode));
        inode
    }

    fn trim(&self, may_go: &dyn Fn(&LiveInode) -> bool) {
        let inner = &mut *self.inner.lock();
        if inner.inodes.len() <= limits::LIVE_INODES {
            return;
        }
        inner.inodes.retain(|number, inode| {
            // A count of one is the table's own; others get theirs under this lock only.
            if Arc::strong_count(inode) > 1 || !may_go(inode) {
                return true;
            }
            // Acquire: what others did to it is seen; pairs with the release when the last of them let it go.
            fence(Ordering::Acquire);
            let holders = inode.holders();
            if holders == 0 {
                return false;
            }
            // Without names it is alive only for its holders, and may be waiting for a name.
            if inode.is_nameless() {
                return true;
            }
            inner.holders.insert(*number, holders);
            false
        });
    }

    fn release_absent(&self, ino: Ino, times: u32) -> bool {
        let inner = &mut *self.inner.lock();
        let Some(holders) = inner.holders.get_mut(&ino.0) else {
            return false;
        };
        *holders = holders.saturating_sub(times);
        if *holders == 0 {
            inner.holders.remove(&ino.0);
        }
        true
    }
}
