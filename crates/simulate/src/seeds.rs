//! Random work of two to four scheduled threads, from a seed: what they do, who runs when, and where it is cut.
//!
//! Each thread owns a family of names and the data of the files in it; the other threads unlink, link and rename its
//! names too, and all share names that nobody opens. So operations meet in every way on directories, links and orphans,
//! and each file's bytes have one writer.

use device::BlockDevice;
use engine::Fs;
use model::{Device, Mode, Op, Path, Random, RenameFlag, Target, Tree, XattrFlag};
use sync::gauge::{self, Reading};
use sync::schedule::{self, Plan};
use sync::{Arc, Mutex, Rank};

use crate::executor::{Executor, brief};
use crate::image::{Image, Profile, open};
use crate::sweep::{Explains, Sweep, read};
use crate::trace::{Call, Trace};
use crate::{Fault, Recorder, Refusal, recover};

const DIRECTORIES: [&str; 6] = ["d0", "d1", "d2", "d3", "d4", "d5"];
/// Of eight runs, those with long names in three directories.
const LONG_OF_EIGHT: u64 = 1;
/// Faults follow from other numbers than the work.
const FAULTS: u64 = 0xfa17_0000;
/// Every so many runs are cut while the file system is closed, too.
const CLOSING_ONE_IN: u64 = 8;
/// Operations of each thread, besides those that begin and end its work.
const STEPS: u64 = 14;
/// Points after which a run counts as a livelock.
const POINTS: u64 = 3_000_000;

/// What a run left.
pub struct Recorded {
    /// The device, with all that happened to it.
    pub recorder: Arc<Recorder>,
    /// What the threads did.
    pub trace: Trace,
    /// What was under way at each event.
    pub readings: Vec<Reading>,
    /// How many events there were while at least three threads (or all there were) had work to do.
    pub worked: usize,
    /// Why the file system could not be opened or closed.
    pub broken: Option<String>,
}

/// The work of one thread.
struct Work {
    thread: usize,
    random: Random,
    has_extents: bool,
    unit: u64,
    /// Bytes of every name, at least.
    name_bytes: usize,
}

impl Work {
    fn directory(&mut self) -> Path {
        let count = if self.name_bytes > 0 { 3 } else { 6 };
        let name: &&str = self.random.pick(&DIRECTORIES[..count]);
        Path::new(name)
    }

    /// A name of a thread's family.
    fn own(&mut self, thread: usize) -> Path {
        let name = format!("t{thread}{}", self.random.below(2));
        let name = self.padded(name);
        self.directory().join(&name)
    }

    /// A name that nobody opens.
    fn shared(&mut self) -> Path {
        let name = format!("n{}", self.random.below(3));
        let name = self.padded(name);
        self.directory().join(&name)
    }

    /// Long names fill a directory's blocks, so that few of them make an index and split its leaves.
    fn padded(&self, name: String) -> Vec<u8> {
        let mut name = name.into_bytes();
        name.resize(name.len().max(self.name_bytes), b'x');
        name
    }

    /// Any thread's name, or a shared one.
    fn any(&mut self) -> Path {
        match self.random.below(6) as usize {
            thread if thread < 4 => self.own(thread),
            _ => self.shared(),
        }
    }

    fn slot(&mut self) -> u8 {
        // Two slots a thread, and few threads.
        (2 * self.thread as u64 + self.random.below(2)) as u8
    }

    fn file(&mut self) -> Target {
        Target::Slot(self.slot())
    }

    fn next(&mut self) -> Op {
        match self.random.below(100) {
            0..24 => self.make(),
            24..34 => Op::Unlink { path: self.any() },
            34..38 => Op::Rmdir {
                path: self.shared(),
            },
            38..50 => self.rename(),
            50..78 => self.data(),
            78..86 => self.attribute(),
            86..94 => self.open(),
            _ => self.sync(),
        }
    }

    fn make(&mut self) -> Op {
        let mode = *self.random.pick(&[0o644, 0o755, 0o2711]);
        match self.random.below(12) {
            0..5 => Op::Create {
                path: self.own(self.thread),
                mode,
            },
            5..7 => Op::Mkdir {
                path: self.shared(),
                mode,
            },
            7 => Op::Mknod {
                path: self.shared(),
                mode,
                device: *self.random.pick(&[Device::Fifo, Device::Char(1, 3)]),
            },
            8..10 => Op::Symlink {
                path: self.shared(),
                target: vec![b't'; *self.random.pick(&[20, 59, 60, 300])],
            },
            _ => Op::Link {
                from: self.file(),
                to: self.own(self.thread),
            },
        }
    }

    fn rename(&mut self) -> Op {
        let flags = [
            RenameFlag::Replace,
            RenameFlag::NoReplace,
            RenameFlag::Exchange,
        ];
        let flag = *self.random.pick(&flags);
        let (from, to) = match self.random.below(6) as usize {
            thread if thread < 4 => (self.own(thread), self.own(thread)),
            _ => (self.shared(), self.shared()),
        };
        Op::Rename { from, to, flag }
    }

