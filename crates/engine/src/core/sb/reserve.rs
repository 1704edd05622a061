//! Blocks that stay free for some requests: the pool for metadata of operations that free, and the reserve of root.
//!
//! No block is set aside. An allocation must leave the number of free blocks that others have a claim to
//! ([`Reserve::floor`]); so a full image has some for an operation that frees and must split its map first. Constant
//! after the mount, except for the calling user ([`Acting`]): a word for each thread, which that thread alone writes.

use std::marker::PhantomData;

use ondisk::{Geometry, Superblock};
use sync::{Lanes, OwnThread};

/// The most clusters of the pool.
const POOL_MOST: u64 = 4096;
/// The pool is this part of all clusters.
const POOL_PART: u64 = 50;

/// What blocks are taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockPurpose {
    /// Data, names, attributes, and the maps they need.
    Growing,
    /// Metadata of an operation that frees more than it takes: never refused for want of space that others may claim.
    Freeing,
}

/// The user that asks for blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockClaimant<'a> {
    /// The user.
    pub uid: u32,
    /// Its groups.
    pub gids: &'a [u32],
}

/// Which user may take which blocks; see the module.
pub(crate) struct Reserve {
    pool: u64,
    of_root: u64,
    uid: u32,
    gid: u32,
    /// Callers that are not named may take root's reserve.
    is_root: bool,
    /// The thread acts for a user without the right to the reserve. [written and read by the lane's thread]
    bounded: Lanes<OwnThread<bool>>,
}

/// While this lives, its thread acts for a caller: see [`crate::InodeFs::act_for`].
pub struct Acting<'a> {
    bounded: &'a OwnThread<bool>,
    before: bool,
    /// The lane is the thread's own.
    not_send: PhantomData<*const ()>,
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        self.bounded.set(self.before);
    }
}

impl Reserve {
    /// As the superblock says; `is_root`: callers that are not named are root.
    pub(crate) fn new(superblock: &Superblock, geometry: &Geometry, is_root: bool) -> Reserve {
        let clusters = (geometry.clusters_count() / POOL_PART).min(POOL_MOST);
        Reserve {
            pool: clusters << geometry.cluster_ratio_bits(),
            of_root: superblock.reserved_blocks_count(),
            uid: superblock.reserve_uid().into(),
            gid: superblock.reserve_gid().into(),
            is_root,
            bounded: Lanes::new(),
        }
    }

    /// Free blocks that only root, or an operation that frees, may take.
    pub(crate) fn held_back(&self) -> u64 {
        self.pool.saturating_add(self.of_root)
    }

    /// Free blocks that an allocation for this purpose, by this thread, must leave.
    pub(crate) fn floor(&self, purpose: BlockPurpose) -> u64 {
        let is_bounded = self.bounded.mine().get() || !self.is_root;
        match purpose {
            BlockPurpose::Freeing => 0,
            BlockPurpose::Growing if is_bounded => self.held_back(),
            BlockPurpose::Growing => self.pool,
        }
    }

    /// The calling thread acts for `caller` until the value is dropped.
    pub(crate) fn act_for(&self, caller: BlockClaimant<'_>) -> Acting<'_> {
        let in_group = self.gid != 0 && caller.gids.contains(&self.gid);
        let may = caller.uid == 0 || caller.uid == self.uid || in_group;
        let bounded = self.bounded.mine();
        let before = bounded.swap(!may);
        Acting {
            bounded,
            before,
            not_send: PhantomData,
        }
    }
}
