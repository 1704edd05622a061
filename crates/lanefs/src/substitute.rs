//! The substitute for the first superblock, under which a check or a repair replays the log: for a first superblock
//! that is torn or lost, or when the user names a copy.
//!
//! A copy in another group does not record whether the log must be replayed, because mke2fs made it. So the log itself
//! is read to find out. Only [`put`] writes. No locks.

use check::{Code, Problem};
use device::{BlockDevice, DeviceError, ReadOnly, Scratch};
use jbd2::recovery::{self, JournalState};
use ondisk::{Feature, Geometry, Site, Superblock, superblock};
use sync::Arc;

use crate::repair_error::RepairError;

/// A superblock in place of the first one.
pub(crate) struct Substitute {
    /// What belongs in the first superblock's place. Unless the first one was only torn, `needs_recovery` and the error
    /// flag are set.
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    /// The first superblock was only torn by a power cut: the substitute has the same layout.
    pub(crate) is_torn: bool,
    /// What a check reports about the first superblock; empty if it was only torn or the user named a copy.
    pub(crate) problems: Vec<Problem>,
}

/// Reads the first superblock, whatever is there.
///
/// # Errors
/// When it can't be read.
pub(crate) fn first(device: &dyn BlockDevice) -> Result<Superblock, DeviceError> {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(Superblock::OFFSET, &mut bytes)?;
    Ok(*Superblock::view(&bytes))
}

fn sound_geometry(device: &dyn BlockDevice, sb: &Superblock) -> Option<Geometry> {
    sb.verify().ok()?;
    Geometry::new(sb, device.size()).ok()
}

/// Finds the substitute; `asked` is the place of the copy that the user names, in KiB. `None` if the first superblock
/// can be used and no copy is named, if no superblock can be used, or if the first one is not torn and the log needs no
/// replay.
///
/// # Errors
/// When it can't be known whether the log needs a replay: it can't be read, or has features or a size that lanefs does
/// not support.
pub(crate) fn find(
    device: &Arc<dyn BlockDevice>,
    journal: &Option<Arc<dyn BlockDevice>>,
    asked: Option<u64>,
) -> Result<Option<Substitute>, recovery::Error> {
    let first = first(&**device).ok();
    let is_sound = first.is_some_and(|sb| sound_geometry(&**device, &sb).is_some());
    if is_sound && asked.is_none() {
        return Ok(None);
    }
    let Ok(served) = check::serving_superblock(&**device, asked) else {
        return Ok(None);
    };
    let rebuilt = match asked {
        None => rebuilt(device, journal),
        Some(_) => None,
    };
    let (superblock, geometry) = match rebuilt {
        Some(found) if is_torn(first.as_ref(), &found.1) => {
            let (superblock, geometry) = found;
            return Ok(Some(Substitute {
                superblock,
                geometry,
                is_torn: true,
                problems: Vec::new(),
            }));
        }
        Some(found) => found,
        None => {
            let is_copy = |it: &Problem| it.code == Code::SuperblockFromBackup;
            let Some((mut superblock, geometry)) = served.found else {
                return Ok(None);
            };
            if asked.is_some() || served.problems.iter().any(is_copy) {
                // A copy's list of orphans is as old as the copy.
                superblock.set_last_orphan(None);
            }
            (superblock, geometry)
        }
    };
    let said = first.filter(|_| is_sound);
    let mut superblock = superblock;
    superblock.set_block_group_number(0);
    superblock.set_state(superblock.state() | superblock::state::ERROR);
    superblock.set_features(superblock.features().with(Feature::NEEDS_RECOVERY));
    superblock.seal();
    let Ok(geometry) = Geometry::new(&superblock, geometry.bytes()) else {
        return Ok(None);
    };
    let asks = asks_for_replay(device, journal, &superblock, &geometry, said.as_ref())?;
    Ok(asks.then_some(Substitute {
        superblock,
        geometry,
        is_torn: false,
        problems: served.problems,
    }))
}

/// The superblock that a mount would write to the first one's place.
fn rebuilt(
    device: &Arc<dyn BlockDevice>,
    journal: &Option<Arc<dyn BlockDevice>>,
) -> Option<(Superblock, Geometry)> {
    let options = engine::MountOptions {
        journal_device: journal.clone(),
        ..engine::MountOptions::default()
    };
    let superblock = engine::rebuilt_superblock(device, &options).ok()??;
    Some((superblock, sound_geometry(&**device, &superblock)?))
}

