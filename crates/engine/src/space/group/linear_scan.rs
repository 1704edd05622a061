//! The plain form (`mb_optimize_scan=0`): one group after the other, each group's own line read. No lock.

use std::ops::Range;

use ondisk::Group;

use super::Groups;
use super::scan::{Scan, ScanPurpose};

/// See the module.
pub(super) struct Linear;

impl Scan for Linear {
    fn next(&self, groups: &Groups, range: Range<u32>, wanted: ScanPurpose) -> Option<Group> {
        range
            .map(Group)
            .find(|group| groups.may_have(*group, wanted))
    }
}
