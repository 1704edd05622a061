//! What a populated image uses beyond its layout, as the caller that filled it reports to [`crate::Layout::finish`].

use ondisk::{Feature, Features, FsBlock};

use crate::BlockRun;

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
    pub data: Vec<BlockRun>,
    /// One a group, from group 0; groups beyond the end of this are empty.
    pub groups: Vec<GroupUse>,
    /// KiB written so far, for the superblock's lifetime counter.
    pub kib_written: u64,
}

/// What was made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FormatSummary {
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

impl FormatSummary {
    /// `ext2`, `ext3` or `ext4`: the oldest of them that has its features.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        let plain = [
            Feature::EXT_ATTR,
            Feature::RESIZE_INODE,
            Feature::DIR_INDEX,
            Feature::FILETYPE,
            Feature::META_BG,
            Feature::SPARSE_SUPER,
            Feature::LARGE_FILE,
        ];
        match self
            .features
            .without(Feature::HAS_JOURNAL)
            .minus(Features::of(&plain))
            .is_empty()
        {
            true if self.features.has(Feature::HAS_JOURNAL) => "ext3",
            true => "ext2",
            false => "ext4",
        }
    }

    /// The UUID as it is usually written.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        ondisk::text::Uuid(self.uuid).to_string()
    }
}
