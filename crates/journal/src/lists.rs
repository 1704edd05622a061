//! Lists of what each epoch changed: two for each thread, one for even epochs and one for odd ones. A handle of epoch
//! `e` appends to its thread's list `e & 1`. After the drain of epoch E, no handle appends to the lists `E & 1`, and
//! the committer takes them.
//!
//! Each list has a lock of its own ([`Rank::EpochList`]) on its thread's cache lines; only the committer ever takes
//! another thread's, after the drain, so no thread waits for it. Epoch E + 2 opens after E is staged, so the lists of E
//! are empty by then.

use sync::{Lanes, Mutex, Rank};

use crate::epoch::Epoch;

/// A list for each thread and each of the two epochs that may be in memory at once.
pub struct EpochLists<T> {
    /// A lane for each thread. [epoch list, of the thread]
    lanes: Lanes<Lane<T>>,
}

struct Lane<T>([Mutex<Vec<T>>; 2]);

impl<T> Default for Lane<T> {
    fn default() -> Lane<T> {
        Lane([const { Mutex::new(Rank::EpochList, Vec::new()) }; 2])
    }
}

impl<T> Default for EpochLists<T> {
    fn default() -> EpochLists<T> {
        EpochLists {
            lanes: Lanes::new(),
        }
    }
}

fn parity(epoch: Epoch) -> usize {
    usize::from(epoch.0 & 1 == 1)
}

impl<T> EpochLists<T> {
    /// Empty lists.
    #[must_use]
    pub fn new() -> EpochLists<T> {
        EpochLists::default()
    }

    /// Appends to the calling thread's list of an epoch, in which the thread has a handle.
    pub(crate) fn append(&self, epoch: Epoch, item: T) {
        self.lanes.mine().0[parity(epoch)].lock().push(item);
    }

    /// Takes what a sealed epoch appended: in each thread's own order, threads after one another. For the committer,
    /// after the drain and before it is staged.
    pub fn take(&self, sealed: Epoch) -> Vec<T> {
        let mut all = Vec::new();
        for lane in self.lanes.iter() {
            all.append(&mut lane.0[parity(sealed)].lock());
        }
        all
    }
}
