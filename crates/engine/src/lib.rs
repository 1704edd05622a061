//! The mounted ext4 file system: from a device to inodes, their data, names and attributes.
//!
//! ```text
//! core < blocks < space < inode < token < map < xattr, dir, data < attr < reap < names < fsync < mount < fs
//! ```
//!
//! These are the chapters, a folder each, and each may import only from those to its left; a lower part of `fsync`,
//! `fsync::log`, stands before `token`, whose commit ends the log. [`InodeFs`] is the face. What only reads works on an
//! `inode::MountedFs`, which knows the device, the cache of metadata blocks, the geometry and the groups; what changes
//! anything works on a `token::LiveFs`, which exists only for a file system that is open for writing.
//!
//! Whatever comes from the device is verified where it enters (checksums, bounds, order), so that no number of the
//! device's is trusted unseen. A file system opened by [`InodeFs::open`] is not written to, and its readers share
//! nothing that changes but the cache's shards and counters. One opened by [`InodeFs::open_for_writing`] changes in
//! steps of its journal: what a crash leaves is the state at the end of one of them, no older than the last that was
//! synced.

mod attr;
mod blocks;
mod core;
mod data;
mod dir;
mod fs;
mod fsync;
mod inode;
mod map;
mod mount;
mod names;
mod reap;
mod space;
mod token;
mod xattr;

pub use crate::core::Error;
pub use crate::core::limits;
pub use crate::core::options::{Atime, Clock, Synchronous};
pub use crate::core::sb::{Acting, BlockClaimant, OnError, Stopped};
pub use crate::core::variants::{
    DirReserve, GroupLock, GroupScan, InodeLookup, LogUpdate, LogUse, OrphanForm, Preallocation,
    StreamGoal, VariantError, Variants,
};
pub use attr::{SetAttributes, SetTime};
pub use data::Allocate;
pub use dir::{DirListing, ListedEntry};
pub use fs::{FoundInode, InodeFs, InodeRef, Metadata, StatFs};
pub use jbd2::recovery::{Error as RecoveryError, ReplayReport as RecoveryReport};
#[doc(hidden)]
pub use journal::canary;
pub use journal::{CommitDelay, JournalStatistics};
pub use map::{Mapping, Mappings};
pub use mount::{
    CutDevice, DataMode, MountOptions, ReplayPolicy, is_rebuildable, rebuilt_superblock, tune,
};
pub use names::{NewContent, NewInode, RenameFlag, WalkEnd, WalkIntent};
pub use ondisk::{
    BlockSize, Corrupt, Feature, FileType, Flags, FsBlock, Generation, Geometry, Ino, Superblock,
    Timestamp,
};
pub use xattr::{Xattr, XattrFlag};
