//! The log of the running transaction: when an fsync begins one, what ends it, and whether it is worth its cost.
//!
//! The committer ends an epoch's log and clears what changed in it ([`crate::inode::Changes`]) before it writes the
//! transaction.
//!
//! What a crash leaves: whatever the log commits say; see [`super`].

use journal::canary::{self, Canary};
use journal::{Epoch, Handle, Journal};
use ondisk::Tid;
use sync::{Arc, CachePadded, Counter, Hint, Lanes, Mutex, Rank, RwLock};

use super::batches::{FsyncLog, LogLead, LogStatistics, StepIo, Unlogged};
use super::budget::{Budget, Cost};
use super::tree::TreeCounters;
use crate::core::variants::{Chosen, LogUpdate, LogUse, Variants};
use crate::inode::{Batch, Changes};

/// Starting a log needs a checkpoint, which costs two flushes. It pays off if a log serves at least `WORTHWHILE` fsyncs
/// before a full commit ends it, on the average of `TRIED` logs. Fsyncs that were served together count once, because a
/// full commit would have served them together as well. If logs do not pay off, `DECLINED_FIRST` full commits are made
/// without a log before the next trial, and twice the last number after each further trial that fails, at most
/// `DECLINED_MOST`.
const WORTHWHILE: u64 = 16;
const TRIED: u64 = 4;
const DECLINED_FIRST: u64 = 64;
const DECLINED_MOST: u64 = 4096;

/// A log, with a count of its users that those of one thread share.
pub(crate) type RunningLog = Arc<CachePadded<Arc<FsyncLog>>>;

/// The running epoch's log as one thread knows it.
struct Mine(Mutex<Option<(Epoch, RunningLog)>>);

impl Default for Mine {
    fn default() -> Mine {
        Mine(Mutex::new(Rank::Leaf, None))
    }
}

/// Whether logs paid off lately.
#[derive(Default)]
struct Worth {
    logs: u64,
    syncs: u64,
    /// How many full commits were made without a log after the last trial that failed; 0 after one that did not.
    declined: u64,
}

impl Worth {
    /// Counts a log that ended after it served `syncs` fsyncs; returns how many full commits are to be made without a
    /// log, if that is decided now.
    fn ended(&mut self, syncs: u64) -> Option<u64> {
        self.logs += 1;
        self.syncs += syncs;
        if self.logs < TRIED {
            return None;
        }
        self.declined = if self.syncs < WORTHWHILE * TRIED {
            (2 * self.declined).clamp(DECLINED_FIRST, DECLINED_MOST)
        } else {
            0
        };
        (self.logs, self.syncs) = (0, 0);
        Some(self.declined)
    }
}

/// Fast commits of a file system.
pub(crate) struct FastLog {
    /// What replaying an epoch's log costs, by the epoch's lowest bit.
    budgets: [Budget; 2],
    /// The log of the running epoch, from its first use on. [log running; read: shared]
    running: RwLock<Option<(Epoch, Arc<FsyncLog>)>>,
    /// The same for each thread that asked, so that to ask writes no line that others write. Filled with `running`
    /// shared; an ended log goes from here after it went from there, so none stays. [leaf]
    known: Lanes<Mine>,
    update: Chosen<LogUpdate>,
    when: Chosen<LogUse>,
    /// Touched when a log ends. [leaf]
    worth: Mutex<Worth>,
    /// Full commits that are still to be made without a log that needs a checkpoint first. [atomic: Relaxed, hint]
    declined: Hint<u64>,
    /// What `worth` counted is no longer of use. [atomic: Relaxed, hint]
    forgets: Hint<bool>,
    pub(crate) statistics: LogStatistics,
    /// Why fsyncs were full commits: the epoch was not the next one, something can't be logged, a replay of the log
    /// would take too long, the log would not have been worth it, or was full, or ended meanwhile. [counters]
    pub(crate) not_next: Counter,
    pub(crate) unloggable: Counter,
    pub(crate) replay_budget: Counter,
    not_worth: Counter,
    pub(crate) ended: Counter,
    /// What the trees of logs that ended counted. [counters]
    updates: Counter,
    inserts: Counter,
    parent_write_locks: Counter,
    splits: Counter,
}

