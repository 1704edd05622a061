//! The superblock: 1024 bytes at byte 1024 of the device, and copies of it in some groups.
//!
//! A view over bytes returns whatever is in them; [`Superblock::verify`] checks magic, revision and checksum, and
//! [`crate::Geometry`] checks every number before anything is computed from it. Unknown bits and reserved bytes
//! survive. Times are seconds since 1970 in 40 bits.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

mod strings;

use crate::csum;
use crate::features::{Feature, Features};
use crate::numbers::{FsBlock, Group, Ino};
use crate::site::{Corrupt, Site};

/// The superblock as the kernel's documentation lays it out (`ext4_super_block`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct Superblock {
    pub(crate) s_inodes_count: U32,
    pub(crate) s_blocks_count_lo: U32,
    pub(crate) s_r_blocks_count_lo: U32,
    pub(crate) s_free_blocks_count_lo: U32,
    pub(crate) s_free_inodes_count: U32,
    pub(crate) s_first_data_block: U32,
    pub(crate) s_log_block_size: U32,
    pub(crate) s_log_cluster_size: U32,
    pub(crate) s_blocks_per_group: U32,
    pub(crate) s_clusters_per_group: U32,
    pub(crate) s_inodes_per_group: U32,
    pub(crate) s_mtime: U32,
    pub(crate) s_wtime: U32,
    pub(crate) s_mnt_count: U16,
    pub(crate) s_max_mnt_count: U16,
    pub(crate) s_magic: U16,
    pub(crate) s_state: U16,
    pub(crate) s_errors: U16,
    pub(crate) s_minor_rev_level: U16,
    pub(crate) s_lastcheck: U32,
    pub(crate) s_checkinterval: U32,
    pub(crate) s_creator_os: U32,
    pub(crate) s_rev_level: U32,
    pub(crate) s_def_resuid: U16,
    pub(crate) s_def_resgid: U16,
    pub(crate) s_first_ino: U32,
    pub(crate) s_inode_size: U16,
    pub(crate) s_block_group_nr: U16,
    pub(crate) s_feature_compat: U32,
    pub(crate) s_feature_incompat: U32,
    pub(crate) s_feature_ro_compat: U32,
    pub(crate) s_uuid: [u8; 16],
    pub(crate) s_volume_name: [u8; 16],
    pub(crate) s_last_mounted: [u8; 64],
    pub(crate) s_algorithm_usage_bitmap: U32,
    pub(crate) s_prealloc_blocks: u8,
    pub(crate) s_prealloc_dir_blocks: u8,
    pub(crate) s_reserved_gdt_blocks: U16,
    pub(crate) s_journal_uuid: [u8; 16],
    pub(crate) s_journal_inum: U32,
    pub(crate) s_journal_dev: U32,
    pub(crate) s_last_orphan: U32,
    pub(crate) s_hash_seed: [U32; 4],
    pub(crate) s_def_hash_version: u8,
    pub(crate) s_jnl_backup_type: u8,
    pub(crate) s_desc_size: U16,
    pub(crate) s_default_mount_opts: U32,
    pub(crate) s_first_meta_bg: U32,
    pub(crate) s_mkfs_time: U32,
    pub(crate) s_jnl_blocks: [U32; 17],
    pub(crate) s_blocks_count_hi: U32,
    pub(crate) s_r_blocks_count_hi: U32,
    pub(crate) s_free_blocks_count_hi: U32,
    pub(crate) s_min_extra_isize: U16,
    pub(crate) s_want_extra_isize: U16,
    pub(crate) s_flags: U32,
    pub(crate) s_raid_stride: U16,
    pub(crate) s_mmp_interval: U16,
    pub(crate) s_mmp_block: U64,
    pub(crate) s_raid_stripe_width: U32,
    pub(crate) s_log_groups_per_flex: u8,
    pub(crate) s_checksum_type: u8,
    pub(crate) s_encryption_level: u8,
    pub(crate) s_reserved_pad: u8,
    pub(crate) s_kbytes_written: U64,
    pub(crate) s_snapshot_inum: U32,
    pub(crate) s_snapshot_id: U32,
    pub(crate) s_snapshot_r_blocks_count: U64,
    pub(crate) s_snapshot_list: U32,
    pub(crate) s_error_count: U32,
    pub(crate) s_first_error_time: U32,
    pub(crate) s_first_error_ino: U32,
    pub(crate) s_first_error_block: U64,
    pub(crate) s_first_error_func: [u8; 32],
    pub(crate) s_first_error_line: U32,
    pub(crate) s_last_error_time: U32,
    pub(crate) s_last_error_ino: U32,
    pub(crate) s_last_error_line: U32,
    pub(crate) s_last_error_block: U64,
    pub(crate) s_last_error_func: [u8; 32],
    pub(crate) s_mount_opts: [u8; 64],
    pub(crate) s_usr_quota_inum: U32,
    pub(crate) s_grp_quota_inum: U32,
    pub(crate) s_overhead_blocks: U32,
    pub(crate) s_backup_bgs: [U32; 2],
    pub(crate) s_encrypt_algos: [u8; 4],
    pub(crate) s_encrypt_pw_salt: [u8; 16],
    pub(crate) s_lpf_ino: U32,
    pub(crate) s_prj_quota_inum: U32,
    pub(crate) s_checksum_seed: U32,
    pub(crate) s_wtime_hi: u8,
    pub(crate) s_mtime_hi: u8,
    pub(crate) s_mkfs_time_hi: u8,
    pub(crate) s_lastcheck_hi: u8,
    pub(crate) s_first_error_time_hi: u8,
    pub(crate) s_last_error_time_hi: u8,
    pub(crate) s_first_error_errcode: u8,
    pub(crate) s_last_error_errcode: u8,
    pub(crate) s_encoding: U16,
    pub(crate) s_encoding_flags: U16,
    pub(crate) s_orphan_file_inum: U32,
    pub(crate) s_reserved: [U32; 94],
    pub(crate) s_checksum: U32,
}

