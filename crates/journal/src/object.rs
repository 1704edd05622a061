//! Metadata objects that a lock of their owner protects (inodes, descriptors, directory and extent blocks), so that a
//! sealed epoch keeps its own image while the next one changes the object.
//!
//! Each object has a one-word latch ([`Rank::StageLatch`]) around its live value, its stamp (the last epoch that may
//! have changed it) and at most one sealed copy. The first of two makes that copy: the committer staging E, or a
//! writer of E + 1 that finds the stamp at E and E not staged. After that the writer changes the live value freely,
//! and the committer uses the copy. The latch is held for one copy and never across I/O or a checksum; nobody waits
//! for a commit.

use ondisk::FsBlock;
use sync::{Mutex, Rank, Stamp};

use crate::canary::{self, Canary};
use crate::epoch::Epoch;

/// What the committer needs of an object.
pub trait Stageable: Send + Sync {
    /// The block that the object lies in.
    fn block(&self) -> FsBlock;

    /// Whether the object is the whole block, so that the block's former contents are not needed.
    fn is_whole_block(&self) -> bool;

    /// Writes the object's state at the end of `sealed` into its place in `image`, checksum included.
    fn stage(&self, sealed: Epoch, image: &mut [u8]);
}

/// A live value with a sealed copy where one is needed.
pub struct Object<T> {
    /// [stage latch]
    versions: Mutex<Versions<T>>,
    /// The stamp once more, for a thread that must not wait for the latch. [atomic: written under the latch]
    stamp: Stamp,
}

struct Versions<T> {
    live: T,
    /// The last epoch that may have changed `live`.
    stamp: Epoch,
    /// `live` as it was at the end of that epoch, while the committer has not taken it.
    sealed: Option<(Epoch, T)>,
    /// The last epoch that the committer staged.
    staged: Epoch,
}

impl<T: Clone> Object<T> {
    /// An object that no open epoch has changed.
    #[must_use]
    pub fn new(value: T) -> Object<T> {
        let versions = Versions {
            live: value,
            stamp: Epoch(0),
            sealed: None,
            staged: Epoch(0),
        };
        Object {
            versions: Mutex::new(Rank::StageLatch, versions),
            stamp: Stamp::new(0),
        }
    }

    /// Looks at the live value; short, without I/O and without other latches.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.versions.lock().live)
    }

    /// The last epoch that may have changed the value; [`Epoch`] 0 if none did.
    pub fn stamp(&self) -> Epoch {
        Epoch(self.stamp.get())
    }

    /// Changes the live value in an epoch, and returns whether it is the first change in that epoch.
    pub(crate) fn change_in<R>(&self, epoch: Epoch, change: impl FnOnce(&mut T) -> R) -> (R, bool) {
        let mut versions = self.versions.lock();
        let is_first = versions.stamp < epoch;
        if is_first {
            // Dirty in an earlier epoch that is sealed and not staged: only epoch - 1 can be, for two epochs ago was
            // staged before this one opened.
            if versions.stamp > versions.staged {
                versions.sealed = Some((versions.stamp, versions.live.clone()));
            }
            versions.stamp = epoch;
            self.stamp.set(epoch.0);
        }
        (change(&mut versions.live), is_first)
    }

    /// The value at the end of `sealed`, for [`Stageable::stage`]. For the committer, once an epoch.
    pub fn take_sealed(&self, sealed: Epoch) -> T {
        let mut versions = self.versions.lock();
        versions.staged = sealed;
        match versions.sealed.take() {
            Some((epoch, value))
                if epoch == sealed && !canary::makes(Canary::NextEpochInSealedImage) =>
            {
                value
            }
            // The stamp is not beyond the sealed epoch, or there would be a copy: nobody changes it before a look
            // under this latch.
            _ => versions.live.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_epoch_keeps_its_value_whoever_comes_first() {
        let object = Object::new(0);
        assert!(object.change_in(Epoch(1), |value| *value = 1).1);
        assert!(!object.change_in(Epoch(1), |value| *value = 2).1);
        // The writer of the next epoch comes first.
        assert!(object.change_in(Epoch(2), |value| *value = 3).1);
        assert_eq!(object.take_sealed(Epoch(1)), 2);
        // The committer comes first.
        assert_eq!(object.take_sealed(Epoch(2)), 3);
        assert!(object.change_in(Epoch(3), |value| *value = 4).1);
        assert_eq!(object.take_sealed(Epoch(3)), 4);
        assert_eq!(object.read(|value| *value), 4);
    }

    #[test]
    fn a_value_that_is_clean_in_the_sealed_epoch_leaves_no_copy() {
        let object = Object::new(7);
        assert!(object.change_in(Epoch(5), |value| *value = 8).1);
        assert!(object.versions.lock().sealed.is_none());
    }
}
