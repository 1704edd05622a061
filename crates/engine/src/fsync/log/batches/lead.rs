//! The leader writes for all threads: steps of one flush each, and the threads that each step releases.
//!
//! Before its flush a leader ends the running batch: if that one shows no data it is written before the flush, too; if
//! it does, the flush makes its data durable, and it is written in the next step. So each flush may serve two batches,
//! the data of one and the blocks of the one before, and a thread that waits for new blocks of a file waits for
//! two flushes that begin after its call, however many threads there are. A thread that joined a batch only
//! because of its data waits for the flush after the batch's end. Threads that the last flush released often come
//! back at once: the leader waits a moment for them ([`company::patience`]).
//!
//! Locks: [`Rank::LogLeader`] for a look, never across I/O; the running batch alone while it is encoded.
//!
//! What a crash leaves: as the module above says.
//!
//! [`Rank::LogLeader`]: sync::Rank::LogLeader

use std::collections::BTreeSet;

use sync::clock::{self, Duration};
use sync::company::{self, Doubt};
use sync::{MutexGuard, thread};

use super::{FsyncLog, LogArea, LogStatistics, Unlogged, gather};
use crate::fsync::log::area::Packer;
use crate::fsync::log::records::BatchRecords;
use crate::inode::Batch;

/// A batch that ended.
struct Encoded {
    batch: Batch,
    /// Closures in it.
    closures: u64,
    /// Whole blocks; none if it has no closure.
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
    /// Some members of a batch need wait no longer.
    lets_go: bool,
}

/// What a log has done when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    /// The area was written: its first block is to be wiped once the full commit is durable.
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
    /// Members that the running batch will have when all threads that the last flush served are back.
    expected: u64,
    /// How long the last step took.
    took: Duration,
    /// Whether anything was written there, be it in vain.
    is_touched: bool,
    /// Flushes that let members of a batch go.
    syncs: u64,
    doubt: Doubt,
}

/// While a leader works: if it panics, the log is given up, and the threads that wait for it go on.
struct AtWork<'a>(&'a FsyncLog);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut leader = self.0.leader.lock();
            leader.is_leading = false;
            leader.is_closed = true;
            self.0.changed.notify_all();
        }
    }
}

/// What a caller waits for.
#[derive(Clone, Copy)]
enum Until {
    /// Its batch is on disk.
    Synced(Batch),
    /// The data of its batch's members are durable.
    Flushed(Batch),
}

impl FsyncLog {
    /// Returns when a batch is on disk: at once and without a lock if it is. Callers share: one leads, the rest wait.
    /// With nothing held.
    ///
    /// # Errors
    /// When the transaction must be committed in full instead.
    pub(crate) fn sync(
        &self,
        batch: Batch,
        area: &dyn LogArea,
        statistics: &LogStatistics,
    ) -> Result<(), Unlogged> {
        if self.is_done(Until::Synced(batch)) {
            statistics.already_logged.add(1);
            return Ok(());
        }
        self.share(Until::Synced(batch), area, statistics)
    }

    /// Returns when the data are durable that were written before the batch was joined ([`FsyncLog::join`]). As
    /// [`FsyncLog::sync`] otherwise.
    ///
    /// # Errors
    /// If that is not known, because the log was closed or given up: the caller flushes by itself.
    pub(crate) fn flush(
        &self,
        batch: Batch,
        area: &dyn LogArea,
        statistics: &LogStatistics,
    ) -> Result<(), Unlogged> {
        self.share(Until::Flushed(batch), area, statistics)?;
        statistics.joined.add(1);
        Ok(())
    }

    fn share(
        &self,
        until: Until,
        area: &dyn LogArea,
        statistics: &LogStatistics,
    ) -> Result<(), Unlogged> {
        let mut leader = self.leader.lock();
        while leader.is_leading {
            self.changed.wait(&mut leader);
            if self.is_done(until) {
                statistics.followers.add(1);
                return Ok(());
            }
        }
        if self.is_done(until) {
            return Ok(());
        }
        if leader.is_closed {
            return Err(Unlogged::Closed);
        }
        leader.is_leading = true;
        loop {
            let (again, stepped) = self.lead_step(leader, area, statistics);
            leader = again;
            let is_done = self.is_done(until);
            leader.is_leading = stepped.is_ok() && !is_done;
            leader.is_closed |= stepped.is_err();
            // Whose batch was written may go, and if the leader's was, one of the others leads.
            self.changed.notify_all();
            stepped?;
            if is_done {
                return Ok(());
            }
        }
    }