impl FastLog {
    pub(crate) fn new(variants: &Variants) -> FastLog {
        FastLog {
            budgets: [Budget::new(), Budget::new()],
            running: RwLock::new(Rank::LogRunning, None),
            known: Lanes::new(),
            update: Chosen::new(variants.log_update),
            when: Chosen::new(variants.log_use),
            worth: Mutex::new(Rank::Leaf, Worth::default()),
            declined: Hint::new(0),
            forgets: Hint::new(false),
            statistics: LogStatistics::default(),
            not_next: Counter::new(),
            unloggable: Counter::new(),
            replay_budget: Counter::new(),
            not_worth: Counter::new(),
            ended: Counter::new(),
            updates: Counter::new(),
            inserts: Counter::new(),
            parent_write_locks: Counter::new(),
            splits: Counter::new(),
        }
    }

    /// From the next log on these forms are used. What `log_use=auto` has learnt is forgotten when it is chosen.
    pub(crate) fn choose(&self, variants: &Variants) {
        self.update.set(variants.log_update);
        if self.when.get() != variants.log_use {
            self.forgets.set(true);
            self.declined.set(0);
        }
        self.when.set(variants.log_use);
    }

    /// Whether an fsync that could begin a log should first write home what was committed, which a log needs.
    pub(crate) fn is_worth_a_checkpoint(&self) -> bool {
        if self.when.get() == LogUse::Always {
            return true;
        }
        if self.declined.get() == 0 {
            return true;
        }
        self.not_worth.add(1);
        false
    }

    fn budget(&self, epoch: Epoch) -> &Budget {
        &self.budgets[(epoch.0 & 1) as usize]
    }

    /// Adds the replay cost of further records of an epoch; returns whether they may be logged.
    pub(crate) fn spend(&self, epoch: Epoch, more: Cost) -> bool {
        self.budget(epoch).spend(more)
    }

    /// The log of an epoch, if there is one.
    pub(crate) fn running(&self, epoch: Epoch) -> Option<RunningLog> {
        let mine = &self.known.mine().0;
        if let Some((_, log)) = mine.lock().as_ref().filter(|(of, _)| *of == epoch) {
            return Some(Arc::clone(log));
        }
        let running = self.running.read();
        let (_, log) = running.as_ref().filter(|(of, _)| *of == epoch)?;
        let log = Arc::new(CachePadded::new(Arc::clone(log)));
        *mine.lock() = Some((epoch, Arc::clone(&log)));
        Some(log)
    }

    /// The log of an epoch of which the caller has a handle, begun if need be; `None` if there can't be one now.
    pub(crate) fn log(
        &self,
        handle: &Handle<'_>,
        journal: &Journal,
        block_bytes: usize,
    ) -> Option<RunningLog> {
        let epoch = handle.epoch();
        let tid: Tid = journal.fast_tid(epoch)?;
        if let Some(log) = self.running(epoch) {
            return Some(log);
        }
        let mut running = self.running.write();
        if running.as_ref().is_none_or(|(of, _)| *of != epoch) {
            let log = Arc::new(FsyncLog::new(
                tid,
                block_bytes,
                journal.fast_blocks(),
                self.update.get(),
            ));
            *running = Some((epoch, log));
        }
        drop(running);
        // The handle keeps it.
        self.running(epoch)
    }

    /// Returns when a batch of a log is on disk. With nothing held.
    ///
    /// # Errors
    /// As [`FsyncLog::sync`].
    pub(crate) fn sync(
        &self,
        log: &FsyncLog,
        batch: Batch,
        journal: &Journal,
    ) -> Result<(), Unlogged> {
        lead(log.sync(batch, &self.statistics)?, journal)
    }

    /// Returns when the data are durable that were written before a batch of a log was joined. With nothing held.
    ///
    /// # Errors
    /// As [`FsyncLog::flush`].
    pub(crate) fn flush(
        &self,
        log: &FsyncLog,
        batch: Batch,
        journal: &Journal,
    ) -> Result<(), Unlogged> {
        lead(log.flush(batch, &self.statistics)?, journal)
    }

