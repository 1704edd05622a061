//! A few goals, one of which a file gets by its number: large files of one goal lie one behind the other, and threads
//! that write files of different goals do not meet in one group.
//!
//! The number of goals is that of the cores, and at most one for four groups, so that a small volume is not cut into
//! pieces. A goal is a group, not a block: the search moves on from groups whose space is used up. Each goal is a word
//! on a line of its own, read and written without a lock; a file of another goal never touches it. A crash forgets all.

use ondisk::{FsBlock, Geometry, Group, Ino};
use sync::{CachePadded, Hint};

use super::StreamGoals;

/// Groups for each goal, at least.
const GROUPS_A_GOAL: u32 = 4;
/// Stands for no group: the goal was not used yet.
const NONE: u32 = u32::MAX;

/// See the module.
pub(super) struct Hashed {
    /// The group in which blocks were taken last for a file of this goal. [atomic: Relaxed, hint]
    groups: Box<[CachePadded<Hint<u32>>]>,
}

impl Hashed {
    /// The goals of a volume of this shape, for `cores` cores.
    pub(super) fn new(geometry: &Geometry, cores: usize) -> Hashed {
        Hashed::with(geometry.groups(), cores)
    }

    fn with(groups: u32, cores: usize) -> Hashed {
        let most = groups.div_ceil(GROUPS_A_GOAL).max(1) as usize;
        let goal = |_| CachePadded::new(Hint::new(NONE));
        Hashed {
            groups: (0..cores.clamp(1, most)).map(goal).collect(),
        }
    }

    fn slot(&self, ino: Ino) -> &Hint<u32> {
        &self.groups[ino.0 as usize % self.groups.len()]
    }
}

impl StreamGoals for Hashed {
    fn goal(&self, geometry: &Geometry, ino: Ino, own: FsBlock) -> FsBlock {
        let group = self.slot(ino).get();
        // A word that is not a group of this volume is ignored.
        if group < geometry.groups() {
            geometry.group_first_block(Group(group))
        } else {
            own
        }
    }

    fn took(&self, geometry: &Geometry, ino: Ino, end: FsBlock) {
        let last = FsBlock(end.0.saturating_sub(1));
        if let Some(group) = geometry.group_of_block(last) {
            self.slot(ino).set_if_new(group.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_a_core_and_at_most_one_for_four_groups() {
        let goals = |groups, cores| Hashed::with(groups, cores).groups.len();
        assert_eq!((goals(1, 8), goals(4, 8), goals(5, 8)), (1, 1, 2));
        assert_eq!((goals(1000, 8), goals(1000, 0)), (8, 1));
    }

    #[test]
    fn files_of_different_goals_have_different_words() {
        let goals = Hashed::with(64, 4);
        let places: std::collections::HashSet<_> = (11..15)
            .map(|ino| std::ptr::from_ref(goals.slot(Ino(ino))).addr() / 64)
            .collect();
        assert_eq!(places.len(), 4);
    }
}
