//! Blocks for group descriptors: how many there are, how many are reserved for growth, and which groups have copies. No
//! I/O, no locks, nothing on disk.

use ondisk::Feature;

use super::Shape;
use crate::{Error, Options, OtherSize, features};

/// The largest block number plus one that a block map or the resize inode can hold.
pub(super) const BLOCKS_32: u64 = 1 << 32;
/// Bytes from which on a file needs large_file.
pub(crate) const LARGE_FILE_BYTES: u64 = 1 << 31;
/// Why descriptors get groups of their own.
pub(super) const FULL_OF_DESCRIPTORS: &str = "descriptors would fill most of a group; use larger groups (-g) or blocks \
    (-b), -O meta_bg, or a smaller -E resize";

impl Shape {
    /// Whether the resize inode pretends to have 2 GiB or more, as from blocks of 4 KiB on.
    pub(crate) fn has_large_resize_inode(&self) -> bool {
        let pointers = self.block_size.bytes_u64() / 4;
        let bytes = (pointers * pointers) << self.block_size.bits();
        self.has(Feature::RESIZE_INODE) && bytes >= LARGE_FILE_BYTES
    }

    /// Blocks that hold all descriptors.
    pub(crate) fn desc_blocks(&self) -> u64 {
        (self.groups * self.desc_size).div_ceil(self.block_size.bytes_u64())
    }

    /// Puts the descriptors into their own groups, and leaves out the resize inode, which excludes that.
    ///
    /// # Errors
    /// An option that asks for something else, with `reason`.
    pub(crate) fn spread_descriptors(
        &mut self,
        options: &Options,
        reason: &str,
    ) -> Result<(), Error> {
        let (without, with) = (Feature::RESIZE_INODE, Some(Feature::META_BG));
        self.features = features::give_way(options, self.features, without, with, reason)?;
        Ok(())
    }

    /// Reserves descriptor blocks, so that used and reserved ones are `region` together.
    pub(super) fn reserve_up_to(&mut self, region: u64) {
        self.reserved_gdt = if self.has(Feature::RESIZE_INODE) {
            (region - self.desc_blocks()).min(self.block_size.bytes_u64() / 4)
        } else {
            0
        };
    }

    pub(super) fn reserve_descriptors(&mut self, options: &Options) -> Result<(), Error> {
        let used = self.desc_blocks();
        self.reserved_gdt = 0;
        if self.has(Feature::RESIZE_INODE) {
            self.reserved_gdt = self.growth(options, used)?;
        }
        if self.reserved_gdt + used > self.blocks_per_group * 3 / 4 && !self.has(Feature::META_BG) {
            self.spread_descriptors(options, FULL_OF_DESCRIPTORS)
                .map_err(|error| error.of_size(OtherSize::Smaller))?;
            self.reserved_gdt = 0;
        }
        Ok(())
    }

    /// Descriptor blocks of an image that can grow to the size asked for, if one is.
    ///
    /// # Errors
    /// `-E resize`, where the resize inode can't map that number of blocks.
    pub(crate) fn resize_blocks(&self, options: &Options) -> Result<Option<u64>, Error> {
        let Some(blocks) = self.growth_blocks(options)? else {
            return Ok(None);
        };
        let per_block = self.block_size.bytes_u64() / self.desc_size;
        let groups = blocks.div_ceil(self.blocks_per_group);
        Ok(Some(groups.div_ceil(per_block)))
    }

    /// The number of blocks to which the image must be able to grow; `None` without `-E resize`.
    ///
    /// # Errors
    /// `-E resize`, for more blocks than the resize inode can list.
    pub(super) fn growth_blocks(&self, options: &Options) -> Result<Option<u64>, Error> {
        let Some(size) = options.resize else {
            return Ok(None);
        };
        let blocks = size.blocks(self.block_size);
        if blocks >= BLOCKS_32 {
            let reason = "the resize inode ends at 2^32 blocks; use -O meta_bg without it";
            return Err(Error::option("-E resize", reason));
        }
        Ok(Some(blocks))
    }

