//! `lanefs check`: the exit statuses of fsck(8), and what it prints.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Fixture, error, lanefs, run};

fn check(options: &[&str], image: &Path) -> std::process::Output {
    let mut command = lanefs();
    command.arg("check").args(options).arg(image);
    command.output().unwrap()
}

fn printed(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sets the link count of `/hello.txt` to 9, where it has 2 names.
fn damage(fixture: &Fixture) {
    let request = "set_inode_field /hello.txt links_count 9";
    testkit::debugfs(&["-w", "-R", request, fixture.image.to_str().unwrap()]);
}

/// Makes `/hello.txt` a symbolic link, which its directory and its contents contradict.
fn damage_that_needs_a_decision(fixture: &Fixture) {
    let request = "set_inode_field /hello.txt mode 0120777";
    testkit::debugfs(&["-w", "-R", request, fixture.image.to_str().unwrap()]);
}

#[test]
fn a_clean_image_is_0_and_its_last_line_is_that_of_e2fsck() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let before = testkit::read_image(&fixture.image);
    let e2fsck = printed(&testkit::e2fsck_with(&["-fn"], &fixture.image));
    let last = e2fsck.lines().last().unwrap();
    for options in [&[][..], &["-n"], &["-f"], &["-fn", "--threads", "2"]] {
        let output = check(options, &fixture.image);
        assert_eq!(output.status.code(), Some(0), "{}", error(&output));
        assert_eq!(printed(&output).trim_end(), last, "{options:?}");
    }
    assert!(
        testkit::read_image(&fixture.image) == before,
        "the image was written to"
    );
}

#[test]
fn the_passes_are_drawn_for_each_thread() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let picture = fixture.image.with_extension("svg");
    let options = ["--threads", "2", "--passes", picture.to_str().unwrap()];
    let output = check(&options, &fixture.image);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let picture = fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    for words in [
        "thread 0",
        "inodes: ",
        "directories: ",
        "connectivity: ",
        "link counts: ",
        "bitmaps and counts: ",
    ] {
        assert!(picture.contains(words), "{words}: {picture}");
    }
}

/// The superblock of each of these images is marked clean.
#[test]
fn a_clean_mark_counts_only_on_a_whole_image_with_whole_descriptors() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let whole = testkit::read_image(&fixture.image);
    let output = check(&["-p"], &fixture.image);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let number = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap()) as usize;
    let descriptors = (number(1024 + 20) + 1) * (1024 << number(1024 + 24));
    let mut damaged = whole.clone();
    damaged[descriptors..descriptors + 64].fill(0xa5);
    let cut = whole[..whole.len() * 3 / 4].to_vec();
    for (what, bytes) in [("descriptors", damaged), ("cut", cut)] {
        testkit::write_image(&fixture.image, &bytes);
        let output = check(&["-p"], &fixture.image);
        let said = format!("{what}: {} {}", printed(&output), error(&output));
        assert!(matches!(output.status.code(), Some(4 | 8)), "{said}");
        assert!(!said.contains(": clean"), "{said}");
        // Only the error flag of the superblock was set.
        let after = testkit::read_image(&fixture.image);
        assert!(after[2048..] == bytes[2048..], "{said}");
        let e2fsck = testkit::e2fsck_with(&["-p"], &fixture.image);
        assert_ne!(e2fsck.status.code(), Some(0), "{what}");
    }
}

#[test]
fn damage_is_4_and_is_named_and_stays() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    damage(&fixture);
    let before = testkit::read_image(&fixture.image);
    let output = check(&[], &fixture.image);
    assert_eq!(output.status.code(), Some(4), "{}", error(&output));
    let text = printed(&output);
    let line = "the link count is 9, there are 2 [repair: the count is set to 2]";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("the file system has errors"), "{text}");
    assert!(
        testkit::read_image(&fixture.image) == before,
        "the image was written to"
    );
}

