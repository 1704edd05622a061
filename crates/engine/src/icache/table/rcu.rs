//! `inode_lookup=rcu`: an inode is found without a lock and without writing a line that others read, but for its own
//! count. Added, removed and, after a hand's mark, counted, it is under the lock of its bucket alone.

use ondisk::Ino;
use sync::Arc;

use super::{InodesByNumber, InodesInMemory, LiveInode, LookOutcome, Stale, Trimmed};

/// The form; see the module.
pub(super) struct RcuTable<'a>(pub(super) &'a InodesInMemory);

impl InodesByNumber for RcuTable<'_> {
    fn find(&self, ino: Ino) -> Option<Arc<LiveInode>> {
        self.0.table.find(ino.0.into())
    }

    fn find_by(&self, ino: Ino, test: &dyn Fn(&LiveInode) -> bool) -> LookOutcome {
        let mut refused = false;
        let found = self.0.table.find_by(ino.0.into(), |inode| {
            let fits = test(inode);
            refused = !fits;
            fits
        });
        match found {
            Some(inode) => LookOutcome::Found(inode),
            None if refused => LookOutcome::Refused,
            None => LookOutcome::Absent,
        }
    }

    fn look(&self, ino: Ino, look: &mut dyn FnMut(&LiveInode)) -> bool {
        self.0.table.look(ino.0.into(), look).is_some()
    }

    fn insert(&self, inode: Arc<LiveInode>, version: Option<u32>) -> Result<Arc<LiveInode>, Stale> {
        let inodes = self.0;
        inodes.table.locked(inode.ino().0.into(), |bucket| {
            if let Some(there) = bucket.get() {
                inodes.lost.add(1);
                return Ok(there);
            }
            if version.is_some_and(|version| version != bucket.version()) {
                inodes.stale.add(1);
                return Err(Stale);
            }
            inode.life.set_holders(inodes.absent.take(inode.ino()));
            bucket.insert(Arc::clone(&inode));
            Ok(inode)
        })
    }

    fn release_absent(&self, ino: Ino, times: u32) -> bool {
        let inodes = self.0;
        // Under the bucket's lock it is in memory or among the absent.
        inodes.table.locked(ino.0.into(), |bucket| {
            bucket.get().is_none() && inodes.absent.release(ino, times)
        })
    }

    fn trim(&self, want: usize, may_go: &mut dyn FnMut(&LiveInode) -> bool) -> Trimmed {
        let hands = &self.0.hands;
        let first = self.0.first_hand();
        let mut trimmed = Trimmed::default();
        for hand in (first..first + hands.len()).map(|hand| &hands[hand % hands.len()]) {
            let Some(mut hand) = hand.try_lock() else {
                // Another moves this one.
                trimmed.is_part = true;
                continue;
            };
            let swept = (self.0.table).sweep(&mut hand, want - trimmed.gone, may_go);
            trimmed.gone += swept.gone;
            // What keeps one hand waiting does so with all.
            trimmed.is_part |= swept.is_blocked;
            if trimmed.gone >= want || swept.is_blocked {
                break;
            }
        }
        trimmed
    }
}
