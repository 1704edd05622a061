//! The leader, which writes for all threads: steps of one flush each, and the threads that each step releases.
//!
//! A leader ends the running batch before its flush. If that batch shows no data, it is written before the flush, too.
//! If it does, the flush makes its data durable, and the batch is written in the next step. So each flush may serve two
//! batches: the data of one, and the blocks of the one before. A thread that waits for new blocks of a file waits for
//! two flushes that begin after its call, however many threads there are. A thread that joined a batch only because of
//! its data waits for the first flush after the batch's end. Threads that the last flush released often fsync again at
//! once: the leader waits briefly for them ([`company::patience`]).
//!
//! This module does no I/O: a leader asks for each step ([`LogLead::step`]), does what the step asks of the device
//! ([`StepIo`]), and reports the result ([`LogLead::ended`]).
//!
//! Locks: [`Rank::LogLeader`] is held briefly, never across I/O; the running batch is held alone while it is encoded.
//!
//! CRASH: as described in `fsync/log/batches.rs`.
//!
//! [`Rank::LogLeader`]: sync::Rank::LogLeader

use std::collections::BTreeSet;

use sync::clock::{self, Duration, Instant};
use sync::company::{self, Doubt};

use super::{FsyncLog, LogStatistics, Unlogged, gather};
use crate::fsync::log::area::Packer;
use crate::fsync::log::records::BatchRecords;
use crate::inode::Batch;

/// A batch that ended.
struct Encoded {
    batch: Batch,
    /// Closures in it.
    closures: u64,
    /// Whole blocks; empty if the batch has no closure.
    bytes: Vec<u8>,
    /// Whether data must be durable before the batch is written.
    shows_data: bool,
}

/// What a step asks of the device that holds the area.
pub(crate) enum StepIo {
    /// Make all data durable that were written before.
    Flush,
    /// Write whole blocks to the area, from its block `first` on. Then make them durable, with all data that were
    /// written before.
    Write {
        /// The number of the first block in the area.
        first: u32,
        /// The blocks.
        blocks: Vec<u8>,
    },
}

/// A planned step: what it asks of the device, and which batches are durable once that is done.
pub(crate) struct LogStep {
    io: StepIo,
    began: Instant,
    /// Blocks of the area that it writes.
    blocks: u32,
    /// How many closures it writes, and how many threads joined without a closure.
    served: u64,
    /// The batch that ended with this step and is written by the next, because its data must be durable first.
    ready: Option<Encoded>,
    /// The last batch that is on disk when the step is done.
    synced: Option<Batch>,
    /// The last batch whose members' data are durable when the step is done.
    flushed: Option<Batch>,
}

impl LogStep {
    /// What the step asks of the device.
    pub(crate) fn io(&self) -> &StepIo {
        &self.io
    }
}

/// What a closed log leaves to the full commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    /// Whether the area was written. Its first block is then wiped once the full commit is durable.
    pub(crate) is_touched: bool,
    /// Flushes that served members of a batch; each counts once, however many members it served.
    pub(crate) syncs: u64,
}

#[derive(Default)]
pub(super) struct Leader {
    is_leading: bool,
    is_closed: bool,
    /// Blocks of the area in use.
    used: u32,
    /// A batch that ended and whose data are durable, to be written next.
    ready: Option<Encoded>,
    /// Members that the running batch will have when all threads that the last flush served have fsynced again.
    expected: u64,
    /// How long the last step took.
    took: Duration,
    /// Whether the area was written, even if the write failed.
    is_touched: bool,
    /// Flushes that released members of a batch.
    syncs: u64,
    doubt: Doubt,
}

/// What a caller waits for.
#[derive(Clone, Copy)]
enum Until {
    /// Its batch is on disk.
    Synced(Batch),
    /// The data of its batch's members are durable.
    Flushed(Batch),
}

