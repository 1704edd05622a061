//! The plain forms: each file in its own inode's group, or all large files one behind the other. The second is one word
//! that all threads write. No lock; a crash forgets it.

use ondisk::{FsBlock, Geometry, Ino};
use sync::{CachePadded, Hint};

use super::StreamGoals;

/// In the inode's group.
pub(super) struct OfInode;

impl StreamGoals for OfInode {
    fn goal(&self, _: &Geometry, _: Ino, own: FsBlock) -> FsBlock {
        own
    }

    fn took(&self, _: &Geometry, _: Ino, _: FsBlock) {}
}

/// Behind the last one taken for any large file, so that these lie one behind the other.
#[derive(Default)]
pub(super) struct Global {
    /// The block after the last one taken for a large file; 0 before the first. [atomic: Relaxed, hint]
    last: CachePadded<Hint<u64>>,
}

impl StreamGoals for Global {
    fn goal(&self, _: &Geometry, _: Ino, own: FsBlock) -> FsBlock {
        match self.last.get() {
            0 => own,
            last => FsBlock(last),
        }
    }

    fn took(&self, _: &Geometry, _: Ino, end: FsBlock) {
        self.last.set(end.0);
    }
}