#[test]
fn a_repair_is_1_and_leaves_a_clean_image_and_undo_takes_it_back() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    damage(&fixture);
    damage_that_needs_a_decision(&fixture);
    let whole = testkit::read_image(&fixture.image);
    for options in [&["-p", "-f"][..], &["-p"]] {
        let output = check(options, &fixture.image);
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(4), "{text}");
        assert!(text.contains("needs a decision"), "{text}");
        assert!(!text.contains("[repaired"), "{text}");
        let after = testkit::read_image(&fixture.image);
        assert!(after[2048..] == whole[2048..], "written to");
    }
    let before = testkit::read_image(&fixture.image);
    let undo = fixture.image.with_extension("undo");
    let undo = undo.to_str().unwrap();
    let output = check(&["-y", "--undo", undo], &fixture.image);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    let text = printed(&output);
    let line = "the link count is 9, there are 2 [repaired: the count is set to 2]";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("the file system was changed"), "{text}");
    testkit::e2fsck(&fixture.image);
    for options in [&[][..], &["-y"], &["-p"], &["-fp"]] {
        let output = check(options, &fixture.image);
        assert_eq!(output.status.code(), Some(0), "{options:?}");
    }
    let output = check(&["--undo-apply", undo], &fixture.image);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    assert!(testkit::read_image(&fixture.image) == before, "as before");
}

#[test]
fn a_careful_repair_mends_link_counts_and_times_in_the_future() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    damage(&fixture);
    let request = "set_super_value mtime 20990101000000";
    testkit::debugfs(&["-w", "-R", request, fixture.image.to_str().unwrap()]);
    let output = check(&["-fp", "--json"], &fixture.image);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = value["check"]["found"]["problems"].as_array().unwrap();
    let of = |class: &str| found.iter().find(|it| it["class"] == class).unwrap();
    for class in ["superblock", "count"] {
        assert_eq!(of(class)["repaired"], true, "{value}");
        assert_eq!(of(class)["preen"], true, "{value}");
    }
    assert_eq!(of("count")["repair"], "the count is set to 2", "{value}");
    let e2fsck = printed(&testkit::e2fsck_with(&["-fn"], &fixture.image));
    assert!(!e2fsck.contains("in the future"), "{e2fsck}");
    let output = check(&[], &fixture.image);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(!text.contains("in the future"), "{text}");
}

#[test]
fn a_repair_keeps_to_the_memory_it_may_use_or_names_what_it_needs() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    // 32 MiB are four groups of 1 KiB blocks.
    let output = check(&["-y", "--memory", "2K"], &fixture.image);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    damage(&fixture);
    let before = testkit::read_image(&fixture.image);
    let output = check(&["-y", "--memory", "2K"], &fixture.image);
    assert_eq!(output.status.code(), Some(8), "{}", error(&output));
    let said = error(&output);
    let needed = said.split("--memory ").nth(1).unwrap();
    let needed = needed.split_whitespace().next().unwrap();
    assert!(testkit::read_image(&fixture.image) == before, "written to");
    let output = check(&["-y", "--memory", needed], &fixture.image);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    testkit::e2fsck(&fixture.image);
}

#[test]
fn an_undo_file_without_a_repair_is_usage() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let output = check(&["--undo", "/nowhere/file"], &fixture.image);
    assert_eq!(output.status.code(), Some(16));
    let output = check(&["--undo-apply", "/nowhere/file"], &fixture.image);
    assert_eq!(output.status.code(), Some(8), "{}", error(&output));
}

#[test]
fn what_is_not_an_ext4_is_8() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = folder.path().join("zeros.img");
    fs::write(&zeros, vec![0; 1 << 20]).unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "not a file system\n").unwrap();
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let missing = folder.path().join("missing");
    for image in [&zeros, &text, &empty, &missing] {
        let output = check(&[], image);
        let (status, text) = (output.status.code(), error(&output));
        assert_eq!(status, Some(8), "{image:?}: {text}{}", printed(&output));
        assert!(text.contains(image.to_str().unwrap()), "{image:?}: {text}");
    }
}

