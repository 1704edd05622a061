//! Takes given blocks and no others: for a replay, whose records name the blocks that hold a file's data, and for a
//! trim, which keeps free blocks from other threads while it discards them.
//!
//! Waits for the lock of the blocks' group. Nothing is on disk until the blocks are applied.

use std::ops::Range;

use ondisk::{FsBlock, Group};

use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::space::group::{GroupRun, Groups};
use crate::space::mballoc::TakenBlocks;

/// Takes blocks of one group if all of them are free. Called while preparing, without a handle.
///
/// # Errors
/// `Corrupt`, `Io` from reading bitmaps.
pub(crate) fn take_exact<'a>(
    volume: &'a OpenVolume,
    groups: &'a Groups,
    run: GroupRun,
) -> Result<Option<TakenBlocks<'a>>, Error> {
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
    Ok(Some(TakenBlocks::new(groups, geometry, run)))
}

/// Takes the free blocks of a run, each free part as a value of its own: for blocks that should be in use and are not.
/// Called while preparing, without a handle.
///
/// # Errors
/// `NoSpace` if less is free than the bitmap shows; `Corrupt`, `Io` from reading bitmaps.
pub(crate) fn take_free<'a>(
    volume: &'a OpenVolume,
    groups: &'a Groups,
    start: FsBlock,
    len: u64,
) -> Result<Vec<TakenBlocks<'a>>, Error> {
    let geometry = volume.geometry();
    let (mut all, mut at, end) = (Vec::new(), start.0, start.0.saturating_add(len));
    while at < end {
        let Some((group, first)) = geometry.bit_of_block(FsBlock(at)) else {
            break;
        };
        // At most the blocks of a group.
        let rest = u64::from(geometry.group_clusters(group).saturating_sub(first)).max(1);
        let rest = rest.min(end - at) as u32;
        let range = first..first + rest;
        let taken = groups.with_bits(volume, group, |bits| bits.take_free(range))?;
        let runs = taken.into_iter().map(|free| GroupRun {
            start: FsBlock(at + u64::from(free.start - first)),
            len: free.end - free.start,
        });
        for run in runs {
            // No other thread takes blocks, so the share is refused only if the descriptors count fewer free blocks
            // than the bitmap.
            let share = groups.blocks.share(run.len, 0);
            all.push(TakenBlocks::new(groups, geometry, run));
            if share < run.len {
                return Err(Error::NoSpace);
            }
        }
        at += u64::from(rest);
    }
    Ok(all)
}

/// The most blocks that [`take_run`] keeps from others at a time.
const RUN_MOST: u32 = 4096;
/// [`take_run`] also takes at most this part of all free blocks: their number divided by `RUN_PART`.
const RUN_PART: u64 = 8;

/// Finds the first run of at least `least` free blocks in a range of a group's bits, and takes its first blocks, at
/// most [`RUN_MOST`]. Also returns the bit at which the run ends. `None` if no such run is found, or if other threads
/// hold shares of all free blocks. Called without a handle.
///
/// # Errors
/// `Corrupt`, `Io` from reading bitmaps.
pub(crate) fn take_run<'a>(
    volume: &'a OpenVolume,
    groups: &'a Groups,
    group: Group,
    range: Range<u32>,
    least: u32,
) -> Result<Option<(TakenBlocks<'a>, u32)>, Error> {
    // At most `RUN_MOST`.
    let most = (groups.blocks.hint() / RUN_PART).clamp(1, RUN_MOST.into()) as u32;
    let share = groups.blocks.share(most, 0);
    if share == 0 {
        return Ok(None);
    }
    let taken = groups.with_bits(volume, group, |bits| {
        let run = bits.long_run(range, least)?;
        let part = run.start..run.end.min(run.start.saturating_add(share));
        Some((bits.take(part), run.end))
    });
    let used = match &taken {
        Ok(Some((part, _))) => part.end - part.start,
        _ => 0,
    };
    groups.blocks.give_back(share - used);
    let first = volume.geometry().group_first_block(group).0;
    Ok(taken?.map(|(part, end)| {
        let run = GroupRun {
            start: FsBlock(first + u64::from(part.start)),
            len: part.end - part.start,
        };
        (TakenBlocks::new(groups, volume.geometry(), run), end)
    }))
}