/// Whether the first superblock, apart from its checksum, is sound and has the layout of the one that was rebuilt.
fn is_torn(first: Option<&Superblock>, geometry: &Geometry) -> bool {
    let Some(mut whole) = first.copied() else {
        return false;
    };
    whole.seal();
    let own = whole.verify().ok().and_then(|()| Geometry::of(&whole).ok());
    own.is_some_and(|own| has_same_layout(&own, geometry))
}

pub(crate) fn has_same_layout(one: &Geometry, other: &Geometry) -> bool {
    let numbers = |it: &Geometry| {
        (
            it.block_size(),
            it.blocks_count(),
            it.blocks_per_group(),
            it.inodes_per_group(),
            it.inode_size(),
        )
    };
    numbers(one) == numbers(other)
}

/// Whether the log must be replayed; false if it is empty or corrupt. `said` is the first superblock if that is sound.
/// Its flag decides if the journal is on another device and can't be read.
///
/// # Errors
/// When the log can't be read, was not the same each time it was read, or lanefs does not support it: it may hold what
/// was synced.
fn asks_for_replay(
    device: &Arc<dyn BlockDevice>,
    journal: &Option<Arc<dyn BlockDevice>>,
    superblock: &Superblock,
    geometry: &Geometry,
    said: Option<&Superblock>,
) -> Result<bool, recovery::Error> {
    if !geometry.has(Feature::HAS_JOURNAL) {
        return Ok(false);
    }
    let device = Arc::clone(device);
    match recovery::scan_and_overlay(device, superblock, geometry, journal.clone()) {
        Ok(scanned) => Ok(scanned.report.journal == JournalState::Replayed),
        Err(recovery::Error::Corrupt(corrupt)) if corrupt.site() == Site::JournalUnstable => {
            Err(corrupt.into())
        }
        Err(recovery::Error::Corrupt(corrupt)) => Ok(corrupt.site() == Site::JournalCopyChecksum),
        Err(_) if is_journal_elsewhere(superblock) => {
            Ok(said.is_none_or(|sb| sb.features().has(Feature::NEEDS_RECOVERY)))
        }
        Err(error) => Err(error),
    }
}

/// Whether the log is in use although the superblock does not ask for a replay. False if that can't be known.
pub(crate) fn is_forgotten(
    device: &Arc<dyn BlockDevice>,
    journal: &Option<Arc<dyn BlockDevice>>,
    superblock: &Superblock,
    geometry: &Geometry,
) -> bool {
    let device = Arc::clone(device);
    recovery::scan_and_overlay(device, superblock, geometry, journal.clone())
        .is_ok_and(|scanned| scanned.report.journal == JournalState::Ignored)
}

/// Whether the superblock names a journal on a device of its own. If mkfs got a file for the journal, the superblock
/// has only the UUID.
pub(crate) fn is_journal_elsewhere(sb: &Superblock) -> bool {
    let is_named = sb.journal_device() != 0 || sb.journal_uuid() != [0; 16];
    sb.journal_ino().is_none() && is_named
}

/// The device with this superblock laid over its first one, in memory and for reading only.
pub(crate) fn laid_over(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
) -> Result<Arc<dyn BlockDevice>, DeviceError> {
    let scratch = Scratch::new(Arc::clone(device), Superblock::SIZE);
    scratch.write_at(Superblock::OFFSET, superblock.bytes())?;
    Ok(Arc::new(ReadOnly::new(
        Arc::new(scratch) as Arc<dyn BlockDevice>
    )))
}

/// Writes the substitute to its place, durably. CRASH: one write of a superblock, which is torn or whole.
///
/// # Errors
/// When the device fails, or does not hold what was written.
pub(crate) fn put(device: &dyn BlockDevice, superblock: &Superblock) -> Result<(), RepairError> {
    device.write_at(Superblock::OFFSET, superblock.bytes())?;
    device.flush()?;
    if first(device)?.bytes() == superblock.bytes() {
        Ok(())
    } else {
        Err(RepairError::Unreliable {
            block: Superblock::OFFSET / Superblock::SIZE as u64,
        })
    }
}