    /// A step, without the leader's lock meanwhile.
    fn lead_step<'a>(
        &'a self,
        mut leader: MutexGuard<'a, Leader>,
        area: &dyn LogArea,
        statistics: &LogStatistics,
    ) -> (MutexGuard<'a, Leader>, Result<(), Unlogged>) {
        let (used, ready) = (leader.used, leader.ready.take());
        let expected = leader.expected;
        // A leader that is alone needs no doubt.
        let is_expecting = self.is_expecting(expected);
        let patience =
            company::patience(leader.took).filter(|_| is_expecting && leader.doubt.waits());
        drop(leader);
        let at_work = AtWork(self);
        let came = patience.map(|patience| self.wait_for_members(expected, patience));
        let begin = clock::now();
        let stepped = self.step(used, ready, area, statistics);
        let took = clock::now() - begin;
        drop(at_work);
        leader = self.leader.lock();
        if let Some(came) = came {
            leader.doubt.came(came);
        }
        leader.took = took;
        // A log that was given up accepts no thread.
        let is_slow = stepped.is_ok() && company::patience(took).is_some();
        self.is_slow.set(is_slow);
        let stepped = match stepped {
            Ok(stepped) => {
                leader.is_touched |= stepped.blocks > 0;
                leader.used += stepped.blocks;
                leader.ready = stepped.ready;
                leader.expected = stepped.expected;
                leader.syncs += u64::from(stepped.lets_go);
                Ok(())
            }
            Err(error) => {
                leader.is_touched |= matches!(error, Unlogged::Failed(_));
                Err(error)
            }
        };
        (leader, stepped)
    }

    fn is_done(&self, until: Until) -> bool {
        let (done, batch) = match until {
            Until::Synced(batch) => (&self.synced, batch),
            Until::Flushed(batch) => (&self.flushed, batch),
        };
        done.get() >= batch.0
    }

    /// Whether not all are there that may come.
    fn is_expecting(&self, expected: u64) -> bool {
        self.members.get() < expected
    }

    /// Gives the expected members a moment to come; returns whether any did. With nothing held.
    fn wait_for_members(&self, expected: u64, patience: Duration) -> bool {
        let begin = clock::now();
        let mut gathering = self.gathering.lock();
        let there = self.members.get();
        // A thread that misses it costs the wait's time.
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

    /// One flush, by the only leader, behind `used` blocks of the area: writes the batch that is ready, and the running
    /// one if it may.
    fn step(
        &self,
        used: u32,
        ready: Option<Encoded>,
        area: &dyn LogArea,
        statistics: &LogStatistics,
    ) -> Result<Stepped, Unlogged> {
        // What begins the area; and a leader whose batch is ready may be alone.
        let (ended, joined) = self.end_batch(used == 0 && ready.is_none(), ready.is_some())?;
        let blocks_of = |encoded: &Encoded| encoded.bytes.len() / self.block_bytes;
        let needed: usize = ready.iter().chain(&ended).map(blocks_of).sum();
        // The area has at most as many blocks as the journal.
        if u32::try_from(needed).unwrap_or(u32::MAX) > area.blocks().saturating_sub(used) {
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
            // It was found to fit above.
            counted += blocks as u32;
            closures += encoded.closures;
            match bytes.is_empty() {
                true => bytes = encoded.bytes,
                false => bytes.extend_from_slice(&encoded.bytes),
            }
        }
        let done = match bytes.is_empty() {
            true => area.flush_data(),
            false => area.write(used, &bytes),
        };
        done.map_err(Unlogged::Failed)?;
        let expected = match synced {
            // No thread that this flush releases is among the members yet.
            Some(_) => closures + joined + self.members.get(),
            // Others wait for what is ready.
            None => 0,
        };
        for (done, batch) in [(&self.synced, synced), (&self.flushed, flushed)] {
            if let Some(batch) = batch {
                done.set(batch.0);
            }
        }
        Ok(Stepped {
            blocks: counted,
            ready: later,
            expected,
            lets_go: synced.is_some(),
        })
    }

    /// Ends the running batch and encodes it; with `may_be_none` not if nobody takes part in it. And how many joined it
    /// without a closure.
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

    /// Nothing is logged any more; waits for the log commit under way. Before the transaction's commit record is
    /// written.
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
