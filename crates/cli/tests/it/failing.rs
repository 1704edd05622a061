//! A disk of the host that fails, a limit of file sizes and a signal: each in the middle of what a command writes.
//!
//! strace(1) makes one system call of the command fail or sends the signal when the call is made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::fixture::{error, lanefs, ok, tool};

/// One call of this number is made to fail.
const STEP: usize = 3;
/// More calls than any command here makes.
const CALLS: u32 = 60;

/// When the commands make their changes, so that the same change is the same to see.
const EPOCH: &str = "1600000000";

/// Runs the command with `what` done to the call of this number. `None` when it makes fewer calls.
fn run_with(call: &str, what: &str, number: u32, words: &[String], trace: &Path) -> Option<Output> {
    let inject = format!("inject={call}:{what}:when={number}");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(trace);
    command.args(["-e", &format!("trace={call}"), "-e", &inject]);
    command.env("SOURCE_DATE_EPOCH", EPOCH);
    let output = command
        .arg(lanefs().get_program())
        .args(words)
        .output()
        .unwrap();
    let trace = fs::read_to_string(trace).unwrap();
    let calls = trace
        .lines()
        .filter(|line| line.contains(&format!("{call}(")));
    (calls.count() >= number as usize).then_some(output)
}

fn can_inject() -> bool {
    let needed = ["strace", "mke2fs", "e2fsck"];
    let found = needed.iter().all(|program| testkit::have(program));
    // A sandbox may not let one process trace another.
    if found
        && Command::new("strace")
            .args(["-qq", "true"])
            .status()
            .unwrap()
            .success()
    {
        return true;
    }
    testkit::skip("needs strace, mke2fs and e2fsck");
    false
}

/// What an image holds once its journal is replayed by e2fsck, which must find nothing wrong with it.
fn contents(image: &Path) -> String {
    let copy = image.with_extension("copy");
    fs::copy(image, &copy).unwrap();
    let replayed = testkit::e2fsck_with(&["-fy", "-E", "journal_only"], &copy);
    assert!(replayed.status.success(), "{replayed:?}");
    testkit::e2fsck(&copy);
    ok(["ls", "-lR", copy.to_str().unwrap()])
}

fn words(line: &str, folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    line.split(' ')
        .map(|word| word.replace("FOLDER", folder))
        .collect()
}

/// An image with a journal, and files to copy into it.
fn prepare(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder.join("root/etc/d")).unwrap();
    fs::write(folder.join("root/etc/motd"), "hi\n").unwrap();
    fs::write(folder.join("root/etc/large"), vec![5; 900_000]).unwrap();
    fs::write(folder.join("small"), "x").unwrap();
    fs::write(folder.join("large"), vec![7; 3_000_000]).unwrap();
    let image = folder.join("image");
    let root = folder.join("root");
    let (root, path) = (root.to_str().unwrap(), image.to_str().unwrap());
    testkit::mke2fs(&["-t", "ext4", "-d", root, path, "16M"]);
    image
}

#[test]
fn a_disk_that_fails_leaves_an_image_as_before_or_with_the_whole_change() {
    if !can_inject() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let image = prepare(folder);
    let (bytes, before) = (testkit::read_image(&image), contents(&image));
    for line in [
        "cp FOLDER/large FOLDER/image:/etc/",
        "mv FOLDER/image:/etc/motd FOLDER/image:/etc/large",
    ] {
        testkit::write_image(&image, &bytes);
        tool(
            lanefs()
                .env("SOURCE_DATE_EPOCH", EPOCH)
                .args(words(line, folder)),
        );
        let after = contents(&image);
        for (call, name) in [
            ("pwrite64", "EIO"),
            ("fdatasync", "EIO"),
            ("fallocate", "ENOSPC"),
        ] {
            for number in (1..CALLS).step_by(STEP) {
                testkit::write_image(&image, &bytes);
                let what = format!("error={name}");
                let words = words(line, folder);
                let Some(output) = run_with(call, &what, number, &words, &folder.join("trace"))
                else {
                    assert!(number > 1, "{line}: {call}");
                    break;
                };
                let at = format!("{line}: {call} {number}");
                let said = error(&output);
                assert_eq!(output.status.code(), Some(1), "{at}: {said}");
                if testkit::read_image(&image) == bytes {
                    continue;
                }
                assert!(call != "fallocate", "{at}: changed before there was room");
                let found = contents(&image);
                assert!(found == before || found == after, "{at}: {found}");
                assert!(said.contains("lanefs check"), "{at}: {said}");
            }
        }
    }
}

