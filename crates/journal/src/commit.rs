//! The journal as its users see it, and the commit. Each job (commit, checkpoint, making room, flushing data) has one
//! leader at a time, found under [`Rank::JournalLeader`]; others that want the same wait there with nothing else held.
//!
//! Commit, in numbered steps:
//! 1. seal the running epoch, wait for its handles, open the next;
//! 2. stage: objects, then the client's lists; drop the images of blocks that the epoch freed;
//! 3. write the transaction (log.rs), before that all committed ones home if the log has to begin anew; CRASH: from
//!    here on it is found;
//! 4. put its images up for the checkpoint, cancel those of freed blocks, true up the space;
//! 5. tell the client, then the waiting threads.
//!
//! A failure before 5 aborts the journal, and the client is not told: what the epoch freed stays unavailable.
//!
//! In 3, the log is flushed before the commit record, which also makes the data durable that the epoch maps
//! (`data=ordered`): they were written before their map changed. That flush is left out only with `async_commit`, where
//! nothing is revoked, commits are not held back and, in `data=ordered`, no handle of the epoch called
//! [`crate::Handle::maps_data`]; and only in a log with checksums of version 1 (see `jbd2::Log`).
//!
//! Without a log (`^has_journal`), 3 is: flush, so that the data that the epoch maps are durable; its images home;
//! flush. CRASH: some of the images are home, so the structures may contradict each other until e2fsck was there; but
//! what was freed is used again only after 5, so no file ever shows another's data.

use std::collections::BTreeSet;

use device::BlockDevice;
use ondisk::{BlockSize, FsBlock};
use sync::clock::Instant;
use sync::gauge::{self, Gauge, Under};
use sync::{Arc, CachePadded, Condvar, Guarded, Mutex, Rank};

use crate::abort::{Abort, Aborted, JournalError};
use crate::attend::Attendant;
use crate::canary::{self, Canary};
use crate::client::Client;
use crate::delay::Delays;
use crate::epoch::{Epoch, Epochs};
use crate::fast::FastArea;
use crate::flush::Flushes;
use crate::gather::{Company, Served};
use crate::handle::LongHandles;
use crate::lists::EpochLists;
use crate::object::Stageable;
use crate::options::{CommitCause, JournalStatistics, Options};
use crate::room::LARGEST_STEP;
use crate::space::{LogSpace, Sealed};
use crate::table::CopyTables;
use jbd2::{Log, LogMap, Transaction};

mod freeze;
mod write;

/// A transaction's blocks and what they hold.
pub(crate) type BlockImages = Vec<(FsBlock, Arc<[u8]>)>;

/// The part of the staged memory's bound that one transaction may take.
const TRANSACTION_SHARE: u64 = 4;
/// Blocks of the ring by which changes are counted without a log.
const RING_WITHOUT_LOG: u32 = 1 << 16;

/// A journal, open for writing. Shared by reference between threads.
pub struct Journal {
    pub(crate) epochs: Epochs,
    pub(crate) space: LogSpace,
    /// Objects first changed in an epoch.
    pub(crate) dirty: EpochLists<Arc<dyn Stageable>>,
    /// Blocks that no longer hold metadata.
    pub(crate) forgotten: EpochLists<FsBlock>,
    pub(crate) table: CopyTables,
    /// `None` for a file system without a journal. [log area]
    pub(crate) log: Option<Mutex<Log>>,
    pub(crate) fast: Option<FastArea>,
    /// The file system's device, to which checkpoints write. [const]
    pub(crate) home: Arc<dyn BlockDevice>,
    /// On a line of its own: handles read the fields around it. [journal leader]
    pub(crate) leaders: CachePadded<Mutex<Leaders>>,
    pub(crate) changed: Condvar,
    /// Notified when all threads came that the leader of a commit, or that of a flush of data, waits for.
    pub(crate) commit_gathered: Condvar,
    pub(crate) flush_gathered: Condvar,
    pub(crate) attendant: Attendant,
    /// Blocks of a transaction that is held back, at most; 0 if none is. [changed while one thread
    /// uses the journal]
    pub(crate) held_most: Guarded<u64>,
    pub(crate) abort: Abort,
    pub(crate) statistics: JournalStatistics,
    pub(crate) long_handles: LongHandles,
    /// [const]
    pub(crate) options: Options,
    /// [const]
    pub(crate) block_bytes: usize,
    /// [const]
    clock: Box<dyn Fn() -> (i64, u32) + Send + Sync>,
}

