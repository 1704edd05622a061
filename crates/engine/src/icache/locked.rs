//! The plain table of inodes in memory: a map under one lock ([`Rank::IcacheBucket`]), held for a look.
//!
//! An inode that someone holds may leave memory like any other while it has names; how many hold it stays here, and
//! goes with it when it is loaded again.

use hashbrown::HashMap;
use ondisk::Ino;
use sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use sync::{Arc, Mutex, Rank};

use crate::icache::{InodeTable, LiveInode};

/// The table; see the module.
pub(crate) struct LockedTable {
    /// [icache bucket]
    inner: Mutex<Inner>,
    /// How many inodes are in it. [atomic: Relaxed, hint; written under the lock]
    count: AtomicUsize,
    /// How many there may be before the next trim. [atomic: Relaxed, hint]
    trim_at: AtomicUsize,
    /// How many are kept. [const]
    most: usize,
    /// How many inodes that had changed were let go. [icache bucket; read: any time]
    evictions: AtomicU64,
}

#[derive(Default)]
struct Inner {
    inodes: HashMap<u32, Arc<LiveInode>>,
    /// How many hold an inode that is not in memory; no zeros.
    holders: HashMap<u32, u32>,
}

impl LockedTable {
    /// An empty table that keeps about `most` inodes beyond those in use or not committed.
    pub(crate) fn new(most: usize) -> LockedTable {
        LockedTable {
            inner: Mutex::new(Rank::IcacheBucket, Inner::default()),
            count: AtomicUsize::new(0),
            trim_at: AtomicUsize::new(most),
            most,
            evictions: AtomicU64::new(0),
        }
    }

    /// Whether an inode goes; then how many hold it stays in `holders`.
    fn goes(
        holders: &mut HashMap<u32, u32>,
        inode: &Arc<LiveInode>,
        may_go: &dyn Fn(&LiveInode) -> bool,
    ) -> bool {
        // A count of one is the table's own; others get theirs under this lock only.
        if Arc::strong_count(inode) > 1 || !may_go(inode) {
            return false;
        }
        // Acquire: what others did to it is seen; pairs with the release when the last of them let it go.
        fence(Ordering::Acquire);
        let held = inode.holders();
        // Without names it is alive only for its holders, and may be waiting for a name.
        if held > 0 && inode.is_nameless() {
            return false;
        }
        if held > 0 {
            holders.insert(inode.ino().0, held);
        }
        true
    }
}

impl InodeTable for LockedTable {
    fn find(&self, ino: Ino) -> Option<Arc<LiveInode>> {
        self.inner.lock().inodes.get(&ino.0).cloned()
    }

    fn evictions(&self) -> u64 {
        // Acquire: before the inode is loaded; pairs with the Release in `trim`.
        self.evictions.load(Ordering::Acquire)
    }

    fn insert(&self, inode: Arc<LiveInode>, evictions: Option<u64>) -> Option<Arc<LiveInode>> {
        let number = inode.ino().0;
        let inner = &mut *self.inner.lock();
        if let Some(there) = inner.inodes.get(&number) {
            return Some(Arc::clone(there));
        }
        // Relaxed: written under the lock that is held.
        let now = self.evictions.load(Ordering::Relaxed);
        if evictions.is_some_and(|before| before != now) {
            return None;
        }
        inode.set_holders(inner.holders.remove(&number).unwrap_or(0));
        inner.inodes.insert(number, Arc::clone(&inode));
        // Relaxed: a hint.
        self.count.store(inner.inodes.len(), Ordering::Relaxed);
        Some(inode)
    }

    fn is_full(&self) -> bool {
        // Relaxed: hints, both.
        self.count.load(Ordering::Relaxed) > self.trim_at.load(Ordering::Relaxed)
    }

    fn trim(&self, may_go: &dyn Fn(&LiveInode) -> bool) {
        let Inner { inodes, holders } = &mut *self.inner.lock();
        let mut too_many = inodes.len().saturating_sub(self.most / 4 * 3);
        inodes.retain(|_, inode| {
            if too_many == 0 || !LockedTable::goes(holders, inode, may_go) {
                return true;
            }
            too_many -= 1;
            // Release: who sees it sees the image that the inode left behind; pairs with the Acquire in `evictions`.
            self.evictions
                .fetch_add(u64::from(inode.stamp().0 > 0), Ordering::Release);
            false
        });
        // Relaxed: hints, both. If few could go, the next trim waits until there are a quarter more.
        self.count.store(inodes.len(), Ordering::Relaxed);
        // Relaxed: as above.
        self.trim_at
            .store(self.most.max(inodes.len() / 4 * 5), Ordering::Relaxed);
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
