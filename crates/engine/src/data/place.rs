//! Which blocks a growing file gets: those kept for it; else, for a small file, the next ones of the calling thread's
//! run; else a normalised run out of the bitmaps, of which it keeps what it does not need yet.
//!
//! The holder of the inode's exclusive lock asks while preparing. What is kept is in no image: a crash forgets it. With
//! `prealloc=off` each request is taken as it is.
//!
//! Where: behind what is mapped before; else, for a regular file, in its flexible group, but not in the first block
//! group of it, which is left to directories and tables; large files behind others ([`crate::mballoc::Goals`]). Threads
//! take their runs from different groups.

use ondisk::{Flags, FsBlock, Geometry, Group, Ino};

use super::step::{Changing, max_bytes, run_at};
use crate::error::Error;
use crate::extent::{Mapping, Mappings};
use crate::icache::LoadedInode;
use crate::mballoc::{Aside, Blocks, Request, normalize};
use crate::sb::Purpose;

/// Runs of blocks that one step takes at most.
const STEP_RUNS: usize = 8;
/// Files up to so many blocks are small: as `mb_stream_req` in Linux.
const SMALL: u64 = 16;
/// Block groups of a flexible group from which on the first is left to directories, as in Linux.
const FLEX_GROUPS: u32 = 4;

