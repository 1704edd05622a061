//! Announces to the device the blocks of the directories that are read next, in the order in which they are read.
//!
//! Directories are scattered among the data of files. To the kernel, two threads that read them in turns look like one
//! sequential reader of the whole device, so its own readahead fetches mostly data. An announcement makes the kernel
//! fetch the blocks of directories alone, before a thread reads them.

use std::ops::Range;

use ondisk::FsBlock;

use crate::collected::Directory;
use crate::volume::Volume;

/// How many directories are announced together.
const BATCH: usize = 64;

/// Announces the next batch of directories when a thread begins to read the first directory of a batch. `unit` is the
/// position of the directory that the thread reads, in the order of all `count`; `directory` returns the one at a
/// position.
pub fn announce<'a>(
    volume: &Volume<'_>,
    unit: usize,
    count: usize,
    directory: impl Fn(usize) -> &'a Directory,
) {
    if !unit.is_multiple_of(BATCH) {
        return;
    }
    // No earlier batch announced the first one.
    let from = if unit == 0 { 0 } else { unit + BATCH };
    let batch = from.min(count)..count.min(unit + 2 * BATCH);
    let mut next: Range<u64> = 0..0;
    let will_read = |blocks: &Range<u64>| {
        let [from, to] = [blocks.start, blocks.end]
            .map(|block| FsBlock(block).offset(volume.geometry.block_size()));
        if from < to {
            volume.device.will_read(from..to);
        }
    };
    for run in batch.flat_map(|at| directory(at).runs.iter()) {
        if run.pblk != next.end {
            will_read(&next);
            next = run.pblk..run.pblk;
        }
        next.end = run.pblk + run.len;
    }
    will_read(&next);
}
