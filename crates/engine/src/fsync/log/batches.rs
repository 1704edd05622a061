//! The log of one transaction: the closures that fsyncs put into the tree, and the log commits that they share.
//!
//! An fsync puts its closure into the tree ([`FsyncLog::add`]), under the locks of the closure's inodes and a handle of
//! the transaction, and gets the number of a batch. Then, with no lock held, it asks for that batch to be on disk
//! ([`FsyncLog::sync`]). One leader encodes the batch, writes and flushes it for all threads; a thread that asks for a
//! batch that is on disk returns without a lock.
//!
//! A leader works in steps of one flush each ([`lead`]). An fsync has no closure to put in if only data in place were
//! written. It takes part in the next step even so if steps take long enough for other threads to arrive meanwhile
//! ([`FsyncLog::gathers`], [`FsyncLog::join`]), because the device would execute concurrent flushes one after the
//! other.
//!
//! Locks: adding holds [`Rank::LogBatch`] shared, and the leader holds it alone while it encodes, so that a batch has
//! whole closures only; the tree's own locks come after it. [`Rank::LogLeader`] is held briefly, never across I/O.
//!
//! CRASH: each log commit is complete (it has its TAIL) or is ignored, and is valid only after those before it. The log
//! ends with its transaction's full commit: [`FsyncLog::close`] is called before the commit record is written, so no
//! log commit is written after it.
//!
//! Interleavings: `threads_that_fsync_at_once_find_their_closures_whole_in_the_area` and
//! `threads_that_write_and_fsync_never_show_data_that_may_be_lost`, under schedules. The atomic words live in the log,
//! which an `Arc` keeps.

use ondisk::{Corrupt, Ino, Tid};
use sync::{Condvar, Counter, Guarded, Hint, Lanes, Mutex, Rank, RwLock, Stamp};

use crate::fsync::log::item::{
    BatchRanges, Item, ItemPart, Key, Logged, NameItem, RANGES_ROOM, Range,
};
use crate::fsync::log::records::BatchRecords;
use crate::fsync::log::tree::{LogTree, TreeCounters};
use crate::inode::Batch;

use crate::core::variants::LogUpdate;

mod lead;

use lead::Leader;
pub(crate) use lead::{LogLead, StepIo};

/// Bytes of a node of the tree; the measurement is in `results/fsync.md`.
const NODE_BYTES: usize = 8192;

/// One inode of a closure. It has at least one link.
#[derive(Clone, Debug)]
pub(crate) struct InodeState {
    /// Its number.
    pub(crate) ino: Ino,
    /// Its fields as in the inode table ([`ondisk::inode::fields`]).
    pub(crate) fields: Box<[u8]>,
    /// Whether no full commit contains it.
    pub(crate) is_new: bool,
    /// Whether it was put into this log before and has been in memory ever since.
    pub(crate) is_known: bool,
    /// Its blocks that changed since it was last put into this log; if it never was, since the last full commit.
    pub(crate) ranges: Vec<Range>,
    /// Whether more of the file can be read than before, so that its data must be durable before the record is.
    pub(crate) shows_data: bool,
}

/// One name of a closure.
#[derive(Clone, Debug)]
pub(crate) struct NameState {
    /// The directory.
    pub(crate) parent: Ino,
    /// The name.
    pub(crate) name: Box<[u8]>,
    /// The inode that the name stands for in the last full commit.
    pub(crate) base: Option<Ino>,
    /// The inode that the name stands for now.
    pub(crate) now: Option<Ino>,
}

/// Inodes and names that must become durable together.
#[derive(Clone, Default, Debug)]
pub(crate) struct Closure {
    /// Inodes.
    pub(crate) inodes: Vec<InodeState>,
    /// Names.
    pub(crate) names: Vec<NameState>,
}

/// Why a batch is not logged: the transaction must be committed in full instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unlogged {
    /// The transaction's full commit is under way, or the log was given up before.
    Closed,
    /// The area has no room.
    Full,
    /// The area could not be written; the log is given up.
    Failed(String),
    /// What was logged is inconsistent; the log is given up.
    Corrupt(Corrupt),
}

/// Counts since the file system was mounted, over all its logs.
#[derive(Debug, Default)]
pub(crate) struct LogStatistics {
    /// Log commits written.
    pub(crate) log_commits: Counter,
    /// Blocks of the log commits.
    pub(crate) log_blocks: Counter,
    /// Log commits of one block.
    pub(crate) one_block: Counter,
    /// Callers whose batch was already on disk.
    pub(crate) already_logged: Counter,
    /// Callers whose batch another thread wrote.
    pub(crate) followers: Counter,
    /// Callers that took part only because they had overwritten data.
    pub(crate) joined: Counter,
    /// Items that were expected in the tree and were not there, or the reverse; they were logged in full.
    pub(crate) surprises: Counter,
}

