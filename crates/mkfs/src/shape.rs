//! The numbers of an image: blocks, groups, inodes, descriptor blocks, by mke2fs's arithmetic. No places, no I/O.
//!
//! Two of mke2fs's rules make this a search: a last group too small for its own metadata is cut off, and groups
//! shrink until the inodes asked for fit into their bitmaps. Each step makes the groups smaller, or the image with the
//! same groups, so it ends.

use ondisk::{BlockSize, Feature, Features, Geometry};

use crate::layout::geometry_of;
use crate::regions::GrowingStream;
use crate::template::{self, Identity};
use crate::{Error, Options, OtherSize, StreamGeometry, UsageType, features, tables};

mod letters;

use letters::{blocks_per_group, cluster_bits, desc_size, flex_bits, inode_size};

/// The numbers of an image.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Shape {
    pub features: Features,
    pub block_size: BlockSize,
    /// The power of two that the blocks of a cluster are.
    pub cluster_bits: u32,
    pub inode_size: u64,
    /// Bytes a group descriptor.
    pub desc_size: u64,
    pub first_data_block: u64,
    pub blocks: u64,
    /// Blocks before a last group that is too small was cut off.
    pub blocks_given: u64,
    pub blocks_per_group: u64,
    pub groups: u64,
    pub inodes_per_group: u64,
    /// Blocks of a group's inode table.
    pub table_blocks: u64,
    /// Descriptor blocks reserved for growth.
    pub reserved_gdt: u64,
    /// The power of two that the groups of a flex group are.
    pub flex_bits: u32,
    /// The groups with backups, with sparse_super2.
    pub backup_groups: [u64; 2],
}

/// The most groups' inodes a bitmap may describe, whatever the block size.
const MAX_PER_GROUP: u64 = 65536;
/// mke2fs leaves the last 8 bits of a bitmap of 65536 alone: the free count has 16 bits in old descriptors.
const MAX_CLUSTERS_PER_GROUP: u64 = 65528;
/// The last group must have so many blocks beyond its own metadata.
const WORTHWHILE: u64 = 50;
/// The largest block number plus one that a block map or the resize inode can hold.
const BLOCKS_32: u64 = 1 << 32;
/// The most groups, as `ondisk` reads them.
const MAX_GROUPS: u64 = ondisk::geometry::MAX_GROUPS as u64;
/// Bytes from which on a file needs large_file.
pub(crate) const LARGE_FILE_BYTES: u64 = 1 << 31;
/// Why descriptors get groups of their own.
pub(crate) const FULL_OF_DESCRIPTORS: &str = "descriptors would fill most of a group; use larger groups (-g) or blocks \
    (-b), -O meta_bg, or a smaller -E resize";
/// The reserved inodes, lost+found, and one to use.
pub(crate) const LEAST_INODES: u64 = 12;

impl Shape {
    /// The numbers for an image of so many bytes.
    ///
    /// # Errors
    /// Options that can't be; a size that is too small or too large for them.
    pub(crate) fn new(size_bytes: u64, options: &Options) -> Result<Shape, Error> {
        if let Some(stream) = options.stream.as_ref().and_then(StreamGeometry::as_growing) {
            let shape = stream.unsettled(size_bytes, options)?;
            // What a layout planned as a whole can't have at this size, this one can't have either.
            shape.clone().reserve_descriptors(options)?;
            return stream.settled(shape, size_bytes, options);
        }
        let mut shape = Shape::unsettled(size_bytes, options)?;
        shape.check_blocks(size_bytes, options)?;
        let inodes = shape.inodes_asked(options)?;
        shape.settle(size_bytes, inodes, options)?;
        Ok(shape)
    }

    /// The numbers that do not depend on how many groups and inodes there are.
    ///
    /// # Errors
    /// As [`Shape::new`].
    pub(crate) fn unsettled(size_bytes: u64, options: &Options) -> Result<Shape, Error> {
        let features = features::resolve(options)?;
        let usage = usage_of(size_bytes, options);
        let block_size = options.block_size_or(tables::block_size(&usage));
        let cluster_bits = cluster_bits(options, features, block_size)?;
        let inode_size = inode_size(options, features, block_size)?;
        let mut shape = Shape {
            features,
            block_size,
            cluster_bits,
            inode_size,
            desc_size: desc_size(options, features, block_size)?,
            first_data_block: u64::from(block_size == BlockSize::K1 && cluster_bits == 0),
            blocks: size_bytes >> block_size.bits() >> cluster_bits << cluster_bits,
            blocks_given: 0,
            blocks_per_group: blocks_per_group(options, features, block_size, cluster_bits)?,
            groups: 0,
            inodes_per_group: 0,
            table_blocks: 0,
            reserved_gdt: 0,
            flex_bits: flex_bits(options, features)?,
            backup_groups: [0; 2],
        };
        shape.blocks_given = shape.blocks;
        if shape.has_large_resize_inode() && features::forbids(options, Feature::LARGE_FILE) {
            let reason = "the resize inode has 2 GiB or more, which -O ^large_file forbids; choose one of the two";
            let without = Feature::RESIZE_INODE;
            shape.features = features::give_way(options, features, without, None, reason)?;
        }
        Ok(shape)
    }