/// The leader of a log, until what it waits for is done. If it is dropped earlier (because its thread panicked), the
/// log is given up, and the threads that wait for it continue.
#[must_use = "dropped, it gives the log up"]
pub(crate) struct LogLead<'a> {
    log: &'a FsyncLog,
    until: Until,
    statistics: &'a LogStatistics,
    is_leading: bool,
    /// Whether a member came while the leader waited before the step; `None` if it did not wait.
    came: Option<bool>,
}

impl Drop for LogLead<'_> {
    fn drop(&mut self) {
        if self.is_leading {
            let mut leader = self.log.leader.lock();
            leader.is_leading = false;
            leader.is_closed = true;
            self.log.changed.notify_all();
        }
    }
}

impl LogLead<'_> {
    /// Plans the next step, after a short wait for expected members. Returns `None` once what the caller waits for is
    /// done. The caller does what the step asks, then calls [`LogLead::ended`]. The caller holds no lock.
    ///
    /// # Errors
    /// When the transaction must be committed in full instead.
    pub(crate) fn step(&mut self) -> Result<Option<LogStep>, Unlogged> {
        if !self.is_leading {
            return Ok(None);
        }
        let log = self.log;
        let mut leader = log.leader.lock();
        let (used, ready) = (leader.used, leader.ready.take());
        let expected = leader.expected;
        // If no member is expected, the leader need not ask whether waiting pays off.
        let is_expecting = log.is_expecting(expected);
        let patience =
            company::patience(leader.took).filter(|_| is_expecting && leader.doubt.waits());
        drop(leader);
        self.came = patience.map(|patience| log.wait_for_members(expected, patience));
        let began = clock::now();
        match log.plan(used, ready, began, self.statistics) {
            Ok(step) => Ok(Some(step)),
            Err(error) => self.go_on(began, Err(error)).map(|()| None),
        }
    }

    /// Ends a step, with the result of what it asked of the device.
    ///
    /// # Errors
    /// As [`LogLead::step`].
    pub(crate) fn ended(
        &mut self,
        step: LogStep,
        done: Result<(), String>,
    ) -> Result<(), Unlogged> {
        let began = step.began;
        let stepped = match done {
            Ok(()) => Ok(step),
            Err(why) => Err(Unlogged::Failed(why)),
        };
        self.go_on(began, stepped)
    }

    /// Records that a step is done, or gives the log up after an error. Then it wakes the threads that the step served;
    /// if the leader's own batch is done, another thread leads.
    fn go_on(
        &mut self,
        began: Instant,
        stepped: Result<LogStep, Unlogged>,
    ) -> Result<(), Unlogged> {
        let log = self.log;
        // Before the leader's lock is taken, because a thread that finds its batch done takes no lock.
        let expected = match &stepped {
            Ok(step) => log.set_done(step),
            Err(_) => 0,
        };
        let took = clock::now() - began;
        let mut leader = log.leader.lock();
        if let Some(came) = self.came.take() {
            leader.doubt.came(came);
        }
        leader.took = took;
        // A log that was given up accepts no thread.
        let is_slow = stepped.is_ok() && company::patience(took).is_some();
        log.is_slow.set(is_slow);
        let stepped = match stepped {
            Ok(step) => {
                leader.is_touched |= step.blocks > 0;
                leader.used += step.blocks;
                leader.ready = step.ready;
                leader.expected = expected;
                leader.syncs += u64::from(step.synced.is_some());
                Ok(())
            }
            Err(error) => {
                leader.is_touched |= matches!(error, Unlogged::Failed(_));
                leader.is_closed = true;
                Err(error)
            }
        };
        let is_done = log.is_done(self.until);
        self.is_leading = stepped.is_ok() && !is_done;
        leader.is_leading = self.is_leading;
        if stepped.is_ok() && is_done {
            self.until.count(self.statistics);
        }
        // Threads whose batch was written return. If the leader's batch was written too, one of the other threads
        // leads.
        log.changed.notify_all();
        stepped
    }
}

