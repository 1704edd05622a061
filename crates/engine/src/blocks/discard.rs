//! Telling the device which blocks are free (`discard`): when the commit that freed them is durable and before anybody
//! can have them again, by the committing thread, which holds no lock.
//!
//! A failure only turns it off: the blocks are free whether or not the device knows. What a crash leaves: blocks that
//! the device was not told of.

use std::ops::Range;

use device::BlockDevice;
use ondisk::BlockSize;
use sync::Hint;

/// Whether free blocks are discarded.
pub(crate) struct Discard {
    /// [turned off once]
    is_on: Hint<bool>,
}

impl Discard {
    pub(crate) fn new(is_on: bool) -> Discard {
        Discard {
            is_on: Hint::new(is_on),
        }
    }

    /// Whether free blocks are still discarded.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Tells the device of runs of free blocks of this size, with one request for adjacent runs.
    pub(crate) fn tell(
        &self,
        device: &dyn BlockDevice,
        block_size: BlockSize,
        runs: impl Iterator<Item = Range<u64>>,
    ) {
        if !self.is_on() {
            return;
        }
        let mut runs: Vec<Range<u64>> = runs.collect();
        runs.sort_unstable_by_key(|run| run.start);
        runs.dedup_by(|next, before| {
            let follows = before.end == next.start;
            if follows {
                before.end = next.end;
            }
            follows
        });
        let bits = block_size.bits();
        for run in runs {
            let bytes = run.start << bits..run.end << bits;
            if device.discard(bytes).is_err() {
                self.is_on.set(false);
                return;
            }
        }
    }
}
