//! `cargo xtask sharing`: runs pairs of operations on objects that have nothing in common, by two threads that take
//! turns, in the engine on a memory device. Reports each cache line that one thread wrote and the other touched, with
//! the places in the source. A program that another command built records nothing, and reports that.

mod known;
mod pairs;
mod show;
mod watch;

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use lanefs_sharing::{PlantedSharing, WatchedOperation};

use known::KNOWN;
use pairs::{Pair, PairSettings};

#[global_allocator]
static HEAP: watch::heap::WatchedHeap = watch::heap::WatchedHeap;

const USAGE: &str = "\
usage: cargo xtask sharing [OPTION ...] [OPERATION[,OPERATION] ...]
  all pairs of operations, or those named: create unlink append overwrite truncate fallocate stat mkdir rename
                  read walk
  --line 64|128   the cache line's bytes (64)
  --set NAME=FORM uses this form of a mechanism
  --json          the report in JSON
  --siblings      the workers' directories in one, and so in one group, not in groups apart
  --refills       also lines that are written rarely
  --places N      how many places of each line are shown (6)
  --canary NAME   commit a mistake beside each operation: shared-counter, false-sharing, shared-reference, apart";

/// Prints a line. An error is ignored: the reader of the output may have closed it.
pub fn say(line: &dyn fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some((settings, pairs)) = parse(&words) else {
        say(&USAGE);
        return ExitCode::from(2);
    };
    match run(&settings, &pairs) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("sharing: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn operation(name: &str) -> Option<WatchedOperation> {
    WatchedOperation::ALL
        .into_iter()
        .find(|one| one.name() == name)
}

fn canary(name: &str) -> Option<PlantedSharing> {
    match name {
        "shared-counter" => Some(PlantedSharing::SharedCounter),
        "false-sharing" => Some(PlantedSharing::FalseSharing),
        "shared-reference" => Some(PlantedSharing::SharedReference),
        "apart" => Some(PlantedSharing::Apart),
        _ => None,
    }
}

fn parse(words: &[&str]) -> Option<(PairSettings, Vec<[WatchedOperation; 2]>)> {
    let mut settings = PairSettings::default();
    let mut pairs = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--json" => settings.json = true,
            "--siblings" => settings.siblings = true,
            "--refills" => settings.shows_refills = true,
            "--line" => {
                settings.line = words
                    .next()?
                    .parse()
                    .ok()
                    .filter(|line| matches!(line, 64 | 128))?
            }
            "--places" => settings.places = words.next()?.parse().ok()?,
            "--canary" => settings.canary = Some(canary(words.next()?)?),
            "--set" => settings.variants.push((*words.next()?).to_owned()),
            names => {
                let (one, other) = names.split_once(',').unwrap_or((names, names));
                pairs.push([operation(one)?, operation(other)?]);
            }
        }
    }
    if pairs.is_empty() {
        for (number, one) in WatchedOperation::ALL.into_iter().enumerate() {
            let others = WatchedOperation::ALL[number..]
                .iter()
                .map(|other| [one, *other]);
            pairs.extend(others.filter(|pair| is_of_interest(*pair)));
        }
        settings.is_whole = true;
    }
    Some((settings, pairs))
}

/// Whether the report of all pairs contains this pair.
///
/// The operation `orphan` consists of a create and an unlink, so its pairs with other operations show nothing new. Two
/// walks show whether the directories that both pass are written. A walk and another operation have no directory in
/// common but the root. A pair of them would show which of their inode numbers happen to have the same bucket in the
/// inode table: in 256 rounds an unlink looks once into the bucket of each of the 16 names that a walk reaches.
fn is_of_interest(pair: [WatchedOperation; 2]) -> bool {
    match pair[1] {
        WatchedOperation::Orphan => {
            matches!(pair[0], WatchedOperation::Unlink | WatchedOperation::Orphan)
        }
        WatchedOperation::Walk => pair[0] == WatchedOperation::Walk,
        _ => true,
    }
}

/// Runs the pairs; returns whether all shared lines are known.
fn run(settings: &PairSettings, pairs: &[[WatchedOperation; 2]]) -> Result<bool, String> {
    if settings.canary.is_none() {
        canaries(settings)?;
    }
    let mut done = Vec::new();
    for operations in pairs {
        done.push(Pair::run(*operations, settings)?);
    }
    let is_needed = |entry: &usize| {
        let mut excused = done.iter().flat_map(Pair::excused);
        excused.any(|one| one == *entry)
    };
    let unneeded: Vec<usize> = (0..KNOWN.len())
        .filter(|entry| settings.is_whole && !is_needed(entry))
        .collect();
    if settings.json {
        say(&show::json(&done, &unneeded, settings))
    } else {
        show::text(&done, &unneeded, settings)
    }
    Ok(unneeded.is_empty() && done.iter().all(Pair::is_clean))
}

/// Checks that mistakes made on purpose are found, and that correct code is not reported.
fn canaries(settings: &PairSettings) -> Result<(), String> {
    for canary in PlantedSharing::ALL {
        let settings = PairSettings {
            canary: Some(canary),
            ..settings.clone()
        };
        let pair = Pair::run([WatchedOperation::Stat; 2], &settings)?;
        let is_found = pair.lines.iter().any(|line| {
            let mut frames = line.shared.uses.iter().flat_map(|used| &used.frames);
            frames.any(|frame| frame.file.ends_with("sharing/src/canary.rs"))
                && !line.shared.is_rare()
        });
        if is_found != canary.shares() {
            return Err(if is_found {
                format!("the report finds {canary:?}, which shares nothing")
            } else {
                format!("the report misses {canary:?}: is it built by `cargo xtask sharing`?")
            });
        }
    }
    Ok(())
}
