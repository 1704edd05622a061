//! The parts of a run: sequences, seeds, faults, histories, the walk, canaries. Each reports failures as it goes,
//! continues, and returns its sums.

mod replays;

use std::fmt;
use std::ops::Range;

use lanefs_simulate::image::{self, Image, PROFILES, Profile, WORKED_ON};
use lanefs_simulate::{
    Compared, Depth, ImageJudge, RunSetting, RunTimes, Sweep, SweepCounts, brief, caught,
    faults as all_faults, histories as all_histories, seeds as random_work, sequences, steps,
};
use sync::clock::{Instant, now};

pub use replays::replays;

use crate::say;

/// The sums of a part.
#[derive(Default)]
pub struct Tally {
    counts: SweepCounts,
    /// Runs that failed; the first few are reported.
    pub failures: u64,
    /// Calls of histories that have an order.
    calls: u64,
    /// Steps of the walk, and those of them that were refused.
    steps: (u64, u64),
    /// What the kernel and e2fsck replayed.
    compared: Compared,
}

/// Failures of a part that are reported.
const FAILURES_TOLD: u64 = 20;

impl Tally {
    fn add(&mut self, checked: Result<(), String>) {
        if let Err(why) = checked {
            self.failures += 1;
            if self.failures <= FAILURES_TOLD {
                say(&format!("FAILED: {why}"));
            }
        }
    }

    fn join(&mut self, other: &Tally) {
        self.counts.add(&other.counts);
        self.failures += other.failures;
        self.calls += other.calls;
        self.steps.0 += other.steps.0;
        self.steps.1 += other.steps.1;
        self.compared.add(&other.compared);
    }

    fn report_shares(&self) {
        let counts = &self.counts;
        let share = |part: u64| 100.0 * part as f64 / counts.states.max(1) as f64;
        say(&format!(
            "  of the cut states {:.1} % have two or more handles open, {:.1} % a seal in flight",
            share(counts.busy),
            share(counts.sealing)
        ));
    }

    /// Says what this part counted, and how long it took.
    fn report(&self, name: &str, start: Instant) {
        let counts = &self.counts;
        say(&format!(
            "{name}: {} runs, {} cut states, {} cut again, {} faults, {} images read by e2fsck, {} by check, \
             {:.0} s",
            counts.runs,
            counts.states,
            counts.again,
            counts.faults,
            counts.judged,
            counts.checked,
            (now() - start).as_secs_f64()
        ));
    }
}

impl fmt::Display for Tally {
    /// For a program: every sum by its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        write!(
            f,
            "counted: runs {} states {} again {} faults {} judged {} checked {} busy {} sealing {} calls {} steps {} \
             refused {} by_kernel {} by_e2fsck {} in_window {} in_window_agreed {} torn_superblock {} \
             torn_commit {} failures {}",
            counts.runs,
            counts.states,
            counts.again,
            counts.faults,
            counts.judged,
            counts.checked,
            counts.busy,
            counts.sealing,
            self.calls,
            self.steps.0,
            self.steps.1,
            self.compared.by_kernel,
            self.compared.by_e2fsck,
            self.compared.in_window,
            self.compared.in_window_agreed,
            self.compared.torn_superblock,
            self.compared.torn_commit,
            self.failures
        )
    }
}

/// Seeds of the part that CI runs.
const SHORT_SEEDS: u64 = 240;
/// CI runs one in this number of the sequences of two.
const SHORT_PAIRS: u64 = 100;
/// CI runs one in this number of the sequences of one on a device whose requests fail.
const SHORT_FAULTS: u64 = 23;
/// Seeds that mostly fsync.
const SHORT_FSYNCS: u64 = 40;
/// The same, on each kind of image without fast commits.
const SHORT_FULL_FSYNCS: u64 = 8;
const SHORT_TRIPLES: u64 = 100;
/// Runs of which the kernel and e2fsck replay cuts.
const SHORT_REPLAYS: u64 = 16;
const SHORT_HISTORIES: u64 = 400;
const SHORT_STEPS: u64 = 40_000;