#[test]
fn json_has_verdict_problems_and_sums() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let read = |status| {
        let output = check(&["--json"], &fixture.image);
        assert_eq!(output.status.code(), Some(status), "{}", error(&output));
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["version"], 1, "{value}");
        value["check"].clone()
    };
    let clean = read(0);
    assert_eq!(clean["clean"], true, "{clean}");
    assert_eq!(clean["problems"].as_array().unwrap().len(), 0, "{clean}");
    assert!(clean["totals"]["files"].as_u64().unwrap() > 11, "{clean}");
    damage(&fixture);
    let damaged = read(4);
    assert_eq!(damaged["clean"], false, "{damaged}");
    let problems = damaged["problems"].as_array().unwrap();
    let problem = problems.iter().find(|problem| problem["class"] == "count");
    let problem = problem.unwrap_or_else(|| panic!("{damaged}"));
    assert_eq!(problem["found"], 9, "{damaged}");
    assert_eq!(problem["expected"], 2, "{damaged}");
    assert!(problem["inode"].is_u64(), "{damaged}");
    assert_eq!(problem["path"], "/hello.txt", "{damaged}");
    assert_eq!(problem["beyond_e2fsck"], false, "{damaged}");
}

#[test]
fn under_the_names_that_fsck_runs_it_is_a_check_with_the_exit_status_of_fsck() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for name in ["fsck.lanefs", "fsck.fuse.lanefs", "fsck.fuseblk.lanefs"] {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(lanefs().get_program(), &link).unwrap();
        let status = |options: &[&str]| {
            let mut command = Command::new(&link);
            let output = command.args(options).arg(&fixture.image).output();
            output.unwrap().status.code()
        };
        assert_eq!(status(&["-n", "-f"]), Some(0), "{name}");
        assert_eq!(status(&["--no-such-option"]), Some(16), "{name}");
        let version = Command::new(&link).arg("-V").output().unwrap();
        assert_eq!(version.status.code(), Some(0), "{name}");
        let expected = concat!("lanefs-check ", env!("CARGO_PKG_VERSION"), "\n");
        assert_eq!(printed(&version), expected, "{name}");
    }
}

#[test]
fn an_option_that_only_e2fsck_has_is_refused_with_what_helps() {
    let image = Path::new("no-such-image");
    for (option, help) in [
        ("-c", "e2fsck -c IMAGE"),
        ("-k", "e2fsck -c IMAGE"),
        ("-D", "e2fsck -fD IMAGE"),
        ("-Ediscard", "e2fsck -E"),
        ("-z", "--undo FILE"),
        ("-d", "--json"),
        ("-tt", "-C 0"),
        ("-F", "leave -F out"),
        ("-r", "leave it out"),
    ] {
        let output = check(&[option], image);
        assert_eq!(output.status.code(), Some(16), "{option}");
        assert!(error(&output).contains(help), "{}", error(&output));
    }
}

#[test]
fn progress_goes_to_a_descriptor_as_e2fsck_writes_it() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let output = check(&["-C", "1"], &fixture.image);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let text = printed(&output);
    let image = fixture.image.to_str().unwrap();
    let is_progress = |line: &&str| line.ends_with(image) && line.split(' ').count() == 4;
    let passes: Vec<_> = text
        .lines()
        .filter(is_progress)
        .map(|line| &line[..1])
        .collect();
    assert!(passes.is_sorted() && passes.first() == Some(&"1"), "{text}");
    assert_eq!(passes.last(), Some(&"5"), "{text}");
}

#[test]
fn an_image_in_use_is_checked_with_a_warning_and_8_unless_it_is_mounted_read_only() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let Some(fixture) = Fixture::new() else {
        return;
    };
    for (options, status) in [("rw,loop", 8), ("ro,loop", 0)] {
        let Ok(mounted) = testkit::KernelMount::with(&fixture.image, options) else {
            return testkit::skip("the kernel does not mount the image");
        };
        for asked in [&[][..], &["--in-use"]] {
            let output = check(asked, &fixture.image);
            let said = error(&output);
            assert_eq!(output.status.code(), Some(status), "{said}");
            let warnings = said.matches("is in use").count();
            assert_eq!(warnings, usize::from(status == 8), "{options}: {said}");
        }
        drop(mounted);
    }
}

#[test]
fn a_place_without_a_superblock_is_4_and_the_copies_that_are_left_are_named() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let mut bytes = testkit::read_image(&fixture.image);
    bytes[..65_536].fill(0);
    testkit::write_image(&fixture.image, &bytes);
    for asked in [
        &["--superblock", "4096"][..],
        &["-y", "--superblock", "4096"],
    ] {
        let output = check(asked, &fixture.image);
        let (text, said) = (printed(&output), error(&output));
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(text.contains("the superblock can't be used"), "{text}");
        assert!(said.contains("--superblock 8193"), "{said}");
    }
    assert!(testkit::read_image(&fixture.image) == bytes);
}

