//! Sizes and offsets of every structure, asserted at compile time against the numbers of the kernel's documentation
//! (Documentation/filesystems/ext4). They are written nowhere else.

/// Asserts a structure's size and the offsets of its fields.
macro_rules! assert_layout {
    ($ty:ty, $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$ty>() == $size);
            $( assert!(core::mem::offset_of!($ty, $field) == $offset); )*
        };
    };
}

mod superblock {
    use crate::group_desc::GroupDesc;
    use crate::superblock::Superblock;

    assert_layout!(
        Superblock, 1024,
        s_inodes_count @ 0x0, s_blocks_count_lo @ 0x4, s_r_blocks_count_lo @ 0x8,
        s_free_blocks_count_lo @ 0xC, s_free_inodes_count @ 0x10, s_first_data_block @ 0x14,
        s_log_block_size @ 0x18, s_log_cluster_size @ 0x1C, s_blocks_per_group @ 0x20,
        s_clusters_per_group @ 0x24, s_inodes_per_group @ 0x28, s_mtime @ 0x2C,
        s_wtime @ 0x30, s_mnt_count @ 0x34, s_max_mnt_count @ 0x36,
        s_magic @ 0x38, s_state @ 0x3A, s_errors @ 0x3C,
        s_minor_rev_level @ 0x3E, s_lastcheck @ 0x40, s_checkinterval @ 0x44,
        s_creator_os @ 0x48, s_rev_level @ 0x4C, s_def_resuid @ 0x50,
        s_def_resgid @ 0x52, s_first_ino @ 0x54, s_inode_size @ 0x58,
        s_block_group_nr @ 0x5A, s_feature_compat @ 0x5C, s_feature_incompat @ 0x60,
        s_feature_ro_compat @ 0x64, s_uuid @ 0x68, s_volume_name @ 0x78,
        s_last_mounted @ 0x88, s_algorithm_usage_bitmap @ 0xC8, s_prealloc_blocks @ 0xCC,
        s_prealloc_dir_blocks @ 0xCD, s_reserved_gdt_blocks @ 0xCE, s_journal_uuid @ 0xD0,
        s_journal_inum @ 0xE0, s_journal_dev @ 0xE4, s_last_orphan @ 0xE8,
        s_hash_seed @ 0xEC, s_def_hash_version @ 0xFC, s_jnl_backup_type @ 0xFD,
        s_desc_size @ 0xFE, s_default_mount_opts @ 0x100, s_first_meta_bg @ 0x104,
        s_mkfs_time @ 0x108, s_jnl_blocks @ 0x10C, s_blocks_count_hi @ 0x150,
        s_r_blocks_count_hi @ 0x154, s_free_blocks_count_hi @ 0x158, s_min_extra_isize @ 0x15C,
        s_want_extra_isize @ 0x15E, s_flags @ 0x160, s_raid_stride @ 0x164,
        s_mmp_interval @ 0x166, s_mmp_block @ 0x168, s_raid_stripe_width @ 0x170,
        s_log_groups_per_flex @ 0x174, s_checksum_type @ 0x175, s_encryption_level @ 0x176,
        s_kbytes_written @ 0x178, s_snapshot_inum @ 0x180, s_snapshot_id @ 0x184,
        s_snapshot_r_blocks_count @ 0x188, s_snapshot_list @ 0x190, s_error_count @ 0x194,
        s_first_error_time @ 0x198, s_first_error_ino @ 0x19C, s_first_error_block @ 0x1A0,
        s_first_error_func @ 0x1A8, s_first_error_line @ 0x1C8, s_last_error_time @ 0x1CC,
        s_last_error_ino @ 0x1D0, s_last_error_line @ 0x1D4, s_last_error_block @ 0x1D8,
        s_last_error_func @ 0x1E0, s_mount_opts @ 0x200, s_usr_quota_inum @ 0x240,
        s_grp_quota_inum @ 0x244, s_overhead_blocks @ 0x248, s_backup_bgs @ 0x24C,
        s_encrypt_algos @ 0x254, s_encrypt_pw_salt @ 0x258, s_lpf_ino @ 0x268,
        s_prj_quota_inum @ 0x26C, s_checksum_seed @ 0x270, s_wtime_hi @ 0x274,
        s_mtime_hi @ 0x275, s_mkfs_time_hi @ 0x276, s_lastcheck_hi @ 0x277,
        s_first_error_time_hi @ 0x278, s_last_error_time_hi @ 0x279, s_first_error_errcode @ 0x27A,
        s_encoding @ 0x27C, s_encoding_flags @ 0x27E, s_orphan_file_inum @ 0x280,
        s_reserved @ 0x284, s_checksum @ 0x3FC,
    );

