//! Repairing a file system: replays the log, lets the checker decide, and writes what it decided.
//!
//! The writes, in this order:
//!
//! 1. The substitute for a first superblock that is lost (`substitute.rs`).
//! 2. The replay of the log.
//! 3. What Linux reads before the journal (superblock, descriptors, the journal's inode), as far as it is wrong: block
//!    by block, after the error flag was set.
//! 4. All other blocks: one transaction of the image's own journal if that is sound and large enough, otherwise stages,
//!    which begin with blocks that nothing leads to and end with the superblock.
//!
//! CRASH: a transaction leaves all of its blocks as they were, or mended. A cut in step 3 or between stages leaves the
//! error flag set, which asks for a second repair.

use std::collections::BTreeMap;
use std::ops::Range;

pub use check::repair::{RepairOptions, RepairScope, Repaired, WriteSet};
use device::{BlockDevice, DeviceError};
use jbd2::offline::{self, OfflineLog};
use jbd2::recovery;
use ondisk::{BlockRun, Feature, FsBlock, Geometry, Site, Superblock, superblock};
use sync::Arc;

use crate::check::{Options, Report};
use crate::substitute::{self, Substitute, first, has_same_layout, is_journal_elsewhere};

/// Why a repair failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum RepairError {
    /// The check can't come to a verdict.
    Check(check::Error),
    /// The device failed. Where that was during a transaction, the next replay completes or drops it.
    Device(DeviceError),
    /// The journal failed in the same way.
    Journal(offline::Error),
    /// The journal is on a device of its own and can't be replayed from there. The image is as it was.
    Replay(recovery::Error),
    /// A block does not hold what was just written to it: the device can't be relied on.
    Unreliable {
        /// The block.
        block: u64,
    },
}

impl std::fmt::Display for RepairError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RepairError::Check(error) => error.fmt(f),
            RepairError::Device(error) => error.fmt(f),
            RepairError::Journal(error) => error.fmt(f),
            RepairError::Replay(error) => error.fmt(f),
            RepairError::Unreliable { block } => {
                write!(f, "block {block} does not hold what was just written to it")
            }
        }
    }
}

impl std::error::Error for RepairError {}

impl From<check::Error> for RepairError {
    fn from(error: check::Error) -> RepairError {
        RepairError::Check(error)
    }
}

impl From<DeviceError> for RepairError {
    fn from(error: DeviceError) -> RepairError {
        RepairError::Device(error)
    }
}

impl From<offline::Error> for RepairError {
    fn from(error: offline::Error) -> RepairError {
        match error {
            offline::Error::Device(error) => RepairError::Device(error),
            error => RepairError::Journal(error),
        }
    }
}

/// What a repair did.
#[derive(Debug)]
pub struct Outcome {
    /// What was found and what is left.
    pub repaired: Repaired,
    /// The log was replayed, or a substitute was written over the first superblock.
    pub is_replayed: bool,
    /// The repair went through the journal.
    pub is_journaled: bool,
}

impl Outcome {
    /// Whether the image was changed.
    #[must_use]
    pub fn has_written(&self) -> bool {
        self.is_replayed || self.repaired.writes.is_some()
    }
}

/// Repairs the file system on `device`, which nothing else uses.
///
/// # Errors
/// When the check can't come to a verdict, or the device fails.
pub fn repair(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    extent: RepairScope,
    options: &Options<'_>,
    now: u64,
) -> Result<Outcome, RepairError> {
    let substitute = substitute::find(device, &journal_device, options.superblock);
    if let Some(substitute) = &substitute
        && extent == RepairScope::Preen
        && options.superblock.is_none()
        && !substitute.is_torn
    {
        // To put another superblock in the place of the first one is a decision.
        return Ok(untouched(crate::check::check(
            device,
            journal_device,
            options,
        )?));
    }
    let replay = match &substitute {
        Some(substitute) => replay_under(device, journal_device.clone(), extent, substitute)?,
        None if options.superblock.is_some() => Replay::default(),
        None => replay(device, journal_device.clone(), extent)?,
    };
    let view = replay.view.as_ref().unwrap_or(device);
    let choices = RepairOptions {
        check: Options {
            is_replayed: replay.view.is_some(),
            superblock: options.superblock.filter(|_| !replay.has_first),
            ..*options
        },
        extent,
        now,
        replay_failed: replay.failed.as_deref(),
    };
    let mut repaired = check::repair::repair(&**view, &choices)?;
    if replay.view.is_some() {
        take_in_view(&**device, &**view, &mut repaired)?;
    }
    if let Some(substitute) = substitute {
        repaired.before.put_first(substitute.problems);
    }
    let mut is_journaled = false;
    if let Some(writes) = &repaired.writes {
        let writer = Writer {
            device: &**device,
            writes,
            now,
            has_fast_commits: replay.view.is_some(),
        };
        is_journaled = writer.run()?;
    }
    for report in [&mut repaired.before, &mut repaired.after] {
        crate::check::see_journal(report, device, journal_device.clone());
    }
    Ok(Outcome {
        repaired,
        is_replayed: replay.is_done,
        is_journaled,
    })
}

