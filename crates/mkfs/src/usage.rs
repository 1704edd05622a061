//! What a populated image uses beyond its layout, as whoever filled it tells [`crate::Layout::finish`].

use ondisk::{Features, FsBlock};

use crate::Run;

/// What is used in one group's inode table. Inodes are used from the table's start without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupUse {
    /// How many inodes from the first on are in use; in group 0 this includes the reserved and special ones
    /// ([`crate::Layout::first_free_ino`] - 1 of them).
    pub inodes: u32,
    /// How many of these are directories.
    pub directories: u32,
}

/// What an image uses beyond its layout.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Blocks in use outside [`crate::Layout::used`]: ascending, not overlapping (touching is fine).
    pub data: Vec<Run>,
    /// One a group, from group 0; groups beyond the end of this are empty.
    pub groups: Vec<GroupUse>,
    /// KiB written so far, for the superblock's lifetime counter.
    pub kib_written: u64,
}

/// What was made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// Bytes a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Blocks not in use.
    pub free_blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Inodes not in use.
    pub free_inodes: u32,
    /// Groups.
    pub groups: u32,
    /// Blocks of the journal, with its fast-commit area; 0 without one.
    pub journal_blocks: u64,
    /// Its features.
    pub features: Features,
    /// Its label.
    pub label: Vec<u8>,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Where the backups of the superblock lie.
    pub backups: Vec<FsBlock>,
}