    fn data(&mut self) -> Op {
        let file = self.file();
        let limit = 6 * self.unit.max(2048);
        let offset = self.random.below(limit);
        match self.random.below(10) {
            0..5 => {
                let len = 1 + self.random.below(2 * self.unit);
                let byte = 1 + (self.random.bits() % 255) as u8;
                Op::Write {
                    file,
                    offset,
                    bytes: vec![byte; usize::try_from(len).unwrap_or(1)],
                }
            }
            5..7 => Op::Truncate {
                file,
                size: *self.random.pick(&[0, offset, offset / 2]),
            },
            _ => self.fallocate(file, offset),
        }
    }

    fn fallocate(&mut self, file: Target, offset: u64) -> Op {
        let modes = [
            Mode::Punch,
            Mode::Allocate,
            Mode::KeepSize,
            Mode::Zero,
            Mode::ZeroKeepSize,
            Mode::Collapse,
            Mode::Insert,
        ];
        let mode = match self.has_extents {
            true => *self.random.pick(&modes),
            false => Mode::Punch,
        };
        // The model's blocks.
        let round = match mode {
            Mode::Collapse | Mode::Insert => model::BLOCK,
            _ => 1,
        };
        Op::Fallocate {
            file,
            mode,
            offset: offset / round * round,
            len: (1 + self.random.below(2 * self.unit)).next_multiple_of(round),
        }
    }

    fn attribute(&mut self) -> Op {
        let file = match self.random.below(3) {
            0 => Target::Path(self.directory()),
            _ => self.file(),
        };
        let name = self.random.pick(&["user.a", "user.b"]).as_bytes().to_vec();
        match self.random.below(5) {
            0 => Op::Chmod {
                file,
                mode: *self.random.pick(&[0o600, 0o755, 0o4711]),
            },
            1 => Op::Chown {
                file,
                uid: self.random.below(3) as u32,
                gid: self.random.below(3) as u32,
            },
            2 => Op::RemoveXattr { file, name },
            _ => Op::SetXattr {
                file,
                name,
                value: vec![self.random.bits() as u8; *self.random.pick(&[1, 10, 24, 300])],
                flag: XattrFlag::Any,
            },
        }
    }

    fn open(&mut self) -> Op {
        let slot = self.slot();
        match self.random.below(8) {
            0 => Op::Close { slot },
            1 => Op::OpenTemp {
                directory: self.directory(),
                slot,
                mode: 0o600,
            },
            _ => Op::Open {
                path: self.own(self.thread),
                slot,
            },
        }
    }

    fn sync(&mut self) -> Op {
        match self.random.below(6) {
            0 => Op::Sync,
            1 => Op::Fsync {
                file: Target::Path(self.directory()),
            },
            2 => Op::Fdatasync { file: self.file() },
            _ => Op::Fsync { file: self.file() },
        }
    }
}

/// What each run begins with: its directories.
#[must_use]
pub fn setup() -> Vec<Op> {
    DIRECTORIES
        .into_iter()
        .map(|name| Op::Mkdir {
            path: Path::new(name),
            mode: 0o755,
        })
        .collect()
}

/// Runs the work of a seed.
///
/// # Errors
/// A panic, a deadlock, a livelock; an image that does not open or close.
pub fn record(image: &Image, seed: u64) -> Result<Recorded, String> {
    let recorded = record_on(Recorder::over(&image.device), image.profile, seed)?;
    match &recorded.broken {
        Some(why) => Err(why.clone()),
        None => Ok(recorded),
    }
}

fn record_on(recorder: Recorder, profile: Profile, seed: u64) -> Result<Recorded, String> {
    let recorder = Arc::new(recorder);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&recorder) as _;
    let plan = Plan {
        seed,
        points: POINTS,
    };
    let run = || {
        let fs = match open(&shared) {
            Ok(fs) => fs,
            Err(error) => return (Vec::new(), Vec::new(), 0, Some(error.to_string())),
        };
        let calls = Mutex::new(Rank::Job, (Vec::new(), Vec::new()));
        let threads = *Random::new(seed).pick(&[2, 3, 4, 4, 4, 4, 4, 4]);
        sync::thread::workers(threads, |thread| {
            let mut work = Work {
                thread,
                random: Random::new(seed.wrapping_mul(4).wrapping_add(thread as u64)),
                has_extents: profile.has_extents,
                unit: profile.unit,
                name_bytes: if seed % 8 < LONG_OF_EIGHT { 240 } else { 0 },
            };
            let mine = run_thread(&fs, &mut work);
            let mut calls = calls.lock();
            calls.0.extend(mine);
            calls.1.push(recorder.events_so_far());
        });
        let (calls, ended) = calls.into_inner();
        // From here on fewer than three threads worked.
        let worked = ended.get(threads.saturating_sub(3)).copied().unwrap_or(0);
        let closed = fs.close().err().map(|error| error.to_string());
        (calls, schedule::handled(), worked, closed)
    };
    let ((calls, handled, worked, broken), _) = schedule::run(plan, run)?;
    Ok(Recorded {
        readings: recorder.readings(),
        recorder,
        worked,
        broken,
        trace: Trace::new(calls, &handled, profile.unit),
    })
}

