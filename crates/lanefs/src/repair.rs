//! Repairing a file system: replays the log, lets the checker decide, and writes what it decided.
//!
//! Until the replay is over, a device that does not return the same bytes each time ends the repair (`steady.rs`).
//!
//! The writes, in this order:
//!
//! 1. The substitute for a first superblock that is lost (`substitute.rs`), or the flag of one that does not ask to
//!    replay a log that is in use. Just before the first write of the replay, so that a log that is refused leaves the
//!    image as it was.
//! 2. The replay of the log. Fast commits behind it are one transaction of the log, which takes their place, and is
//!    written home.
//! 3. What Linux reads before the journal (superblock, descriptors, the journal's inode), as far as it is wrong: block
//!    by block, after the error flag was set.
//! 4. All other blocks: one transaction of the image's own journal if that is sound and large enough, otherwise stages,
//!    which begin with blocks that nothing leads to and end with the superblock.
//!
//! CRASH: a transaction leaves all of its blocks as they were, or mended. A cut in step 3 or between stages leaves the
//! error flag set, which asks for a second repair. Where no block is free, a damaged map is written over its own blocks
//! only in a transaction; in stages only if it has blocks of others, and a cut may lose it then.

mod external;
mod fast_commits;
mod pending;
mod rehearsal;
mod replay;
mod steady;

pub use check::repair::{RepairOptions, RepairScope, Repaired, WriteSet};
use device::{BlockDevice, DeviceError};
use jbd2::offline::{self, OfflineLog};
use ondisk::{BlockRun, Feature, FsBlock, Geometry, Superblock, superblock};
use sync::Arc;

use crate::check::{Code, Options, Problem, Report};
use crate::repair::replay::{Log, Replay};
use crate::repair::steady::SteadyDevices;
pub use crate::repair_error::RepairError;
use crate::substitute::{self, Substitute, first};
use crate::undo::Draft;

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
    /// Whether the image was changed. The error flag that a repair of scope `Preen` sets when it refuses does not
    /// count.
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
    let devices = Devices {
        image: Arc::clone(device),
        journal: journal_device,
    };
    let steady = SteadyDevices::new(&devices);
    let on_steady = steady.as_devices();
    let substitute = substitute::find(&on_steady.image, &on_steady.journal, options.superblock);
    steady.verify()?;
    let substitute = substitute?;
    let job = Job {
        steady: &steady,
        substitute: substitute.as_ref(),
        scope: extent,
        options,
        now,
    };
    if let Some(substitute) = &substitute
        && extent == RepairScope::Preen
        && options.superblock.is_none()
        && !substitute.is_torn
    {
        // To put another superblock in the place of the first one is a decision.
        let report = crate::check::check(device, devices.journal, options)?;
        return Ok(untouched(report, extent));
    }
    if let Some(report) = job.report_of_unknown_features(&on_steady, &devices)? {
        return Ok(untouched(report, extent));
    }
    let may_lack_memory = lacks_memory(device, substitute.as_ref(), options);
    let may_refuse =
        extent == RepairScope::Preen && substitute.as_ref().is_some_and(|it| !it.is_torn);
    if may_refuse || may_lack_memory {
        // Whether it refuses is known after the replay, before which the copy is written over the first superblock; and
        // whether anything is to be mended for which the memory must be enough.
        let drafts = on_steady.as_drafts();
        let outcome = job.carry_out(&drafts, &drafts)?;
        let is_refused = outcome.repaired.is_refused || !outcome.repaired.after.is_clean();
        if may_refuse && is_refused {
            mark_refused(&**device)?;
            return Ok(untouched(outcome.repaired.after, extent));
        }
    }
    job.carry_out(&on_steady, &devices)
}

/// Whether the memory that is allowed is too little for the record of blocks in use. Also true if that can't be known.
fn lacks_memory(
    device: &Arc<dyn BlockDevice>,
    substitute: Option<&Substitute>,
    options: &Options<'_>,
) -> bool {
    let Some(memory) = options.memory else {
        return false;
    };
    let geometry = match substitute {
        Some(substitute) => Some(substitute.geometry),
        None => (first(&**device).ok()).and_then(|sb| Geometry::new(&sb, device.size()).ok()),
    };
    geometry.is_none_or(|geometry| check::repair::memory_needed(&geometry) > memory)
}

