//! Replay onto the device.
//!
//! Four steps, with a flush after each:
//!
//! 1. write the blocks of the log once more, to the places that they were read from;
//! 2. write the copies to their homes;
//! 3. mark the journal clean in its superblock;
//! 4. mark the file system as not needing recovery in its superblock.
//!
//! Step 1 is needed because what was read of the log may be in the host's cache only: its writer was killed before the
//! flush, or the flush failed, and then the cache counts blocks as written that never were. If a home were durable
//! before the commit that it belongs to, a cut would leave half of a transaction.
//!
//! CRASH: after a cut in the first two steps the journal is as it was, except that a commit may be missing whose
//! success was never reported, and replay can be repeated. After one in the third or fourth, the journal is clean and
//! only the file system's flag remains, which does no harm.

use std::ops::Range;

use device::BlockDevice;
use ondisk::jbd2::JournalSuperblock;
use ondisk::superblock::state;
use ondisk::{Feature, FsBlock, Geometry, Site, Superblock};
use sync::Arc;

use crate::recovery::error::{Error, UnsupportedLog};
use crate::recovery::overlay::read_copy;
use crate::recovery::replay::{self, DamagedCopies, ReadLog, Replayed};
use crate::recovery::report::ReplayReport;

/// Bytes of the log that are written at once, if they are contiguous.
const REWRITE_BYTES: u32 = 256 * 1024;

/// Writes what the journal holds to its places on `device`, marks the journal clean and clears `needs_recovery`. A
/// journal that was aborted, or that has a damaged transaction, leaves the file system marked as having errors.
///
/// Nothing else may use the device meanwhile. The superblock changes: read it again.
///
/// # Errors
/// As for [`crate::recovery::scan_and_overlay`]; [`Error::FastCommitsPending`] when changes would be lost;
/// [`Error::Io`] when a device is read-only or fails, and then the replay can be repeated.
pub fn replay_to_device(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
) -> Result<ReplayReport, Error> {
    replay_onto(device, sb, geometry, external, DamagedCopies::Refuse)
}

/// Replays the log as [`replay_to_device`], but leaves out copies whose checksums are wrong, as jbd2 does: for a
/// repair, which then finds what does not fit together.
///
/// # Errors
/// As for [`replay_to_device`].
pub fn replay_sound_copies(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
) -> Result<ReplayReport, Error> {
    replay_onto(device, sb, geometry, external, DamagedCopies::LeaveOut)
}

/// Replays the log and marks the journal clean; `damaged` decides what becomes of copies with wrong checksums.
fn replay_onto(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
    damaged: DamagedCopies,
) -> Result<ReplayReport, Error> {
    let replayed = replay::run(device, sb, geometry, external, damaged)?;
    let report = replayed.report;
    let Some(log) = replayed.log else {
        return Ok(report);
    };
    if let Some(damage) = report.fast_commits.damage
        && damage.site() == Site::FastCommitFeatures
    {
        // Their fsyncs returned, and the next commit would overwrite them; the kernel refuses, too.
        return Err(UnsupportedLog::FastCommits.into());
    }
    if report.fast_commits_pending > 0 {
        return Err(Error::FastCommitsPending {
            changes: report.fast_commits_pending,
            tid: report.end,
        });
    }
    bring_home(device, geometry, &log)?;
    mark_journal_clean(&log, &report)?;
    log.map.device().flush()?;
    mark_recovered(device, &report)?;
    device.flush()?;
    Ok(report)
}

/// Writes what the log holds to its homes, and leaves a log that is empty but in use: the fast commits behind it still
/// count, until the next transaction is committed there. The file system still needs recovery.
///
/// CRASH: at any point the journal replays to the same state, fast commits included.
///
/// # Errors
/// As for [`replay_to_device`].
pub fn empty_log(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
) -> Result<(), Error> {
    empty(
        replay::run(device, sb, geometry, None, DamagedCopies::Refuse)?,
        device,
        geometry,
    )
}

/// Empties the log as [`empty_log`], also that of an external journal, but leaves out copies whose checksums are wrong,
/// as jbd2 does: for a repair, which then finds what does not fit together.
///
/// # Errors
/// As for [`replay_to_device`].
pub fn empty_sound_log(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
) -> Result<(), Error> {
    let replayed = replay::run(device, sb, geometry, external, DamagedCopies::LeaveOut)?;
    empty(replayed, device, geometry)
}

