//! Sizes and offsets of every structure, asserted at compile time against the numbers of the kernel's
//! documentation (Documentation/filesystems/ext4). Nowhere else repeats them.

/// Asserts a structure's size and the offsets of its fields.
macro_rules! assert_layout {
    ($ty:ty, $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$ty>() == $size);
            $( assert!(core::mem::offset_of!($ty, $field) == $offset); )*
        };
    };
}

mod inode {
    use crate::extent::{Extent, ExtentHeader, ExtentIndex};
    use crate::inode::Inode;
    use crate::xattr::{BlockHeader, EntryHeader};

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
        BlockHeader, 32,
        h_magic @ 0x0, h_refcount @ 0x4, h_blocks @ 0x8, h_hash @ 0xc, h_checksum @ 0x10, h_reserved @ 0x14,
    );
    assert_layout!(
        EntryHeader, 16,
        e_name_len @ 0x0, e_name_index @ 0x1, e_value_offs @ 0x2, e_value_inum @ 0x4, e_value_size @ 0x8,
        e_hash @ 0xc,
    );
}
