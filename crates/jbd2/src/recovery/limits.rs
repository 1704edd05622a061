//! Every bound on the work and the memory that a journal can cost its reader.

/// The most blocks of a journal; mke2fs makes at most 10,240,000.
pub const JOURNAL_BLOCKS_MAX: u32 = 1 << 24;

/// The most bytes of the log from the oldest transaction to its end. In a log with checksums all of them are read.
pub const LOG_BYTES_MAX: u64 = 8 << 30;

/// The most runs of contiguous blocks of a journal.
pub const RUNS_MAX: usize = 1 << 20;

/// The most blocks of the journal inode's map: nodes of an extent tree, or blocks of pointers.
pub const NODES_MAX: usize = 1 << 15;

/// The most blocks with copies, and the most revoked blocks, that a scan remembers, at 16 bytes each.
pub const RECORDS_MAX: usize = 1 << 22;

/// The most bytes of fast commits: ten times the area that mke2fs makes.
pub const FAST_BYTES_MAX: usize = 256 << 20;
