//! `cargo xtask crash`: builds the simulation with all assertions and runs it; see `docs/crash.md`.

mod full;

use std::path::Path;
use std::process::{Command, Stdio};

const PROFILE: &str = "simulation";

/// The parts of what CI runs, by their names for `crash --short`; the longer one first.
const SHORT: [&str; 2] = ["work", "sequences"];

/// Builds the simulation and runs it with these words: without any the parts that CI runs, with `--full` all parts.
pub fn run(root: &Path, words: &[&str]) -> Result<String, String> {
    match words {
        [] => run_short(root, &build(root)?),
        ["--full", options @ ..] => full::run(root, options),
        words => {
            let mut command = cargo(root, "run");
            command.arg("--").args(words);
            done(command).map(|()| String::new())
        }
    }
}

/// Runs what CI runs, as it was built for tests, with all assertions too.
pub fn run_as_built_for_tests(root: &Path) -> Result<String, String> {
    run_short(root, &crate::built(root).join("debug/crash"))
}

/// Runs the parts of [`SHORT`] at the same time, as each uses one processor. The output of all but the first is printed
/// when the first has ended.
fn run_short(root: &Path, program: &Path) -> Result<String, String> {
    let part = |name: &str| {
        let mut command = crate::apart::command(program);
        command.current_dir(root).args(["--short", name]);
        command
    };
    let [first, second] = SHORT;
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| part(second).stderr(Stdio::inherit()).output());
        let ended = done(part(first));
        let output = beside.join().map_err(|_| "crash: a thread panicked")?;
        let output = output.map_err(|error| format!("crash does not start: {error}"))?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        ended?;
        if output.status.success() {
            Ok(String::new())
        } else {
            Err("crash: FAILED".into())
        }
    })
}

/// Builds it; where it is then.
fn build(root: &Path) -> Result<std::path::PathBuf, String> {
    done(cargo(root, "build"))?;
    Ok(crate::built(root).join(PROFILE).join("crash"))
}

fn cargo(root: &Path, what: &str) -> Command {
    let mut command = crate::cargo();
    command
        .current_dir(root)
        .args([what, "--quiet", "--locked", "--profile", PROFILE])
        .args(["--package", "lanefs-simulate", "--bin", "crash"]);
    command
}

fn done(mut command: Command) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("crash: FAILED".into())
    }
}
