//! `cargo xtask suites xfstests`: the quick generic tests of xfstests, first on the kernel's ext4, then those that pass
//! there on a mount of lanefs. `docs/suites.md` says what the suite needs, `xfstests/expected.txt` why a test is not
//! run or fails.
//!
//! Each call of `check` has its own mount namespace, as in check-parallel of xfstests: programs of the machine that ask
//! every mount for its state, as xfs_io does, would keep the mounts in use.
//!
//! Takes no lock, so two runs in one target directory disturb each other. A run that is killed leaves its images, loop
//! devices and mounts; the next run removes them first.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

/// The variable with the directory of a build of xfstests.
const BUILD: &str = "LANEFS_XFSTESTS";
/// The variable with the tests to run, separated by spaces, instead of all quick ones.
const ONLY: &str = "LANEFS_XFSTESTS_ONLY";
/// Test and scratch device, in mebibytes of sparse files.
const SIZES: [(&str, u64); 2] = [("test", 5 << 10), ("scratch", 8 << 10)];
/// Seconds after which a test on lanefs is ended.
const LIMIT: &str = "500";
/// The exit statuses of timeout(1) if it ended its program, by SIGTERM or by SIGKILL.
const TIMED_OUT: i32 = 124;
const KILLED: i32 = 137;
/// How long a test's leftovers may keep a device in use, and the time between two looks.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Users that the tests need.
const USERS: [&str; 2] = ["fsgqa", "fsgqa2"];
/// Programs of the system that `before.sh` replaces.
const BEFORE: [&str; 4] = ["mount", "umount", "df", "findmnt"];
const BEFORE_SOURCE: &str = include_str!("xfstests/before.sh");
const EXPECTED: &str = include_str!("xfstests/expected.txt");

/// What became of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    NotRun,
    Failed,
}

