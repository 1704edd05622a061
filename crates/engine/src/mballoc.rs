//! Block allocation, the plain form: first fit from a goal, group after group, each group's lock waited for.
//!
//! An allocation first takes its share of the sum of free blocks ([`crate::group`]), which leaves the floor that the
//! request must: then it finds as many clear bits, if need be in pieces. A run is taken out of the bitmaps in memory
//! while preparing ([`take`]); it is in no image yet, and dropping it gives it back. Applying it puts it on the epoch's
//! list. Freeing is prepared too ([`claim`]): blocks of the file system's own, free ones, and those that another is
//! about to free are refused. A freed run comes back to memory when its epoch is durable.

use std::collections::BTreeSet;

use journal::Handle;
use journal::canary::{self, Canary};
use ondisk::{Corrupt, FsBlock, Geometry, Group, Ino, Site};

use crate::error::Error;
use crate::group::{BlockChange, Groups, Run};
use crate::sb::Volume;

mod goal;

pub(crate) use goal::Goals;

/// Blocks of a handle that one applied run uses: a bitmap, a descriptor block, the superblock.
pub(crate) const BLOCKS_A_RUN: u32 = 3;
/// Blocks of a handle that freeing uses for each group: a bitmap, a descriptor block; and the superblock once.
const BLOCKS_A_GROUP: u32 = 2;

/// Looks through all groups by one who has a share and finds nothing: only others' takes and frees in between hide it.
const LOOKS: usize = 64;

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
        handle.maps_data();
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

/// Takes up to `want` blocks in a row, as near behind `goal` as there are, and leaves at least `floor` free ones: first
/// a whole run in the goal's group or any other, else the longest that the first group with free blocks has. Called
/// while preparing, without a handle.
///
/// # Errors
/// `NoSpace` when no block can be had now ([`crate::icache::Icache`] tries again after a commit); `Corrupt`, `Io`
/// from reading bitmaps.
pub(crate) fn take<'a>(
    volume: &'a Volume,
    groups: &'a Groups,
    goal: FsBlock,
    want: u32,
    floor: u64,
) -> Result<Blocks<'a>, Error> {
    let geometry = volume.geometry();
    let want = want.clamp(1, geometry.clusters_per_group());
    let share = groups.blocks.share(want, floor);
    let found = match share {
        0 => Ok(None),
        share => (0..LOOKS)
            .find_map(|_| look(volume, groups, goal, share).transpose())
            .transpose(),
    };
    let used = match &found {
        Ok(Some(run)) => run.len,
        _ => 0,
    };
    groups.blocks.add(i64::from(share) - i64::from(used));
    let run = found?.ok_or(Error::NoSpace)?;
    Ok(Blocks {
        groups,
        geometry,
        run: Some(run),
    })
}

/// One look through all groups: for `want` blocks in a row, then for fewer.
fn look(volume: &Volume, groups: &Groups, goal: FsBlock, want: u32) -> Result<Option<Run>, Error> {
    let geometry = volume.geometry();
    let (first, bit) = geometry.bit_of_block(goal).unwrap_or((Group(0), 0));
    for is_whole in [true, false] {
        for step in 0..geometry.groups() {
            // Both are below the number of groups, which is far below 2^31.
            let group = Group((first.0 + step) % geometry.groups());
            let from = if step == 0 { bit } else { 0 };
            let (free, longest) = groups.free_blocks(group);
            if free == 0 || is_whole && longest < want {
                continue;
            }
            let taken = groups.with_bits(volume, group, |bits| match is_whole {
                true => bits.take_whole(from, want),
                false => bits.take_longest(want),
            });
            let taken = match taken {
                // Others may do.
                Err(Error::Corrupt(corrupt)) => {
                    groups.exclude(group, corrupt);
                    continue;
                }
                taken => taken?,
            };
            if let Some(range) = taken {
                return Ok(Some(Run {
                    start: FsBlock(geometry.group_first_block(group).0 + u64::from(range.start)),
                    len: range.end - range.start,
                }));
            }
        }
    }
    Ok(None)
}

/// Blocks in use that the owner of this value is about to free; nobody else can. Dropping it leaves them in use.
pub(crate) struct Freeing<'a> {
    groups: &'a Groups,
    geometry: &'a Geometry,
    /// Each within one group. Empty once they were freed.
    runs: Vec<Run>,
}

/// Prepares to free runs of blocks that the inode `ino` names. Reads the bitmaps of their groups. Called while
/// preparing, without a handle.
///
/// # Errors
/// `Corrupt` for blocks of the file system's own or beyond its end, and for those that are free or being freed already;
/// as [`take`].
pub(crate) fn claim<'a>(
    volume: &'a Volume,
    groups: &'a Groups,
    ino: Ino,
    runs: &[(FsBlock, u64)],
) -> Result<Freeing<'a>, Error> {
    let geometry = volume.geometry();
    let mut freeing = Freeing {
        groups,
        geometry,
        runs: Vec::with_capacity(runs.len()),
    };
    for (start, len) in runs {
        volume.check_unowned(ino, *start, *len)?;
        let (mut at, end) = (start.0, start.0 + len);
        while at < end {
            let (group, bit) = geometry.bit_of_block(FsBlock(at)).ok_or_else(|| {
                let corrupt = Corrupt::at(Site::FreedBeyondEnd);
                corrupt.ino(ino).block(FsBlock(at))
            })?;
            // At most the blocks of a group.
            let rest = u64::from(geometry.group_clusters(group) - bit).min(end - at) as u32;
            groups
                .with_bits(volume, group, |bits| bits.leave(bit, rest))?
                .map_err(|free| {
                    let block = geometry.group_first_block(group).0 + u64::from(free);
                    let corrupt = Corrupt::at(Site::BlockFreedTwice);
                    corrupt.ino(ino).group(group).block(FsBlock(block))
                })?;
            freeing.runs.push(Run {
                start: FsBlock(at),
                len: rest,
            });
            at += u64::from(rest);
        }
    }
    Ok(freeing)
}

impl Freeing<'_> {
    /// Blocks of a handle that [`Freeing::apply`] uses.
    pub(crate) fn cost(&self) -> u32 {
        let of = |run: &Run| self.geometry.group_of_block(run.start);
        let groups: BTreeSet<Group> = self.runs.iter().filter_map(of).collect();
        match groups.len() {
            0 => 0,
            // A step frees into a few groups.
            groups => groups as u32 * BLOCKS_A_GROUP + 1,
        }
    }

    /// Frees the blocks in the handle's epoch: they can be had again when it is durable. Those that held metadata are
    /// the caller's to forget.
    pub(crate) fn apply(mut self, handle: &Handle<'_>) {
        (0..self.cost()).for_each(|_| handle.use_block());
        for run in std::mem::take(&mut self.runs) {
            self.groups
                .block_changes
                .push(handle, BlockChange { run, is_set: false });
            self.groups.blocks.freed(run.len);
            if canary::makes(Canary::ReusedBeforeCommit) {
                self.groups.leave(self.geometry, run);
            }
        }
    }
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        for run in std::mem::take(&mut self.runs) {
            if let Some((group, first)) = self.geometry.bit_of_block(run.start) {
                self.groups.with_loaded(group, |bits| bits.stay(first));
            }
        }
    }
}
