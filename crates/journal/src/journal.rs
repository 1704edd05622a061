//! The journal as its users see it: its parts, how it is opened and aborted, and the leaders of its jobs.
//!
//! Each job (commit, checkpoint, making room, flushing data) has one leader at a time, found under
//! [`Rank::JournalLeader`]; other threads that want the same job wait there with nothing else held. The jobs are the
//! modules below this one, which add their methods to [`Journal`]; making room, and beginning handles, is `room.rs`.
//!
//! CRASH: `journal/commit.rs` describes what a crash leaves of a commit, `journal/checkpoint.rs` of a checkpoint.

use device::BlockDevice;
use ondisk::{BlockSize, FsBlock};
use sync::{Arc, CachePadded, Condvar, Guarded, Mutex, Rank};

use crate::abort::{Abort, Aborted, JournalError};
use crate::epoch::{Epoch, Epochs};
use crate::lists::EpochLists;
use crate::long_handles::LongHandles;
use crate::object::Stageable;
use crate::options::{JournalStatistics, Options};
use crate::space::{LARGEST_STEP, LogSpace};
use crate::table::CopyTables;
use jbd2::{Log, LogMap};

mod attend;
mod checkpoint;
mod commit;
mod delay;
mod fast;
mod flush;
mod gather;
mod hold;

pub use delay::CommitDelay;

use attend::Attendant;
use delay::Delays;
use fast::FastArea;
use flush::Flushes;
use gather::{Company, Served};

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
    /// head of `journal/commit.rs` describe what a crash leaves.
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

    /// The places in the code (file, line) that began handles which a seal waited for more than a millisecond for, and
    /// how often each did.
    pub fn long_handles(&self) -> Vec<(String, u64)> {
        self.long_handles.all()
    }

    /// Blocks of the log that are in use or promised, and all of its blocks.
    #[must_use]
    pub fn log_usage(&self) -> (u64, u64) {
        self.space.usage()
    }
}