/// What a repair reads and writes.
struct Devices {
    image: Arc<dyn BlockDevice>,
    /// The device of an external journal.
    journal: Option<Arc<dyn BlockDevice>>,
}

impl Devices {
    /// Devices that keep all writes in memory.
    fn as_drafts(&self) -> Devices {
        let draft = |base: &Arc<dyn BlockDevice>| {
            Arc::new(Draft::new(Arc::clone(base))) as Arc<dyn BlockDevice>
        };
        Devices {
            image: draft(&self.image),
            journal: self.journal.as_ref().map(draft),
        }
    }
}

/// One repair.
struct Job<'a> {
    steady: &'a SteadyDevices,
    substitute: Option<&'a Substitute>,
    scope: RepairScope,
    options: &'a Options<'a>,
    /// Seconds since 1970.
    now: u64,
}

impl Job<'_> {
    fn log<'b>(&self, devices: &'b Devices) -> Log<'b> {
        Log {
            device: &devices.image,
            journal_device: &devices.journal,
            scope: self.scope,
            now: self.now,
        }
    }

    /// The report of a check if the file system has features that a check does not know, before the replay or after it.
    /// Nothing is written to such a file system, not even what the log holds.
    ///
    /// # Errors
    /// As for [`repair`].
    fn report_of_unknown_features(
        &self,
        log_on: &Devices,
        devices: &Devices,
    ) -> Result<Option<Report>, RepairError> {
        let now = match self.substitute {
            Some(substitute) => Some(substitute.superblock),
            None => first(&*log_on.image).ok().filter(|sb| sb.verify().is_ok()),
        };
        let is_replayed = self.substitute.is_some() || self.options.superblock.is_none();
        let after = if is_replayed {
            let after = self.log(log_on).superblock_after(self.substitute);
            self.steady.verify()?;
            after?
        } else {
            None
        };
        let unknown = |sb: Superblock| {
            let unknown = check::unknown_features(&sb);
            (!unknown.is_empty()).then_some(unknown)
        };
        let in_log = after.and_then(unknown);
        if in_log.is_none() && now.and_then(unknown).is_none() {
            return Ok(None);
        }
        // A log may hold an older superblock, so the state after the replay decides.
        let journal = devices.journal.clone();
        let mut report = crate::check::check(&devices.image, journal, self.options)?;
        if let Some(unknown) = in_log
            && !report.counts.contains_key(&Code::FeatureUnknown)
        {
            report.add(Code::FeatureUnknown, &unknown.to_string());
        }
        Ok(Some(report).filter(|report| report.counts.contains_key(&Code::FeatureUnknown)))
    }

    /// Lets the checker decide; again without what needs the journal, if that can't take all blocks at once.
    fn decide(
        &self,
        device: &Arc<dyn BlockDevice>,
        choices: &RepairOptions<'_>,
    ) -> Result<Repaired, RepairError> {
        let repaired = check::repair::repair(&**device, choices)?;
        let Some(writes) = repaired.writes.as_ref().filter(|it| it.needs_journal) else {
            return Ok(repaired);
        };
        // Whether the journal can be used shows once it can be found.
        let draft = Draft::new(Arc::clone(device));
        let writer = Writer {
            device: &draft,
            writes,
            now: self.now,
            has_fast_commits: false,
        };
        writer.write_first()?;
        match writer.log(&mut writes.blocks.clone()) {
            Ok(_) => Ok(repaired),
            Err(RepairError::Journal(_)) => {
                let choices = RepairOptions {
                    may_overwrite: false,
                    ..*choices
                };
                Ok(check::repair::repair(&**device, &choices)?)
            }
            Err(error) => Err(error),
        }
    }

    /// Replays the log on some devices, lets the checker decide on others, which show the same, and writes there what
    /// it decided.
    fn carry_out(&self, log_on: &Devices, devices: &Devices) -> Result<Outcome, RepairError> {
        let log = self.log(log_on);
        self.steady.pause(false);
        let replay = match self.substitute {
            Some(substitute) => log.replay_under(substitute),
            None if self.options.superblock.is_some() => Ok(Replay::default()),
            None => log.replay(),
        };
        self.steady.pause(true);
        self.steady.verify()?;
        let replay = replay?;
        let device = &devices.image;
        let choices = RepairOptions {
            check: Options {
                superblock: self.options.superblock.filter(|_| !replay.has_first),
                ..*self.options
            },
            extent: self.scope,
            now: self.now,
            replay_failed: replay.failed.as_deref(),
            may_overwrite: true,
        };
        let mut repaired = self.decide(device, &choices)?;
        if let Some(substitute) = self.substitute {
            repaired.before.put_first(substitute.problems.clone());
        }
        if let Some(why) = &replay.given_up {
            repaired.before.add(Code::JournalReplayFailed, why);
        }
        if replay.is_forgotten {
            let problem = Problem::new(Code::JournalNotReplayed);
            repaired.before.put_first(vec![problem]);
        }
        if self.scope == RepairScope::Preen
            && repaired.writes.is_none()
            && (repaired.is_refused || !repaired.after.is_clean())
        {
            mark_refused(&**device)?;
        }
        let mut is_journaled = false;
        if let Some(writes) = &repaired.writes {
            let writer = Writer {
                device: &**device,
                writes,
                now: self.now,
                has_fast_commits: false,
            };
            is_journaled = writer.run()?;
        }
        for report in [&mut repaired.before, &mut repaired.after] {
            crate::check::see_journal(report, device, devices.journal.clone());
        }
        Ok(Outcome {
            repaired,
            is_replayed: replay.is_done,
            is_journaled,
        })
    }
}

