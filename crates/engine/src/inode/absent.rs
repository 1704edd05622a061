//! Counts the holders of inodes that are held but not in memory. Such an inode has a name, so it can be loaded again
//! when a holder (a client of a server) uses it.
//!
//! The counts are in shards, each a map under a lock ([`Rank::Leaf`]) that is taken only if the shard has entries. An
//! entry takes 8 bytes and the map's own; inodes without holders have none. All changes of one inode's count are made
//! under its bucket's lock, so an inode is in the table or here, never in both.

use hashbrown::HashMap;
use ondisk::Ino;
use sync::{CachePadded, Guarded, Mutex, Rank};

use super::LiveInode;

const SHARDS: usize = 64;

/// Maps with room for fewer keep it.
const SHRUNK_FROM: usize = 64;

struct Shard {
    /// Entries in `holders`. [leaf; read: under the bucket's lock of an inode that may be among them]
    count: Guarded<usize>,
    /// [leaf]
    holders: Mutex<HashMap<u32, u32>>,
}

/// The holders; see the module.
pub(super) struct Absent {
    shards: Box<[CachePadded<Shard>]>,
}

/// Gives memory back that is not needed any more.
fn shrink(holders: &mut HashMap<u32, u32>) {
    if holders.capacity() > SHRUNK_FROM && holders.len() < holders.capacity() / 8 {
        let twice = holders.len() * 2;
        holders.shrink_to(twice);
    }
}

impl Absent {
    pub(super) fn new() -> Absent {
        let shard = || {
            CachePadded::new(Shard {
                count: Guarded::new(0),
                holders: Mutex::new(Rank::Leaf, HashMap::new()),
            })
        };
        Absent {
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        // Neighbours, which often go together, share a shard.
        let place = (ino.0 >> 6) as usize % SHARDS;
        &self.shards[place]
    }

    /// The inode leaves memory now, if it may: without names it is alive only for its holders, and may be waiting for a
    /// name. No other thread uses it.
    pub(super) fn keep(&self, inode: &LiveInode) -> bool {
        let held = inode.life.holders();
        if held > 0 && inode.is_nameless() {
            return false;
        }
        if held > 0 {
            let shard = self.shard(inode.ino());
            let mut holders = shard.holders.lock();
            holders.insert(inode.ino().0, held);
            shard.count.set(holders.len());
        }
        true
    }

    /// How many hold an inode that comes into memory now; they are no longer counted here.
    pub(super) fn take(&self, ino: Ino) -> u32 {
        let shard = self.shard(ino);
        if shard.count.get() == 0 {
            return 0;
        }
        let mut holders = shard.holders.lock();
        let held = holders.remove(&ino.0).unwrap_or(0);
        shrink(&mut holders);
        shard.count.set(holders.len());
        held
    }

    /// `times` fewer hold an inode that is not in memory; false if none did.
    pub(super) fn release(&self, ino: Ino, times: u32) -> bool {
        let shard = self.shard(ino);
        let mut holders = shard.holders.lock();
        let Some(held) = holders.get_mut(&ino.0) else {
            return false;
        };
        *held = held.saturating_sub(times);
        if *held == 0 {
            holders.remove(&ino.0);
            shrink(&mut holders);
        }
        shard.count.set(holders.len());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_any_more_takes_no_memory() {
        let mut holders: HashMap<u32, u32> = (0..10_000).map(|ino| (ino, 1)).collect();
        for ino in 10..10_000 {
            holders.remove(&ino);
            shrink(&mut holders);
        }
        assert!(holders.capacity() < 200, "{}", holders.capacity());
        assert_eq!(holders.len(), 10);
    }
}
