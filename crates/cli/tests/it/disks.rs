//! Whole disks: partition tables made by sfdisk.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{Fixture, error, ok, run};

/// Has sfdisk divide a disk of 200 MiB; says whether it could.
fn divide(disk: &Path, script: &str) -> bool {
    if !testkit::have("sfdisk") {
        testkit::skip("sfdisk is not installed");
        return false;
    }
    fs::File::create(disk).unwrap().set_len(200 << 20).unwrap();
    let program = if Path::new("/sbin/sfdisk").exists() {
        "/sbin/sfdisk"
    } else {
        "sfdisk"
    };
    let mut child = Command::new(program)
        .arg("-q")
        .arg(disk)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
    true
}

/// Copies an image to a byte of a disk.
fn put(image: &Path, disk: &Path, at: u64) {
    let disk = fs::OpenOptions::new().write(true).open(disk).unwrap();
    disk.write_all_at(&fs::read(image).unwrap(), at).unwrap();
}

#[test]
fn partitions_of_a_gpt_disk_are_listed_and_read() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let disk = fixture.path("gpt.img");
    let script = "label: gpt\nsize=10M, type=U, name=boot\nsize=50M, type=L, name=\"my root\"\n";
    if !divide(&disk, script) {
        return;
    }
    put(&fixture.image, &disk, 11 << 20);
    let disk = disk.to_str().unwrap();

    let output = run(["ls", disk]);
    let said = error(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("a whole disk with 2 partitions") && said.contains("--partition N"),
        "{said}"
    );
    assert!(
        said.contains("\"my root\": ext2/3/4") && said.contains("EFI system"),
        "{said}"
    );

    let expected = ok(["ls", "-la", fixture.image.to_str().unwrap()]);
    assert_eq!(ok(["ls", "-la", "--partition", "2", disk]), expected);
    assert_eq!(ok(["ls", "-la", "--offset", "11M", disk]), expected);
    assert_eq!(ok(["ls", "-la", "--offset", "22528s", disk]), expected);

    let output = run(["ls", "--partition", "3", disk]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("there is no partition 3"),
        "{}",
        error(&output)
    );
    let output = run(["ls", "--partition", "1", disk]);
    assert!(
        error(&output).contains("nothing but zeros"),
        "{}",
        error(&output)
    );
    let output = run(["ls", "--offset", "1T", disk]);
    assert!(
        error(&output).contains("beyond the end"),
        "{}",
        error(&output)
    );
}

/// What can't be found is said with the next step, and following it leaves the rest of the disk alone.
#[test]
fn an_empty_partition_or_table_and_an_offset_beyond_the_end_are_named() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let path = fixture.path("mbr.img");
    let script = "label: dos\nsize=20M, type=83\nsize=40M, type=83\n";
    if !divide(&path, script) {
        return;
    }
    put(&fixture.image, &path, 21 << 20);
    let disk = path.to_str().unwrap();
    let output = run(["ls", "--partition", "1", disk]);
    let said = error(&output);
    assert!(said.contains("nothing but zeros"), "{said}");
    let words = format!("lanefs mkfs -E offset=1048576 {disk} 40960s");
    assert!(said.contains(&words), "{said}");
    ok(["mkfs", "-q", "-E", "offset=1048576", disk, "40960s"]);
    assert!(ok(["ls", "--partition", "1", disk]).contains("lost+found"));
    assert!(ok(["ls", "--partition", "2", disk]).contains("hello.txt"));
    let said = error(&run(["ls", "--offset", "1T", disk]));
    assert!(
        said.contains("beyond the end (209715200 bytes)") && said.contains("--partition N"),
        "{said}"
    );
    let said = error(&run([
        "ls",
        "--offset",
        "1T",
        fixture.image.to_str().unwrap(),
    ]));
    assert!(said.contains("--offset counts bytes"), "{said}");
    assert!(divide(&path, "label: gpt\n"));
    for options in [&["ls"][..], &["ls", "--partition", "1"]] {
        let said = error(&run([options, &[disk]].concat()));
        assert!(
            said.contains("partition table is empty") && said.contains("sfdisk"),
            "{said}"
        );
    }
}

#[test]
fn a_gpt_whose_first_copy_is_lost_is_read_from_its_backup() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let disk = fixture.path("gpt.img");
    if !divide(&disk, "label: gpt\nsize=50M, type=L\n") {
        return;
    }
    put(&fixture.image, &disk, 1 << 20);
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.write_all_at(&[0; 512], 512).unwrap();
    // A file that is open for writing counts as in use.
    drop(file);
    let cat = ok([
        "cat",
        "--partition",
        "1",
        &format!("{}:/hello.txt", disk.display()),
    ]);
    assert_eq!(cat, "hello, ext4\n");
}

#[test]
fn logical_partitions_of_an_mbr_disk_are_numbered_from_five() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let disk = fixture.path("mbr.img");
    let script = "label: dos\nsize=10M, type=82\ntype=5\nsize=10M, type=83\nsize=50M, type=83\n";
    if !divide(&disk, script) {
        return;
    }
    let listed = {
        let program = if Path::new("/sbin/sfdisk").exists() {
            "/sbin/sfdisk"
        } else {
            "sfdisk"
        };
        let dump = Command::new(program)
            .arg("-d")
            .arg(&disk)
            .output()
            .unwrap()
            .stdout;
        let dump = String::from_utf8(dump).unwrap();
        let line = dump
            .lines()
            .find(|line| line.contains("mbr.img6 "))
            .unwrap()
            .to_owned();
        let start = line
            .split("start=")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap();
        start.trim().parse::<u64>().unwrap()
    };
    put(&fixture.image, &disk, listed * 512);
    let target = format!("{}:/hello.txt", disk.display());
    assert_eq!(ok(["cat", "--partition", "6", &target]), "hello, ext4\n");
    let said = error(&run(["cat", &target]));
    assert!(
        said.contains("3 partitions") && said.contains("Linux swap"),
        "{said}"
    );
}