impl Until {
    /// Counts a caller whose wait is over.
    fn count(self, statistics: &LogStatistics) {
        if let Until::Flushed(_) = self {
            statistics.joined.add(1);
        }
    }
}

impl FsyncLog {
    /// Returns when a batch is on disk: at once and without a lock if it is. Callers share the work: one becomes the
    /// leader, which is the caller if this returns a [`LogLead`], and the others wait. The caller holds no lock.
    ///
    /// # Errors
    /// When the transaction must be committed in full instead.
    pub(crate) fn sync<'a>(
        &'a self,
        batch: Batch,
        statistics: &'a LogStatistics,
    ) -> Result<Option<LogLead<'a>>, Unlogged> {
        if self.is_done(Until::Synced(batch)) {
            statistics.already_logged.add(1);
            return Ok(None);
        }
        self.share(Until::Synced(batch), statistics)
    }

    /// Returns when the data are durable that were written before the batch was joined ([`FsyncLog::join`]). As
    /// [`FsyncLog::sync`] otherwise.
    ///
    /// # Errors
    /// If the log was closed or given up, so that this is not known: the caller flushes the device itself.
    pub(crate) fn flush<'a>(
        &'a self,
        batch: Batch,
        statistics: &'a LogStatistics,
    ) -> Result<Option<LogLead<'a>>, Unlogged> {
        self.share(Until::Flushed(batch), statistics)
    }

    fn share<'a>(
        &'a self,
        until: Until,
        statistics: &'a LogStatistics,
    ) -> Result<Option<LogLead<'a>>, Unlogged> {
        let mut leader = self.leader.lock();
        while leader.is_leading {
            self.changed.wait(&mut leader);
            if self.is_done(until) {
                statistics.followers.add(1);
                until.count(statistics);
                return Ok(None);
            }
        }
        if self.is_done(until) {
            until.count(statistics);
            return Ok(None);
        }
        if leader.is_closed {
            return Err(Unlogged::Closed);
        }
        leader.is_leading = true;
        Ok(Some(LogLead {
            log: self,
            until,
            statistics,
            is_leading: true,
            came: None,
        }))
    }

    fn is_done(&self, until: Until) -> bool {
        let (done, batch) = match until {
            Until::Synced(batch) => (&self.synced, batch),
            Until::Flushed(batch) => (&self.flushed, batch),
        };
        done.get() >= batch.0
    }

    /// Whether the batch has fewer members than are expected.
    fn is_expecting(&self, expected: u64) -> bool {
        self.members.get() < expected
    }

    /// Waits briefly for the expected members; returns whether any came. The caller holds no lock.
    fn wait_for_members(&self, expected: u64, patience: Duration) -> bool {
        let begin = clock::now();
        let mut gathering = self.gathering.lock();
        let there = self.members.get();
        // A member that reads the old number does not wake the leader, which then waits until its patience ends.
        self.awaited.set(expected);
        while self.is_expecting(expected) {
            let left = patience.saturating_sub(clock::now() - begin);
            if left.is_zero() {
                break;
            }
            self.arrived.wait_for(&mut gathering, left);
        }
        self.awaited.set(u64::MAX);
        self.members.get() > there
    }

    /// Plans a step of one flush; called by the only leader. After the first `used` blocks of the area the step writes
    /// the batch that is ready. It also writes the running batch, unless that shows data, which must be durable before
    /// it.
    fn plan(
        &self,
        used: u32,
        ready: Option<Encoded>,
        began: Instant,
        statistics: &LogStatistics,
    ) -> Result<LogStep, Unlogged> {
        // The first batch of the area begins it. A leader that has a batch ready may be the running batch's only
        // waiter.
        let (ended, joined) = self.end_batch(used == 0 && ready.is_none(), ready.is_some())?;
        let blocks_of = |encoded: &Encoded| encoded.bytes.len() / self.block_bytes;
        let needed: usize = ready.iter().chain(&ended).map(blocks_of).sum();
        // The area has at most as many blocks as the journal.
        if u32::try_from(needed).unwrap_or(u32::MAX) > self.area_blocks.saturating_sub(used) {
            return Err(Unlogged::Full);
        }
        let flushed = ended.as_ref().map(|encoded| encoded.batch);
        let (ended, later): (Option<Encoded>, _) = match ended {
            Some(ended) if ended.shows_data => (None, Some(ended)),
            ended => (ended, None),
        };
        let synced = ended.as_ref().or(ready.as_ref());
        let synced = synced.map(|encoded| encoded.batch);
        let mut bytes = Vec::new();
        let (mut counted, mut closures) = (0, 0);
        for encoded in ready.into_iter().chain(ended) {
            let blocks = blocks_of(&encoded) as u64;
            statistics.log_commits.add(u64::from(blocks > 0));
            statistics.log_blocks.add(blocks);
            statistics.one_block.add(u64::from(blocks == 1));
            // The blocks were found to fit above.
            counted += blocks as u32;
            closures += encoded.closures;
            if bytes.is_empty() {
                bytes = encoded.bytes
            } else {
                bytes.extend_from_slice(&encoded.bytes)
            }
        }
        let io = if bytes.is_empty() {
            StepIo::Flush
        } else {
            StepIo::Write {
                first: used,
                blocks: bytes,
            }
        };
        Ok(LogStep {
            io,
            began,
            blocks: counted,
            served: closures + joined,
            ready: later,
            synced,
            flushed,
        })
    }

    /// Records that what a step asked for was done. Returns how many members the running batch will have when all
    /// threads that the step served have fsynced again.
    fn set_done(&self, step: &LogStep) -> u64 {
        let expected = match step.synced {
            // The threads that this flush releases are not among the members yet.
            Some(_) => step.served + self.members.get(),
            // Other threads wait for the batch that is ready.
            None => 0,
        };
        for (done, batch) in [(&self.synced, step.synced), (&self.flushed, step.flushed)] {
            if let Some(batch) = batch {
                done.set(batch.0);
            }
        }
        expected
    }

    /// Ends the running batch and encodes it; with `may_be_none`, does nothing if the batch has no members. Also
    /// returns how many threads joined without a closure.
    fn end_batch(
        &self,
        is_first: bool,
        may_be_none: bool,
    ) -> Result<(Option<Encoded>, u64), Unlogged> {
        let mut running = self.running.write();
        if self.is_broken.get() {
            return Err(Unlogged::Closed);
        }
        let mut keys = BTreeSet::new();
        for lane in self.touched.iter() {
            keys.extend(lane.0.lock().drain(..));
        }
        let joined = self.joined.swap(0);
        if may_be_none && keys.is_empty() && joined == 0 {
            return Ok((None, 0));
        }
        let batch = *running;
        *running = Batch(batch.0 + 1);
        let shows_data = self.shows_data.swap(false);
        let members = self.members.swap(0);
        let is_empty = keys.is_empty();
        let mut said = BatchRecords::default();
        for key in keys {
            self.tree.get(&key, |item| gather(&mut said, key, item));
        }
        // What is added from here on belongs to the next batch.
        drop(running);
        let mut bytes = Vec::new();
        if !is_empty {
            let mut packer = Packer::new(self.tid, self.block_bytes, is_first);
            let records = said.records(batch, |record| packer.push(record));
            records.map_err(Unlogged::Corrupt)?;
            bytes = packer.finish();
        }
        let encoded = Encoded {
            batch,
            closures: members - joined,
            bytes,
            shows_data,
        };
        Ok((Some(encoded), joined))
    }

    /// Closes the log: nothing is logged any more. Waits for the log commit under way. Called before the transaction's
    /// commit record is written.
    pub(crate) fn close(&self) -> Ended {
        let mut leader = self.leader.lock();
        leader.is_closed = true;
        while leader.is_leading {
            self.changed.wait(&mut leader);
        }
        self.is_slow.set(false);
        Ended {
            is_touched: leader.is_touched,
            syncs: leader.syncs,
        }
    }
}
