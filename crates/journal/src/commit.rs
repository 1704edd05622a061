//! The journal as its users see it, and the two jobs that move changes to disk. Each job has one leader at a time,
//! found under [`Rank::JournalLeader`]; others that want the same wait there with nothing else held.
//!
//! Commit, in numbered steps:
//! 1. seal the running epoch, wait for its handles, open the next;
//! 2. stage: objects, then the client's lists; drop the images of blocks that the epoch freed;
//! 3. write the transaction (log.rs); CRASH: from here on it is found;
//! 4. put its images up for the checkpoint, cancel those of freed blocks, true up the space;
//! 5. tell the client, then whoever waits.

use std::collections::BTreeSet;

use device::BlockDevice;
use ondisk::FsBlock;
use sync::gauge::{self, Gauge};
use sync::{Arc, Condvar, Mutex, Rank};

use crate::abort::{Abort, JournalError};
use crate::client::{Client, Folded};
use crate::epoch::{Epoch, Epochs};
use crate::handle::Handle;
use crate::lists::EpochLists;
use crate::log::{Log, Transaction};
use crate::map::LogMap;
use crate::object::Stageable;
use crate::options::{Options, Statistics};
use crate::space::{Space, cost};
use crate::table::Table;

/// Blocks that a checkpoint writes between two flushes.
const CHECKPOINT_BATCH: usize = 1024;
/// A transaction's blocks and what they hold.
type Images = Vec<(FsBlock, Arc<[u8]>)>;

/// How often a reservation makes room before it gives up: a commit and a checkpoint always make some.
const ROOM_TRIES: usize = 64;

/// A journal, open for writing. Shared by reference between threads.
pub struct Journal {
    epochs: Epochs,
    pub(crate) space: Space,
    /// Objects first changed in an epoch.
    pub(crate) dirty: EpochLists<Arc<dyn Stageable>>,
    /// Blocks that no longer hold metadata.
    pub(crate) forgotten: EpochLists<FsBlock>,
    table: Table,
    /// [log area]
    log: Mutex<Log>,
    /// The file system's device, to which checkpoints write.
    home: Arc<dyn BlockDevice>,
    /// [journal leader]
    leaders: Mutex<Leaders>,
    changed: Condvar,
    abort: Abort,
    statistics: Statistics,
    options: Options,
    block_bytes: usize,
    clock: fn() -> (i64, u32),
}

#[derive(Default)]
struct Leaders {
    is_committing: bool,
    is_checkpointing: bool,
    /// All epochs up to this one are durable.
    committed: Epoch,
}

/// The lead of a commit or a checkpoint; however it ends, those who wait go on. A panic aborts the journal first.
struct Lead<'a> {
    journal: &'a Journal,
    is_commit: bool,
    /// What is durable now.
    committed: Option<Epoch>,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if sync::thread::panicking() {
            // The panic itself tells its cause; this is for everyone else.
            let _ = self.journal.abort.because(JournalError::Aborted(
                "a panic during a commit or checkpoint".into(),
            ));
        }
        let mut leaders = self.journal.leaders.lock();
        if self.is_commit {
            leaders.is_committing = false;
        } else {
            leaders.is_checkpointing = false;
        }
        leaders.committed = self.committed.unwrap_or(leaders.committed);
        self.journal.changed.notify_all();
    }
}

/// Log space promised to a handle that has not begun. Dropping it gives the promise back.
pub struct Credits<'a> {
    journal: &'a Journal,
    blocks: u32,
    revokes: u32,
}

impl Drop for Credits<'_> {
    fn drop(&mut self) {
        self.journal
            .space
            .give_back(cost(self.blocks, self.revokes));
    }
}

