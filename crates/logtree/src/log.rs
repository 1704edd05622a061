//! The log of one transaction: what fsyncs put into the tree, and the log commits that they share.
//!
//! An fsync puts its closure in ([`FsyncLog::add`]), under the locks of the closure's inodes and a handle of the
//! transaction, and is told its batch; then, with nothing held, it asks for that batch to be on disk
//! ([`FsyncLog::sync`]). One leader encodes the batch and writes and flushes it for all; who comes for a batch that is
//! on disk returns without a lock.
//!
//! A leader goes by steps of one flush each. Before the flush it ends the running batch: if that one shows no data it
//! is written before the flush, too; if it does, the flush makes its data durable, and it is written in the next step.
//! So each flush may serve two batches, the data of one and the blocks of the one before, and who waits for new blocks
//! of a file waits for two flushes that begin after its call, however many there are. Whom the last flush let go often
//! comes back at once: the leader gives them an eighth of a flush's time to do so, for who comes too late waits for a
//! whole one. Who is alone waits for nobody.
//!
//! Locks: adding shares [`Rank::LogBatch`], which the leader takes alone while it encodes, so that a batch holds whole
//! closures only; then the tree's own. [`Rank::LogLeader`] is held for a look, never across I/O.
//!
//! What a crash leaves: each log commit is there whole or not at all (its TAIL), after those before it. The log ends
//! with its transaction's full commit: [`FsyncLog::close`] comes before the commit record is written, so no log commit
//! is written behind it.

use std::collections::BTreeSet;

use ondisk::{Corrupt, Ino, Tid};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::clock::{self, Duration};
use sync::{Condvar, Counter, Lanes, Mutex, Rank, RwLock};

use crate::area::Packer;
use crate::item::{Batch, Item, Key, Logged, Name, Part, RANGES_ROOM, Range, Ranges};
use crate::records::Said;
use crate::tree::{Counters, Tree};

/// Bytes of the tree's nodes: see the measurement in `docs/logtree.md`.
const NODE_BYTES: usize = 8192;

/// The part of a flush's time that a leader waits for others, at most so long; and the least that is worth it: below it
/// a switch to another thread takes as long.
const PATIENCE: u32 = 8;
const LONGEST_WAIT: Duration = Duration::from_millis(2);
const SHORTEST_WAIT: Duration = Duration::from_micros(10);

/// How an item that is there is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogUpdate {
    /// In place, with its leaf alone locked for writing (`inplace`).
    InPlace,
    /// As if it were not there: the leaf's parent is locked for writing, and a full leaf splits (`insert`).
    Insert,
}

/// One inode of a closure, with at least one link.
#[derive(Clone, Debug)]
pub struct InodeState {
    /// Its number.
    pub ino: Ino,
    /// Its fields as in the inode table ([`ondisk::inode::fields`]).
    pub fields: Box<[u8]>,
    /// No full commit has it.
    pub is_new: bool,
    /// It was put into this log before and has been in memory ever since.
    pub is_known: bool,
    /// Its blocks that changed since it was put into this log last, or if it never was, since the last full commit.
    pub ranges: Vec<Range>,
    /// Whether more of the file can be read than before, so that its data must be durable before the record is.
    pub shows_data: bool,
}

/// One name of a closure.
#[derive(Clone, Debug)]
pub struct NameState {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: Box<[u8]>,
    /// What it stands for in the last full commit.
    pub base: Option<Ino>,
    /// What it stands for now.
    pub now: Option<Ino>,
}

/// What must be on disk together.
#[derive(Clone, Default, Debug)]
pub struct Closure {
    /// Inodes.
    pub inodes: Vec<InodeState>,
    /// Names.
    pub names: Vec<NameState>,
}

/// Where the log is written: the fast-commit area, on the journal's device.
pub trait Area {
    /// Writes whole blocks from this one of the area's on. Then flushes, so that these blocks are durable, and all data
    /// that were written before the call.
    ///
    /// # Errors
    /// Why they are not.
    fn write(&self, first: u32, blocks: &[u8]) -> Result<(), String>;

