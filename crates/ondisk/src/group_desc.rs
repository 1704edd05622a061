//! Group descriptors: where a group's bitmaps and inode table lie, what is free in it, and its checksums.
//!
//! On disk a descriptor has 32 bytes, or with `64bit` the size that the superblock gives (64 from every known mke2fs).
//! In memory it is always the 64-byte form, whose high words are zero when the disk has none. [`GroupDesc::verify`] is
//! the way from bytes to a descriptor that may be used; [`GroupDesc::store`] the way back, and the only place that
//! writes a descriptor's checksum. Bytes beyond 64 survive.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bitmap;
use crate::csum;
use crate::features::Feature;
use crate::geometry::Geometry;
use crate::numbers::{FsBlock, Group};
use crate::site::{Corrupt, Site};

/// A descriptor in its 64-byte form (`ext4_group_desc`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct GroupDesc {
    pub(crate) bg_block_bitmap_lo: U32,
    pub(crate) bg_inode_bitmap_lo: U32,
    pub(crate) bg_inode_table_lo: U32,
    pub(crate) bg_free_blocks_count_lo: U16,
    pub(crate) bg_free_inodes_count_lo: U16,
    pub(crate) bg_used_dirs_count_lo: U16,
    pub(crate) bg_flags: U16,
    pub(crate) bg_exclude_bitmap_lo: U32,
    pub(crate) bg_block_bitmap_csum_lo: U16,
    pub(crate) bg_inode_bitmap_csum_lo: U16,
    pub(crate) bg_itable_unused_lo: U16,
    pub(crate) bg_checksum: U16,
    pub(crate) bg_block_bitmap_hi: U32,
    pub(crate) bg_inode_bitmap_hi: U32,
    pub(crate) bg_inode_table_hi: U32,
    pub(crate) bg_free_blocks_count_hi: U16,
    pub(crate) bg_free_inodes_count_hi: U16,
    pub(crate) bg_used_dirs_count_hi: U16,
    pub(crate) bg_itable_unused_hi: U16,
    pub(crate) bg_exclude_bitmap_hi: U32,
    pub(crate) bg_block_bitmap_csum_hi: U16,
    pub(crate) bg_inode_bitmap_csum_hi: U16,
    pub(crate) bg_reserved: U32,
}

/// Bits of [`GroupDesc::flags`].
pub mod flags {
    /// Inode table and inode bitmap are not initialised: no inode of the group is in use.
    pub const INODE_UNINIT: u16 = 1;
    /// The block bitmap is not initialised: only the group's own metadata is in use.
    pub const BLOCK_UNINIT: u16 = 2;
    /// The inode table is zeroed beyond the inodes in use.
    pub const INODE_ZEROED: u16 = 4;
}

/// Where the checksum lies in the descriptor.
const CHECKSUM: core::ops::Range<usize> = 0x1E..0x20;

impl GroupDesc {
    /// Bytes of the long form.
    pub const LONG: usize = 64;

    /// A descriptor of zeros.
    #[must_use]
    pub fn zeroed() -> GroupDesc {
        GroupDesc::new_zeroed()
    }

    /// The descriptor in these bytes, of any length; what is missing is zero. Nothing is checked.
    #[must_use]
    pub fn load(raw: &[u8]) -> GroupDesc {
        let mut desc = GroupDesc::new_zeroed();
        for (to, from) in desc.as_mut_bytes().iter_mut().zip(raw) {
            *to = *from;
        }
        desc
    }

