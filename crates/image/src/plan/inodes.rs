//! Chooses inode numbers: a node's inode is in the group of its blocks, or in the next group that has a free inode.
//!
//! Numbers within a group are handed out in ascending order and never given back. So a group's state is the number of
//! inodes that are used, counted from its first; every later inode is free.

use ondisk::{Generation, Group, Ino};

/// The free inodes of an image that is being planned.
#[derive(Clone, Debug)]
pub(crate) struct Inodes {
    per_group: u32,
    /// For each group, how many inodes are used, counted from the group's first.
    used: Vec<u32>,
    /// For each group, the first group from it on that may have a free inode (a forest with compressed paths).
    next: Vec<u32>,
    free: u64,
}

impl Inodes {
    /// `groups` groups of `per_group` inodes, of which the first `reserved` of the image are taken.
    pub(crate) fn new(groups: u32, per_group: u32, reserved: u32) -> Inodes {
        let mut inodes = Inodes {
            per_group,
            used: vec![0; groups as usize],
            next: (0..=groups).collect(),
            free: u64::from(groups) * u64::from(per_group),
        };
        let mut left = reserved;
        for group in 0..groups as usize {
            let take = left.min(per_group);
            inodes.used[group] = take;
            inodes.free -= u64::from(take);
            left -= take;
            if take == per_group {
                inodes.next[group] = group as u32 + 1;
            }
            if left == 0 {
                break;
            }
        }
        inodes
    }

    /// The first group from `group` on that has a free inode, or the number of groups.
    fn find(&mut self, group: u32) -> u32 {
        let mut root = group;
        while self.next[root as usize] != root {
            root = self.next[root as usize];
        }
        let mut at = group;
        while at != root {
            at = std::mem::replace(&mut self.next[at as usize], root);
        }
        root
    }

    /// Takes an inode in `goal` or in the next group with a free one, and continues at the first group after the last
    /// one. `None` if all are taken.
    pub(crate) fn take(&mut self, goal: Group) -> Option<Ino> {
        if self.free == 0 {
            return None;
        }
        let groups = self.used.len() as u32;
        let mut group = self.find(goal.0.min(groups));
        if group == groups {
            group = self.find(0);
        }
        let index = self.used[group as usize];
        self.used[group as usize] += 1;
        self.free -= 1;
        if index + 1 == self.per_group {
            self.next[group as usize] = group + 1;
        }
        Some(Ino(group * self.per_group + index + 1))
    }

    /// For each group, how many inodes are used, counted from the group's first.
    pub(crate) fn used(&self) -> &[u32] {
        &self.used
    }
}

/// The generation of an inode. It depends only on the file system's seed and the inode's number, so that images with
/// one UUID are identical.
pub(crate) fn generation(fs_seed: u32, ino: Ino) -> Generation {
    Generation(ondisk::csum::crc32c(fs_seed, &ino.0.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_groups_are_passed_over_and_the_search_goes_round() {
        let mut inodes = Inodes::new(3, 4, 2);
        assert_eq!(inodes.take(Group(1)), Some(Ino(5)));
        assert_eq!(inodes.take(Group(0)), Some(Ino(3)));
        assert_eq!(inodes.take(Group(0)), Some(Ino(4)));
        assert_eq!(inodes.take(Group(0)), Some(Ino(6)));
        for ino in 9..=12 {
            assert_eq!(inodes.take(Group(2)), Some(Ino(ino)));
        }
        assert_eq!(inodes.take(Group(2)), Some(Ino(7)));
        assert_eq!(inodes.take(Group(2)), Some(Ino(8)));
        assert_eq!(inodes.take(Group(0)), None);
        assert_eq!(inodes.used(), [4, 4, 4]);
    }

    #[test]
    fn reserved_inodes_may_span_groups() {
        let mut inodes = Inodes::new(2, 8, 11);
        assert_eq!(inodes.take(Group(0)), Some(Ino(12)));
    }
}
