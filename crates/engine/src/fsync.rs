//! fsync and fdatasync: what must become durable for one inode, and nothing more.
//!
//! A step that changes a file's map, size or attributes changes its inode too. So the inode's stamps show which epoch
//! must be durable: for fsync the last epoch that changed the inode at all, for fdatasync the last one that changed
//! what it takes to read the data (not times, owner or permissions). Data written to blocks that the file had before
//! belong to no epoch. If no flush that began after such a write has ended ([`LiveInode::overwritten`]), the device is
//! flushed without a commit, or in the log's next step if that is worth waiting for.
//!
//! If the journal has an area for fast commits, the inode and everything that belongs to it are logged there
//! ([`logged`]). What can't be logged, or not now, is committed in full. Of an inode without names only the data are
//! flushed, because a crash deletes it; without an area for fast commits it is committed like any other.
//!
//! A change of an inode that is synchronous by its flags, or by the mount's options, ends with an fsync of the inode
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

/// What an fsync makes durable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncScope {
    /// Data and all attributes.
    All,
    /// Data, and what it takes to read them.
    Data,
}

/// Makes an inode durable; returns at once if it is. A write-out that failed after its caller had returned is reported
/// here: once to each handle that has a count in `seen`, and once to all callers without one together.
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
    /// If a flag of the inode, or the mount, asks for it, makes the inode durable, as an fsync does, before a change of
    /// it is reported. The caller holds no lock.
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
            // Another thread removed the inode meanwhile.
            Err(Error::NotFound) => Ok(()),
            settled => settled,
        }
    }

    /// Does what [`LiveFs::settle`] does, after a change of names in a directory with these flags.
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

/// The error that reports an earlier failed write-out.
fn lost() -> Error {
    Error::Io(DeviceError::Io {
        operation: "write",
        offset: 0,
        len: 0,
        source: std::io::Error::other("an earlier write to the file failed"),
    })
}
