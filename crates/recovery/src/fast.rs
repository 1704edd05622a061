//! The fast-commit area: read and verified, not replayed.

use ondisk::Tid;
use ondisk::fast_commit::{Found, Scan, Step};
use ondisk::jbd2::JournalSuperblock;

use crate::error::Error;
use crate::log::Log;

/// Scans the area for fast commits of the transaction after the last that was committed in full.
pub(crate) fn scan(
    log: &mut Log<'_>,
    sb: &JournalSuperblock,
    expected: Tid,
    inode_size: usize,
) -> Result<Found, Error> {
    let mut scan = Scan::new(expected, inode_size);
    if sb.fast_commit_blocks() > 0 {
        for position in sb.fast_commit_first()..sb.blocks_count() {
            if scan.block(log.read(position)?) == Step::Stop {
                break;
            }
        }
    }
    Ok(scan.found())
}