impl Journal {
    /// Opens a clean journal (replayed before, if it was dirty).
    ///
    /// `superblock_at` is the journal block that holds its superblock: 0 in an inode. `clock` stamps commit records.
    ///
    /// # Errors
    /// When it can't be read, is no journal, or is dirty.
    pub fn open(
        map: LogMap,
        superblock_at: u32,
        home: Arc<dyn BlockDevice>,
        options: Options,
        clock: fn() -> (i64, u32),
    ) -> Result<Journal, JournalError> {
        let block_bytes = map.block_size().bytes();
        let is_external = !Arc::ptr_eq(map.device(), &home);
        let mut log = Log::open(map, superblock_at, is_external.then(|| Arc::clone(&home)))?;
        log.enable_revokes();
        Ok(Journal {
            epochs: Epochs::new(),
            space: Space::new(log.capacity(), 0),
            dirty: EpochLists::new(),
            forgotten: EpochLists::new(),
            table: Table::new(),
            log: Mutex::new(Rank::LogArea, log),
            home,
            leaders: Mutex::new(Rank::JournalLeader, Leaders::default()),
            changed: Condvar::new(),
            abort: Abort::default(),
            statistics: Statistics::default(),
            options,
            block_bytes,
            clock,
        })
    }

    /// What was counted so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The epoch to which a handle that begins now belongs; a sync promises all up to it.
    pub fn current_epoch(&self) -> Epoch {
        self.epochs.current()
    }

    /// All epochs up to this one are durable.
    pub fn committed_epoch(&self) -> Epoch {
        self.leaders.lock().committed
    }

    /// Whether someone should commit soon, because the running epoch is half as large as a transaction gets.
    pub fn is_commit_due(&self) -> bool {
        self.space.is_commit_due()
    }

    /// Whether someone should checkpoint soon: half of the staged memory or of the log is in use.
    pub fn is_checkpoint_due(&self) -> bool {
        self.table.image_bytes() * 2 > self.options.staged_bytes
            || self.space.free() < i64::from(self.space.transaction_most()) * 2
    }

