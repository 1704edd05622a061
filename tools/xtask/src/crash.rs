//! `cargo xtask crash`: builds the simulation with all assertions and runs it; see `docs/crash.md`.

mod full;

use std::path::Path;
use std::process::Command;

const PROFILE: &str = "simulation";

/// Builds and runs it with these words; with `--full`, all parts of it.
pub fn run(root: &Path, words: &[&str]) -> Result<String, String> {
    if let ["--full", options @ ..] = words {
        return full::run(root, options);
    }
    let mut command = cargo(root, "run");
    command.arg("--").args(words);
    done(command).map(|()| String::new())
}

/// Runs the sweep as it was built for tests, with all assertions too.
pub fn run_as_built_for_tests(root: &Path) -> Result<String, String> {
    let program = crate::built(root).join("debug/crash");
    let mut command = Command::new(program);
    command.current_dir(root);
    done(command).map(|()| String::new())
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
    match status.success() {
        true => Ok(()),
        false => Err("crash: FAILED".into()),
    }
}