/// Sets the error flag in a sound first superblock, so that the next `-p` does not take the file system for clean, as
/// e2fsck -p does when it refuses. CRASH: one write of a superblock.
fn mark_refused(device: &dyn BlockDevice) -> Result<(), RepairError> {
    let mut sb = first(device)?;
    let is_sound = sb.verify().is_ok() && Geometry::new(&sb, device.size()).is_ok();
    if !is_sound || sb.state() & superblock::state::ERROR != 0 {
        return Ok(());
    }
    set_error(&mut sb);
    sb.seal();
    device.write_at(Superblock::OFFSET, sb.bytes())?;
    Ok(device.flush()?)
}

/// A repair that changes nothing: a careful one, because something needs a decision, or one of a file system that has
/// unknown features.
fn untouched(report: Report, extent: RepairScope) -> Outcome {
    Outcome {
        repaired: Repaired {
            before: report.clone(),
            after: report,
            writes: None,
            checks: 1,
            is_refused: extent == RepairScope::Preen,
        },
        is_replayed: false,
        is_journaled: false,
    }
}

/// Whether the file system is marked clean and its log is empty, so that -p can skip it. As in e2fsck, the mark counts
/// only if all features are known, the device holds the whole file system and its group descriptors show no damage.
///
/// # Errors
/// When the superblock can't be read.
pub fn is_marked_clean(device: &Arc<dyn BlockDevice>) -> Result<bool, DeviceError> {
    let sb = first(&**device)?;
    let features = sb.features();
    let is_pending = features.has(Feature::NEEDS_RECOVERY)
        || features.has(Feature::ORPHAN_PRESENT)
        || sb.last_orphan().is_some();
    let state = sb.state() & (superblock::state::VALID | superblock::state::ERROR);
    let is_known = check::unknown_features(&sb).is_empty();
    let is_marked =
        sb.verify().is_ok() && state == superblock::state::VALID && !is_pending && is_known;
    let is_forgotten = || {
        let geometry = Geometry::new(&sb, device.size());
        geometry.is_ok_and(|geometry| substitute::is_forgotten(device, &None, &sb, &geometry))
    };
    Ok(is_marked && crate::copies::can_trust_descriptors(&**device, &sb) && !is_forgotten())
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
        log.clear_fast_commits()?;
        log.finish()?;
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
    /// `blocks`. An error if it is not, and the set needs it.
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
        let log = OfflineLog::open(self.device, size, runs.collect(), self.has_fast_commits);
        let has_room = |log: &OfflineLog<'_>| log.verify_room(blocks.len());
        match log.and_then(|log| has_room(&log).map(|()| log)) {
            Ok(log) => {
                blocks.remove(&first);
                Ok(Some(log))
            }
            Err(error @ offline::Error::Device(_)) => Err(error.into()),
            Err(error) if self.writes.needs_journal => Err(error.into()),
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
        let mut blocks = self.writes.blocks.clone();
        if self.has_fast_commits {
            self.mark_in(&mut blocks);
        }
        for stage in self.writes.stages.iter().filter(|stage| !stage.is_empty()) {
            for block in stage {
                self.write_block(*block, &blocks[block])?;
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
