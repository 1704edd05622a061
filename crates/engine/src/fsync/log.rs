//! The fsync log: what fsynced files need, logged in ext4's fast-commit area so that Linux, e2fsck and lanefs all
//! replay it.
//!
//! # Trouble cases
//!
//! What goes wrong when a log has too little, too much, or the wrong order. A test of each replays the
//! log as Linux does and as e2fsck does.
//!
//! - A renamed over B, then an fsync of the file: both names, the file and B's old inode are logged if that has another
//!   name, or else the fsync is a full commit. Otherwise A and B both name the file, which has one link.
//! - A removed and made again, fsync of A: A is taken from the old inode, then given to the new one; else Linux keeps
//!   the old file under A, and the new inode is left unattached.
//! - A linked as B, removed and made again, fsync of A: B and its inode are logged too; else the old data are gone
//!   under both names.
//! - An inode's number used again in the same transaction: never happens, numbers are free for others after a full
//!   commit; else e2fsck gives the new file the old one's blocks.
//! - A file unlinked while open, another one fsynced: nothing is logged of an inode without links; else Linux refuses
//!   the mount.
//! - A moved to B and back: nothing of either name is logged; otherwise a second replay does not find the name.
//!
//! So the log is not a queue of operations. For each inode and each name it keeps what the disk has, what the log has
//! and what is there now, and writes the difference, closed over names and inodes ([`closure`]), in an order in which
//! no link count passes through 0 ([`FsyncLog`], [`records`]). What can't be expressed is committed in full.
//!
//! [`LogTree`] is the concurrent B+tree under it: a logged inode's item is rewritten with its leaf alone locked.
//!
//! The log is made of what changed since the last full commit, which `inode::changes` keeps. This part of the room
//! knows no inode in memory. It stands below the token, whose commit must end the log: [`running`] has the running
//! transaction's log.

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
