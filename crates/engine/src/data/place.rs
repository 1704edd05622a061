//! Which blocks a growing file gets: those kept for it; else, for a small file, the next ones of the calling thread's
//! run; else a normalised run out of the bitmaps, of which it keeps what it does not need yet ([`kept`]). With
//! `prealloc=off` each request is taken as it is ([`plain`]).
//!
//! The holder of the inode's exclusive lock asks while preparing. What is kept is in no image: a crash forgets it.
//!
//! Where: after the last block that is mapped before it; otherwise, for a regular file, in its flexible group, except
//! the first block group of that, which is left to directories and tables; a large file after other large files
//! ([`crate::space::mballoc::Goals`]). Threads take their runs from different groups.

use ondisk::{Flags, FsBlock, Geometry, Group};

use super::step::{Changing, run_at};
use crate::core::Error;
use crate::core::sb::BlockPurpose;
use crate::inode::LoadedInode;
use crate::map::{Mapping, home_group};
use crate::space::mballoc::{Reach, TakenBlocks};

mod kept;
mod plain;

/// Runs of blocks that one step takes at most.
const STEP_RUNS: usize = 8;
/// Files of at most this number of blocks are small: as `mb_stream_req` in Linux.
const SMALL: u64 = 16;
/// Block groups of a flexible group from which on the first is left to directories, as in Linux.
const FLEX_GROUPS: u32 = 4;

/// A source of blocks for a file.
trait Supply {
    /// Takes a run of blocks that begins with the block for the place's `at`.
    fn take<'a>(&self, place: &Place<'a, '_>) -> Result<TakenBlocks<'a>, Error>;
}

/// Takes blocks for a hole, or for a part of it from its start on, near what is mapped before it.
pub(super) fn take_runs<'a>(
    file: Changing<'a>,
    inode: &LoadedInode,
    hole: &Mapping,
) -> Result<Vec<TakenBlocks<'a>>, Error> {
    let geometry = file.volume().geometry();
    let most = if inode.flags().contains(Flags::EXTENTS) {
        u64::from(geometry.blocks_per_group())
    } else {
        // Three blocks' worth of pointers: blocks of them are taken as well.
        3 * geometry.block_size().bytes_u64() / 4
    };
    let end = hole.logical + hole.len.min(most);
    let supply: &dyn Supply = if file.mounted.preallocations().is_on() {
        &kept::Kept
    } else {
        // From when there was more.
        file.mounted.give_back_kept(file.locked.inode());
        &plain::Plain
    };
    let before = match hole.logical.checked_sub(1) {
        Some(before) => run_at(file.volume(), inode, before, hole.logical)?.physical,
        None => None,
    };
    let mut place = Place {
        file,
        inode,
        at: hole.logical,
        end,
        next: before.map(|block| FsBlock(block.0 + 1)),
    };
    let mut taken: Vec<TakenBlocks<'a>> = Vec::new();
    while place.at < end && taken.len() < STEP_RUNS {
        match supply.take(&place) {
            Ok(blocks) => {
                let run = blocks.run();
                place.at += u64::from(run.len);
                place.next = Some(FsBlock(run.start.0 + u64::from(run.len)));
                taken.push(blocks);
            }
            Err(Error::NoSpace) if !taken.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Where blocks are wanted.
struct Place<'a, 'b> {
    file: Changing<'a>,
    inode: &'b LoadedInode,
    /// The first logical block that has none yet.
    at: u64,
    /// Where the request ends.
    end: u64,
    /// The block after the one that holds what is before `at`.
    next: Option<FsBlock>,
}

impl<'a> Place<'a, '_> {
    /// Takes up to `want` blocks, of which `least` will do, out of the bitmaps.
    fn take_out(&self, goal: FsBlock, want: u64, least: u64) -> Result<TakenBlocks<'a>, Error> {
        let mounted = self.file.mounted;
        let (want, least) = (bounded(want), bounded(least));
        let blocks = mounted.take_row(BlockPurpose::Growing, goal, self.reach(), least..=want)?;
        let run = blocks.run();
        let end = FsBlock(run.start.0 + u64::from(run.len));
        let geometry = self.file.volume().geometry();
        let goals = mounted.goals();
        goals.took(geometry, self.inode.ino(), end, run.len.into());
        Ok(blocks)
    }

    /// Where to look for blocks.
    fn goal(&self) -> FsBlock {
        let geometry = self.file.volume().geometry();
        let goals = self.file.mounted.goals();
        let ino = self.inode.ino();
        self.next.unwrap_or_else(|| {
            let own = self.first_goal(0).1;
            let first = goals.first(geometry, ino, own, self.end - self.at);
            // The goal depends on blocks that other files took, so it may be where pointers do not reach.
            if self.is_tree() || first.0 >> 32 == 0 {
                first
            } else {
                own
            }
        })
    }

    fn is_tree(&self) -> bool {
        self.inode.flags().contains(Flags::EXTENTS)
    }

    fn reach(&self) -> Reach {
        Reach::of_map(self.is_tree())
    }

    /// Whether blocks of the whole volume can be the file's.
    fn reaches_all(&self) -> bool {
        let geometry = self.file.volume().geometry();
        self.reach().groups(geometry) == geometry.groups()
    }

    /// See [`first_goal`].
    fn first_goal(&self, thread: usize) -> (u32, FsBlock) {
        let geometry = self.file.volume().geometry();
        let own = home_group(geometry, self.inode.ino(), self.is_tree());
        first_goal(geometry, own, thread)
    }
}

/// A number of blocks of one step: below 2^32.
fn bounded(blocks: u64) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// Which part of the volume the first blocks of a regular file of a group belong to, by the number of its first group,
/// and where to look for them there on the thread with this index: the first thread looks in the second group of a
/// flexible group, others in those behind it.
fn first_goal(geometry: &Geometry, Group(own): Group, thread: usize) -> (u32, FsBlock) {
    let flex = geometry.flex_size();
    if flex < FLEX_GROUPS {
        return (own, geometry.group_first_block(Group(own)));
    }
    let home = own - own % flex;
    // The last flexible group may be cut short.
    let there = flex.min(geometry.groups() - home);
    let group = match there {
        0 | 1 => home,
        // Below the number of groups.
        there => home + 1 + (thread % (there as usize - 1)) as u32,
    };
    (home, geometry.group_first_block(Group(group)))
}
