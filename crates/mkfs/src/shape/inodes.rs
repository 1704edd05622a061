//! How many inodes an image has, and groups that are small enough for their bitmaps. No I/O, no locks, nothing on disk.

use ondisk::Feature;

use super::growing::GrowingStream;
use super::{LEAST_INODES, Shape, usage_of};
use crate::{Error, Options, OtherSize, UsageType, tables};

/// The most groups' inodes a bitmap may describe, whatever the block size.
const MAX_PER_GROUP: u64 = 65536;

impl Shape {
    /// How many inodes the options ask for in an image of this many blocks.
    pub(crate) fn inodes_asked(&self, options: &Options) -> Result<u64, Error> {
        let size = self.blocks_given << self.block_size.bits();
        self.wanted_inodes(options, &usage_of(size, options))
    }

    fn wanted_inodes(&self, options: &Options, usage: &[UsageType]) -> Result<u64, Error> {
        if let Some(inodes) = options.inodes {
            if inodes > u64::from(u32::MAX) {
                return Err(Error::option("-N", "ext4 has at most 2^32 - 1 inodes"));
            }
            return Ok(inodes);
        }
        let ratio = match options.inode_ratio {
            Some(ratio) if !(1024..=64 << 20).contains(&ratio) => {
                return Err(Error::option(
                    "-i",
                    "must be from 1024 to 67108864 bytes an inode",
                ));
            }
            Some(ratio) => ratio,
            None => tables::inode_ratio(usage).max(self.block_size.bytes_u64()),
        };
        let cluster = self.block_size.bytes_u64() << self.cluster_bits;
        let ratio = match options.inode_ratio {
            None if self.has(Feature::BIGALLOC) => ratio.max(cluster),
            _ => ratio,
        };
        let inodes = (self.blocks << self.block_size.bits()) / ratio;
        let is_asked = options.inode_ratio.is_some() || !self.has(Feature::BIT64);
        if inodes > u64::from(u32::MAX) && is_asked {
            let reason = "makes more than 2^32 - 1 inodes; use a larger ratio";
            return Err(Error::for_size("-i", reason, OtherSize::WithinLimits));
        }
        Ok(inodes.min(u64::from(u32::MAX)))
    }

    /// Gives each group its share of the inodes; nothing else changes. The usual number of inodes is as many as the
    /// groups can hold; a number that was asked for is what it is.
    ///
    /// # Errors
    /// `TooSmall` where the groups can't hold them.
    pub(super) fn spread_inodes(
        &mut self,
        size_bytes: u64,
        stream: &GrowingStream,
        options: &Options,
    ) -> Result<(), Error> {
        let most = stream.inodes_per_group_max();
        let mut inodes = self.inodes_asked(options)?.max(LEAST_INODES);
        if options.inodes.is_none() && options.inode_ratio.is_none() {
            inodes = inodes.min(most * self.groups);
        }
        if inodes.div_ceil(self.groups) > most {
            let too_small = || self.too_small("the inodes", size_bytes);
            let is_full = inodes.div_ceil(self.groups) > self.inodes_per_group_max();
            let by_ratio = (options.inodes.is_none() && is_full).then_some(());
            let full = by_ratio.and_then(|()| self.groups_are_full(inodes, options));
            return Err(full.unwrap_or_else(too_small));
        }
        self.set_inodes(inodes, options)?;
        // Whole blocks of a table may hold more than were asked for, and a group more than its bitmap.
        if self.inodes_per_group > most {
            return Err(self.too_small("the inodes", size_bytes));
        }
        Ok(())
    }

    /// The most inodes that a group may have beyond its share: a block of its table is filled, and then a byte of its
    /// bitmap.
    pub(crate) fn inodes_beside(&self) -> u64 {
        8 + (self.block_size.bytes_u64() / self.inode_size).max(8)
    }

    /// How many inodes a group can have: those that one bitmap describes, and that 16 bits of a descriptor count.
    pub(crate) fn inodes_per_group_max(&self) -> u64 {
        let bitmap = 8 * self.block_size.bytes_u64();
        bitmap.min(MAX_PER_GROUP - self.block_size.bytes_u64() / self.inode_size) & !7
    }

    /// Makes the groups so small that one inode for each `ratio` bytes fits their bitmaps. Returns `false` if no size
    /// is small enough; the groups are then as small as groups can be.
    pub(crate) fn shrink_for_ratio(&mut self, ratio: u64) -> bool {
        loop {
            // The block before the first group counts, too.
            let blocks = self.blocks_per_group + self.first_data_block;
            let inodes = (blocks << self.block_size.bits()).div_ceil(ratio);
            let fits = inodes <= self.inodes_per_group_max();
            if fits || self.has_smallest_groups() {
                return fits;
            }
            self.shrink_groups_once();
        }
    }

