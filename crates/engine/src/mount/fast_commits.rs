//! Fast commits that an earlier mount left behind its log, brought into the file system.
//!
//! Their records are replayed on a device in memory, laid over what the log's own replay shows. A reader uses that
//! device ([`shown`]), also for images of kinds that lanefs only reads. For a writer ([`tried`]), all blocks that the
//! replay changed are committed as one transaction of the log ([`commit`]); after that the fast commits no longer
//! count, and the ordinary replay writes the transaction home.
//!
//! Nothing else uses the device. CRASH: until that transaction is committed the fast commits are valid, from then on it
//! replaces them.

use device::{BlockDevice, Scratch};
use jbd2::recovery;
use ondisk::{Feature, FsBlock, Geometry, Superblock};
use sync::Arc;

use super::{MountOptions, Use, journal_map, raise};
use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::limits;
use crate::core::options::Clock;
use crate::core::sb;
use crate::fsync;
use crate::inode::MountedFs;
use crate::reap::Left;

/// Replays fast commits on a device in memory over `view`, the device after the log's replay, for a program that will
/// write to it.
///
/// # Errors
/// As [`fsync::replay`]; when lanefs can only read such an image.
pub(super) fn tried(
    view: Arc<dyn BlockDevice>,
    area: &[u8],
    clock: Clock,
) -> Result<Arc<Scratch>, Error> {
    let (scratch, superblock) = laid_over(view)?;
    super::refuse_unwritable(&scratch, &superblock, &MountOptions::default())?;
    replayed(scratch, superblock, area, clock)
}

/// As [`tried`], for a reader: also on an image of a kind that lanefs only reads.
///
/// # Errors
/// As [`fsync::replay`], in [`Error::FastCommits`]; `Io` as it is.
pub(super) fn shown(
    view: Arc<dyn BlockDevice>,
    area: &[u8],
    clock: Clock,
) -> Result<Arc<Scratch>, Error> {
    let (scratch, superblock) = laid_over(view)?;
    let is_large = Geometry::new(&superblock, scratch.size())?.groups() > limits::WRITTEN_GROUPS;
    let shown = if is_large {
        Err(Error::Unwritable("it has more groups than are kept"))
    } else if superblock.features().has(Feature::BIGALLOC) {
        Err(Error::UnwritableFeature(Feature::BIGALLOC))
    } else {
        replayed(scratch, superblock, area, clock)
    };
    shown.map_err(|error| match error {
        Error::Io(error) => Error::Io(error),
        error => Error::FastCommits(Box::new(error)),
    })
}

/// A device in memory over another one, and the superblock on it.
fn laid_over(view: Arc<dyn BlockDevice>) -> Result<(Scratch, Superblock), Error> {
    let scratch = Scratch::new(view, limits::REPLAY_BYTES);
    let superblock = sb::read_superblock(&scratch, None)?;
    Ok((scratch, superblock))
}

/// Replays fast commits on a device in memory.
fn replayed(
    scratch: Scratch,
    superblock: Superblock,
    area: &[u8],
    clock: Clock,
) -> Result<Arc<Scratch>, Error> {
    let scratch = Arc::new(scratch);
    let options = MountOptions::default();
    let device = Arc::clone(&scratch) as Arc<dyn BlockDevice>;
    let raised = raise(device, superblock, &options, clock, Use::Trial)?;
    let left = Left {
        first: raised.first_orphan,
        slots: &raised.in_slots,
    };
    fsync::replay(&raised.mounted, area, &left)?;
    raised.mounted.sync_all()?;
    Ok(scratch)
}

/// Commits what fast commits say as the next transaction of the log, which is emptied first.
///
/// # Errors
/// As [`tried`]; when the log has no room for it, and then nothing changed.
pub(super) fn commit(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
    geometry: &Geometry,
    clock: Clock,
) -> Result<recovery::ReplayReport, Error> {
    let scanned = recovery::scan_and_overlay(Arc::clone(device), superblock, geometry, None)?;
    let scratch = tried(Arc::clone(&scanned.device), &scanned.fast_commits, clock)?;
    let size = geometry.block_size();
    let mut images = Vec::new();
    let mut before = vec![0; size.bytes()];
    for block in scratch.written(size.bytes()) {
        let mut image = vec![0; size.bytes()];
        let block = FsBlock(block);
        scratch.read_at(block.offset(size), &mut image)?;
        scanned.device.read_at(block.offset(size), &mut before)?;
        if image == before {
            // The device in memory keeps more than was written: a neighbour, which may be the log's own.
            continue;
        }
        images.push((block, Arc::from(image)));
    }
    let sb = sb::read_superblock(&*scratch, None)?;
    let volume = OpenVolume::new(scratch, sb, None, limits::CACHE_BYTES)?;
    let runs = journal_map(&MountedFs::new(volume))?;
    let map = journal::LogMap::new(Arc::clone(device), size, &runs);
    recovery::empty_log(device, superblock, geometry)?;
    let now = clock.now();
    let time = (now.seconds, now.nanoseconds);
    journal::commit_in_place_of_fast_commits(map, 0, &images, time)?;
    Ok(scanned.report)
}