    /// Makes all data durable that were written before the call.
    ///
    /// # Errors
    /// Why they are not.
    fn flush_data(&self) -> Result<(), String>;

    /// Blocks of the area that may be written.
    fn blocks(&self) -> u32;
}

/// Why a batch is not logged: the transaction must be committed in full instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unlogged {
    /// The transaction's full commit is under way, or the log was given up before.
    Closed,
    /// The area has no room.
    Full,
    /// The area could not be written; the log is given up.
    Failed(String),
    /// What was logged makes no sense; the log is given up.
    Corrupt(Corrupt),
}

/// How often what was done, since the file system was mounted: one for all its logs.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Log commits written.
    pub log_commits: Counter,
    /// Their blocks.
    pub log_blocks: Counter,
    /// Log commits of one block.
    pub one_block: Counter,
    /// Callers whose batch was on disk before they asked.
    pub already_logged: Counter,
    /// Callers for whom another led.
    pub followers: Counter,
    /// Items that were known to be there and were not, or the reverse: logged in full.
    pub surprises: Counter,
}

/// The log; see the module.
pub struct FsyncLog {
    tid: Tid,
    block_bytes: usize,
    update: LogUpdate,
    tree: Tree<Key, Item>,
    /// Shared by who adds; alone for who encodes. What it holds: the running batch. [log batch]
    running: RwLock<Batch>,
    /// The running batch shows data that may not be durable. [atomic: Relaxed, set with `running` shared, taken with it
    /// alone]
    shows_data: AtomicBool,
    /// Closures in the running batch. [atomic: Relaxed, hint; set to 0 with `running` alone]
    members: AtomicU64,
    /// How many members a leader waits for; most of the time nobody does. [atomic: Relaxed, hint]
    awaited: AtomicU64,
    /// What it waits under. [leaf]
    gathering: Mutex<()>,
    arrived: Condvar,
    /// A closure is there in part. [atomic: Relaxed, written with `running` shared, never taken back]
    is_broken: AtomicBool,
    /// Keys that each thread put into the running batch. [epoch list]
    touched: Lanes<Touched>,
    /// The last batch on disk. [atomic: written by the leader]
    synced: AtomicU64,
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

/// A batch that ended.
struct Encoded {
    batch: Batch,
    /// Closures in it.
    members: u64,
    /// Whole blocks.
    bytes: Vec<u8>,
    /// Data must be durable before it is written.
    shows_data: bool,
}

/// What a step did.
struct Stepped {
    /// Blocks of the area that it wrote.
    blocks: u32,
    ready: Option<Encoded>,
    expected: u64,
    /// Closures in what it wrote.
    closures: u64,
}

/// What there was of a log that ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The area was written: its first block is to be wiped once the full commit is durable.
    pub is_touched: bool,
    /// Closures that are in its log commits.
    pub closures: u64,
}

#[derive(Default)]
struct Leader {
    is_leading: bool,
    is_closed: bool,
    /// Blocks of the area in use.
    used: u32,
    /// A batch that ended and whose data are durable, to be written next.
    ready: Option<Encoded>,
    /// Closures that the running batch will have when all are back whom the last flush let go.
    expected: u64,
    /// How long the last step took.
    took: Duration,
    /// Whether anything was written there, be it in vain.
    is_touched: bool,
    /// Closures in what was written.
    closures: u64,
}

impl FsyncLog {
    /// An empty log of a transaction.
    #[must_use]
    pub fn new(tid: Tid, block_bytes: usize, update: LogUpdate) -> FsyncLog {
        FsyncLog {
            tid,
            block_bytes,
            update,
            tree: Tree::new(NODE_BYTES),
            running: RwLock::new(Rank::LogBatch, Batch(1)),
            shows_data: AtomicBool::new(false),
            members: AtomicU64::new(0),
            awaited: AtomicU64::new(u64::MAX),
            gathering: Mutex::new(Rank::Leaf, ()),
            arrived: Condvar::new(),
            is_broken: AtomicBool::new(false),
            touched: Lanes::new(),
            synced: AtomicU64::new(0),
            leader: Mutex::new(Rank::LogLeader, Leader::default()),
            changed: Condvar::new(),
        }
    }

