//! Replays the log onto the device, before a repair decides anything.
//!
//! CRASH: see [`crate::repair`].

use std::ops::Range;

use check::repair::RepairScope;
use device::{BlockDevice, DeviceError};
use jbd2::recovery;
use ondisk::{Feature, Geometry, Site, Superblock};
use sync::Arc;

use super::{RepairError, edit_superblock, set_error, superblock_at};
use crate::substitute::{self, Substitute, first, has_same_layout, is_journal_elsewhere};

/// What became of a journal that was to be replayed.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) is_done: bool,
    /// The device with the fast commits applied, in memory; on the device they are in the journal only.
    pub(super) view: Option<Arc<dyn BlockDevice>>,
    pub(super) failed: Option<String>,
    /// The first superblock now has the layout of the copy that was asked for, so the check reads the first.
    pub(super) has_first: bool,
}

/// Writes the log home, if the superblock asks for a replay. Fast commits behind it stay where they are until the
/// repair's own transaction takes their place.
pub(super) fn replay(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    scope: RepairScope,
) -> Result<Replay, RepairError> {
    // If the first superblock can't be read, nothing asks for a replay.
    let Ok(sb) = first(&**device) else {
        return Ok(Replay::default());
    };
    let geometry = sb
        .verify()
        .ok()
        .and_then(|()| Geometry::new(&sb, device.size()).ok());
    match geometry.filter(asks) {
        Some(geometry) => replay_home(device, journal_device, scope, &sb, &geometry),
        None => Ok(Replay::default()),
    }
}

fn asks(geometry: &Geometry) -> bool {
    geometry.has(Feature::NEEDS_RECOVERY) && geometry.has(Feature::HAS_JOURNAL)
}

/// Writes the substitute over the first superblock, and then the log home. Unless the first superblock was only torn,
/// the error flag is set, and stays set if the log holds a newer superblock.
pub(super) fn replay_under(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    scope: RepairScope,
    substitute: &Substitute,
) -> Result<Replay, RepairError> {
    let (superblock, geometry) = (&substitute.superblock, &substitute.geometry);
    if asks(geometry) && is_journal_elsewhere(superblock) {
        let (image, journal) = (Arc::clone(device), journal_device.clone());
        recovery::scan_and_overlay(image, superblock, geometry, journal)
            .map_err(RepairError::Replay)?;
    }
    substitute::put(&**device, superblock)?;
    let marked: Arc<dyn BlockDevice> = if substitute.is_torn {
        Arc::clone(device)
    } else {
        Arc::new(Marked(Arc::clone(device)))
    };
    let mut replay = if asks(geometry) {
        replay_home(&marked, journal_device, scope, superblock, geometry)?
    } else {
        Replay::default()
    };
    replay.is_done = true;
    let now = first(replay.view.as_deref().unwrap_or(&**device))?;
    let own = now.verify().ok().and_then(|()| Geometry::of(&now).ok());
    replay.has_first = own.is_some_and(|own| has_same_layout(&own, geometry));
    Ok(replay)
}

/// Writes the log home and empties it.
fn replay_home(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    scope: RepairScope,
    sb: &Superblock,
    geometry: &Geometry,
) -> Result<Replay, RepairError> {
    match recovery::replay_to_device(device, sb, geometry, journal_device.clone()) {
        Ok(_) => Ok(Replay {
            is_done: true,
            ..Replay::default()
        }),
        Err(recovery::Error::FastCommitsPending { .. }) => {
            recovery::empty_log(device, sb, geometry).map_err(cannot_empty)?;
            let choices = engine::MountOptions {
                journal_device,
                ..engine::MountOptions::default()
            };
            match engine::InodeFs::open(Arc::clone(device), &choices) {
                Ok(fs) => Ok(Replay {
                    is_done: true,
                    view: Some(Arc::clone(fs.device())),
                    ..Replay::default()
                }),
                Err(error) => Ok(Replay {
                    failed: Some(error.to_string()),
                    ..Replay::default()
                }),
            }
        }
        Err(recovery::Error::Io(error)) => Err(error.into()),
        Err(error) => {
            let is_damaged = matches!(&error, recovery::Error::Corrupt(corrupt)
                if corrupt.site() == Site::JournalCopyChecksum);
            if !is_damaged && is_journal_elsewhere(sb) {
                // Its log may be whole, and a later replay would overwrite what is repaired.
                return Err(RepairError::Replay(error));
            }
            // The sound copies in the log are newer than the blocks at home.
            let is_done = is_damaged
                && scope == RepairScope::All
                && recovery::replay_sound_copies(device, sb, geometry, journal_device).is_ok();
            Ok(Replay {
                is_done,
                failed: Some(error.to_string()),
                ..Replay::default()
            })
        }
    }
}

fn cannot_empty(error: recovery::Error) -> RepairError {
    match error {
        recovery::Error::Io(error) => error.into(),
        // The same log was read to its end a moment ago.
        error => RepairError::Check(check::Error::Replay(error.to_string())),
    }
}

/// A device that sets the error flag in every superblock that is written to the first place: the log's copies of it
/// were made before the first one was lost.
struct Marked(Arc<dyn BlockDevice>);

impl BlockDevice for Marked {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let at = Superblock::OFFSET.checked_sub(offset);
        let at = at.and_then(|at| usize::try_from(at).ok());
        let Some((at, written)) = at.and_then(|at| Some((at, superblock_at(bytes, at)?))) else {
            return self.0.write_at(offset, bytes);
        };
        if written.verify().is_err() {
            return self.0.write_at(offset, bytes);
        }
        let mut bytes = bytes.to_vec();
        edit_superblock(&mut bytes, at, set_error);
        self.0.write_at(offset, &bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.0.discard(range)
    }
}
