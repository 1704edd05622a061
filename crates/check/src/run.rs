//! The passes in their order.

use std::fmt;
use std::ops::Range;

use device::BlockDevice;
use ondisk::{Feature, FsBlock, Unsupported};
use sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use crate::claims::Claims;
use crate::inodes;
use crate::problem::Code;
use crate::report::{Findings, Problem, Report};
use crate::shared::Shared;
use crate::table::InodeTable;
use crate::volume::{Unread, Volume};
use crate::work::{Crew, PassProgress, PassSpan};
use crate::{backups, dirs, geometry, links, paths, quota, special, tally, xattr};

/// How to check.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Threads; 0 for as many as run at once.
    pub threads: usize,
    /// Bytes that the record of blocks in use may take; without it, what the whole file system needs.
    pub memory: Option<u64>,
    /// The copy of the superblock to use, in KiB from the start.
    pub superblock: Option<u64>,
    /// The journal was replayed into this device by the caller.
    pub is_replayed: bool,
    /// Ends the check early once set.
    pub cancelled: &'a AtomicBool,
    /// Is told how far the passes are, often and from any thread.
    pub progress: &'a (dyn Fn(PassProgress) + Sync),
    /// Is told which thread worked on which pass, and when.
    pub trace: Option<&'a (dyn Fn(PassSpan) + Sync)>,
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
    let windows = Claims::windows(&geometry, options.memory);
    let claims = Claims::new(&geometry, windows.first().cloned().unwrap_or(0..0));
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
        crew: Crew {
            threads,
            cancelled: options.cancelled,
            progress: options.progress,
            trace: options.trace,
            stage: AtomicU8::new(0),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
        },
        orphans: Vec::new(),
        unread: Unread::default(),
    };
    volume.orphans = special::orphans(&volume);
    let totals = passes(&mut volume, &windows, mmp)?;
    drop(volume);
    Ok(findings.into_report(totals))
}

fn go_on(volume: &Volume<'_>) -> Result<(), Error> {
    match volume.crew.is_cancelled() {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}

/// The first window's blocks are claimed by the inode pass; for each other one the inodes are read again.
fn other_windows(
    volume: &mut Volume<'_>,
    windows: &[Range<u32>],
    mmp: Option<FsBlock>,
    sums: &tally::Sums,
) -> Result<(), Error> {
    let unheard = Findings::new();
    for window in windows.iter().skip(1) {
        volume.claims = Claims::new(&volume.geometry, window.clone());
        let (geometry, groups) = (&volume.geometry, &volume.groups);
        geometry::claim_metadata(geometry, groups, mmp, &volume.claims, &unheard);
        inodes::claim_again(volume);
        inodes::find_owners(volume);
        go_on(volume)?;
        tally::blocks_of(volume, sums);
    }
    Ok(())
}

fn passes(
    volume: &mut Volume<'_>,
    windows: &[Range<u32>],
    mmp: Option<FsBlock>,
) -> Result<Option<crate::Totals>, Error> {
    special::journal(volume);
    special::mmp(volume);
    let gathered = inodes::pass(volume);
    inodes::find_owners(volume);
    xattr::check_references(volume);
    go_on(volume)?;
    let sums = tally::Sums::default();
    tally::blocks_of(volume, &sums);
    other_windows(volume, windows, mmp, &sums)?;
    let tree = dirs::pass(volume, gathered.directories, gathered.policies);
    go_on(volume)?;
    links::connectivity(volume, &tree);
    links::counts(volume);
    go_on(volume)?;
    let totals = tally::pass(volume, &sums, gathered.fragmented);
    quota::check(volume, &gathered.quota);
    backups::check(volume);
    paths::find(volume, &tree);
    go_on(volume)?;
    Ok(Some(totals))
}
