//! Where the first blocks of large files are put: an interface with three implementations. Goals are hints. No lock,
//! and nothing on disk.

use ondisk::{FsBlock, Geometry, Ino};

use crate::core::variants::{Chosen, StreamGoal};

mod hashed;
mod plain;

use hashed::Hashed;
use plain::{Global, OfInode};

/// A request for at least this number of blocks counts as one of a large file, as in Linux.
const LARGE: u64 = 16;

/// A way to choose goals.
pub(crate) trait StreamGoals: Send + Sync {
    /// Where to search for the first blocks of file `ino`, whose own group begins at `own`.
    fn goal(&self, geometry: &Geometry, ino: Ino, own: FsBlock) -> FsBlock;

    /// Records that the large file `ino` got blocks, the last of which ends at `end`.
    fn took(&self, geometry: &Geometry, ino: Ino, end: FsBlock);
}

/// All forms, and which one is used.
pub(crate) struct Goals {
    form: Chosen<StreamGoal>,
    hashed: Hashed,
    inode: OfInode,
    global: Global,
}

impl Goals {
    /// The forms for a volume of this geometry.
    pub(crate) fn new(form: StreamGoal, geometry: &Geometry) -> Goals {
        Goals {
            form: Chosen::new(form),
            hashed: Hashed::new(geometry, sync::thread::available_parallelism()),
            inode: OfInode,
            global: Global::default(),
        }
    }

    /// Uses this form from now on.
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

    /// Where to search for the first `want` blocks of file `ino`.
    pub(crate) fn first(&self, geometry: &Geometry, ino: Ino, own: FsBlock, want: u64) -> FsBlock {
        if want < LARGE {
            return own;
        }
        self.used().goal(geometry, ino, own)
    }

    /// Records that file `ino` got `len` blocks, the last of which ends at `end`.
    pub(crate) fn took(&self, geometry: &Geometry, ino: Ino, end: FsBlock, len: u64) {
        if len >= LARGE {
            self.used().took(geometry, ino, end);
        }
    }
}
