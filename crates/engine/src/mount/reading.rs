//! Opening a file system to read it: its journal is replayed in memory, and a device that ends before the file system
//! is read as far as it goes. Nothing is written. No locks.

use device::{BlockDevice, DeviceError, Incomplete, ReadOnly};
use jbd2::recovery::{self, UnsupportedLog};
use ondisk::{Geometry, Site, Superblock};
use sync::Arc;

use super::{
    FoundAtOpen, MountOptions, ReplayPolicy, fast_commits, needs_replay, superblock, wall,
};
use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::options::Clock;
use crate::core::sb;

/// A device that ends before the file system on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutDevice {
    /// Bytes of the file system.
    pub needed: u64,
    /// Bytes of the device.
    pub present: u64,
    /// Whether the journal holds changes that can't be replayed, because part of it or of what it changes is missing.
    pub lost_journal: bool,
}

/// The device at the full size of its file system, and what is missing of it.
fn whole(
    device: Arc<dyn BlockDevice>,
    superblock: &Superblock,
) -> Result<(Arc<dyn BlockDevice>, Option<CutDevice>), Error> {
    let (needed, present) = (Geometry::of(superblock)?.bytes(), device.size());
    if needed <= present {
        return Ok((device, None));
    }
    let cut = CutDevice {
        needed,
        present,
        lost_journal: false,
    };
    Ok((Arc::new(Incomplete::new(device, needed)), Some(cut)))
}

/// Opens a volume, with its journal's changes. A device that ends before the file system is read as far as it goes.
pub(crate) fn mount(
    device: Arc<dyn BlockDevice>,
    options: &MountOptions,
) -> Result<(OpenVolume, FoundAtOpen), Error> {
    let found = superblock::read(&device, options)?;
    let mut superblock = found.superblock;
    let device = if found.is_rebuilt {
        superblock::laid_over(device, &superblock)?
    } else {
        device
    };
    let (mut device, mut cut) = whole(device, &superblock)?;
    let mut report = None;
    if options.journal == ReplayPolicy::Replay && needs_replay(&superblock) {
        match (replayed(&device, &superblock, options), &mut cut) {
            (Ok(done), _) => {
                (device, superblock) = (done.device, done.superblock);
                report = Some(done.report);
            }
            // What is home is all that is left.
            (Err(Error::Io(DeviceError::Missing { .. })), Some(cut)) => cut.lost_journal = true,
            (Err(error), _) => return Err(error),
        }
    }
    let volume = OpenVolume::new(device, superblock, options.superblock, options.cache_bytes)?;
    let met = FoundAtOpen {
        recovery: report,
        lost_superblock: found.is_rebuilt,
        cut,
    };
    Ok((volume, met))
}

/// A device with its journal replayed in memory.
struct Replayed {
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    report: recovery::ReplayReport,
}

/// Replays the journal in memory.
fn replayed(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
    options: &MountOptions,
) -> Result<Replayed, Error> {
    let geometry = Geometry::new(superblock, device.size())?;
    let external = options.journal_device.clone();
    let scanned = recovery::scan_and_overlay(Arc::clone(device), superblock, &geometry, external)?;
    // The journal may hold a newer superblock; a copy that was asked for stays in use.
    let mut done = Replayed {
        superblock: sb::read_superblock(&*scanned.device, options.superblock)?,
        device: scanned.device,
        report: scanned.report,
    };
    let damage = done.report.fast_commits.damage;
    if damage.is_some_and(|damage| damage.site() == Site::FastCommitFeatures) {
        // Their fsyncs returned, so they can't be left out; the kernel refuses them, too.
        return Err(recovery::Error::Unsupported(UnsupportedLog::FastCommits).into());
    }
    if !scanned.fast_commits.is_empty() {
        if options.superblock.is_some() {
            // A copy was asked for, perhaps because the first superblock is damaged.
            done.device = superblock::laid_over(done.device, &done.superblock)?;
        }
        let area = &scanned.fast_commits;
        let shown = fast_commits::shown(done.device, area, Clock::Ask(wall))?;
        done.superblock = sb::read_superblock(&*shown, None)?;
        done.device = Arc::new(ReadOnly::new(shown as Arc<dyn BlockDevice>));
        done.report.fast_commits_pending = 0;
    }
    Ok(done)
}
