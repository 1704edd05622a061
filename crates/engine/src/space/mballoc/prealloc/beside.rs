//! Blocks that a thread keeps for the directories and long symbolic links that it makes, each run for one group of
//! inodes: the blocks are adjacent, the first after the group's beginning, as without keeping.
//!
//! How many are taken at once follows how many were used: one for the first directory in a group, then a few, then
//! many, so that a thread that makes one here and one there keeps nothing. Under a lock of the thread's own
//! ([`Rank::Preallocation`](sync::Rank)), which others take only to draw back; in no image, so that a crash forgets it.

use std::ops::Range;

use ondisk::{FsBlock, Group};

use super::{Preallocations, cut};
use crate::space::mballoc::taken::Aside;

/// Groups of which one thread keeps runs, at most.
const GROUPS: usize = 4;
/// How much longer each run is than the one before, until it is as long as is allowed.
const GROWTH: u32 = 32;
/// Blocks taken at once, at most.
const MOST: u32 = 512;

/// What a thread keeps for inodes of a group.
struct OfGroup {
    group: Group,
    blocks: Option<Aside>,
    /// How many are taken when these are used up.
    next: u32,
}

impl OfGroup {
    /// Takes the first block.
    fn take(&mut self) -> Option<Aside> {
        let mut blocks = self.blocks.take()?;
        match cut(&mut blocks, 1) {
            Some(first) => {
                self.blocks = Some(blocks);
                Some(first)
            }
            None => Some(blocks),
        }
    }

    fn start(&self) -> Option<FsBlock> {
        self.blocks.as_ref().map(|blocks| blocks.run().start)
    }
}

/// What a thread keeps, the group used last at the end. In its lane itself: no line of the heap is shared with others.
#[derive(Default)]
pub(super) struct Beside([Option<OfGroup>; GROUPS]);

impl Beside {
    fn of(&mut self, group: Group) -> Option<&mut OfGroup> {
        let is_there = |of: &Option<OfGroup>| of.as_ref().is_some_and(|of| of.group == group);
        let place = self.0.iter().position(is_there)?;
        self.0[place..].rotate_left(1);
        self.0[GROUPS - 1].as_mut()
    }

    /// Takes all.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Aside> {
        let all = std::mem::take(self).0;
        all.into_iter().flatten().filter_map(|of| of.blocks)
    }
}

impl Preallocations {
    /// Takes a block that the calling thread keeps for inodes of a group; otherwise returns how many to take out of the
    /// bitmaps now, of which the thread keeps the rest.
    pub(crate) fn take_beside(&self, group: Group) -> Result<Aside, u32> {
        let mut beside = self.lanes.mine().kept.beside.lock();
        let of = beside.of(group).ok_or(1_u32)?;
        let taken = of.take().ok_or(of.next);
        drop(beside);
        taken.inspect(|taken| self.hit(taken))
    }

    /// Takes the first block of those that the calling thread keeps in a range of one group, from where a directory
    /// would go on to the group's end: what they were taken from was the first free run of the group.
    pub(crate) fn take_beside_in(&self, range: Range<FsBlock>) -> Option<Aside> {
        let mut beside = self.lanes.mine().kept.beside.lock();
        let is_there = |of: &&mut OfGroup| of.start().is_some_and(|start| range.contains(&start));
        let here = beside.0.iter_mut().flatten().filter(is_there);
        let taken = here.min_by_key(|of| of.start())?.take();
        drop(beside);
        taken.inspect(|taken| self.hit(taken))
    }

    fn hit(&self, taken: &Aside) {
        self.count(taken, -1);
        self.lane_hits.add(1);
    }

    /// Keeps what is left of `took` blocks for the calling thread's inodes of a group, of which it kept nothing; gives
    /// back what has no room any more.
    #[must_use]
    pub(crate) fn keep_beside(
        &self,
        group: Group,
        blocks: Option<Aside>,
        took: u32,
    ) -> Option<Aside> {
        if let Some(blocks) = &blocks {
            self.count(blocks, 1);
            self.lane_refills.add(1);
        }
        let mut beside = self.lanes.mine().kept.beside.lock();
        // The group's, at the end now, is used up, unless two threads share an index for a moment; else the oldest.
        if beside.of(group).is_none() {
            beside.0.rotate_left(1);
        }
        let new = OfGroup {
            group,
            blocks,
            next: took.saturating_mul(GROWTH).min(MOST),
        };
        let before = beside.0[GROUPS - 1].replace(new);
        drop(beside);
        let over = before.and_then(|before| before.blocks);
        over.inspect(|over| self.count(over, -1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::variants::Preallocation;
    use crate::space::group::GroupRun;

    fn aside(start: u64, len: u32) -> Aside {
        Aside::of(GroupRun {
            start: FsBlock(start),
            len,
        })
    }

    fn start(blocks: &Aside) -> u64 {
        assert_eq!(blocks.run().len, 1);
        blocks.run().start.0
    }

    #[test]
    fn runs_grow_with_what_is_used_and_are_used_from_the_front() {
        let kept = Preallocations::new(Preallocation::On);
        let group = Group(7);
        let mut asked = Vec::new();
        let mut next = 100;
        for _ in 0..1000 {
            let Err(most) = kept.take_beside(group) else {
                continue;
            };
            asked.push(most);
            let rest = (most > 1).then(|| aside(next + 1, most - 1));
            assert!(kept.keep_beside(group, rest, most).is_none());
            next += u64::from(most);
        }
        assert_eq!(asked, [1, 32, 512, 512]);
        assert_eq!(kept.blocks(), next - 100 - 1000);
        assert_eq!(start(&kept.take_beside(group).unwrap()), 1100);
        // A directory that grows takes what lies behind it in its group.
        let within = |from, to| kept.take_beside_in(FsBlock(from)..FsBlock(to));
        assert!(within(1102, 2000).is_none() && within(0, 1101).is_none());
        assert_eq!(start(&within(1101, 2000).unwrap()), 1101);
        assert_eq!(start(&within(0, 2000).unwrap()), 1102);
        kept.take_runs()
            .iter()
            .for_each(|run| assert_eq!(run.run().start.0, 1103));
        assert_eq!(kept.blocks(), 0);
    }

    #[test]
    fn a_thread_keeps_blocks_of_a_few_groups_and_begins_anew_in_others() {
        let kept = Preallocations::new(Preallocation::On);
        for group in 0..GROUPS as u32 {
            assert_eq!(kept.take_beside(Group(group)), Err(1));
            let rest = Some(aside(1000 * u64::from(group), 3));
            assert!(kept.keep_beside(Group(group), rest, 4).is_none());
        }
        assert_eq!(start(&kept.take_beside(Group(0)).unwrap()), 0);
        // The one used longest ago goes.
        let over = kept.keep_beside(Group(9), None, 1).unwrap();
        assert_eq!((over.run().start.0, over.run().len), (1000, 3));
        assert_eq!(kept.take_beside(Group(1)), Err(1));
        assert_eq!(kept.take_beside(Group(9)), Err(GROWTH));
        assert_eq!(kept.blocks(), 2 + 3 + 3);
        assert_eq!(kept.take_runs().len(), 3);
        // What was learned of a group went with its blocks.
        assert_eq!(kept.take_beside(Group(0)), Err(1));
        assert_eq!(kept.blocks(), 0);
    }
}