/// Runs the suite and prints a table.
///
/// # Errors
/// The tests that neither pass nor have their reason in `expected.txt`; a suite that can't be set up.
pub fn run(root: &Path) -> Result<(), String> {
    let Some(tests) = std::env::var_os(BUILD).map(PathBuf::from) else {
        println!("skipped: needs {BUILD}, the directory of a build of xfstests");
        return Ok(());
    };
    if let Some(missing) = missing(&tests) {
        println!("skipped: needs {missing}");
        return Ok(());
    }
    let built = crate::cargo()
        .current_dir(root)
        .args(["build", "--release", "--locked", "-p", "lanefs-cli"])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("suites: lanefs was not built".into());
    }
    let place = crate::built(root).join("xfstests");
    let program = crate::built(root).join("release/lanefs");
    let kernel = Devices::new(&place, "kernel")?;
    let only = std::env::var(ONLY).unwrap_or_else(|_| "-g generic/quick".into());
    let words: Vec<&str> = only.split_whitespace().collect();
    let output = kernel.check(&tests, &words, None)?;
    let passed: Vec<String> = outcomes(&output)
        .into_iter()
        .filter_map(|(test, outcome)| (outcome == Outcome::Passed).then_some(test))
        .collect();
    drop(kernel);
    if passed.is_empty() {
        return Err(format!(
            "suites: no test passes on the kernel's ext4, so there is nothing to compare:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    if matches!(output.status.code(), Some(TIMED_OUT | KILLED)) {
        return Err("suites: the tests on the kernel's ext4 did not end in their time".into());
    }
    println!("{} tests pass on the kernel's ext4", passed.len());
    let ours = Devices::new(&place, "lanefs")?;
    let mut results = BTreeMap::new();
    for test in passed {
        let begin = Instant::now();
        let output = ours.check(&tests, &[&test], Some(&program))?;
        let outcome = outcomes(&output).get(&test).copied();
        let outcome = outcome.unwrap_or(Outcome::Failed);
        println!("{test} {outcome:?} {} s", begin.elapsed().as_secs());
        if outcome == Outcome::Failed {
            println!(
                "{test} failed:\n{}",
                String::from_utf8_lossy(&output.stdout)
            );
        }
        ours.release();
        if outcome == Outcome::Failed {
            // The next test may not begin with what this one left.
            make_file_system(&ours.loops[0])?;
        }
        results.insert(test, outcome);
    }
    judge(&results, &expected(EXPECTED)?)
}

/// What this machine lacks.
fn missing(tests: &Path) -> Option<String> {
    for file in ["check", "ltp/fsstress", "src/lstat64"] {
        if !tests.join(file).exists() {
            return Some(format!("{} (make in {BUILD})", tests.join(file).display()));
        }
    }
    if !rustix::process::geteuid().is_root() {
        return Some("root".into());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse".into());
    }
    for (program, argument) in [("mkfs.ext4", "-V"), ("xfs_io", "-V"), ("losetup", "-V")] {
        if Command::new(program).arg(argument).output().is_err() {
            return Some(program.into());
        }
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = |user: &str| {
        users
            .lines()
            .any(|line| line.split(':').next() == Some(user))
    };
    let unknown = USERS.iter().find(|user| !known(user))?;
    Some(format!("the user {unknown}"))
}

/// The loop devices of one run, their configuration, and where they are mounted. Dropping it unmounts and detaches the
/// devices, and removes their images.
struct Devices {
    place: PathBuf,
    loops: Vec<String>,
}

impl Devices {
    fn new(place: &Path, name: &str) -> Result<Devices, String> {
        let place = place.join(name);
        fs::create_dir_all(place.join("bin")).map_err(|error| format!("{place:?}: {error}"))?;
        let mut devices = Devices {
            place,
            loops: Vec::new(),
        };
        devices.remove_leftovers();
        devices
            .set_up()
            .map_err(|error| format!("suites: {error}"))?;
        Ok(devices)
    }

    fn set_up(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let mut config =
            String::from("export FSTYP=ext4 MOUNT_OPTIONS='-o rw' TEST_FS_MOUNT_OPTS='-o rw'\n");
        for (name, mebibytes) in SIZES {
            let image = self.place.join(name).with_extension("img");
            fs::File::create(&image)?.set_len(mebibytes << 20)?;
            let made = Command::new("losetup")
                .args(["-f", "--show"])
                .arg(&image)
                .output()?;
            let device = String::from_utf8(made.stdout)?.trim().to_owned();
            if device.is_empty() {
                return Err(String::from_utf8_lossy(&made.stderr).trim().into());
            }
            self.loops.push(device.clone());
            make_file_system(&device)?;
            let folder = self.place.join(name);
            fs::create_dir_all(&folder)?;
            let (upper, folder) = (name.to_uppercase(), quoted(&folder));
            let variable = if name == "test" { "DIR" } else { "MNT" };
            config += &format!("export {upper}_DEV={device} {upper}_{variable}={folder}\n");
        }
        let results = quoted(&self.place.join("results"));
        config += &format!("export RESULT_BASE={results}\n");
        fs::write(self.place.join("config"), config)?;
        let source = self.place.join("bin/before.sh");
        fs::write(&source, BEFORE_SOURCE)?;
        let mode = rustix::fs::Mode::from_raw_mode(0o755);
        rustix::fs::chmod(&source, mode)?;
        for name in BEFORE {
            let link = self.place.join("bin").join(name);
            if !link.exists() {
                symlink("before.sh", link)?;
            }
        }
        Ok(())
    }

    /// Runs `check` of xfstests with these words, on mounts of the kernel. With `ours`, a program of lanefs mounts the
    /// devices, and `words` is one test, which is ended after [`LIMIT`].
    fn check(&self, tests: &Path, words: &[&str], ours: Option<&Path>) -> Result<Output, String> {
        let mut command = crate::apart::command("timeout");
        command.args(["-k", "10", if ours.is_some() { LIMIT } else { "7200" }]);
        command.arg("./check").args(words).current_dir(tests);
        command
            .env("HOST_OPTIONS", self.place.join("config"))
            .stdin(Stdio::null());
        if let Some(program) = ours {
            let path = std::env::var("PATH").unwrap_or_default();
            let first = self.place.join("bin");
            command.env("LANEFS", program);
            command.env("PATH", format!("{}:{path}", first.display()));
        }
        let output = command.output();
        output.map_err(|error| format!("{} does not run: {error}", tests.join("check").display()))
    }

    /// Unmounts the devices, and waits until no server holds them: what a test has left running may keep a mount in
    /// use for a moment.
    fn release(&self) {
        self.unmount();
        let begin = Instant::now();
        let is_free = |device: &String| {
            let mut options = fs::File::options();
            let options = options
                .read(true)
                .custom_flags(OFlags::EXCL.bits().cast_signed());
            options.open(device).is_ok()
        };
        while !self.loops.iter().all(is_free) && begin.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
    }

    /// Unmounts the devices, if a test that failed has left them mounted.
    fn unmount(&self) {
        for (name, _) in SIZES {
            let folder = self.place.join(name);
            // A mount whose server ended is in the list too.
            while is_mounted(&folder)
                && Command::new("umount")
                    .arg("-l")
                    .arg(&folder)
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|status| status.success())
            {}
        }
    }

    /// Removes what a run that was killed left.
    fn remove_leftovers(&mut self) {
        self.unmount();
        for (name, _) in SIZES {
            let image = self.place.join(name).with_extension("img");
            let used = Command::new("losetup")
                .args(["-n", "-O", "NAME", "-j"])
                .arg(&image)
                .output();
            let used = used.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            for device in used.unwrap_or_default().split_whitespace() {
                // losetup itself prints why it fails.
                let _ = Command::new("losetup").args(["-d", device]).status();
            }
        }
    }
}

/// Whether something is mounted on a folder.
fn is_mounted(folder: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The kernel writes a space in a path as an octal number.
    let path = folder.display().to_string().replace(' ', "\\040");
    let place = |line: &str| line.split(' ').nth(4).is_some_and(|place| place == path);
    mounts.lines().any(place)
}

fn make_file_system(device: &str) -> Result<(), String> {
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", device])
        .status();
    match made {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("mkfs.ext4 on {device}: {status}")),
        Err(error) => Err(format!("mkfs.ext4 does not run: {error}")),
    }
}