/// One thread's part, and what it was told.
fn run_thread(fs: &Fs, work: &mut Work) -> Vec<Call> {
    let mut executor = Executor::new(fs);
    let mut calls = Vec::new();
    let first = work.own(work.thread);
    let (slot, other) = (2 * work.thread as u8, 2 * work.thread as u8 + 1);
    let start = [
        Op::Create {
            path: first.clone(),
            mode: 0o644,
        },
        Op::Open { path: first, slot },
    ];
    let rest = [Op::Close { slot }, Op::Close { slot: other }];
    for op in start {
        calls.push(call(&mut executor, work.thread, op));
    }
    for _ in 0..STEPS {
        if let Some(Call {
            result: Err(Refusal::Broken(_)),
            ..
        }) = calls.last()
        {
            // The device failed under it: it is as if it had never returned, and this thread gives up.
            return calls;
        }
        if work.random.one_in(12) {
            // What the journal holds goes home while others work; no operation of the model.
            let _ = fs.checkpoint();
        }
        let op = work.next();
        calls.push(call(&mut executor, work.thread, op));
    }
    for op in rest {
        calls.push(call(&mut executor, work.thread, op));
    }
    calls
}

fn call(executor: &mut Executor<'_>, thread: usize, op: Op) -> Call {
    let called = gauge::read().at;
    let result = match op {
        // Which file a name leads to is one moment of this run, and not two.
        Op::Open { .. } => schedule::undisturbed(|| executor.apply(&op)),
        _ => executor.apply(&op),
    };
    let returned = gauge::read().at;
    Call {
        thread,
        op,
        called,
        returned,
        result,
    }
}

/// What a cut of a run may leave.
struct Explained<'a> {
    recorded: &'a Recorded,
    start: &'a Tree,
}

impl Explains for Explained<'_> {
    fn position(&mut self, event: usize) -> usize {
        let reading = self.recorded.readings.get(event);
        self.recorded
            .trace
            .position(reading.map_or(u64::MAX, |reading| reading.at))
    }

    fn check(&mut self, position: usize, found: &Tree) -> Result<(), String> {
        self.recorded.trace.check(self.start, position, found)
    }
}

/// Runs the work of a seed, and cuts it.
///
/// # Errors
/// The first thing that is wrong.
pub fn run(sweep: &mut Sweep<'_>, seed: u64) -> Result<(), String> {
    let recorded = record(sweep.image, seed)?;
    let start = sweep.image.tree.clone();
    let end = recorded.recorder.live();
    for call in recorded.trace.calls() {
        if let Err(Refusal::Broken(why)) = &call.result {
            return Err(format!("{}: {why}", brief(&call.op)));
        }
    }
    recorded.trace.check_whole(&start, &read(&end)?)?;
    sweep.judge_final(&end)?;
    let cuts = recorded.recorder.cuts();
    let mut explained = Explained {
        recorded: &recorded,
        start: &start,
    };
    // What one or two threads do at the end, and closing, is much the same each time.
    let end = match seed % CLOSING_ONE_IN {
        0 => usize::MAX,
        _ => recorded.worked,
    };
    sweep.run(cuts, &recorded.readings, &mut explained, end, seed)
}

/// Runs the work of a seed on a device of which one request fails, once or from then on: nothing panics or hangs, who
/// asked is told, and what is left recovers to what the model allows. False when the fault did not come up.
///
/// # Errors
/// The first thing that is wrong.
pub fn run_with_fault(sweep: &mut Sweep<'_>, seed: u64) -> Result<bool, String> {
    let mut random = Random::new(seed ^ FAULTS);
    let fault = match random.below(4) {
        0 => Fault::Read(random.below(60)),
        1 => Fault::Flush(random.below(12)),
        _ => Fault::Write(random.below(70)),
    };
    let sticky = random.one_in(2);
    let device = Recorder::over(&sweep.image.device).fails(fault, sticky);
    let say = |why: String| format!("{fault:?}{}: {why}", if sticky { " and on" } else { "" });
    let mut recorded = record_on(device, sweep.image.profile, seed).map_err(say)?;
    if !recorded.recorder.has_failed() {
        return Ok(false);
    }
    recorded.trace.never_returned();
    let recovered = recover(&recorded.recorder.live()).map_err(say)?;
    let found = read(&recovered).map_err(say)?;
    let end = recorded.trace.position(u64::MAX);
    recorded
        .trace
        .check(&sweep.image.tree, end, &found)
        .map_err(say)?;
    sweep.judge_final(&recovered).map_err(say)?;
    sweep.counts.faults += 1;
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
            let (one, two) = (record(&image, seed).unwrap(), record(&image, seed).unwrap());
            assert_eq!(one.trace.calls(), two.trace.calls(), "seed {seed}");
            assert_eq!(one.readings, two.readings, "seed {seed}");
            let events = |recorded: &Recorded| recorded.recorder.cuts().events().to_vec();
            assert!(events(&one) == events(&two), "seed {seed}");
        }
    }
}