    /// The descriptor in these bytes, of the length that the geometry says, with its checksum verified and its
    /// places bounded by the device. Its counts may still be wrong ([`Self::has_possible_counts`]).
    ///
    /// # Errors
    /// Which check failed, in which group.
    pub fn verify(raw: &[u8], geometry: &Geometry, group: Group) -> Result<GroupDesc, Corrupt> {
        let desc = GroupDesc::load(raw);
        if computed_checksum(raw, geometry, group).is_some_and(|sum| sum != desc.checksum()) {
            return Err(Corrupt::at(Site::GroupDescChecksum).group(group));
        }
        let fits = |first: FsBlock, blocks: u32| {
            let len = u64::from(blocks);
            if geometry.features().has(Feature::FLEX_BG) {
                return geometry.contains(first, len);
            }
            let start = geometry.group_first_block(group).0;
            let end = start + u64::from(geometry.group_blocks(group));
            first.0 >= start && first.0.checked_add(len).is_some_and(|last| last <= end)
        };
        if !fits(desc.block_bitmap(), 1) {
            let corrupt = Corrupt::at(Site::GroupBlockBitmapPlace).group(group);
            return Err(corrupt.block(desc.block_bitmap()));
        }
        if !fits(desc.inode_bitmap(), 1) {
            let corrupt = Corrupt::at(Site::GroupInodeBitmapPlace).group(group);
            return Err(corrupt.block(desc.inode_bitmap()));
        }
        if !fits(desc.inode_table(), geometry.inode_table_blocks()) {
            let corrupt = Corrupt::at(Site::GroupInodeTablePlace).group(group);
            return Err(corrupt.block(desc.inode_table()));
        }
        Ok(desc)
    }