    /// Checks that an image of `blocks` blocks, with `used` descriptor blocks, can grow to the size asked for, if one
    /// is.
    ///
    /// # Errors
    /// `-E resize`, where the image is that large already, or where the resize inode can't list the descriptor blocks.
    pub(crate) fn check_growth(
        &self,
        options: &Options,
        blocks: u64,
        used: u64,
    ) -> Result<(), Error> {
        let (Some(size), Some(wanted)) = (options.resize, self.resize_blocks(options)?) else {
            return Ok(());
        };
        let pointers = self.block_size.bytes_u64() / 4;
        let more = wanted.saturating_sub(used);
        if more > pointers {
            let reason = format!(
                "needs {more} descriptor blocks, and the resize inode lists {pointers}; use larger blocks (-b) or \
                 groups (-g)"
            );
            return Err(Error::option("-E resize", reason));
        }
        if size.blocks(self.block_size) <= blocks {
            let reason = format!("must be more than the {blocks} blocks there are");
            return Err(Error::for_size("-E resize", reason, OtherSize::Smaller));
        }
        Ok(())
    }

    /// Descriptor blocks to reserve: enough to grow by 1024, or to the size asked for.
    fn growth(&self, options: &Options, used: u64) -> Result<u64, Error> {
        let pointers = self.block_size.bytes_u64() / 4;
        let reserved = |blocks: u64| {
            let groups = blocks.min(BLOCKS_32 - 1).div_ceil(self.blocks_per_group);
            let per_block = self.block_size.bytes_u64() / self.desc_size;
            let all = groups.div_ceil(per_block);
            all.saturating_sub(used).min(pointers)
        };
        let usual = reserved(self.blocks.saturating_mul(1024) - self.first_data_block);
        self.check_growth(options, self.blocks, used)?;
        match options.resize.map(|size| size.blocks(self.block_size)) {
            None => Ok(usual),
            // The last descriptor block has room for that: as without a wish, like mke2fs.
            Some(blocks) if reserved(blocks) == 0 => Ok(usual),
            Some(blocks) => Ok(reserved(blocks)),
        }
    }

    pub(super) fn set_backup_groups(&mut self, options: &Options) -> Result<(), Error> {
        self.backup_groups = [0; 2];
        if !self.has(Feature::SPARSE_SUPER2) {
            return Ok(());
        }
        let wanted = options.backup_superblocks.unwrap_or(2);
        if wanted > 2 {
            return Err(Error::option("-E num_backup_sb", "must be 0, 1 or 2"));
        }
        if options.backup_superblocks.is_some() && u64::from(wanted) >= self.groups {
            let reason = format!(
                "{wanted} backups need {} groups, and there are {}; use a larger size, or smaller groups (-g)",
                wanted + 1,
                self.groups
            );
            let instead = OtherSize::Larger;
            return Err(Error::for_size("-E num_backup_sb", reason, instead));
        }
        if wanted >= 1 && self.groups > 1 {
            self.backup_groups[0] = 1;
        }
        if wanted == 2 && self.groups > 2 {
            self.backup_groups[1] = self.groups - 1;
        }
        Ok(())
    }

    pub(super) fn last_group_metadata(&self) -> u64 {
        let mut own = 2 + self.table_blocks;
        if self.has_super(self.groups - 1) {
            own += 1 + self.desc_blocks() + self.reserved_gdt;
        }
        own
    }

    /// Whether a group begins with a copy of the superblock.
    pub(crate) fn has_super(&self, group: u64) -> bool {
        if self.has(Feature::SPARSE_SUPER2) {
            return group == 0 || self.backup_groups.contains(&group);
        }
        !self.has(Feature::SPARSE_SUPER) || is_sparse_backup(group)
    }
}

/// Whether this group holds a superblock under sparse_super: 0, 1 and the powers of 3, 5 and 7.
fn is_sparse_backup(group: u64) -> bool {
    let is_power_of = |base: u64| {
        let mut power = base;
        while power < group {
            power *= base;
        }
        power == group
    };
    group <= 1 || [3, 5, 7].into_iter().any(is_power_of)
}