/// The log; see the module.
pub(crate) struct FsyncLog {
    tid: Tid,
    block_bytes: usize,
    /// Blocks of the area that may be written.
    area_blocks: u32,
    update: LogUpdate,
    tree: LogTree<Key, Item>,
    /// The running batch. Held shared by threads that add to it, exclusively by the thread that encodes it. [log batch]
    running: RwLock<Batch>,
    /// Whether the running batch shows data that may not be durable. [set with `running` shared, taken with it
    /// exclusive]
    shows_data: Guarded<bool>,
    /// Closures in the running batch, and threads that joined it. [set to 0 with `running` exclusive]
    members: Hint<u64>,
    /// Threads that joined the running batch without a closure. [added to with `running` shared, set to 0 with it
    /// exclusive]
    joined: Guarded<u64>,
    /// How many members a leader waits for; `u64::MAX` while no leader waits. [atomic: Relaxed, hint; written by the
    /// leader]
    awaited: Hint<u64>,
    /// The lock under which a leader waits for members. [leaf]
    gathering: Mutex<()>,
    arrived: Condvar,
    /// Whether only a part of a closure was put in. [written with `running` shared, never reset]
    is_broken: Guarded<bool>,
    /// Keys that each thread put into the running batch. [epoch list]
    touched: Lanes<Touched>,
    /// The last batch on disk. [atomic: written by the leader]
    synced: Stamp,
    /// The last batch whose members' data are durable. [atomic: written by the leader]
    flushed: Stamp,
    /// Whether the last step took so long that a leader waits for members. [atomic: Relaxed, hint; written by the
    /// leader]
    is_slow: Hint<bool>,
    /// [log leader]
    leader: Mutex<Leader>,
    changed: Condvar,
}

struct Touched(Mutex<Vec<Key>>);

impl Default for Touched {
    fn default() -> Touched {
        Touched(Mutex::new(Rank::EpochList, Vec::new()))
    }
}

impl FsyncLog {
    /// The empty log of a transaction.
    #[must_use]
    pub(crate) fn new(
        tid: Tid,
        block_bytes: usize,
        area_blocks: u32,
        update: LogUpdate,
    ) -> FsyncLog {
        FsyncLog {
            tid,
            block_bytes,
            area_blocks,
            update,
            tree: LogTree::new(NODE_BYTES, Item::weight),
            running: RwLock::new(Rank::LogBatch, Batch(1)),
            shows_data: Guarded::new(false),
            members: Hint::new(0),
            joined: Guarded::new(0),
            awaited: Hint::new(u64::MAX),
            gathering: Mutex::new(Rank::Leaf, ()),
            arrived: Condvar::new(),
            is_broken: Guarded::new(false),
            touched: Lanes::new(),
            synced: Stamp::new(0),
            flushed: Stamp::new(0),
            is_slow: Hint::new(false),
            leader: Mutex::new(Rank::LogLeader, Leader::default()),
            changed: Condvar::new(),
        }
    }

    /// The tree's counts.
    #[must_use]
    pub(crate) fn counters(&self) -> &TreeCounters {
        self.tree.counters()
    }

    /// Puts a closure into the running batch. The caller has the locks of its inodes and a handle of the transaction,
    /// so the closure does not change meanwhile and the transaction is not sealed.
    ///
    /// # Errors
    /// `Closed`, if two names have the same hash. The log is closed then, because only a part of the closure is in it.
    pub(crate) fn add(
        &self,
        closure: &Closure,
        statistics: &LogStatistics,
    ) -> Result<Batch, Unlogged> {
        let running = self.running.read();
        let batch = *running;
        let mut keys = Vec::with_capacity(closure.names.len() + 2 * closure.inodes.len());
        let mut is_whole = true;
        for inode in &closure.inodes {
            self.add_inode(inode, batch, statistics, &mut keys);
            if inode.shows_data || !inode.ranges.is_empty() {
                self.shows_data.set(true);
            }
        }
        for name in &closure.names {
            is_whole &= self.add_name(name, batch, &mut keys);
        }
        self.touched.mine().0.lock().append(&mut keys);
        let members = self.count_in();
        if !is_whole {
            self.is_broken.set(true);
        }
        // Not released earlier, because the batch may be encoded from here on.
        drop(running);
        self.tell_leader(members);
        if is_whole {
            Ok(batch)
        } else {
            Err(Unlogged::Closed)
        }
    }

    /// Whether steps take so long that a leader waits for members. An fsync that has no closure then joins a step
    /// instead of flushing the device itself.
    #[must_use]
    pub(crate) fn gathers(&self) -> bool {
        self.is_slow.get()
    }

