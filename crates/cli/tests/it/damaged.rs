//! Images that are cut short, wiped at the start, or whose group descriptors are damaged: what is there is read, what
//! is missing is named, and no hint destroys what can still be rescued.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::{error, ok, run, tool};

/// Makes an image of `size` of a tree with a file of 2 MiB; none where mke2fs is missing.
fn image(folder: &Path, options: &[&str], size: &str) -> Option<PathBuf> {
    if !testkit::have("mke2fs") {
        testkit::skip("mke2fs is not installed");
        return None;
    }
    let tree = folder.join("tree");
    if !tree.exists() {
        fs::create_dir_all(tree.join("dir")).unwrap();
        fs::write(tree.join("dir/small"), "small\n").unwrap();
        std::os::unix::fs::symlink("big", tree.join("link")).unwrap();
        let big: Vec<u8> = (0..2_u32 << 20).map(|at| (at / 3 % 251) as u8).collect();
        fs::write(tree.join("big"), big).unwrap();
    }
    let image = folder.join("disk.img");
    let _ = fs::remove_file(&image);
    let program = ["/sbin/mke2fs", "/usr/sbin/mke2fs"];
    let found = program.iter().find(|path| Path::new(path).exists());
    tool(
        Command::new(found.unwrap_or(&"mke2fs"))
            .args(["-q", "-F", "-t", "ext4", "-d"])
            .arg(&tree)
            .args(options)
            .arg(&image)
            .arg(size),
    );
    Some(image)
}

/// Writes to an image, and closes it.
fn write(image: &Path, bytes: &[u8], at: u64) {
    let file = OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn wipe(image: &Path, range: std::ops::Range<u64>) {
    let zeros = vec![0; (range.end - range.start) as usize];
    write(image, &zeros, range.start);
}

fn cut(image: &Path, len: u64) {
    let file = OpenOptions::new().write(true).open(image).unwrap();
    file.set_len(len).unwrap();
}

/// The first byte of `big` on the device.
fn place_of_big(image: &Path) -> u64 {
    let listed = ok(["dump", image.to_str().unwrap(), "extents", "/big"]);
    let words = |line: &str| -> Vec<u64> {
        let numbers = line.split(|c: char| !c.is_ascii_digit());
        numbers.filter_map(|number| number.parse().ok()).collect()
    };
    let found = testkit::debugfs(&["-R", "bmap /big 0", image.to_str().unwrap()]);
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(!listed.is_empty());
    words(&text)[0]
}

#[test]
fn an_image_that_is_cut_short_is_read_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    for block in ["1024", "4096", "65536"] {
        let Some(image) = image(folder.path(), &["-b", block], "64M") else {
            return;
        };
        let name = image.to_str().unwrap();
        let full = fs::metadata(&image).unwrap().len();
        for lost in [1, 4096, full / 2] {
            cut(&image, full - lost);
            for command in ["ls", "find", "tree", "du", "df", "info", "map"] {
                let output = run([command, name]);
                let said = error(&output);
                assert!(output.status.success(), "{block} {lost} {command}: {said}");
                let warning =
                    format!("the last {lost} of the file system's {full} bytes are missing");
                assert_eq!(said.matches(&warning).count(), 1, "{command}: {said}");
            }
            let small = format!("{name}:/dir/small");
            assert_eq!(ok(["cat", &small]), "small\n");
            // What is written to must be whole.
            let before = testkit::read_image(&image);
            for command in [&["touch", name, "/new"][..], &["tune", name, "label=x"]] {
                let output = run(command);
                let said = error(&output);
                assert_eq!(output.status.code(), Some(1), "{said}");
                assert!(said.contains("truncated"), "{said}");
                assert!(
                    said.contains(&format!("truncate -s {full} ")),
                    "{command:?}: {said}"
                );
            }
            assert!(testkit::read_image(&image) == before);
        }
    }
}

