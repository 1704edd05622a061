//! Replays the log onto the device, before a repair decides anything.
//!
//! CRASH: see [`crate::repair`].

use std::ops::Range;

use check::repair::RepairScope;
use device::{BlockDevice, DeviceError};
use jbd2::recovery;
use ondisk::{Corrupt, Feature, Geometry, GeometryError, Site, Superblock};
use sync::Arc;

use super::external::EmptyLog;
use super::pending::Pending;
use super::rehearsal::Rehearsal;
use super::{RepairError, edit_superblock, fast_commits, set_error, superblock_at};
use crate::substitute::{self, Substitute, first, has_same_layout, is_journal_elsewhere};

/// What became of a journal that was to be replayed.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) is_done: bool,
    pub(super) failed: Option<String>,
    /// Why part of a log on another device, or all of it, was given up. That log is empty now.
    pub(super) given_up: Option<String>,
    /// The superblock did not ask for the replay.
    pub(super) is_forgotten: bool,
    /// The first superblock now has the layout of the copy that was asked for, so the check reads the first.
    pub(super) has_first: bool,
}

/// The log that a repair replays.
pub(super) struct Log<'a> {
    pub(super) device: &'a Arc<dyn BlockDevice>,
    pub(super) journal_device: &'a Option<Arc<dyn BlockDevice>>,
    pub(super) scope: RepairScope,
    /// The time of a commit, in seconds since 1970.
    pub(super) now: u64,
}