/// What became of a journal that was to be replayed.
#[derive(Default)]
struct Replay {
    is_done: bool,
    /// The device with the fast commits applied, in memory; on the device they are in the journal only.
    view: Option<Arc<dyn BlockDevice>>,
    failed: Option<String>,
    /// The first superblock now has the layout of the copy that was asked for, so the check reads the first.
    has_first: bool,
}

/// A repair that changes nothing.
fn untouched(report: Report) -> Outcome {
    Outcome {
        repaired: Repaired {
            before: report.clone(),
            after: report,
            writes: None,
            checks: 1,
        },
        is_replayed: false,
        is_journaled: false,
    }
}

/// Whether the file system is marked clean and needs no replay, so that -p can skip it. As in e2fsck, the mark counts
/// only if the device holds the whole file system and its group descriptors show no damage.
///
/// # Errors
/// When the superblock can't be read.
pub fn is_marked_clean(device: &dyn BlockDevice) -> Result<bool, DeviceError> {
    let sb = first(device)?;
    let features = sb.features();
    let is_pending = features.has(Feature::NEEDS_RECOVERY)
        || features.has(Feature::ORPHAN_PRESENT)
        || sb.last_orphan().is_some();
    let state = sb.state() & (superblock::state::VALID | superblock::state::ERROR);
    let is_marked = sb.verify().is_ok() && state == superblock::state::VALID && !is_pending;
    Ok(is_marked && crate::copies::can_trust_descriptors(device, &sb))
}

/// Writes the log home, if the superblock asks for a replay. Fast commits behind it stay where they are until the
/// repair's own transaction takes their place.
fn replay(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    scope: RepairScope,
) -> Result<Replay, RepairError> {
    // If the first superblock can't be read, nothing asks for a replay.
    let Ok(sb) = first(&**device) else {
        return Ok(Replay::default());
    };
    let geometry = sb
        .verify()
        .ok()
        .and_then(|()| Geometry::new(&sb, device.size()).ok());
    match geometry.filter(asks) {
        Some(geometry) => replay_home(device, journal_device, scope, &sb, &geometry),
        None => Ok(Replay::default()),
    }
}

fn asks(geometry: &Geometry) -> bool {
    geometry.has(Feature::NEEDS_RECOVERY) && geometry.has(Feature::HAS_JOURNAL)
}

/// Writes the substitute over the first superblock, and then the log home. Unless the first superblock was only torn,
/// the error flag is set, and stays set if the log holds a newer superblock.
fn replay_under(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    scope: RepairScope,
    substitute: &Substitute,
) -> Result<Replay, RepairError> {
    let (superblock, geometry) = (&substitute.superblock, &substitute.geometry);
    if asks(geometry) && is_journal_elsewhere(superblock) {
        let (image, journal) = (Arc::clone(device), journal_device.clone());
        recovery::scan_and_overlay(image, superblock, geometry, journal)
            .map_err(RepairError::Replay)?;
    }
    substitute::put(&**device, superblock)?;
    let marked: Arc<dyn BlockDevice> = match substitute.is_torn {
        true => Arc::clone(device),
        false => Arc::new(Marked(Arc::clone(device))),
    };
    let mut replay = match asks(geometry) {
        true => replay_home(&marked, journal_device, scope, superblock, geometry)?,
        false => Replay::default(),
    };
    replay.is_done = true;
    let now = first(replay.view.as_deref().unwrap_or(&**device))?;
    let own = now.verify().ok().and_then(|()| Geometry::of(&now).ok());
    replay.has_first = own.is_some_and(|own| has_same_layout(&own, geometry));
    Ok(replay)
}