#[derive(Default)]
pub(crate) struct Leaders {
    pub(crate) is_committing: bool,
    pub(crate) delays: Delays,
    pub(crate) is_checkpointing: bool,
    pub(crate) is_making_room: bool,
    /// The threads that share commits.
    commits: Company,
    /// The epoch that is committed while one is.
    committing: Epoch,
    pub(crate) flushes: Flushes,
    /// The sealed epoch after which none runs until the thaw; all that was written before is durable.
    pub(crate) frozen: Option<Epoch>,
    /// All epochs up to this one are durable.
    committed: Epoch,
    /// Data written before this epoch ended are durable.
    flushed: Epoch,
}

/// Which job is led.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LedJob {
    Commit,
    Checkpoint,
    Room,
    Flush,
}

/// The lead of a job; however it ends, the threads that wait go on. A panic aborts the journal first.
pub(crate) struct Lead<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) job: LedJob,
    /// What is durable now.
    pub(crate) committed: Option<Epoch>,
    /// Up to where data are durable now.
    pub(crate) flushed: Option<Epoch>,
    /// An epoch that was closed, after which the next is opened.
    closed: Option<Epoch>,
    /// The threads that this commit serves.
    served: Option<Served>,
}

impl<'a> Lead<'a> {
    pub(crate) fn of(journal: &'a Journal, job: LedJob) -> Lead<'a> {
        Lead {
            journal,
            job,
            committed: None,
            flushed: None,
            closed: None,
            served: None,
        }
    }
}

impl Lead<'_> {
    /// An epoch is durable; `has_flushed` if it took a flush.
    fn end(&mut self, epoch: Epoch, has_flushed: bool) {
        self.committed = Some(epoch);
        self.flushed = Some(epoch).filter(|_| has_flushed);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if sync::thread::panicking() {
            // The panic itself reports its cause; this cause is for all other threads.
            let _ = self.journal.abort.because(&JournalError::Aborted(
                "a panic during a commit or checkpoint".into(),
            ));
        }
        if let Some(closed) = self.closed {
            self.journal.epochs.open(closed);
        }
        let mut leaders = self.journal.leaders.lock();
        match self.job {
            LedJob::Commit => leaders.is_committing = leaders.frozen.is_some(),
            LedJob::Checkpoint => leaders.is_checkpointing = false,
            LedJob::Room => leaders.is_making_room = false,
            LedJob::Flush => leaders.flushes.end(),
        }
        leaders.committed = self.committed.unwrap_or(leaders.committed);
        leaders.flushed = leaders.flushed.max(self.flushed.unwrap_or_default());
        if let Some(served) = &self.served {
            leaders.commits.end(served);
        }
        self.journal.changed.notify_all();
    }
}

impl Journal {
    /// Opens a clean journal (replayed before, if it was dirty).
    ///
    /// `superblock_at` is the journal block that holds its superblock: 0 in an inode. `clock` stamps commit records.
    ///
    /// # Errors
    /// When it can't be read, is not a journal, is dirty, or of jbd's first format.
    pub fn open(
        map: LogMap,
        superblock_at: u32,
        home: Arc<dyn BlockDevice>,
        options: Options,
        clock: impl Fn() -> (i64, u32) + Send + Sync + 'static,
    ) -> Result<Journal, JournalError> {
        let block_bytes = map.block_size().bytes();
        let is_external = !Arc::ptr_eq(map.device(), &home);
        let data_device = is_external.then(|| Arc::clone(&home));
        let log = Log::open(map, superblock_at, data_device, &options.of_log())?;
        let capacity = log.capacity();
        Ok(Journal::new(
            Some(log),
            capacity,
            home,
            block_bytes,
            options,
            clock,
        ))
    }

    /// Handles, epochs and commits for a file system without a journal: a commit writes home. `docs/journal.md` and the
    /// head of this module's source describe what a crash leaves.
    #[must_use]
    pub fn without_log(
        block_size: BlockSize,
        home: Arc<dyn BlockDevice>,
        options: Options,
        clock: impl Fn() -> (i64, u32) + Send + Sync + 'static,
    ) -> Journal {
        let bytes = block_size.bytes();
        Journal::new(None, RING_WITHOUT_LOG, home, bytes, options, clock)
    }