/// The value of `s_magic`.
pub const MAGIC: u16 = 0xEF53;
/// The only known value of `s_checksum_type`: CRC-32C.
pub const CHECKSUM_CRC32C: u8 = 1;

/// Bits of [`Superblock::state`].
pub mod state {
    /// Unmounted cleanly.
    pub const VALID: u16 = 1;
    /// The kernel or e2fsck found errors.
    pub const ERROR: u16 = 2;
    /// Orphans are being removed.
    pub const ORPHANS: u16 = 4;
    /// Fast commits are being replayed.
    pub const FC_REPLAY: u16 = 0x20;
}

/// Bits of [`Superblock::flags`].
pub mod flags {
    /// Directory hashes take bytes as signed.
    pub const SIGNED_HASH: u32 = 1;
    /// Directory hashes take bytes as unsigned.
    pub const UNSIGNED_HASH: u32 = 2;
    /// The file system belongs to a developer of file systems.
    pub const TEST_FILESYS: u32 = 4;
}

/// Bits of the default mount options.
pub mod mount_options {
    /// New files are their directory's group's.
    pub const BSD_GROUPS: u32 = 2;
    /// Free blocks are discarded on the device.
    pub const DISCARD: u32 = 0x400;
}

impl Superblock {
    /// Bytes of a superblock.
    pub const SIZE: usize = 1024;
    /// The byte of the device at which the first copy begins, whatever the block size.
    pub const OFFSET: u64 = 1024;
    /// Where the checksum lies: it covers all bytes before.
    const CHECKSUM_OFFSET: usize = 0x3FC;

    /// A superblock of zeros.
    #[must_use]
    pub fn zeroed() -> Superblock {
        Superblock::new_zeroed()
    }

    /// The view of 1024 bytes as a superblock; nothing is checked.
    #[must_use]
    pub fn view(bytes: &[u8; Superblock::SIZE]) -> &Superblock {
        zerocopy::transmute_ref!(bytes)
    }

