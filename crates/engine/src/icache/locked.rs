//! The plain table of inodes in memory: a map under one lock ([`Rank::IcacheBucket`]), held for a look.

use hashbrown::HashMap;
use ondisk::Ino;
use sync::{Arc, Mutex, Rank};

use crate::icache::{InodeTable, LiveInode};
use crate::limits;

/// The table; see the module.
pub(crate) struct LockedTable {
    inodes: Mutex<HashMap<u32, Arc<LiveInode>>>,
}

impl LockedTable {
    pub(crate) fn new() -> LockedTable {
        LockedTable {
            inodes: Mutex::new(Rank::IcacheBucket, HashMap::new()),
        }
    }
}

impl InodeTable for LockedTable {
    fn find(&self, ino: Ino) -> Option<Arc<LiveInode>> {
        self.inodes.lock().get(&ino.0).cloned()
    }

    fn insert(&self, inode: Arc<LiveInode>) -> Arc<LiveInode> {
        Arc::clone(self.inodes.lock().entry(inode.ino().0).or_insert(inode))
    }

    fn trim(&self, may_go: &dyn Fn(&LiveInode) -> bool) {
        let mut inodes = self.inodes.lock();
        if inodes.len() > limits::LIVE_INODES {
            // A count of one is the table's own; others get theirs under this lock only.
            inodes.retain(|_, inode| Arc::strong_count(inode) > 1 || !may_go(inode));
        }
    }
}
