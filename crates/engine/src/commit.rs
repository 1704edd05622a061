//! The engine as the journal's client: how a sealed epoch's lock-free changes get into the images of their blocks, and
//! what becomes free when it is durable. Also where every operation gets its log space and its handle.
//!
//! Locks: the committer holds none of ours while it calls `fold`; `committed` takes one group's lock after another.

use journal::{Client, Credits, Epoch, Folded, Handle, JournalError};
use ondisk::{FsBlock, Timestamp};

use crate::error::Error;
use crate::icache::Icache;

impl Client for Icache {
    fn fold(&self, sealed: Epoch, folded: &mut Folded<'_>) -> Result<(), JournalError> {
        self.groups().fold(self.volume(), sealed, folded)
    }

    fn committed(&self, epoch: Epoch) {
        self.groups().committed(self.volume(), epoch);
    }

    fn read_home(&self, block: FsBlock, buf: &mut [u8]) -> Result<(), JournalError> {
        Ok(self
            .volume()
            .cache()
            .device()
            .read_at(block.offset(self.volume().geometry().block_size()), buf)?)
    }
}

impl Icache {
    /// Log space for a step that changes at most `blocks` metadata blocks and frees at most `revokes`. May commit and
    /// checkpoint: called while preparing, without a handle.
    ///
    /// # Errors
    /// `ReadOnly`; `Aborted` when the journal is or becomes aborted, or the step is too large.
    pub(crate) fn reserve(&self, blocks: u32, revokes: u32) -> Result<Credits<'_>, Error> {
        Ok(self
            .volume()
            .writing()?
            .journal
            .reserve(self, blocks, revokes)?)
    }

    /// Begins the step that was prepared.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn begin<'a>(&'a self, credits: Credits<'a>) -> Result<Handle<'a>, Error> {
        Ok(self.volume().writing()?.journal.begin(credits))
    }

    /// The time now, for stamps on inodes.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn now(&self) -> Result<Timestamp, Error> {
        Ok((self.volume().writing()?.clock)())
    }

    /// Makes everything that was applied before this call durable. Shared with others that ask at the same time.
    ///
    /// # Errors
    /// `ReadOnly`, `Aborted`.
    pub(crate) fn sync_all(&self) -> Result<(), Error> {
        let journal = &self.volume().writing()?.journal;
        journal.commit(self, journal.current_epoch())?;
        Ok(())
    }
}
