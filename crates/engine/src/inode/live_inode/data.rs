//! What fsync and writes in place need to know about a file's data: the epochs that its data and map belong to, and
//! where the file was last overwritten.

use journal::Epoch;
use sync::Stamp;

use crate::inode::in_place::LastInPlace;

/// What memory holds about a file's data.
pub(crate) struct DataInMemory {
    /// The last epoch that changed what it takes to read the data. [lock, exclusive; read: any time]
    stamp: Stamp,
    /// The epoch that was running after data were last written in place. [lock, shared; read: any time; only raised]
    overwritten: Stamp,
    /// Where the file was last overwritten. [lock]
    pub(super) in_place: LastInPlace,
}

impl DataInMemory {
    pub(super) fn new() -> DataInMemory {
        DataInMemory {
            stamp: Stamp::new(0),
            overwritten: Stamp::new(0),
            in_place: LastInPlace::new(),
        }
    }

    /// The last epoch that changed what it takes to read the data: size or map.
    pub(crate) fn stamp(&self) -> Epoch {
        Epoch(self.stamp.get())
    }

    pub(super) fn set_stamp(&self, epoch: Epoch) {
        self.stamp.set(epoch.0);
    }

    /// Records that data were written in place, and that `running` was the running epoch afterwards. Called before the
    /// write returns to its caller. The store is made even if the value stays the same, so that a thread that sees the
    /// epoch sees these data.
    pub(crate) fn set_overwritten(&self, running: Epoch) {
        self.overwritten.raise(running.0);
    }

    /// The latest epoch that was passed to [`DataInMemory::set_overwritten`]; 0 if it was never called.
    pub(crate) fn overwritten(&self) -> Epoch {
        Epoch(self.overwritten.get())
    }
}