    /// How many inodes the options ask for in an image of this many blocks.
    pub(crate) fn inodes_asked(&self, options: &Options) -> Result<u64, Error> {
        let size = self.blocks_given << self.block_size.bits();
        self.wanted_inodes(options, &usage_of(size, options))
    }

    /// Whether the resize inode pretends to have 2 GiB or more, as from blocks of 4 KiB on.
    pub(crate) fn has_large_resize_inode(&self) -> bool {
        let pointers = self.block_size.bytes_u64() / 4;
        let bytes = (pointers * pointers) << self.block_size.bits();
        self.has(Feature::RESIZE_INODE) && bytes >= LARGE_FILE_BYTES
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// Blocks that hold all descriptors.
    pub(crate) fn desc_blocks(&self) -> u64 {
        (self.groups * self.desc_size).div_ceil(self.block_size.bytes_u64())
    }

    /// The first block that data can have: block 0 belongs to no group with blocks of 1 KiB.
    pub(crate) fn first_usable(&self) -> u64 {
        self.first_data_block.max(1)
    }

    pub(crate) fn check_blocks(&mut self, size_bytes: u64, options: &Options) -> Result<(), Error> {
        if self.blocks >= BLOCKS_32 {
            if !self.has(Feature::BIT64) {
                return Err(Error::for_size(
                    "-O ^64bit",
                    "2^32 blocks and more need 64bit; use it, or larger blocks (-b)",
                    OtherSize::WithinLimits,
                ));
            }
            // The resize inode maps with 32-bit block numbers. Descriptors in their own groups let the image grow
            // without it, and don't cost 32 MiB in each of the 26 groups with backups at 64 TiB.
            if self.has(Feature::RESIZE_INODE) {
                let reason = "the resize inode ends at 2^32 blocks, where descriptors need meta_bg";
                self.spread_descriptors(options, reason)
                    .map_err(|error| error.of_size(OtherSize::WithinLimits))?;
            }
        }
        if self.blocks >> 48 != 0 {
            let reason = "ext4 ends at 2^48 blocks";
            return Err(Error::for_size("SIZE", reason, OtherSize::WithinLimits));
        }
        if self.blocks <= self.first_data_block {
            return Err(self.too_small("the superblock", size_bytes));
        }
        Ok(())
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

    pub(crate) fn too_small(&self, what: &str, size: u64) -> Error {
        Error::TooSmall {
            what: what.into(),
            size,
            instead: "ask for fewer inodes (-N, -i), a smaller journal (-J size=) or none (-O ^has_journal)",
        }
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

    /// Counts the groups of this many blocks.
    pub(crate) fn count_groups(&mut self, size_bytes: u64) -> Result<(), Error> {
        let spread = self.blocks.saturating_sub(self.first_data_block);
        self.groups = spread.div_ceil(self.blocks_per_group);
        match self.groups {
            0 => Err(self.too_small("the first group", size_bytes)),
            _ => Ok(()),
        }
    }

    /// Finds groups that work: see the top of this file.
    fn settle(&mut self, size_bytes: u64, inodes: u64, options: &Options) -> Result<(), Error> {
        let mut inodes = inodes.max(LEAST_INODES);
        loop {
            self.count_groups(size_bytes)?;
            if self.groups > MAX_GROUPS {
                let reason = format!("more than {MAX_GROUPS} groups; use larger blocks");
                return Err(Error::for_size("-g", reason, OtherSize::WithinLimits));
            }
            self.reserve_descriptors(options)?;
            let most = self.inodes_per_group_max();
            let is_asked = options.inodes.is_some() || options.inode_ratio.is_some();
            if is_asked && inodes.div_ceil(self.groups) > most {
                // By a ratio, a last group that is left out takes its inodes along where groups can't shrink.
                let left = self.inodes_asked(options)?.max(LEAST_INODES);
                if options.blocks_per_group.is_some() && left < inodes {
                    inodes = left;
                    continue;
                }
                self.shrink_groups(inodes, options)?;
                continue;
            }
            self.set_inodes(inodes.min(most * self.groups), options)?;
            if self.has_worthwhile_end(size_bytes, options)? {
                return Ok(());
            }
        }
    }

    /// As `settle`, for groups whose size and descriptors are settled: what does not fit them needs more groups.
    pub(crate) fn settle_streamed(
        &mut self,
        size_bytes: u64,
        stream: &GrowingStream,
        options: &Options,
    ) -> Result<(), Error> {
        let region = stream.region();
        loop {
            self.count_groups(size_bytes)?;
            if !self.has(Feature::META_BG) {
                let used = self.desc_blocks();
                if used > region {
                    let reason =
                        "an image this large can't grow while it is written; give its size";
                    return Err(Error::for_size("--size", reason, OtherSize::WithinLimits));
                }
                self.reserve_up_to(region);
            }
            self.spread_inodes(size_bytes, stream, options)?;
            if self.has_worthwhile_end(size_bytes, options)? {
                return Ok(());
            }
        }
    }

    /// Reserves descriptor blocks, so that used and reserved ones are `region` together.
    fn reserve_up_to(&mut self, region: u64) {
        self.reserved_gdt = match self.has(Feature::RESIZE_INODE) {
            true => (region - self.desc_blocks()).min(self.block_size.bytes_u64() / 4),
            false => 0,
        };
    }

    /// Gives each group its share of the inodes; nothing else changes. The usual number of inodes is as many as the
    /// groups can hold; a number that was asked for is what it is.
    ///
    /// # Errors
    /// `TooSmall` where the groups can't hold them.
    fn spread_inodes(
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

    /// The same numbers with inode tables of `blocks` blocks, and without a last group that these leave no room in.
    ///
    /// # Errors
    /// Where the only group can't hold its table.
    pub(crate) fn with_tables(&self, blocks: u64, options: &Options) -> Result<Shape, Error> {
        let mut shape = self.clone();
        let inodes = (blocks << self.block_size.bits()) / self.inode_size;
        shape.inodes_per_group = inodes.min(self.inodes_per_group_max()) & !7;
        shape.table_blocks = blocks;
        shape.cut_end(options)
    }

    /// The same numbers without a last group that is not worth its metadata; nothing else changes.
    ///
    /// # Errors
    /// Where the only group can't hold its metadata.
    pub(crate) fn cut_end(mut self, options: &Options) -> Result<Shape, Error> {
        let size = self.blocks_given << self.block_size.bits();
        let region = self.desc_blocks() + self.reserved_gdt;
        while !self.has_worthwhile_end(size, options)? {
            self.groups -= 1;
            self.reserve_up_to(region);
        }
        Ok(self)
    }

    /// The geometry of an image with these numbers.
    pub(crate) fn geometry(&self, size_bytes: u64, options: &Options) -> Result<Geometry, Error> {
        let superblock = template::superblock(self, options, &Identity::of(options))?;
        geometry_of(&superblock, size_bytes)
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

    /// Makes the groups so small that one inode for each `ratio` bytes fits their bitmaps; or as small as groups can
    /// be, where none are small enough, and tells so by `false`.
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

    /// Whether the last group is worth its metadata; if not, the image ends before it.
    fn has_worthwhile_end(&mut self, size_bytes: u64, options: &Options) -> Result<bool, Error> {
        self.set_backup_groups(options)?;
        let spread = self.blocks - self.first_data_block;
        let rest = spread % self.blocks_per_group;
        let own = self.last_group_metadata();
        if self.groups == 1 && rest != 0 && rest < own {
            return Err(self.too_small("the first group's metadata", size_bytes));
        }
        if rest == 0 || rest >= own + WORTHWHILE || self.groups == 1 {
            return Ok(true);
        }
        self.blocks -= rest;
        Ok(false)
    }

    /// # Errors
    /// `-N` or `-i`, where the groups can't be smaller.
    fn shrink_groups(&mut self, inodes: u64, options: &Options) -> Result<(), Error> {
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

    fn reserve_descriptors(&mut self, options: &Options) -> Result<(), Error> {
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
        let Some(size) = options.resize else {
            return Ok(None);
        };
        let blocks = size.blocks(self.block_size);
        if blocks >= BLOCKS_32 {
            let reason = "the resize inode ends at 2^32 blocks; use -O meta_bg without it";
            return Err(Error::option("-E resize", reason));
        }
        let per_block = self.block_size.bytes_u64() / self.desc_size;
        let groups = blocks.div_ceil(self.blocks_per_group);
        Ok(Some(groups.div_ceil(per_block)))
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

    fn set_backup_groups(&mut self, options: &Options) -> Result<(), Error> {
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

    fn last_group_metadata(&self) -> u64 {
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

/// The refusal of a number of inodes that an image of this size can't hold. A larger one has more groups, but by a
/// ratio also more inodes.
fn too_many_inodes(options: &Options, reason: String) -> Error {
    match options.inodes {
        None if options.inode_ratio.is_some() => Error::for_size("-i", reason, OtherSize::Any),
        _ => Error::for_size("-N", reason, OtherSize::Larger),
    }
}

/// What the file system is for: as the options say, else by its size.
fn usage_of(size_bytes: u64, options: &Options) -> Vec<UsageType> {
    match options.usage_types.as_slice() {
        [] => vec![UsageType::for_size(size_bytes)],
        given => given.to_vec(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    fn planned(size: u64, letters: &str) -> Result<Layout, Error> {
        let mut options = Options::default();
        let words: Vec<&str> = letters.split_whitespace().collect();
        for pair in words.chunks(2) {
            let letter = pair[0].chars().nth(1).unwrap();
            options.set(letter, pair[1])?;
        }
        Layout::plan(size, &options)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (size, letters, word) in [
            // Descriptors, used and reserved, that would fill a group.
            (
                900 * MIB,
                "-b 1024 -g 256 -O resize_inode",
                "-O resize_inode",
            ),
            (900 * MIB, "-b 1024 -g 256 -E resize=4G", "-E resize"),
            (900 * MIB, "-b 1024 -g 256 -O ^meta_bg", "-O ^meta_bg"),
            (17 << 40, "-O resize_inode", "-O resize_inode"),
            (17 << 40, "-O ^meta_bg", "-O ^meta_bg"),
            // More than the resize inode lists.
            (100 * MIB, "-b 1024 -g 1024 -E resize=4T", "-E resize"),
            (100 * MIB, "-E resize=20T", "-E resize"),
            (100 * MIB, "-O meta_bg -E resize=1G", "-O meta_bg"),
            (100 * MIB, "-O ^sparse_super -E resize=1G", "-E resize"),
            // More inodes than groups of a given size have.
            (100 * MIB, "-b 4096 -g 32768 -N 100000", "-N"),
            (100 * MIB, "-b 4096 -g 32768 -i 1024", "-i"),
            (100 * MIB, "-b 16384 -g 65528 -N 65500", "-N"),
            (1 << 40, "-N 4294967295", "-N"),
            // Features that something else needs.
            (
                100 * MIB,
                "-b 4096 -O ^large_file,resize_inode",
                "-O resize_inode",
            ),
            (
                100 << 30,
                "-b 65536 -J size=4096 -O ^large_file,^resize_inode",
                "-O ^large_file",
            ),
            (100 * MIB, "-b 4096 -E num_backup_sb=1", "-E num_backup_sb"),
            (200 * MIB, "-b 4096 -E num_backup_sb=2", "-E num_backup_sb"),
            // Places and sizes of the journal.
            (100 * MIB, "-b 4096 -J location=1", "-J location"),
            (
                100 * MIB,
                "-O fast_commit -J size=4,fast_commit_size=8M",
                "-J fast_commit_size",
            ),
        ] {
            match planned(size, letters) {
                Ok(_) => panic!("{letters}: not refused"),
                Err(error) => assert!(error.to_string().starts_with(word), "{letters}: {error}"),
            }
        }
    }

    #[test]
    fn what_can_be_honoured_is() {
        for (size, letters) in [
            (900 * MIB, "-b 1024 -g 256"),
            (100 * MIB, "-b 4096 -N 100000"),
            (200 * MIB, "-b 16384 -N 200000"),
            (200 * MIB, "-b 65536 -N 150000"),
            (100 * MIB, "-b 4096 -i 1024"),
            (100 * MIB, "-b 1024 -O bigalloc -C 65536 -i 8192"),
            (100 * MIB, "-b 4096 -O ^large_file"),
            (100 * MIB, "-b 1024 -E resize=8G"),
        ] {
            let layout =
                planned(size, letters).unwrap_or_else(|error| panic!("{letters}: {error}"));
            let after = |letter: &str| {
                let mut words = letters
                    .split_whitespace()
                    .skip_while(|word| *word != letter);
                words.nth(1).and_then(|word| word.parse::<u64>().ok())
            };
            let inodes = u64::from(layout.geometry().inodes_count());
            assert!(inodes >= after("-N").unwrap_or(0), "{letters}: {inodes}");
            let by_ratio = after("-i").map_or(0, |ratio| size / ratio);
            assert!(inodes >= by_ratio, "{letters}: {inodes}");
        }
    }
}
