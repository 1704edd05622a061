//! The mounted ext4 file system: from a device to inodes, their data, names and attributes.
//!
//! ```text
//! limits error freeze variants < live, fsync::log < sb < group < mballoc, ialloc, orphan < icache
//!              < commit < step < take, corruption
//!              < extent < xattr, dir, data < attr < reap < namei < fsync < mount < fs
//! ```
//!
//! Each module may import only from those to its left. [`InodeFs`] is the face. What only reads works on an
//! `icache::MountedFs`, which knows the device, the cache of metadata blocks, the geometry and the groups; what changes
//! anything works on an `icache::LiveFs`, which exists only for a file system that is open for writing.
//!
//! Whatever comes from the device is verified where it enters (checksums, bounds, order), so that no number of the
//! device's is trusted unseen. A file system opened by [`InodeFs::open`] is not written to, and its readers share
//! nothing that changes but the cache's shards and counters. One opened by [`InodeFs::open_for_writing`] changes in
//! steps of its journal: what a crash leaves is the state at the end of one of them, no older than the last that was
//! synced.

mod attr;
mod commit;
mod corruption;
mod data;
mod dir;
mod error;
mod extent;
mod freeze;
mod fs;
mod fsync;
mod group;
mod ialloc;
mod icache;
pub mod limits;
mod live;
mod mballoc;
mod mount;
mod namei;
mod orphan;
mod reap;
mod sb;
mod step;
mod take;
mod variants;
mod xattr;

pub use attr::{SetAttributes, SetTime};
pub use data::Allocate;
pub use dir::{DirListing, ListedEntry};
pub use error::Error;
pub use extent::{Mapping, Mappings};
pub use fs::{FoundInode, InodeFs, InodeRef, Metadata, StatFs};
pub use jbd2::recovery::{Error as RecoveryError, ReplayReport as RecoveryReport};
pub use journal::JournalStatistics;
#[doc(hidden)]
pub use journal::canary;
pub use mount::{CutDevice, DataMode, MountOptions, ReplayPolicy, is_rebuildable, tune};
pub use namei::{NewInode, RenameFlag, WalkEnd, WalkIntent};
pub use ondisk::{
    BlockSize, Corrupt, Feature, FileType, Flags, FsBlock, Generation, Geometry, Ino, Superblock,
    Timestamp,
};
pub use sb::{Acting, Atime, BlockClaimant, Clock, OnError, Stopped, Synchronous};
pub use variants::{
    DirReserve, GroupLock, GroupScan, InodeLookup, LogUpdate, LogUse, OrphanForm, Preallocation,
    StreamGoal, VariantError, Variants,
};
pub use xattr::{Xattr, XattrFlag};
