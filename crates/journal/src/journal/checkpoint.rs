//! The checkpoint: committed images go home, then the tail of the log moves over what needs it no more.
//!
//! Numbered steps, by the only leader, batch after batch:
//! 1. take images, oldest transactions first, in ascending order of blocks;
//! 2. write them home; flush; CRASH: the log still has them, and replay writes them again;
//! 3. move the tail, flushed; only then its space is free.
//!
//! The log is locked ([`sync::Rank::LogArea`]) for 3 only: no transaction may come between the look at the table and
//! the tail on disk.

use ondisk::FsBlock;
use sync::Arc;

use super::{BlockImages, Journal, Lead, LedJob};
use crate::abort::JournalError;
use crate::canary::{self, Canary};

/// Blocks that a checkpoint writes between two flushes.
const BATCH: usize = 1024;
/// Bytes of neighbouring blocks that are written with one request.
const REQUEST_BYTES: usize = 1 << 20;

impl Journal {
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
        let _lead = Lead::of(self, LedJob::Checkpoint);
        if self.table.is_empty() {
            return Ok(());
        }
        self.write_home().map_err(|error| self.fail(error))
    }

    fn write_home(&self) -> Result<(), JournalError> {
        // Without a log nothing is ever put up for the checkpoint.
        let Some(log) = &self.log else { return Ok(()) };
        loop {
            // 1.
            let batch = self.table.begin_batch(BATCH);
            let images: BlockImages = batch
                .iter()
                .map(|(block, _, image)| (*block, Arc::clone(image)))
                .collect();
            // 2.
            let written = self.write_blocks(&images).and_then(|()| {
                if !images.is_empty() && !canary::makes(Canary::TailBeforeHome) {
                    self.statistics.flushes.add(1);
                    self.home.flush()?;
                }
                // If a concurrent flush failed, it may have lost what was written here.
                self.abort.check()
            });
            // 3.
            let mut log = log.lock();
            let tail = self.table.end_batch(&batch, written.is_ok());
            written?;
            self.statistics.checkpointed_blocks.add(batch.len() as u64);
            log.move_tail(tail.oldest, self.statistics.of_log())?;
            drop(log);
            self.space.release(tail.freed);
            if batch.len() < BATCH {
                return Ok(());
            }
        }
    }

    /// Writes images, ascending by block, home: neighbours together.
    pub(crate) fn write_blocks(&self, images: &BlockImages) -> Result<(), JournalError> {
        let bytes = self.block_bytes;
        let mut gathered: Vec<u8> = Vec::new();
        let mut first = 0;
        for (block, image) in images {
            let next = first + (gathered.len() / bytes) as u64;
            let fits = gathered.len() + bytes <= REQUEST_BYTES.max(bytes);
            if !gathered.is_empty() && (next != block.0 || !fits) {
                self.home.write_at(first * bytes as u64, &gathered)?;
                gathered.clear();
            }
            if gathered.is_empty() {
                first = block.0;
            }
            gathered.extend_from_slice(image);
        }
        if !gathered.is_empty() {
            self.home.write_at(first * bytes as u64, &gathered)?;
        }
        Ok(())
    }
}
