//! What syncs and writes in place know of a file's data: the epochs that data and map belong to, and where the file was
//! overwritten last.

use journal::Epoch;
use sync::Stamp;

use crate::inode::in_place::LastInPlace;

/// What is in memory about a file's data.
pub(crate) struct DataInMemory {
    /// The last epoch that changed what it takes to read the data. [lock, exclusive; read: any time]
    stamp: Stamp,
    /// The epoch that ran after data were last written in place. [lock, shared; read: any time; only raised]
    overwritten: Stamp,
    /// Where the file was overwritten last. [lock]
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

    /// Data were written in place, and `running` was the epoch after that. Before the write returns to its caller. Also
    /// where nothing changes, so that a thread that sees the epoch sees these data.
    pub(crate) fn set_overwritten(&self, running: Epoch) {
        self.overwritten.raise(running.0);
    }

    /// The latest epoch that [`DataInMemory::set_overwritten`] got; 0 if there was none.
    pub(crate) fn overwritten(&self) -> Epoch {
        Epoch(self.overwritten.get())
    }
}
