//! In which order groups are looked at: the small face, which both forms have.
//!
//! Both forms look at the groups of a range from its first on, and pass by those whose hints say that they don't have
//! what is wanted. What they look at is kept right whichever form is used, under each group's lock, so that the form
//! can change at any time.

use std::ops::Range;

use ondisk::Group;

use super::Groups;

/// What a group is looked at for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScanPurpose {
    /// A free chunk of this order.
    Chunk(u32),
    /// Runs of free blocks that are as long as such a chunk on average.
    Average(u32),
    /// Possibly a run of this number of free blocks.
    Run(u32),
    /// A free block.
    Any,
}

/// A way to go through groups.
pub(super) trait Scan: Send + Sync {
    /// The first group of a range that may have what is wanted. A hint: the caller looks again under the group's lock.
    fn next(&self, groups: &Groups, range: Range<u32>, wanted: ScanPurpose) -> Option<Group>;
}
