//! The part of a run in which the kernel and e2fsck replay what cuts leave, beside lanefs: a few cuts of each of many
//! runs, among them the fsyncs of four threads and sequences of each length.

use std::collections::HashSet;
use std::ops::Range;

use lanefs_simulate::image::{self, Image, Profile};
use lanefs_simulate::{
    Cut, Others, Recorder, RunSetting, RunTimes, brief, caught, seeds as random_work, sequences,
};
use model::{Op, Random};
use sync::clock::now;

use super::{Tally, repeat};
use crate::say;

/// Runs follow from other numbers than seeds and samples.
const RUNS: u64 = 0x7265_706c_6179;
/// Cuts of each run.
const CUTS: usize = 4;
/// One in this number of runs has four threads.
const THREADS_ONE_IN: u64 = 4;
/// Cuts are drawn so often at most before there are enough.
const TRIES: usize = 60;
/// Of each cut point, the states that may be drawn.
const STATES: u64 = 6;

/// Has cuts of these runs replayed by the kernel, e2fsck and lanefs.
///
/// # Errors
/// What no image can be made for.
pub fn replays(profile: Profile, runs: Range<u64>) -> Result<Tally, String> {
    let start = now();
    let for_sequences = image::make(profile, &image::two_directories())?;
    let for_threads = image::make(profile, &random_work::setup())?;
    let mut on_sequences = Others::new(&for_sequences)?;
    let mut on_threads = Others::new(&for_threads)?;
    if !on_sequences.has_kernel() {
        say(&"skipped: the kernel's replay needs root and a loop device");
    }
    let mut tally = Tally::default();
    for run in runs {
        let mut random = Random::new(run ^ RUNS);
        let checked = if run.is_multiple_of(THREADS_ONE_IN) {
            caught(|| of_threads(&for_threads, run, &mut random, &mut on_threads))
        } else {
            caught(|| of_sequence(&for_sequences, run, &mut random, &mut on_sequences))
        };
        tally.counts.runs += 1;
        tally.add(checked.map_err(|why| {
            let what = format!("--replays {run}..{}", run + 1);
            repeat(profile, &what, &why)
        }));
    }
    tally.compared.add(&on_sequences.compared);
    tally.compared.add(&on_threads.compared);
    let compared = &tally.compared;
    say(&format!(
        "{}, replays: {} runs, {} states replayed alike by the kernel, {} by e2fsck; {} in e2fsck's window, {} of them \
         alike; {} with a torn superblock, {} with a torn commit record, {:.0} s",
        profile.name,
        tally.counts.runs,
        compared.by_kernel,
        compared.by_e2fsck,
        compared.in_window,
        compared.in_window_agreed,
        compared.torn_superblock,
        compared.torn_commit,
        (now() - start).as_secs_f64()
    ));
    Ok(tally)
}

/// Fsyncs of four threads.
fn of_threads(
    image: &Image,
    run: u64,
    random: &mut Random,
    others: &mut Others<'_>,
) -> Result<(), String> {
    let setting = RunSetting::syncing(image.profile, run);
    let recorded = random_work::record(image, &setting)?;
    let name = format!("fsyncs of seed {run} ({setting})");
    cut(&recorded.recorder, &name, random, others)
}

/// A sequence of one to three operations, the last of which is synced.
fn of_sequence(
    image: &Image,
    run: u64,
    random: &mut Random,
    others: &mut Others<'_>,
) -> Result<(), String> {
    let alphabet = sequences::alphabet(image.profile.has_extents);
    let length = 1 + run % 3;
    let mut ops: Vec<Op> = Vec::new();
    for place in 0..length {
        loop {
            let step = random.pick(&alphabet);
            if step.len() > 1 || place + 1 < length {
                ops.extend(step.iter().cloned());
                break;
            }
        }
    }
    let recorder = Recorder::over(&image.device);
    let recorded = sequences::record(recorder, &image.tree, &ops, RunTimes::of(run))?;
    if let Some((_, why)) = recorded.broken {
        return Err(why);
    }
    let name = ops.iter().map(brief).collect::<Vec<_>>().join("; ");
    cut(&recorded.recorder, &name, random, others)
}

/// Compares some of a recording's cuts, no two states of them the same.
fn cut(
    recorder: &Recorder,
    name: &str,
    random: &mut Random,
    others: &mut Others<'_>,
) -> Result<(), String> {
    let mut cuts = recorder.cuts();
    let points: Vec<usize> = cuts.points().collect();
    let mut seen = HashSet::new();
    for _ in 0..TRIES {
        let cut = Cut {
            event: *random.pick(&points),
            seed: random.below(STATES),
        };
        let state = cuts.state(cut);
        if !seen.insert(state.digest(&[])) {
            continue;
        }
        let checked = others.compare(&state);
        let is_in_window = checked.map_err(|why| {
            let kept = std::env::temp_dir().join("lanefs-crash.img");
            let kept = match others.keep(&state, &kept) {
                Ok(()) => format!("the state is in {}", kept.display()),
                Err(error) => error,
            };
            format!("{name}: {cut}: {why}; {kept}")
        })?;
        if is_in_window {
            say(&format!("  in e2fsck's window: {name}: {cut}"));
        }
        if seen.len() == CUTS {
            break;
        }
    }
    Ok(())
}
