//! Geometry: every number of the superblock that places are computed from, checked once and then trusted.
//!
//! [`Geometry::new`] is the only way to make one, and everything that multiplies or divides by a number of the
//! superblock takes it from here. True of every geometry: no size is zero; a bitmap fits in a block; groups times
//! inodes a group fit in 32 bits; there are at most [`MAX_GROUPS`] groups; all blocks lie on the device and are fewer
//! than 2^48; descriptors are 32 bytes, or with `64bit` a power of two from 64 to 1024.

use core::fmt;
use core::ops::Range;

use crate::features::{Feature, Features};
use crate::numbers::{BlockSize, FsBlock, Group, Ino};
use crate::site::{Corrupt, Site};
use crate::superblock::Superblock;

mod places;

pub use places::GroupStart;

/// The most groups that lanefs handles: twice those of 64 TiB in blocks of 1 KiB.
pub const MAX_GROUPS: u32 = 1 << 24;
/// Extents hold block numbers of 48 bits.
const MAX_BLOCKS: u64 = 1 << 48;

/// The incompatible features that can be read.
const READABLE: &[Feature] = &[
    Feature::FILETYPE,
    Feature::NEEDS_RECOVERY,
    Feature::META_BG,
    Feature::EXTENT,
    Feature::BIT64,
    Feature::MMP,
    Feature::FLEX_BG,
    Feature::EA_INODE,
    Feature::METADATA_CSUM_SEED,
    Feature::LARGE_DIR,
    Feature::INLINE_DATA,
    Feature::ENCRYPT,
    Feature::CASEFOLD,
];

/// Why a superblock gives no geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GeometryError {
    /// The image breaks the format.
    Corrupt(Corrupt),
    /// The image is right as far as one can see, but lanefs can't read it.
    Unsupported(Unsupported),
    /// The device ends before the file system does.
    Truncated {
        /// Bytes that the file system has.
        needed: u64,
        /// Bytes that the device has.
        present: u64,
    },
}

/// What lanefs can't read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsupported {
    /// Incompatible features that lanefs does not know.
    Features(Features),
    /// The image is the journal of a file system on another device.
    JournalDevice,
    /// More than [`MAX_GROUPS`] groups.
    Groups(u64),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::Features(features) => {
                write!(
                    f,
                    "the image has features that lanefs can't read: {features}"
                )
            }
            Unsupported::JournalDevice => f.write_str(
                "this is an external journal, not a file system; name the image that it belongs to",
            ),
            Unsupported::Groups(groups) => {
                write!(
                    f,
                    "{groups} block groups are more than lanefs handles ({MAX_GROUPS})"
                )
            }
        }
    }
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeometryError::Corrupt(corrupt) => corrupt.fmt(f),
            GeometryError::Unsupported(unsupported) => unsupported.fmt(f),
            GeometryError::Truncated { needed, present } => write!(
                f,
                "the image is truncated: the file system has {needed} bytes, the device {present}"
            ),
        }
    }
}

impl core::error::Error for GeometryError {}

impl From<Corrupt> for GeometryError {
    fn from(corrupt: Corrupt) -> GeometryError {
        GeometryError::Corrupt(corrupt)
    }
}

impl From<Unsupported> for GeometryError {
    fn from(unsupported: Unsupported) -> GeometryError {
        GeometryError::Unsupported(unsupported)
    }
}

/// The validated numbers of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    features: Features,
    block_size: BlockSize,
    cluster_ratio_bits: u32,
    inode_size: u16,
    desc_size: u16,
    first_data_block: u32,
    blocks_count: u64,
    blocks_per_group: u32,
    clusters_per_group: u32,
    inodes_per_group: u32,
    groups: u32,
    first_ino: u32,
    first_meta_bg: u32,
    reserved_gdt_blocks: u16,
    flex_bits: u32,
    backup_groups: [Group; 2],
    csum_seed: u32,
    uuid: [u8; 16],
    hash_seed: [u32; 4],
    hash_version: u8,
    has_unsigned_hash: bool,
}