    /// The superblock's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; Superblock::SIZE] {
        zerocopy::transmute_ref!(self)
    }

    /// Checks what can be checked without the device: magic, revision, checksum.
    ///
    /// # Errors
    /// Which check failed.
    pub fn verify(&self) -> Result<(), Corrupt> {
        if self.magic() != MAGIC {
            return Err(Corrupt::at(Site::SuperblockMagic));
        }
        if self.revision() > 1 {
            return Err(Corrupt::at(Site::SuperblockRevision));
        }
        if self.features().has(Feature::METADATA_CSUM) {
            if self.checksum_type() != CHECKSUM_CRC32C {
                return Err(Corrupt::at(Site::SuperblockChecksumType));
            }
            if self.checksum() != self.computed_checksum() {
                return Err(Corrupt::at(Site::SuperblockChecksum));
            }
        }
        Ok(())
    }

    /// The checksum that the other bytes ask for.
    #[must_use]
    pub fn computed_checksum(&self) -> u32 {
        csum::crc32c(csum::INITIAL, &self.bytes()[..Self::CHECKSUM_OFFSET])
    }

    /// Makes the checksum right, where the features ask for one. The last thing done before writing.
    pub fn seal(&mut self) {
        if self.features().has(Feature::METADATA_CSUM) {
            self.set_checksum(self.computed_checksum());
        }
    }

    /// The three feature words; in revision 0 they should be empty, but count where they are not, as in Linux.
    #[must_use]
    pub fn features(&self) -> Features {
        Features {
            compat: self.s_feature_compat.get(),
            incompat: self.s_feature_incompat.get(),
            ro_compat: self.s_feature_ro_compat.get(),
        }
    }

    /// Sets the three feature words.
    pub fn set_features(&mut self, features: Features) {
        self.s_feature_compat.set(features.compat);
        self.s_feature_incompat.set(features.incompat);
        self.s_feature_ro_compat.set(features.ro_compat);
    }

    /// The seed of all metadata checksums: as stored with `metadata_csum_seed`, else that of the UUID.
    #[must_use]
    pub fn csum_seed(&self) -> u32 {
        if self.features().has(Feature::METADATA_CSUM_SEED) {
            self.checksum_seed()
        } else {
            csum::crc32c(csum::INITIAL, &self.s_uuid)
        }
    }

    /// Whether the directory hash takes bytes as unsigned.
    #[must_use]
    pub fn has_unsigned_hash(&self) -> bool {
        self.flags() & flags::UNSIGNED_HASH != 0
    }
}