impl Log<'_> {
    /// The first superblock as it is after the replay, because the log may hold a newer one. Writes nothing. `None` if
    /// no log is to be replayed, or that superblock can't be known.
    ///
    /// # Errors
    /// When a device fails, or that superblock has features without which lanefs can't read the file system.
    pub(super) fn superblock_after(
        &self,
        substitute: Option<&Substitute>,
    ) -> Result<Option<Superblock>, RepairError> {
        let Some(sb) = self.superblock_before(substitute) else {
            return Ok(None);
        };
        let Ok(geometry) = Geometry::new(&sb, self.device.size()) else {
            return Ok(None);
        };
        let view = Pending::new(self.device, &sb) as Arc<dyn BlockDevice>;
        let journal = || self.journal_device.clone();
        let scanned = recovery::scan_and_overlay(Arc::clone(&view), &sb, &geometry, journal());
        let after = match scanned {
            Ok(scanned) => first(&*scanned.device)?,
            Err(recovery::Error::Corrupt(corrupt))
                if corrupt.site() == Site::JournalCopyChecksum
                    && self.scope == RepairScope::All =>
            {
                // Only a replay leaves damaged copies out.
                let rehearsal = Arc::new(Rehearsal::new(view, &sb));
                let device = Arc::clone(&rehearsal) as Arc<dyn BlockDevice>;
                let journal = journal().map(|it| Arc::new(Rehearsal::new(it, &sb)) as Arc<_>);
                match recovery::empty_sound_log(&device, &sb, &geometry, journal) {
                    Ok(()) => rehearsal.superblock(),
                    Err(_) => return Ok(None),
                }
            }
            Err(_) => return Ok(None),
        };
        match Geometry::of(&after) {
            Err(GeometryError::Unsupported(unsupported)) if after.verify().is_ok() => {
                Err(check::Error::Unsupported(unsupported).into())
            }
            _ => Ok(Some(after).filter(|sb| sb.verify().is_ok())),
        }
    }

    /// The superblock under which the log is replayed, if it is.
    fn superblock_before(&self, substitute: Option<&Substitute>) -> Option<Superblock> {
        if let Some(substitute) = substitute {
            return Some(substitute.superblock);
        }
        let mut sb = first(&**self.device).ok()?;
        sb.verify().ok()?;
        let geometry = Geometry::new(&sb, self.device.size()).ok()?;
        if asks(&geometry) {
            return Some(sb);
        }
        let is_forgotten = self.scope == RepairScope::All
            && substitute::is_forgotten(self.device, self.journal_device, &sb, &geometry);
        sb.set_features(sb.features().with(Feature::NEEDS_RECOVERY));
        sb.seal();
        is_forgotten.then_some(sb)
    }

    /// Writes the log and fast commits home, if the superblock asks for a replay. A repair of everything does so too if
    /// the log is in use without that, as e2fsck -fy does.
    ///
    /// # Errors
    /// When a device fails, or the log may be sound and can't be replayed.
    pub(super) fn replay(&self) -> Result<Replay, RepairError> {
        // If the first superblock can't be read, nothing asks for a replay.
        let Ok(mut sb) = first(&**self.device) else {
            return Ok(Replay::default());
        };
        let sound = sb.verify().ok();
        let Some(geometry) = sound.and_then(|()| Geometry::new(&sb, self.device.size()).ok())
        else {
            return Ok(Replay::default());
        };
        if asks(&geometry) {
            return self.replay_home(&sb, &geometry);
        }
        let is_forgotten = self.scope == RepairScope::All
            && substitute::is_forgotten(self.device, self.journal_device, &sb, &geometry);
        if !is_forgotten {
            return Ok(Replay::default());
        }
        sb.set_features(sb.features().with(Feature::NEEDS_RECOVERY));
        sb.seal();
        let Ok(geometry) = Geometry::new(&sb, self.device.size()) else {
            return Ok(Replay::default());
        };
        let pending = Pending::new(self.device, &sb);
        let asking = Arc::clone(&pending) as Arc<dyn BlockDevice>;
        // Nothing is written for a log that lanefs does not support.
        let _ = fast_commits::view(&asking, self.journal_device.clone(), self.scope)?;
        let log = Log {
            device: &asking,
            ..*self
        };
        let replay = log.replay_home(&sb, &geometry)?;
        pending.put()?;
        Ok(Replay {
            is_forgotten,
            ..replay
        })
    }

    /// Writes the substitute over the first superblock, and then the log home; neither if the log is refused. Unless
    /// the first superblock was only torn, the error flag is set, and stays set if the log holds a newer superblock.
    ///
    /// # Errors
    /// As [`Log::replay`].
    pub(super) fn replay_under(&self, substitute: &Substitute) -> Result<Replay, RepairError> {
        let device = self.device;
        let (superblock, geometry) = (&substitute.superblock, &substitute.geometry);
        if asks(geometry) && is_journal_elsewhere(superblock) {
            let (image, journal) = (Arc::clone(device), self.journal_device.clone());
            recovery::scan_and_overlay(image, superblock, geometry, journal)
                .map_err(RepairError::Replay)?;
        }
        let pending = Pending::new(device, superblock);
        let mut marked = Arc::clone(&pending) as Arc<dyn BlockDevice>;
        if !substitute.is_torn {
            marked = Arc::new(Marked(marked));
        }
        let log = Log {
            device: &marked,
            ..*self
        };
        let mut replay = if asks(geometry) {
            log.replay_home(superblock, geometry)?
        } else {
            Replay::default()
        };
        pending.put()?;
        replay.is_done = true;
        let now = first(&**device)?;
        let own = now.verify().ok().and_then(|()| Geometry::of(&now).ok());
        replay.has_first = own.is_some_and(|own| has_same_layout(&own, geometry));
        Ok(replay)
    }

    /// Writes the log and fast commits home, and empties the log.
    ///
    /// # Errors
    /// When a device fails, or the log may be sound and can't be replayed. In the second case nothing is written.
    fn replay_home(&self, sb: &Superblock, geometry: &Geometry) -> Result<Replay, RepairError> {
        let device = self.device;
        let journal_device = || self.journal_device.clone();
        match recovery::replay_to_device(device, sb, geometry, journal_device()) {
            Ok(_) => Ok(Replay {
                is_done: true,
                ..Replay::default()
            }),
            Err(recovery::Error::FastCommitsPending { .. }) => {
                // Nothing is written for fast commits that lanefs does not support.
                let _ = fast_commits::view(device, journal_device(), self.scope)?;
                recovery::empty_sound_log(device, sb, geometry, journal_device())
                    .map_err(cannot_empty)?;
                self.bring_fast_commits_home()
            }
            Err(recovery::Error::Corrupt(corrupt)) => self.replay_damaged(sb, geometry, &corrupt),
            Err(error) => Err(error.into()),
        }
    }

    /// Replays what is sound of a corrupt log: if only copies of blocks are damaged, the others, and the fast commits.
    ///
    /// # Errors
    /// When a device fails, or the log was not the same each time it was read: a second try may read it as it is.
    fn replay_damaged(
        &self,
        sb: &Superblock,
        geometry: &Geometry,
        corrupt: &Corrupt,
    ) -> Result<Replay, RepairError> {
        if corrupt.site() == Site::JournalUnstable {
            return Err(RepairError::Replay((*corrupt).into()));
        }
        let is_copy = corrupt.site() == Site::JournalCopyChecksum;
        let is_elsewhere = is_journal_elsewhere(sb);
        if !is_copy && is_elsewhere {
            return self.give_up(sb, geometry, corrupt);
        }
        let mut replay = Replay {
            failed: Some(corrupt.to_string()),
            ..Replay::default()
        };
        if !is_copy || self.scope != RepairScope::All {
            return Ok(replay);
        }
        // The sound copies in the log are newer than the blocks at home.
        let (device, journal_device) = (self.device, || self.journal_device.clone());
        match recovery::replay_sound_copies(device, sb, geometry, journal_device()) {
            Ok(_) => replay.is_done = true,
            Err(recovery::Error::FastCommitsPending { .. }) => {
                recovery::empty_sound_log(device, sb, geometry, journal_device())
                    .map_err(cannot_empty)?;
                replay.is_done = true;
                if let Some(failed) = self.bring_fast_commits_home()?.failed {
                    replay.failed = Some(failed);
                }
            }
            Err(recovery::Error::Corrupt(corrupt)) if corrupt.site() == Site::JournalUnstable => {
                return Err(RepairError::Replay(corrupt.into()));
            }
            Err(recovery::Error::Corrupt(corrupt)) if is_elsewhere => {
                return self.give_up(sb, geometry, &corrupt);
            }
            Err(recovery::Error::Corrupt(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if is_elsewhere && replay.is_done {
            replay.given_up = replay.failed.take();
        }
        Ok(replay)
    }

    /// Gives up a damaged log on another device: else a later replay could overwrite what is repaired.
    ///
    /// # Errors
    /// When a device fails, the device serves another file system, or only a repair of everything may do this.
    fn give_up(
        &self,
        sb: &Superblock,
        geometry: &Geometry,
        corrupt: &Corrupt,
    ) -> Result<Replay, RepairError> {
        let refused = || RepairError::Replay((*corrupt).into());
        let journal = self.journal_device.as_ref();
        let journal = journal.filter(|_| self.scope == RepairScope::All);
        let journal = journal.ok_or_else(refused)?;
        let empty = EmptyLog::of(&**journal, sb, geometry)?.ok_or_else(refused)?;
        let mut marked = *sb;
        set_error(&mut marked);
        marked.seal();
        substitute::put(&**self.device, &marked)?;
        empty.write(&**journal)?;
        marked.set_features(marked.features().without(Feature::NEEDS_RECOVERY));
        marked.seal();
        substitute::put(&**self.device, &marked)?;
        Ok(Replay {
            is_done: true,
            given_up: Some(corrupt.to_string()),
            ..Replay::default()
        })
    }

    /// Writes fast commits home that follow a log that is empty, but in use.
    fn bring_fast_commits_home(&self) -> Result<Replay, RepairError> {
        let view = fast_commits::view(self.device, self.journal_device.clone(), self.scope)?;
        if let Ok(view) = &view {
            let journal_device = self.journal_device.clone();
            fast_commits::bring_home(self.device, journal_device, &**view, self.now)?;
        }
        Ok(Replay {
            is_done: true,
            failed: view.err(),
            ..Replay::default()
        })
    }
}

fn asks(geometry: &Geometry) -> bool {
    geometry.has(Feature::NEEDS_RECOVERY) && geometry.has(Feature::HAS_JOURNAL)
}

fn cannot_empty(error: recovery::Error) -> RepairError {
    match error {
        recovery::Error::Io(error) => error.into(),
        // Read once more, before anything is written.
        recovery::Error::Corrupt(corrupt) if corrupt.site() == Site::JournalUnstable => {
            RepairError::Replay(corrupt.into())
        }
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

    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        self.0.laid_over_from(offset)
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
