//! Changing what the superblock of a file system says, while nobody has it open.
//!
//! What the journal holds is written home first, so that nothing in it can undo the change; the change is then one
//! write of the first superblock. What a crash leaves: the journal as it was or replayed; the old superblock or the
//! new, or a torn one, which is mended when the image is opened (`sb`). Copies in other groups stay as they are, as
//! tune2fs leaves them: e2fsck brings them up to date.

use device::BlockDevice;
use ondisk::{Geometry, Superblock, Timestamp};
use sync::Arc;

use super::{OpenOptions, needs_replay, refuse_unwritable, seconds, superblock, write_superblock};
use crate::error::Error;
use crate::group::Survey;
use crate::limits;
use crate::sb::{self, Volume};

/// Lets `change` change the superblock of an image that nobody has open. `clock` says when that was.
///
/// # Errors
/// What `change` said: nothing was written then, but what the journal held; as [`crate::Fs::open_for_writing`] for what
/// can't be written to.
pub fn tune<E: From<Error>>(
    device: &Arc<dyn BlockDevice>,
    clock: fn() -> Timestamp,
    change: impl FnOnce(&mut Superblock) -> Result<(), E>,
) -> Result<(), E> {
    let mut superblock = replayed(device, clock)?;
    change(&mut superblock)?;
    superblock.set_write_time(seconds(clock()));
    Ok(write_superblock(&**device, &mut superblock)?)
}

/// The superblock, once the journal holds nothing.
fn replayed(device: &Arc<dyn BlockDevice>, clock: fn() -> Timestamp) -> Result<Superblock, Error> {
    let options = OpenOptions::default();
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
    let volume = Volume::new(Arc::clone(device), superblock, None, limits::CACHE_BYTES)?;
    super::count_free(&mut superblock, &Survey::read(&volume)?.said);
    Ok(superblock)
}
