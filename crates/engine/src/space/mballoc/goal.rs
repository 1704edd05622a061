//! Where the first blocks of large files go: the small face behind which three ways to choose stand. Goals are hints;
//! no lock, nothing on disk.

use ondisk::{FsBlock, Geometry, Ino};

use crate::core::variants::{Chosen, StreamGoal};

mod hashed;
mod plain;

use hashed::Hashed;
use plain::{Global, OfInode};

/// Blocks from which on a request is one of a large file, as in Linux.
const LARGE: u64 = 16;

/// A way to choose goals.
pub(crate) trait StreamGoals: Send + Sync {
    /// Where to look for the first blocks of file `ino`, if its own group is at `own`.
    fn goal(&self, geometry: &Geometry, ino: Ino, own: FsBlock) -> FsBlock;

    /// Blocks up to this one were taken for the large file `ino`.
    fn took(&self, geometry: &Geometry, ino: Ino, end: FsBlock);
}

/// All forms, and which is used.
pub(crate) struct Goals {
    form: Chosen<StreamGoal>,
    hashed: Hashed,
    inode: OfInode,
    global: Global,
}

impl Goals {
    /// For a volume of this shape.
    pub(crate) fn new(form: StreamGoal, geometry: &Geometry) -> Goals {
        Goals {
            form: Chosen::new(form),
            hashed: Hashed::new(geometry, sync::thread::available_parallelism()),
            inode: OfInode,
            global: Global::default(),
        }
    }

    /// From now on this form is used.
    pub(crate) fn choose(&self, form: StreamGoal) {
        self.form.set(form);
    }

    fn used(&self) -> &dyn StreamGoals {
        match self.form.get() {
            StreamGoal::Hashed => &self.hashed,
            StreamGoal::Inode => &self.inode,
            StreamGoal::Global => &self.global,
        }
    }

    /// Where to look for the first blocks of file `ino`, `want` of them.
    pub(crate) fn first(&self, geometry: &Geometry, ino: Ino, own: FsBlock, want: u64) -> FsBlock {
        if want < LARGE {
            return own;
        }
        self.used().goal(geometry, ino, own)
    }

    /// Records that `len` blocks of file `ino` were taken up to this one.
    pub(crate) fn took(&self, geometry: &Geometry, ino: Ino, end: FsBlock, len: u64) {
        if len >= LARGE {
            self.used().took(geometry, ino, end);
        }
    }
}
