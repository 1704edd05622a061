//! Runs the passes of a check in their order.

use std::ops::Range;

use device::BlockDevice;
use ondisk::{Feature, Geometry, Superblock};
use sync::atomic::AtomicBool;
use sync::{Guarded, Statistic};

use crate::claims::Claims;
use crate::dirs::Tree;
use crate::error::Error;
use crate::inodes;
use crate::metadata::MetadataRuns;
use crate::problem::Code;
use crate::report::{Findings, Problem, Report, Totals};
use crate::shared::Shared;
use crate::table::InodeTable;
use crate::volume::{GroupFacts, Unread, Volume};
use crate::work::{Crew, PassProgress, PassSpan};
use crate::{backups, dirs, geometry, links, paths, quota, special, tally, times, xattr};

/// How to check.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The number of threads; 0 for one for each processor that the process may use.
    pub threads: usize,
    /// The most bytes that the record of blocks in use takes, though never less than one group needs. Without it, the
    /// record covers the whole file system at once.
    pub memory: Option<u64>,
    /// Where the copy of the superblock to use is, in KiB from the device's start. Without it, the first superblock is
    /// used, or a copy if that is damaged.
    pub superblock: Option<u64>,
    /// Whether the caller has replayed the journal into this device.
    pub is_replayed: bool,
    /// Once set, the check ends early with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
    /// Called with the progress of the passes, often and from any thread.
    pub progress: &'a (dyn Fn(PassProgress) + Sync),
    /// Called with the thread and the time of each part of a pass.
    pub trace: Option<&'a (dyn Fn(PassSpan) + Sync)>,
}

/// What the passes learned of a file system besides its problems. A repair decides by it.
pub struct Facts {
    pub sb: Superblock,
    pub geometry: Geometry,
    pub groups: Vec<GroupFacts>,
    pub metadata: MetadataRuns,
    pub claims: Claims,
    pub inodes: InodeTable,
    /// The inodes that the orphan list and the orphan file name. Sorted.
    pub orphans: Vec<u32>,
    pub tree: Tree,
    /// Whether part of the inodes or of a map could not be read, so that more may be in use than is known.
    pub has_unread: bool,
}

/// A report, with the superblock and the facts that it was made from, if they could be read.
pub struct Examined {
    pub report: Report,
    /// The superblock that the check used, and its geometry.
    pub layout: Option<(Superblock, Geometry)>,
    /// `None` if the superblock or the descriptors can't be used.
    pub facts: Option<Facts>,
}

impl Examined {
    fn without_facts(findings: Findings, layout: Option<(Superblock, Geometry)>) -> Examined {
        Examined {
            report: findings.into_report(None),
            layout,
            facts: None,
        }
    }

    /// Adds the notes of the superblock's times to the report.
    pub fn judge_times(&mut self, now: u64) {
        if let Some((sb, _)) = &self.layout {
            times::add_future(&mut self.report, sb, now);
        }
    }
}

/// Checks the file system on a device.
///
/// # Errors
/// If no verdict is possible. What is wrong with the file system is not an error, but in the report.
pub fn check(device: &dyn BlockDevice, options: &Options<'_>) -> Result<Report, Error> {
    Ok(examine(device, options)?.report)
}

/// Checks as [`check`] does, and adds a note for each time in the superblock that is more than a day later than `now`,
/// which is in seconds since 1970.
///
/// # Errors
/// Those of [`check`].
pub fn check_at(
    device: &dyn BlockDevice,
    options: &Options<'_>,
    now: u64,
) -> Result<Report, Error> {
    let mut examined = examine(device, options)?;
    examined.judge_times(now);
    Ok(examined.report)
}

/// Checks the file system on a device, and also returns what it learned of it.
pub fn examine(device: &dyn BlockDevice, options: &Options<'_>) -> Result<Examined, Error> {
    let findings = Findings::new();
    if options.is_replayed {
        findings.add(Problem::new(Code::JournalReplayed));
    }
    let Some((mut sb, geometry)) = geometry::superblock(device, options.superblock, &findings)?
    else {
        return Ok(Examined::without_facts(findings, None));
    };
    if options.is_replayed {
        sb.set_features(sb.features().without(Feature::NEEDS_RECOVERY));
    }
    geometry::fields(&sb, &geometry, &findings);
    let layout = Some((sb, geometry));
    let Some(groups) = geometry::descriptors(device, &geometry, &findings) else {
        return Ok(Examined::without_facts(findings, layout));
    };
    let windows = Claims::windows(&geometry, options.memory);
    let claims = Claims::new(&geometry, windows.first().cloned().unwrap_or(0..0));
    let metadata = geometry::metadata(&sb, &geometry, &groups, &findings);
    geometry::claim_metadata(&geometry, &metadata, &claims);
    let threads = match options.threads {
        0 => sync::thread::available_parallelism(),
        threads => threads,
    };
    let mut volume = Volume {
        device,
        sb,
        geometry,
        groups,
        metadata,
        claims,
        inodes: InodeTable::new(&geometry),
        shared: Shared::new(),
        findings: &findings,
        crew: Crew {
            threads,
            cancelled: options.cancelled,
            progress: options.progress,
            trace: options.trace,
            stage: Guarded::new(0),
            done: Statistic::new(0),
            total: Guarded::new(0),
        },
        orphans: Vec::new(),
        unread: Unread::default(),
    };
    volume.orphans = special::orphans(&volume);
    let (totals, tree) = passes(&mut volume, &windows)?;
    let facts = Facts {
        sb,
        geometry,
        has_unread: volume.unread.maps(),
        groups: volume.groups,
        metadata: volume.metadata,
        claims: volume.claims,
        inodes: volume.inodes,
        orphans: volume.orphans,
        tree,
    };
    Ok(Examined {
        report: findings.into_report(Some(totals)),
        layout,
        facts: Some(facts),
    })
}

fn go_on(volume: &Volume<'_>) -> Result<(), Error> {
    if volume.crew.is_cancelled() {
        Err(Error::Cancelled)
    } else {
        Ok(())
    }
}

/// Records and compares the blocks of the windows after the first. The inode pass did that for the first window; for
/// each other one the inodes are read again.
fn other_windows(
    volume: &mut Volume<'_>,
    windows: &[Range<u32>],
    sums: &tally::Sums,
) -> Result<(), Error> {
    for window in windows.iter().skip(1) {
        volume.claims = Claims::new(&volume.geometry, window.clone());
        geometry::claim_metadata(&volume.geometry, &volume.metadata, &volume.claims);
        inodes::claim_again(volume);
        inodes::find_owners(volume);
        go_on(volume)?;
        tally::blocks_of(volume, sums);
    }
    Ok(())
}

fn passes(volume: &mut Volume<'_>, windows: &[Range<u32>]) -> Result<(Totals, Tree), Error> {
    special::journal(volume);
    special::mmp(volume);
    let gathered = inodes::pass(volume);
    inodes::find_owners(volume);
    xattr::check_references(volume);
    go_on(volume)?;
    let sums = tally::Sums::default();
    tally::blocks_of(volume, &sums);
    other_windows(volume, windows, &sums)?;
    let tree = dirs::pass(volume, gathered.directories, gathered.policies);
    go_on(volume)?;
    links::connectivity(volume, &tree);
    links::counts(volume);
    go_on(volume)?;
    let totals = tally::pass(volume, &sums, gathered.fragmented);
    special::named_without_feature(volume);
    quota::check(volume, &gathered.quota);
    backups::check(volume);
    paths::find(volume, &tree);
    go_on(volume)?;
    Ok((totals, tree))
}
