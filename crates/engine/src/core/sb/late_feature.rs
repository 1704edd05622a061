//! A feature that the file system does without until something asks for it, as a file of 2 GiB or the first attribute
//! does: turned on by the first step that needs it, in the same transaction.
//!
//! A step records the need under its handle; the committer puts the feature into the superblock's image. An earlier
//! epoch has drained when a later one begins, so a thread that finds the feature turned on is in the epoch that did so,
//! or in a later one. A fast commit does not record it, so a thread that logs what needs the feature asks
//! [`LateFeature::was_on_before`]. What a crash leaves: nothing that needs the feature, or the feature.

use journal::{Epoch, EpochLists, Folded, Handle, JournalError};
use ondisk::{Feature, Geometry};
use sync::Guarded;

use super::change_superblock;

/// The epoch that turned on what is off.
const OFF: u64 = u64::MAX;

/// Bytes of the largest file without `large_file`.
const MOST_WITHOUT: u64 = (1 << 31) - 1;

/// Whether a file of this size needs `large_file`.
pub(crate) fn needs_large_file(size: u64) -> bool {
    size > MOST_WITHOUT
}

/// A feature, and whether it is on.
pub(crate) struct LateFeature {
    feature: Feature,
    /// The epoch that turned it on; 0 if it was on before all, or `OFF`. [set once; epochs order it]
    on_since: Guarded<u64>,
    new: EpochLists<()>,
}

impl LateFeature {
    /// A feature that the file system has, or may get.
    pub(crate) fn new(geometry: &Geometry, feature: Feature) -> LateFeature {
        LateFeature {
            feature,
            on_since: Guarded::new(if geometry.has(feature) { 0 } else { OFF }),
            new: EpochLists::new(),
        }
    }

    /// Blocks of a handle that [`LateFeature::need`] uses at most.
    pub(crate) fn cost(&self) -> u32 {
        // It is only ever turned on, and costs nothing then.
        u32::from(self.on_since.get() == OFF)
    }

    /// Whether the feature was on when an epoch began.
    pub(crate) fn was_on_before(&self, epoch: Epoch) -> bool {
        // The thread that changed what needs the feature turned it on, or found it on, before.
        self.on_since.get() < epoch.0
    }

    /// What the handle's step does needs the feature. The caller took [`LateFeature::cost`] into account.
    pub(crate) fn need(&self, handle: &Handle<'_>) {
        // Read first, so that what is on is not written by every step.
        if self.on_since.get() != OFF {
            return;
        }
        if self.on_since.replace(OFF, handle.epoch().0).is_ok() {
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
        if self.new.take(sealed).is_empty() {
            Ok(())
        } else {
            change_superblock(geometry, folded, |sb| {
                sb.set_features(sb.features().with(self.feature));
            })
        }
    }
}