/// The sequences that CI runs, on these kinds of images.
///
/// # Errors
/// As [`singles`].
pub fn short_sequences(profiles: &[Profile]) -> Result<Tally, String> {
    let mut total = singles(profiles)?;
    for (index, profile) in (0..).zip(profiles) {
        // All of one kind of image that the full run has all of, a share of the others.
        let every = if index == 1 {
            SHORT_PAIRS
        } else {
            7 * SHORT_PAIRS
        };
        total.join(&pairs(*profile, index..u64::MAX, every)?);
        total.join(&faults(*profile, index..u64::MAX, SHORT_FAULTS)?);
    }
    total.join(&triples(image::FAST, 0..SHORT_TRIPLES)?);
    Ok(total)
}

/// All else that CI runs: random work, replays, histories, the walk, and the canaries.
///
/// # Errors
/// As [`singles`].
pub fn short_work(profiles: &[Profile]) -> Result<Tally, String> {
    let mut total = seeds(&WORKED_ON, 0..SHORT_SEEDS, false)?;
    total.join(&fsyncs(image::FAST, 0..SHORT_FSYNCS, false)?);
    for (index, profile) in (0..).zip(profiles.iter().filter(|one| !one.has_fast_commits)) {
        let first = index * SHORT_FULL_FSYNCS;
        total.join(&fsyncs(*profile, first..first + SHORT_FULL_FSYNCS, false)?);
    }
    total.join(&replays(image::FAST, 0..SHORT_REPLAYS)?);
    total.join(&histories(0..SHORT_HISTORIES)?);
    total.join(&walk(profiles, SHORT_STEPS)?);
    total.join(&canaries("")?);
    Ok(total)
}

fn repeat(profile: Profile, what: &str, why: &str) -> String {
    let name = profile.name;
    format!("{why}\nrepeat: cargo xtask crash --image {name} {what}")
}

/// Depth of sequences of one.
const SINGLES: Depth = Depth {
    drawn: 6,
    percent: 100,
    judge_one_in: 1,
};
/// Depth of sequences of two and three.
const PAIRS: Depth = Depth {
    drawn: 1,
    percent: 100,
    judge_one_in: 50,
};

/// Sequences of one, all of them, on these kinds of images.
///
/// # Errors
/// What no image can be made for.
pub fn singles(profiles: &[Profile]) -> Result<Tally, String> {
    let mut total = Tally::default();
    for profile in profiles {
        let count = sequences::count(&sequences::alphabet(profile.has_extents), 1);
        total.join(&cut_sequences(*profile, 1, 0..count)?);
    }
    Ok(total)
}

/// Every `every`-th of the sequences of two that have these numbers.
///
/// # Errors
/// As [`singles`].
pub fn pairs(profile: Profile, numbers: Range<u64>, every: u64) -> Result<Tally, String> {
    let count = sequences::count(&sequences::alphabet(profile.has_extents), 2);
    cut_sequences(profile, 2, chosen(&numbers, every, count))
}

/// Those sequences of three that have these places in the sample.
///
/// # Errors
/// As [`singles`].
pub fn triples(profile: Profile, places: Range<u64>) -> Result<Tally, String> {
    let alphabet = sequences::alphabet(profile.has_extents);
    let limit = |place| usize::try_from(place).unwrap_or(usize::MAX);
    let sample = sequences::sample(&alphabet, 3, limit(places.end));
    let skipped = limit(places.start);
    cut_sequences(profile, 3, sample.into_iter().skip(skipped))
}

fn depth_of_length(length: u32) -> Depth {
    if length == 1 { SINGLES } else { PAIRS }
}

/// One in this number of the sequences of three is also cut while the file system is closed.
const CLOSING_ONE_IN: u64 = 8;

