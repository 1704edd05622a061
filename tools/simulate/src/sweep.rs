//! A recording cut everywhere: every state that is left is recovered by the engine, compared with what the model
//! allows, and closed; our checker reads what comes out, e2fsck a share of it. Every tenth state is cut again while it
//! recovers.

mod unlogged;

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use device::BlockDevice;
use engine::{InodeFs, MountOptions};
use model::{ModelTree, Random};
use sync::Arc;
use sync::gauge::Reading;

use crate::executor::tree;
use crate::image::{Image, open};
use crate::judge::ImageJudge;
use crate::{CowDevice, Cut, Cuts, Recorder};

/// Images whose trees are kept.
const TREES_KEPT: usize = 2000;
/// States of which is kept what they were recovered to.
const RECOVERED_KEPT: usize = 1 << 20;
/// One in this number of states is cut again during recovery.
const AGAIN_ONE_IN: u64 = 10;

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SweepCounts {
    /// Runs recorded and cut.
    pub runs: u64,
    /// Cut states recovered, no two of a run the same.
    pub states: u64,
    /// Those with two or more handles open at the cut.
    pub busy: u64,
    /// Those with a sealed epoch that was not durable.
    pub sealing: u64,
    /// States cut once more during their recovery.
    pub again: u64,
    /// Runs in which a request failed.
    pub faults: u64,
    /// Images that e2fsck read.
    pub judged: u64,
    /// Images that the checker read, including those that e2fsck also read.
    pub checked: u64,
}

impl SweepCounts {
    /// Adds what another part counted.
    pub fn add(&mut self, other: &SweepCounts) {
        self.runs += other.runs;
        self.states += other.states;
        self.busy += other.busy;
        self.sealing += other.sealing;
        self.again += other.again;
        self.faults += other.faults;
        self.judged += other.judged;
        self.checked += other.checked;
    }
}

/// Decides what may be found after a cut.
pub trait Explains {
    /// How much had happened after `event` events: the states that may be found depend only on this.
    fn position(&mut self, event: usize) -> usize;

    /// Whether this may be found there.
    ///
    /// # Errors
    /// Why not.
    fn check(&mut self, position: usize, found: &ModelTree) -> Result<(), String>;
}

/// How thorough a sweep is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depth {
    /// Drawn states for each cut point, besides all, none and the last one torn.
    pub drawn: u64,
    /// How many percent of the states of each cut point are looked at, one at least.
    pub percent: u64,
    /// e2fsck reads one in this number of recovered states; the checker reads all.
    pub judge_one_in: u64,
}

/// A state, and what it is recovered to, which is found out when it is first needed.
struct Recovered<'a> {
    state: &'a CowDevice,
    /// The state's.
    digest: u64,
    device: Option<CowDevice>,
}

impl Recovered<'_> {
    fn device(&mut self) -> Result<&CowDevice, String> {
        if self.device.is_none() {
            self.device = Some(recover(self.state)?);
        }
        self.device.as_ref().ok_or_else(|| "not recovered".into())
    }
}

/// Recovers states over one image and judges them.
pub struct Sweep<'a> {
    /// What the states were made from.
    pub image: &'a Image,
    judge: ImageJudge,
    /// So far.
    pub counts: SweepCounts,
    depth: Depth,
    random: Random,
    /// What states were recovered to, by their digests: the runs of a sweep often begin alike.
    recovered: HashMap<u64, u64>,
    /// What is on recovered images, by their digests.
    trees: HashMap<u64, ModelTree>,
}

