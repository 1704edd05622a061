//! Taking certain blocks, and no others: for what says where a file's data are already.
//!
//! Waits for the lock of the blocks' group; nothing is on disk until the blocks are applied.

use crate::error::Error;
use crate::group::{Groups, Run};
use crate::mballoc::Blocks;
use crate::sb::Volume;

/// Takes blocks of one group if all of them are free. Called while preparing, without a handle.
///
/// # Errors
/// `Corrupt`, `Io` from reading bitmaps.
pub(crate) fn take_exact<'a>(
    volume: &'a Volume,
    groups: &'a Groups,
    run: Run,
) -> Result<Option<Blocks<'a>>, Error> {
    let geometry = volume.geometry();
    let Some((group, first)) = geometry.bit_of_block(run.start) else {
        return Ok(None);
    };
    let share = groups.blocks.share(run.len, 0);
    let is_taken = share == run.len
        && run.len <= geometry.group_clusters(group) - first
        && groups.with_bits(volume, group, |bits| {
            bits.take_exact(first..first + run.len)
        })?;
    if !is_taken {
        groups.blocks.give_back(share);
        return Ok(None);
    }
    Ok(Some(Blocks {
        groups,
        geometry,
        run: Some(run),
    }))
}