fn empty(
    replayed: Replayed,
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
) -> Result<(), Error> {
    let Some(log) = replayed.log else {
        return Ok(());
    };
    bring_home(device, geometry, &log)?;
    let mut sb = log.sb;
    sb.set_sequence(replayed.report.end);
    sb.set_start(log.head);
    write_superblock(&log, sb)?;
    Ok(log.map.device().flush()?)
}

/// Clears the first block of the area for fast commits and then marks the journal clean, for a caller that wrote the
/// log and the fast commits to their homes, durably. The file system still needs recovery.
///
/// CRASH: until the first block is cleared the fast commits count and are replayed once more. A log that is in use
/// without fast commits replays nothing.
///
/// # Errors
/// As for [`replay_to_device`].
pub fn drop_fast_commits(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
) -> Result<(), Error> {
    let replayed = replay::run(device, sb, geometry, external, DamagedCopies::Refuse)?;
    let Some(log) = replayed.log else {
        return Ok(());
    };
    if log.sb.fast_commit_blocks() > 0 {
        let (offset, _) = log.map.place(log.sb.fast_commit_first())?;
        let zeros = vec![0; log.map.block_size().bytes()];
        log.map.device().write_at(offset, &zeros)?;
        log.map.device().flush()?;
    }
    mark_journal_clean(&log, &replayed.report)?;
    Ok(log.map.device().flush()?)
}

/// Does the first two steps of a replay onto a device: the log once more, durably, then the copies to their homes.
fn bring_home(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    log: &ReadLog,
) -> Result<(), Error> {
    make_durable(log)?;
    write_copies(device, geometry, log)?;
    Ok(device.flush()?)
}

/// Writes the part of the log that was replayed again, in its place, so that the flush can't leave it out.
fn make_durable(log: &ReadLog) -> Result<(), Error> {
    if log.copies.is_empty() {
        return Ok(());
    }
    let (start, head) = (log.sb.start(), log.head);
    if start < head {
        rewrite(log, start..head)?;
    } else {
        rewrite(log, start..log.sb.log_end())?;
        rewrite(log, log.sb.first()..head)?;
    }
    Ok(log.map.device().flush()?)
}

/// Reads blocks of the journal and writes them back unchanged.
fn rewrite(log: &ReadLog, blocks: Range<u32>) -> Result<(), Error> {
    let (device, bits) = (log.map.device(), log.map.block_size().bits());
    let mut buf = Vec::new();
    let mut position = blocks.start;
    while position < blocks.end {
        let (offset, contiguous) = log.map.place(position)?;
        let most = (REWRITE_BYTES >> bits).max(1);
        let count = contiguous.min(most).min(blocks.end - position);
        buf.resize((count as usize) << bits, 0);
        device.read_at(offset, &mut buf)?;
        device.write_at(offset, &buf)?;
        position += count;
    }
    Ok(())
}

fn write_copies(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    log: &ReadLog,
) -> Result<(), Error> {
    let size = geometry.block_size();
    let mut buf = vec![0; size.bytes()];
    for copy in &log.copies {
        read_copy(&log.map, *copy, 0, &mut buf)?;
        device.write_at(FsBlock(copy.block).offset(size), &buf)?;
    }
    Ok(())
}

/// The next transaction gets a number that nothing in the log has, so that what is there can never count again.
fn mark_journal_clean(log: &ReadLog, report: &ReplayReport) -> Result<(), Error> {
    let mut sb = log.sb;
    if sb.start() != 0 {
        sb.set_sequence(report.end.next());
        sb.set_start(0);
        sb.set_head(log.head);
    }
    sb.set_errno_raw(0);
    write_superblock(log, sb)
}

/// Gives the journal's superblock its checksum and writes it to its place, not yet durably.
fn write_superblock(log: &ReadLog, mut sb: JournalSuperblock) -> Result<(), Error> {
    sb.seal();
    let (offset, _) = log.map.place(log.map.superblock_at())?;
    Ok(log.map.device().write_at(offset, sb.bytes())?)
}

fn mark_recovered(device: &Arc<dyn BlockDevice>, report: &ReplayReport) -> Result<(), Error> {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(Superblock::OFFSET, &mut bytes)?;
    let mut sb = *Superblock::view(&bytes);
    sb.set_features(sb.features().without(Feature::NEEDS_RECOVERY));
    if report.bad_transaction.is_some() || report.aborted_with.is_some() {
        sb.set_state(sb.state() | state::ERROR);
    }
    sb.seal();
    Ok(device.write_at(Superblock::OFFSET, sb.bytes())?)
}
