//! Committed images that are not written home yet, and which transactions the log still needs.
//!
//! One lock ([`Rank::JournalLists`]), held for work on the tables only. A checkpoint writes the newest committed image
//! of each block, and older images are dropped. The log needs a transaction as long as one of its blocks waits for the
//! checkpoint and has its newest copy in that transaction; the tail moves over the others, from the oldest on.

use std::collections::{HashMap, HashSet, VecDeque};

use ondisk::{FsBlock, Tid};
use sync::{Arc, CachePadded, Condvar, Hint, Mutex, Rank};

/// A block with a copy in the log.
struct Copy {
    /// The transaction that holds the newest copy.
    tid: Tid,
    /// The block's image; `None` once it is written home or cancelled.
    image: Option<Arc<[u8]>>,
}

/// A transaction in the log.
struct Logged {
    tid: Tid,
    /// First block in the log.
    start: u32,
    /// Blocks that the transaction takes in the log.
    blocks: u32,
    /// How many of its blocks have their newest copy in this transaction and are not home.
    waiting: usize,
    /// All its blocks, which leave the table together with it.
    members: Vec<FsBlock>,
}

/// Where the log begins after a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogTail {
    /// The oldest transaction still needed and its first block; `None` when the log is empty.
    pub(crate) oldest: Option<(Tid, u32)>,
    /// Blocks of the log that are free once the tail is on disk.
    pub(crate) freed: u64,
}

#[derive(Default)]
struct Lists {
    copies: HashMap<FsBlock, Copy>,
    logged: VecDeque<Logged>,
    /// Blocks that a checkpoint is writing home.
    in_flight: HashSet<FsBlock>,
    image_bytes: u64,
}

/// The tables; see the module.
pub(crate) struct CopyTables {
    /// [journal lists]
    lists: Mutex<Lists>,
    landed: Condvar,
    /// A copy of the lists' own count, for readers that need nothing else. [written under the lists]
    image_bytes: CachePadded<Hint<u64>>,
}

impl CopyTables {
    pub(crate) fn new() -> CopyTables {
        CopyTables {
            lists: Mutex::new(Rank::JournalLists, Lists::default()),
            landed: Condvar::new(),
            image_bytes: CachePadded::new(Hint::new(0)),
        }
    }

    /// Bytes of images kept for the checkpoint.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.image_bytes.get()
    }

    /// Publishes the lists' count of bytes.
    fn publish(&self, lists: &Lists) {
        self.image_bytes.set(lists.image_bytes);
    }

    /// Whether the log holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.lists.lock().logged.is_empty()
    }

    /// The newest committed image of a block, if it is not home.
    pub(crate) fn newest(&self, block: FsBlock) -> Option<Arc<[u8]>> {
        self.lists.lock().copies.get(&block)?.image.clone()
    }

    /// Whether the live log holds a copy of the block, home or not. Such a block must be revoked when it is freed.
    pub(crate) fn has_copy(&self, block: FsBlock) -> bool {
        self.lists.lock().copies.contains_key(&block)
    }

    /// Records a durable transaction, whose images become the newest. `forgotten` are the blocks that it freed. The
    /// caller holds the log's lock, so that the tail does not pass a transaction that is not in the table yet.
    pub(crate) fn committed(
        &self,
        tid: Tid,
        start: u32,
        blocks: u32,
        images: Vec<(FsBlock, Arc<[u8]>)>,
        forgotten: &[FsBlock],
    ) {
        let mut lists = self.lists.lock();
        let members = images.iter().map(|(block, _)| *block).collect();
        lists.logged.push_back(Logged {
            tid,
            start,
            blocks,
            waiting: 0,
            members,
        });
        for (block, image) in images {
            lists.image_bytes += image.len() as u64;
            let before = lists.copies.insert(
                block,
                Copy {
                    tid,
                    image: Some(image),
                },
            );
            lists.count(tid, 1);
            if let Some(before) = before {
                lists.no_longer_waits(&before);
            }
        }
        for block in forgotten {
            let cancelled = lists
                .copies
                .get_mut(block)
                .filter(|copy| copy.tid != tid)
                .map(|copy| Copy {
                    tid: copy.tid,
                    image: copy.image.take(),
                });
            if let Some(copy) = cancelled {
                lists.no_longer_waits(&copy);
            }
        }
        self.publish(&lists);
    }

    /// Forgets the image of a block that is being freed. This is a mistake (`CancelledAtFree`), because the freeing is
    /// not durable.
    pub(crate) fn cancel(&self, block: FsBlock) {
        let mut lists = self.lists.lock();
        let cancelled = lists.copies.get_mut(&block).map(|copy| Copy {
            tid: copy.tid,
            image: copy.image.take(),
        });
        if let Some(copy) = cancelled {
            lists.no_longer_waits(&copy);
        }
    }

    /// Waits until none of these blocks is being written home. The caller does not hold the log's lock, which the
    /// checkpoint needs to finish.
    pub(crate) fn wait_until_landed(&self, blocks: &[FsBlock]) {
        let mut lists = self.lists.lock();
        while blocks.iter().any(|block| lists.in_flight.contains(block)) {
            self.landed.wait(&mut lists);
        }
    }

    /// Takes up to `most` blocks to write home, oldest transactions first, in ascending order of blocks.
    pub(crate) fn begin_batch(&self, most: usize) -> Vec<(FsBlock, Tid, Arc<[u8]>)> {
        let mut lists = self.lists.lock();
        let mut batch = Vec::new();
        let oldest: Vec<FsBlock> = lists
            .logged
            .iter()
            .flat_map(|logged| logged.members.iter().copied())
            .collect();
        for block in oldest {
            if batch.len() == most {
                break;
            }
            let Some(Copy {
                tid,
                image: Some(image),
            }) = lists.copies.get(&block)
            else {
                continue;
            };
            let item = (block, *tid, Arc::clone(image));
            if lists.in_flight.insert(block) {
                batch.push(item);
            }
        }
        batch.sort_unstable_by_key(|(block, _, _)| *block);
        batch
    }

    /// Ends a batch. With `is_home` it is home and flushed; otherwise it was not written. Returns the new tail. The
    /// caller holds the log's lock, and keeps it until the tail is on disk.
    pub(crate) fn end_batch(&self, batch: &[(FsBlock, Tid, Arc<[u8]>)], is_home: bool) -> LogTail {
        let mut lists = self.lists.lock();
        for (block, tid, _) in batch {
            lists.in_flight.remove(block);
            let landed = lists
                .copies
                .get_mut(block)
                .filter(|copy| is_home && copy.tid == *tid)
                .map(|copy| Copy {
                    tid: *tid,
                    image: copy.image.take(),
                });
            if let Some(copy) = landed {
                lists.no_longer_waits(&copy);
            }
        }
        self.landed.notify_all();
        self.publish(&lists);
        lists.advance()
    }
}