    /// Writes the descriptor over these bytes, of the length that the geometry says, and makes their checksum right.
    pub fn store(&self, raw: &mut [u8], geometry: &Geometry, group: Group) {
        for (to, from) in raw.iter_mut().zip(self.as_bytes()) {
            *to = *from;
        }
        if let Some(sum) = computed_checksum(raw, geometry, group)
            && let Some(place) = raw.get_mut(CHECKSUM)
        {
            place.copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// Whether no count exceeds what a group can hold.
    #[must_use]
    pub fn has_possible_counts(&self, geometry: &Geometry, group: Group) -> bool {
        let inodes = geometry.inodes_per_group();
        self.free_clusters() <= geometry.group_clusters(group)
            && self.free_inodes() <= inodes
            && self.used_dirs() <= inodes - self.free_inodes()
            && self.itable_unused() <= inodes
    }

    /// Whether the flag (of [`flags`]) is set.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags() & flag != 0
    }

    /// Checks the block bitmap, a whole block, against the checksum in this descriptor.
    ///
    /// # Errors
    /// When the file system has metadata checksums and this one differs.
    pub fn verify_block_bitmap(
        &self,
        bits: &[u8],
        geometry: &Geometry,
        group: Group,
    ) -> Result<(), Corrupt> {
        if bitmap_differs(
            self.block_bitmap_csum(),
            bitmap::block_checksum(bits, geometry),
            geometry,
        ) {
            let corrupt = Corrupt::at(Site::BlockBitmapChecksum).group(group);
            return Err(corrupt.block(self.block_bitmap()));
        }
        Ok(())
    }

    /// Checks the inode bitmap, a whole block, against the checksum in this descriptor.
    ///
    /// # Errors
    /// When the file system has metadata checksums and this one differs.
    pub fn verify_inode_bitmap(
        &self,
        bits: &[u8],
        geometry: &Geometry,
        group: Group,
    ) -> Result<(), Corrupt> {
        if bitmap_differs(
            self.inode_bitmap_csum(),
            bitmap::inode_checksum(bits, geometry),
            geometry,
        ) {
            let corrupt = Corrupt::at(Site::InodeBitmapChecksum).group(group);
            return Err(corrupt.block(self.inode_bitmap()));
        }
        Ok(())
    }

    /// Puts the checksum of the block bitmap, a whole block, into this descriptor.
    pub fn seal_block_bitmap(&mut self, bits: &[u8], geometry: &Geometry) {
        if let Some(sum) = bitmap::block_checksum(bits, geometry) {
            self.set_block_bitmap_csum(sum & bitmap_csum_mask(geometry));
        }
    }

    /// Puts the checksum of the inode bitmap, a whole block, into this descriptor.
    pub fn seal_inode_bitmap(&mut self, bits: &[u8], geometry: &Geometry) {
        if let Some(sum) = bitmap::inode_checksum(bits, geometry) {
            self.set_inode_bitmap_csum(sum & bitmap_csum_mask(geometry));
        }
    }

    /// The block bitmap.
    #[must_use]
    pub fn block_bitmap(&self) -> FsBlock {
        FsBlock(self.raw_block_bitmap())
    }

    /// Sets [`Self::block_bitmap`].
    pub fn set_block_bitmap(&mut self, block: FsBlock) {
        self.set_raw_block_bitmap(block.0);
    }

    /// The inode bitmap.
    #[must_use]
    pub fn inode_bitmap(&self) -> FsBlock {
        FsBlock(self.raw_inode_bitmap())
    }

    /// Sets [`Self::inode_bitmap`].
    pub fn set_inode_bitmap(&mut self, block: FsBlock) {
        self.set_raw_inode_bitmap(block.0);
    }

    /// The first block of the inode table.
    #[must_use]
    pub fn inode_table(&self) -> FsBlock {
        FsBlock(self.raw_inode_table())
    }

    /// Sets [`Self::inode_table`].
    pub fn set_inode_table(&mut self, block: FsBlock) {
        self.set_raw_inode_table(block.0);
    }

    accessors! {
        /// Block number of the block bitmap.
        raw_block_bitmap, set_raw_block_bitmap: u64 = bg_block_bitmap_lo, bg_block_bitmap_hi;
        /// Block number of the inode bitmap.
        raw_inode_bitmap, set_raw_inode_bitmap: u64 = bg_inode_bitmap_lo, bg_inode_bitmap_hi;
        /// Block number of the inode table.
        raw_inode_table, set_raw_inode_table: u64 = bg_inode_table_lo, bg_inode_table_hi;
        /// Free clusters (blocks without bigalloc).
        free_clusters, set_free_clusters: u32 = bg_free_blocks_count_lo, bg_free_blocks_count_hi;
        /// Free inodes.
        free_inodes, set_free_inodes: u32 = bg_free_inodes_count_lo, bg_free_inodes_count_hi;
        /// Directories.
        used_dirs, set_used_dirs: u32 = bg_used_dirs_count_lo, bg_used_dirs_count_hi;
        /// Inodes at the end of the table that were never in use.
        itable_unused, set_itable_unused: u32 = bg_itable_unused_lo, bg_itable_unused_hi;
        /// Snapshots' bitmap; not used.
        exclude_bitmap, set_exclude_bitmap: u64 = bg_exclude_bitmap_lo, bg_exclude_bitmap_hi;
        /// Checksum of the block bitmap; its low half only in 32-byte descriptors.
        block_bitmap_csum, set_block_bitmap_csum: u32 = bg_block_bitmap_csum_lo, bg_block_bitmap_csum_hi;
        /// Checksum of the inode bitmap; its low half only in 32-byte descriptors.
        inode_bitmap_csum, set_inode_bitmap_csum: u32 = bg_inode_bitmap_csum_lo, bg_inode_bitmap_csum_hi;
        /// Bits of [`flags`].
        flags, set_flags: u16 = bg_flags;
        /// The descriptor's own checksum as stored.
        checksum, set_checksum: u16 = bg_checksum;
    }
}

/// The bits of a bitmap's checksum that descriptors of this size can hold.
fn bitmap_csum_mask(geometry: &Geometry) -> u32 {
    if geometry.desc_size() >= GroupDesc::LONG {
        u32::MAX
    } else {
        0xFFFF
    }
}

fn bitmap_differs(stored: u32, computed: Option<u32>, geometry: &Geometry) -> bool {
    computed.is_some_and(|sum| (sum ^ stored) & bitmap_csum_mask(geometry) != 0)
}

/// The checksum that a descriptor's bytes ask for: half a CRC-32C with `metadata_csum`, a CRC-16 with
/// `uninit_bg` alone, else none. The stored checksum counts as zeros in the first and is left out of the second.
#[must_use]
pub fn computed_checksum(raw: &[u8], geometry: &Geometry, group: Group) -> Option<u16> {
    let number = group.0.to_le_bytes();
    let before = raw.get(..CHECKSUM.start)?;
    let after = raw.get(CHECKSUM.end..)?;
    if geometry.features().has(Feature::METADATA_CSUM) {
        let seed = csum::crc32c(geometry.csum_seed(), &number);
        let sum = csum::crc32c(csum::crc32c(csum::crc32c(seed, before), &[0, 0]), after);
        return Some((sum & 0xFFFF) as u16);
    }
    if geometry.features().has(Feature::UNINIT_BG) {
        let seed = csum::crc16(csum::crc16(!0, &geometry.uuid()), &number);
        return Some(csum::crc16(csum::crc16(seed, before), after));
    }
    None
}
