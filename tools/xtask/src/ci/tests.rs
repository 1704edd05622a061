//! Runs the test programs of the workspace, several at a time, each with a limit of time: a test that hangs is named
//! and ends its program, and a process that outlives its test can't keep the run waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::scratch::Scratch;
use super::{clock, plain, process};

/// The longest that one program may take. The slowest takes a minute or two on two cores.
const LIMIT: Duration = Duration::from_secs(600);

/// Tests that are named where a program did not end.
const SHOWN: usize = 8;

/// What the tests said.
#[derive(Default)]
pub(super) struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Reasons for which tests did not run, and how often.
    skipped: BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn read(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count_before(counts, " passed");
            self.failed += count_before(counts, " failed");
            self.ignored += count_before(counts, " ignored");
        } else if let Some(at) = line.find("skipped: ") {
            let reason = line[at + "skipped: ".len()..].trim().to_owned();
            *self.skipped.entry(reason).or_default() += 1;
        }
    }

    pub(super) fn closing(&self) -> String {
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

/// A compiled test program.
struct Program {
    /// The package and the target, such as `lanefs-cli mount`.
    name: String,
    path: PathBuf,
    /// The package's folder, where its tests run.
    folder: PathBuf,
}

/// Compiles all test programs of the workspace, and the crash sweep as it is built for tests; prints what the
/// compiler has to say.
fn programs(root: &Path) -> Result<Vec<Program>, String> {
    let mut cargo = crate::cargo();
    plain::build_of_tests(&mut cargo)?;
    let output = cargo
        .current_dir(root)
        .args(["build", "--workspace", "--tests", "--bin=crash", "--locked"])
        .args(["--quiet", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err("cargo build --workspace --tests failed".into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut programs: Vec<Program> = text.lines().filter_map(program_of).collect();
    if programs.is_empty() {
        return Err("cargo build --workspace --tests named no test program".into());
    }
    // The longest should start first: the command line's, which wait for the kernel and for other programs, then the
    // largest, which link most.
    let size = |program: &Program| fs::metadata(&program.path).map_or(0, |found| found.len());
    programs.sort_by_key(|program| {
        let other = !program.folder.ends_with("cli");
        (other, std::cmp::Reverse(size(program)))
    });
    Ok(programs)
}

/// The test program that a line of cargo's report names, if it names one.
fn program_of(line: &str) -> Option<Program> {
    let report: Value = serde_json::from_str(line).ok()?;
    if report["reason"] != "compiler-artifact" || report["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(report["executable"].as_str()?);
    let folder = Path::new(report["manifest_path"].as_str()?)
        .parent()?
        .to_owned();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    let target = report["target"]["name"].as_str()?;
    let kind = &report["target"]["kind"][0];
    let name = if kind == "test" {
        format!("{package} {target}")
    } else {
        format!("{package} (unit tests)")
    };
    Some(Program { name, path, folder })
}

/// How a program ended.
struct Outcome {
    passed: bool,
    output: String,
    time: Duration,
}

impl Program {
    /// Runs the program with its output in a file, ends it when its time is over.
    fn run(&self, log: &Path, scratch: &Scratch) -> Result<Outcome, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.name);
        let begun = Instant::now();
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .envs(scratch.environment())
            .arg("--show-output");
        let mut child = process::start(&mut command, log).map_err(failed)?;
        let ended = process::wait(&mut child, LIMIT).map_err(failed)?;
        let bytes = fs::read(log).map_err(failed)?;
        let mut output = String::from_utf8_lossy(&bytes).into_owned();
        if ended.is_none() {
            let unfinished = self.unfinished(&output);
            let first = unfinished[..unfinished.len().min(SHOWN)].join(", ");
            let (limit, count) = (LIMIT.as_secs(), unfinished.len());
            output +=
                &format!("\ndid not end within {limit} s; {count} tests had not ended: {first}\n");
        }
        Ok(Outcome {
            passed: ended.is_some_and(|status| status.success()),
            output,
            time: begun.elapsed(),
        })
    }

    /// The tests of whose end the output says nothing.
    fn unfinished(&self, output: &str) -> Vec<String> {
        let listed = Command::new(&self.path)
            .args(["--list", "--format=terse"])
            .current_dir(&self.folder)
            .output();
        let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let listed = listed.unwrap_or_default();
        let all = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        let ended: BTreeSet<&str> = output.lines().filter_map(ended_test).collect();
        all.filter(|name| !ended.contains(name))
            .map(str::to_owned)
            .collect()
    }
}

/// The test that ended with this line of a program's output. Output of processes that the test started can stand
/// before its verdict on the same line.
fn ended_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.split(" ... ").next()?;
    line.contains(" ... ")
        .then(|| name.split(" - ").next().unwrap_or(name))
}

/// Compiles the test programs and the examples in the documentation.
pub(super) fn build(root: &Path) -> Result<String, String> {
    let programs = programs(root)?;
    Ok(format!("{} programs", programs.len()))
}

/// Runs all tests, tells how far they are, and adds what passed and what was skipped to `tally`. Tests that were
/// skipped pass for the test harness, so their notes are what tells.
pub(super) fn run(root: &Path, tally: &mut Tally) -> Result<(), String> {
    let programs = programs(root)?;
    let logs = root.join("target/test-output");
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let scratch = Scratch::new();
    let state = Mutex::new(State {
        waiting: programs.iter().collect(),
        tally: std::mem::take(tally),
        failed: Vec::new(),
    });
    std::thread::scope(|scope| {
        for _ in 0..at_once() {
            scope.spawn(|| work(&state, &logs, &scratch));
        }
    });
    let mut state = state
        .into_inner()
        .map_err(|_| "a thread that ran tests ended early")?;
    if let Err(error) = examples(root, &mut state.tally) {
        state.failed.push(error);
    }
    *tally = state.tally;
    match state.failed.as_slice() {
        [] => Ok(()),
        failed => Err(format!("{}; {}", failed.join(", "), tally.closing())),
    }
}

/// Programs at a time: some tests mostly wait, for a disk, a timer or another process.
fn at_once() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get() + 1)
}

