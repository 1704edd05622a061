//! mke2fs's tables: what a size alone decides. Pure numbers, checked against mke2fs 1.47.0 by `tests/parity.rs`.

use ondisk::BlockSize;

use crate::UsageType;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

impl UsageType {
    /// The profile mke2fs chooses for a file system of `bytes` bytes.
    #[must_use]
    pub fn for_size(bytes: u64) -> UsageType {
        match bytes {
            _ if bytes < 3 * MIB => UsageType::Floppy,
            _ if bytes < 512 * MIB => UsageType::Small,
            _ if bytes < 4 * TIB => UsageType::Default,
            _ if bytes < 16 * TIB => UsageType::Big,
            _ => UsageType::Huge,
        }
    }

    /// The profile of this name in mke2fs.conf.
    #[must_use]
    pub fn from_name(name: &str) -> Option<UsageType> {
        UsageType::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, usage)| *usage)
    }

    /// Every profile with its name.
    pub const ALL: &'static [(&'static str, UsageType)] = &[
        ("default", UsageType::Default),
        ("floppy", UsageType::Floppy),
        ("small", UsageType::Small),
        ("big", UsageType::Big),
        ("huge", UsageType::Huge),
        ("news", UsageType::News),
        ("largefile", UsageType::LargeFile),
        ("largefile4", UsageType::LargeFile4),
    ];

    /// Bytes an inode, if the profile sets them.
    pub(crate) fn inode_ratio(self) -> Option<u64> {
        match self {
            UsageType::Default => None,
            UsageType::Floppy => Some(8192),
            UsageType::Small | UsageType::News => Some(4096),
            UsageType::Big => Some(32768),
            UsageType::Huge => Some(65536),
            UsageType::LargeFile => Some(1 << 20),
            UsageType::LargeFile4 => Some(4 << 20),
        }
    }

    /// The block size, if the profile sets it.
    pub(crate) fn block_size(self) -> Option<BlockSize> {
        match self {
            UsageType::Floppy | UsageType::Small => Some(BlockSize::K1),
            _ => None,
        }
    }
}

/// Bytes an inode under these profiles; the last one that sets them decides.
pub(crate) fn inode_ratio(usage: &[UsageType]) -> u64 {
    let chosen = usage.iter().rev().find_map(|usage| usage.inode_ratio());
    chosen.unwrap_or(16384)
}

/// The block size under these profiles; the last one that sets it decides.
pub(crate) fn block_size(usage: &[UsageType]) -> BlockSize {
    let chosen = usage.iter().rev().find_map(|usage| usage.block_size());
    chosen.unwrap_or(BlockSize::K4)
}

/// The fewest blocks of a file system with a journal.
pub(crate) const JOURNAL_FROM: u64 = 2048;
/// The fewest blocks a journal may have.
pub(crate) const JOURNAL_MIN: u64 = 1024;
/// The most blocks a journal may have.
pub(crate) const JOURNAL_MAX: u64 = 10_240_000;

/// Blocks of the journal for a file system of `blocks` blocks, without the fast-commit area; `None` if it is too small
/// for one.
pub(crate) fn journal_blocks(blocks: u64) -> Option<u64> {
    const STEPS: [(u64, u64); 8] = [
        (32 << 10, 1 << 10),
        (256 << 10, 4 << 10),
        (512 << 10, 8 << 10),
        (4 << 20, 16 << 10),
        (8 << 20, 32 << 10),
        (16 << 20, 64 << 10),
        (32 << 20, 128 << 10),
        (u64::MAX, 256 << 10),
    ];
    let step = STEPS.iter().find(|(below, _)| blocks < *below);
    step.filter(|_| blocks >= JOURNAL_FROM)
        .map(|(_, journal)| *journal)
}

/// Blocks of the fast-commit area for a journal of `journal` blocks.
pub(crate) fn fast_commit_blocks(journal: u64) -> u64 {
    journal / 64
}

/// The most blocks an orphan file may have: Linux does not read more.
pub(crate) const ORPHAN_MAX: u64 = 512;

/// Blocks of the orphan file for a file system of `blocks` blocks.
pub(crate) fn orphan_blocks(blocks: u64) -> u64 {
    (blocks / 4096).clamp(32, ORPHAN_MAX)
}

/// Bytes of lost+found: 16 KiB, at least two blocks, at most those that need no map block.
pub(crate) fn lost_found_blocks(block_size: BlockSize) -> u64 {
    (16384 >> block_size.bits()).clamp(2, 12)
}