#[test]
fn a_file_that_is_partly_missing_is_read_up_to_there_and_the_others_whole() {
    let folder = tempfile::tempdir().unwrap();
    let Some(image) = image(folder.path(), &["-b", "4096"], "64M") else {
        return;
    };
    if !testkit::have("debugfs") {
        return testkit::skip("debugfs is not installed");
    }
    let name = image.to_str().unwrap();
    let start = place_of_big(&image) * 4096;
    cut(&image, start + 1_500_000);
    let whole = fs::read(folder.path().join("tree/big")).unwrap();
    let output = run(["cat", &format!("{name}:/big")]);
    let said = error(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("/big: byte ") && said.contains("is missing"),
        "{said}"
    );
    let read = output.stdout.len();
    assert!(
        whole.starts_with(&output.stdout) && read > 1_499_000,
        "{read}"
    );
    let out = folder.path().join("out");
    let output = run(["extract", name, out.to_str().unwrap()]);
    let said = error(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/big: byte "), "{said}");
    let link = fs::read_link(out.join("link")).unwrap();
    assert_eq!(link, Path::new("big"));
}

#[test]
fn a_dirty_image_whose_journal_is_missing_is_read_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["-b", "4096", "-J", "size=16", "-E", "packed_meta_blocks=0"];
    let Some(image) = image(folder.path(), &options, "256M") else {
        return;
    };
    if !testkit::have("debugfs") {
        return testkit::skip("debugfs is not installed");
    }
    let name = image.to_str().unwrap();
    let found = testkit::debugfs(&["-R", "bmap <8> 4000", name]);
    let text = String::from_utf8(found.stdout).unwrap();
    let block: u64 = text.trim().parse().unwrap();
    testkit::debugfs(&["-w", "-R", "feature needs_recovery", name]);
    cut(&image, block * 4096);
    let output = run(["ls", name]);
    let said = error(&output);
    assert!(output.status.success(), "{said}");
    // Nothing was in this journal, so it need not be read to its end.
    assert!(said.contains("are missing"), "{said}");
    let found = testkit::debugfs(&["-R", "bmap <8> 0", name]);
    let text = String::from_utf8(found.stdout).unwrap();
    let block: u64 = text.trim().parse().unwrap();
    cut(&image, block * 4096);
    let output = run(["ls", name]);
    let said = error(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("without the changes in the journal"),
        "{said}"
    );
}

#[test]
fn an_image_that_ends_within_its_superblock_is_named_as_cut() {
    let folder = tempfile::tempdir().unwrap();
    let Some(image) = image(folder.path(), &[], "16M") else {
        return;
    };
    cut(&image, 1500);
    for command in ["ls", "info", "touch"] {
        let mut words = vec![command, image.to_str().unwrap()];
        words.extend((command == "touch").then_some("/new"));
        let output = run(words);
        let said = error(&output);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            said.contains("it ends after 1500 bytes, within the superblock"),
            "{said}"
        );
    }
}

/// The command that a hint gives.
fn hinted(said: &str) -> Vec<&str> {
    let command = said.split("lanefs ls ").nth(1);
    let command = command.unwrap_or_else(|| panic!("no command in: {said}"));
    std::iter::once("ls")
        .chain(command.lines().next().unwrap().split(' '))
        .collect()
}

#[test]
fn a_wiped_start_names_the_copies_and_the_command_that_reads_with_one() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str, u64); 6] = [
        (&["-b", "1024"], "64M", 3 << 10),
        (&["-b", "2048"], "80M", 64 << 10),
        (&["-b", "4096"], "300M", 64 << 10),
        (&["-b", "4096", "-O", "sparse_super2"], "300M", 64 << 10),
        (&["-b", "4096", "-g", "4096"], "100M", 64 << 10),
        (
            &[
                "-b",
                "1024",
                "-g",
                "2048",
                "-O",
                "^sparse_super,^resize_inode,^has_journal",
            ],
            "40M",
            3 << 10,
        ),
    ];
    for (options, size, wiped) in cases {
        let Some(image) = image(folder.path(), options, size) else {
            return;
        };
        wipe(&image, 0..wiped);
        for command in ["ls", "info", "df"] {
            let said = error(&run([command, image.to_str().unwrap()]));
            assert!(!said.contains("lanefs mkfs"), "{options:?}: {said}");
            assert!(
                said.contains("superblock") && said.contains("--superblock"),
                "{options:?}: {said}"
            );
            let listed = ok(hinted(&said));
            assert!(
                listed.contains("dir") && listed.contains("big"),
                "{options:?}: {listed}"
            );
        }
        // Everything that reads, reads so.
        let said = error(&run(["ls", image.to_str().unwrap()]));
        let words = hinted(&said);
        for command in ["find", "tree", "du", "df", "info", "map"] {
            ok(std::iter::once(command).chain(words[1..].iter().copied()));
        }
    }
}