/// What the threads that run programs share.
struct State<'a> {
    /// Programs that have not started, the first to start first.
    waiting: std::collections::VecDeque<&'a Program>,
    tally: Tally,
    failed: Vec<String>,
}

/// Runs programs until none waits.
fn work(state: &Mutex<State<'_>>, logs: &Path, scratch: &Scratch) {
    loop {
        // A thread that panicked while it held the lock has left nothing half done.
        let lock = || {
            state
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        let Some(program) = lock().waiting.pop_front() else {
            return;
        };
        let outcome = program.run(&logs.join(program.name.replace(' ', "-")), scratch);
        let mut state = lock();
        match outcome {
            Ok(outcome) => state.take(program, &outcome),
            Err(error) => state.failed.push(error),
        }
    }
}

impl State<'_> {
    /// Counts and shows how a program ended; all that it printed, where it failed.
    fn take(&mut self, program: &Program, outcome: &Outcome) {
        let mut verdict = String::new();
        for line in outcome.output.lines() {
            self.tally.read(line);
            if let Some(counts) = line.strip_prefix("test result: ") {
                counts
                    .split("; 0 measured")
                    .next()
                    .unwrap_or(counts)
                    .clone_into(&mut verdict);
            } else if line.contains("skipped: ") {
                println!("    {line}");
            }
        }
        println!("{:>12}  {}: {verdict}", clock(outcome.time), program.name);
        if !outcome.passed {
            println!("{}", outcome.output);
            self.failed.push(program.name.clone());
        }
    }
}

/// Runs the examples in the documentation.
fn examples(root: &Path, tally: &mut Tally) -> Result<(), String> {
    let begun = Instant::now();
    let output = crate::cargo()
        .current_dir(root)
        .args(["test", "--workspace", "--doc", "--locked", "--quiet"])
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().for_each(|line| tally.read(line));
    println!(
        "{:>12}  examples in the documentation",
        clock(begun.elapsed())
    );
    if output.status.success() {
        return Ok(());
    }
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    Err("examples in the documentation".into())
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

    #[test]
    fn the_tests_that_ended_are_read_from_the_output() {
        assert_eq!(ended_test("test a::b ... ok"), Some("a::b"));
        assert_eq!(ended_test("test a::b - should panic ... ok"), Some("a::b"));
        assert_eq!(ended_test("test result: ok. 3 passed"), None);
        assert_eq!(ended_test("testing ... "), None);
    }
}
