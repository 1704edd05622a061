//! The engine as the journal's client: how a sealed epoch's lock-free changes get into the images of their blocks,
//! and what becomes free when it is durable; and the commit of everything.
//!
//! Locks: the committer holds none of ours while it calls `fold`; `committed` takes one group's lock after another.

use journal::canary::{self, Canary};
use journal::{Client, Epoch, Folded, JournalError};
use ondisk::FsBlock;

use crate::core::Error;
use crate::token::LiveFs;

impl Client for LiveFs {
    fn fold(&self, sealed: Epoch, folded: &mut Folded<'_>) -> Result<(), JournalError> {
        if canary::makes(Canary::CleanNeighbourFromMemory) {
            self.encode_neighbours(folded)?;
        }
        self.groups().fold(self.volume(), sealed, folded)?;
        let (writing, geometry) = (self.writing(), self.volume().geometry());
        writing.errors.fold(geometry, sealed, folded)?;
        writing.large_file.fold(geometry, sealed, folded)?;
        writing.ext_attr.fold(geometry, sealed, folded)?;
        writing.label.fold(geometry, sealed, folded)?;
        self.orphans().fold(geometry, sealed, folded)
    }

    fn end_fast_log(&self, sealed: Epoch) -> bool {
        match (self.fast(), self.changes()) {
            (Some(fast), Some(changes)) => fast.end(sealed, changes),
            _ => false,
        }
    }

    fn committed(&self, epoch: Epoch) {
        self.groups().committed(self.volume(), epoch);
        self.inodes().committed();
        self.keep_bounds();
        self.ialloc().keep_bounds();
    }

    fn read_home(&self, block: FsBlock, buf: &mut [u8]) -> Result<(), JournalError> {
        Ok(self
            .volume()
            .cache()
            .device()
            .read_at(block.offset(self.volume().geometry().block_size()), buf)?)
    }
}

impl LiveFs {
    /// Makes everything that was applied before this call durable. Shared with others that ask at the same time.
    ///
    /// # Errors
    /// `ReadOnly`, `Aborted`.
    pub(crate) fn sync_all(&self) -> Result<(), Error> {
        let journal = &self.writing().journal;
        let current = journal.current_epoch();
        journal.commit(self, current)?;
        // An epoch in which nothing changed is not written, so nothing was flushed; data written over others in place
        // may have left their inodes as they were.
        if journal.flushed_epoch() < current {
            journal.flush_data()?;
        }
        Ok(())
    }
}