fn run_sequence(
    sweep: &mut Sweep<'_>,
    ops: &[model::Op],
    length: u32,
    number: u64,
) -> Result<(), String> {
    let with_close = length < 3 || number.is_multiple_of(CLOSING_ONE_IN);
    sequences::run(sweep, ops, number, with_close)
}

fn cut_sequences(
    profile: Profile,
    length: u32,
    numbers: impl Iterator<Item = usize>,
) -> Result<Tally, String> {
    let start = now();
    let image = image::make(profile, &image::two_directories())?;
    let alphabet = sequences::alphabet(profile.has_extents);
    let mut sweep = Sweep::new(&image, depth_of_length(length))?;
    let mut tally = Tally::default();
    for number in numbers {
        let ops = sequences::sequence(&alphabet, length as usize, number);
        let run = || run_sequence(&mut sweep, &ops, length, number as u64);
        let checked = caught(run).map_err(|why| {
            let all: Vec<String> = ops.iter().map(brief).collect();
            let why = format!("{}: {why}", all.join("; "));
            repeat(profile, &format!("--sequence {length}:{number}"), &why)
        });
        tally.add(checked);
    }
    tally.counts = sweep.counts;
    tally.report(&format!("{}, sequences of {length}", profile.name), start);
    Ok(tally)
}

/// Every `every`-th of these numbers, up to `count`.
fn chosen(numbers: &Range<u64>, every: u64, count: usize) -> impl Iterator<Item = usize> + use<> {
    let start = usize::try_from(numbers.start).unwrap_or(usize::MAX);
    let end = usize::try_from(numbers.end)
        .unwrap_or(usize::MAX)
        .min(count);
    let every = usize::try_from(every.max(1)).unwrap_or(usize::MAX);
    (start..end).step_by(every)
}

/// Lets each request of sequences of one fail, and each of their recovery.
///
/// # Errors
/// As [`singles`].
pub fn faults(profile: Profile, numbers: Range<u64>, every: u64) -> Result<Tally, String> {
    let start = now();
    let image = image::make(profile, &image::two_directories())?;
    let alphabet = sequences::alphabet(profile.has_extents);
    let mut judge = ImageJudge::new(&image)?;
    let mut tally = Tally::default();
    for number in chosen(&numbers, every, alphabet.len()) {
        let ops = sequences::sequence(&alphabet, 1, number);
        let say = |why: String| repeat(profile, &format!("--fault 1:{number}"), &why);
        let times = RunTimes::of(number as u64);
        let checked = all_faults::run(&image, &mut judge, &ops, times, &mut tally.counts);
        tally.add(checked.map_err(say));
        let left = sequences::left_dirty(&image, &ops);
        let checked = left.and_then(|left| {
            all_faults::run_recovery(&image, &mut judge, &left, &mut tally.counts)
        });
        tally.add(checked.map_err(say));
        tally.counts.runs += 1;
    }
    tally.report(&format!("{}, faults", profile.name), start);
    Ok(tally)
}

/// One in this number of seeds runs once more on a device that fails.
const FAULTY_ONE_IN: u64 = 5;

/// Random work of these seeds that mostly fsyncs, on one kind of image: fast commits where it has them, else full ones
/// that threads share.
///
/// # Errors
/// As [`singles`].
pub fn fsyncs(profile: Profile, range: Range<u64>, is_full: bool) -> Result<Tally, String> {
    let start = now();
    let image = image::make(profile, &random_work::setup())?;
    let mut sweep = Sweep::new(&image, depth(is_full))?;
    let mut tally = Tally::default();
    for seed in range {
        let setting = RunSetting::syncing(profile, seed);
        let checked = caught(|| random_work::run(&mut sweep, &setting));
        tally.add(checked.map_err(|why| repeat_seed(profile, "--fsync", &setting, &why)));
    }
    tally.counts.add(&sweep.counts);
    tally.report(&format!("{}, fsyncs of four threads", profile.name), start);
    tally.report_shares();
    Ok(tally)
}