impl Superblock {
    accessors! {
        /// Inodes of all groups.
        inodes_count, set_inodes_count: u32 = s_inodes_count;
        /// Blocks, counted from the start of the device; the high word counts with `64bit` only.
        raw_blocks_count, set_blocks_count: u64 = s_blocks_count_lo, s_blocks_count_hi;
        /// Blocks that only the reserve's owner may take.
        raw_reserved_blocks_count, set_reserved_blocks_count: u64 = s_r_blocks_count_lo, s_r_blocks_count_hi;
        /// Free blocks as of the last clean unmount (a block count also with bigalloc).
        raw_free_blocks_count, set_free_blocks_count: u64 = s_free_blocks_count_lo, s_free_blocks_count_hi;
        /// Free inodes as of the last clean unmount.
        free_inodes_count, set_free_inodes_count: u32 = s_free_inodes_count;
        /// The block at which group 0 begins: 1 with blocks of 1 KiB (without bigalloc), else 0.
        first_data_block, set_first_data_block: u32 = s_first_data_block;
        /// A block has `1024 << n` bytes.
        log_block_size, set_log_block_size: u32 = s_log_block_size;
        /// A cluster has `1024 << n` bytes.
        log_cluster_size, set_log_cluster_size: u32 = s_log_cluster_size;
        /// Blocks a group.
        blocks_per_group, set_blocks_per_group: u32 = s_blocks_per_group;
        /// Clusters a group.
        clusters_per_group, set_clusters_per_group: u32 = s_clusters_per_group;
        /// Inodes a group.
        inodes_per_group, set_inodes_per_group: u32 = s_inodes_per_group;
        /// Mounts since the last check.
        mount_count, set_mount_count: u16 = s_mnt_count;
        /// Mounts after which a check is due; 0xFFFF or 0 for never.
        max_mount_count, set_max_mount_count: u16 = s_max_mnt_count;
        /// [`MAGIC`].
        magic, set_magic: u16 = s_magic;
        /// Bits of [`state`].
        state, set_state: u16 = s_state;
        /// What to do on errors: 1 continue, 2 remount read-only, 3 panic.
        errors, set_errors: u16 = s_errors;
        /// Minor revision; not used.
        minor_revision, set_minor_revision: u16 = s_minor_rev_level;
        /// Seconds after which a check is due; 0 for never.
        check_interval, set_check_interval: u32 = s_checkinterval;
        /// The creator's system: 0 Linux, 1 Hurd, 2 Masix, 3 FreeBSD, 4 Lites.
        creator_os, set_creator_os: u32 = s_creator_os;
        /// 0 is ext2's first format with fixed inodes, 1 has features.
        revision, set_revision: u32 = s_rev_level;
        /// The user who may take reserved blocks.
        reserve_uid, set_reserve_uid: u16 = s_def_resuid;
        /// The group that may take reserved blocks.
        reserve_gid, set_reserve_gid: u16 = s_def_resgid;
        /// Bytes an inode (revision 1).
        inode_size, set_inode_size: u16 = s_inode_size;
        /// Which group this copy lies in; groups above 65535 are cut off.
        block_group_number, set_block_group_number: u16 = s_block_group_nr;
        /// Compression methods; not used.
        algorithm_usage_bitmap, set_algorithm_usage_bitmap: u32 = s_algorithm_usage_bitmap;
        /// Descriptor blocks reserved for growth, after the descriptors of each group that holds them.
        reserved_gdt_blocks, set_reserved_gdt_blocks: u16 = s_reserved_gdt_blocks;
        /// Device number of an external journal.
        journal_device, set_journal_device: u32 = s_journal_dev;
        /// Bytes a group descriptor (64bit only).
        desc_size, set_desc_size: u16 = s_desc_size;
        /// Mount options by default, as bits.
        default_mount_options, set_default_mount_options: u32 = s_default_mount_opts;
        /// The first meta group whose descriptors lie in its own groups.
        first_meta_bg, set_first_meta_bg: u32 = s_first_meta_bg;
        /// Bytes beyond 128 that every inode has.
        min_extra_isize, set_min_extra_isize: u16 = s_min_extra_isize;
        /// Bytes beyond 128 that new inodes get.
        want_extra_isize, set_want_extra_isize: u16 = s_want_extra_isize;
        /// Bits of [`flags`].
        flags, set_flags: u32 = s_flags;
        /// Blocks on one disk of a RAID before the next.
        raid_stride, set_raid_stride: u16 = s_raid_stride;
        /// Seconds between updates of the multi-mount block.
        mmp_interval, set_mmp_interval: u16 = s_mmp_interval;
        /// Blocks on all data disks of a RAID.
        raid_stripe_width, set_raid_stripe_width: u32 = s_raid_stripe_width;
        /// KiB written in the file system's life.
        kbytes_written, set_kbytes_written: u64 = s_kbytes_written;
        /// Snapshots' inode; not used.
        snapshot_inum, set_snapshot_inum: u32 = s_snapshot_inum;
        /// Snapshots' number; not used.
        snapshot_id, set_snapshot_id: u32 = s_snapshot_id;
        /// Snapshots' reserve; not used.
        snapshot_reserved_blocks, set_snapshot_reserved_blocks: u64 = s_snapshot_r_blocks_count;
        /// Snapshots' list; not used.
        snapshot_list, set_snapshot_list: u32 = s_snapshot_list;
        /// Errors found so far.
        error_count, set_error_count: u32 = s_error_count;
        /// The inode of the first error.
        first_error_ino, set_first_error_ino: u32 = s_first_error_ino;
        /// The block of the first error.
        first_error_block, set_first_error_block: u64 = s_first_error_block;
        /// The line of the kernel's source that found the first error.
        first_error_line, set_first_error_line: u32 = s_first_error_line;
        /// The inode of the last error.
        last_error_ino, set_last_error_ino: u32 = s_last_error_ino;
        /// The block of the last error.
        last_error_block, set_last_error_block: u64 = s_last_error_block;
        /// The line of the kernel's source that found the last error.
        last_error_line, set_last_error_line: u32 = s_last_error_line;
        /// Blocks (clusters with bigalloc) of metadata fixed at making; 0 when not computed.
        overhead_clusters, set_overhead_clusters: u32 = s_overhead_blocks;
        /// The seed of metadata checksums, with `metadata_csum_seed`.
        checksum_seed, set_checksum_seed: u32 = s_checksum_seed;
        /// Encoding of names in directories that ignore case: 1 is UTF-8 12.1.
        encoding, set_encoding: u16 = s_encoding;
        /// 1: names that are not valid in the encoding are refused.
        encoding_flags, set_encoding_flags: u16 = s_encoding_flags;
        /// The checksum as stored.
        checksum, set_checksum: u32 = s_checksum;
    }