#[test]
fn a_copy_of_the_superblock_is_named_by_its_block() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let output = check(&["-b", "7"], &fixture.image);
    assert_eq!(output.status.code(), Some(8), "{}", error(&output));
    assert!(error(&output).contains("-b 7: that block does not hold a superblock"));
}

/// An image of 4 KiB blocks whose external journal holds a copy of block 15000, which is free.
fn with_external_journal(folder: &Path) -> [std::path::PathBuf; 2] {
    let (image, journal) = (folder.join("image"), folder.join("journal"));
    let [name, device] = [&image, &journal].map(|path| path.to_str().unwrap());
    let made = ["mkfs", "-q", "-O", "journal_dev", "-b", "4096"];
    let made = run([&made[..], &[device, "16M"]].concat());
    assert!(made.status.success(), "{}", error(&made));
    let place = format!("device={device}");
    let made = run(["mkfs", "-q", "-b", "4096", "-J", &place, name, "64M"]);
    assert!(made.status.success(), "{}", error(&made));
    let new = folder.join("new");
    fs::write(&new, [0x5A; 4096]).unwrap();
    let script = format!(
        "journal_open -c -v 3 -f {device}\njournal_write -b 15000 {}\njournal_close\n",
        new.display()
    );
    testkit::debugfs_script(&image, &script);
    [image, journal]
}

fn is_replayed(image: &Path) -> bool {
    let bytes = testkit::read_image(image);
    bytes[15_000 * 4096..15_001 * 4096] == [0x5A; 4096]
}

#[test]
fn an_external_journal_is_replayed_where_it_is_given_and_asked_for_where_it_is_not() {
    if !testkit::have("debugfs") || !testkit::have("e2fsck") {
        return testkit::skip("debugfs or e2fsck is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    let [image, journal] = with_external_journal(folder.path());
    let device = journal.to_str().unwrap();
    let before = [testkit::read_image(&image), fs::read(&journal).unwrap()];
    let is_untouched = || [testkit::read_image(&image), fs::read(&journal).unwrap()] == before;
    for option in ["-y", "-p"] {
        let output = check(&[option], &image);
        let said = error(&output);
        assert_eq!(output.status.code(), Some(8), "{option}: {said}");
        assert!(said.contains("--journal FILE"), "{option}: {said}");
        assert!(is_untouched(), "{option}: written to");
    }
    let output = check(&["-n", "--journal", device], &image);
    let said = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{said}{}", error(&output));
    assert!(
        said.contains("replayed") && !said.contains("not looked at"),
        "{said}"
    );
    let undo = folder.path().join("undo");
    let undo = undo.to_str().unwrap();
    let output = check(&["-y", "--undo", undo, "--journal", device], &image);
    assert_eq!(output.status.code(), Some(8), "{}", error(&output));
    assert!(is_untouched(), "--undo: written to");
    for options in [
        ["-y", "-j", device],
        ["-y", "--journal", device],
        ["-p", "-j", device],
    ] {
        fs::write(&image, &before[0]).unwrap();
        fs::write(&journal, &before[1]).unwrap();
        let output = check(&options, &image);
        let said = format!("{options:?}: {}{}", printed(&output), error(&output));
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!said.contains("not looked at"), "{said}");
        assert!(is_replayed(&image), "{said}");
        let judged = testkit::e2fsck_with(&["-fn", "-j", device], &image);
        assert_eq!(judged.status.code(), Some(0), "{}", printed(&judged));
        // Nothing is left to replay.
        let output = check(&["-fn", "--journal", device], &image);
        assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
        let output = check(&["-y"], &image);
        assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    }
}

#[test]
fn options_that_make_no_sense_are_usage() {
    let output = run(["check", "-n", "-y", "image"]);
    assert_ne!(output.status.code(), Some(0));
    assert!(error(&output).contains("-y"), "{}", error(&output));
}

/// The journal has its superblock in block 1, then a descriptor, a copy and a commit record.
#[test]
fn a_damaged_log_on_another_device_is_given_up_by_a_repair_of_everything_alone() {
    if !testkit::have("debugfs") || !testkit::have("e2fsck") {
        return testkit::skip("debugfs or e2fsck is missing");
    }
    let damages: [(&str, usize); 4] = [
        ("the superblock's magic number", 4096),
        ("the superblock", 4096 + 0x1B),
        ("the descriptor", 2 * 4096 + 20),
        ("the copy of a block", 3 * 4096 + 100),
    ];
    for (what, at) in damages {
        let folder = tempfile::tempdir().unwrap();
        let [image, journal] = with_external_journal(folder.path());
        let device = journal.to_str().unwrap();
        let mut log = fs::read(&journal).unwrap();
        log[at] ^= 0x55;
        fs::write(&journal, &log).unwrap();
        let before = testkit::read_image(&image);
        let output = check(&["-n", "--journal", device], &image);
        let said = printed(&output);
        assert_eq!(output.status.code(), Some(4), "{what}: {said}");
        assert!(!said.contains("not looked at"), "{what}: {said}");
        let output = check(&["-p", "--journal", device], &image);
        let status = output.status.code();
        assert!(matches!(status, Some(4 | 8)), "{what}: {}", error(&output));
        assert!(
            testkit::read_image(&image)[2048..] == before[2048..],
            "{what}"
        );
        assert!(fs::read(&journal).unwrap() == log, "{what}: written to");
        let output = check(&["-y", "--journal", device], &image);
        let said = format!("{}{}", printed(&output), error(&output));
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(
            said.contains("[repaired: if only copies of blocks are damaged"),
            "{what}: {said}"
        );
        for options in [&["-n"][..], &["-y"], &["-fp"]] {
            let output = check(&[options, &["--journal", device]].concat(), &image);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{what}: {}",
                printed(&output)
            );
        }
        let judged = testkit::e2fsck_with(&["-fn", "-j", device], &image);
        assert_eq!(
            judged.status.code(),
            Some(0),
            "{what}: {}",
            printed(&judged)
        );
    }
}

