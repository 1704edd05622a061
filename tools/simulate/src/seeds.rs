//! Random work of two to four scheduled threads. A seed decides what the threads do, which of them runs when, and where
//! the run is cut.
//!
//! Each thread owns a family of names, and only it writes to the files in the family. The other threads unlink, link
//! and rename these names, too, and all threads share some names that none of them opens. So all kinds of operations
//! meet on directories, links and orphans, but each file's bytes have one writer. In work that mostly fsyncs, threads
//! also fsync files that others write; in half of its runs, all threads work on one file.

mod threads;
mod work;

use device::BlockDevice;
use engine::{InodeFs, MountOptions, ReplayPolicy};
use model::{ModelPath, ModelTree, Op, Random};
use sync::atomic::AtomicBool;
use sync::clock::Duration;
use sync::gauge::Reading;
use sync::schedule::{self, SchedulePlan};
use sync::{Arc, Mutex, Rank};

pub use threads::Frozen;
use threads::Shared;
use work::Work;

use crate::executor::{brief, tree};
use crate::image::{Image, Profile, open_with};
use crate::setting::RunSetting;
use crate::sweep::{Explains, Sweep, read};
use crate::trace::{Call, Trace};
use crate::{CowDevice, Fault, OpRefusal, Recorder, SlowFlush, recover};

const DIRECTORIES: [&str; 6] = ["d0", "d1", "d2", "d3", "d4", "d5"];
/// The bit of the superblock's state that is set if the file system was closed.
const VALID: u16 = 1;
/// The bit of the superblock's incompatible features that is set if the journal must be replayed.
const NEEDS_RECOVERY: u32 = 4;
/// How many of eight runs have long names, in three directories.
const LONG_OF_EIGHT: u64 = 1;
/// Changes the seed from which the fault is drawn, so that it is independent of the work.
const FAULTS: u64 = 0xfa17_0000;
/// One in this number of runs is also cut while its last threads work and while the file system is closed.
const CLOSING_ONE_IN: u64 = 8;
/// The number of scheduling points after which a run counts as a livelock.
const POINTS: u64 = 3_000_000;
/// How long a slow flush takes, by the schedule's clock.
const SLOW_FLUSH: Duration = Duration::from_millis(1);

/// The record of one run.
pub struct SeedRecord {
    /// The device, with all events that it recorded.
    pub recorder: Arc<Recorder>,
    /// The calls of the threads.
    pub trace: Trace,
    /// What was under way at each event.
    pub readings: Vec<Reading>,
    /// The number of events until fewer than three threads had work to do; until the first thread ended, if the run has
    /// only two.
    pub worked: usize,
    /// Copies of the device, made while the file system was frozen.
    pub frozen: Vec<Frozen>,
    /// The numbers of blocks and inodes that were free after all threads had ended.
    pub left: Option<(u64, u64)>,
    /// Why the file system could not be opened or closed.
    pub broken: Option<String>,
}

/// The operations that make the directories of each run.
#[must_use]
pub fn setup() -> Vec<Op> {
    DIRECTORIES
        .into_iter()
        .map(|name| Op::Mkdir {
            path: ModelPath::new(name),
            mode: 0o755,
        })
        .collect()
}

/// Runs the work of a seed.
///
/// # Errors
/// If the run panics, deadlocks or livelocks, or if the file system can't be opened or closed.
pub fn record(image: &Image, setting: &RunSetting) -> Result<SeedRecord, String> {
    let recorded = record_on(Recorder::over(&image.device), image.profile, setting)?;
    match &recorded.broken {
        Some(why) => Err(why.clone()),
        None => Ok(recorded),
    }
}

fn record_on(
    recorder: Recorder,
    profile: Profile,
    setting: &RunSetting,
) -> Result<SeedRecord, String> {
    let seed = setting.seed;
    let recorder = Arc::new(recorder);
    let shared: Arc<dyn BlockDevice> = if setting.has_slow_flushes {
        Arc::new(SlowFlush::new(Arc::clone(&recorder), SLOW_FLUSH))
    } else {
        Arc::clone(&recorder) as _
    };
    let plan = SchedulePlan {
        seed,
        points: POINTS,
    };
    let run = || {
        let mut worked = Worked::default();
        match open_with(&shared, &setting.options(), setting.times.clock) {
            Ok(fs) => work_on(fs, profile, setting, &recorder, &mut worked),
            Err(error) => worked.broken = Some(error.to_string()),
        }
        (worked, schedule::handled())
    };
    let ((worked, handled), _) = schedule::run(plan, run)?;
    Ok(SeedRecord {
        readings: recorder.readings(),
        recorder,
        worked: worked.until,
        broken: worked.broken,
        frozen: worked.frozen,
        left: worked.left,
        trace: Trace::new(worked.calls, &handled, (profile, setting.times)),
    })
}

