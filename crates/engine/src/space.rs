//! Which blocks and inode numbers are free, which of them a request takes, and which inodes wait to be deleted: the
//! groups with their bitmaps and exact counts in memory, the block allocator with preallocation, the inode allocator,
//! and the orphans.

pub(crate) mod group;
pub(crate) mod ialloc;
pub(crate) mod mballoc;
pub(crate) mod orphan;