    assert_layout!(
        GroupDesc, 64,
        bg_block_bitmap_lo @ 0x0, bg_inode_bitmap_lo @ 0x4, bg_inode_table_lo @ 0x8,
        bg_free_blocks_count_lo @ 0xC, bg_free_inodes_count_lo @ 0xE, bg_used_dirs_count_lo @ 0x10,
        bg_flags @ 0x12, bg_exclude_bitmap_lo @ 0x14, bg_block_bitmap_csum_lo @ 0x18,
        bg_inode_bitmap_csum_lo @ 0x1A, bg_itable_unused_lo @ 0x1C, bg_checksum @ 0x1E,
        bg_block_bitmap_hi @ 0x20, bg_inode_bitmap_hi @ 0x24, bg_inode_table_hi @ 0x28,
        bg_free_blocks_count_hi @ 0x2C, bg_free_inodes_count_hi @ 0x2E, bg_used_dirs_count_hi @ 0x30,
        bg_itable_unused_hi @ 0x32, bg_exclude_bitmap_hi @ 0x34, bg_block_bitmap_csum_hi @ 0x38,
        bg_inode_bitmap_csum_hi @ 0x3A, bg_reserved @ 0x3C,
    );
}

mod inode {
    use crate::extent::{Extent, ExtentHeader, ExtentIndex};
    use crate::inode::Inode;
    use crate::xattr::{EntryHeader, XattrBlockHeader};

    assert_layout!(
        Inode, 160,
        i_mode @ 0x0, i_uid @ 0x2, i_size_lo @ 0x4, i_atime @ 0x8, i_ctime @ 0xc, i_mtime @ 0x10,
        i_dtime @ 0x14, i_gid @ 0x18, i_links_count @ 0x1a, i_blocks_lo @ 0x1c, i_flags @ 0x20,
        i_version @ 0x24, i_block @ 0x28, i_generation @ 0x64, i_file_acl_lo @ 0x68, i_size_high @ 0x6c,
        i_obso_faddr @ 0x70, i_blocks_high @ 0x74, i_file_acl_high @ 0x76, i_uid_high @ 0x78,
        i_gid_high @ 0x7a, i_checksum_lo @ 0x7c, i_reserved @ 0x7e, i_extra_isize @ 0x80,
        i_checksum_hi @ 0x82, i_ctime_extra @ 0x84, i_mtime_extra @ 0x88, i_atime_extra @ 0x8c,
        i_crtime @ 0x90, i_crtime_extra @ 0x94, i_version_hi @ 0x98, i_projid @ 0x9c,
    );
    assert_layout!(
        ExtentHeader, 12,
        eh_magic @ 0x0, eh_entries @ 0x2, eh_max @ 0x4, eh_depth @ 0x6, eh_generation @ 0x8,
    );
    assert_layout!(Extent, 12, ee_block @ 0x0, ee_len @ 0x4, ee_start_hi @ 0x6, ee_start_lo @ 0x8);
    assert_layout!(ExtentIndex, 12, ei_block @ 0x0, ei_leaf_lo @ 0x4, ei_leaf_hi @ 0x8, ei_unused @ 0xa);
    assert_layout!(
        XattrBlockHeader, 32,
        h_magic @ 0x0, h_refcount @ 0x4, h_blocks @ 0x8, h_hash @ 0xc, h_checksum @ 0x10, h_reserved @ 0x14,
    );
    assert_layout!(
        EntryHeader, 16,
        e_name_len @ 0x0, e_name_index @ 0x1, e_value_offs @ 0x2, e_value_inum @ 0x4, e_value_size @ 0x8,
        e_hash @ 0xc,
    );
}
assert_layout!(crate::dirent::Header, 8, inode @ 0, rec_len @ 4, name_len @ 6, file_type @ 7);
assert_layout!(crate::dirent::StoredHash, 8, hash @ 0, minor_hash @ 4);
assert_layout!(crate::dirent::DirentTail, 12,
    det_reserved_zero1 @ 0, det_rec_len @ 4, det_reserved_zero2 @ 6, det_reserved_ft @ 7, det_checksum @ 8);