    fn new(
        log: Option<Log>,
        capacity: u32,
        home: Arc<dyn BlockDevice>,
        block_bytes: usize,
        options: Options,
        clock: impl Fn() -> (i64, u32) + Send + Sync + 'static,
    ) -> Journal {
        let most = options.staged_bytes / TRANSACTION_SHARE / block_bytes as u64;
        // Room for the largest step, however little memory there may be.
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(LARGEST_STEP);
        Journal {
            epochs: Epochs::new(),
            space: LogSpace::new(capacity, most),
            dirty: EpochLists::new(),
            forgotten: EpochLists::new(),
            table: CopyTables::new(),
            fast: log.as_ref().and_then(FastArea::of),
            log: log.map(|log| Mutex::new(Rank::LogArea, log)),
            home,
            leaders: CachePadded::new(Mutex::new(Rank::JournalLeader, Leaders::default())),
            changed: Condvar::new(),
            commit_gathered: Condvar::new(),
            flush_gathered: Condvar::new(),
            attendant: Attendant::default(),
            held_most: Guarded::new(0),
            abort: Abort::default(),
            statistics: JournalStatistics::default(),
            long_handles: LongHandles::default(),
            options,
            block_bytes,
            clock: Box::new(clock),
        }
    }

    /// Aborts: nothing is committed any more, and every later call returns this cause. An earlier cause stays.
    pub fn abort(&self, cause: &str) {
        // The caller knows the cause.
        let _ = self.fail(JournalError::Aborted(cause.into()));
    }

    /// Aborts like [`Journal::abort`], but records nothing in the log, because nothing is wrong with the image: the
    /// next program that opens it replays what is durable.
    pub fn shut_down(&self, cause: &str) {
        let _number_to_record = self.abort.because(&JournalError::Aborted(cause.into()));
    }

    /// Why and when it was aborted.
    pub fn aborted(&self) -> Option<&Aborted> {
        self.abort.first()
    }

    /// Has the first abort reported by the thread that meets it, which may hold locks: the hook takes none and waits
    /// for nothing. An abort that happened before is reported at once, one at this moment perhaps twice. Only the
    /// first hook counts.
    pub fn on_abort(&self, hook: impl Fn(&Aborted) + Send + Sync + 'static) {
        self.abort.on_abort(Box::new(hook));
    }

