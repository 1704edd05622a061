//! What the commit does with the images of an epoch: it stages them, and makes room for them in the log or, without a
//! log, writes them home. Only the commit's leader calls this. [`super`] describes what a crash leaves.

use jbd2::{Log, cost};
use ondisk::FsBlock;
use sync::Mutex;

use crate::abort::JournalError;
use crate::client::{Client, Folded};
use crate::epoch::Epoch;
use crate::journal::{BlockImages, Journal};

impl Journal {
    /// Makes room in the log for a transaction of this number of blocks and of revokes.
    ///
    /// If the log does not wrap and would reach its end, what is committed is written home first. The committer holds
    /// nothing, and a checkpoint waits for no commit and no promise, so this ends; and nothing is committed meanwhile,
    /// so the log is empty then, with room for every transaction that was promised any.
    pub(super) fn make_fit(
        &self,
        log: &Mutex<Log>,
        images: usize,
        revokes: usize,
    ) -> Result<(), JournalError> {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let needed = cost(count(images), count(revokes));
        let held_most = self.held_most();
        if held_most > 0 && u64::from(needed) > held_most {
            return Err(JournalError::Held);
        }
        if !log.lock().has_room_before_its_end(needed) {
            self.statistics.log_turns.add(1);
            self.checkpoint()?;
            if !log.lock().has_room_before_its_end(needed) {
                let wrong = "a transaction is larger than the log";
                return Err(JournalError::Aborted(wrong.into()));
            }
        }
        Ok(())
    }

    /// Step 3 without a log: flushes, writes the images home, and flushes again.
    pub(super) fn write_without_log(&self, images: &BlockImages) -> Result<(), JournalError> {
        self.statistics.flushes.add(2);
        self.home.flush()?;
        // A concurrent flush that failed, and aborted the journal, may have lost what this one was for.
        self.abort.check()?;
        self.write_blocks(images)?;
        self.home.flush()?;
        self.abort.check()?;
        self.statistics.commits.add(1);
        self.statistics.checkpointed_blocks.add(images.len() as u64);
        Ok(())
    }

    /// Step 2 of a commit: the images of all blocks that the sealed epoch changed.
    pub(super) fn stage(
        &self,
        client: &dyn Client,
        sealed: Epoch,
    ) -> Result<BlockImages, JournalError> {
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
}
