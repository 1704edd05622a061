//! The program behind `cargo xtask crash`: runs cuts and faults that follow from seeds and sequences. It prints figures
//! and verdicts, with each failure the command that repeats it, and as its last line `counted: ...`, which
//! `cargo xtask crash --full` reads.

mod run;

use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;

use lanefs_simulate::RunSetting;
use lanefs_simulate::image::{self, PROFILES, Profile, WORKED_ON};

use run::Tally;

const USAGE: &str = "\
usage: cargo xtask crash                  what CI runs, in two processes
       cargo xtask crash --short NAME     one of the two: sequences, or work (all else)
       cargo xtask crash --full           all of it, in two processes; what was done at this commit is not done again
       cargo xtask crash --seeds A..B     random work of these seeds
       cargo xtask crash --singles        sequences of one
       cargo xtask crash --pairs A..B     these sequences of two; one in N of them with --every N
       cargo xtask crash --triples A..B   sequences of three that have these places in the sample
       cargo xtask crash --fsyncs A..B    random work of these seeds that mostly fsyncs, on 4k-fast if no image is named
       cargo xtask crash --replays A..B   cuts of these runs, replayed by lanefs, the kernel and e2fsck
       cargo xtask crash --faults A..B    each request of these sequences of one fails, and of their recovery
       cargo xtask crash --histories A..B concurrent calls in one directory
       cargo xtask crash --steps N        a walk of N random steps on each kind of image in turn
       cargo xtask crash --canaries       mistakes made on purpose; one of them by its name
all of these: [--image NAME]
repeat one: [--image NAME] [--forms NAME=VALUE,...] --seed N | --fsync N | --faulty N | --sequence LENGTH:NUMBER |
            --fault LENGTH:NUMBER | --history N";

/// Prints a line. Errors are ignored, because the reader of the output may have closed it.
fn say(line: &dyn fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Removes an option and its value from the words, and returns the value.
fn option<'a>(words: &mut Vec<&'a str>, name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == name)?;
    let value = *words.get(at + 1)?;
    words.drain(at..at + 2);
    Some(value)
}

/// The setting that follows from a seed. If `forms` is given, the run has these forms, and does not switch them.
fn setting(profile: Profile, seed: &str, forms: Option<&str>) -> Result<RunSetting, String> {
    let mut setting = RunSetting::of(profile, number(seed)?);
    for form in forms.into_iter().flat_map(|forms| forms.split(',')) {
        setting.is_switching = false;
        let chosen = setting.variants.set(form);
        chosen.map_err(|why| why.to_string())?;
    }
    Ok(setting)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

/// Reads a range of numbers such as `0..20000`.
fn range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or(USAGE)?;
    Ok(number(from)?..number(to)?)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if !image::have_programs() {
        say(&"skipped: needs mke2fs and e2fsck");
        return ExitCode::SUCCESS;
    }
    // A panic is a failure like any other. It is reported where it is caught, so the hook prints nothing.
    std::panic::set_hook(Box::new(|_| {}));
    let image = option(&mut words, "--image");
    let profile = image.and_then(|name| WORKED_ON.into_iter().find(|kind| kind.name == name));
    if image.is_some() && profile.is_none() {
        say(&USAGE);
        return ExitCode::from(2);
    }
    match asked(&mut words, profile) {
        None => {
            say(&USAGE);
            ExitCode::from(2)
        }
        Some(Ok(tally)) => {
            say(&tally);
            match tally.failures {
                0 => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
        Some(Err(why)) => {
            say(&why);
            ExitCode::FAILURE
        }
    }
}

/// Runs the part that the words ask for. Returns `None` if they ask for no known part.
fn asked(words: &mut Vec<&str>, profile: Option<Profile>) -> Option<Result<Tally, String>> {
    let forms = option(words, "--forms");
    let every = option(words, "--every");
    let profiles = profile.map_or(PROFILES.to_vec(), |one| vec![one]);
    let worked_on = profile.map_or(WORKED_ON.to_vec(), |one| vec![one]);
    let one = profiles[0];
    let syncing = profile.unwrap_or(image::FAST);
    let result = match words.as_slice() {
        ["--short", "sequences"] => run::short_sequences(&profiles),
        ["--short", "work"] => run::short_work(&profiles),
        ["--canaries"] => run::canaries(""),
        ["--canaries", name] => run::canaries(name),
        ["--seeds", seeds] => range(seeds).and_then(|seeds| run::seeds(&worked_on, seeds, true)),
        ["--singles"] => run::singles(&profiles),
        ["--pairs", numbers] => range(numbers).and_then(|numbers| {
            let every = every.map_or(Ok(1), number)?;
            run::pairs(one, numbers, every)
        }),
        ["--triples", places] => range(places).and_then(|places| run::triples(one, places)),
        ["--fsyncs", seeds] => range(seeds).and_then(|seeds| run::fsyncs(syncing, seeds, true)),
        ["--replays", runs] => range(runs).and_then(|runs| run::replays(syncing, runs)),
        ["--faults", numbers] => range(numbers)
            .and_then(|numbers| run::faults(one, numbers, every.map_or(Ok(1), number)?)),
        ["--histories", seeds] => range(seeds).and_then(run::histories),
        ["--steps", count] => number(count).and_then(|count| run::walk(&profiles, count)),
        ["--seed", seed] => setting(one, seed, forms).and_then(|set| run::seed(one, &set)),
        ["--fsync", seed] => {
            number(seed).and_then(|seed| run::seed(syncing, &RunSetting::syncing(syncing, seed)))
        }
        ["--faulty", seed] => setting(one, seed, forms).and_then(|set| run::faulty(one, &set)),
        ["--history", seed] => number(seed).and_then(|seed| run::histories(seed..seed + 1)),
        ["--sequence", which] => place(which).and_then(|at| run::sequence(one, at, false)),
        ["--fault", which] => place(which).and_then(|at| run::sequence(one, at, true)),
        _ => return None,
    };
    Some(result)
}

/// Reads the length and the number of a sequence, such as `2:4711`.
fn place(which: &str) -> Result<(u32, u64), String> {
    let (length, number_text) = which.split_once(':').ok_or(USAGE)?;
    let length = length.parse().map_err(|_| USAGE)?;
    Ok((length, number(number_text)?))
}