/// What all threads of a run did.
#[derive(Default)]
struct Worked {
    calls: Vec<Call>,
    frozen: Vec<Frozen>,
    ended: Vec<usize>,
    until: usize,
    left: Option<(u64, u64)>,
    broken: Option<String>,
}

/// Runs the threads on a file system, and closes it.
fn work_on(
    fs: InodeFs,
    profile: Profile,
    setting: &RunSetting,
    recorder: &Recorder,
    worked: &mut Worked,
) {
    let seed = setting.seed;
    let all = Mutex::new(Rank::Job, core::mem::take(worked));
    let threads = if setting.is_syncing {
        4
    } else {
        *Random::new(seed).pick(&[2, 3, 4, 4, 4, 4, 4, 4])
    };
    let shared = Shared {
        fs: &fs,
        times: setting.times,
        recorder,
        is_frozen: AtomicBool::new(false),
    };
    sync::thread::workers(threads, |thread| {
        let mut work = Work {
            thread,
            random: Random::new(seed.wrapping_mul(4).wrapping_add(thread as u64)),
            profile,
            name_bytes: if seed % 8 < LONG_OF_EIGHT { 240 } else { 0 },
            is_switching: setting.is_switching,
            is_syncing: setting.is_syncing,
            is_following: setting.is_syncing && !seed.is_multiple_of(3),
            focus: setting.focus,
            end: 0,
            has_opened: false,
        };
        let mine = threads::run(&shared, &mut work);
        let mut all = all.lock();
        all.calls.extend(mine.calls);
        all.frozen.extend(mine.frozen);
        all.ended.push(recorder.events_so_far());
    });
    *worked = all.into_inner();
    // After this event, fewer than three threads worked.
    let until = worked.ended.get(threads.saturating_sub(3));
    worked.until = until.copied().unwrap_or(0);
    let left = fs.sync().and_then(|()| fs.statfs());
    worked.left = left.ok().map(|left| (left.free, left.free_files));
    worked.broken = fs.close().err().map(|error| error.to_string());
}

/// Decides which trees a cut of a run may leave.
struct Explained<'a> {
    recorded: &'a SeedRecord,
    start: &'a ModelTree,
}

impl Explains for Explained<'_> {
    fn position(&mut self, event: usize) -> usize {
        let reading = self.recorded.readings.get(event);
        self.recorded
            .trace
            .position(reading.map_or(u64::MAX, |reading| reading.at))
    }

    fn check(&mut self, position: usize, found: &ModelTree) -> Result<(), String> {
        self.recorded.trace.check(self.start, position, found)
    }
}

/// Runs the work of a seed, and judges the image at the end, the frozen images, and the states that cuts leave.
///
/// # Errors
/// The first thing that is wrong.
pub fn run(sweep: &mut Sweep<'_>, setting: &RunSetting) -> Result<(), String> {
    let seed = setting.seed;
    let recorded = record(sweep.image, setting)?;
    let start = sweep.image.tree.clone();
    let end = recorded.recorder.live();
    for call in recorded.trace.calls() {
        if let Err(OpRefusal::Broken(why)) = &call.result {
            return Err(format!("{}: {why}", brief(&call.op)));
        }
    }
    recorded.trace.check_whole(&start, &read(&end)?)?;
    sweep.judge_final(&end)?;
    check_left(&recorded, &end)?;
    for frozen in &recorded.frozen {
        let found = read_frozen(&frozen.device)?;
        let position = recorded.trace.position(frozen.at);
        let checked = recorded.trace.check(&start, position, &found);
        let checked = checked.and_then(|()| sweep.check_frozen(&frozen.device));
        checked.map_err(|why| format!("frozen: {why}"))?;
    }
    let cuts = recorded.recorder.cuts();
    let mut explained = Explained {
        recorded: &recorded,
        start: &start,
    };
    // The end of a run, when one or two threads work and the file system is closed, is much the same in each run. So
    // only a share of the runs is cut there.
    let end = match seed % CLOSING_ONE_IN {
        0 => usize::MAX,
        _ => recorded.worked,
    };
    if sweep.image.profile.has_log {
        sweep.run(cuts, &recorded.readings, &mut explained, end, seed)
    } else {
        sweep.run_unlogged(cuts, &recorded.readings, &mut explained, end, seed)
    }
}