#[test]
fn a_wiped_root_directory_is_said_and_a_copy_of_the_image_is_advised() {
    let folder = tempfile::tempdir().unwrap();
    let Some(image) = image(folder.path(), &["-b", "4096"], "300M") else {
        return;
    };
    wipe(&image, 0..10 << 20);
    let said = error(&run(["ls", image.to_str().unwrap()]));
    assert!(said.contains("the root directory is lost"), "{said}");
    assert!(
        said.contains("work on a copy") && said.contains("-b 32768 -B 4096"),
        "{said}"
    );
}

#[test]
fn a_file_system_in_a_partition_is_found_when_the_start_of_the_disk_is_wiped() {
    let folder = tempfile::tempdir().unwrap();
    let Some(image) = image(folder.path(), &["-b", "1024"], "64M") else {
        return;
    };
    let disk = folder.path().join("disk");
    let file = fs::File::create(&disk).unwrap();
    file.set_len(80 << 20).unwrap();
    let bytes = testkit::read_image(&image);
    file.write_all_at(&bytes, 1 << 20).unwrap();
    drop(file);
    // The table is gone, the file system whole.
    let said = error(&run(["ls", disk.to_str().unwrap()]));
    assert!(said.contains("--offset 1048576"), "{said}");
    assert!(ok(hinted(&said)).contains("big"));
    // Its superblock is gone, too.
    wipe(&disk, 1 << 20..(1 << 20) + 3072);
    let said = error(&run(["ls", disk.to_str().unwrap()]));
    assert!(said.contains("--offset 1048576 --superblock"), "{said}");
    assert!(ok(hinted(&said)).contains("big"));
}

#[test]
fn only_what_is_blank_is_advised_to_be_made_a_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blank");
    fs::File::create(&path).unwrap().set_len(4 << 30).unwrap();
    let said = error(&run(["ls", path.to_str().unwrap()]));
    assert!(said.contains("lanefs mkfs"), "{said}");
    for at in [1 << 20, (4 << 30) - 1] {
        write(&path, b"x", at);
        let said = error(&run(["ls", path.to_str().unwrap()]));
        assert!(!said.contains("lanefs mkfs"), "{said}");
        write(&path, b"\0", at);
    }
}

#[test]
fn damaged_descriptors_lead_to_copies_that_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    for (block, size) in [("1024", "64M"), ("4096", "300M")] {
        let bytes: u64 = block.parse().unwrap();
        let table = if bytes == 1024 { 2 * bytes } else { bytes };
        // The whole table, one descriptor's inode table, one checksum.
        for range in [
            table..table + bytes,
            table + 8..table + 12,
            table + 64 + 30..table + 64 + 32,
        ] {
            let Some(image) = image(folder.path(), &["-b", block], size) else {
                return;
            };
            let garbage = vec![0xA5; (range.end - range.start) as usize];
            write(&image, &garbage, range.start);
            let output = run(["df", image.to_str().unwrap()]);
            let said = error(&output);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("group descriptors are damaged"), "{said}");
            let words = hinted(&said);
            assert!(ok(words.clone()).contains("big"));
            for command in ["find", "tree", "du", "df", "info", "map"] {
                let output = run(std::iter::once(command).chain(words[1..].iter().copied()));
                let said = error(&output);
                assert!(
                    output.status.success() && !said.contains("broken"),
                    "{command}: {said}"
                );
            }
            let said = error(&run(["touch", image.to_str().unwrap(), "/new"]));
            assert!(said.contains("group descriptors are damaged"), "{said}");
        }
    }
}