/// The names in a directory.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Commands that make a file, which is larger than [`LIMIT`].
const MAKING: &[&str] = &[
    "-q build --size 20M FOLDER/root FOLDER/new",
    "-q build --size 20M FOLDER/root FOLDER/old",
    "-q mkfs FOLDER/new 20M",
    "extract FOLDER/image FOLDER/new.tar",
    "cp FOLDER/image:/etc/large FOLDER/new",
];
const LIMIT: u64 = 500_000;

#[test]
fn what_is_made_beyond_a_limit_of_file_sizes_is_removed() {
    if !testkit::have("mke2fs") || !testkit::have("prlimit") {
        return testkit::skip("needs mke2fs and prlimit");
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    fs::write(folder.join("old"), "as it was").unwrap();
    let before = names(folder);
    for line in MAKING {
        let output = Command::new("prlimit")
            .arg(format!("--fsize={LIMIT}"))
            .arg(lanefs().get_program())
            .args(words(line, folder))
            .output()
            .unwrap();
        let said = error(&output);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{line}: {:?}: {said}",
            output.status
        );
        assert!(
            said.contains("File too large") && !said.contains("standard output"),
            "{line}: {said}"
        );
        assert_eq!(names(folder), before, "{line}");
    }
    assert_eq!(fs::read_to_string(folder.join("old")).unwrap(), "as it was");
}

#[test]
fn a_signal_while_a_file_is_made_leaves_nothing_or_all_of_it() {
    if !can_inject() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    fs::write(folder.join("old"), "as it was").unwrap();
    let before = names(folder);
    for line in MAKING {
        // The files that are made are written by these calls; the first of each is one of the first of all.
        for call in ["openat", "pwrite64", "write", "fdatasync"] {
            for number in [1, 4] {
                let trace = tempfile::NamedTempFile::new().unwrap();
                let words = words(line, folder);
                let output = run_with(call, "signal=INT", number, &words, trace.path());
                let mut found = names(folder);
                found.retain(|name| !before.contains(name));
                for name in &found {
                    fs::remove_file(folder.join(name)).unwrap();
                }
                let old = fs::read(folder.join("old")).unwrap();
                fs::write(folder.join("old"), "as it was").unwrap();
                let Some(output) = output else { break };
                let at = format!("{line}: {call} {number}: {:?}", output.status);
                // A copy whose last byte was written before the signal stays, and is reported as whole.
                let is_whole = output.status.success() || error(&output).contains("is whole");
                assert!(
                    found.is_empty() || is_whole && found.len() == 1,
                    "{at}: {found:?}"
                );
                assert!(is_whole || old == b"as it was", "{at}");
            }
        }
    }
}

#[test]
fn an_attribute_that_no_block_holds_is_named_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    ok(["mkfs", "-q", image.to_str().unwrap(), "16M"]);
    let file = format!("{}:/file", image.display());
    ok(["touch", &file]);
    let before = testkit::read_image(&image);
    let value = "v".repeat(60_000);
    let output = lanefs()
        .args(["setfattr", "-n", "user.big", "-v", &value, &file])
        .output()
        .unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("/file: the extended attribute user.big has 60000 bytes"),
        "{said}"
    );
    assert!(testkit::read_image(&image) == before);
}