/// A path as a word of the shell that reads the configuration.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

impl Drop for Devices {
    fn drop(&mut self) {
        self.unmount();
        for device in &self.loops {
            // losetup itself prints why it fails.
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
        for (name, _) in SIZES {
            let _ = fs::remove_file(self.place.join(name).with_extension("img"));
        }
    }
}

/// The outcomes in what `check` prints: a line for each test, which contains `[not run]` or `[failed`, or ends with the
/// seconds that the test took; and a last line with the names of the tests that failed.
fn outcomes(output: &Output) -> BTreeMap<String, Outcome> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut results = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if first == "Failures:" {
            results.extend(words.map(|test| (test.to_owned(), Outcome::Failed)));
        } else if first.starts_with("generic/") {
            let is_timed = words
                .last()
                .is_some_and(|last| last.ends_with('s') && last.len() > 1);
            let outcome = match line.contains("[not run]") || line.contains("[expunged]") {
                true => Outcome::NotRun,
                false if is_timed && !line.contains("[failed") => Outcome::Passed,
                false => Outcome::Failed,
            };
            results.insert(first.to_owned(), outcome);
        }
    }
    results
}

/// The outcomes that are expected, with their reasons: after a line `# REASON` lines `not run: NUMBER ...` and
/// `failed: NUMBER ...`, each number a test of `generic`.
fn expected(text: &str) -> Result<BTreeMap<String, (Outcome, String)>, String> {
    let mut known = BTreeMap::new();
    let mut reason = "";
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(words) = line.strip_prefix("# ") {
            reason = words;
            continue;
        }
        let (outcome, tests) = match line.split_once(": ") {
            Some(("not run", tests)) => (Outcome::NotRun, tests),
            Some(("failed", tests)) => (Outcome::Failed, tests),
            _ => {
                return Err(format!(
                    "expected.txt: `{line}` is neither `not run:` nor `failed:`"
                ));
            }
        };
        for number in tests.split_whitespace() {
            let test = format!("generic/{number}");
            if known.insert(test, (outcome, reason.to_owned())).is_some() {
                return Err(format!("expected.txt: {number} is there twice"));
            }
        }
    }
    Ok(known)
}