/// Takes blocks for a hole, or for a part of it from its start on, near what is mapped before it.
pub(super) fn take_runs<'a>(
    file: Changing<'a>,
    inode: &LoadedInode,
    hole: &Mapping,
) -> Result<Vec<Blocks<'a>>, Error> {
    let geometry = file.volume().geometry();
    let most = match inode.flags().contains(Flags::EXTENTS) {
        true => u64::from(geometry.blocks_per_group()),
        // Three blocks' worth of pointers: blocks of them are taken as well.
        false => 3 * geometry.block_size().bytes_u64() / 4,
    };
    let end = hole.logical + hole.len.min(most);
    let keeps = file.icache.preallocations().is_on();
    if !keeps {
        file.icache.give_back_kept(file.locked.inode());
    }
    let before = match hole.logical.checked_sub(1) {
        Some(before) => run_at(file.volume(), inode, before, hole.logical)?.physical,
        None => None,
    };
    let mut place = Place {
        file,
        inode,
        at: hole.logical,
        end,
        keeps,
        next: before.map(|block| FsBlock(block.0 + 1)),
    };
    let mut taken: Vec<Blocks<'a>> = Vec::new();
    while place.at < end && taken.len() < STEP_RUNS {
        match place.take() {
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
    /// Whether blocks are kept.
    keeps: bool,
    /// The block behind the one that holds what is before `at`.
    next: Option<FsBlock>,
}

impl<'a> Place<'a, '_> {
    /// Takes blocks for `at`, and as many behind it as there are in a row.
    fn take(&mut self) -> Result<Blocks<'a>, Error> {
        let (icache, live) = (self.file.icache, self.file.locked.inode());
        let kept = icache.preallocations();
        if !self.keeps {
            let want = self.end - self.at;
            return self.take_out(self.goal(), want, want);
        }
        let want = self.end - self.at;
        if let Some(blocks) = kept.take(live.kept(), self.at, bounded(want)) {
            return Ok(icache.take_up(blocks));
        }
        let neighbors = live.kept().neighbors(self.at);
        let want = want.min(neighbors.behind - self.at);
        let file_end = self.file_end();
        let is_small = self.end.max(file_end) <= SMALL;
        if let Some(next) = self.next
            && let Some(blocks) = kept.take_at(next, bounded(want))
        {
            return Ok(icache.take_up(blocks));
        }
        if is_small
            && self.next.is_none()
            && let Some(blocks) = self.take_from_lane(want)?
        {
            return Ok(blocks);
        }
        // One write of a whole file, which nobody has open to write more.
        if self.next.is_none() && self.at == 0 && !live.is_held() {
            return self.take_out(self.goal(), want, want);
        }
        self.refill(want, neighbors.before)
    }

    /// Takes up to `want` blocks, of which `least` will do, out of the bitmaps.
    fn take_out(&self, goal: FsBlock, want: u64, least: u64) -> Result<Blocks<'a>, Error> {
        let icache = self.file.icache;
        let (want, least) = (bounded(want), bounded(least));
        let blocks = icache.take_row(Purpose::Growing, goal, want, least)?;
        let run = blocks.run();
        let end = FsBlock(run.start.0 + u64::from(run.len));
        let geometry = self.file.volume().geometry();
        let goals = icache.goals();
        goals.took(geometry, self.inode.ino(), end, run.len.into());
        Ok(blocks)
    }

    /// Takes a normalised run out of the bitmaps, and keeps what is not wanted of it.
    fn refill(&mut self, want: u64, kept_before: u64) -> Result<Blocks<'a>, Error> {
        let (icache, live) = (self.file.icache, self.file.locked.inode());
        let range = self.normalized(want, kept_before)?;
        let mut blocks = self.take_out(self.goal(), range.1 - range.0, want)?;
        icache.preallocations().refills.add(1);
        let lead = self.at - range.0;
        // If it does not hold all that is wanted in its place, what is wanted comes first.
        if lead > 0 && lead + want <= u64::from(blocks.run().len) {
            let before = blocks.split(bounded(lead));
            icache.keep_for(live, range.0, before.set_aside());
        }
        if u64::from(blocks.run().len) > want {
            let wanted = blocks.split(bounded(want));
            icache.keep_for(live, self.at + want, blocks.set_aside());
            return Ok(wanted);
        }
        Ok(blocks)
    }

    /// The logical blocks to look for.
    fn normalized(&self, want: u64, kept_before: u64) -> Result<(u64, u64), Error> {
        let volume = self.file.volume();
        let geometry = volume.geometry();
        let bits = geometry.block_size().bits();
        let mut request = Request {
            block_bits: bits,
            logical: self.at,
            len: want,
            file_end: self.file_end(),
            hole: (kept_before, max_bytes(volume, self.inode) >> bits),
            free: self.file.icache.spare_blocks(),
            group: geometry.blocks_per_group().into(),
        };
        request.hole.1 = request.hole.1.max(self.at + want);
        let wide = normalize(&request);
        let asked_end = self.at + want;
        if self.next.is_some() {
            request.hole.0 = self.at;
        } else if wide.start < self.at {
            for run in Mappings::new(volume, self.inode, wide.start..self.at)? {
                let run = run?;
                if run.physical.is_some() {
                    request.hole.0 = run.end();
                }
            }
        }
        if wide.end > asked_end {
            let behind = self.file.run_at(asked_end, wide.end)?;
            let free_to = if behind.physical.is_some() {
                asked_end
            } else {
                behind.end()
            };
            let live = self.file.locked.inode();
            let kept_behind = live.kept().neighbors(self.at).behind;
            request.hole.1 = free_to.min(kept_behind).max(asked_end);
        }
        let range = normalize(&request);
        Ok((range.start, range.end))
    }

    fn file_end(&self) -> u64 {
        let volume = self.file.volume();
        let size = volume.geometry().block_size();
        size.blocks_for(self.inode.bytes(volume))
    }

    /// Where to look for blocks.
    fn goal(&self) -> FsBlock {
        let geometry = self.file.volume().geometry();
        let own = || first_goal(geometry, self.inode.ino(), 0).1;
        let goals = self.file.icache.goals();
        let ino = self.inode.ino();
        self.next
            .unwrap_or_else(|| goals.first(geometry, ino, own(), self.end - self.at))
    }

    /// Takes the next blocks of the thread's run for small files of this part of the volume, or of a new one. Nothing
    /// where there is too little free for that.
    fn take_from_lane(&self, want: u64) -> Result<Option<Blocks<'a>>, Error> {
        let icache = self.file.icache;
        let geometry = self.file.volume().geometry();
        let kept = icache.preallocations();
        let (home, mut goal) = first_goal(geometry, self.inode.ino(), sync::thread_index());
        match kept.take_near(home, bounded(want)) {
            Ok(blocks) => return Ok(Some(icache.take_up(blocks))),
            Err(Some(rest)) => {
                goal = rest.run().start;
                drop(icache.take_up(rest));
            }
            Err(None) => {}
        }
        let len = icache.kept_at_once();
        if len < 2 * SMALL {
            return Ok(None);
        }
        let (most, least) = (bounded(len), bounded(want.max(SMALL)));
        let mut blocks = icache.take_row(Purpose::Growing, goal, most, least)?;
        kept.lane_refills.add(1);
        if u64::from(blocks.run().len) <= want {
            return Ok(Some(blocks));
        }
        let wanted = blocks.split(bounded(want));
        let over: Option<Aside> = kept.keep_near(home, blocks.set_aside());
        drop(over.map(|over| icache.take_up(over)));
        Ok(Some(wanted))
    }
}

/// A number of blocks of one step: below 2^32.
fn bounded(blocks: u64) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// Which part of the volume a regular file's first blocks belong to, by the number of its first group, and where to
/// look for them there on the thread with this index: the first thread looks in the second group of a flexible group,
/// others in those behind it.
fn first_goal(geometry: &Geometry, ino: Ino, thread: usize) -> (u32, FsBlock) {
    let own = geometry.group_of_ino(ino).map_or(0, |(group, _)| group.0);
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
