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
    disk.write_all_at(&testkit::read_image(image), at).unwrap();
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
        error(&output).contains("no partition 3"),
        "{}",
        error(&output)
    );
    let output = run(["ls", "--partition", "1", disk]);
    assert!(
        error(&output).contains("only zeros where a file system would begin"),
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

/// The error about a file system that can't be found names the next step, which leaves the rest of the disk alone.
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
    assert!(
        said.contains("only zeros where a file system would begin"),
        "{said}"
    );
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

/// An entry of an MBR.
fn mbr_entry(kind: u8, start: u32, sectors: u32) -> [u8; 16] {
    let mut entry = [0; 16];
    entry[4] = kind;
    entry[8..12].copy_from_slice(&start.to_le_bytes());
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    entry
}

fn mbr(entries: &[[u8; 16]]) -> [u8; 512] {
    let mut sector = [0; 512];
    for (index, entry) in entries.iter().enumerate() {
        sector[446 + 16 * index..][..16].copy_from_slice(entry);
    }
    sector[510..].copy_from_slice(&[0x55, 0xAA]);
    sector
}

/// Linux cuts such partitions at the disk's end, and does not show those beyond it.
#[test]
fn a_partition_that_ends_beyond_the_disk_is_read_and_one_that_begins_there_is_named() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let image = testkit::read_image(&fixture.image);
    let disk = fixture.path("cut.img");
    let make = |sectors: &[(u64, [u8; 512])], len: u64| {
        let file = fs::File::create(&disk).unwrap();
        file.set_len(len).unwrap();
        file.write_all_at(&image, 2 << 20).unwrap();
        file.set_len(len).unwrap();
        for (at, sector) in sectors {
            file.write_all_at(sector, at * 512).unwrap();
        }
    };
    let whole = (2 << 20) + image.len() as u64;
    let far = 15_000_000;
    let name = disk.to_str().unwrap();
    let primary = mbr(&[
        mbr_entry(0x83, 4096, far),
        mbr_entry(0x83, far + 4096, 4096),
    ]);
    let extended = mbr(&[mbr_entry(0x0F, 2048, far)]);
    let logical = mbr(&[mbr_entry(0x83, 2048, far)]);
    for (sectors, number) in [
        (&[(0, primary)][..], "1"),
        (&[(0, extended), (2048, logical)], "5"),
    ] {
        make(sectors, whole);
        let target = format!("{name}:/hello.txt");
        assert_eq!(ok(["cat", "--partition", number, &target]), "hello, ext4\n");
        // It is whole, so it can be changed.
        ok(["touch", "--partition", number, name, "/new"]);
        let said = error(&run(["ls", name]));
        assert!(said.contains("are beyond the end of the image"), "{said}");
        // The file system is cut, too.
        make(sectors, whole - 4096);
        assert_eq!(ok(["cat", "--partition", number, &target]), "hello, ext4\n");
        let output = run(["touch", "--partition", number, name, "/new"]);
        assert!(error(&output).contains("truncated"), "{}", error(&output));
    }
    make(&[(0, primary)], whole);
    let output = run(["ls", "--partition", "2", name]);
    assert_eq!(output.status.code(), Some(1));
    let said = error(&output);
    assert!(
        said.contains("partition 2 is missing: it begins at byte"),
        "{said}"
    );
}

#[test]
fn a_cut_gpt_disk_is_read_by_the_table_at_its_start() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let disk = fixture.path("gpt.img");
    if !divide(&disk, "label: gpt\nsize=20M, type=L\nsize=150M, type=L\n") {
        return;
    }
    put(&fixture.image, &disk, 21 << 20);
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.set_len(60 << 20).unwrap();
    drop(file);
    let target = format!("{}:/hello.txt", disk.display());
    assert_eq!(ok(["cat", "--partition", "2", &target]), "hello, ext4\n");
}

/// sfdisk's verdict on the table.
fn verify(disk: &Path) {
    let program = ["/sbin/sfdisk", "/usr/sbin/sfdisk"];
    let found = program.iter().find(|path| Path::new(path).exists());
    let output = Command::new(found.unwrap_or(&"sfdisk"))
        .arg("--verify")
        .arg(disk)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &error(&output);
    assert!(said.contains("No errors detected"), "{said}");
}

