//! The places of metadata: arithmetic over a checked [`Geometry`], without further checks on it. Arguments may come
//! from disk: for one that is outside, a function returns `None`; where its doc says so, the caller must have checked
//! it.

use core::ops::Range;

use super::Geometry;
use crate::features::Feature;
use crate::numbers::{FsBlock, Group, Ino};

/// The metadata whose place at the start of a group is fixed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupStart {
    /// A copy of the superblock (in group 0 the first).
    pub superblock: Option<FsBlock>,
    /// A copy of group descriptors (in `meta_bg` groups the one block of their meta group), as block numbers.
    pub descriptors: Range<u64>,
    /// Descriptor blocks reserved for growth, as block numbers.
    pub reserved: Range<u64>,
}

impl GroupStart {
    /// How many blocks these are.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        let descriptors = self.descriptors.end - self.descriptors.start;
        let reserved = self.reserved.end - self.reserved.start;
        u64::from(self.superblock.is_some()) + descriptors + reserved
    }
}

impl Geometry {
    /// The group of a block; `None` before the first data block and beyond the end.
    #[must_use]
    pub fn group_of_block(&self, block: FsBlock) -> Option<Group> {
        if block.0 >= self.blocks_count {
            return None;
        }
        let distance = block.0.checked_sub(self.first_data_block.into())?;
        // Below the number of groups, which has 32 bits.
        Some(Group((distance / u64::from(self.blocks_per_group)) as u32))
    }

    /// The group and the bit in its bitmap of a block's cluster; `None` as for [`Self::group_of_block`].
    #[must_use]
    pub fn bit_of_block(&self, block: FsBlock) -> Option<(Group, u32)> {
        let group = self.group_of_block(block)?;
        let distance = block.0 - self.group_first_block(group).0;
        // Below the blocks of a group, which have 32 bits.
        Some((group, (distance >> self.cluster_ratio_bits) as u32))
    }

    /// The group of an inode and its index in the group; `None` for 0 and beyond the last.
    #[must_use]
    pub fn group_of_ino(&self, ino: Ino) -> Option<(Group, u32)> {
        if ino.0 > self.inodes_count() {
            return None;
        }
        let index = ino.0.checked_sub(1)?;
        Some((
            Group(index / self.inodes_per_group),
            index % self.inodes_per_group,
        ))
    }

    /// The inode with this index in the group, both of which must exist.
    #[must_use]
    pub fn ino_of(&self, group: Group, index: u32) -> Ino {
        Ino(group
            .0
            .saturating_mul(self.inodes_per_group)
            .saturating_add(index)
            .saturating_add(1))
    }

    /// The block and the byte in it of an inode in its group's table.
    #[must_use]
    pub fn inode_place(&self, inode_table: FsBlock, index: u32) -> (FsBlock, usize) {
        let per_block = self.inodes_per_block();
        let block = FsBlock(inode_table.0.saturating_add(u64::from(index / per_block)));
        (block, (index % per_block) as usize * self.inode_size())
    }

    /// The first block of a group; for a group that exists, a block that exists.
    #[must_use]
    pub fn group_first_block(&self, group: Group) -> FsBlock {
        let distance = u64::from(group.0) * u64::from(self.blocks_per_group);
        FsBlock(u64::from(self.first_data_block) + distance)
    }

