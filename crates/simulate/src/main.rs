//! `cargo xtask crash`: crashes and faults without end, from seeds and sequences; figures and verdicts on the standard
//! output, and one line that repeats what failed.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use lanefs_simulate::image::{self, Image, PROFILES};
use lanefs_simulate::{
    Counts, Depth, Judge, Sweep, brief, caught, faults, histories, seeds, sequences, steps,
};
use sync::clock::now;

const USAGE: &str = "\
usage: cargo xtask crash              the part that CI runs
       cargo xtask crash --full       all of it: sequences of one and two, 20,000 seeds, faults, histories, canaries
       cargo xtask crash --sequences      the sequences and faults of a full run
       cargo xtask crash --pairs FROM..TO these sequences of two
       cargo xtask crash --seeds FROM..TO random work of these seeds
       cargo xtask crash --steps N    a walk of N random steps on each kind of image in turn
       cargo xtask crash --canaries   mistakes made on purpose
repeat one: [--image NAME] --seed N | --sequence LENGTH:NUMBER | --fault LENGTH:NUMBER | --faulty N | --history N";

/// Says something on the standard output; who does not listen any more does not matter.
fn say(line: &dyn fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut profile = None;
    if let Some(at) = words.iter().position(|word| *word == "--image")
        && at + 1 < words.len()
    {
        profile = PROFILES.iter().find(|kind| kind.name == words[at + 1]);
        words.drain(at..at + 2);
    }
    if !image::have_programs() {
        say(&"skipped: needs mke2fs and e2fsck");
        return ExitCode::SUCCESS;
    }
    let profiles: Vec<image::Profile> = profile.map_or(PROFILES.to_vec(), |one| vec![*one]);
    quiet_panics();
    let result = match words.as_slice() {
        [] => all(&profiles, &SHORT),
        ["--full"] => all(&profiles, &FULL),
        ["--canaries"] => canaries(),
        ["--seeds", range] => range_of(range).and_then(|range| {
            let mut failures = Failures::default();
            all_seeds(&profiles, &FULL, range, &mut failures)?;
            failures.verdict()
        }),
        ["--sequences"] => sequences_of(&profiles),
        ["--pairs", range] => range_of(range).and_then(|range| pairs(profiles[0], range)),
        ["--steps", count] => number(count).and_then(|count| walk(&profiles, count)),
        ["--seed", seed] => number(seed).and_then(|seed| one_seed(profiles[0], seed)),
        ["--faulty", seed] => number(seed).and_then(|seed| {
            let image = image::make(profiles[0], &seeds::setup())?;
            let mut sweep = Sweep::new(&image, depth_of(&FULL))?;
            caught(|| seeds::run_with_fault(&mut sweep, seed)).map(drop)
        }),
        ["--history", seed] => number(seed)
            .and_then(|seed| histories::run(&histories::image()?, seed))
            .map(drop),
        ["--sequence", which] => one_sequence(profiles[0], which, false),
        ["--fault", which] => one_sequence(profiles[0], which, true),
        _ => {
            say(&USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

/// A panic is a verdict like any other, told once, where it was caught.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

/// The numbers from one to another: `0..20000`.
fn range_of(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or(USAGE)?;
    Ok(number(from)?..number(to)?)
}

/// How much of everything a run does.
struct Extent {
    pairs_one_in: usize,
    seeds: u64,
    drawn: u64,
    percent: u64,
    faults_one_in: usize,
    histories: u64,
    steps: u64,
}

const SHORT: Extent = Extent {
    pairs_one_in: 100,
    seeds: 240,
    drawn: 2,
    percent: 0,
    faults_one_in: 23,
    histories: 400,
    steps: 40_000,
};

const FULL: Extent = Extent {
    pairs_one_in: 1,
    seeds: 20_000,
    drawn: 4,
    percent: 20,
    faults_one_in: 1,
    histories: 20_000,
    steps: 0,
};

/// How many runs failed; the first few are told, and the rest goes on.
#[derive(Default)]
struct Failures(u64);

impl Failures {
    fn add(&mut self, checked: Result<(), String>) {
        if let Err(why) = checked {
            self.0 += 1;
            if self.0 <= FAILURES_TOLD {
                say(&format!("FAILED: {why}"));
            }
        }
    }
}

impl Failures {
    fn verdict(&self) -> Result<(), String> {
        match self.0 {
            0 => Ok(()),
            count => Err(format!("{count} failures")),
        }
    }
}

/// Failures of a run that are told.
const FAILURES_TOLD: u64 = 20;

/// What a part of the run counted, and how long it took.
fn report(name: &str, counts: &Counts, start: sync::clock::Instant) {
    say(&format!(
        "{name}: {} runs, {} cut states, {} cut again, {} faults, {} images read by e2fsck, {:.0} s",
        counts.runs,
        counts.states,
        counts.again,
        counts.faults,
        counts.judged,
        (now() - start).as_secs_f64()
    ));
}

/// The sequences and faults of a full run, on these kinds of images.
fn sequences_of(profiles: &[image::Profile]) -> Result<(), String> {
    let mut failures = Failures::default();
    for profile in profiles {
        let index = PROFILES.iter().position(|kind| kind == profile);
        all_sequences(*profile, &FULL, index.unwrap_or(0), &mut failures)?;
    }
    failures.verdict()
}

fn all(profiles: &[image::Profile], extent: &Extent) -> Result<(), String> {
    let mut total = Counts::default();
    let mut failures = Failures::default();
    for (index, profile) in profiles.iter().enumerate() {
        // Pairs on each kind of image; in the short run a share of them.
        total.add(&all_sequences(*profile, extent, index, &mut failures)?);
    }
    total.add(&all_seeds(
        profiles,
        extent,
        0..extent.seeds,
        &mut failures,
    )?);
    let start = now();
    let image = histories::image()?;
    let mut calls = 0;
    for seed in 0..extent.histories {
        match histories::run(&image, seed) {
            Ok(count) => calls += count,
            Err(why) => failures.add(Err(format!(
                "{why}\nrepeat: cargo xtask crash --history {seed}"
            ))),
        }
    }
    say(&format!(
        "histories: {} runs, {calls} calls that have an order, {:.0} s",
        extent.histories,
        (now() - start).as_secs_f64()
    ));
    if extent.steps > 0 {
        walk(profiles, extent.steps)?;
    }
    canaries()?;
    say(&format!(
        "in all: {} cut states of {} runs, {} cut again, {} faults, {} images read by e2fsck; {} failures",
        total.states, total.runs, total.again, total.faults, total.judged, failures.0
    ));
    failures.verdict()
}

fn repeat(profile: image::Profile, what: &str, why: &str) -> String {
    format!(
        "{why}\nrepeat: cargo xtask crash --image {} {what}",
        profile.name
    )
}

fn briefs(ops: &[model::Op]) -> String {
    ops.iter().map(brief).collect::<Vec<_>>().join("; ")
}

/// Cuts the sequences of a length that have these numbers.
fn cut_sequences(
    sweep: &mut Sweep<'_>,
    alphabet: &[sequences::Step],
    length: u32,
    numbers: impl Iterator<Item = usize>,
    failures: &mut Failures,
) {
    let profile = sweep.image.profile;
    for number in numbers {
        let ops = sequences::sequence(alphabet, length as usize, number);
        let checked = caught(|| sequences::run(sweep, &ops, number as u64)).map_err(|why| {
            let why = format!("{}: {why}", briefs(&ops));
            repeat(profile, &format!("--sequence {length}:{number}"), &why)
        });
        failures.add(checked);
    }
}

/// Depth of sequences of two.
const PAIRS: Depth = Depth {
    drawn: 1,
    percent: 100,
    judge_one_in: 50,
};

fn pairs(profile: image::Profile, range: std::ops::Range<u64>) -> Result<(), String> {
    let (start, image) = (now(), image::make(profile, &image::two_directories())?);
    let alphabet = sequences::alphabet(profile.has_extents);
    let mut sweep = Sweep::new(&image, PAIRS)?;
    let mut failures = Failures::default();
    let end = u64::try_from(sequences::count(&alphabet, 2)).unwrap_or(0);
    // Numbers of sequences are small.
    let numbers = (range.start..range.end.min(end)).map(|number| number as usize);
    cut_sequences(&mut sweep, &alphabet, 2, numbers, &mut failures);
    let name = format!("{}, sequences of 2", profile.name);
    report(&name, &sweep.counts, start);
    failures.verdict()
}

fn all_sequences(
    profile: image::Profile,
    extent: &Extent,
    offset: usize,
    failures: &mut Failures,
) -> Result<Counts, String> {
    let image = image::make(profile, &image::two_directories())?;
    let alphabet = sequences::alphabet(profile.has_extents);
    let mut total = Counts::default();
    let singles = Depth {
        drawn: 6,
        percent: 100,
        judge_one_in: 1,
    };
    for (length, depth) in [(1, singles), (2, PAIRS)] {
        let start = now();
        let mut sweep = Sweep::new(&image, depth)?;
        let stride = match length {
            1 => 1,
            // All pairs on one kind of image, a share of them on the others.
            _ if offset == 1 => extent.pairs_one_in,
            _ => 7 * extent.pairs_one_in,
        };
        let first = offset % stride;
        let numbers = (first..sequences::count(&alphabet, length)).step_by(stride);
        cut_sequences(&mut sweep, &alphabet, length, numbers, failures);
        let name = format!("{}, sequences of {length}", profile.name);
        report(&name, &sweep.counts, start);
        total.add(&sweep.counts);
    }
    let start = now();
    let mut judge = Judge::new(&image)?;
    let mut counts = Counts::default();
    for index in (offset..alphabet.len()).step_by(extent.faults_one_in) {
        let ops = sequences::sequence(&alphabet, 1, index);
        let checked = faults::run(&image, &mut judge, &ops, &mut counts)
            .map_err(|why| repeat(profile, &format!("--fault 1:{index}"), &why));
        failures.add(checked);
        let checked = sequences::left_dirty(&image, &ops)
            .and_then(|left| faults::run_recovery(&image, &left, &mut counts))
            .map_err(|why| repeat(profile, &format!("--fault 1:{index}"), &why));
        failures.add(checked);
        counts.runs += 1;
    }
    report(&format!("{}, faults", profile.name), &counts, start);
    total.add(&counts);
    Ok(total)
}

/// Every so many seeds run once more on a device that fails.
const FAULTY_ONE_IN: u64 = 5;

fn depth_of(extent: &Extent) -> Depth {
    Depth {
        drawn: extent.drawn,
        percent: extent.percent,
        judge_one_in: 50,
    }
}

fn all_seeds(
    profiles: &[image::Profile],
    extent: &Extent,
    range: std::ops::Range<u64>,
    failures: &mut Failures,
) -> Result<Counts, String> {
    let start = now();
    let images: Vec<Image> = profiles
        .iter()
        .map(|profile| image::make(*profile, &seeds::setup()))
        .collect::<Result<_, _>>()?;
    let mut sweeps: Vec<Sweep<'_>> = images
        .iter()
        .map(|image| Sweep::new(image, depth_of(extent)))
        .collect::<Result<_, _>>()?;
    let kinds = sweeps.len() as u64;
    for seed in range {
        let which = usize::try_from(seed % kinds).unwrap_or(0);
        let checked = caught(|| seeds::run(&mut sweeps[which], seed))
            .map_err(|why| repeat(profiles[which], &format!("--seed {seed}"), &why));
        failures.add(checked);
        if seed % FAULTY_ONE_IN == 0 {
            let checked = caught(|| seeds::run_with_fault(&mut sweeps[which], seed))
                .map_err(|why| repeat(profiles[which], &format!("--faulty {seed}"), &why));
            failures.add(checked.map(drop));
        }
        if seed % 1000 == 999 {
            let states: u64 = sweeps.iter().map(|sweep| sweep.counts.states).sum();
            say(&format!("  {} seeds, {states} cut states", seed + 1));
        }
    }
    let mut total = Counts::default();
    sweeps.iter().for_each(|sweep| total.add(&sweep.counts));
    report("seeds", &total, start);
    let share = |part: u64| 100.0 * part as f64 / total.states.max(1) as f64;
    say(&format!(
        "  of the cut states {:.1} % have two or more handles open, {:.1} % a seal in flight",
        share(total.busy),
        share(total.sealing)
    ));
    Ok(total)
}

fn one_seed(profile: image::Profile, seed: u64) -> Result<(), String> {
    let image = image::make(profile, &seeds::setup())?;
    let mut sweep = Sweep::new(&image, depth_of(&FULL))?;
    let result = caught(|| seeds::run(&mut sweep, seed));
    let recorded = seeds::record(&image, seed)?;
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
    result?;
    report(profile.name, &sweep.counts, now());
    Ok(())
}

fn one_sequence(profile: image::Profile, which: &str, with_faults: bool) -> Result<(), String> {
    let (length, index) = which.split_once(':').ok_or(USAGE)?;
    let (length, index) = (number(length)?, number(index)?);
    let image = image::make(profile, &image::two_directories())?;
    let alphabet = sequences::alphabet(profile.has_extents);
    let ops = sequences::sequence(
        &alphabet,
        usize::try_from(length).unwrap_or(1),
        usize::try_from(index).unwrap_or(0),
    );
    say(&briefs(&ops));
    if with_faults {
        let (mut judge, mut counts) = (Judge::new(&image)?, Counts::default());
        faults::run(&image, &mut judge, &ops, &mut counts)?;
        let left = sequences::left_dirty(&image, &ops)?;
        return faults::run_recovery(&image, &left, &mut counts);
    }
    let depth = Depth {
        drawn: 6,
        percent: 100,
        judge_one_in: 1,
    };
    let mut sweep = Sweep::new(&image, depth)?;
    caught(|| sequences::run(&mut sweep, &ops, index))?;
    report(profile.name, &sweep.counts, now());
    Ok(())
}

fn walk(profiles: &[image::Profile], count: u64) -> Result<(), String> {
    let start = now();
    let share = count / profiles.len() as u64;
    let (mut done, mut refused, mut unsupported, mut judged) = (0, 0, 0, 0);
    for (index, profile) in profiles.iter().enumerate() {
        let image = image::make(*profile, &[])?;
        let mut judge = Judge::new(&image)?;
        let mut walk = steps::Walk::new(&image, index as u64);
        while walk.steps < share {
            let stretch = steps::STRETCH.min(share - walk.steps);
            caught(|| walk.stretch(&image, &mut judge, stretch)).map_err(|why| {
                format!(
                    "{why}\nrepeat: cargo xtask crash --image {} --steps {share}",
                    profile.name
                )
            })?;
            if walk.steps.is_multiple_of(10 * steps::STRETCH) {
                say(&format!("  {}: {} steps", profile.name, walk.steps));
            }
        }
        done += walk.steps;
        refused += walk.refused;
        unsupported += walk.unsupported;
        judged += judge.judged;
    }
    say(&format!(
        "walk: {done} steps, {refused} refused as the model refuses them, {unsupported} refused by name, \
         e2fsck clean {judged} times, {:.0} s",
        (now() - start).as_secs_f64()
    ));
    Ok(())
}

fn canaries() -> Result<(), String> {
    let start = now();
    lanefs_simulate::canaries::run(|canary, by, why| {
        let first = why.lines().next().unwrap_or_default();
        let short: String = first.chars().take(160).collect();
        say(&format!("  {canary:?}: found by {by}: {short}"));
    })?;
    say(&format!(
        "canaries: all found, {:.0} s",
        (now() - start).as_secs_f64()
    ));
    Ok(())
}