assert_layout!(crate::htree::RootInfo, 8,
    reserved_zero @ 0, hash_version @ 4, info_length @ 5, indirect_levels @ 6, unused_flags @ 7);
assert_layout!(crate::htree::IndexEntry, 8, hash @ 0, block @ 4);
assert_layout!(crate::htree::CountLimit, 4, limit @ 0, count @ 2);
assert_layout!(crate::htree::IndexTail, 8, dt_reserved @ 0, dt_checksum @ 4);
assert_layout!(
    crate::jbd2::BlockHeader, 12,
    h_magic @ 0x0, h_blocktype @ 0x4, h_sequence @ 0x8,
);
assert_layout!(
    crate::jbd2::JournalSuperblock, 1024,
    s_header @ 0x0, s_blocksize @ 0xC, s_maxlen @ 0x10, s_first @ 0x14, s_sequence @ 0x18, s_start @ 0x1C,
    s_errno @ 0x20, s_feature_compat @ 0x24, s_feature_incompat @ 0x28, s_feature_ro_compat @ 0x2C,
    s_uuid @ 0x30, s_nr_users @ 0x40, s_dynsuper @ 0x44, s_max_transaction @ 0x48, s_max_trans_data @ 0x4C,
    s_checksum_type @ 0x50, s_padding2 @ 0x51, s_num_fc_blks @ 0x54, s_head @ 0x58, s_padding @ 0x5C,
    s_checksum @ 0xFC, s_users @ 0x100,
);
assert_layout!(
    crate::jbd2::CommitBlock, 60,
    h_header @ 0x0, h_chksum_type @ 0xC, h_chksum_size @ 0xD, h_padding @ 0xE, h_chksum @ 0x10,
    h_commit_sec @ 0x30, h_commit_nsec @ 0x38,
);
assert_layout!(crate::jbd2::RevokeHeader, 16, r_header @ 0x0, r_count @ 0xC);
assert_layout!(crate::fast_commit::RecordHeader, 4, fc_tag @ 0x0, fc_len @ 0x2);
assert_layout!(crate::fast_commit::Head, 8, fc_features @ 0x0, fc_tid @ 0x4);
assert_layout!(crate::fast_commit::FcTail, 8, fc_tid @ 0x0, fc_crc @ 0x4);
assert_layout!(crate::fast_commit::AddRange, 16, fc_ino @ 0x0, fc_ex @ 0x4);
assert_layout!(crate::fast_commit::DelRange, 12, fc_ino @ 0x0, fc_lblk @ 0x4, fc_len @ 0x8);
assert_layout!(crate::fast_commit::Dentry, 8, fc_parent_ino @ 0x0, fc_ino @ 0x4);
assert_layout!(crate::orphan_file::OrphanTail, 8, ob_magic @ 0x0, ob_checksum @ 0x4);
assert_layout!(crate::quota::QuotaHeader, 32,
    dqh_magic @ 0x0, dqh_version @ 0x4, dqi_bgrace @ 0x8, dqi_igrace @ 0xC,
    dqi_flags @ 0x10, dqi_blocks @ 0x14, dqi_free_blk @ 0x18, dqi_free_entry @ 0x1C);
assert_layout!(crate::quota::QuotaDataHeader, 16,
    dqdh_next_free @ 0x0, dqdh_prev_free @ 0x4, dqdh_entries @ 0x8, dqdh_pad1 @ 0xA, dqdh_pad2 @ 0xC);
assert_layout!(crate::quota::QuotaRecord, 72,
    dqb_id @ 0x0, dqb_pad @ 0x4, dqb_ihardlimit @ 0x8, dqb_isoftlimit @ 0x10,
    dqb_curinodes @ 0x18, dqb_bhardlimit @ 0x20, dqb_bsoftlimit @ 0x28, dqb_curspace @ 0x30,
    dqb_btime @ 0x38, dqb_itime @ 0x40);
assert_layout!(
    crate::mmp::Mmp, 1024,
    mmp_magic @ 0x0, mmp_seq @ 0x4, mmp_time @ 0x8, mmp_nodename @ 0x10, mmp_bdevname @ 0x50,
    mmp_check_interval @ 0x70, mmp_pad1 @ 0x72, mmp_pad2 @ 0x74, mmp_checksum @ 0x3FC,
);
