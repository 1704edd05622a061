//! `cargo xtask crash`: builds the simulation with all assertions and runs it; see `docs/crash.md`.

mod full;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

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
        let mut command = apart(program);
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

/// The command that runs a program in a mount namespace of its own, where this process may make one.
///
/// The kernel replays images while they are mounted for a moment. A process that makes a mount namespace in that moment
/// gets a copy of the mount, and the unmount here does not end the file system. Mounts in a namespace of their own are
/// copied by no other process.
fn apart(program: impl AsRef<OsStr>) -> Command {
    if may_be_apart() {
        let mut command = Command::new("unshare");
        command.arg("--mount").arg(program);
        command
    } else {
        Command::new(program)
    }
}

fn may_be_apart() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let tried = Command::new("unshare").args(["--mount", "true"]).output();
        tried.is_ok_and(|tried| tried.status.success())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_apart_sees_mounts_that_no_new_namespace_copies() {
        if !may_be_apart() {
            eprintln!("skipped: this process may not make a mount namespace");
            return;
        }
        let mut asked = apart("readlink");
        let asked = asked.arg("/proc/self/ns/mnt").output().unwrap();
        assert!(asked.status.success(), "{asked:?}");
        let theirs = String::from_utf8(asked.stdout).unwrap();
        let ours = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        assert!(theirs.starts_with("mnt:["), "{theirs}");
        assert_ne!(theirs.trim(), ours.to_str().unwrap());
    }
}