/// Writes the log home and empties it.
fn replay_home(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    scope: RepairScope,
    sb: &Superblock,
    geometry: &Geometry,
) -> Result<Replay, RepairError> {
    match recovery::replay_to_device(device, sb, geometry, journal_device.clone()) {
        Ok(_) => Ok(Replay {
            is_done: true,
            ..Replay::default()
        }),
        Err(recovery::Error::FastCommitsPending { .. }) => {
            recovery::empty_log(device, sb, geometry).map_err(cannot_empty)?;
            let choices = engine::MountOptions {
                journal_device,
                ..engine::MountOptions::default()
            };
            match engine::InodeFs::open(Arc::clone(device), &choices) {
                Ok(fs) => Ok(Replay {
                    is_done: true,
                    view: Some(Arc::clone(fs.device())),
                    ..Replay::default()
                }),
                Err(error) => Ok(Replay {
                    failed: Some(error.to_string()),
                    ..Replay::default()
                }),
            }
        }
        Err(recovery::Error::Io(error)) => Err(error.into()),
        Err(error) => {
            let is_damaged = matches!(&error, recovery::Error::Corrupt(corrupt)
                if corrupt.site() == Site::JournalCopyChecksum);
            if !is_damaged && is_journal_elsewhere(sb) {
                // Its log may be whole, and a later replay would overwrite what is repaired.
                return Err(RepairError::Replay(error));
            }
            // The sound copies in the log are newer than the blocks at home.
            let is_done = is_damaged
                && scope == RepairScope::All
                && recovery::replay_sound_copies(device, sb, geometry, journal_device).is_ok();
            Ok(Replay {
                is_done,
                failed: Some(error.to_string()),
                ..Replay::default()
            })
        }
    }
}

fn cannot_empty(error: recovery::Error) -> RepairError {
    match error {
        recovery::Error::Io(error) => error.into(),
        // The same log was read to its end a moment ago.
        error => RepairError::Check(check::Error::Replay(error.to_string())),
    }
}

/// A device that sets the error flag in every superblock that is written to the first place: the log's copies of it
/// were made before the first one was lost.
struct Marked(Arc<dyn BlockDevice>);

impl BlockDevice for Marked {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let at = Superblock::OFFSET.checked_sub(offset);
        let at = at.and_then(|at| usize::try_from(at).ok());
        let Some((at, written)) = at.and_then(|at| Some((at, superblock_at(bytes, at)?))) else {
            return self.0.write_at(offset, bytes);
        };
        if written.verify().is_err() {
            return self.0.write_at(offset, bytes);
        }
        let mut bytes = bytes.to_vec();
        edit_superblock(&mut bytes, at, set_error);
        self.0.write_at(offset, &bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.0.discard(range)
    }
}

/// Adds to the write set what differs between the device and its view with fast commits.
fn take_in_view(
    device: &dyn BlockDevice,
    view: &dyn BlockDevice,
    repaired: &mut Repaired,
) -> Result<(), RepairError> {
    let sb = first(view)?;
    let Ok(geometry) = Geometry::new(&sb, device.size()) else {
        return Ok(());
    };
    let size = geometry.block_size();
    let (mut old, mut new) = (vec![0; size.bytes()], vec![0; size.bytes()]);
    let mut changes = BTreeMap::new();
    for block in 0..geometry.blocks_count() {
        let offset = FsBlock(block).offset(size);
        device.read_at(offset, &mut old)?;
        view.read_at(offset, &mut new)?;
        if old != new {
            changes.insert(block, new.clone().into_boxed_slice());
        }
    }
    if let Some(writes) = check::repair::with_changes(repaired.writes.take(), view, changes) {
        repaired.writes = Some(writes);
    }
    Ok(())
}

/// Writes a write set.
struct Writer<'a> {
    device: &'a dyn BlockDevice,
    writes: &'a WriteSet,
    now: u64,
    /// The log is in use, and fast commits behind it count until the transaction is committed.
    has_fast_commits: bool,
}

