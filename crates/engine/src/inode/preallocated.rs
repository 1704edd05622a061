//! Gives back blocks that are kept for files and directories. The owner of kept blocks does that when it needs them no
//! more. A thread that finds no space draws all of them back, and so do the switch to `prealloc=off` and the close.
//!
//! Called while a step is prepared, without a handle. Locks: those of the kept blocks and of groups, one at a time. A
//! thread that draws everything back holds [`Rank::DrawBack`](sync::Rank) around that.

use ondisk::Ino;

use super::{LiveInode, MountedFs};
use crate::space::mballoc::{Aside, Preallocations, TakenBlocks};

impl MountedFs {
    /// What is kept for files that grow.
    pub(crate) fn preallocations(&self) -> &Preallocations {
        &self.preallocations
    }

    /// The same blocks as a value that gives them back when dropped.
    pub(crate) fn take_up(&self, blocks: Aside) -> TakenBlocks<'_> {
        blocks.take_up(&self.groups, self.volume.geometry())
    }

    /// Keeps blocks for a file from a logical block on, for which nothing is kept or mapped. The caller holds its lock.
    pub(crate) fn keep_for(&self, live: &LiveInode, logical: u64, blocks: Aside) {
        let kept = &self.preallocations;
        let (over, longest) = kept.keep(live.ino(), live.kept(), logical, blocks);
        drop(over.map(|over| self.take_up(over)));
        if let Some(longest) = longest {
            self.give_back_listed(longest);
        }
    }

    /// Gives back what is kept for a file.
    pub(crate) fn give_back_kept(&self, live: &LiveInode) {
        for blocks in self.preallocations.drain(live.kept(), false) {
            drop(self.take_up(blocks));
        }
    }

    /// Gives back what is kept for a file with this number, if there is such a one in memory.
    pub(crate) fn closed(&self, ino: Ino) {
        if self.volume.is_writable()
            && let Some(live) = self.inodes.find(ino)
        {
            self.give_back_kept(&live);
        }
    }

    /// Gives back what is kept for a file that is on no list any more; returns the number of runs.
    fn give_back_listed(&self, ino: Ino) -> u64 {
        // One that keeps something stays in memory.
        let Some(live) = self.inodes.find(ino) else {
            return 0;
        };
        let runs = self.preallocations.drain(live.kept(), true);
        let count = runs.len() as u64;
        runs.into_iter().for_each(|run| drop(self.take_up(run)));
        count
    }

    /// Gives back all that is kept for any file or thread; returns the number of runs. What another thread is giving
    /// back is available when this returns.
    pub(crate) fn give_back_all(&self) -> u64 {
        let _alone = self.preallocations.alone();
        let runs = self.preallocations.take_runs();
        let count = runs.len() as u64;
        runs.into_iter().for_each(|run| drop(self.take_up(run)));
        let files = self.preallocations.take_listed().into_iter();
        count + files.map(|ino| self.give_back_listed(ino)).sum::<u64>()
    }

    /// Does what [`MountedFs::give_back_all`] does for a thread that found no space; returns whether there may be some
    /// now.
    pub(crate) fn draw_back_kept(&self) -> bool {
        let runs = self.give_back_all();
        self.preallocations.discards.add(runs);
        runs > 0
    }
}