    /// Promises log space for a step that changes at most `blocks` blocks and revokes at most `revokes`. May commit
    /// and checkpoint to make room, so it is called while preparing, without an open handle.
    ///
    /// # Errors
    /// When the step is larger than a transaction, or the journal is or becomes aborted.
    pub fn reserve(
        &self,
        client: &dyn Client,
        blocks: u32,
        revokes: u32,
    ) -> Result<Credits<'_>, JournalError> {
        let wanted = cost(blocks, revokes);
        let most = self.space.transaction_most();
        if wanted > most {
            return Err(JournalError::TooLarge { wanted, most });
        }
        for _ in 0..ROOM_TRIES {
            self.abort.check()?;
            if self.table.image_bytes() > self.options.staged_bytes {
                self.checkpoint()?;
            }
            if self.space.take(wanted, &self.statistics) {
                return Ok(Credits {
                    journal: self,
                    blocks,
                    revokes,
                });
            }
            self.commit(client, self.current_epoch())?;
            if self.is_checkpoint_due() {
                self.checkpoint()?;
            }
        }
        Err(JournalError::Full)
    }

    /// Begins a handle in the running epoch. Waits only while an epoch drains.
    ///
    /// # Panics
    /// When this thread has a handle open.
    pub fn begin<'a>(&'a self, credits: Credits<'a>) -> Handle<'a> {
        let presence = self.epochs.enter(&self.statistics);
        let (blocks, revokes) = (credits.blocks, credits.revokes);
        std::mem::forget(credits);
        Handle::new(self, presence, blocks, revokes)
    }

    /// Makes everything up to `target` durable; returns at once if it is. Callers share: one leads, the rest wait.
    /// Call it without a handle and without any lock that a handle may be held under.
    ///
    /// # Errors
    /// When the journal is or becomes aborted; what was promised before still holds.
    pub fn commit(&self, client: &dyn Client, target: Epoch) -> Result<(), JournalError> {
        let mut leaders = self.leaders.lock();
        loop {
            if leaders.committed >= target {
                return Ok(());
            }
            self.abort.check()?;
            if !leaders.is_committing {
                break;
            }
            self.changed.wait(&mut leaders);
        }
        leaders.is_committing = true;
        drop(leaders);
        let mut lead = Lead {
            journal: self,
            is_commit: true,
            committed: None,
        };
        let committed = self
            .lead(client)
            .map_err(|error| self.abort.because(error))?;
        lead.committed = Some(committed);
        Ok(())
    }

    /// One commit, by its only leader.
    fn lead(&self, client: &dyn Client) -> Result<Epoch, JournalError> {
        // 1.
        let sealing = gauge::begin(Gauge::Seal);
        let sealed = self.epochs.seal(&self.statistics);
        let promised = self.space.seal(sealed);
        self.epochs.open(sealed);
        // 2.
        let forgotten: BTreeSet<FsBlock> = self.forgotten.take(sealed).into_iter().collect();
        let mut images = self.stage(client, sealed)?;
        images.retain(|(block, _)| !forgotten.contains(block));
        let revokes: Vec<FsBlock> = forgotten
            .iter()
            .copied()
            .filter(|block| self.table.has_copy(*block))
            .collect();
        if images.is_empty() && revokes.is_empty() {
            self.space.release(promised);
            client.committed(sealed);
            return Ok(sealed);
        }
        // 3.
        let transaction = Transaction {
            images: &images,
            revokes: &revokes,
            is_async: self.options.async_commit,
            time: (self.clock)(),
        };
        let logged = images.len() as u64;
        let freed: Vec<FsBlock> = forgotten.into_iter().collect();
        // One hold of the log for the transaction and its entry in the table: a checkpoint in between would find
        // nothing that needs the log, and declare it empty.
        let mut log = self.log.lock();
        let written = log.write(&transaction, &self.statistics)?;
        drop(sealing);
        // 4.
        self.table
            .committed(written.tid, written.start, written.blocks, images, &freed);
        drop(log);
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
        client.committed(sealed);
        Ok(sealed)
    }

    fn stage(&self, client: &dyn Client, sealed: Epoch) -> Result<Images, JournalError> {
        let base = |block: FsBlock, buf: &mut [u8]| match self.table.newest(block) {
            Some(image) => {
                buf.copy_from_slice(&image);
                Ok(())
            }
            None => client.read_home(block, buf),
        };
        let mut folded = Folded {
            images: Default::default(),
            block_bytes: self.block_bytes,
            base: &base,
        };
        for object in self.dirty.take(sealed) {
            let block = object.block();
            let image = if object.is_whole_block() {
                folded.new_image(block)
            } else {
                folded.image(block)?
            };
            object.stage(sealed, image);
        }
        client.fold(sealed, &mut folded)?;
        Ok(folded
            .images
            .into_iter()
            .map(|(block, image)| (block, image.into()))
            .collect())
    }

    /// The newest committed contents of a block that is not home yet: what a reader of the device would miss.
    pub fn newest(&self, block: FsBlock) -> Option<Arc<[u8]>> {
        self.table.newest(block)
    }

    /// Writes all committed images home and empties the log behind them. One leads; others wait and find it done.
    ///
    /// # Errors
    /// When the journal is or becomes aborted.
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        let mut leaders = self.leaders.lock();
        while leaders.is_checkpointing {
            self.changed.wait(&mut leaders);
        }
        self.abort.check()?;
        leaders.is_checkpointing = true;
        drop(leaders);
        let _lead = Lead {
            journal: self,
            is_commit: false,
            committed: None,
        };
        self.write_home().map_err(|error| self.abort.because(error))
    }

    fn write_home(&self) -> Result<(), JournalError> {
        loop {
            let batch = self.table.begin_batch(CHECKPOINT_BATCH);
            let written = batch.iter().try_for_each(|(block, _, image)| {
                self.home.write_at(block.0 * self.block_bytes as u64, image)
            });
            let flushed = written.and_then(|()| {
                self.statistics.flushes.add(1);
                self.home.flush()
            });
            // Kept until the tail is on disk: no transaction may come between the look at the table and that.
            let mut log = self.log.lock();
            let tail = self.table.end_batch(&batch, flushed.is_ok());
            flushed?;
            self.statistics.checkpointed_blocks.add(batch.len() as u64);
            // CRASH: the old tail replays what is home already; the space is released only when the new one is durable.
            log.move_tail(tail.oldest, &self.statistics)?;
            drop(log);
            self.space.release(tail.freed);
            if batch.len() < CHECKPOINT_BATCH {
                return Ok(());
            }
        }
    }

    /// Commits, checkpoints and leaves an empty log, for a clean unmount. No handle begins meanwhile.
    ///
    /// # Errors
    /// As [`Journal::commit`] and [`Journal::checkpoint`].
    pub fn close(&self, client: &dyn Client) -> Result<(), JournalError> {
        self.commit(client, self.current_epoch())?;
        self.checkpoint()
    }
}