fn corrupt(site: Site) -> GeometryError {
    GeometryError::Corrupt(Corrupt::at(site))
}

impl Geometry {
    /// Checks a superblock's numbers against each other, whatever the size of the device.
    ///
    /// # Errors
    /// As [`Geometry::new`], except `Truncated`.
    pub fn of(sb: &Superblock) -> Result<Geometry, GeometryError> {
        Geometry::new(sb, u64::MAX)
    }

    /// Checks a superblock's numbers against each other and against the device's size in bytes. The superblock's
    /// own checksum is [`Superblock::verify`]'s affair.
    ///
    /// # Errors
    /// The first number that is impossible, or what lanefs can't read.
    pub fn new(sb: &Superblock, device_bytes: u64) -> Result<Geometry, GeometryError> {
        let features = readable_features(sb)?;
        let block_size =
            BlockSize::from_log(sb.log_block_size()).ok_or_else(|| corrupt(Site::BlockSize))?;
        let (cluster_ratio_bits, blocks_per_group, clusters_per_group) =
            group_size(sb, features, block_size)?;
        let inode_size = inode_size(sb, block_size)?;
        let first_data_block = first_data_block(sb, block_size, cluster_ratio_bits)?;
        let blocks_count = blocks_count(sb, block_size, first_data_block, device_bytes)?;
        let group_count =
            (blocks_count - u64::from(first_data_block)).div_ceil(u64::from(blocks_per_group));
        let groups = u32::try_from(group_count)
            .ok()
            .filter(|groups| *groups <= MAX_GROUPS)
            .ok_or(Unsupported::Groups(group_count))?;
        let flex_bits = match u32::from(sb.log_groups_per_flex()) {
            bits @ 1..=31 if features.has(Feature::FLEX_BG) => bits,
            _ => 0,
        };
        let geometry = Geometry {
            features,
            block_size,
            cluster_ratio_bits,
            inode_size,
            desc_size: desc_size(sb, features)?,
            first_data_block,
            blocks_count,
            blocks_per_group,
            clusters_per_group,
            inodes_per_group: inodes_per_group(sb, block_size, inode_size, groups)?,
            groups,
            first_ino: first_ino(sb)?,
            first_meta_bg: sb.first_meta_bg(),
            reserved_gdt_blocks: sb.reserved_gdt_blocks(),
            flex_bits,
            backup_groups: sb.backup_groups(),
            csum_seed: sb.csum_seed(),
            uuid: sb.uuid(),
            hash_seed: sb.hash_seed(),
            hash_version: sb.hash_version(),
            has_unsigned_hash: sb.has_unsigned_hash(),
        };
        geometry.check_descriptors()?;
        Ok(geometry)
    }

    fn check_descriptors(&self) -> Result<(), GeometryError> {
        if u64::from(self.reserved_gdt_blocks) > self.block_size.bytes_u64() / 4 {
            return Err(corrupt(Site::ReservedGdtBlocks));
        }
        if self.features.has(Feature::META_BG) && self.first_meta_bg > self.desc_blocks() {
            return Err(corrupt(Site::FirstMetaBg));
        }
        let last = self.desc_block(self.desc_blocks() - 1);
        if last.0 >= self.blocks_count {
            return Err(corrupt(Site::DescriptorsBeyondEnd));
        }
        Ok(())
    }

    /// The features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Whether the file system has the feature.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// Bytes a block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Blocks a cluster; 1 without bigalloc.
    #[must_use]
    pub fn cluster_ratio(&self) -> u32 {
        1 << self.cluster_ratio_bits
    }

    /// The power of two that [`Self::cluster_ratio`] is.
    #[must_use]
    pub fn cluster_ratio_bits(&self) -> u32 {
        self.cluster_ratio_bits
    }

    /// Bytes an inode: a power of two from 128 to a block.
    #[must_use]
    pub fn inode_size(&self) -> usize {
        usize::from(self.inode_size)
    }

    /// Bytes a group descriptor.
    #[must_use]
    pub fn desc_size(&self) -> usize {
        usize::from(self.desc_size)
    }

