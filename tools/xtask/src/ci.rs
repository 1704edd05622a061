//! `cargo xtask ci`: all that must hold before a change goes in, step by step, each timed. The first step that fails
//! ends the run; the last line is the verdict.
//!
//! In a whole run a second process does the steps that build in folders of their own ([`BESIDE`]), at the same time as
//! the steps before the tests: one compiler at a time leaves a processor idle. Then the tests and the crash sweep have
//! the machine for themselves.

mod beside;
mod elsewhere;
mod plain;
mod process;
mod scratch;
mod tests;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::tidy;
use beside::Beside;
pub use plain::compile as compile_test;
use tests::Tally;

/// A step, by the name that stands before its output.
type Step = (
    &'static str,
    fn(&Path, &mut Tally) -> Result<String, String>,
);

const STEPS: [Step; 10] = [
    ("format", |root, _| {
        cargo(root, &["fmt", "--all", "--check"], &[])
    }),
    ("tidy", |root, _| tidy::run(root)),
    ("clippy", |root, _| clippy(root)),
    ("elsewhere", |root, tally| {
        counting(tally, elsewhere::check(root))
    }),
    ("sharing", |root, tally| {
        counting(tally, crate::sharing::run(root, &[]))
    }),
    ("instructions", |root, tally| {
        counting(tally, crate::instructions::run(root, &[]))
    }),
    ("documentation", |root, _| documentation(root)),
    ("build", |root, _| tests::build(root)),
    ("tests", |root, tally| {
        tests::run(root, tally)?;
        Ok(tally.closing())
    }),
    ("crash", |root, _| {
        tests::build(root)?;
        crate::crash::run_as_built_for_tests(root)
    }),
];

/// The features of the library that users can ask for. `lanefs/build` would name the feature of a dependency: the
/// library's tests depend on the library.
const FEATURES: &str = "build casefold check extract tracing";

/// The steps that the second process of a whole run does.
const BESIDE: [&str; 2] = ["sharing", "instructions"];
/// The first step that needs all processors.
const ALONE: &str = "tests";

/// Runs the steps with these names, or all if no name is given.
pub fn run(root: &Path, names: &[&str]) -> Result<(), String> {
    let is_step = |name: &&&str| STEPS.iter().any(|(step, _)| step == *name);
    if let Some(unknown) = names.iter().find(|name| !is_step(name)) {
        let all = STEPS.map(|(step, _)| step).join(", ");
        return Err(format!("ci: unknown step `{unknown}`; the steps are {all}"));
    }
    let start = Instant::now();
    let mut times = Vec::new();
    let mut tally = Tally::default();
    let mut beside = match names {
        [] => Some(Beside::start(root, &BESIDE)?),
        _ => None,
    };
    for (name, step) in STEPS {
        let is_other = match names {
            [] => BESIDE.contains(&name),
            names => !names.contains(&name),
        };
        if is_other {
            continue;
        }
        if name == ALONE
            && let Some(beside) = beside.take()
        {
            beside.end(&mut tally).inspect_err(|_| show(&times))?;
        }
        println!("==> {name}");
        let begun = Instant::now();
        let result = step(root, &mut tally);
        times.push((name, begun.elapsed()));
        match result {
            Ok(note) if note.is_empty() => {}
            Ok(note) => println!("    {note}"),
            Err(error) => {
                let after = clock(start.elapsed());
                show(&times);
                return Err(format!("ci: FAILED at {name} after {after}: {error}"));
            }
        }
    }
    show(&times);
    println!("{:>8}  in all", clock(start.elapsed()));
    if names.is_empty() || names.contains(&ALONE) {
        println!("ci: passed; {}", tally.closing());
    } else {
        println!("ci: passed");
    }
    Ok(())
}

/// Prints how long each step took.
fn show(times: &[(&str, Duration)]) {
    println!();
    for (name, time) in times {
        println!("{:>8}  {name}", clock(*time));
    }
}

fn clippy(root: &Path) -> Result<String, String> {
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
    cargo(root, &arguments, &[])?;
    // The workspace has all features of the library; here it has none.
    let core = ["clippy", "--package", "lanefs", "--locked", "--quiet"];
    cargo(root, &[&core[..], &["--", "-D", "warnings"]].concat(), &[])
}

/// Counts a step that says that it was skipped with the tests that were.
fn counting(tally: &mut Tally, note: Result<String, String>) -> Result<String, String> {
    if let Ok(note) = &note {
        tally.read(note);
    }
    note
}

/// Builds the documentation of the libraries that users get, with every warning an error. The doc comments of the
/// program are its help texts, in a syntax of their own.
fn documentation(root: &Path) -> Result<String, String> {
    let folders = std::fs::read_dir(root.join("crates"))
        .map_err(|error| format!("reading the folder `crates` failed: {error}"))?;
    let mut libraries = vec!["lanefs".to_owned()];
    for entry in folders {
        let entry = entry.map_err(|error| format!("reading `crates` failed: {error}"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !["lanefs", "cli"].contains(&name.as_str()) {
            libraries.push(format!("lanefs-{name}"));
        }
    }
    let mut arguments = vec!["doc", "--no-deps", "--locked", "--quiet"];
    arguments.extend(["--features", FEATURES]);
    for library in &libraries {
        arguments.extend(["--package", library]);
    }
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    cargo(root, &arguments, &[("RUSTDOCFLAGS", flags)])
}

fn clock(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Runs cargo with its output shown.
fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<String, String> {
    let status = crate::cargo()
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
