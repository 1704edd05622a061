//! `inode_lookup=locked`: the plain form. Whatever is done with the table is done under one lock
//! ([`sync::Rank::IcacheTable`]), a trim as a whole.

use ondisk::Ino;
use sync::Arc;

use super::rcu::RcuTable;
use super::{InodesByNumber, InodesInMemory, LiveInode, LookOutcome, Stale, Trimmed};

/// The form; see the module.
pub(super) struct LockedTable<'a>(pub(super) &'a InodesInMemory);

impl InodesByNumber for LockedTable<'_> {
    fn find(&self, ino: Ino) -> Option<Arc<LiveInode>> {
        let _whole = self.0.whole.lock();
        RcuTable(self.0).find(ino)
    }

    fn find_by(&self, ino: Ino, test: &dyn Fn(&LiveInode) -> bool) -> LookOutcome {
        let _whole = self.0.whole.lock();
        RcuTable(self.0).find_by(ino, test)
    }

    fn look(&self, ino: Ino, look: &mut dyn FnMut(&LiveInode)) -> bool {
        let _whole = self.0.whole.lock();
        RcuTable(self.0).look(ino, look)
    }

    fn insert(&self, inode: Arc<LiveInode>, version: Option<u32>) -> Result<Arc<LiveInode>, Stale> {
        let _whole = self.0.whole.lock();
        RcuTable(self.0).insert(inode, version)
    }

    fn release_absent(&self, ino: Ino, times: u32) -> bool {
        let _whole = self.0.whole.lock();
        RcuTable(self.0).release_absent(ino, times)
    }

    fn trim(&self, want: usize, may_go: &mut dyn FnMut(&LiveInode) -> bool) -> Trimmed {
        let _whole = self.0.whole.lock();
        RcuTable(self.0).trim(want, may_go)
    }
}
