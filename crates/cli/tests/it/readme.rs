//! The commands of README.md, run in an empty folder: those in `console` blocks print what the page shows, those in
//! `sh` blocks succeed. The Rust code of the page is compiled by the documentation test of the library.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::fixture::{error, lanefs};

/// The blocks of a page that are in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    let parts = page.split(fence.as_str()).skip(1);
    parts
        .map(|part| part.split("\n```").next().unwrap_or(part))
        .collect()
}

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    fs::read_to_string(path).unwrap()
}

/// Runs a line as the reader's shell does, with our program first on the path.
pub fn shell(folder: &Path, line: &str) -> Output {
    let program = Path::new(lanefs().get_program()).to_owned();
    let path = format!(
        "{}:/usr/bin:/bin:/usr/sbin:/sbin",
        program.parent().unwrap().display()
    );
    Command::new("sh")
        .args(["-c", &format!("exec 2>&1\n{line}")])
        .current_dir(folder)
        .env("PATH", path)
        .env("COLUMNS", "100")
        .output()
        .unwrap()
}

/// A line without the seconds that a command took, which differ from run to run.
fn without_seconds(line: &str) -> &str {
    match line.rsplit_once(", ") {
        Some((rest, time)) if time.ends_with(" s") => rest,
        _ => line,
    }
}

/// What the page shows of a command, and what the command printed, must be the same line by line.
fn run_and_compare(run: &dyn Fn(&str) -> Output, command: &str, shown: &[&str]) {
    let output = run(command);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command}: {printed}");
    let printed: Vec<&str> = printed.lines().map(without_seconds).collect();
    let shown: Vec<&str> = shown.iter().map(|line| without_seconds(line)).collect();
    assert_eq!(printed, shown, "{command}");
}

/// Runs the sessions of the page and compares what they print. `run` runs a line in one empty folder.
pub fn run_sessions(run: &dyn Fn(&str) -> Output) {
    let page = readme();
    let sessions = blocks(&page, "console");
    assert!(!sessions.is_empty());
    for session in sessions {
        let mut command = None;
        let mut shown = Vec::new();
        for line in session.lines() {
            let Some(next) = line.strip_prefix("$ ") else {
                shown.push(line);
                continue;
            };
            if let Some(command) = command.replace(next) {
                run_and_compare(run, command, &shown);
            }
            shown.clear();
        }
        run_and_compare(run, command.unwrap(), &shown);
    }
}

/// What the commands of the page find in their folder.
const FURNISHED: &str = "mkdir -p rootfs/etc mnt && echo welcome > rootfs/etc/motd \
    && echo 'mkdir -p /etc/app' > changes.txt && tar -cf rootfs.tar -C rootfs .";

/// Runs the commands of the page, which must succeed; those that mount only where that is possible.
pub fn run_commands(run: &dyn Fn(&str) -> Output, can_mount: bool) {
    assert!(run(FURNISHED).status.success());
    let page = readme();
    let blocks = blocks(&page, "sh");
    let lines = blocks.iter().flat_map(|block| block.lines());
    let commands: Vec<&str> = lines.filter(|line| line.starts_with("lanefs ")).collect();
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands {
        if !can_mount && command.contains("mount ") {
            continue;
        }
        let output = run(command);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{command}: {printed}{}",
            error(&output)
        );
    }
}

#[test]
fn the_session_in_the_readme_prints_what_the_page_shows() {
    let folder = tempfile::tempdir().unwrap();
    run_sessions(&|line| shell(folder.path(), line));
}

#[test]
fn every_command_in_the_readme_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let can_mount = Path::new("/dev/fuse").exists() && testkit::is_root();
    if !can_mount {
        testkit::skip("the mount in the README takes root and /dev/fuse");
    }
    run_commands(&|line| shell(folder.path(), line), can_mount);
}
