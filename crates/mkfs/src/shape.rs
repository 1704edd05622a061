//! The numbers of an image: blocks, groups, inodes, descriptor blocks, by mke2fs's arithmetic. No places, no I/O.
//!
//! Two of mke2fs's rules make this a search: a last group too small for its own metadata is cut off, and groups shrink
//! until the inodes asked for fit into their bitmaps. Each step makes the groups smaller, or keeps them and makes the
//! image smaller, so the search ends.

use ondisk::map::MapKind;
use ondisk::{BlockSize, Feature, Features};

use crate::{Error, Options, OtherSize, StreamGeometry, UsageType, features, tables};

mod descriptors;
mod growing;
mod inodes;
mod letters;

use descriptors::BLOCKS_32;
pub(crate) use descriptors::LARGE_FILE_BYTES;
pub(crate) use growing::GrowingStream;
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

/// mke2fs leaves the last 8 bits of a bitmap of 65536 alone: the free count has 16 bits in old descriptors.
const MAX_CLUSTERS_PER_GROUP: u64 = 65528;
/// The last group must have at least this number of blocks beyond its own metadata.
const WORTHWHILE: u64 = 50;
/// The fewest inodes of an image: the reserved ones, lost+found, and one to use.
pub(crate) const LEAST_INODES: u64 = 12;
/// The most groups, as `ondisk` reads them.
const MAX_GROUPS: u64 = ondisk::geometry::MAX_GROUPS as u64;
impl Shape {
    /// The numbers for an image of `size_bytes` bytes.
    ///
    /// # Errors
    /// Options that are not possible; a size that is too small or too large for them.
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

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// Which kind of map new files have.
    pub(crate) fn map_kind(&self) -> MapKind {
        if self.has(Feature::EXTENT) {
            MapKind::Extents
        } else {
            MapKind::Pointers
        }
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

    pub(crate) fn too_small(&self, what: &str, size: u64) -> Error {
        Error::TooSmall {
            what: what.into(),
            size,
            instead: "ask for fewer inodes (-N, -i), a smaller journal (-J size=) or none (-O ^has_journal)",
        }
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
        let whole = self.blocks_per_group;
        loop {
            self.count_groups(size_bytes)?;
            if self.groups > MAX_GROUPS {
                let reason = format!("more than {MAX_GROUPS} groups; use larger blocks");
                return Err(Error::for_size("-g", reason, OtherSize::WithinLimits));
            }
            let is_smaller = self.blocks_per_group < whole;
            self.reserve_descriptors(options).map_err(|error| {
                if is_smaller {
                    // In a larger image more groups share the inodes, and need not be as small.
                    error.of_size(OtherSize::Any)
                } else {
                    error
                }
            })?;
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

    /// How many of the `blocks` blocks of an inode table are useful: a group's inodes fill whole bytes of its bitmap.
    pub(crate) fn useful_tables(&self, blocks: u64) -> u64 {
        let inodes = ((blocks << self.block_size.bits()) / self.inode_size) & !7;
        (inodes * self.inode_size).div_ceil(self.block_size.bytes_u64())
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
}

/// What the file system is for: as the options say, else by its size.
fn usage_of(size_bytes: u64, options: &Options) -> Vec<UsageType> {
    match options.usage_types.as_slice() {
        [] => vec![UsageType::for_size(size_bytes)],
        given => given.to_vec(),
    }
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
