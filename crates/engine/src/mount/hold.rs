//! All that is done between two moments as one transaction: the journal holds its commits back, and the end commits or
//! forgets everything. Nobody else uses the volume meanwhile. What a crash leaves: the state at the hold, or that at
//! the end.

use journal::JournalError;

use super::{say_clean, unmount};
use crate::core::Error;
use crate::reap;
use crate::token::LiveFs;

/// Makes all that happens from here on one transaction, which [`unmount_held`] commits and [`abandon`] forgets.
///
/// # Errors
/// `Unwritable` with inodes that are in the middle of being deleted; `ReadOnly`; `Aborted`, also without a journal.
pub(crate) fn hold(mounted: &LiveFs) -> Result<(), Error> {
    reap::drain(mounted);
    if !mounted.orphans().is_empty() {
        return Err(Error::Unwritable("files in it are being deleted"));
    }
    Ok(mounted.writing().journal.hold(mounted)?)
}

/// Leaves the image as it was at [`hold`], except free blocks and the state that a mount writes into the superblock.
/// The volume is not in use any more.
///
/// # Errors
/// `Io`: the image is then one that is replayed when it is opened, to the same state.
pub(crate) fn abandon(mounted: &LiveFs) -> Result<(), Error> {
    // There were no orphans, or it would not have been held.
    say_clean(mounted, true)
}

/// Commits what was held, if all of it is there, and unmounts.
///
/// # Errors
/// `Aborted` when it does not fit one transaction: nothing was changed then.
pub(crate) fn unmount_held(mounted: &LiveFs) -> Result<(), Error> {
    reap::drain(mounted);
    let committed = if mounted.orphans().is_empty() {
        mounted.writing().journal.commit_held(mounted)
    } else {
        Err(JournalError::Held)
    };
    match committed {
        Ok(()) => unmount(mounted),
        Err(JournalError::Held) => abandon(mounted).and(Err(JournalError::Held.into())),
        // The next program that opens the image sees whether it is in the log.
        Err(error) => Err(error.into()),
    }
}
