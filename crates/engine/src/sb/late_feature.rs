//! A feature that the file system does without until something asks for it, as a file of 2 GiB or the first attribute
//! does: turned on by the first step that needs it, in the same transaction.
//!
//! A step says so under its handle; the committer puts the feature into the superblock's image. An earlier epoch has
//! drained when a later one begins, so whoever finds it turned on is in the epoch that did so, or behind it. What a
//! crash leaves: nothing that needs the feature, or the feature.

use journal::{Epoch, EpochLists, Folded, Handle, JournalError};
use ondisk::{Feature, Geometry};
use sync::atomic::{AtomicBool, Ordering};

use super::change_superblock;

/// Bytes of the largest file without `large_file`.
const MOST_WITHOUT: u64 = (1 << 31) - 1;

/// Whether a file of this size needs `large_file`.
pub(crate) fn needs_large_file(size: u64) -> bool {
    size > MOST_WITHOUT
}

/// A feature, and whether it is on.
pub(crate) struct LateFeature {
    feature: Feature,
    /// [atomic: Relaxed, set once; epochs order it]
    is_on: AtomicBool,
    new: EpochLists<()>,
}

impl LateFeature {
    /// A feature that the file system has, or may get.
    pub(crate) fn new(geometry: &Geometry, feature: Feature) -> LateFeature {
        LateFeature {
            feature,
            is_on: AtomicBool::new(geometry.has(feature)),
            new: EpochLists::new(),
        }
    }

    /// Blocks of a handle that [`LateFeature::need`] uses at most.
    pub(crate) fn cost(&self) -> u32 {
        // Relaxed: it is only ever turned on, and costs nothing then.
        u32::from(!self.is_on.load(Ordering::Relaxed))
    }

    /// What the handle's step does needs the feature. The caller took [`LateFeature::cost`] into account.
    pub(crate) fn need(&self, handle: &Handle<'_>) {
        // Relaxed: epochs order it, see the module. Read first, so that what is on is not written by every step.
        if !self.is_on.load(Ordering::Relaxed) && !self.is_on.swap(true, Ordering::Relaxed) {
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
                sb.set_features(sb.features().with(self.feature));
            }),
        }
    }
}