#[test]
fn a_repair_that_lacks_memory_refuses_before_it_replays() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    damage(&fixture);
    let new = fixture.image.with_extension("new");
    fs::write(&new, [0x5A; 1024]).unwrap();
    let script = format!(
        "journal_open\njournal_write -b 31000 {}\njournal_close\n",
        new.display()
    );
    testkit::debugfs_script(&fixture.image, &script);
    let before = testkit::read_image(&fixture.image);
    for option in ["-p", "-y"] {
        let output = check(&[option, "--memory", "2K"], &fixture.image);
        assert_eq!(output.status.code(), Some(8), "{}", error(&output));
        assert!(error(&output).contains("is enough"), "{}", error(&output));
        assert!(testkit::read_image(&fixture.image) == before, "written to");
    }
    let output = check(&["-y"], &fixture.image);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    testkit::e2fsck(&fixture.image);
}

/// A block's 16 bits for the number of its group can't name these groups.
#[test]
fn an_image_of_more_than_65535_groups_is_made_checked_and_repaired() {
    if !testkit::have("debugfs") || !testkit::have("e2fsck") {
        return testkit::skip("debugfs or e2fsck is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let name = image.to_str().unwrap();
    // Group 78125 is a power of 5, so it has a copy of the superblock.
    let options = ["mkfs", "-q", "-b", "1024", "-N", "1000000"];
    let made = run([&options[..], &["-O", "^has_journal", name, "613G"]].concat());
    if error(&made).contains("File too large") {
        return testkit::skip("the temporary directory takes no file of 613 GiB");
    }
    assert!(made.status.success(), "{}", error(&made));
    let is_clean = |options: &[&str]| {
        let output = check(options, &image);
        assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
        let e2fsck = testkit::e2fsck_with(&["-fn"], &image);
        let last = |output| printed(output).lines().last().unwrap().to_owned();
        assert_eq!(last(&output), last(&e2fsck), "{options:?}");
    };
    is_clean(&[]);
    is_clean(&["-b", "640000001", "-B", "1024"]);
    let script = "set_bg 78125 free_blocks_count 5\nset_bg 78125 checksum calc\nsetb 640005200\n";
    testkit::debugfs_script(&image, script);
    let output = check(&[], &image);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(
        text.contains("group 78125: the descriptor says 5 free"),
        "{text}"
    );
    let output = check(&["-fp"], &image);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    is_clean(&[]);
}
