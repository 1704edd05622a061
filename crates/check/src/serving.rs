//! The superblock that serves a check, for a caller that must know it before the check: to replay a journal.

use device::BlockDevice;
use ondisk::{Geometry, Superblock};

use crate::error::Error;
use crate::geometry;
use crate::report::{Findings, Problem};

/// The superblock that serves, and why not the first one.
pub struct ServingSuperblock {
    /// The superblock with its numbers, as it is in its place or as it is mended; none where none can be used.
    pub found: Option<(Superblock, Geometry)>,
    /// What is wrong with the first one.
    pub problems: Vec<Problem>,
}

/// The superblock that a check of `device` begins with: the copy at `asked` KiB, else the first, else a copy. Only
/// reads.
///
/// # Errors
/// As for [`crate::check`].
pub fn serving_superblock(
    device: &dyn BlockDevice,
    asked: Option<u64>,
) -> Result<ServingSuperblock, Error> {
    let findings = Findings::new();
    let found = geometry::superblock(device, asked, &findings)?;
    let problems = findings.into_report(None).problems;
    Ok(ServingSuperblock { found, problems })
}