/// Prints the table.
///
/// # Errors
/// The tests that failed or were not run although `expected.txt` does not say so.
fn judge(
    results: &BTreeMap<String, Outcome>,
    expected: &BTreeMap<String, (Outcome, String)>,
) -> Result<(), String> {
    let count = |outcome| results.values().filter(|one| **one == outcome).count();
    println!(
        "lanefs: {} of them run, {} pass, {} fail, {} are not run",
        count(Outcome::Passed) + count(Outcome::Failed),
        count(Outcome::Passed),
        count(Outcome::Failed),
        count(Outcome::NotRun)
    );
    let mut reasons: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut unexplained = Vec::new();
    for (test, outcome) in results {
        match (outcome, expected.get(test)) {
            (Outcome::Passed, Some(_)) => {
                println!("{test} passes, and expected.txt has a reason why not")
            }
            (Outcome::Passed, None) => {}
            (outcome, Some((known, reason))) if outcome == known => {
                let word = if *outcome == Outcome::Failed {
                    "failed"
                } else {
                    "not run"
                };
                reasons.entry((word, reason)).or_default().push(test);
            }
            _ => unexplained.push(format!("{test} ({outcome:?})")),
        }
    }
    for ((word, reason), tests) in reasons {
        println!("{word}, {}: {reason}: {}", tests.len(), tests.join(" "));
    }
    if unexplained.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "suites: xfstests without a reason: {}",
            unexplained.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn outcomes_are_read_from_what_check_prints() {
        let stdout = "generic/001 4s ...  5s\ngeneric/002         1s\ngeneric/003       [not run] why\n\
                      generic/004 - output mismatch\n    +text\ngeneric/005       [failed, exit status 1] 2s\n\
                      Ran: generic/001\nFailures: generic/004 generic/005\n";
        let output = Output {
            status: std::process::ExitStatus::from_raw(0),
            stdout: stdout.into(),
            stderr: Vec::new(),
        };
        let found: Vec<Outcome> = outcomes(&output).into_values().collect();
        use Outcome::{Failed, NotRun, Passed};
        assert_eq!(found, [Passed, Passed, NotRun, Failed, Failed]);
    }

    #[test]
    fn paths_are_one_word_of_the_shell() {
        let odd = Path::new("/a b/it's $HOME");
        let script = format!("printf %s {}", quoted(odd));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "/a b/it's $HOME");
        assert!(is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/proc/self")));
    }

    #[test]
    fn every_expected_test_is_there_once_with_a_reason() {
        let known = expected(EXPECTED).expect("expected.txt is read");
        assert!(known.values().all(|(_, reason)| !reason.is_empty()));
        assert!(expected("# why\nnot run: 001 001\n").is_err());
        assert!(expected("001\n").is_err());
    }

    #[test]
    fn a_result_without_its_reason_is_an_error() {
        let results = |outcome| BTreeMap::from([("generic/001".to_owned(), outcome)]);
        let known = expected("# why\nnot run: 001\n").expect("it is read");
        assert!(judge(&results(Outcome::NotRun), &known).is_ok());
        assert!(judge(&results(Outcome::Passed), &known).is_ok());
        assert!(judge(&results(Outcome::Failed), &known).is_err());
        assert!(judge(&results(Outcome::NotRun), &BTreeMap::new()).is_err());
    }
}
