//! The feature that a file of 2 GiB or more asks for: turned on by the first step that makes one, in the same
//! transaction.
//!
//! A step says so under its handle; the committer puts the feature into the superblock's image. An earlier epoch has
//! drained when a later one begins, so whoever finds it turned on is in the epoch that did so, or behind it. What a
//! crash leaves: no such file, or the feature.

use journal::{Epoch, EpochLists, Folded, Handle, JournalError};
use ondisk::{Feature, Geometry};
use sync::atomic::{AtomicBool, Ordering};

use super::change_superblock;

/// Bytes of the largest file without the feature.
const MOST_WITHOUT: u64 = (1 << 31) - 1;

/// Whether the feature is on.
pub(crate) struct LargeFile {
    /// [atomic: Relaxed, set once; epochs order it]
    is_on: AtomicBool,
    new: EpochLists<()>,
}

impl LargeFile {
    pub(crate) fn new(is_on: bool) -> LargeFile {
        LargeFile {
            is_on: AtomicBool::new(is_on),
            new: EpochLists::new(),
        }
    }

    /// Blocks of a handle that [`LargeFile::note`] uses at most.
    pub(crate) fn cost(&self) -> u32 {
        // Relaxed: it is only ever turned on, and costs nothing then.
        u32::from(!self.is_on.load(Ordering::Relaxed))
    }

    /// A file has so many bytes in the handle's epoch. The caller took [`LargeFile::cost`] into account.
    pub(crate) fn note(&self, handle: &Handle<'_>, size: u64) {
        // Relaxed: epochs order it, see the module.
        if size > MOST_WITHOUT && !self.is_on.swap(true, Ordering::Relaxed) {
            handle.use_block();
            self.new.push(handle, ());
        }
    }

    /// Folds a sealed epoch's feature into the superblock's image.
    pub(crate) fn fold(
        &self,
        geometry: &Geometry,
        sealed: Epoch,
        folded: &mut Folded<'_>,
    ) -> Result<(), JournalError> {
        match self.new.take(sealed).is_empty() {
            true => Ok(()),
            false => change_superblock(geometry, folded, |sb| {
                sb.set_features(sb.features().with(Feature::LARGE_FILE));
            }),
        }
    }
}
