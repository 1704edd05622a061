//! `cargo xtask ci`: all that must hold before a change goes in, step by step, each timed. The first step that fails
//! ends the run; the last line is the verdict.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::tidy;

/// Runs all steps.
pub fn run(root: &Path) -> Result<(), String> {
    let start = Instant::now();
    let mut times = Vec::new();
    let mut timed = |name: &'static str, step: &mut dyn FnMut() -> Result<String, String>| {
        println!("==> {name}");
        let begun = Instant::now();
        let result = step();
        times.push((name, begun.elapsed()));
        match result {
            Ok(note) if note.is_empty() => Ok(()),
            Ok(note) => {
                println!("    {note}");
                Ok(())
            }
            Err(error) => Err(format!(
                "ci: FAILED at {name} after {}: {error}",
                clock(start.elapsed())
            )),
        }
    };
    timed("format", &mut || {
        cargo(root, &["fmt", "--all", "--check"], &[])
    })?;
    timed("tidy", &mut || tidy::run(root))?;
    timed("clippy", &mut || {
        let arguments = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ];
        cargo(root, &arguments, &[])
    })?;
    let mut tally = Tally::default();
    timed("building the tests", &mut || {
        let arguments = ["test", "--workspace", "--locked", "--quiet", "--no-run"];
        cargo(root, &arguments, &[])
    })?;
    timed("tests", &mut || {
        tally = tests(root)?;
        Ok(tally.closing())
    })?;
    timed("crash", &mut || crate::crash::run(root, &[]))?;
    timed("sharing", &mut || {
        counting(&mut tally, crate::sharing::run(root, &[]))
    })?;
    timed("instructions", &mut || {
        counting(&mut tally, crate::instructions::run(root, &[]))
    })?;
    timed("documentation", &mut || documentation(root))?;
    println!();
    for (name, time) in times {
        println!("{:>8}  {name}", clock(time));
    }
    println!("{:>8}  in all", clock(start.elapsed()));
    println!("ci: passed; {}", tally.closing());
    Ok(())
}

/// Counts a step that says that it was skipped with the tests that were.
fn counting(tally: &mut Tally, note: Result<String, String>) -> Result<String, String> {
    if let Ok(note) = &note {
        tally.read(note);
    }
    note
}

/// Builds it with every warning an error. The doc comments of the program are its help texts, in a syntax of their own.
fn documentation(root: &Path) -> Result<String, String> {
    let arguments = [
        "doc",
        "--workspace",
        "--exclude",
        "lanefs-cli",
        "--no-deps",
        "--locked",
        "--quiet",
    ];
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    cargo(root, &arguments, &[("RUSTDOCFLAGS", flags)])
}

fn clock(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Runs cargo with its output shown.
fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<String, String> {
    let status = Command::new(crate::cargo())
        .current_dir(root)
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if status.success() {
        Ok(String::new())
    } else {
        Err(format!("cargo {} failed", arguments.join(" ")))
    }
}

/// What the tests said.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Reasons for which tests did not run, and how often.
    skipped: BTreeMap<String, u64>,
}

impl Tally {
    fn read(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count_before(counts, " passed");
            self.failed += count_before(counts, " failed");
            self.ignored += count_before(counts, " ignored");
        } else if let Some(at) = line.find("skipped: ") {
            let reason = line[at + "skipped: ".len()..].trim().to_owned();
            *self.skipped.entry(reason).or_default() += 1;
        }
    }

    fn closing(&self) -> String {
        let skipped: u64 = self.skipped.values().sum();
        let mut line = format!(
            "tests: {} passed, {} failed, {skipped} skipped",
            self.passed, self.failed
        );
        if self.ignored > 0 {
            line += &format!(", {} ignored", self.ignored);
        }
        if skipped > 0 {
            let reasons = self
                .skipped
                .iter()
                .map(|(reason, count)| format!("{count}x {reason}"));
            line += &format!(" ({})", reasons.collect::<Vec<_>>().join("; "));
        }
        line
    }
}

fn count_before(text: &str, word: &str) -> u64 {
    let number = text
        .split(word)
        .next()
        .and_then(|before| before.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Runs all tests, shows what they print, and counts what passed and what was skipped. Tests that were skipped pass
/// for the test harness, so their notes are what tells.
fn tests(root: &Path) -> Result<Tally, String> {
    let mut child = Command::new(crate::cargo())
        .current_dir(root)
        .args([
            "test",
            "--workspace",
            "--locked",
            "--quiet",
            "--no-fail-fast",
            "--",
            "--show-output",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("the output of cargo is not available".into());
    };
    let errors = std::thread::spawn(move || follow(stderr, true));
    let mut lines = follow(stdout, false);
    lines.extend(
        errors
            .join()
            .map_err(|_| "reading the output of cargo failed")?,
    );
    let status = child
        .wait()
        .map_err(|error| format!("cargo does not end: {error}"))?;
    let mut tally = Tally::default();
    lines.iter().for_each(|line| tally.read(line));
    if status.success() {
        return Ok(tally);
    }
    for line in &lines {
        eprintln!("{line}");
    }
    Err(tally.closing())
}

/// Reads all lines of a stream, showing those that tell how far the tests are.
fn follow(stream: impl Read, all: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if all && !line.trim().is_empty() {
            eprintln!("    {line}");
        } else if line.starts_with("test result:") || line.contains("skipped: ") {
            println!("    {line}");
            let _ = std::io::stdout().flush();
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn the_closing_line_counts_what_passed_and_what_was_skipped() {
        let mut tally = Tally::default();
        for line in [
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "skipped: this needs root",
            "test result: ok. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "skipped: this needs root",
        ] {
            tally.read(line);
        }
        let expected = "tests: 15 passed, 1 failed, 2 skipped, 1 ignored (2x this needs root)";
        assert_eq!(tally.closing(), expected);
    }
}
