//! The order in which a search looks at groups: the interface of the two forms.
//!
//! Both forms look at the groups of a range from its first on, and skip those whose hints say that they don't have
//! what is wanted. The hints of both forms are updated under each group's lock whichever form is used, so the form can
//! be changed at any time.

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