    /// Blocks of a group: fewer in the last, none beyond it.
    #[must_use]
    pub fn group_blocks(&self, group: Group) -> u32 {
        let rest = self
            .blocks_count
            .saturating_sub(self.group_first_block(group).0);
        // The smaller of the two has 32 bits.
        rest.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Clusters of a group: fewer in the last, where the last cluster may be cut off.
    #[must_use]
    pub fn group_clusters(&self, group: Group) -> u32 {
        self.group_blocks(group).div_ceil(self.cluster_ratio())
    }

    /// Whether all of these blocks exist, at or after the first data block.
    #[must_use]
    pub fn contains(&self, first: FsBlock, blocks: u64) -> bool {
        first.0 >= u64::from(self.first_data_block)
            && first
                .0
                .checked_add(blocks)
                .is_some_and(|end| end <= self.blocks_count)
    }

    /// Whether the group holds a copy of the superblock.
    #[must_use]
    pub fn has_super(&self, group: Group) -> bool {
        if group.0 == 0 {
            return true;
        }
        if self.has(Feature::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        if group.0 == 1 || !self.has(Feature::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].iter().any(|base| is_power_of(group.0, *base))
    }

    /// Descriptors in a block.
    #[must_use]
    pub fn descs_per_block(&self) -> u32 {
        (self.block_size.bytes() / self.desc_size()) as u32
    }

    /// Blocks that hold all descriptors, wherever they lie.
    #[must_use]
    pub fn desc_blocks(&self) -> u32 {
        self.groups.div_ceil(self.descs_per_block())
    }

    /// The block that holds the superblock's first copy.
    #[must_use]
    pub fn primary_superblock(&self) -> FsBlock {
        FsBlock(u64::from(self.block_size.bits() == 10))
    }

    /// The meta group of a group, if its descriptors lie in its own groups.
    fn own_meta_group(&self, group: Group) -> Option<u32> {
        let meta = group.0 / self.descs_per_block();
        (self.has(Feature::META_BG) && meta >= self.first_meta_bg).then_some(meta)
    }

    /// Where the first copy of the descriptor block with this index lies.
    #[must_use]
    pub fn desc_block(&self, index: u32) -> FsBlock {
        let group = Group(index.saturating_mul(self.descs_per_block()));
        if self.own_meta_group(group).is_none() {
            return FsBlock(self.primary_superblock().0 + 1 + u64::from(index));
        }
        FsBlock(self.group_start(group).descriptors.start)
    }

    /// Where the copy of a descriptor block lies that belongs to the copy of the superblock at this block. A meta
    /// group's descriptors have their second copy in its second group.
    #[must_use]
    pub fn desc_block_of_copy(&self, superblock: FsBlock, index: u32) -> FsBlock {
        if superblock == self.primary_superblock() {
            return self.desc_block(index);
        }
        let first = Group(index.saturating_mul(self.descs_per_block()));
        if self.own_meta_group(first).is_none() {
            return FsBlock(superblock.0.saturating_add(1 + u64::from(index)));
        }
        let second = Group(first.0.saturating_add(1));
        if second.0 < self.groups && self.descs_per_block() > 1 {
            FsBlock(self.group_start(second).descriptors.start)
        } else {
            self.desc_block(index)
        }
    }

    /// The block of a group's descriptor (its first copy) and the byte in it.
    #[must_use]
    pub fn desc_place(&self, group: Group) -> (FsBlock, usize) {
        let per_block = self.descs_per_block();
        let byte = (group.0 % per_block) as usize * self.desc_size();
        (self.desc_block(group.0 / per_block), byte)
    }

    /// The metadata at the start of a group that exists. In the last group it may reach beyond the end; mke2fs
    /// makes no such group.
    #[must_use]
    pub fn group_start(&self, group: Group) -> GroupStart {
        let first = self.group_first_block(group);
        // Blocks of 1 KiB with bigalloc: group 0 begins with the boot block.
        let first = if group.0 == 0 {
            self.primary_superblock()
        } else {
            first
        };
        let superblock = self.has_super(group).then_some(first);
        let at = first.0 + u64::from(superblock.is_some());
        let (descriptors, reserved) = match self.own_meta_group(group) {
            Some(_) => {
                let per_block = self.descs_per_block();
                let index = group.0 % per_block;
                let holds = index == 0 || index == 1 || index == per_block - 1;
                (u32::from(holds), 0)
            }
            None if superblock.is_none() => (0, 0),
            None if self.has(Feature::META_BG) => (self.first_meta_bg, self.reserved_gdt_blocks()),
            None => (self.desc_blocks(), self.reserved_gdt_blocks()),
        };
        let descriptors = at..at + u64::from(descriptors);
        let reserved = descriptors.end..descriptors.end + u64::from(reserved);
        GroupStart {
            superblock,
            descriptors,
            reserved,
        }
    }
}

fn is_power_of(number: u32, base: u32) -> bool {
    let mut power = 1u32;
    while power < number {
        match power.checked_mul(base) {
            Some(next) => power = next,
            None => return false,
        }
    }
    power == number
}
