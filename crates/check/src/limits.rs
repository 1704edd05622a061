//! The bounds that hold whatever an image says.

/// Problems that are kept with their particulars; those beyond are only counted.
pub const PROBLEMS: usize = 100_000;
/// Bytes of an inode table that are read at once.
pub const TABLE_PIECE: usize = 1 << 20;
/// How many times the file system's blocks all files together may claim before the rest of their maps is left unread.
/// One is enough for a sound image; sharing (a damaged one) needs more.
pub const CLAIM_FACTOR: u64 = 4;
/// Runs of blocks claimed twice whose owners are looked for.
pub const SHARED_RUNS: usize = 1 << 20;
/// Illegal pointers of one inode that are listed one by one.
pub const POINTERS: usize = 8;
/// The deepest path that is put together for a message.
pub const PATH_DEPTH: usize = 64;
/// Records of a quota file that are read.
pub const QUOTA_RECORDS: usize = 1 << 20;
/// Keys of names of one directory that are kept at once, to find names that stand in two of its blocks.
pub const NAME_KEYS: usize = 1 << 20;
/// Problems whose inodes' paths are looked for.
pub const PATHS: usize = 10_000;
/// Bytes at the start of a device in which a copy of the superblock is looked for.
pub const SCANNED: u64 = 1 << 30;
/// Copies of the superblock and of the descriptors that are compared with the first.
pub const BACKUPS: usize = 16;
/// Blocks that the journal or the orphan file may have to be mended; e2fsck makes no larger journal.
pub const OWN_FILE_BLOCKS: u64 = 10_240_000;
/// Blocks of empty inode tables that a repair makes.
pub const NEW_TABLE_BLOCKS: u64 = 1 << 16;
/// How often a repair checks what it has mended so far.
pub const ROUNDS: u32 = 8;
