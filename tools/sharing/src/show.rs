//! The report, as text and as JSON. No locks; nothing survives the process.

use serde_json::{Value, json};

use crate::known::KNOWN;
use crate::pairs::{JudgedLine, Pair, PairSettings};
use crate::say;
use crate::watch::record::ROUNDS;
use crate::watch::report::{REFILLS_MOST, SharedLine, WorkerUse};
use crate::watch::symbols::SourceFrame;

/// Frames shown of a place.
const FRAMES: usize = 4;

fn names(pair: &Pair) -> String {
    let [one, other] = pair.operations;
    format!("{} | {}", one.name(), other.name())
}

/// All lines of a pair that are excused, and how often they went to each worker.
fn excused(pair: &Pair) -> (usize, [u32; 2]) {
    let entries = (0..KNOWN.len()).map(|entry| pair.excused_by(entry));
    entries.fold(
        (0, [0, 0]),
        |(lines, [one, other]), (more, [to_one, to_other])| {
            (lines + more, [one + to_one, other + to_other])
        },
    )
}

/// The report for people.
pub fn text(pairs: &[Pair], unneeded: &[usize], settings: &PairSettings) {
    for pair in pairs {
        show_pair(pair, settings);
        if pair.refills_too_often() {
            let [one, other] = pair.refills;
            say(&format!(
                "{}: {one} and {other} of {ROUNDS} rounds refill, more than {REFILLS_MOST} a step",
                names(pair)
            ));
        }
        for entry in pair.excused_too_often() {
            let (lines, [one, other]) = pair.excused_by(entry);
            let known = KNOWN[entry];
            say(&format!(
                "{}: {lines} known lines of {} {} go over {one} and {other} times, more than {} a step",
                names(pair),
                known.file,
                known.function,
                known.together
            ));
        }
    }
    say(&format!(
        "{:<24} {:>8} {:>8} {:>14} {:>8} {:>14} {:>16}",
        "pair", "shared", "known", "gone over", "false", "refills/256", "lines touched"
    ));
    for pair in pairs {
        let often = || pair.lines.iter().filter(|line| !line.shared.is_rare());
        let (lines, [one, other]) = excused(pair);
        say(&format!(
            "{:<24} {:>8} {:>8} {:>14} {:>8} {:>14} {:>16}",
            names(pair),
            often().filter(|line| line.known.is_none()).count(),
            lines,
            format!("{one} {other}"),
            often().filter(|line| line.shared.is_false).count(),
            format!("{} {}", pair.refills[0], pair.refills[1]),
            format!("{} {}", pair.touched[0], pair.touched[1]),
        ));
    }
    for entry in unneeded {
        let known = KNOWN[*entry];
        say(&format!(
            "no longer shared, take it off the list: {} {}: {}",
            known.file, known.function, known.why
        ));
    }
    let shared: usize = pairs.iter().map(|pair| pair.failures().count()).sum();
    let clean = pairs.iter().filter(|pair| pair.is_clean()).count();
    say(&format!(
        "sharing: {clean} of {} pairs share nothing that is not known ({} entries known); {shared} lines shared",
        pairs.len(),
        KNOWN.len()
    ));
}

/// The lines of a pair, those that are written most at one place together.
fn show_pair(pair: &Pair, settings: &PairSettings) {
    let mut groups: Vec<(String, Vec<&JudgedLine>)> = Vec::new();
    let shown = pair.lines.iter().filter(|line| {
        let is_rare = line.shared.is_rare();
        line.known.is_none() && (!is_rare || settings.shows_refills || pair.refills_too_often())
    });
    for line in shown {
        let name = line.shared.uses.first().map_or_else(String::new, |used| {
            used.frames.first().map_or_else(String::new, short)
        });
        match groups.iter_mut().find(|(group, _)| *group == name) {
            Some((_, lines)) => lines.push(line),
            None => groups.push((name, vec![line])),
        }
    }
    for (_, lines) in groups {
        show_lines(pair, &lines, settings);
    }
}

fn show_lines(pair: &Pair, lines: &[&JudgedLine], settings: &PairSettings) {
    let shared = &lines[0].shared;
    let [one, other] = shared.writes();
    let [to_one, to_other] = shared.fetches();
    let count = match lines.len() {
        1 => String::new(),
        len => format!("{len} lines, the first "),
    };
    say(&format!(
        "{}: {count}{:#x}, written in {one} and {other} rounds, fetched in {to_one} and {to_other} of {ROUNDS}{}",
        names(pair),
        shared.address,
        if shared.is_false {
            ", falsely shared"
        } else {
            ""
        }
    ));
    for worker in 0..2 {
        let uses = shared.uses.iter().filter(|used| used.worker == worker);
        for used in uses.take(settings.places) {
            say(&format!("    {}", place(used)));
        }
    }
}

fn place(used: &WorkerUse) -> String {
    let frames: Vec<String> = used.frames.iter().take(FRAMES).map(short).collect();
    format!(
        "{} {} x{} bytes {}..{}: {} [{}]",
        used.worker,
        used.kind.name(),
        used.rounds,
        used.bytes.0,
        used.bytes.1,
        frames.join(" < "),
        last_part(&used.by),
    )
}

fn short(frame: &SourceFrame) -> String {
    let file = frame
        .file
        .trim_start_matches("crates/")
        .replace("/src/", "/");
    format!("{file}:{} {}", frame.line, last_part(&frame.function))
}

/// A function's own name, with its type's.
fn last_part(function: &str) -> &str {
    let end = function.rfind("::h").unwrap_or(function.len());
    let name = &function[..end];
    match name.rmatch_indices("::").nth(1) {
        Some((at, _)) => &name[at + 2..],
        None => name,
    }
}

/// The report for programs.
pub fn json(pairs: &[Pair], unneeded: &[usize], settings: &PairSettings) -> Value {
    let pairs = pairs.iter().map(|pair| {
        json!({
            "operations": [pair.operations[0].name(), pair.operations[1].name()],
            "clean": pair.is_clean(),
            "rounds": ROUNDS,
            "refills": pair.refills,
            "known_lines": excused(pair).0,
            "known_lines_went_over": excused(pair).1,
            "lines_touched": pair.touched,
            "lines": pair.lines.iter().map(line_json).collect::<Vec<_>>(),
        })
    });
    json!({
        "version": 1,
        "line_bytes": settings.line,
        "refills_most": REFILLS_MOST,
        "pairs": pairs.collect::<Vec<_>>(),
        "known": KNOWN.iter().map(|known| {
            json!({"file": known.file, "function": known.function, "why": known.why})
        }).collect::<Vec<_>>(),
        "known_no_longer_needed": unneeded,
    })
}

fn line_json(line: &JudgedLine) -> Value {
    let shared: &SharedLine = &line.shared;
    let uses = shared.uses.iter().map(|used| {
        json!({
            "worker": used.worker,
            "kind": used.kind.name(),
            "bytes": [used.bytes.0, used.bytes.1],
            "rounds": used.rounds,
            "by": used.by,
            "calls": used.frames.iter().map(|frame| {
                json!({"file": frame.file, "line": frame.line, "function": frame.function})
            }).collect::<Vec<_>>(),
        })
    });
    json!({
        "address": shared.address,
        "written_rounds": shared.writes(),
        "fetched_rounds": shared.fetches(),
        "false_sharing": shared.is_false,
        "refill": shared.is_rare(),
        "known": line.known,
        "uses": uses.collect::<Vec<_>>(),
    })
}
