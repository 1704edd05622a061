//! The passes in their order.

use std::fmt;

use device::BlockDevice;
use ondisk::{Feature, Unsupported};
use sync::atomic::{AtomicBool, Ordering};

use crate::claims::Claims;
use crate::inodes::{self, Collected};
use crate::problem::Code;
use crate::report::{Findings, Problem, Report};
use crate::shared::Shared;
use crate::table::InodeTable;
use crate::volume::Volume;
use crate::{dirs, geometry, links, special, tally, xattr};

/// How to check.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Threads; 0 for as many as run at once.
    pub threads: usize,
    /// The copy of the superblock to use, in KiB from the start.
    pub superblock: Option<u64>,
    /// The journal was replayed into this device by the caller.
    pub is_replayed: bool,
    /// Ends the check early once set.
    pub cancelled: &'a AtomicBool,
    /// Is told of each stage as it begins.
    pub stage: &'a (dyn Fn(Stage) + Sync),
}

/// A pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Inodes, their maps and attributes.
    Inodes,
    /// Directories.
    Directories,
    /// Connectivity.
    Connectivity,
    /// Link counts.
    Links,
    /// Bitmaps and counts.
    Counts,
}

/// Why there is no verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The superblock can't be read.
    Unreadable,
    /// The file system has what this checker does not know.
    Unsupported(Unsupported),
    /// The caller ended the check.
    Cancelled,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreadable => f.write_str("the superblock can't be read"),
            Error::Unsupported(unsupported) => unsupported.fmt(f),
            Error::Cancelled => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}

/// Checks the file system on a device.
///
/// # Errors
/// When there can be no verdict; whatever is wrong with the file system is in the report.
pub fn check(device: &dyn BlockDevice, options: &Options<'_>) -> Result<Report, Error> {
    let findings = Findings::new();
    if options.is_replayed {
        findings.add(Problem::new(Code::JournalReplayed));
    }
    let Some((mut sb, geometry)) = geometry::superblock(device, options.superblock, &findings)?
    else {
        return Ok(findings.into_report(None));
    };
    if options.is_replayed {
        sb.set_features(sb.features().without(Feature::NEEDS_RECOVERY));
    }
    geometry::fields(&sb, &geometry, &findings);
    let Some(groups) = geometry::descriptors(device, &geometry, &findings) else {
        return Ok(findings.into_report(None));
    };
    let claims = Claims::new(&geometry);
    let mmp = sb.mmp_block();
    let mmp = (geometry.has(Feature::MMP) && geometry.contains(mmp, 1)).then_some(mmp);
    geometry::claim_metadata(&geometry, &groups, mmp, &claims, &findings);
    let threads = match options.threads {
        0 => sync::thread::available_parallelism(),
        threads => threads,
    };
    let mut volume = Volume {
        device,
        sb,
        geometry,
        groups,
        claims,
        inodes: InodeTable::new(&geometry),
        shared: Shared::new(),
        findings: &findings,
        threads,
        cancelled: options.cancelled,
        orphans: Vec::new(),
    };
    volume.orphans = special::orphans(&volume);
    let totals = passes(&volume, options)?;
    drop(volume);
    Ok(findings.into_report(totals))
}

fn passes(volume: &Volume<'_>, options: &Options<'_>) -> Result<Option<crate::Totals>, Error> {
    let begin = |stage| {
        (options.stage)(stage);
        // Relaxed: a late look at the flag costs a pass that ends at once.
        match options.cancelled.load(Ordering::Relaxed) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    };
    special::journal(volume);
    special::quota(volume);
    special::mmp(volume);
    begin(Stage::Inodes)?;
    let collected = Collected::new();
    inodes::pass(volume, &collected);
    inodes::find_owners(volume);
    xattr::check_references(volume);
    begin(Stage::Directories)?;
    let tree = dirs::pass(volume, &collected);
    begin(Stage::Connectivity)?;
    links::connectivity(volume, &tree);
    begin(Stage::Links)?;
    links::counts(volume);
    begin(Stage::Counts)?;
    // Relaxed: the threads are joined.
    let fragmented = collected.fragmented.load(Ordering::Relaxed);
    let totals = tally::pass(volume, fragmented);
    // Relaxed: as in `begin`.
    match options.cancelled.load(Ordering::Relaxed) {
        true => Err(Error::Cancelled),
        false => Ok(Some(totals)),
    }
}
