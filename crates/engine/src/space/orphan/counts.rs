//! What the forms count of their looks for slots, a lane a thread. No locks; a crash leaves nothing of it.

use sync::Counter;

use super::slots::Met;

/// Counts of one form.
#[derive(Default)]
pub(super) struct Counts {
    taken: Counter,
    skipped: Counter,
    passes: Counter,
    lost: Counter,
    fallbacks: Counter,
}

impl Counts {
    /// Counts a search that found a slot or did not, skipped `skipped` full ranges, and met this.
    pub(super) fn note(&self, found: bool, skipped: u64, met: Met) {
        if found {
            self.taken.add(1)
        } else {
            self.fallbacks.add(1)
        }
        for (counter, amount) in [
            (&self.skipped, skipped),
            (&self.passes, met.passes),
            (&self.lost, met.lost),
        ] {
            if amount > 0 {
                counter.add(amount);
            }
        }
    }

    /// The names and sums, of which `other` has more.
    pub(super) fn sums(&self, other: &Counts) -> [(&'static str, u64); 5] {
        let sum = |of: fn(&Counts) -> &Counter| of(self).sum() + of(other).sum();
        [
            ("orphan.slots_taken", sum(|counts| &counts.taken)),
            ("orphan.ranges_skipped", sum(|counts| &counts.skipped)),
            ("orphan.passes_in_vain", sum(|counts| &counts.passes)),
            ("orphan.swaps_lost", sum(|counts| &counts.lost)),
            ("orphan.list_fallbacks", sum(|counts| &counts.fallbacks)),
        ]
    }

    #[cfg(test)]
    pub(super) fn in_vain(&self) -> u64 {
        self.passes.sum()
    }

    #[cfg(test)]
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.sum()
    }

    #[cfg(test)]
    pub(super) fn cas_lost(&self) -> u64 {
        self.lost.sum()
    }
}
