//! Why a part of an image can't be shown.

use device::DeviceError;
use ondisk::{Corrupt, FsBlock, Group, Ino};

/// Why something of an image can't be read, or is not there.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The device can't be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A structure does not verify.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The file system ends before this block.
    #[error("no block {block}: the last is {last}")]
    NoBlock {
        /// The block.
        block: FsBlock,
        /// The last block of the file system.
        last: u64,
    },
    /// The file system has fewer groups.
    #[error("no group {group}: the last is {last}")]
    NoGroup {
        /// The group.
        group: Group,
        /// The last group of the file system.
        last: u32,
    },
    /// The file system has fewer inodes.
    #[error("no inode {ino}: the last is {last}")]
    NoInode {
        /// The inode.
        ino: Ino,
        /// The last inode of the file system.
        last: u32,
    },
    /// The group holds no copy of the superblock.
    #[error("group {0} holds no copy of the superblock")]
    NoSuperblock(Group),
    /// The inode is not a directory.
    #[error("inode {0} is not a directory")]
    NotADirectory(Ino),
    /// A map has more blocks than [`crate::BUDGET`].
    #[error("the map has more blocks than lanefs looks at")]
    MapTooLarge,
    /// A directory has more blocks than are looked at.
    #[error("the directory has more blocks than lanefs looks at")]
    DirectoryTooLarge,
    /// An argument between angle brackets is not an inode number.
    #[error("invalid inode number `{0}`: write <12>")]
    InvalidInode(String),
    /// A component of a path does not exist.
    #[error("{path}: no `{name}` in directory <{directory}>")]
    NoName {
        /// The whole path.
        path: String,
        /// The component.
        name: String,
        /// The directory that was searched.
        directory: Ino,
    },
    /// The journal is on another device, or does not exist.
    #[error("the file system has no journal of its own")]
    NoJournal,
    /// The journal's inode maps no block.
    #[error("the journal has no blocks")]
    EmptyJournal,
    /// The journal has no block with this number.
    #[error("block {0} of the journal is a hole")]
    JournalHole(u64),
    /// A block of the file system is too small for the structure in it.
    #[error("the block is too short")]
    ShortBlock,
    /// The journal's first block is too small for a superblock.
    #[error("the journal's first block is too short")]
    ShortJournal,
    /// The file system is not protected against a second mount.
    #[error("the file system has no multi-mount protection")]
    NoMmp,
}
