//! Announces to the device which directories are read next, in the order in which they will be.
//!
//! Directories lie among the data of files. What the kernel reads ahead by itself is then mostly data, and two threads
//! that take turns look like one reader of everything. Announced blocks are in its cache before a thread asks for them,
//! and nothing else is read.

use std::ops::Range;

use ondisk::FsBlock;

use crate::inodes::Directory;
use crate::volume::Volume;

/// Directories that are announced at once.
const BATCH: usize = 64;

/// Announces the batch behind that of this one of `count` directories, if a batch begins with it. `directory` is one of
/// them by its place in the order.
pub fn announce<'a>(
    volume: &Volume<'_>,
    unit: usize,
    count: usize,
    directory: impl Fn(usize) -> &'a Directory,
) {
    if !unit.is_multiple_of(BATCH) {
        return;
    }
    // The first batch announces itself, too.
    let from = if unit == 0 { 0 } else { unit + BATCH };
    let batch = from.min(count)..count.min(unit + 2 * BATCH);
    let mut next: Range<u64> = 0..0;
    let tell = |blocks: &Range<u64>| {
        let [from, to] = [blocks.start, blocks.end]
            .map(|block| FsBlock(block).offset(volume.geometry.block_size()));
        if from < to {
            volume.device.will_read(from..to);
        }
    };
    for run in batch.flat_map(|at| directory(at).runs.iter()) {
        if run.pblk != next.end {
            tell(&next);
            next = run.pblk..run.pblk;
        }
        next.end = run.pblk + run.len;
    }
    tell(&next);
}
