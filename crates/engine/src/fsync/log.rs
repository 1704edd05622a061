//! The fsync log: what fsynced files need, logged in ext4's fast-commit area so that Linux, e2fsck and lanefs all
//! replay it.
//!
//! # Trouble cases
//!
//! What goes wrong if a log has too little, too much, or the wrong order. A test of each case replays the log as Linux
//! does and as e2fsck does.
//!
//! - A is renamed over B, then the file is fsynced. If B's old inode has another name, both names, the file and that
//!   inode are logged; if it has none, the fsync is a full commit. Without this, A and B would both name the file,
//!   which has one link.
//! - A is removed and created again, then A is fsynced. The log removes A from the old inode, then adds it for the new
//!   one. Without this, Linux would keep the old file under A, and the new inode would have no name.
//! - A is linked as B, removed and created again, then A is fsynced. B and its inode are logged too. Without this, the
//!   old data would be lost under both names.
//! - An inode number is freed and used again in one transaction. This never happens: a number is free for other files
//!   only after a full commit. Otherwise e2fsck would give the new file the old one's blocks.
//! - A file is unlinked while it is open, then another one is fsynced. An inode without links is not logged. Otherwise
//!   Linux would refuse the mount.
//! - A is moved to B and back. Neither name is logged. Otherwise a second replay would not find the name that it is to
//!   remove.
//!
//! So the log is not a queue of operations. For each inode and each name it knows three states: what the disk has, what
//! the log has, and what exists now. It writes the difference, for a set of inodes and names that belong together
//! ([`closure`]), in an order in which no link count passes through 0 ([`FsyncLog`], [`records`]). What records can't
//! express is committed in full.
//!
//! [`LogTree`] is the concurrent B+tree under it: a logged inode's item is rewritten with only its leaf locked.
//!
//! The log is made of what changed since the last full commit, which `inode::changes` keeps. This module does not use
//! inodes in memory. It comes before `token` in the order of modules, because the token's commit must end the log:
//! [`running`] has the running transaction's log.

mod area;
mod batches;
mod budget;
mod closure;
mod item;
mod records;
mod running;
mod tree;

pub(crate) use batches::{Closure, FsyncLog, InodeState, NameState};
pub(crate) use budget::Cost;
pub(crate) use closure::{Members, close};
pub(crate) use item::Range;
pub(crate) use running::{FastLog, RunningLog};