    byte_accessors! {
        /// Blocks to preallocate for files; not used.
        prealloc_blocks, set_prealloc_blocks = s_prealloc_blocks;
        /// Blocks to preallocate for directories; not used.
        prealloc_dir_blocks, set_prealloc_dir_blocks = s_prealloc_dir_blocks;
        /// The hash of new directories: 0 legacy, 1 half MD4, 2 TEA, 6 SipHash.
        hash_version, set_hash_version = s_def_hash_version;
        /// 1: [`Superblock::journal_backup`] holds the journal inode's map.
        journal_backup_type, set_journal_backup_type = s_jnl_backup_type;
        /// A flexible group has `1 << n` groups.
        log_groups_per_flex, set_log_groups_per_flex = s_log_groups_per_flex;
        /// [`CHECKSUM_CRC32C`] with `metadata_csum`.
        checksum_type, set_checksum_type = s_checksum_type;
        /// Version of encryption; 0.
        encryption_level, set_encryption_level = s_encryption_level;
        /// Kind of the first error, by the kernel's own list.
        first_error_code, set_first_error_code = s_first_error_errcode;
        /// Kind of the last error, by the kernel's own list.
        last_error_code, set_last_error_code = s_last_error_errcode;
    }
}

/// An inode number of 0 means none.
macro_rules! ino_accessors {
    ($( $(#[$m:meta])* $get:ident, $set:ident = $field:ident; )*) => {
        $(
            $(#[$m])*
            #[must_use]
            pub fn $get(&self) -> Option<Ino> {
                Some(Ino(self.$field.get())).filter(|ino| ino.0 != 0)
            }
            #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
            pub fn $set(&mut self, ino: Option<Ino>) {
                self.$field.set(ino.map_or(0, |ino| ino.0));
            }
        )*
    };
}

/// Seconds since 1970 in 40 bits; the setter drops higher bits.
macro_rules! time_accessors {
    ($( $(#[$m:meta])* $get:ident, $set:ident = $low:ident, $high:ident; )*) => {
        $(
            $(#[$m])*
            #[must_use]
            pub fn $get(&self) -> u64 {
                u64::from(self.$low.get()) | u64::from(self.$high) << 32
            }
            #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
            pub fn $set(&mut self, seconds: u64) {
                let [a, b, c, d, high, ..] = seconds.to_le_bytes();
                self.$low.set(u32::from_le_bytes([a, b, c, d]));
                self.$high = high;
            }
        )*
    };
}

impl Superblock {
    ino_accessors! {
        /// The journal's inode.
        journal_ino, set_journal_ino = s_journal_inum;
        /// The head of the list of orphans.
        last_orphan, set_last_orphan = s_last_orphan;
        /// The user quota file.
        user_quota_ino, set_user_quota_ino = s_usr_quota_inum;
        /// The group quota file.
        group_quota_ino, set_group_quota_ino = s_grp_quota_inum;
        /// The project quota file.
        project_quota_ino, set_project_quota_ino = s_prj_quota_inum;
        /// lost+found, if a program recorded it (e2fsprogs does not).
        lost_found_ino, set_lost_found_ino = s_lpf_ino;
        /// The orphan file.
        orphan_file_ino, set_orphan_file_ino = s_orphan_file_inum;
    }

    time_accessors! {
        /// Last mount.
        mount_time, set_mount_time = s_mtime, s_mtime_hi;
        /// Last write of the superblock.
        write_time, set_write_time = s_wtime, s_wtime_hi;
        /// When it was made.
        mkfs_time, set_mkfs_time = s_mkfs_time, s_mkfs_time_hi;
        /// Last check.
        last_check, set_last_check = s_lastcheck, s_lastcheck_hi;
        /// First error.
        first_error_time, set_first_error_time = s_first_error_time, s_first_error_time_hi;
        /// Last error.
        last_error_time, set_last_error_time = s_last_error_time, s_last_error_time_hi;
    }

    fn wide(&self, raw: u64) -> u64 {
        if self.features().has(Feature::BIT64) {
            raw
        } else {
            raw & 0xFFFF_FFFF
        }
    }

    /// Blocks, counted from the start of the device.
    #[must_use]
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.raw_blocks_count())
    }

    /// Blocks that only the reserve's owner may take.
    #[must_use]
    pub fn reserved_blocks_count(&self) -> u64 {
        self.wide(self.raw_reserved_blocks_count())
    }

    /// Free blocks as of the last clean unmount.
    #[must_use]
    pub fn free_blocks_count(&self) -> u64 {
        self.wide(self.raw_free_blocks_count())
    }

    /// The first inode that is not reserved; 11 in revision 0.
    #[must_use]
    pub fn first_ino(&self) -> Ino {
        if self.revision() == 0 {
            Ino::FIRST_UNRESERVED
        } else {
            Ino(self.s_first_ino.get())
        }
    }

    /// Sets [`Self::first_ino`].
    pub fn set_first_ino(&mut self, ino: Ino) {
        self.s_first_ino.set(ino.0);
    }

    /// The multi-mount protection block.
    #[must_use]
    pub fn mmp_block(&self) -> FsBlock {
        FsBlock(self.s_mmp_block.get())
    }

    /// Sets [`Self::mmp_block`].
    pub fn set_mmp_block(&mut self, block: FsBlock) {
        self.s_mmp_block.set(block.0);
    }

    /// The groups with backups, with `sparse_super2`; 0 for none.
    #[must_use]
    pub fn backup_groups(&self) -> [Group; 2] {
        self.s_backup_bgs.map(|group| Group(group.get()))
    }

    /// Sets [`Self::backup_groups`].
    pub fn set_backup_groups(&mut self, groups: [Group; 2]) {
        self.s_backup_bgs = groups.map(|group| U32::new(group.0));
    }

    /// The seed of directory hashes; all zeros means the hash's own default.
    #[must_use]
    pub fn hash_seed(&self) -> [u32; 4] {
        self.s_hash_seed.map(U32::get)
    }

    /// Sets [`Self::hash_seed`].
    pub fn set_hash_seed(&mut self, seed: [u32; 4]) {
        self.s_hash_seed = seed.map(U32::new);
    }

    /// Copy of the journal inode's 15 block words, then the high and the low word of its size.
    #[must_use]
    pub fn journal_backup(&self) -> [u32; 17] {
        self.s_jnl_blocks.map(U32::get)
    }

    /// Sets [`Self::journal_backup`].
    pub fn set_journal_backup(&mut self, words: [u32; 17]) {
        self.s_jnl_blocks = words.map(U32::new);
    }
}
