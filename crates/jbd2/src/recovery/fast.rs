//! The fast-commit area: read and verified. The engine, which knows the file system, replays its records.

use ondisk::Tid;
use ondisk::fast_commit::{FcScan, Scan, ScanStep};
use ondisk::jbd2::JournalSuperblock;

use crate::recovery::error::{Error, UnsupportedLog};
use crate::recovery::limits::FAST_BYTES_MAX;
use crate::recovery::log::LogRing;

/// Scans the area for fast commits of the transaction after the last that was committed in full. Returns what was
/// found, and the blocks that hold the complete ones, up to the end of the last one.
pub(crate) fn scan(
    log: &mut LogRing<'_>,
    sb: &JournalSuperblock,
    expected: Tid,
    inode_size: usize,
) -> Result<(FcScan, Vec<u8>), Error> {
    let mut scan = Scan::new(expected, inode_size);
    let mut blocks = Vec::new();
    if sb.fast_commit_blocks() > 0 {
        for position in sb.fast_commit_first()..sb.blocks_count() {
            let block = log.read(position)?;
            if scan.block(block) == ScanStep::Stop {
                break;
            }
            blocks.extend_from_slice(block);
            if blocks.len() > FAST_BYTES_MAX {
                return Err(UnsupportedLog::TooLarge("more than 256 MiB of fast commits").into());
            }
        }
    }
    let found = scan.found();
    // In its block, the last complete one is followed by what a cut left of the next.
    let whole = found.blocks.saturating_sub(1) as usize * log.format.block_size.bytes();
    blocks.truncate(whole + scan.bytes_of_last_block());
    Ok((found, blocks))
}
