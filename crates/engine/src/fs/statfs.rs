//! What `statfs` tells: live sums where the file system is written to, else what descriptors say.
//!
//! Takes no lock; on a file system that is only read it may read descriptors.

use device::DeviceError;
use ondisk::{Feature, Group, Ino};

use crate::core::Error;
use crate::core::limits;
use crate::fs::InodeFs;
use crate::space::group;

/// What `statfs` reports of the file system, counted as Linux counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Bytes a block.
    pub block_size: u64,
    /// Blocks for data: all but the overhead.
    pub blocks: u64,
    /// Blocks of metadata with a fixed place, and of the journal.
    pub overhead: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks that are reserved neither for root nor, in a mounted file system, for extents.
    pub available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
    /// Whether nothing can be changed ([`InodeFs::is_writable`]).
    pub is_read_only: bool,
}

impl InodeFs {
    /// Space and inodes, in use and free. Where it is written to, what is free is what can be allocated, if need be
    /// after a commit, what is kept for growing files included; else all group descriptors are read, unless there are
    /// very many.
    ///
    /// # Errors
    /// When a descriptor is broken or the device fails.
    pub fn statfs(&self) -> Result<StatFs, Error> {
        let geometry = self.geometry();
        let superblock = self.superblock();
        let volume = self.mounted.volume();
        let (mut free, mut free_files) = (
            superblock.free_blocks_count(),
            u64::from(superblock.free_inodes_count()),
        );
        let mut held_back = superblock
            .reserved_blocks_count()
            .saturating_add(self.held_back());
        if let Ok(writing) = volume.writing() {
            let groups = self.mounted.groups();
            let kept = self.mounted.preallocations().blocks();
            (free, free_files) = (
                groups.blocks.sum().saturating_add(kept),
                groups.inodes.sum(),
            );
            held_back = writing.reserve.held_back();
        } else if geometry.groups() <= limits::SUMMED_GROUPS {
            match self.summed() {
                Ok(sums) => (free, free_files) = sums,
                // The superblock's own sums are the best that is left.
                Err(Error::Io(DeviceError::Missing { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        let overhead = self.overhead();
        Ok(StatFs {
            block_size: geometry.block_size().bytes_u64(),
            blocks: geometry.blocks_count().saturating_sub(overhead),
            overhead,
            free,
            available: free.saturating_sub(held_back),
            files: geometry.inodes_count().into(),
            free_files,
            is_read_only: !self.is_writable(),
        })
    }

    /// Free blocks and inodes by all group descriptors.
    fn summed(&self) -> Result<(u64, u64), Error> {
        let geometry = self.geometry();
        let (mut free, mut free_files) = (0, 0);
        for group in geometry.all_groups() {
            let desc = group::descriptor(self.mounted.volume(), group)?;
            free += u64::from(desc.free_clusters()) << geometry.cluster_ratio_bits();
            free_files += u64::from(desc.free_inodes());
        }
        Ok((free, free_files))
    }

    /// Blocks that Linux keeps for extents whose conversion needs a new tree block: a fiftieth of the clusters, at
    /// most 4096 of them.
    fn held_back(&self) -> u64 {
        let geometry = self.geometry();
        if geometry.has(Feature::EXTENT) {
            ((geometry.blocks_count() >> geometry.cluster_ratio_bits()) / 50).min(4096)
                << geometry.cluster_ratio_bits()
        } else {
            0
        }
    }

    /// Blocks of fixed metadata and of the journal.
    fn overhead(&self) -> u64 {
        let geometry = self.geometry();
        let known = u64::from(self.superblock().overhead_clusters());
        if known != 0 || geometry.groups() > limits::SUMMED_GROUPS {
            return known << geometry.cluster_ratio_bits();
        }
        let of_group = |group: Group| {
            let tables = u64::from(geometry.inode_table_blocks()) + 2;
            tables + geometry.group_start(group).blocks()
        };
        let groups: u64 = geometry.all_groups().map(of_group).sum();
        let journal = if geometry.has(Feature::HAS_JOURNAL) {
            self.mounted.load(Ino::JOURNAL).map_or(0, |journal| {
                journal.bytes(self.mounted.volume()) >> geometry.block_size().bits()
            })
        } else {
            0
        };
        let all = geometry.first_data_block().0 + groups + journal;
        all.min(geometry.blocks_count())
    }
}