impl Writer<'_> {
    /// Returns whether the journal was used.
    fn run(&self) -> Result<bool, RepairError> {
        self.write_first()?;
        self.write_copies()?;
        let mut blocks = self.writes.blocks.clone();
        let Some(mut log) = self.log(&mut blocks)? else {
            self.write_in_stages()?;
            return Ok(false);
        };
        self.change_superblock(|sb| {
            sb.set_features(sb.features().with(Feature::NEEDS_RECOVERY));
        })?;
        if !self.has_fast_commits {
            log.clear_fast_commits()?;
        }
        log.begin()?;
        self.mark_in(&mut blocks);
        log.commit(&blocks, self.now)?;
        log.write_home(&blocks)?;
        log.finish()?;
        log.clear_fast_commits()?;
        self.change_superblock(|sb| {
            sb.set_features(sb.features().without(Feature::NEEDS_RECOVERY));
        })?;
        Ok(true)
    }

    fn write_block(&self, block: u64, bytes: &[u8]) -> Result<(), RepairError> {
        let offset = FsBlock(block).offset(self.writes.block_size);
        Ok(self.device.write_at(offset, bytes)?)
    }

    /// Writes what must be right before the journal can be found: one block after the other, each read back.
    fn write_first(&self) -> Result<(), RepairError> {
        if self.writes.first.is_empty() {
            return Ok(());
        }
        let (superblock, at) = self.writes.superblock;
        let mut first = self.writes.first.clone();
        if let Some(bytes) = first.get_mut(&superblock) {
            edit_superblock(bytes, at, set_error);
        } else {
            self.change_superblock(set_error)?;
        }
        let others = first.keys().copied().filter(|block| *block != superblock);
        let order: Vec<u64> = first
            .contains_key(&superblock)
            .then_some(superblock)
            .into_iter()
            .chain(others)
            .collect();
        for block in order {
            let bytes = &first[&block];
            self.write_block(block, bytes)?;
            self.device.flush()?;
            let mut read = vec![0; bytes.len()];
            let offset = FsBlock(block).offset(self.writes.block_size);
            self.device.read_at(offset, &mut read)?;
            if read[..] != bytes[..] {
                return Err(RepairError::Unreliable { block });
            }
        }
        Ok(())
    }

    fn write_copies(&self) -> Result<(), RepairError> {
        if self.writes.copies.is_empty() {
            return Ok(());
        }
        let size = self.writes.block_size;
        let mut bytes = vec![0; size.bytes()];
        for (target, source) in &self.writes.copies {
            self.device
                .read_at(FsBlock(*source).offset(size), &mut bytes)?;
            self.write_block(*target, &bytes)?;
        }
        Ok(self.device.flush()?)
    }

    /// The journal, if it is sound and all blocks fit into one transaction. Its own superblock is then removed from
    /// `blocks`.
    fn log(&self, blocks: &mut offline::Blocks) -> Result<Option<OfflineLog<'_>>, RepairError> {
        let Some(runs) = &self.writes.journal else {
            return Ok(None);
        };
        let Some(first) = runs.first().map(|(block, _)| *block) else {
            return Ok(None);
        };
        let runs = runs.iter().map(|(block, len)| BlockRun {
            start: FsBlock(*block),
            len: *len,
        });
        let size = self.writes.block_size;
        match OfflineLog::open(self.device, size, runs.collect(), self.has_fast_commits) {
            Ok(log) => {
                if log.verify_room(blocks.len()).is_err() {
                    return Ok(None);
                }
                blocks.remove(&first);
                Ok(Some(log))
            }
            Err(offline::Error::Device(error)) => Err(error.into()),
            Err(_) => Ok(None),
        }
    }

    /// Sets `needs_recovery` in the transaction's superblock. Without it, a replay that is cut after it wrote that
    /// block would not be repeated.
    fn mark_in(&self, blocks: &mut offline::Blocks) {
        let (block, at) = self.writes.superblock;
        if let Some(bytes) = blocks.get_mut(&block) {
            edit_superblock(bytes, at, |sb| {
                sb.set_features(sb.features().with(Feature::NEEDS_RECOVERY));
            });
        }
    }

    fn write_in_stages(&self) -> Result<(), RepairError> {
        self.change_superblock(set_error)?;
        for stage in self.writes.stages.iter().filter(|stage| !stage.is_empty()) {
            for block in stage {
                self.write_block(*block, &self.writes.blocks[block])?;
            }
            self.device.flush()?;
        }
        Ok(())
    }

    fn change_superblock(&self, change: impl Fn(&mut Superblock)) -> Result<(), RepairError> {
        let mut sb = first(self.device)?;
        change(&mut sb);
        sb.seal();
        self.device.write_at(Superblock::OFFSET, sb.bytes())?;
        Ok(self.device.flush()?)
    }
}

fn set_error(sb: &mut Superblock) {
    sb.set_state(sb.state() | superblock::state::ERROR);
}

/// The superblock within its block.
fn superblock_at(block: &[u8], at: usize) -> Option<Superblock> {
    let bytes = block.get(at..)?.first_chunk()?;
    Some(*Superblock::view(bytes))
}

/// Changes the superblock within its block.
fn edit_superblock(block: &mut [u8], at: usize, change: impl Fn(&mut Superblock)) {
    let Some(mut sb) = superblock_at(block, at) else {
        return;
    };
    change(&mut sb);
    sb.seal();
    block[at..at + Superblock::SIZE].copy_from_slice(sb.bytes());
}
