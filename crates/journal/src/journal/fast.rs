//! The journal's side of fast commits: where they are written, which transaction they belong to, and what ends them.
//!
//! Fast commits of the running epoch are valid in a log that is in use, from the commit of the last epoch before it
//! until the commit of the epoch itself. The client decides what they record. Before an epoch's commit, the client is
//! told to end its fast commits ([`crate::Client::end_fast_log`]).
//!
//! No lock: the client lets one thread at a time write the area, and the committer wipes it after the client has ended
//! all writes of it. CRASH: as described at [`crate::Journal::write_fast`].

use ondisk::Tid;
use sync::{Arc, Stamp};

use super::Journal;
use crate::abort::JournalError;
use crate::epoch::Epoch;
use jbd2::{Log, LogMap};

/// The area for fast commits.
pub(crate) struct FastArea {
    map: LogMap,
    first: u32,
    blocks: u32,
    /// The next transaction's number and a bit that is set once the log is in use; 0 before. [atomic: written by the
    /// committer]
    next: Stamp,
}

const IN_USE: u64 = 1 << 32;

impl FastArea {
    /// Of a log that has one.
    pub(crate) fn of(log: &Log) -> Option<FastArea> {
        let (map, first, blocks) = log.fast_area()?;
        Some(FastArea {
            map,
            first,
            blocks,
            next: Stamp::new(0),
        })
    }

    /// The log is not in use any more.
    pub(crate) fn ended(&self) {
        self.next.set(0);
    }

    /// All transactions before this one are committed.
    pub(crate) fn committed(&self, next: Tid) {
        self.next.set(IN_USE | u64::from(next.0));
    }
}

impl Journal {
    /// Lets fast commits count from now on, and not only from the first transaction: marks the log as in use, though it
    /// is empty. To be called after the file system's superblock is marked as needing recovery.
    ///
    /// # Errors
    /// When the device fails, which aborts the journal.
    pub fn begin_fast(&self) -> Result<(), JournalError> {
        let (Some(area), Some(log)) = (&self.fast, &self.log) else {
            return Ok(());
        };
        let next = log.lock().begin_use();
        area.committed(next.map_err(|error| self.fail(error))?);
        Ok(())
    }

    /// Blocks of the area for fast commits that may be written; 0 if the journal has no area.
    pub fn fast_blocks(&self) -> u32 {
        self.fast.as_ref().map_or(0, |area| area.blocks)
    }

    /// The transaction number of fast commits of an epoch: if it is the one after all that are committed, in a log that
    /// is in use, and all that is committed is home ([`Journal::is_home`]). The caller has a handle of the epoch, so
    /// that it stays so.
    pub fn fast_tid(&self, epoch: Epoch) -> Option<Tid> {
        let area = self.fast.as_ref()?;
        if self.is_held() || self.committed_epoch().0 + 1 != epoch.0 || !self.is_home() {
            return None;
        }
        let next = area.next.get();
        // The lower half is the number.
        (next & IN_USE != 0).then_some(Tid(next as u32))
    }

    /// Whether all that was committed is written home. e2fsck 1.47, which replays fast commits with what it read before
    /// it replayed the log, gives up where the log holds the directory of a name.
    pub fn is_home(&self) -> bool {
        self.table.is_empty()
    }

    /// Makes all data durable that were written to the device before the call: before blocks of the area are written
    /// that make them readable. Shares its flush with [`Journal::flush_data`]: two at a time would take turns on the
    /// device, and each caller wait for both. Where the log is on another device than the file system, both are
    /// flushed.
    ///
    /// # Errors
    /// When the device fails, or the journal is aborted.
    pub fn flush_before_fast(&self) -> Result<(), JournalError> {
        self.abort.check()?;
        let area = self.fast.as_ref().ok_or(JournalError::NoLog)?;
        self.flush_data()?;
        if Arc::ptr_eq(area.map.device(), &self.home) {
            return Ok(());
        }
        self.statistics.flushes.add(1);
        // A flush that failed may have lost data of any file.
        let flushed = area.map.device().flush();
        flushed.map_err(|error| self.fail(error.into()))
    }

    /// Writes blocks of the area, durably, with all data that were written to the device before the call. One thread at
    /// a time; not once [`crate::Client::end_fast_log`] returned for the epoch.
    ///
    /// CRASH: the blocks may be there in part; a reader sees by their checksums which count.
    ///
    /// # Errors
    /// When the device fails, or the journal is aborted.
    pub fn write_fast(&self, first: u32, blocks: &[u8]) -> Result<(), JournalError> {
        self.abort.check()?;
        let area = self.fast.as_ref().ok_or(JournalError::NoLog)?;
        area.map.write(area.first + first, blocks)?;
        self.flush_before_fast()
    }

    /// The epoch's transaction is committed: its fast commits count no more, and their first block is wiped, because
    /// e2fsck gives up a journal if it finds an old one.
    pub(crate) fn wipe_fast(&self) -> Result<(), JournalError> {
        let Some(area) = &self.fast else {
            return Ok(());
        };
        let wipe = || {
            area.map.write(area.first, &vec![0; self.block_bytes])?;
            self.statistics.flushes.add(1);
            Ok(area.map.device().flush()?)
        };
        // The error ends the journal, but a device may fail once only: then e2fsck does not find the block after all.
        wipe().inspect_err(|_: &JournalError| drop(wipe()))
    }
}