    /// Takes part in the running batch without a closure: when the batch is flushed ([`FsyncLog::flush`]), the data
    /// that the caller wrote before are durable.
    pub(crate) fn join(&self) -> Batch {
        let running = self.running.read();
        let batch = *running;
        self.joined.add(1);
        let members = self.count_in();
        drop(running);
        self.tell_leader(members);
        batch
    }

    /// Counts a member of the running batch, which the caller holds shared; returns the number of members.
    fn count_in(&self) -> u64 {
        self.members.add(1) + 1
    }

    /// Wakes the leader if it waits for this number of members.
    fn tell_leader(&self, members: u64) {
        if members >= self.awaited.get() {
            // A leader that already waits is woken; one that is about to wait checks the number again under this lock.
            drop(self.gathering.lock());
            self.arrived.notify_all();
        }
    }

    fn add_inode(
        &self,
        inode: &InodeState,
        batch: Batch,
        statistics: &LogStatistics,
        keys: &mut Vec<Key>,
    ) {
        let key = |part| Key {
            ino: inode.ino,
            part,
        };
        let again = |item: &mut Item| {
            if let Item::Record(logged) = item {
                if logged.fields.len() == inode.fields.len() {
                    logged.fields.copy_from_slice(&inode.fields)
                } else {
                    logged.fields.clone_from(&inode.fields)
                }
                logged.stamp = batch;
            }
        };
        let is_in_place = self.update == LogUpdate::InPlace && inode.is_known;
        let is_done = is_in_place && self.tree.update(&key(ItemPart::Record), again).is_some();
        if !is_done {
            let item = Item::Record(Logged {
                fields: inode.fields.clone(),
                born: Some(batch).filter(|_| inode.is_new),
                stamp: batch,
            });
            let was_there = self
                .tree
                .insert(key(ItemPart::Record), item, |item, _| again(item));
            statistics
                .surprises
                .add(u64::from(was_there != inode.is_known));
        }
        keys.push(key(ItemPart::Record));
        if !inode.ranges.is_empty() {
            self.add_ranges(key(ItemPart::Ranges), &inode.ranges, batch);
            keys.push(key(ItemPart::Ranges));
        }
    }

    fn add_ranges(&self, key: Key, new: &[Range], batch: Batch) {
        let take_in = |item: &mut Item| match item {
            Item::Ranges(ranges) if ranges.most_with(batch, new) <= ranges.room => {
                ranges.take_in(batch, new);
                true
            }
            _ => false,
        };
        if self.update == LogUpdate::InPlace && self.tree.update(&key, take_in) == Some(true) {
            return;
        }
        let room = self
            .tree
            .get(&key, |item| match item {
                Item::Ranges(ranges) => ranges.most_with(batch, new),
                _ => 0,
            })
            .unwrap_or(new.len())
            .max(RANGES_ROOM)
            .next_power_of_two();
        let mut ranges = BatchRanges::new(batch, room);
        ranges.take_in(batch, new);
        self.tree.insert(key, Item::Ranges(ranges), |item, _| {
            if let Item::Ranges(ranges) = item {
                ranges.room = ranges.room.max(room);
                ranges.take_in(batch, new);
            }
        });
    }

    /// Adds the name; returns false if the tree has another name with the same hash.
    fn add_name(&self, state: &NameState, batch: Batch, keys: &mut Vec<Key>) -> bool {
        let key = Key {
            ino: state.parent,
            part: ItemPart::Name(hash(&state.name)),
        };
        let again = |item: &mut Item| match item {
            Item::Name(name) if name.name == state.name => {
                if name.stamp != batch {
                    // The batches before this one are already in the area.
                    name.logged = name.now;
                    name.stamp = batch;
                }
                name.now = state.now;
                true
            }
            _ => false,
        };
        keys.push(key);
        if self.update == LogUpdate::InPlace
            && let Some(is_it) = self.tree.update(&key, again)
        {
            return is_it;
        }
        let item = Item::Name(NameItem {
            name: state.name.clone(),
            logged: state.base,
            now: state.now,
            stamp: batch,
        });
        let mut is_it = true;
        self.tree.insert(key, item, |item, _| is_it = again(item));
        is_it
    }
}

fn gather(said: &mut BatchRecords, key: Key, item: &Item) {
    match item {
        Item::Record(logged) => {
            said.inodes.insert(key.ino, logged.clone());
        }
        Item::Ranges(ranges) => {
            said.ranges.insert(key.ino, ranges.ranges.clone());
        }
        Item::Name(name) => said.names.push((key.ino, name.clone())),
    }
}

/// FNV-1a. Two names with one hash cost a full commit and nothing else.
fn hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod step_tests;
