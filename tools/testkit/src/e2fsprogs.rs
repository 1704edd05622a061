//! The programs of e2fsprogs: mke2fs makes images, e2fsck judges and replays them, debugfs changes and shows them.
//!
//! Only this file names them, so that every test runs the same ones.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Where the programs are if they are not on the path.
const FOLDERS: [&str; 2] = ["/sbin", "/usr/sbin"];

/// How timeout(1) ends a program.
const KILL: [&str; 2] = ["-s", "KILL"];

/// A program on the path, else in the system's `sbin` directories.
fn program(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_on_path = std::env::split_paths(&path).any(|folder| folder.join(name).exists());
    let found = FOLDERS.map(|folder| Path::new(folder).join(name));
    match found.iter().find(|file| !is_on_path && file.exists()) {
        Some(file) => Command::new(file),
        None => Command::new(name),
    }
}

fn output_of(command: &mut Command) -> Output {
    let name = command.get_program().to_os_string();
    command
        .output()
        .unwrap_or_else(|error| panic!("{} did not start: {error}", name.display()))
}

/// Runs a program to its end.
///
/// # Panics
/// If it can't be started or fails; the message contains its output.
fn succeed(command: &mut Command) -> Output {
    let output = output_of(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Makes a file system: runs mke2fs with these options, which end with the image and may name its size.
///
/// # Panics
/// If mke2fs can't be started or fails; the message contains its output.
pub fn mke2fs<S: AsRef<OsStr>>(options: &[S]) {
    succeed(program("mke2fs").args(["-q", "-F"]).args(options));
}

/// As [`mke2fs`], for options that it may refuse.
///
/// # Panics
/// If mke2fs can't be started.
#[must_use]
pub fn try_mke2fs<S: AsRef<OsStr>>(options: &[S]) -> Output {
    output_of(program("mke2fs").args(["-q", "-F"]).args(options))
}

/// Runs e2fsck with these options on an image.
///
/// # Panics
/// If e2fsck can't be started.
#[must_use]
pub fn e2fsck_with<S: AsRef<OsStr>>(options: &[S], image: &Path) -> Output {
    output_of(program("e2fsck").args(options).arg(image))
}

/// The e2fsck that judges images which may be broken in any way: the one that `LANEFS_E2FSCK` names, else the installed
/// one.
fn chosen() -> String {
    std::env::var("LANEFS_E2FSCK").unwrap_or_else(|_| "e2fsck".to_owned())
}

/// Runs the e2fsck that `LANEFS_E2FSCK` names, else the installed one, with these options on an image.
///
/// # Panics
/// If it can't be started.
pub fn chosen_e2fsck(options: &[&str], image: &Path) -> Output {
    output_of(Command::new(chosen()).args(options).arg(image))
}

/// As [`chosen_e2fsck`], but kills it after some seconds. `config` is a file with its settings. `None` if timeout(1) is
/// missing.
#[must_use]
pub fn e2fsck_within(
    seconds: u32,
    options: &[&str],
    image: &Path,
    config: Option<&Path>,
) -> Option<Output> {
    let mut command = Command::new("timeout");
    command.args(KILL).arg(seconds.to_string());
    command.arg(chosen()).args(options).arg(image);
    if let Some(config) = config {
        command.env("E2FSCK_CONFIG", config);
    }
    command.output().ok()
}

/// Runs debugfs with these options, which end with the image.
///
/// # Panics
/// If debugfs can't be started or fails; the message contains its output.
pub fn debugfs<S: AsRef<OsStr>>(options: &[S]) -> Output {
    succeed(program("debugfs").args(options))
}

/// As [`debugfs`], for an image that it may refuse.
///
/// # Panics
/// If debugfs can't be started.
#[must_use]
pub fn try_debugfs<S: AsRef<OsStr>>(options: &[S]) -> Output {
    output_of(program("debugfs").args(options))
}

/// Runs the requests of a script in debugfs, which may change the image; returns what it printed.
///
/// # Panics
/// If debugfs can't be started, or prints something that is not UTF-8.
pub fn debugfs_script(image: &Path, script: &str) -> String {
    let mut child = program("debugfs")
        .args(["-w", "-f", "-"])
        .arg(image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("debugfs starts");
    let mut input = child.stdin.take().expect("a pipe");
    let script = script.to_owned();
    // By a thread of its own, because debugfs prints while it reads.
    let writer = std::thread::spawn(move || input.write_all(script.as_bytes()));
    let output = child.wait_with_output().expect("debugfs ends");
    let written = writer.join().expect("the writer ends");
    written.expect("debugfs reads its script");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs dumpe2fs with these options, which end with the image.
///
/// # Panics
/// If dumpe2fs can't be started or fails; the message contains its output.
pub fn dumpe2fs<S: AsRef<OsStr>>(options: &[S]) -> Output {
    succeed(program("dumpe2fs").args(options))
}

/// Runs tune2fs with these options, which end with the image.
///
/// # Panics
/// If tune2fs can't be started or fails; the message contains its output.
pub fn tune2fs<S: AsRef<OsStr>>(options: &[S]) -> Output {
    succeed(program("tune2fs").args(options))
}