    /// The block at which group 0 begins.
    #[must_use]
    pub fn first_data_block(&self) -> FsBlock {
        FsBlock(self.first_data_block.into())
    }

    /// Blocks, counted from the start of the device.
    #[must_use]
    pub fn blocks_count(&self) -> u64 {
        self.blocks_count
    }

    /// Bytes of the file system.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks_count << self.block_size.bits()
    }

    /// Clusters that bitmaps account for: blocks from the first data block on, without bigalloc.
    #[must_use]
    pub fn clusters_count(&self) -> u64 {
        (self.blocks_count - u64::from(self.first_data_block))
            .div_ceil(u64::from(self.cluster_ratio()))
    }

    /// Blocks a group; the last group may have fewer.
    #[must_use]
    pub fn blocks_per_group(&self) -> u32 {
        self.blocks_per_group
    }

    /// Clusters in a group: the number of bits of its bitmap that are in use.
    #[must_use]
    pub fn clusters_per_group(&self) -> u32 {
        self.clusters_per_group
    }

    /// Inodes a group.
    #[must_use]
    pub fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// Inodes of all groups.
    #[must_use]
    pub fn inodes_count(&self) -> u32 {
        self.inodes_per_group * self.groups
    }

    /// Blocks of a group's inode table.
    #[must_use]
    pub fn inode_table_blocks(&self) -> u32 {
        let bytes = u64::from(self.inodes_per_group) * u64::from(self.inode_size);
        // At most 8 inodes a byte of a block, each at most a block: far below 32 bits.
        self.block_size.blocks_for(bytes) as u32
    }

    /// Inodes in a block of the inode table.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        (self.block_size.bytes() / self.inode_size()) as u32
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Every group.
    pub fn all_groups(&self) -> impl ExactSizeIterator<Item = Group> + use<> {
        let range: Range<u32> = 0..self.groups;
        range.map(Group)
    }

    /// The first inode that is not reserved.
    #[must_use]
    pub fn first_ino(&self) -> Ino {
        Ino(self.first_ino)
    }

    /// Groups of a flexible group; 1 without `flex_bg`.
    #[must_use]
    pub fn flex_size(&self) -> u32 {
        1 << self.flex_bits
    }

    /// The seed of all metadata checksums.
    #[must_use]
    pub fn csum_seed(&self) -> u32 {
        self.csum_seed
    }

    /// Whether metadata has CRC-32C checksums.
    #[must_use]
    pub fn has_metadata_csum(&self) -> bool {
        self.has(Feature::METADATA_CSUM)
    }

    /// The file system's UUID.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The seed of directory hashes.
    #[must_use]
    pub fn hash_seed(&self) -> [u32; 4] {
        self.hash_seed
    }

    /// The hash of new directories, as in the superblock.
    #[must_use]
    pub fn hash_version(&self) -> u8 {
        self.hash_version
    }

    /// Whether directory hashes take bytes as unsigned.
    #[must_use]
    pub fn has_unsigned_hash(&self) -> bool {
        self.has_unsigned_hash
    }

    /// Descriptor blocks reserved for growth after each copy of the descriptors.
    #[must_use]
    pub fn reserved_gdt_blocks(&self) -> u32 {
        self.reserved_gdt_blocks.into()
    }
}

fn readable_features(sb: &Superblock) -> Result<Features, GeometryError> {
    let features = sb.features();
    if features.has(Feature::JOURNAL_DEV) {
        return Err(Unsupported::JournalDevice.into());
    }
    let incompat = Features {
        compat: 0,
        ro_compat: 0,
        ..features
    };
    let unknown = incompat.minus(Features::of(READABLE));
    if !unknown.is_empty() {
        return Err(Unsupported::Features(unknown).into());
    }
    Ok(features)
}

