//! Checks ext4 independently of the engine: is a file system sound, and if not, what is wrong with it?
//!
//! [`check`] reads a [`BlockDevice`](device::BlockDevice) and reports [`Problem`]s. It uses `ondisk`'s structures,
//! checksums and hashes, but reads maps and directories with code of its own: if this crate and the engine disagree
//! about an image, one of them is wrong. It never writes. The caller replays the journal before the check.
//!
//! # Passes
//!
//! ```text
//! geometry      superblock, descriptors; metadata claims its blocks        one thread, then a unit per group
//! inodes        every field, map and attribute; files claim their blocks   units of 1 MiB of the tables, any thread
//! shared        only where a block was claimed twice: who claims it        units as in `inodes`
//! directories   names, types, hashed trees; each name counts a link        a unit per directory
//! connectivity  each directory is reached once; link counts                a unit per group
//! counts        bitmaps and counts against what was found                  a unit per group
//! ```
//!
//! A pass begins when the one before it has ended, so no pass waits for another's data. Within a pass the threads share
//! the claims (one atomic bit for each cluster) and the inode table (two bytes for each inode), both allocated by
//! groups, and the tables of shared attribute blocks and values. Each thread lists its problems separately.
//!
//! # Hostile images
//!
//! No function recurses as deep as the disk's structures say. A map block is read once: a second pointer to it is a
//! double claim. [`limits`] bounds all claims together, and the problems that are kept (all of them are counted).

#![warn(missing_docs)]

mod ahead;
mod backups;
mod bits;
mod claims;
mod collected;
mod dir_view;
mod dirs;
mod error;
mod extents;
mod file_map;
mod geometry;
mod htree;
mod indirect;
mod inode;
mod inode_checksum;
mod inodes;
pub mod limits;
mod links;
mod lookalike;
mod map;
mod metadata;
mod names;
mod paths;
mod policies;
pub mod problem;
mod quota;
pub mod repair;
mod report;
mod reserved;
mod run;
mod runs;
mod serving;
mod shared;
mod special;
mod symlink;
mod table;
mod tally;
mod times;
mod volume;
mod work;
mod xattr;

pub use error::Error;
pub use geometry::unknown_features;
pub use problem::{Class, Code, Kind, Preen, Severity};
pub use report::{Problem, Report, Totals};
pub use run::{Options, check, check_at};
pub use serving::{ServingSuperblock, serving_superblock};
pub use work::{PassProgress, PassSpan, Stage};
