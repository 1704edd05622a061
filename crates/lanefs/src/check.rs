//! Checking a file system: the checker's independent reading, on the image as a mount would find it.
//!
//! A journal that is to be replayed is replayed in memory first (fast commits too), and the image stays untouched.

pub use check::problem::TABLE;
pub use check::{
    Class, Code, Error, Kind, Options, PassProgress, PassSpan, Preen, Problem, Report, Severity,
    Stage, Totals,
};
use device::BlockDevice;
use engine::{InodeFs, MountOptions};
use jbd2::recovery;
use ondisk::{Geometry, Superblock};
use sync::Arc;

use crate::substitute::{self, Substitute};

/// Checks the file system on `device`. `journal_device` is the device of an external journal, where there is one.
///
/// # Errors
/// When there can be no verdict; what is wrong with the file system is in the report.
pub fn check(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    options: &Options<'_>,
) -> Result<Report, Error> {
    let mut report = judge(device, journal_device.clone(), options)?;
    add_unknown_features(&mut report, &**device, options);
    see_journal(&mut report, device, journal_device);
    Ok(report)
}

/// Reports unknown features of the first superblock that forbid writing, also where the log holds a superblock without
/// them: e2fsck refuses the file system before it replays the log.
fn add_unknown_features(report: &mut Report, device: &dyn BlockDevice, options: &Options<'_>) {
    let may_write = |sb: &Superblock| {
        let unknown = check::unknown_features(sb);
        sb.verify().is_err() || unknown.ro_compat == 0
    };
    let sb = substitute::first(device).ok();
    let sb = sb.filter(|sb| options.superblock.is_none() && !may_write(sb));
    if let Some(sb) = sb
        && !report.counts.contains_key(&Code::FeatureUnknown)
    {
        let unknown = check::unknown_features(&sb).to_string();
        report.add(Code::FeatureUnknown, &unknown);
    }
}

/// Removes the note that the external journal was not checked, if the caller gave its device and it can be read.
pub(crate) fn see_journal(
    report: &mut Report,
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
) {
    if journal_device.is_none() || !report.counts.contains_key(&Code::JournalExternal) {
        return;
    }
    if report.counts.contains_key(&Code::JournalReplayFailed) {
        // It was looked at.
        return report.forget(Code::JournalExternal);
    }
    let read = || {
        let sb = substitute::first(&**device).ok()?;
        let geometry = Geometry::new(&sb, device.size()).ok()?;
        let device = Arc::clone(device);
        recovery::scan_and_overlay(device, &sb, &geometry, journal_device).ok()
    };
    if read().is_some_and(|scanned| scanned.report.is_external) {
        report.forget(Code::JournalExternal);
    }
}

fn judge(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    options: &Options<'_>,
) -> Result<Report, Error> {
    match substitute::find(device, &journal_device, options.superblock) {
        Ok(Some(substitute)) if !substitute.is_torn => {
            return check_under(device, journal_device, &substitute, options);
        }
        Ok(_) => {}
        Err(error) => return check_unreplayed(device, &error.to_string(), options),
    }
    if options.superblock.is_some() || !is_dirty(&**device) {
        return at_this_time(&**device, options);
    }
    match replayed(device, journal_device) {
        Ok(fs) => check_replayed(&fs, options),
        Err(error) => check_unreplayed(device, &error.to_string(), options),
    }
}

fn replayed(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
) -> Result<InodeFs, engine::Error> {
    let choices = MountOptions {
        journal_device,
        ..MountOptions::default()
    };
    InodeFs::open(Arc::clone(device), &choices)
}

/// Checks the image as it is, and reports why the log could not be replayed.
fn check_unreplayed(
    device: &Arc<dyn BlockDevice>,
    why: &str,
    options: &Options<'_>,
) -> Result<Report, Error> {
    let mut report = at_this_time(&**device, options)?;
    report.add(Code::JournalReplayFailed, why);
    Ok(report)
}

fn check_replayed(fs: &InodeFs, options: &Options<'_>) -> Result<Report, Error> {
    let options = Options {
        is_replayed: true,
        superblock: None,
        ..*options
    };
    at_this_time(&**fs.device(), &options)
}

/// Checks the image as it is once the log is replayed under the substitute.
fn check_under(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    substitute: &Substitute,
    options: &Options<'_>,
) -> Result<Report, Error> {
    let view =
        substitute::laid_over(device, &substitute.superblock).map_err(|_| Error::Unreadable)?;
    match replayed(&view, journal_device) {
        Ok(fs) => {
            let mut report = check_replayed(&fs, options)?;
            report.put_first(substitute.problems.clone());
            Ok(report)
        }
        Err(error) => check_unreplayed(device, &error.to_string(), options),
    }
}

fn at_this_time(device: &dyn BlockDevice, options: &Options<'_>) -> Result<Report, Error> {
    let now = u64::try_from(crate::now().seconds).unwrap_or(0);
    check::check_at(device, options, now)
}

/// Whether the first superblock asks for a replay.
fn is_dirty(device: &dyn BlockDevice) -> bool {
    use ondisk::Feature;
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(Superblock::OFFSET, &mut bytes).is_ok()
        && Superblock::view(&bytes)
            .features()
            .has(Feature::NEEDS_RECOVERY)
}
