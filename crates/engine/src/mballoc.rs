//! Block allocation, the plain form: first fit from a goal, group after group, each group's lock waited for.
//!
//! A run is taken out of the bitmaps in memory while preparing ([`allocate`]); it is in no image yet, and dropping it
//! gives it back. Applying it puts it on the epoch's list. A freed run comes back to memory when its epoch is
//! durable. No space is reported only after a second look with everything that uncommitted frees give.

use journal::Handle;
use ondisk::{FsBlock, Geometry, Group, bitmap};
use sync::atomic::Ordering;

use crate::error::Error;
use crate::group::{BlockChange, Groups, Run};
use crate::sb::Volume;

/// Blocks of a handle that one applied or freed run uses: a bitmap, a descriptor block, the superblock.
pub(crate) const BLOCKS_A_RUN: u32 = 3;

/// Blocks taken and not yet applied.
pub(crate) struct Blocks<'a> {
    groups: &'a Groups,
    geometry: &'a Geometry,
    /// `None` once it was applied.
    run: Option<Run>,
}

impl Blocks<'_> {
    /// Which blocks.
    pub(crate) fn run(&self) -> Run {
        // Only `apply` takes the run out, and it consumes the value.
        self.run.expect("a run that was not applied")
    }

    /// The blocks are in use from the handle's epoch on. Uses [`BLOCKS_A_RUN`] of the handle's blocks.
    pub(crate) fn apply(mut self, handle: &Handle<'_>) -> Run {
        let run = self.run();
        self.run = None;
        (0..BLOCKS_A_RUN).for_each(|_| handle.use_block());
        self.groups
            .block_changes
            .push(handle, BlockChange { run, is_set: true });
        run
    }
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            self.groups.give_back_blocks(self.geometry, run);
        }
    }
}

/// Takes up to `want` blocks in a row, as near behind `goal` as there are: first a whole run in the goal's group or
/// any other, else the longest that the first group with free blocks has. Called while preparing, without a handle.
///
/// # Errors
/// `NoSpace` when no block can be had now ([`crate::icache::Icache`] tries again after a commit); `Corrupt`, `Io`
/// from reading bitmaps.
pub(crate) fn take<'a>(
    volume: &'a Volume,
    groups: &'a Groups,
    goal: FsBlock,
    want: u32,
) -> Result<Blocks<'a>, Error> {
    let geometry = volume.geometry();
    let (first, bit) = geometry.bit_of_block(goal).unwrap_or((Group(0), 0));
    let want = want.clamp(1, geometry.clusters_per_group());
    for is_whole in [true, false] {
        for step in 0..geometry.groups() {
            // Both are below the number of groups, which is far below 2^31.
            let group = Group((first.0 + step) % geometry.groups());
            let from = if step == 0 { bit } else { 0 };
            if groups
                .free_in_memory(group)
                .is_some_and(|(blocks, _)| blocks == 0)
            {
                continue;
            }
            let len = geometry.group_clusters(group);
            let taken = groups.with_bits(volume, group, |bits| {
                let range = match is_whole {
                    true => bitmap::find_clear_run(&bits.blocks, from, len, want)
                        .or_else(|| bitmap::find_clear_run(&bits.blocks, 0, len, want)),
                    false => longest(&bits.blocks, len, want),
                }?;
                bitmap::set_range(&mut bits.blocks, range.clone());
                bits.free_blocks -= range.end - range.start;
                Some(range)
            })?;
            if let Some(range) = taken {
                let start = FsBlock(geometry.group_first_block(group).0 + u64::from(range.start));
                let run = Run {
                    start,
                    len: range.end - range.start,
                };
                return Ok(Blocks {
                    groups,
                    geometry,
                    run: Some(run),
                });
            }
        }
    }
    Err(Error::NoSpace)
}

/// The longest run of clear bits, cut to `want`.
fn longest(bits: &[u8], len: u32, want: u32) -> Option<std::ops::Range<u32>> {
    let free = bitmap::runs(bits, len)
        .filter(|(_, is_set)| !is_set)
        .map(|(range, _)| range);
    let longest =
        free.max_by_key(|range| (range.end - range.start, std::cmp::Reverse(range.start)))?;
    Some(longest.start..longest.end.min(longest.start + want))
}

/// Frees blocks in the handle's epoch: they can be had again when it is durable. Uses [`BLOCKS_A_RUN`] of the
/// handle's blocks for each group that the run touches. The groups' bitmaps must be in memory ([`load`]). Blocks that
/// held metadata are the caller's to forget.
pub(crate) fn free(
    geometry: &Geometry,
    groups: &Groups,
    handle: &Handle<'_>,
    start: FsBlock,
    len: u64,
) {
    let count = || (0..BLOCKS_A_RUN).for_each(|_| handle.use_block());
    free_uncounted(geometry, groups, handle, start, len, count);
}

/// Frees a run, and calls `count` for each group that it touches.
fn free_uncounted(
    geometry: &Geometry,
    groups: &Groups,
    handle: &Handle<'_>,
    start: FsBlock,
    len: u64,
    count: impl Fn(),
) {
    let (mut at, end) = (start.0, start.0 + len);
    while at < end {
        let Some((_, bit)) = geometry.bit_of_block(FsBlock(at)) else {
            return;
        };
        let rest = u64::from(geometry.blocks_per_group() - bit).min(end - at);
        // At most the blocks of a group.
        let run = Run {
            start: FsBlock(at),
            len: rest as u32,
        };
        count();
        groups
            .block_changes
            .push(handle, BlockChange { run, is_set: false });
        // Relaxed: a hint for when space is short.
        groups.pending_blocks.fetch_add(rest, Ordering::Relaxed);
        at += rest;
    }
}

/// Reads the bitmaps of the groups that a run touches, so that it can be freed in an apply.
///
/// # Errors
/// `Corrupt`, `Io`; a run that is not within the file system is the caller's to refuse.
pub(crate) fn load(
    volume: &Volume,
    groups: &Groups,
    start: FsBlock,
    len: u64,
) -> Result<(), Error> {
    let last = FsBlock((start.0 + len).saturating_sub(1));
    let geometry = volume.geometry();
    let (Some(first), Some(last)) = (
        geometry.group_of_block(start),
        geometry.group_of_block(last),
    ) else {
        return Ok(());
    };
    (first.0..=last.0).try_for_each(|group| groups.with_bits(volume, Group(group), |_| ()))
}

/// Blocks that [`free_all`] uses of a handle for these runs.
pub(crate) fn blocks_to_free_all(geometry: &Geometry, runs: &[(FsBlock, u64)]) -> u32 {
    // A step frees into some dozens of groups.
    groups_of(geometry, runs).len() as u32 * BLOCKS_A_RUN
}

/// As [`free`] for each run, but uses [`BLOCKS_A_RUN`] of the handle's blocks once for each group.
pub(crate) fn free_all(
    geometry: &Geometry,
    groups: &Groups,
    handle: &Handle<'_>,
    runs: &[(FsBlock, u64)],
) {
    (0..blocks_to_free_all(geometry, runs)).for_each(|_| handle.use_block());
    for (start, len) in runs {
        free_uncounted(geometry, groups, handle, *start, *len, || {});
    }
}

/// The groups that runs touch.
fn groups_of(geometry: &Geometry, runs: &[(FsBlock, u64)]) -> std::collections::BTreeSet<u32> {
    let ends = runs.iter().filter_map(|(start, len)| {
        let last = FsBlock((start.0 + len).saturating_sub(1));
        Some(geometry.group_of_block(*start)?.0..=geometry.group_of_block(last)?.0)
    });
    ends.flatten().collect()
}