/// How deep seeds are cut.
fn depth(is_full: bool) -> Depth {
    let (drawn, percent) = if is_full { (4, 20) } else { (2, 0) };
    Depth {
        drawn,
        percent,
        judge_one_in: 50,
    }
}

fn repeat_seed(profile: Profile, what: &str, setting: &RunSetting, why: &str) -> String {
    let seed = setting.seed;
    repeat(profile, &format!("{what} {seed}   ({setting})"), why)
}

/// Random work of these seeds, on these kinds of images in turn.
///
/// # Errors
/// As [`singles`].
pub fn seeds(profiles: &[Profile], range: Range<u64>, is_full: bool) -> Result<Tally, String> {
    let start = now();
    let images: Vec<Image> = profiles
        .iter()
        .map(|profile| image::make(*profile, &random_work::setup()))
        .collect::<Result<_, _>>()?;
    let mut sweeps: Vec<Sweep<'_>> = images
        .iter()
        .map(|image| Sweep::new(image, depth(is_full)))
        .collect::<Result<_, _>>()?;
    let kinds = sweeps.len() as u64;
    let mut tally = Tally::default();
    for seed in range {
        // There are a few.
        let which = (seed % kinds) as usize;
        let (profile, sweep) = (profiles[which], &mut sweeps[which]);
        let setting = RunSetting::of(profile, seed);
        let checked = caught(|| random_work::run(sweep, &setting));
        tally.add(checked.map_err(|why| repeat_seed(profile, "--seed", &setting, &why)));
        // Each kind of image in turn.
        if (seed / kinds).is_multiple_of(FAULTY_ONE_IN) {
            let checked = caught(|| random_work::run_with_fault(sweep, &setting)).map(drop);
            tally.add(checked.map_err(|why| repeat_seed(profile, "--faulty", &setting, &why)));
        }
        if seed % 1000 == 999 {
            let states: u64 = sweeps.iter().map(|sweep| sweep.counts.states).sum();
            say(&format!("  {} seeds, {states} cut states", seed + 1));
        }
    }
    for sweep in &sweeps {
        tally.counts.add(&sweep.counts);
    }
    tally.report("seeds", start);
    tally.report_shares();
    Ok(tally)
}

/// One seed, with all that its threads did.
///
/// # Errors
/// What is wrong with it.
pub fn seed(profile: Profile, setting: &RunSetting) -> Result<Tally, String> {
    say(setting);
    let image = image::make(profile, &random_work::setup())?;
    let mut sweep = Sweep::new(&image, depth(true))?;
    let result = caught(|| random_work::run(&mut sweep, setting));
    tell(&random_work::record(&image, setting)?);
    result?;
    Ok(Tally {
        counts: sweep.counts,
        ..Tally::default()
    })
}

/// Says what the threads of a run did.
fn tell(recorded: &random_work::SeedRecord) {
    for call in recorded.trace.calls() {
        say(&format!(
            "{}..{} thread {}: {} -> {:?}",
            call.called,
            call.returned,
            call.thread,
            brief(&call.op),
            call.result
        ));
    }
}

/// One seed on a device that fails, with all that its threads did.
///
/// # Errors
/// What is wrong with it.
pub fn faulty(profile: Profile, setting: &RunSetting) -> Result<Tally, String> {
    say(setting);
    let image = image::make(profile, &random_work::setup())?;
    let mut sweep = Sweep::new(&image, depth(true))?;
    let result = caught(|| random_work::run_with_fault(&mut sweep, setting));
    let (recorded, _) = random_work::record_with_fault(&image, setting)?;
    tell(&recorded);
    result?;
    Ok(Tally {
        counts: sweep.counts,
        ..Tally::default()
    })
}