    /// Ends the log of a sealed epoch, and forgets what changed in it; returns whether the area was written.
    pub(crate) fn end(&self, sealed: Epoch, changes: &Changes) -> bool {
        let mut running = self.running.write();
        let log = running.take_if(|(epoch, _)| *epoch <= sealed);
        drop(running);
        changes.of(sealed).clear();
        self.budget(sealed).renew();
        let Some((_, log)) = log else {
            // Only the committer counts it down.
            let left = self.declined.get();
            self.declined.set(left.saturating_sub(1));
            return false;
        };
        for known in self.known.iter() {
            known.0.lock().take_if(|(epoch, _)| *epoch <= sealed);
        }
        let ended = log.close();
        let mut worth = self.worth.lock();
        if self.forgets.swap(false) {
            *worth = Worth::default();
        }
        if let Some(declined) = worth.ended(ended.syncs) {
            self.declined.set(declined);
        }
        drop(worth);
        let counted = log.counters();
        self.updates.add(counted.updates.sum());
        self.inserts.add(counted.inserts.sum());
        self.parent_write_locks
            .add(counted.parent_write_locks.sum());
        let splits = counted.leaf_splits.sum() + counted.node_splits.sum();
        self.splits.add(splits);
        ended.is_touched
    }

    /// What was counted.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let running = self.running.read();
        let of = |count: &dyn Fn(&TreeCounters) -> u64| {
            running.as_ref().map_or(0, |(_, log)| count(log.counters()))
        };
        let said = &self.statistics;
        vec![
            ("fsync.log_commits", said.log_commits.sum()),
            ("fsync.log_blocks", said.log_blocks.sum()),
            ("fsync.log_commits_of_one_block", said.one_block.sum()),
            ("fsync.already_logged", said.already_logged.sum()),
            ("fsync.followers", said.followers.sum()),
            ("fsync.joined", said.joined.sum()),
            ("fsync.surprises", said.surprises.sum()),
            ("fsync.full_not_next", self.not_next.sum()),
            ("fsync.full_unloggable", self.unloggable.sum()),
            ("fsync.full_replay_budget", self.replay_budget.sum()),
            ("fsync.full_not_worth", self.not_worth.sum()),
            ("fsync.full_log_ended", self.ended.sum()),
            (
                "fsync.items_in_place",
                self.updates.sum() + of(&|counters| counters.updates.sum()),
            ),
            (
                "fsync.items_inserted",
                self.inserts.sum() + of(&|counters| counters.inserts.sum()),
            ),
            (
                "fsync.parent_write_locks",
                self.parent_write_locks.sum() + of(&|counters| counters.parent_write_locks.sum()),
            ),
            (
                "fsync.splits",
                self.splits.sum()
                    + of(&|counters| counters.leaf_splits.sum() + counters.node_splits.sum()),
            ),
        ]
    }
}

/// If the caller leads the log, has the journal do what each step asks, until what the caller waits for is done.
///
/// # Errors
/// When the transaction must be committed in full instead.
fn lead(lead: Option<LogLead<'_>>, journal: &Journal) -> Result<(), Unlogged> {
    let Some(mut lead) = lead else {
        return Ok(());
    };
    while let Some(step) = lead.step()? {
        let done = match step.io() {
            StepIo::Flush if canary::makes(Canary::TailBeforeData) => Ok(()),
            StepIo::Flush => journal.flush_before_fast(),
            StepIo::Write { first, blocks } => journal.write_fast(*first, blocks),
        };
        lead.ended(step, done.map_err(|error| error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_that_end_early_are_done_without_for_longer_and_longer() {
        let mut worth = Worth::default();
        let mut tried = |syncs: &[u64]| -> Option<u64> {
            let said: Vec<_> = syncs.iter().map(|count| worth.ended(*count)).collect();
            let (last, before) = said.split_last().unwrap();
            assert!(before.iter().all(Option::is_none));
            *last
        };
        assert_eq!(tried(&[1, 1, 2, 100]), Some(0));
        assert_eq!(tried(&[1, 20, 20, 20]), Some(DECLINED_FIRST));
        assert_eq!(tried(&[0; 4]), Some(2 * DECLINED_FIRST));
        for _ in 0..10 {
            tried(&[1; 4]);
        }
        assert_eq!(tried(&[2; 4]), Some(DECLINED_MOST));
        assert_eq!(tried(&[16; 4]), Some(0));
        assert_eq!(tried(&[15; 4]), Some(DECLINED_FIRST));
    }
}
