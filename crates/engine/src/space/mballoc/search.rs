//! Where blocks are found: at the goal, else after it in its group, else in another group by criteria, from those that
//! are quick and leave large free runs whole to any free blocks at all.
//!
//! | criterion | groups | what is taken there |
//! |---|---|---|
//! | goal | the goal's | the run at the goal; else the first run as long as is wanted behind it; else any such run |
//! | exact power of two | with a free chunk of that order | such a chunk, or half of the smallest larger one |
//! | goal length, fast | whose average run is as long | a run as long, from the smallest chunk that holds it |
//! | best available | whose average run is a power of two shorter, down to an eighth and what will do | such a run |
//! | goal length, slow | any with a run as long | that run |
//! | any | any with a free block, its lock waited for | the longest run, cut to what is wanted |
//!
//! For each, groups are looked at from the one after the goal's to the last that may be taken from ([`super::Reach`]),
//! then from the first to the goal's: so threads that take move on to the right, away from groups in which others free.
//! `group_lock` decides whether a group whose lock another thread has is skipped or waited for. Bitmaps are read before
//! a group's lock is taken.

use std::ops::Range;

use ondisk::{FsBlock, Group};

use super::BlockRequest;
use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::space::group::{Bits, Criterion, GroupRun, Groups, ScanPurpose, order_holding};

/// How often a thread with a share searches although it finds nothing: only the takes and frees of other threads in
/// between can hide a block.
const LOOKS: usize = 64;
/// Orders by which a run may be shorter than wanted where that is quick.
const TRIMMED_ORDERS: u32 = 3;
/// A chunk of an exact order is looked for from this many blocks on.
const LEAST_CHUNK: u32 = 4;

/// One search.
struct Search<'a> {
    volume: &'a OpenVolume,
    groups: &'a Groups,
    /// Behind the last group that may be taken from.
    end: u32,
    /// The goal's group and bit.
    goal: (Group, u32),
    want: u32,
    least: u32,
    is_near: bool,
}

/// Finds and takes up to `share` blocks in a row. The caller has a share of `share` blocks.
pub(super) fn search(
    volume: &OpenVolume,
    groups: &Groups,
    target: &BlockRequest,
    share: u32,
) -> Result<Option<GroupRun>, Error> {
    let goal = volume.geometry().bit_of_block(target.goal);
    let search = Search {
        volume,
        groups,
        end: target.reach.groups(volume.geometry()),
        goal: goal.unwrap_or((Group(0), 0)),
        want: share,
        least: target.least.clamp(1, share),
        is_near: target.is_near,
    };
    groups.searches.tries.add(1);
    (0..LOOKS)
        .find_map(|_| search.look().transpose())
        .transpose()
}

impl Search<'_> {
    /// One look by all criteria.
    fn look(&self) -> Result<Option<GroupRun>, Error> {
        let (goal, _) = self.goal;
        if goal.0 < self.end && self.groups.free_blocks(goal) > 0 {
            let found = self.in_group(Criterion::Goal, goal, |bits| self.near_goal(bits))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let want = self.want;
        if want.is_power_of_two() && want >= LEAST_CHUNK {
            let wanted = ScanPurpose::Chunk(want.ilog2());
            let found = self.in_groups(Criterion::PowerOfTwo, wanted, |bits| {
                bits.buddy().find_chunk(want)
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let wanted = ScanPurpose::Average(order_holding(want));
        let fast = self.in_groups(Criterion::GoalFast, wanted, |bits| bits.buddy().find(want))?;
        if fast.is_some() {
            return Ok(fast);
        }
        for order in self.trimmed() {
            let wanted = ScanPurpose::Average(order);
            let found = self.in_groups(Criterion::BestAvailable, wanted, |bits| {
                bits.buddy().find(1 << order)
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let slow = self.in_groups(Criterion::GoalSlow, ScanPurpose::Run(want), |bits| {
            bits.buddy().find(want)
        })?;
        if slow.is_some() {
            return Ok(slow);
        }
        self.in_groups(Criterion::Any, ScanPurpose::Any, |bits| {
            let longest = bits.buddy().find_longest()?;
            Some(longest.start..longest.end.min(longest.start.saturating_add(want)))
        })
    }

    /// Orders of runs that are shorter than wanted and will do, the longest first.
    fn trimmed(&self) -> impl Iterator<Item = u32> {
        let (want, least) = (order_holding(self.want), order_holding(self.least));
        let shortest = least.max(want.saturating_sub(TRIMMED_ORDERS));
        (shortest..want).rev()
    }

    fn near_goal(&self, bits: &mut Bits) -> Option<Range<u32>> {
        let (_, bit) = self.goal;
        let at_goal = bits.buddy().run_at(bit, self.want);
        let behind = if self.is_near { self.least } else { self.want };
        let found = at_goal
            .filter(|run| run.end - run.start >= self.least)
            .or_else(|| bits.buddy().find_behind(bit, behind))
            // A failure is remembered, so that the next search does not look again.
            .or_else(|| bits.buddy().find(behind))?;
        if self.is_near {
            bits.buddy().run_at(found.start, self.want)
        } else {
            Some(found)
        }
    }

    /// Looks into groups that may have what is wanted, one after the other.
    fn in_groups(
        &self,
        criterion: Criterion,
        wanted: ScanPurpose,
        find: impl Fn(&mut Bits) -> Option<Range<u32>>,
    ) -> Result<Option<GroupRun>, Error> {
        let behind = (self.goal.0.0 + 1).min(self.end);
        for mut range in [behind..self.end, 0..behind] {
            while let Some(group) = self.groups.next_group(range.clone(), wanted) {
                let found = self.in_group(criterion, group, &find)?;
                if found.is_some() {
                    return Ok(found);
                }
                range.start = group.0 + 1;
            }
        }
        Ok(None)
    }

    /// Takes what is found in a group.
    fn in_group(
        &self,
        criterion: Criterion,
        group: Group,
        find: impl Fn(&mut Bits) -> Option<Range<u32>>,
    ) -> Result<Option<GroupRun>, Error> {
        self.groups.searches.scanned.add(1);
        let take = |bits: &mut Bits| find(bits).map(|range| bits.take(range));
        let taken = match criterion {
            Criterion::Any => self.groups.with_bits(self.volume, group, take),
            _ => self
                .groups
                .try_with_bits(self.volume, group, take)
                .map(Option::flatten),
        };
        let range = match taken {
            // Others may do.
            Err(Error::Corrupt(corrupt)) => {
                self.groups.exclude(group, corrupt);
                return Ok(None);
            }
            taken => taken?,
        };
        Ok(range.map(|range| {
            self.groups.searches.found(criterion);
            let first = self.volume.geometry().group_first_block(group).0;
            GroupRun {
                start: FsBlock(first + u64::from(range.start)),
                len: range.end - range.start,
            }
        }))
    }
}