/// Checks that the file system, before it was closed, counted the same free blocks and inodes as the closed image has.
/// If they differ, some were lost in memory.
fn check_left(recorded: &SeedRecord, closed: &CowDevice) -> Result<(), String> {
    let free = reopen(closed, &MountOptions::default())
        .and_then(|fs| fs.statfs())
        .map_err(|error| error.to_string())?;
    let free = Some((free.free, free.free_files));
    if recorded.left == free {
        Ok(())
    } else {
        let left = recorded.left;
        Err(format!(
            "{left:?} blocks and inodes were available, and {free:?} are free"
        ))
    }
}

/// Reads the tree on the device of a frozen file system without its journal. Fails if the superblock asks for a replay.
fn read_frozen(device: &CowDevice) -> Result<ModelTree, String> {
    let options = MountOptions {
        journal: ReplayPolicy::Ignore,
        ..MountOptions::default()
    };
    let fs = reopen(device, &options).map_err(|error| error.to_string())?;
    let superblock = fs.superblock();
    if superblock.features().incompat & NEEDS_RECOVERY != 0 || superblock.state() & VALID == 0 {
        return Err("frozen, and the image is not clean".into());
    }
    tree(&fs)
}

fn reopen(device: &CowDevice, options: &MountOptions) -> Result<InodeFs, engine::Error> {
    let device: Arc<dyn BlockDevice> = Arc::new(device.clone());
    InodeFs::open(device, options)
}

/// Runs the work of a seed on a device of which one request fails, once or from then on. Also returns which one, in
/// words.
///
/// # Errors
/// If the run panics, deadlocks or livelocks.
pub fn record_with_fault(
    image: &Image,
    setting: &RunSetting,
) -> Result<(SeedRecord, String), String> {
    let mut random = Random::new(setting.seed ^ FAULTS);
    let fault = match random.below(4) {
        0 => Fault::Read(random.below(60)),
        1 => Fault::Flush(random.below(12)),
        _ => Fault::Write(random.below(70)),
    };
    let sticky = random.one_in(2);
    let said = format!("{fault:?}{}", if sticky { " and on" } else { "" });
    let device = Recorder::over(&image.device).fails(fault, sticky);
    let recorded = record_on(device, image.profile, setting);
    Ok((recorded.map_err(|why| format!("{said}: {why}"))?, said))
}

/// Runs the work of a seed on a device of which one request fails, once or from then on. Nothing may panic or hang, and
/// what the run leaves must recover to a tree that the model allows. Returns false if the run ended before the request
/// that was to fail.
///
/// # Errors
/// The first thing that is wrong.
pub fn run_with_fault(sweep: &mut Sweep<'_>, setting: &RunSetting) -> Result<bool, String> {
    let (mut recorded, said) = record_with_fault(sweep.image, setting)?;
    let say = |why: String| format!("{said}: {why}");
    if !recorded.recorder.has_failed() {
        return Ok(false);
    }
    sweep.counts.faults += 1;
    if !sweep.image.profile.has_log {
        let left = recorded.recorder.live();
        return sweep.repair_unlogged(&left).map(|()| true).map_err(say);
    }
    recorded.trace.never_returned();
    let recovered = recover(&recorded.recorder.live()).map_err(say)?;
    let found = read(&recovered).map_err(say)?;
    let end = recorded.trace.position(u64::MAX);
    recorded
        .trace
        .check(&sweep.image.tree, end, &found)
        .map_err(say)?;
    sweep.judge_after_fault(&recovered).map_err(say)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{PROFILES, have_programs, make};

    #[test]
    fn a_seed_gives_the_same_requests_and_calls_each_time() {
        if !have_programs() {
            eprintln!("skipped: needs mke2fs and e2fsck");
            return;
        }
        let image = make(PROFILES[1], &setup()).unwrap();
        for seed in 0..6 {
            let setting = RunSetting::of(image.profile, seed);
            let one = record(&image, &setting).unwrap();
            let two = record(&image, &setting).unwrap();
            assert_eq!(one.trace.calls(), two.trace.calls(), "seed {seed}");
            assert_eq!(one.readings, two.readings, "seed {seed}");
            let events = |recorded: &SeedRecord| recorded.recorder.cuts().events().to_vec();
            assert!(events(&one) == events(&two), "seed {seed}");
        }
    }
}