/// One sequence, cut or with faults.
///
/// # Errors
/// What is wrong with it.
pub fn sequence(profile: Profile, at: (u32, u64), with_faults: bool) -> Result<Tally, String> {
    let image = image::make(profile, &image::two_directories())?;
    let alphabet = sequences::alphabet(profile.has_extents);
    let (length, number) = at;
    let index = usize::try_from(number).map_err(|_| "no such sequence")?;
    let ops = sequences::sequence(&alphabet, length as usize, index);
    say(&RunTimes::of(number));
    ops.iter().for_each(|op| say(&brief(op)));
    let mut tally = Tally::default();
    if with_faults {
        let mut judge = ImageJudge::new(&image)?;
        all_faults::run(
            &image,
            &mut judge,
            &ops,
            RunTimes::of(number),
            &mut tally.counts,
        )?;
        let left = sequences::left_dirty(&image, &ops)?;
        all_faults::run_recovery(&image, &mut judge, &left, &mut tally.counts)?;
        return Ok(tally);
    }
    let mut sweep = Sweep::new(&image, depth_of_length(length))?;
    caught(|| run_sequence(&mut sweep, &ops, length, number))?;
    tally.counts = sweep.counts;
    Ok(tally)
}

/// Concurrent calls in one directory, of these seeds.
///
/// # Errors
/// As [`singles`].
pub fn histories(range: Range<u64>) -> Result<Tally, String> {
    let start = now();
    let image = all_histories::image()?;
    let mut tally = Tally::default();
    for seed in range {
        let checked = all_histories::run(&image, seed).map(|count| tally.calls += count as u64);
        let say = |why: String| format!("{why}\nrepeat: cargo xtask crash --history {seed}");
        tally.add(checked.map_err(say));
        tally.counts.runs += 1;
    }
    say(&format!(
        "histories: {} runs, {} calls that have an order, {:.0} s",
        tally.counts.runs,
        tally.calls,
        (now() - start).as_secs_f64()
    ));
    Ok(tally)
}

/// A walk of `count` steps, shared among these kinds of images.
///
/// # Errors
/// The first step that went wrong.
pub fn walk(profiles: &[Profile], count: u64) -> Result<Tally, String> {
    let start = now();
    let share = count / profiles.len() as u64;
    let (mut tally, mut unsupported) = (Tally::default(), 0);
    for profile in profiles {
        let index = PROFILES.iter().position(|kind| kind == profile);
        let image = image::make(*profile, &[])?;
        let mut judge = ImageJudge::new(&image)?;
        let mut walk = steps::StepWalk::new(&image, index.unwrap_or(0) as u64);
        while walk.steps < share {
            let stretch = steps::STRETCH.min(share - walk.steps);
            caught(|| walk.stretch(&image, &mut judge, stretch))
                .map_err(|why| repeat(*profile, &format!("--steps {share}"), &why))?;
            if walk.steps.is_multiple_of(10 * steps::STRETCH) {
                say(&format!("  {}: {} steps", profile.name, walk.steps));
            }
        }
        tally.steps.0 += walk.steps;
        tally.steps.1 += walk.refused;
        unsupported += walk.unsupported;
        tally.counts.judged += judge.judged;
        tally.counts.checked += judge.checked;
    }
    say(&format!(
        "walk: {} steps, {} refused as the model refuses them, {unsupported} refused by name, \
         e2fsck and check clean {} times, {:.0} s",
        tally.steps.0,
        tally.steps.1,
        tally.counts.judged,
        (now() - start).as_secs_f64()
    ));
    Ok(tally)
}

/// Mistakes made on purpose.
///
/// # Errors
/// Those that were not found.
pub fn canaries(only: &str) -> Result<Tally, String> {
    let start = now();
    lanefs_simulate::canaries::run(only, |canary, by, why| {
        let first = why.lines().next().unwrap_or_default();
        let short: String = first.chars().take(160).collect();
        say(&format!("  {canary:?}: found by {by}: {short}"));
    })?;
    let seconds = (now() - start).as_secs_f64();
    say(&format!("canaries: all found, {seconds:.0} s"));
    Ok(Tally::default())
}
