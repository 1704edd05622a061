//! Blocks and inode numbers for a step, taken while preparing, without a handle.
//!
//! A request is refused space only after a second look: what is kept for files is drawn back, then uncommitted frees
//! are committed, each once (for an inode number, only the latter). [`crate::reap::with_room`] then tries the whole
//! operation again. Takes one group's lock after another. What a crash leaves: nothing of it, because what was taken
//! and not applied is in no image.

use std::ops::RangeInclusive;

use ondisk::{FsBlock, Group, Ino};

use crate::core::Error;
use crate::core::sb::BlockPurpose;
use crate::space::ialloc::{InodeNumber, InodeRequest};
use crate::space::mballoc::{self, BlockRequest, Freeing, Reach, TakenBlocks};
use crate::token::LiveFs;

/// Blocks that a thread takes at once to keep, at most: as `mb_group_prealloc` in Linux.
const LANE_RUN: u64 = 512;
/// That is at most this part of what is free.
const FREE_PART: u64 = 64;
/// And at most this part of a group.
const GROUP_PART: u64 = 8;

impl LiveFs {
    /// Takes blocks like [`LiveFs::take_row`], but fewer than `want` only if no row is that long.
    ///
    /// # Errors
    /// Those of [`LiveFs::take_row`].
    pub(crate) fn take_blocks(
        &self,
        purpose: BlockPurpose,
        goal: FsBlock,
        want: u32,
    ) -> Result<TakenBlocks<'_>, Error> {
        self.take_row(purpose, goal, Reach::Volume, want..=want)
    }

    /// Takes a block for a directory or a symbolic link whose inode is in `group`: of those that the calling thread
    /// keeps for such, else the first one behind the group's beginning, and with it more to be kept.
    ///
    /// # Errors
    /// As [`LiveFs::take_row`].
    pub(crate) fn take_beside(&self, group: Group) -> Result<TakenBlocks<'_>, Error> {
        let kept = self.preallocations();
        let goal = self.volume().geometry().group_first_block(group);
        if !kept.is_on() {
            return self.take_blocks(BlockPurpose::Growing, goal, 1);
        }
        let most = match kept.take_beside(group) {
            Ok(blocks) => return Ok(self.take_up(blocks)),
            Err(most) => u64::from(most).min(self.kept_at_once()).max(1),
        };
        // Not more than before the bound.
        let most = most as u32;
        let mut blocks = self.take_target(BlockPurpose::Growing, |floor| BlockRequest {
            goal,
            reach: Reach::Volume,
            want: most,
            least: 1,
            is_near: true,
            floor,
        })?;
        let (first, rest) = match blocks.run().len {
            1 => (blocks, None),
            _ => (blocks.split(1), Some(blocks.set_aside())),
        };
        let over = kept.keep_beside(group, rest, most);
        drop(over.map(|over| self.take_up(over)));
        Ok(first)
    }

    /// Takes a block for a directory to continue at `goal`, else after it: of those that the calling thread keeps in
    /// the goal's group, if they are there, because the free blocks there begin with them.
    ///
    /// # Errors
    /// As [`LiveFs::take_row`].
    pub(crate) fn take_behind(&self, goal: FsBlock) -> Result<TakenBlocks<'_>, Error> {
        let geometry = self.volume().geometry();
        let kept = geometry.bit_of_block(goal).and_then(|(group, _)| {
            let first = geometry.group_first_block(group).0;
            let end = FsBlock(first + u64::from(geometry.group_clusters(group)));
            self.preallocations().take_beside_in(goal..end)
        });
        match kept {
            Some(blocks) => Ok(self.take_up(blocks)),
            None => self.take_blocks(BlockPurpose::Growing, goal, 1),
        }
    }

    /// How many blocks a thread may take at once to keep what it does not need yet.
    pub(crate) fn kept_at_once(&self) -> u64 {
        let group = u64::from(self.volume().geometry().blocks_per_group());
        LANE_RUN
            .min(self.spare_blocks() / FREE_PART)
            .min(group / GROUP_PART)
    }

    /// Free blocks that everyone may have: a hint.
    pub(crate) fn spare_blocks(&self) -> u64 {
        let free = self.groups().blocks.hint();
        free.saturating_sub(self.writing().reserve.held_back())
    }

    /// Takes a row of blocks near `goal`, of the length at the range's end; one of the range's beginning is enough. No
    /// block lies beyond `reach`: see [`mballoc::take`]. If no block is available, what is kept for files is drawn
    /// back, then uncommitted frees are committed, and a second look decides. Called while preparing, without a handle.
    ///
    /// # Errors
    /// `NoSpace`; `ReadOnly`, `Aborted`, `Corrupt`, `Io`.
    pub(crate) fn take_row(
        &self,
        purpose: BlockPurpose,
        goal: FsBlock,
        reach: Reach,
        len: RangeInclusive<u32>,
    ) -> Result<TakenBlocks<'_>, Error> {
        self.take_target(purpose, |floor| BlockRequest {
            goal,
            reach,
            want: *len.end(),
            least: *len.start(),
            is_near: false,
            floor,
        })
    }

    fn take_target(
        &self,
        purpose: BlockPurpose,
        target: impl FnOnce(u64) -> BlockRequest,
    ) -> Result<TakenBlocks<'_>, Error> {
        let floor = self.writing().reserve.floor(purpose);
        let target = target(floor);
        let take = || mballoc::take(self.volume(), self.groups(), &target);
        match take() {
            Err(Error::NoSpace) => {}
            other => return other,
        }
        if self.draw_back_kept()
            && let Ok(blocks) = take()
        {
            return Ok(blocks);
        }
        if self.groups().blocks.commit_helps(floor) {
            self.sync_all()?;
        }
        take()
    }

    /// Prepares to free runs of blocks that inode `ino` names: see [`mballoc::claim`]. Called while preparing, without
    /// a handle.
    ///
    /// # Errors
    /// `Corrupt` for blocks that can't be freed; `Io`.
    pub(crate) fn claim_blocks(
        &self,
        ino: Ino,
        runs: &[(FsBlock, u64)],
    ) -> Result<Freeing<'_>, Error> {
        mballoc::claim(self.volume(), self.groups(), ino, runs)
    }

    /// Takes a number for a new inode, as [`LiveFs::take_blocks`] does for blocks.
    ///
    /// # Errors
    /// As [`LiveFs::take_blocks`].
    pub(crate) fn take_inode(&self, wanted: &InodeRequest<'_>) -> Result<InodeNumber<'_>, Error> {
        let take = || self.ialloc().take(self.volume(), self.groups(), wanted);
        match take() {
            Err(Error::NoSpace) if self.groups().inodes.commit_helps() => {
                self.sync_all()?;
                take()
            }
            other => other,
        }
    }
}
