//! Brings fast commits home, before a repair decides anything.
//!
//! CRASH: until the transaction that takes their place is committed the fast commits count, and are replayed again;
//! from then on it is replayed. Without a journal that can take the transaction, the blocks are written in stages while
//! the fast commits still count.

use std::collections::BTreeMap;

use device::BlockDevice;
use jbd2::recovery;
use ondisk::{Feature, FsBlock, Geometry, Superblock};
use sync::Arc;

use super::{RepairError, Writer};
use crate::substitute::first;

/// The device with its log and fast commits applied, in memory and for reading only; or else why they can't be applied.
pub(super) type View = Result<Arc<dyn BlockDevice>, String>;

/// Applies the log and its fast commits in memory.
///
/// # Errors
/// When the device fails, or lanefs does not support fast commits on such a file system: they may be sound.
pub(super) fn view(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
) -> Result<View, RepairError> {
    use engine::Error;
    let choices = engine::MountOptions {
        journal_device,
        ..engine::MountOptions::default()
    };
    let error = match engine::InodeFs::open(Arc::clone(device), &choices) {
        Ok(fs) => return Ok(Ok(Arc::clone(fs.device()))),
        Err(error) => error,
    };
    let cause = match &error {
        Error::FastCommits(cause) => cause,
        error => error,
    };
    match cause {
        Error::Unwritable(_)
        | Error::UnwritableFeature(_)
        | Error::Unsupported(_)
        | Error::UnsupportedImage(_) => Err(RepairError::FastCommits(Box::new(error))),
        _ => match error {
            Error::Io(error) => Err(error.into()),
            Error::Journal(recovery::Error::Io(error)) => Err(error.into()),
            error => Ok(Err(error.to_string())),
        },
    }
}

/// Writes what the view holds to the device. The log is empty, but in use, and not needed any more when this returns.
/// `now` is the time of the commit, in seconds since 1970.
///
/// # Errors
/// When the device fails; then the fast commits still count, or the transaction in their place does.
pub(super) fn bring_home(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    view: &dyn BlockDevice,
    now: u64,
) -> Result<(), RepairError> {
    let writes = check::repair::of_changes(view, changes(&**device, view)?)?;
    let writer = Writer {
        device: &**device,
        writes: &writes,
        now,
        has_fast_commits: true,
    };
    if writer.run()? {
        return Ok(());
    }
    let sb = first(&**device)?;
    let geometry = Geometry::new(&sb, device.size())
        .map_err(|wrong| check::Error::Replay(format!("then the superblock is wrong: {wrong}")))?;
    recovery::drop_fast_commits(device, &sb, &geometry, journal_device)?;
    writer.change_superblock(|sb| {
        sb.set_features(sb.features().without(Feature::NEEDS_RECOVERY));
    })
}

/// The blocks of the view that differ from the device.
fn changes(
    device: &dyn BlockDevice,
    view: &dyn BlockDevice,
) -> Result<BTreeMap<u64, Box<[u8]>>, RepairError> {
    let sb: Superblock = first(view)?;
    let geometry = Geometry::new(&sb, device.size())
        .map_err(|wrong| check::Error::Replay(format!("then the superblock is wrong: {wrong}")))?;
    let size = geometry.block_size();
    let (mut old, mut new) = (vec![0; size.bytes()], vec![0; size.bytes()]);
    let mut changes = BTreeMap::new();
    for block in 0..geometry.blocks_count() {
        let offset = FsBlock(block).offset(size);
        device.read_at(offset, &mut old)?;
        view.read_at(offset, &mut new)?;
        if old != new {
            changes.insert(block, new.clone().into_boxed_slice());
        }
    }
    Ok(changes)
}
