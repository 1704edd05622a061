//! The metadata block cache of lanefs: finds blocks by number, verifies them when they are read, and forgets
//! those that were not used for a while. Knows neither ext4 nor jbd2; what a block must look like is its
//! reader's affair.
//!
//! A block is immutable and counted, so a reader keeps it as long as it likes, whatever the cache does. Blocks
//! are spread over shards by number. A shard's lock is held to find or to insert, never across I/O or
//! verification: two readers that miss the same block both read it, and the one that inserts last wins. Read
//! only, so there is nothing that a crash could lose.

mod cache;

pub use cache::{Block, Cache, CacheStatistics, Tag};
