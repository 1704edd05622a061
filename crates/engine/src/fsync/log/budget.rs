//! The cost of replaying a log, bounded so that a mount by Linux takes at most a second or two.
//!
//! Linux looks at all blocks of a file's holes, one by one, for each of its ranges; and for each record of an inode it
//! writes the bitmaps of all of its extents. Both have an upper bound for a whole log. An fsync that would exceed it is
//! committed in full, which ends the log; the next log is counted from 0.

use sync::{Mutex, Rank};

/// Blocks of holes that a log's ranges bring.
const HOLES_MOST: u64 = 1 << 22;
/// Extents that a log's inodes bring.
const EXTENTS_MOST: u64 = 16_384;

/// What records bring of each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Cost {
    pub(crate) holes: u64,
    pub(crate) extents: u64,
}

impl Cost {
    /// With what more records bring.
    pub(crate) fn and(self, more: Cost) -> Cost {
        Cost {
            holes: self.holes.saturating_add(more.holes),
            extents: self.extents.saturating_add(more.extents),
        }
    }
}

/// What the records of one log bring so far.
pub(super) struct Budget {
    /// [leaf]
    spent: Mutex<Cost>,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget {
            spent: Mutex::new(Rank::Leaf, Cost::default()),
        }
    }

    /// Takes more records in, or refuses them: then they cost nothing.
    pub(super) fn spend(&self, more: Cost) -> bool {
        let mut spent = self.spent.lock();
        let both = spent.and(more);
        let fits = both.holes <= HOLES_MOST && both.extents <= EXTENTS_MOST;
        if fits {
            *spent = both;
        }
        fits
    }

    /// The log has ended.
    pub(super) fn renew(&self) {
        *self.spent.lock() = Cost::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_takes_what_fits_and_the_next_one_as_much() {
        let budget = Budget::new();
        let cost = |holes, extents| Cost { holes, extents };
        assert!(budget.spend(cost(HOLES_MOST - 1, 4)));
        assert!(!budget.spend(cost(2, 4)));
        assert!(!budget.spend(cost(u64::MAX, 0)));
        assert!(budget.spend(cost(1, EXTENTS_MOST - 4)));
        assert!(!budget.spend(cost(0, 1)));
        assert!(budget.spend(cost(0, 0)));
        budget.renew();
        assert!(budget.spend(cost(HOLES_MOST, EXTENTS_MOST)));
    }
}