/// The power of two of the cluster ratio, blocks and clusters a group.
fn group_size(
    sb: &Superblock,
    features: Features,
    block_size: BlockSize,
) -> Result<(u32, u32, u32), GeometryError> {
    let blocks = sb.blocks_per_group();
    let bits_of_a_block = 8 * block_size.bytes_u64();
    if !features.has(Feature::BIGALLOC) {
        if blocks < 8 || u64::from(blocks) > bits_of_a_block {
            return Err(corrupt(Site::BlocksPerGroup));
        }
        return Ok((0, blocks, blocks));
    }
    let ratio_bits = sb
        .log_cluster_size()
        .checked_sub(sb.log_block_size())
        .filter(|_| sb.log_cluster_size() <= 20)
        .ok_or_else(|| corrupt(Site::ClusterSize))?;
    let clusters = sb.clusters_per_group();
    let whole = u64::from(clusters) << ratio_bits == u64::from(blocks);
    if clusters < 8 || u64::from(clusters) > bits_of_a_block || !whole {
        return Err(corrupt(Site::ClustersPerGroup));
    }
    Ok((ratio_bits, blocks, clusters))
}

fn inode_size(sb: &Superblock, block_size: BlockSize) -> Result<u16, GeometryError> {
    if sb.revision() == 0 {
        return Ok(128);
    }
    let size = sb.inode_size();
    if size < 128 || !size.is_power_of_two() || u64::from(size) > block_size.bytes_u64() {
        return Err(corrupt(Site::InodeSize));
    }
    Ok(size)
}

fn first_data_block(
    sb: &Superblock,
    block_size: BlockSize,
    cluster_ratio_bits: u32,
) -> Result<u32, GeometryError> {
    let expected = u32::from(block_size == BlockSize::K1 && cluster_ratio_bits == 0);
    // Blocks of 1 KiB with bigalloc and clusters of one block may begin at either.
    let either = block_size == BlockSize::K1 && sb.features().has(Feature::BIGALLOC);
    match sb.first_data_block() {
        first if first == expected => Ok(first),
        first @ 0..=1 if either => Ok(first),
        _ => Err(corrupt(Site::FirstDataBlock)),
    }
}

fn blocks_count(
    sb: &Superblock,
    block_size: BlockSize,
    first_data_block: u32,
    device_bytes: u64,
) -> Result<u64, GeometryError> {
    let blocks = sb.blocks_count();
    if blocks <= u64::from(first_data_block) || blocks >= MAX_BLOCKS {
        return Err(corrupt(Site::BlocksCount));
    }
    let needed = blocks << block_size.bits();
    if needed > device_bytes {
        return Err(GeometryError::Truncated {
            needed,
            present: device_bytes,
        });
    }
    Ok(blocks)
}

/// Bytes of a group descriptor without the feature `64bit`.
const SHORT_DESC_SIZE: u16 = 32;

fn desc_size(sb: &Superblock, features: Features) -> Result<u16, GeometryError> {
    if !features.has(Feature::BIT64) {
        return Ok(SHORT_DESC_SIZE);
    }
    match sb.desc_size() {
        size @ 64..=1024 if size.is_power_of_two() => Ok(size),
        _ => Err(corrupt(Site::DescSize)),
    }
}

fn inodes_per_group(
    sb: &Superblock,
    block_size: BlockSize,
    inode_size: u16,
    groups: u32,
) -> Result<u32, GeometryError> {
    let inodes = sb.inodes_per_group();
    let per_block = block_size.bytes_u64() / u64::from(inode_size);
    if u64::from(inodes) < per_block || u64::from(inodes) > 8 * block_size.bytes_u64() {
        return Err(corrupt(Site::InodesPerGroup));
    }
    if u64::from(inodes) * u64::from(groups) != u64::from(sb.inodes_count()) {
        return Err(corrupt(Site::InodesCount));
    }
    Ok(inodes)
}

fn first_ino(sb: &Superblock) -> Result<u32, GeometryError> {
    let first = sb.first_ino();
    if first < Ino::FIRST_UNRESERVED || first.0 > sb.inodes_count() {
        return Err(corrupt(Site::FirstIno));
    }
    Ok(first.0)
}