    /// Shrinks the groups of an image whose size is decided last, until the largest image that `-E resize` allows has
    /// enough groups for `inodes` inodes, or groups can't be smaller.
    ///
    /// # Errors
    /// `-E resize`, for more blocks than the resize inode can list.
    pub(crate) fn shrink_for_growth(
        &mut self,
        inodes: u64,
        options: &Options,
    ) -> Result<(), Error> {
        let Some(most) = self.growth_blocks(options)? else {
            return Ok(());
        };
        let groups = inodes.div_ceil(self.inodes_per_group_max());
        while groups > 1 && groups * self.blocks_per_group > most && !self.has_smallest_groups() {
            self.shrink_groups_once();
        }
        Ok(())
    }

    /// # Errors
    /// `-N` or `-i`, where the groups can't be smaller.
    pub(super) fn shrink_groups(&mut self, inodes: u64, options: &Options) -> Result<(), Error> {
        if let Some(error) = self.groups_are_full(inodes, options) {
            return Err(error);
        }
        self.shrink_groups_once();
        Ok(())
    }

    fn shrink_groups_once(&mut self) {
        self.blocks_per_group -= 8 << self.cluster_bits;
        self.blocks = self.blocks_given;
    }

    /// Whether groups are never made smaller than these, whatever number of inodes is asked for.
    fn has_smallest_groups(&self) -> bool {
        self.blocks_per_group < (256 << self.cluster_bits)
    }

    /// The refusal of more inodes than the groups can have; `None` for groups that can be made smaller.
    fn groups_are_full(&self, inodes: u64, options: &Options) -> Option<Error> {
        let reason = "too many inodes for this size; ask for fewer";
        let smallest = self.has_smallest_groups();
        self.given_groups_are_full(inodes, options)
            .or_else(|| smallest.then(|| too_many_inodes(options, reason.into())))
    }

    /// The refusal of more inodes than groups of a size that the user gave can have; `None` for groups of another
    /// size.
    fn given_groups_are_full(&self, inodes: u64, options: &Options) -> Option<Error> {
        let blocks = options.blocks_per_group?;
        let most = self.inodes_per_group_max();
        let reason = format!(
            "{inodes} inodes are more than groups of {blocks} blocks (-g) can have, {most} each; ask for fewer, or \
             for smaller groups"
        );
        Some(too_many_inodes(options, reason))
    }

    /// The fewest bytes an inode with which a whole group can have its inodes.
    pub(crate) fn densest_ratio(&self) -> u64 {
        // The block before the first group counts, too, and the last block of a table is filled.
        let blocks = self.blocks_per_group + self.first_data_block;
        let per_block = self.block_size.bytes_u64() / self.inode_size;
        let most = self.inodes_per_group_max() - per_block.max(8);
        (blocks << self.block_size.bits()).div_ceil(most)
    }

    pub(crate) fn set_inodes(&mut self, inodes: u64, options: &Options) -> Result<(), Error> {
        let block = self.block_size.bytes_u64();
        let per_block = block / self.inode_size;
        let mut per_group = inodes.div_ceil(self.groups);
        let mut is_cut = false;
        loop {
            self.table_blocks = (per_group * self.inode_size).div_ceil(block);
            // Whole blocks of inodes, and whole bytes of the bitmap.
            self.inodes_per_group = (self.table_blocks * per_block).max(8) & !7;
            // Rounding down must not lose the last inode of an image of one tiny group.
            if self.inodes_per_group * self.groups < LEAST_INODES {
                self.inodes_per_group += 8;
            }
            self.table_blocks = (self.inodes_per_group * self.inode_size).div_ceil(block);
            if self.inodes_per_group * self.groups <= u64::from(u32::MAX) {
                break;
            }
            is_cut = true;
            per_group = per_group.checked_sub(per_block.max(8)).ok_or_else(|| {
                Error::for_size(
                    "-N",
                    "too many groups for 2^32 - 1 inodes; use larger blocks",
                    OtherSize::WithinLimits,
                )
            })?;
        }
        let made = self.inodes_per_group * self.groups;
        match options.inodes {
            Some(asked) if is_cut && asked > made => Err(Error::for_size(
                "-N",
                format!(
                    "{asked} in {} groups are more than 2^32 - 1; ask for {made}",
                    self.groups
                ),
                OtherSize::Any,
            )),
            _ => Ok(()),
        }
    }
}

/// The refusal of a number of inodes that an image of this size can't hold. A larger one has more groups, but by a
/// ratio also more inodes.
fn too_many_inodes(options: &Options, reason: String) -> Error {
    match options.inodes {
        None if options.inode_ratio.is_some() => Error::for_size("-i", reason, OtherSize::Any),
        _ => Error::for_size("-N", reason, OtherSize::Larger),
    }
}