impl Lists {
    fn count(&mut self, tid: Tid, change: isize) {
        if let Some(logged) = self
            .logged
            .iter_mut()
            .rev()
            .find(|logged| logged.tid == tid)
        {
            logged.waiting = logged.waiting.saturating_add_signed(change);
        }
    }

    /// Counts that a copy no longer waits for the checkpoint, because it was replaced by a newer one, written home or
    /// cancelled.
    fn no_longer_waits(&mut self, copy: &Copy) {
        if let Some(image) = &copy.image {
            self.image_bytes -= image.len() as u64;
            self.count(copy.tid, -1);
        }
    }

    /// Drops transactions that nothing waits for, from the oldest on.
    fn advance(&mut self) -> LogTail {
        let mut freed = 0;
        while let Some(logged) = self.logged.pop_front_if(|logged| logged.waiting == 0) {
            freed += u64::from(logged.blocks);
            for block in logged.members {
                if self
                    .copies
                    .get(&block)
                    .is_some_and(|copy| copy.tid == logged.tid)
                {
                    self.copies.remove(&block);
                }
            }
        }
        LogTail {
            oldest: self.logged.front().map(|logged| (logged.tid, logged.start)),
            freed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(byte: u8) -> Arc<[u8]> {
        vec![byte; 4].into()
    }

    #[test]
    fn a_transaction_leaves_when_its_newest_copies_are_home() {
        let table = CopyTables::new();
        let (a, b) = (FsBlock(10), FsBlock(20));
        table.committed(Tid(1), 1, 5, vec![(a, image(1)), (b, image(1))], &[]);
        table.committed(Tid(2), 6, 4, vec![(a, image(2))], &[]);
        let first = table.begin_batch(1);
        assert_eq!(first, [(a, Tid(2), image(2))]);
        // Block b of transaction 1 is not home.
        assert_eq!(
            table.end_batch(&first, true),
            LogTail {
                oldest: Some((Tid(1), 1)),
                freed: 0
            }
        );
        let second = table.begin_batch(10);
        assert_eq!(
            table.end_batch(&second, true),
            LogTail {
                oldest: None,
                freed: 9
            }
        );
        assert!(!table.has_copy(a) && table.image_bytes() == 0);
    }

    #[test]
    fn a_freed_block_is_cancelled_by_the_freeing_transaction_only() {
        let table = CopyTables::new();
        let block = FsBlock(10);
        table.committed(Tid(1), 1, 3, vec![(block, image(1))], &[]);
        assert!(table.newest(block).is_some());
        table.committed(Tid(2), 4, 3, vec![(FsBlock(11), image(2))], &[block]);
        assert!(table.newest(block).is_none());
        // The block's copy is still in the log: if the block is freed again, it must be revoked.
        assert!(table.has_copy(block));
        let batch = table.begin_batch(10);
        assert_eq!(batch.len(), 1);
        assert_eq!(table.end_batch(&batch, true).oldest, None);
        assert!(!table.has_copy(block));
    }

    #[test]
    fn a_batch_that_failed_is_still_waiting() {
        let table = CopyTables::new();
        table.committed(Tid(1), 1, 3, vec![(FsBlock(10), image(1))], &[]);
        let batch = table.begin_batch(10);
        assert_eq!(table.end_batch(&batch, false).oldest, Some((Tid(1), 1)));
        assert_eq!(table.begin_batch(10).len(), 1);
    }
}
