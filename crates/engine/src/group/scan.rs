//! In which order groups are looked at: the small face, and which form is used.
//!
//! Both forms look at the groups of a range from its first on, and pass by those whose hints say that they don't have
//! what is wanted. What they look at is kept right whichever form is used, under each group's lock, so that the form
//! can change at any time.

use std::ops::Range;

use ondisk::Group;

use super::Groups;
use crate::variants::{Chosen, GroupScan};

mod linear;
mod ordered;

use linear::Linear;
use ordered::Ordered;
pub(super) use ordered::Orders;

/// What a group is looked at for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScanPurpose {
    /// A free chunk of this order.
    Chunk(u32),
    /// Runs of free blocks that are as long as such a chunk on average.
    Average(u32),
    /// Possibly a run of so many free blocks.
    Run(u32),
    /// A free block.
    Any,
}

/// A way to go through groups.
pub(super) trait Scan: Send + Sync {
    /// The first group of a range that may have what is wanted. A hint: who acts on it looks under the group's lock.
    fn next(&self, groups: &Groups, range: Range<u32>, wanted: ScanPurpose) -> Option<Group>;
}

/// Both forms, and which is used.
pub(super) struct Scans(Chosen<GroupScan>);

impl Scans {
    pub(super) fn new(form: GroupScan) -> Scans {
        Scans(Chosen::new(form))
    }

    /// From now on this form is used.
    pub(super) fn choose(&self, form: GroupScan) {
        self.0.set(form);
    }

    fn used(&self) -> &'static dyn Scan {
        match self.0.get() {
            GroupScan::Ordered => &Ordered,
            GroupScan::Linear => &Linear,
        }
    }
}

impl Groups {
    /// The first group of a range that may have what is wanted, by the form that is used.
    pub(crate) fn next_group(&self, range: Range<u32>, wanted: ScanPurpose) -> Option<Group> {
        self.scans.used().next(self, range, wanted)
    }
}

#[cfg(test)]
mod tests;
