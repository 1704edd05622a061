//! Every bound on what an image can make the engine do or keep, in one place.

/// Bytes of metadata blocks that are kept, unless the caller says otherwise.
pub const CACHE_BYTES: usize = 32 << 20;
/// Groups whose inode tables' places are kept in a table of 8 bytes each; of more groups none is kept.
pub const KEPT_GROUPS: u32 = 1 << 20;
/// Groups of a file system that is written to, each of which takes 128 bytes and, once it is used, its bitmaps: 128 TiB
/// in blocks of 4 KiB.
pub const WRITTEN_GROUPS: u32 = 1 << 20;
/// Runs of blocks that hold the file system's own tables; with more of them it is not written to.
pub const ZONES: usize = 1 << 20;
/// Bytes of a symbolic link's target, as in Linux (`PATH_MAX`).
pub const SYMLINK_BYTES: u64 = 4096;
/// Bytes of all values of one inode's extended attributes together: one as long as the format allows, and more of
/// the ordinary kind than Linux lists.
pub const XATTR_BYTES: u64 = 20 << 20;
/// Groups whose descriptors are summed up for free counts and overhead; of more, the superblock is believed.
pub const SUMMED_GROUPS: u32 = 1 << 20;
/// Blocks of a directory: what an index entry can number.
pub const DIRECTORY_BLOCKS: u64 = 1 << 28;
/// Symbolic links followed on the way to one inode, as in Linux.
pub const SYMLINKS: u32 = 40;
/// Bytes of a path, as in Linux (`PATH_MAX` with its NUL).
pub const PATH_BYTES: usize = 4095;
/// Metadata blocks that one step changes.
pub const STEP_BLOCKS: u32 = 64;
/// Metadata blocks that one step gives up.
pub const STEP_REVOKES: u32 = 256;
/// Bytes of groups' blocks kept in memory, unless the caller says otherwise: a group of 32,768 blocks takes 12 KiB, and
/// one whose changes are not durable stays.
pub const GROUP_BYTES: usize = 64 << 20;
/// Bytes of metadata blocks that changed and are kept as such, unless the caller says otherwise.
pub const LIVE_BYTES: usize = 32 << 20;
/// Bytes of blocks of attributes kept to be found by their contents.
pub const SHARED_XATTR_BYTES: usize = 4 << 20;
/// Bytes of an attribute's value, as in Linux (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES: usize = 1 << 16;
/// Inodes kept in memory, unless the caller says otherwise.
pub const LIVE_INODES: usize = 1 << 15;
/// Inodes whose times of access wait in memory for a change, on one thread's list; when the list has this number, all
/// are written.
pub const LAZY_INODES: usize = 1 << 8;
/// Orphans found at open that can't be finished, each of which stays in memory; with more of them e2fsck comes first.
pub const ORPHANS_LEFT: usize = 1 << 10;
/// Inodes on the list of orphans that an image is opened with, all of which are in memory then, some 1 KiB each; with
/// more of them e2fsck comes first.
pub const ORPHANS_LISTED: usize = 1 << 18;
/// Directories on the way from one to the root, when one of them is moved.
pub const ANCESTORS: u32 = 1 << 20;
/// Inodes of fast commits whose maps can't be read: each may have been read for long before that was found.
pub const UNREAD_MAPS: u32 = 64;
/// Blocks that are looked through for the names of fast commits in directories without an index: some seconds.
pub const NAMES_BLOCKS: u64 = 1 << 27;
/// Bytes of metadata that replaying fast commits may change.
pub const REPLAY_BYTES: usize = 256 << 20;