impl<'a> Sweep<'a> {
    /// Nothing counted yet.
    ///
    /// # Errors
    /// Those of [`ImageJudge::new`].
    pub fn new(image: &'a Image, depth: Depth) -> Result<Sweep<'a>, String> {
        Ok(Sweep {
            image,
            judge: ImageJudge::new(image)?,
            counts: SweepCounts::default(),
            depth,
            random: Random::new(image.base.len() as u64),
            recovered: HashMap::new(),
            trees: HashMap::new(),
        })
    }

    /// Cuts a recording everywhere up to an event. What is drawn follows from the seed.
    ///
    /// # Errors
    /// The first cut that leaves what must not be, and why.
    pub fn run(
        &mut self,
        mut cuts: Cuts,
        readings: &[Reading],
        explains: &mut dyn Explains,
        end: usize,
        seed: u64,
    ) -> Result<(), String> {
        self.counts.runs += 1;
        self.random = Random::new(seed);
        let mut seen: HashSet<(usize, u64)> = HashSet::new();
        let mut verdicts: HashSet<(usize, u64)> = HashSet::new();
        let wanted = self.wanted(&cuts, end);
        // Shares are counted from another state in each run, which follows from the seed, too.
        let mut number = seed;
        for cut in wanted {
            let position = explains.position(cut.event);
            let state = cuts.state(cut);
            let digest = state.digest(&[]);
            if !seen.insert((position, digest)) {
                continue;
            }
            self.count(readings.get(cut.event).or(readings.last()));
            number += 1;
            let again = number.is_multiple_of(AGAIN_ONE_IN);
            let judges = number.is_multiple_of(self.depth.judge_one_in);
            let checked = caught(|| {
                self.image.area.check(&state)?;
                let mut recovered = Recovered {
                    state: &state,
                    digest,
                    device: None,
                };
                if again {
                    let once = self.tree(&mut recovered)?;
                    self.cut_again(&state, &once)?;
                }
                self.verify(&mut recovered, position, explains, &mut verdicts, judges)
            });
            checked.map_err(|why| format!("{cut}: {why}"))?;
        }
        self.count_readings();
        Ok(())
    }

    /// Copies the numbers of images that the judges have read.
    fn count_readings(&mut self) {
        self.counts.judged = self.judge.judged;
        self.counts.checked = self.judge.checked;
    }

    /// One more state, and what was under way then.
    fn count(&mut self, reading: Option<&Reading>) {
        self.counts.states += 1;
        if let Some(reading) = reading {
            self.counts.busy += u64::from(reading.handles >= 2);
            self.counts.sealing += u64::from(reading.seals >= 1);
        }
    }

    /// Which states of which cuts to look at.
    fn wanted(&mut self, cuts: &Cuts, end: usize) -> Vec<Cut> {
        let mut wanted = Vec::new();
        for event in cuts.points().filter(|event| *event <= end) {
            let unflushed = cuts.unflushed(event);
            let seeds = match unflushed {
                0 => 1,
                1 => 3,
                _ => 3 + self.depth.drawn,
            };
            let lucky = self.random.below(seeds);
            for seed in 0..seeds {
                // Every cut point has at least one state.
                if seed == lucky || self.random.below(100) < self.depth.percent {
                    wanted.push(Cut { event, seed });
                }
            }
        }
        wanted
    }

    fn verify(
        &mut self,
        recovered: &mut Recovered<'_>,
        position: usize,
        explains: &mut dyn Explains,
        verdicts: &mut HashSet<(usize, u64)>,
        judges: bool,
    ) -> Result<(), String> {
        let digest = self.digest(recovered)?;
        if !verdicts.contains(&(position, digest)) {
            explains.check(position, &self.tree(recovered)?)?;
            verdicts.insert((position, digest));
        }
        if judges && !self.judge.knows(digest) {
            self.judge.judge(recovered.device()?, digest)
        } else if !self.judge.has_checked(digest) {
            self.judge.check(recovered.device()?, digest)
        } else {
            Ok(())
        }
    }

    /// Tells a recovered image from others, whatever its journal holds.
    fn digest(&mut self, recovered: &mut Recovered<'_>) -> Result<u64, String> {
        if let Some(known) = self.recovered.get(&recovered.digest) {
            return Ok(*known);
        }
        let digest = recovered.device()?.digest(&self.image.journal);
        if self.recovered.len() == RECOVERED_KEPT {
            self.recovered.clear();
        }
        self.recovered.insert(recovered.digest, digest);
        Ok(digest)
    }

    /// What is on a recovered image.
    fn tree(&mut self, recovered: &mut Recovered<'_>) -> Result<ModelTree, String> {
        let digest = self.digest(recovered)?;
        if let Some(known) = self.trees.get(&digest) {
            return Ok(known.clone());
        }
        let tree = read(recovered.device()?)?;
        if self.trees.len() == TREES_KEPT {
            self.trees.clear();
        }
        self.trees.insert(digest, tree.clone());
        Ok(tree)
    }

    /// Cuts the recovery of a state at one place, and recovers what that leaves: the same as without that cut.
    fn cut_again(&mut self, state: &CowDevice, once: &ModelTree) -> Result<(), String> {
        let recorder = Arc::new(Recorder::over(state));
        let shared: Arc<dyn BlockDevice> = Arc::clone(&recorder) as _;
        close(open(&shared).map_err(|error| format!("recovery: {error}"))?)?;
        let mut cuts = recorder.cuts();
        let points: Vec<usize> = cuts.points().collect();
        let cut = Cut {
            event: *self.random.pick(&points),
            seed: self.random.below(12),
        };
        self.counts.again += 1;
        let twice = recover(&cuts.state(cut)).and_then(|recovered| {
            let digest = recovered.digest(&self.image.journal);
            self.judge.check(&recovered, digest)?;
            read(&recovered)
        });
        let same = twice.and_then(|twice| {
            let compared = once.compare(&twice);
            compared.map_err(|difference| format!("recovered once and twice: {difference}"))
        });
        same.map_err(|why| format!("again {cut}: {why}"))
    }

    /// Judges an image that was closed without a cut: e2fsck and the checker both read it, unless they have read the
    /// same image before.
    ///
    /// # Errors
    /// What they found.
    pub fn judge_final(&mut self, closed: &CowDevice) -> Result<(), String> {
        let digest = closed.digest(&self.image.journal);
        let judged = self.judge.judge(closed, digest);
        self.count_readings();
        judged.map_err(|why| format!("at the end: {why}"))
    }

    /// Judges an image that was recovered after a request failed.
    ///
    /// # Errors
    /// What they found.
    pub fn judge_after_fault(&mut self, recovered: &CowDevice) -> Result<(), String> {
        let digest = recovered.digest(&self.image.journal);
        let judged = self.judge.judge_after_fault(recovered, digest);
        self.count_readings();
        judged.map_err(|why| format!("at the end: {why}"))
    }

    /// Judges an image whose file system is frozen: only the checker reads it.
    ///
    /// # Errors
    /// What it found.
    pub fn check_frozen(&mut self, frozen: &CowDevice) -> Result<(), String> {
        let checked = self.judge.check_frozen(frozen);
        self.count_readings();
        checked
    }
}

/// Runs `work`, and makes an error of a panic.
///
/// # Errors
/// Those of `work`; the panic's message.
pub fn caught<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(cause) => {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
            Err(format!("a panic: {}", text.unwrap_or("without a message")))
        }
    }
}

/// Recovers a state and leaves it clean.
///
/// # Errors
/// What the engine said.
pub fn recover(state: &CowDevice) -> Result<CowDevice, String> {
    let device = Arc::new(state.clone());
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    close(open(&shared).map_err(|error| format!("recovery: {error}"))?)?;
    Ok((*device).clone())
}

fn close(fs: InodeFs) -> Result<(), String> {
    fs.close().map_err(|error| format!("closing: {error}"))
}

/// What is on a closed image.
///
/// # Errors
/// What can't be read.
pub fn read(closed: &CowDevice) -> Result<ModelTree, String> {
    let device: Arc<dyn BlockDevice> = Arc::new(closed.clone());
    let fs = InodeFs::open(device, &MountOptions::default())
        .map_err(|error| format!("opening to read: {error}"))?;
    tree(&fs)
}
