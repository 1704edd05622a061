//! Writes of a file that failed after their caller was gone: each thread that syncs the file learns of them once
//! (errseq in Linux). Not on disk; a crash forgets them.

use sync::{Hint, Statistic};

/// What failed, and what was reported of it.
pub(crate) struct WriteErrors {
    /// Failed write-outs so far. [atomic: Relaxed, a statistic]
    failed: Statistic<u32>,
    /// How many there were when one was last reported. [atomic: Relaxed, hint]
    reported: Hint<u32>,
}

impl WriteErrors {
    pub(super) fn new() -> WriteErrors {
        WriteErrors {
            failed: Statistic::new(0),
            reported: Hint::new(0),
        }
    }

    /// A write-out failed.
    pub(crate) fn add(&self) {
        self.failed.add(1);
    }

    /// How many failed write-outs were reported: what a handle that is opened now counts as seen.
    pub(crate) fn reported(&self) -> u32 {
        self.reported.get()
    }

    /// Whether a write-out failed after the `seen` ones that a handle has reported; `seen` is brought up to date.
    pub(crate) fn report(&self, seen: &mut u32) -> bool {
        let now = self.failed.get();
        if now == *seen {
            return false;
        }
        *seen = now;
        // If two handles report at once, either count will do: at worst the other one reports again.
        self.reported.set(now);
        true
    }

    /// Whether every failure was reported.
    pub(super) fn are_reported(&self) -> bool {
        self.failed.get() == self.reported()
    }
}