    /// The transaction.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// What the tree counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.tree.counters()
    }

    /// Puts a closure into the running batch. The caller has the locks of its inodes and a handle of the transaction,
    /// so that nothing of it changes meanwhile and the transaction is not sealed.
    ///
    /// # Errors
    /// `Closed`, when two names have one hash: then nobody may log any more, as the closure is there in part.
    pub fn add(&self, closure: &Closure, statistics: &Statistics) -> Result<Batch, Unlogged> {
        let running = self.running.read();
        let batch = *running;
        let mut keys = Vec::with_capacity(closure.names.len() + 2 * closure.inodes.len());
        let mut is_whole = true;
        for inode in &closure.inodes {
            self.add_inode(inode, batch, statistics, &mut keys);
            if inode.shows_data || !inode.ranges.is_empty() {
                // Relaxed: the lock on the running batch orders it.
                self.shows_data.store(true, Ordering::Relaxed);
            }
        }
        for name in &closure.names {
            is_whole &= self.add_name(name, batch, &mut keys);
        }
        self.touched.mine().0.lock().append(&mut keys);
        // Relaxed: hints for `wait_for_members`, both.
        let members = self.members.fetch_add(1, Ordering::Relaxed) + 1;
        if !is_whole {
            // Relaxed: the lock on the running batch orders it before the look in `end_batch`.
            self.is_broken.store(true, Ordering::Relaxed);
        }
        // Not before: from here on the batch may be encoded.
        drop(running);
        // Relaxed: as above.
        if members >= self.awaited.load(Ordering::Relaxed) {
            // The leader is waiting, or not yet: then it looks once more.
            drop(self.gathering.lock());
            self.arrived.notify_all();
        }
        match is_whole {
            true => Ok(batch),
            false => Err(Unlogged::Closed),
        }
    }

    fn add_inode(
        &self,
        inode: &InodeState,
        batch: Batch,
        statistics: &Statistics,
        keys: &mut Vec<Key>,
    ) {
        let key = |part| Key {
            ino: inode.ino,
            part,
        };
        let again = |item: &mut Item| {
            if let Item::Record(logged) = item {
                match logged.fields.len() == inode.fields.len() {
                    true => logged.fields.copy_from_slice(&inode.fields),
                    false => logged.fields.clone_from(&inode.fields),
                }
                logged.stamp = batch;
            }
        };
        let is_in_place = self.update == LogUpdate::InPlace && inode.is_known;
        let is_done = is_in_place && self.tree.update(&key(Part::Record), again).is_some();
        if !is_done {
            let item = Item::Record(Logged {
                fields: inode.fields.clone(),
                born: Some(batch).filter(|_| inode.is_new),
                stamp: batch,
            });
            let was_there = self
                .tree
                .insert(key(Part::Record), item, |item, _| again(item));
            statistics
                .surprises
                .add(u64::from(was_there != inode.is_known));
        }
        keys.push(key(Part::Record));
        if !inode.ranges.is_empty() {
            self.add_ranges(key(Part::Ranges), &inode.ranges, batch);
            keys.push(key(Part::Ranges));
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
        let mut ranges = Ranges::new(batch, room);
        ranges.take_in(batch, new);
        self.tree.insert(key, Item::Ranges(ranges), |item, _| {
            if let Item::Ranges(ranges) = item {
                ranges.room = ranges.room.max(room);
                ranges.take_in(batch, new);
            }
        });
    }

    /// Whether the name is there now: not if another one has its hash.
    fn add_name(&self, state: &NameState, batch: Batch, keys: &mut Vec<Key>) -> bool {
        let key = Key {
            ino: state.parent,
            part: Part::Name(hash(&state.name)),
        };
        let again = |item: &mut Item| match item {
            Item::Name(name) if name.name == state.name => {
                if name.stamp != batch {
                    // What the batches before said is in the area.
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
        let item = Item::Name(Name {
            name: state.name.clone(),
            logged: state.base,
            now: state.now,
            stamp: batch,
        });
        let mut is_it = true;
        self.tree.insert(key, item, |item, _| is_it = again(item));
        is_it
    }

    /// Returns when a batch is on disk: at once and without a lock if it is. Callers share: one leads, the rest wait.
    /// With nothing held.
    ///
    /// # Errors
    /// When the transaction must be committed in full instead.
    pub fn sync(
        &self,
        batch: Batch,
        area: &dyn Area,
        statistics: &Statistics,
    ) -> Result<(), Unlogged> {
        if self.is_synced(batch) {
            statistics.already_logged.add(1);
            return Ok(());
        }
        let mut leader = self.leader.lock();
        while leader.is_leading {
            self.changed.wait(&mut leader);
            if self.is_synced(batch) {
                statistics.followers.add(1);
                return Ok(());
            }
        }
        if self.is_synced(batch) {
            return Ok(());
        }
        if leader.is_closed {
            return Err(Unlogged::Closed);
        }
        leader.is_leading = true;
        loop {
            let (used, ready) = (leader.used, leader.ready.take());
            let (expected, took) = (leader.expected, leader.took);
            drop(leader);
            self.wait_for_members(expected, (took / PATIENCE).min(LONGEST_WAIT));
            let begin = clock::now();
            let stepped = self.step(used, ready, area, statistics);
            leader = self.leader.lock();
            leader.took = clock::now() - begin;
            leader.is_touched |= match &stepped {
                Ok(stepped) => stepped.blocks > 0,
                Err(error) => matches!(error, Unlogged::Failed(_)),
            };
            match stepped {
                Ok(stepped) => {
                    leader.used += stepped.blocks;
                    leader.ready = stepped.ready;
                    leader.expected = stepped.expected;
                    leader.closures += stepped.closures;
                }
                Err(error) => {
                    leader.is_closed = true;
                    leader.is_leading = false;
                    self.changed.notify_all();
                    return Err(error);
                }
            }
            let is_done = self.is_synced(batch);
            leader.is_leading = !is_done;
            // Whose batch was written may go, and if the leader's was, one of the others leads.
            self.changed.notify_all();
            if is_done {
                return Ok(());
            }
        }
    }

    fn is_synced(&self, batch: Batch) -> bool {
        // Acquire: pairs with the Release in `step`: who returns sees what the leader wrote.
        self.synced.load(Ordering::Acquire) >= batch.0
    }

    /// Gives those who are expected a moment to come. With nothing held.
    fn wait_for_members(&self, expected: u64, patience: Duration) {
        if patience < SHORTEST_WAIT {
            return;
        }
        let begin = clock::now();
        let mut gathering = self.gathering.lock();
        // Relaxed: a hint; who misses it costs the wait's time, no more. So for all that follow.
        self.awaited.store(expected, Ordering::Relaxed);
        // Relaxed: as above.
        while self.members.load(Ordering::Relaxed) < expected {
            let left = patience.saturating_sub(clock::now() - begin);
            if left.is_zero() {
                break;
            }
            self.arrived.wait_for(&mut gathering, left);
        }
        // Relaxed: as above.
        self.awaited.store(u64::MAX, Ordering::Relaxed);
    }

    /// One flush, by the only leader, behind `used` blocks of the area: writes the batch that is ready, and the running
    /// one if it may.
    fn step(
        &self,
        used: u32,
        ready: Option<Encoded>,
        area: &dyn Area,
        statistics: &Statistics,
    ) -> Result<Stepped, Unlogged> {
        // What begins the area; and a leader whose batch is ready may be alone.
        let ended = self.end_batch(used == 0 && ready.is_none(), ready.is_some())?;
        let blocks_of = |encoded: &Encoded| encoded.bytes.len() / self.block_bytes;
        let needed: usize = ready.iter().chain(&ended).map(blocks_of).sum();
        // The area has at most as many blocks as the journal.
        if u32::try_from(needed).unwrap_or(u32::MAX) > area.blocks().saturating_sub(used) {
            return Err(Unlogged::Full);
        }
        let (ended, later): (Option<Encoded>, _) = match ended {
            Some(ended) if ended.shows_data => (None, Some(ended)),
            ended => (ended, None),
        };
        let Some(last) = ended
            .as_ref()
            .or(ready.as_ref())
            .map(|encoded| encoded.batch)
        else {
            area.flush_data().map_err(Unlogged::Failed)?;
            return Ok(Stepped {
                blocks: 0,
                ready: later,
                expected: 0,
                closures: 0,
            });
        };
        let mut bytes = Vec::new();
        let (mut counted, mut members) = (0, 0);
        for encoded in ready.into_iter().chain(ended) {
            let blocks = blocks_of(&encoded) as u64;
            statistics.log_commits.add(1);
            statistics.log_blocks.add(blocks);
            statistics.one_block.add(u64::from(blocks == 1));
            // It was found to fit above.
            counted += blocks as u32;
            members += encoded.members;
            match bytes.is_empty() {
                true => bytes = encoded.bytes,
                false => bytes.extend_from_slice(&encoded.bytes),
            }
        }
        area.write(used, &bytes).map_err(Unlogged::Failed)?;
        // Relaxed: a hint. Nobody whom this flush lets go is among them yet.
        let expected = members + self.members.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `is_synced`.
        self.synced.store(last.0, Ordering::Release);
        Ok(Stepped {
            blocks: counted,
            ready: later,
            expected,
            closures: members,
        })
    }

    /// Ends the running batch and encodes it; with `may_be_none` not if nothing was added.
    fn end_batch(&self, is_first: bool, may_be_none: bool) -> Result<Option<Encoded>, Unlogged> {
        let mut running = self.running.write();
        // Relaxed: the lock orders it; pairs with the store in `add`.
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(Unlogged::Closed);
        }
        let mut keys = BTreeSet::new();
        for lane in self.touched.iter() {
            keys.extend(lane.0.lock().drain(..));
        }
        if may_be_none && keys.is_empty() {
            return Ok(None);
        }
        let batch = *running;
        *running = Batch(batch.0 + 1);
        // Relaxed: as in `add`.
        let shows_data = self.shows_data.swap(false, Ordering::Relaxed);
        // Relaxed: a hint.
        let members = self.members.swap(0, Ordering::Relaxed);
        let mut said = Said::default();
        for key in keys {
            self.tree.get(&key, |item| gather(&mut said, key, item));
        }
        // What is added from here on belongs to the next batch.
        drop(running);
        let mut packer = Packer::new(self.tid, self.block_bytes, is_first);
        let records = said.records(batch, |record| packer.push(record));
        records.map_err(Unlogged::Corrupt)?;
        Ok(Some(Encoded {
            batch,
            members,
            bytes: packer.finish(),
            shows_data,
        }))
    }

    /// Nothing is logged any more; waits for the log commit under way. Before the transaction's commit record is
    /// written.
    pub fn close(&self) -> Ended {
        let mut leader = self.leader.lock();
        leader.is_closed = true;
        while leader.is_leading {
            self.changed.wait(&mut leader);
        }
        Ended {
            is_touched: leader.is_touched,
            closures: leader.closures,
        }
    }
}

fn gather(said: &mut Said, key: Key, item: &Item) {
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

/// FNV-1a. Names of one hash cost a full commit, nothing else.
fn hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "step_tests.rs"]
mod step_tests;
