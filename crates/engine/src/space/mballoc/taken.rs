//! Blocks that were taken out of the buddies in memory while a change was prepared. Until they are applied they are in
//! no image, and dropping them gives them back. They may be split, and set aside for later.

use journal::Handle;
use ondisk::Geometry;

use crate::space::group::{BlockChange, GroupRun, Groups};

/// How many of its blocks a handle uses for one applied run: a bitmap, a descriptor block, the superblock.
pub(crate) const BLOCKS_A_RUN: u32 = 3;

/// Blocks taken and not yet applied.
pub(crate) struct TakenBlocks<'a> {
    groups: &'a Groups,
    geometry: &'a Geometry,
    /// `None` once the run was applied.
    run: Option<GroupRun>,
}

/// Blocks that were taken out of the bitmaps in memory and are kept for later, without a borrow. If the value is
/// dropped, the blocks are unavailable until the next mount, so its owner gives them back by [`Aside::take_up`].
#[must_use = "the blocks are lost to all until the next mount unless it is taken up again"]
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Aside(GroupRun);

impl Aside {
    /// A run that is in no buddy.
    #[cfg(test)]
    pub(crate) fn of(run: GroupRun) -> Aside {
        Aside(run)
    }

    /// The run of blocks.
    pub(crate) fn run(&self) -> GroupRun {
        self.0
    }

    /// Cuts off the first `len` blocks as a value of their own; `len` is neither 0 nor all of them.
    pub(crate) fn split(&mut self, len: u32) -> Aside {
        Aside(self.0.split(len))
    }

    /// The same blocks as a value that gives them back when dropped. `groups` is where they were taken from.
    pub(crate) fn take_up<'a>(self, groups: &'a Groups, geometry: &'a Geometry) -> TakenBlocks<'a> {
        TakenBlocks {
            groups,
            geometry,
            run: Some(self.0),
        }
    }
}

impl<'a> TakenBlocks<'a> {
    /// A run that was taken out of the buddies.
    pub(super) fn new(
        groups: &'a Groups,
        geometry: &'a Geometry,
        run: GroupRun,
    ) -> TakenBlocks<'a> {
        TakenBlocks {
            groups,
            geometry,
            run: Some(run),
        }
    }

    /// The run of blocks.
    pub(crate) fn run(&self) -> GroupRun {
        // Only `apply` and `set_aside` take the run out, and they consume the value.
        self.run.expect("a run that was not applied")
    }

    /// Cuts off the first `len` blocks as a value of their own, to be applied or dropped separately; `len` is neither 0
    /// nor all of them. Takes no lock.
    pub(crate) fn split(&mut self, len: u32) -> Self {
        let mut run = self.run();
        let first = run.split(len);
        self.run = Some(run);
        TakenBlocks {
            groups: self.groups,
            geometry: self.geometry,
            run: Some(first),
        }
    }

    /// Sets the blocks aside for later, as a value that borrows nothing.
    pub(crate) fn set_aside(mut self) -> Aside {
        let run = self.run();
        self.run = None;
        Aside(run)
    }

    /// Marks the blocks in use from the handle's epoch on. Uses [`BLOCKS_A_RUN`] of the handle's blocks.
    pub(crate) fn apply(mut self, handle: &Handle<'_>) -> GroupRun {
        let run = self.run();
        self.run = None;
        handle.maps_data();
        // The group's own count is used once in an epoch by each thread.
        let group = self.geometry.group_of_block(run.start);
        let what = group.map_or(0, |group| u64::from(group.0)) << 2 | 2;
        handle.use_blocks_for(what, BLOCKS_A_RUN);
        self.groups
            .block_changes
            .push(handle, BlockChange { run, is_set: true });
        run
    }
}

impl Drop for TakenBlocks<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            self.groups.give_back_blocks(self.geometry, run);
        }
    }
}

#[cfg(test)]
mod tests {
    use ondisk::FsBlock;

    use super::*;

    #[test]
    fn a_part_is_cut_off_at_the_front() {
        let run = |start, len| GroupRun {
            start: FsBlock(start),
            len,
        };
        let mut aside = Aside(run(100, 10));
        assert_eq!(aside.split(3).run(), run(100, 3));
        assert_eq!(aside, Aside(run(103, 7)));
    }
}
