//! The superblock that a check will use, for a caller that needs it before the check, to replay the journal.

use device::BlockDevice;
use ondisk::{Geometry, Superblock};

use crate::error::Error;
use crate::geometry;
use crate::report::{Findings, Problem};

/// The superblock that a check uses, and what is wrong with the first one.
pub struct ServingSuperblock {
    /// The superblock, with its wrong numbers mended, and its geometry; `None` if no superblock can be used.
    pub found: Option<(Superblock, Geometry)>,
    /// What is wrong with the first superblock.
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
