//! fsync and fdatasync: what must become durable for one inode, and nothing more.
//!
//! A step that changes a file's map, size or attributes changes the inode too, so the inode's stamps record which epoch
//! must be durable: the last that changed it at all (fsync), or the last that changed what it takes to read its data
//! (fdatasync: not times, owner or permissions). Data written to blocks that the file had before belong to no epoch. If
//! no flush that began after them has ended ([`LiveInode::overwritten`]), the device is flushed without a commit, or
//! with the log's next step if one is worth waiting for.
//!
//! Where the journal has an area for fast commits, the inode is logged there with what belongs to it ([`logged`]); what
//! can't be, or not now, is committed in full. Of an inode without names only the data are flushed, because after a
//! crash nothing of it is left; without such an area it is committed like any other.
//!
//! What is synchronous by a flag of its own, or by the mount's options, ends with an fsync of itself
//! ([`LiveFs::settle`]).
//!
//! Takes no lock while it waits, and shares commits and flushes with the threads that wait at the same time.

use ondisk::{Flags, Ino};
use sync::Arc;

use device::DeviceError;
use journal::Epoch;

use crate::core::Error;
use crate::core::options::Synchronous;
use crate::inode::LiveInode;
use crate::token::LiveFs;

pub(crate) mod log;
mod logged;
mod replay;

pub(crate) use replay::replay;

/// What is to be durable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncScope {
    /// Everything.
    All,
    /// Data, and what it takes to read them.
    Data,
}

/// Makes an inode durable; returns at once if it is. A write-out that failed after its caller had returned is reported
/// here: once to each caller with a count of its own in `seen`, and once to all others together (`None`).
pub(crate) fn fsync(
    mounted: &LiveFs,
    ino: Ino,
    what: SyncScope,
    seen: Option<&mut u32>,
) -> Result<(), Error> {
    let journal = &mounted.writing().journal;
    // After an abort every caller gets the error, even if the inode was durable before.
    journal.check()?;
    mounted.load_used(ino)?;
    let inode: Arc<LiveInode> = mounted.get(ino)?;
    let changed: Epoch = match what {
        SyncScope::All => inode.stamp(),
        SyncScope::Data => inode.data.stamp(),
    };
    let overwritten = inode.data.overwritten();
    // A log commit flushes all data that were written before it.
    if changed <= journal.committed_epoch() || !logged::log(mounted, &inode, what, changed)? {
        journal.commit(mounted, changed)?;
        if overwritten > journal.flushed_epoch() {
            logged::flush_data(mounted)?;
        }
    }
    let mut told = inode.write_errors.reported();
    if inode.write_errors.report(seen.unwrap_or(&mut told)) {
        Err(lost())
    } else {
        Ok(())
    }
}

impl LiveFs {
    /// Makes what was done to an inode durable before it is reported, if a flag of it or the mount asks for that: as an
    /// fsync of it does. With no lock held.
    ///
    /// # Errors
    /// As an fsync.
    pub(crate) fn settle(&self, ino: Ino, flags: Flags) -> Result<(), Error> {
        let writing = self.writing();
        let is_asked = flags.contains(Flags::SYNC) || writing.synchronous == Synchronous::All;
        if writing.journal.is_held() || !is_asked {
            return Ok(());
        }
        match fsync(self, ino, SyncScope::All, None) {
            // Another removed it meanwhile.
            Err(Error::NotFound) => Ok(()),
            settled => settled,
        }
    }

    /// As [`LiveFs::settle`], after a change of names in a directory with these flags.
    ///
    /// # Errors
    /// As [`LiveFs::settle`].
    pub(crate) fn settle_names(&self, directory: Ino, flags: Flags) -> Result<(), Error> {
        let is_of_all = self.writing().synchronous >= Synchronous::Names;
        if flags.contains(Flags::DIR_SYNC) || is_of_all {
            self.settle(directory, flags.with(Flags::SYNC))
        } else {
            self.settle(directory, flags)
        }
    }
}

/// What is reported of a write-out that failed before.
fn lost() -> Error {
    Error::Io(DeviceError::Io {
        operation: "write",
        offset: 0,
        len: 0,
        source: std::io::Error::other("an earlier write to the file failed"),
    })
}
