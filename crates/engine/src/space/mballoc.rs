//! Block allocation: buddies searched by criteria, from a goal on; goals, locks and the order of groups each in a
//! scalable and a plain form.
//!
//! An allocation first takes its share of the sum of free blocks ([`crate::space::group`]), and must leave at least the
//! floor of the request. Then it finds the blocks of that share ([`search`]), if need be in pieces. A run is taken out
//! of the buddies in memory while preparing ([`take`]); it is in no image yet, and dropping it gives it back
//! ([`taken`]). Applying it puts it on the epoch's list. Freeing is prepared too ([`claim`]): blocks of the file
//! system's own, free ones, and those that another thread is about to free are refused. A freed run comes back to
//! memory when its epoch is durable, with all others of its group at once.

use std::collections::BTreeSet;
use std::ops::Range;

use journal::Handle;
use journal::canary::{self, Canary};
use ondisk::{Corrupt, FsBlock, Geometry, Group, Ino, Site};

use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::sb;
use crate::space::group::{Bits, BlockChange, GroupRun, Groups};

mod exact;
mod goal;
mod normalize;
mod prealloc;
mod search;
mod taken;

pub(crate) use exact::{take_exact, take_free, take_run};
pub(crate) use goal::Goals;
pub(crate) use normalize::{NormalRequest, normalize};
pub(crate) use prealloc::{OfFile, Preallocations};
use search::search;

pub(crate) use taken::{Aside, BLOCKS_A_RUN, TakenBlocks};

/// Blocks of a handle that freeing uses for each group: a bitmap, a descriptor block; and the superblock once.
const BLOCKS_A_GROUP: u32 = 2;

/// Where blocks may lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Anywhere.
    Volume,
    /// In the groups below block 2^32: what pointers of 32 bits reach.
    Pointers,
}

impl Reach {
    /// Of the map of a file, which is a tree of extents or made of pointers.
    pub(crate) fn of_map(is_tree: bool) -> Reach {
        if is_tree {
            Reach::Volume
        } else {
            Reach::Pointers
        }
    }

    /// In how many groups, from the first on; never none.
    pub(crate) fn groups(self, geometry: &Geometry) -> u32 {
        let all = geometry.groups();
        let below = (1 << 32) / u64::from(geometry.blocks_per_group());
        match (self, u32::try_from(below)) {
            (Reach::Pointers, Ok(below)) => all.min(below.max(1)),
            _ => all,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRequest {
    /// Where they may lie.
    pub(crate) reach: Reach,
    /// Where the blocks should begin, or else near.
    pub(crate) goal: FsBlock,
    /// How many in a row.
    pub(crate) want: u32,
    /// A row of this length is enough where it begins at the goal, or where a row of `want` takes long to find; 1 to
    /// `want`.
    pub(crate) least: u32,
    /// Whether a row of `least` is also enough in the first place after the goal in its group.
    pub(crate) is_near: bool,
    /// Free blocks that must be left.
    pub(crate) floor: u64,
}

/// Takes up to `want` blocks in a row, near the goal: [`search`] describes where. Called while preparing, without a
/// handle.
///
/// # Errors
/// `NoSpace` when no block is available now ([`crate::inode::MountedFs`] tries again after a commit); `Corrupt`, `Io`
/// from reading bitmaps.
pub(crate) fn take<'a>(
    volume: &'a OpenVolume,
    groups: &'a Groups,
    target: &BlockRequest,
) -> Result<TakenBlocks<'a>, Error> {
    let geometry = volume.geometry();
    let want = target.want.clamp(1, geometry.clusters_per_group());
    let share = groups.blocks.share(want, target.floor);
    let found = match share {
        0 => Ok(None),
        share => search(volume, groups, target, share),
    };
    let used = match &found {
        Ok(Some(run)) => run.len,
        _ => 0,
    };
    if share > used {
        groups.blocks.give_back(share - used);
    }
    let run = found?.ok_or(Error::NoSpace)?;
    Ok(TakenBlocks::new(groups, geometry, run))
}

/// Blocks in use that the owner of this value is about to free; no other thread can. Dropping it leaves them in use.
pub(crate) struct Freeing<'a> {
    groups: &'a Groups,
    geometry: &'a Geometry,
    /// Each within one group. Empty once they were freed.
    runs: Vec<GroupRun>,
}

/// Prepares to free runs of blocks that the inode `ino` names. Reads the bitmaps of their groups. Called while
/// preparing, without a handle.
///
/// # Errors
/// `Corrupt` for blocks of the file system's own or beyond its end, and for those that are free or being freed already;
/// as [`take`].
pub(crate) fn claim<'a>(
    volume: &'a OpenVolume,
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
    let mut pieces: Vec<(Group, Range<u32>)> = Vec::with_capacity(runs.len());
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
            pieces.push((group, bit..bit + rest));
            at += u64::from(rest);
        }
    }
    // Each group's lock is taken once for what lies in it in a row.
    for pieces in pieces.chunk_by(|one, next| one.0 == next.0) {
        let group = pieces[0].0;
        let first = geometry.group_first_block(group).0;
        let runs = &mut freeing.runs;
        let claim = |bits: &mut Bits| {
            pieces.iter().try_for_each(|(_, range)| {
                bits.leave(range.clone())?;
                runs.push(GroupRun {
                    start: FsBlock(first + u64::from(range.start)),
                    len: range.end - range.start,
                });
                Ok(())
            })
        };
        let claimed = groups.with_bits(volume, group, claim)?;
        claimed.map_err(|free: u32| {
            let corrupt = Corrupt::at(Site::BlockFreedTwice);
            let block = FsBlock(first + u64::from(free));
            corrupt.ino(ino).group(group).block(block)
        })?;
    }
    Ok(freeing)
}

impl Freeing<'_> {
    fn runs_groups(&self) -> BTreeSet<Group> {
        let of = |run: &GroupRun| self.geometry.group_of_block(run.start);
        self.runs.iter().filter_map(of).collect()
    }

    /// Blocks of a handle that [`Freeing::apply`] uses.
    pub(crate) fn cost(&self) -> u32 {
        match self.runs_groups().len() {
            0 => 0,
            // A step frees into a few groups.
            groups => groups as u32 * BLOCKS_A_GROUP + 1,
        }
    }

    /// Frees the blocks in the handle's epoch: they are available again when it is durable. The caller forgets those
    /// that held metadata.
    pub(crate) fn apply(mut self, handle: &Handle<'_>) {
        for group in self.runs_groups() {
            handle.use_blocks_for(u64::from(group.0) << 2 | 3, BLOCKS_A_GROUP);
        }
        if !self.runs.is_empty() {
            handle.use_blocks_for(sb::COUNTED_AS, 1);
        }
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
