//! Where the first blocks of large files go: the small face, and its plain forms. Goals are hints; no lock, nothing on
//! disk.

use ondisk::FsBlock;
use sync::CachePadded;
use sync::atomic::{AtomicU64, Ordering};

use crate::variants::StreamGoal;

/// Blocks from which on a request is one of a large file, as in Linux.
const LARGE: u64 = 16;

/// A way to choose goals.
pub(crate) trait StreamGoals: Send + Sync {
    /// Where to look for the first blocks of a file, if its own group is at `own`.
    fn goal(&self, own: FsBlock) -> FsBlock;

    /// Blocks up to this one were taken for a large file.
    fn took(&self, end: FsBlock);
}

/// In the inode's group.
struct OfInode;

impl StreamGoals for OfInode {
    fn goal(&self, own: FsBlock) -> FsBlock {
        own
    }

    fn took(&self, _: FsBlock) {}
}

/// Behind the last one taken for any large file, so that these lie one behind the other.
#[derive(Default)]
struct Global {
    /// 0 before the first. [atomic: Relaxed, hint]
    last: CachePadded<AtomicU64>,
}

impl StreamGoals for Global {
    fn goal(&self, own: FsBlock) -> FsBlock {
        // Relaxed: a hint.
        match self.last.load(Ordering::Relaxed) {
            0 => own,
            last => FsBlock(last),
        }
    }

    fn took(&self, end: FsBlock) {
        // Relaxed: a hint.
        self.last.store(end.0, Ordering::Relaxed);
    }
}

/// The goals that were chosen.
pub(crate) struct Goals(Box<dyn StreamGoals>);

impl Goals {
    pub(crate) fn new(form: StreamGoal) -> Goals {
        Goals(match form {
            StreamGoal::Inode => Box::new(OfInode),
            StreamGoal::Global => Box::new(Global::default()),
        })
    }

    /// Where to look for a file's first blocks, `want` of them.
    pub(crate) fn first(&self, own: FsBlock, want: u64) -> FsBlock {
        if want < LARGE {
            return own;
        }
        self.0.goal(own)
    }

    /// So many blocks of a file were taken up to this one.
    pub(crate) fn took(&self, end: FsBlock, len: u64) {
        if len >= LARGE {
            self.0.took(end);
        }
    }
}
