//! Discarding free blocks on request (the ioctl `FITRIM`).
//!
//! A run of free blocks is discarded in parts of some thousand blocks. Each part is taken out of the bitmap in memory,
//! so that no other thread takes it, then discarded with no lock held, then given back. Blocks that an epoch freed are
//! in that bitmap only once the epoch is durable ([`crate::space::group`]), so nothing is discarded that a crash could
//! bring back. Each part is a change of its own: a freeze waits for one part. So does a change that found no space,
//! before its last try (`change_alone`): no change fails because of a trim. What a crash leaves: the same file system.

use std::ops::Range;

use ondisk::Group;

use super::{InodeFs, enter};
use crate::core::Error;
use crate::space::mballoc::{TakenBlocks, take_run};
use crate::token::LiveFs;

impl InodeFs {
    /// Tells the device that the free blocks in a range of bytes are not needed, so it can release their space: a
    /// regular file gets holes. Runs of free blocks that are shorter than `min_len` bytes stay as they are. Returns the
    /// number of bytes that were discarded; how many of them the device releases is not known.
    ///
    /// Everything is committed first, so that what was removed before the call counts. Others read and change the file
    /// system meanwhile. A crash leaves it as it is.
    ///
    /// # Errors
    /// `InvalidArgument` for a range of less than a block or beyond the end, or if no group of blocks has `min_len`
    /// bytes; `ReadOnly`, `Closed`, `Stopped`, `Aborted`; `Corrupt`, `Io`, also if the device fails; some runs may be
    /// discarded already then.
    pub fn trim(&self, range: Range<u64>, min_len: u64) -> Result<u64, Error> {
        let live = self.live()?;
        let geometry = self.geometry();
        let bits = geometry.block_size().bits();
        let len = range.end.saturating_sub(range.start) >> bits;
        let start = range.start >> bits;
        let end = start.saturating_add(len).min(geometry.blocks_count());
        let least = (min_len >> bits).max(1);
        let least = u32::try_from(least).ok();
        let least = least.filter(|least| *least <= geometry.clusters_per_group());
        let Some(least) = least.filter(|_| len > 0 && start < geometry.blocks_count()) else {
            return Err(Error::InvalidArgument);
        };
        self.sync()?;
        let blocks = self.noting(trim_blocks(live, start..end, least))?;
        Ok(blocks << bits)
    }
}

/// Discards the free blocks of a range of blocks, and returns how many.
fn trim_blocks(live: &LiveFs, range: Range<u64>, least: u32) -> Result<u64, Error> {
    let geometry = live.volume().geometry();
    let mut trimmed = 0;
    for group in geometry.all_groups() {
        let first = geometry.group_first_block(group).0;
        let blocks = u64::from(geometry.group_clusters(group));
        // Within a group, so both fit.
        let from = range.start.saturating_sub(first).min(blocks) as u32;
        let to = range.end.saturating_sub(first).min(blocks) as u32;
        if to - from.min(to) < least || live.groups().free_blocks(group) < least {
            continue;
        }
        match trim_group(live, group, from..to, least) {
            Ok(blocks) => trimmed += blocks,
            // Allocations take nothing from the group either, from now on.
            Err(Error::Corrupt(corrupt)) => live.groups().exclude(group, corrupt),
            Err(error) => return Err(error),
        }
    }
    Ok(trimmed)
}

/// Discards the runs of at least `least` free blocks in a range of a group's bits, and returns how many blocks.
fn trim_group(
    live: &LiveFs,
    group: Group,
    mut range: Range<u32>,
    least: u32,
) -> Result<u64, Error> {
    let mut trimmed = 0;
    // The end of the run of which a part was discarded last: the rest of it may be shorter than `least`.
    let mut run_end = 0;
    while range.start < range.end {
        let is_rest = range.start < run_end;
        let (part, least) = if is_rest {
            (range.start..run_end, 1)
        } else {
            (range.clone(), least)
        };
        let _change = enter(live)?;
        match take_run(live.volume(), live.groups(), group, part, least)? {
            Some((taken, end)) => {
                let run = taken.run();
                discard(live, &taken)?;
                drop(taken);
                let first = live.volume().geometry().group_first_block(group).0;
                // Within the group.
                range.start = (run.start.0 - first) as u32 + run.len;
                run_end = run_end.max(end);
                trimmed += u64::from(run.len);
            }
            None if is_rest => range.start = run_end,
            None => break,
        }
    }
    Ok(trimmed)
}

fn discard(live: &LiveFs, taken: &TakenBlocks<'_>) -> Result<(), Error> {
    let bits = live.volume().geometry().block_size().bits();
    let (start, len) = (taken.run().start.0, u64::from(taken.run().len));
    let bytes = start << bits..(start + len) << bits;
    Ok(live.volume().cache().device().discard(bytes)?)
}
