//! Every bound on what a journal may make us do, in one place.

/// Blocks of a journal: above what mke2fs makes (10,240,000).
pub const JOURNAL_BLOCKS_MAX: u32 = 1 << 24;

/// Bytes of the log from the oldest transaction to its end: with checksums, all of them are read.
pub const LOG_BYTES_MAX: u64 = 8 << 30;

/// Runs of contiguous blocks that a journal may be cut into.
pub const RUNS_MAX: usize = 1 << 20;

/// Nodes of the journal inode's extent tree, and blocks of pointers.
pub const NODES_MAX: usize = 1 << 15;

/// Copies of different blocks, and revoked blocks, that are remembered: 16 bytes each.
pub const RECORDS_MAX: usize = 1 << 22;

/// Bytes of fast commits: ten times what mke2fs makes room for.
pub const FAST_BYTES_MAX: usize = 256 << 20;