    /// Whether the journal has a log; without one, a commit writes home.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Whether the log records that the program which had it open before aborted it, and holds nothing to replay.
    pub fn has_error(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.lock().has_error())
    }

    /// Clears that record in the log, after the file system's superblock has it.
    ///
    /// # Errors
    /// When the log can't be written.
    pub fn forget_error(&self) -> Result<(), JournalError> {
        let log = self.log.as_ref();
        log.map_or(Ok(()), |log| {
            log.lock().forget_error(self.statistics.of_log())
        })
    }

    /// Aborts for this, and records it in the log's superblock if the device allows it, for the next program
    /// that opens the image. The log is not locked.
    pub(crate) fn fail(&self, error: JournalError) -> JournalError {
        if let (Some(errno), Some(log)) = (self.abort.because(&error), &self.log) {
            log.lock().mark_aborted(errno, self.statistics.of_log());
        }
        error
    }

    /// What was counted so far.
    pub fn statistics(&self) -> &JournalStatistics {
        &self.statistics
    }

    /// The epoch to which a handle that begins now belongs; a sync promises all up to it.
    #[inline]
    pub fn current_epoch(&self) -> Epoch {
        self.epochs.current()
    }

    /// All epochs up to this one are durable.
    pub fn committed_epoch(&self) -> Epoch {
        self.leaders.lock().committed
    }

    /// Data written to the file system's device before this epoch ended are durable.
    pub fn flushed_epoch(&self) -> Epoch {
        self.leaders.lock().flushed
    }

    /// Why nothing is written any more.
    ///
    /// # Errors
    /// [`JournalError::Aborted`] with the first cause, once the journal is aborted.
    #[inline]
    pub fn check(&self) -> Result<(), JournalError> {
        self.abort.check()
    }

    /// Makes everything up to `target` durable; returns at once if it is. Callers share: one leads, the rest wait. The
    /// leader waits a moment for the threads that shared the last commit, at most an eighth of its time.
    /// Call it without a handle and without any lock that a handle may be held under.
    ///
    /// # Errors
    /// When the journal is or becomes aborted; what was promised before still holds.
    pub fn commit(&self, client: &dyn Client, target: Epoch) -> Result<(), JournalError> {
        self.refuse_held(target)?;
        self.commit_led(client, target, CommitCause::Sync)
    }

    /// [`Journal::commit`] whose leader waits for no other thread: what is due, or makes room, keeps others waiting.
    pub(crate) fn commit_now(
        &self,
        client: &dyn Client,
        target: Epoch,
        cause: CommitCause,
    ) -> Result<(), JournalError> {
        self.refuse_held(target)?;
        self.commit_any(client, target, cause)
    }

    fn refuse_held(&self, target: Epoch) -> Result<(), JournalError> {
        if self.is_held() && self.committed_epoch() < target {
            Err(JournalError::Held)
        } else {
            Ok(())
        }
    }

    /// [`Journal::commit_now`], also of what is held back.
    pub(crate) fn commit_any(
        &self,
        client: &dyn Client,
        target: Epoch,
        cause: CommitCause,
    ) -> Result<(), JournalError> {
        self.commit_led(client, target, cause)
    }

    fn commit_led(
        &self,
        client: &dyn Client,
        target: Epoch,
        cause: CommitCause,
    ) -> Result<(), JournalError> {
        let lead = self.lead_commit(cause, target, |leaders| leaders.committed >= target)?;
        let Some(mut lead) = lead else {
            return Ok(());
        };
        let sealed = self.seal();
        self.open_next(&sealed);
        lead.end(sealed.epoch, self.write_epoch(client, &sealed, cause)?);
        Ok(())
    }

    /// Blocks of the log that are in use or promised, and all of its blocks.
    #[must_use]
    pub fn log_usage(&self) -> (u64, u64) {
        self.space.usage()
    }

    /// Whether a thread commits, or the journal is frozen.
    pub(crate) fn is_committing(&self) -> bool {
        self.leaders.lock().is_committing
    }

    /// Waits until `is_done`, when `target` is durable at the latest, and returns `None` then; or until no other thread
    /// commits and no delay is left, for which [`CommitCause::Quiesce`] does not wait, and returns the lead.
    fn lead_commit(
        &self,
        cause: CommitCause,
        target: Epoch,
        is_done: impl Fn(&Leaders) -> bool,
    ) -> Result<Option<Lead<'_>>, JournalError> {
        let mut leaders = self.leaders.lock();
        if is_done(&leaders) {
            return Ok(None);
        }
        self.abort.check()?;
        self.statistics.syncs.add(1);
        // A sync's leader waits for others that may want the commit as well.
        let has_time = cause == CommitCause::Sync;
        if !has_time {
            leaders.commits.hurry(&self.commit_gathered);
        } else if !leaders.is_committing || target > leaders.committing {
            // A thread that wants no more than what is being committed does not count for the next one.
            leaders.commits.ask(&self.commit_gathered);
        }
        loop {
            let delay = match cause {
                _ if leaders.is_committing => None,
                CommitCause::Quiesce => break,
                _ => leaders.delays.left(u64::MAX),
            };
            match delay {
                _ if leaders.is_committing => self.changed.wait(&mut leaders),
                Some(left) => {
                    leaders.delays.waiting += 1;
                    let _is_late = self.changed.wait_for(&mut leaders, left);
                    leaders.delays.waiting -= 1;
                }
                None => break,
            }
            let is_over = is_done(&leaders);
            if is_over || self.abort.check().is_err() {
                // A thread that begins a delay waits until no commit waits, and this one leads none that would wake it.
                self.changed.notify_all();
            }
            if is_over {
                return Ok(None);
            }
            self.abort.check()?;
        }
        leaders.is_committing = true;
        if has_time {
            self.gather(&mut leaders, &self.commit_gathered, |leaders| {
                &mut leaders.commits
            });
        }
        let served = leaders.commits.begin();
        // The leader seals it.
        leaders.committing = self.current_epoch();
        // What ends with the lead is done under the lock.
        drop(leaders);
        let mut lead = Lead::of(self, LedJob::Commit);
        lead.served = Some(served);
        // Much may have failed meanwhile.
        self.abort.check()?;
        Ok(Some(lead))
    }

    /// Step 1, without the opening.
    fn seal(&self) -> SealedEpoch {
        let sealing = gauge::begin(Gauge::Seal);
        let (epoch, closed_at) = self.epochs.seal(&self.statistics);
        SealedEpoch {
            _sealing: sealing,
            epoch,
            closed_at,
            did: self.space.seal(epoch),
        }
    }

    fn open_next(&self, sealed: &SealedEpoch) {
        self.epochs.open(sealed.epoch);
        self.statistics
            .seal_pauses
            .add(sync::clock::now() - sealed.closed_at);
    }

    /// Steps 2 to 5, by the only leader; returns whether that took a flush. A failure aborts.
    fn write_epoch(
        &self,
        client: &dyn Client,
        sealed: &SealedEpoch,
        cause: CommitCause,
    ) -> Result<bool, JournalError> {
        let is_written = self
            .try_write_epoch(client, sealed)
            .map_err(|error| self.fail(error))?;
        self.statistics.causes[cause as usize].add(u64::from(is_written));
        Ok(is_written)
    }

    fn try_write_epoch(
        &self,
        client: &dyn Client,
        sealed: &SealedEpoch,
    ) -> Result<bool, JournalError> {
        // 2.
        let (epoch, promised) = (sealed.epoch, sealed.did.blocks);
        let has_fast_commits = client.end_fast_log(epoch);
        let forgotten: BTreeSet<FsBlock> = self.forgotten.take(epoch).into_iter().collect();
        let mut images = self.stage(client, epoch)?;
        images.retain(|(block, _)| !forgotten.contains(block));
        let revokes: Vec<FsBlock> = forgotten
            .iter()
            .copied()
            .filter(|block| self.table.has_copy(*block))
            .filter(|_| !canary::makes(Canary::RevokeLeftOut))
            .collect();
        if images.is_empty() && revokes.is_empty() {
            self.space.release(promised);
            client.committed(epoch);
            return Ok(false);
        }
        // 3 and 4.
        let Some(log) = &self.log else {
            self.write_without_log(&images)?;
            self.space.release(promised);
            client.committed(epoch);
            return Ok(true);
        };
        self.make_fit(log, images.len(), revokes.len())?;
        let transaction = Transaction {
            images: &images,
            revokes: &revokes,
            is_async: self.options.async_commit
                && !self.is_held()
                && revokes.is_empty()
                && !(self.options.is_ordered && sealed.did.maps_data),
            time: (self.clock)(),
            check: &|| self.abort.check(),
        };
        let logged = images.len() as u64;
        let freed: Vec<FsBlock> = forgotten.into_iter().collect();
        // One hold of the log for the transaction and its entry in the table: a checkpoint in between would find
        // nothing that needs the log, and declare it empty.
        let mut log = log.lock();
        let written = log.write(&transaction, self.statistics.of_log())?;
        self.table
            .committed(written.tid, written.start, written.blocks, images, &freed);
        drop(log);
        if has_fast_commits {
            self.wipe_fast()?;
        }
        self.abort.check()?;
        if let Some(fast) = &self.fast {
            fast.committed(written.tid.next());
        }
        self.table.wait_until_landed(&freed);
        self.statistics.commits.add(1);
        self.statistics.logged_blocks.add(logged);
        self.statistics.revokes.add(revokes.len() as u64);
        let unused = promised.checked_sub(written.blocks.into());
        // A transaction larger than its handles' promises may have overwritten the log's tail.
        assert!(
            unused.is_some(),
            "{} blocks were promised, {} written",
            promised,
            written.blocks
        );
        self.space.release(unused.unwrap_or(0));
        // 5.
        client.committed(epoch);
        Ok(true)
    }
}

/// An epoch that is closed and drained.
struct SealedEpoch {
    epoch: Epoch,
    closed_at: Instant,
    did: Sealed,
    /// Until it is durable.
    _sealing: Under,
}
