//! Changing fields of the superblock of a file system that is not open.
//!
//! What the journal holds is written home first, so that nothing in it can undo the change; the change is then one
//! write of the first superblock. What a crash leaves: the journal as it was or replayed; the old superblock or the
//! new, or a torn one, which is mended when the image is opened (`sb`). Copies in other groups stay as they are, as
//! tune2fs leaves them: e2fsck brings them up to date.
//!
//! The area for fast commits is in the journal: it is made, durably, before the superblock has the feature, and taken
//! away after that has gone. A crash in between leaves an area that nobody uses. Where others turned the feature on and
//! left no room for an area, asking for it again makes one, or says why there can be none.

use device::BlockDevice;
use ondisk::{Feature, Geometry, Superblock};
use sync::Arc;

use super::{
    MountOptions, journal_map, needs_replay, refuse_unwritable, seconds, superblock,
    write_superblock,
};
use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::limits;
use crate::core::options::Clock;
use crate::core::sb;
use crate::inode::MountedFs;
use crate::space::group::DescriptorSurvey;

/// Lets `change` change the superblock of an image that is not open. `clock` gives the time of the change. `change` may
/// be called twice, for two superblocks that differ in a feature.
///
/// # Errors
/// Those of `change`: nothing was written then, except what the journal held; those of
/// [`crate::InodeFs::open_for_writing`] for an image that can't be written to.
pub fn tune<E: From<Error>>(
    device: &Arc<dyn BlockDevice>,
    clock: Clock,
    change: impl Fn(&mut Superblock) -> Result<(), E>,
) -> Result<(), E> {
    let mut superblock = replayed(device, clock)?;
    let before = superblock;
    change(&mut superblock)?;
    let is_changed = superblock.bytes() != before.bytes();
    superblock.set_write_time(seconds(clock.now()));
    let has_area = |superblock: &Superblock| superblock.features().has(Feature::FAST_COMMIT);
    let must_make = match (has_area(&before), has_area(&superblock)) {
        (true, true) => {
            let mut without = before;
            without.set_features(before.features().without(Feature::FAST_COMMIT));
            change(&mut without)?;
            let is_asked_for = has_area(&without);
            is_asked_for && !on_journal(device, before, true, journal::has_fast_area)?
        }
        (had, has) => has && !had,
    };
    let set = |is_wanted| {
        on_journal(device, before, (), move |map, at| {
            journal::set_fast_area(map, at, is_wanted)
        })
    };
    if must_make {
        set(true)?;
    }
    if !is_changed && !must_make {
        return Ok(());
    }
    write_superblock(&**device, &mut superblock)?;
    if !has_area(&superblock) && has_area(&before) {
        set(false)?;
    }
    Ok(())
}

/// Runs `work` on the journal's log, wherever its superblock is; returns `without` on a file system without a journal.
fn on_journal<T>(
    device: &Arc<dyn BlockDevice>,
    superblock: Superblock,
    without: T,
    work: impl FnOnce(journal::LogMap, u32) -> Result<T, journal::JournalError>,
) -> Result<T, Error> {
    if !superblock.features().has(Feature::HAS_JOURNAL) {
        return Ok(without);
    }
    let volume = OpenVolume::new(Arc::clone(device), superblock, None, limits::CACHE_BYTES)?;
    let block_size = volume.geometry().block_size();
    let runs = journal_map(&MountedFs::new(volume))?;
    let map = journal::LogMap::new(Arc::clone(device), block_size, &runs);
    Ok(work(map, 0)?)
}

/// The superblock, once the journal holds nothing.
fn replayed(device: &Arc<dyn BlockDevice>, clock: Clock) -> Result<Superblock, Error> {
    let options = MountOptions::default();
    let mut found = superblock::read(device, &options)?;
    refuse_unwritable(&**device, &found.superblock, &options)?;
    superblock::put_back(&**device, &mut found)?;
    let superblock = found.superblock;
    let geometry = Geometry::new(&superblock, device.size())?;
    if !needs_replay(&superblock) {
        return Ok(superblock);
    }
    super::replay_home(device, &superblock, &geometry, &options, clock)?;
    let mut superblock = sb::read_superblock(&**device, None)?;
    // Linux brings its sums up to date only now and then.
    let volume = OpenVolume::new(Arc::clone(device), superblock, None, limits::CACHE_BYTES)?;
    super::count_free(&mut superblock, &DescriptorSurvey::read(&volume)?.said);
    Ok(superblock)
}
