//! The superblock of a new journal. Pure; no locks.

use ondisk::BlockSize;
use ondisk::jbd2::JournalSuperblock;

/// The superblock of a journal whose log is empty. `total` counts the journal's blocks: the superblock, the log, and
/// the area for fast commits, which has `fast_commit` blocks (0: no such area). `uuid` is that of the file system, or
/// of the journal's device; `first` is the first block of the log.
#[must_use]
pub fn empty_superblock(
    block_size: BlockSize,
    total: u32,
    fast_commit: u32,
    first: u32,
    uuid: [u8; 16],
) -> JournalSuperblock {
    let mut sb = JournalSuperblock::new(block_size, total, first);
    sb.set_uuid(uuid);
    sb.set_fast_commit_blocks_raw(fast_commit);
    sb
}