#[test]
fn a_file_system_at_an_offset_keeps_within_its_partition_and_the_tables_stay() {
    let folder = tempfile::tempdir().unwrap();
    for label in ["gpt", "dos"] {
        let path = folder.path().join(label);
        let types = if label == "gpt" { "L" } else { "83" };
        let script = format!(
            "label: {label}\nstart=2048, size=40M, type={types}\nsize=150M, type={types}\n"
        );
        if !divide(&path, &script) {
            return;
        }
        let disk = path.to_str().unwrap();
        let before = testkit::read_image(&path);
        for words in [
            &["-E", "offset=0", disk][..],
            &[disk],
            &[disk, "10M"],
            &["-E", "offset=4096", disk],
            &["-E", "offset=1048576", disk, "41M"],
            &["-E", "offset=199M", disk],
        ] {
            let output = run([&["mkfs"][..], words].concat());
            let said = error(&output);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
            assert!(said.contains("partition"), "{words:?}: {said}");
            assert!(testkit::read_image(&path) == before, "{words:?}");
        }
        // Also with -F, a size that is not given is the partition's.
        for force in [&[][..], &["-F"]] {
            ok([&["mkfs", "-q", "-E", "offset=1048576"][..], force, &[disk]].concat());
            verify(&path);
            let listed = ok(["info", "--partition", "1", disk]);
            assert!(listed.contains("40.0 MiB"), "{listed}");
        }
        // What is there is kept, also where only its middle would be overwritten.
        for offset in ["offset=1048576", "offset=2097152"] {
            let said = error(&run(["mkfs", "-E", offset, disk]));
            assert!(said.contains("an ext2/3/4 file system already"), "{said}");
        }
    }
}

#[test]
fn a_table_of_which_only_the_backup_is_left_is_read_and_kept() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let disk = fixture.path("gpt.img");
    if !divide(&disk, "label: gpt\nstart=4096, size=50M, type=L\n") {
        return;
    }
    put(&fixture.image, &disk, 2 << 20);
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    drop(file);
    let name = disk.to_str().unwrap();
    let target = format!("{name}:/hello.txt");
    let said = error(&run(["ls", name]));
    assert!(
        said.contains("--partition N") && !said.contains("mkfs"),
        "{said}"
    );
    assert_eq!(ok(["cat", "--partition", "1", &target]), "hello, ext4\n");
    let said = error(&run(["mkfs", name]));
    assert!(said.contains("a disk with 1 partition already"), "{said}");
}

#[test]
fn a_table_with_a_wrong_checksum_is_read_with_a_warning_and_not_written_by() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let disk = fixture.path("gpt.img");
    if !divide(&disk, "label: gpt\nstart=4096, size=50M, type=L\n") {
        return;
    }
    put(&fixture.image, &disk, 2 << 20);
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    // The partition's name, in both copies.
    file.write_all_at(b"x", 1024 + 60).unwrap();
    file.write_all_at(b"x", (200 << 20) - 33 * 512 + 60)
        .unwrap();
    drop(file);
    let name = disk.to_str().unwrap();
    let output = run(["cat", "--partition", "1", &format!("{name}:/hello.txt")]);
    assert_eq!(output.stdout, b"hello, ext4\n");
    let said = error(&output);
    assert!(said.contains("the partition table is damaged"), "{said}");
    let said = error(&run(["touch", "--partition", "1", name, "/new"]));
    assert!(said.contains("--offset 2097152"), "{said}");
}

#[test]
fn what_only_the_end_of_a_device_tells_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let size = 64 << 20;
    for (at, bytes, word) in [
        (size - 8192, &[0xFC, 0x4E, 0x2B, 0xA9][..], "Linux RAID"),
        (size - 65536, &[0xFC, 0x4E, 0x2B, 0xA9], "Linux RAID"),
        (
            size - (128 << 10),
            &[0x0C, 0xB1, 0xBA, 0, 0, 0, 0, 0],
            "ZFS",
        ),
    ] {
        let file = fs::File::create(&path).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(bytes, at).unwrap();
        drop(file);
        let before = testkit::read_image(&path);
        let name = path.to_str().unwrap();
        for words in [
            &["mkfs", name][..],
            &["mkfs", "-E", "offset=1M", name],
            &["ls", name],
        ] {
            let said = error(&run(words));
            assert!(said.contains(word), "{words:?}: {said}");
            assert!(testkit::read_image(&path) == before);
        }
        ok(["mkfs", "-q", "-F", name]);
    }
}
