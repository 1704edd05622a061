//! A command that fails for want of something on the host (room on its disk, room for what waits, the right to write)
//! leaves the image byte for byte as it was.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::SmallDisk;

use crate::fixture::{error, lanefs, ok};

const MIB: u64 = 1 << 20;

/// Every command that writes to an image; `IMAGE` and `FOLDER` are replaced. All need room that a sparse image has not
/// got yet, except those of [`WRITTEN_IN_PLACE`].
const WRITING: &[&str] = &[
    "cp FOLDER/small IMAGE:/etc/",
    "cp FOLDER/small IMAGE:/etc/motd",
    "cp FOLDER/large IMAGE:/etc/",
    "cp -r FOLDER/tree IMAGE:/new",
    "cp -a FOLDER/tree IMAGE:/etc/d",
    "mv IMAGE:/etc/motd IMAGE:/moved",
    "rm IMAGE:/etc/motd",
    "rm -r IMAGE:/etc",
    "mkdir IMAGE:/new",
    "mkdir -p IMAGE:/new/a/b",
    "ln IMAGE:/etc/motd IMAGE:/hard",
    "ln -s target IMAGE:/soft",
    "chmod -R 700 IMAGE:/etc",
    "chown 1:1 IMAGE:/etc/motd",
    "touch IMAGE:/new",
    "truncate -s 1M IMAGE:/etc/motd",
    "setfattr -n user.x -v y IMAGE:/etc/motd",
    "chattr +i IMAGE:/etc/motd",
    "edit IMAGE FOLDER/script",
    "edit --atomic IMAGE FOLDER/script",
    "mkfs -F -O ^resize_inode -E lazy_itable_init=0,nodiscard IMAGE 60M",
    "mkfs -F -b 1024 IMAGE 2G",
    "build FOLDER/tree IMAGE",
    "build --size 50M FOLDER/tree IMAGE",
    "tune IMAGE label=x",
];

/// Commands that write only what the image has room for already.
const WRITTEN_IN_PLACE: &[&str] = &["tune IMAGE label=x"];

fn words(line: &str, image: &Path, folder: &Path) -> Vec<String> {
    let (image, folder) = (image.to_str().unwrap(), folder.to_str().unwrap());
    let words = line.split(' ');
    words
        .map(|word| word.replace("FOLDER", folder).replace("IMAGE", image))
        .collect()
}

fn prepare(folder: &Path) {
    let path = |name: &str| folder.join(name);
    fs::create_dir_all(path("root/etc/d")).unwrap();
    fs::write(path("root/etc/motd"), "hi\n").unwrap();
    fs::create_dir_all(path("tree/a")).unwrap();
    fs::write(path("small"), "x").unwrap();
    fs::write(path("large"), vec![7; 20 << 20]).unwrap();
    fs::write(path("tree/a/first"), vec![1; 1 << 20]).unwrap();
    fs::write(path("tree/a/second"), vec![2; 1 << 20]).unwrap();
    symlink("first", path("tree/a/link")).unwrap();
    fs::write(
        path("script"),
        "mkdir /x\ncp FOLDER/small /x/\nrm /etc/motd\n",
    )
    .unwrap();
    let script = fs::read_to_string(path("script")).unwrap();
    let script = script.replace("FOLDER", folder.to_str().unwrap());
    fs::write(path("script"), script).unwrap();
}

/// The file in a disk that takes the room which the image leaves.
fn filler(disk: &Path) -> PathBuf {
    disk.join("filler")
}

fn fill(disk: &Path) {
    let filler = fs::File::create(filler(disk)).unwrap();
    let block = [1; 4096];
    let mut at = 0;
    while std::os::unix::fs::FileExt::write_at(&filler, &block, at).is_ok() {
        at += 4096;
    }
}

/// Gives a sparse image its bytes back, and the disk the room that it then has.
fn restore(image: &Path, bytes: &[u8]) {
    fs::remove_file(image).unwrap();
    let file = fs::File::create(image).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (number, part) in bytes.chunks(4096).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            std::os::unix::fs::FileExt::write_all_at(&file, part, number as u64 * 4096).unwrap();
        }
    }
    fill(image.parent().unwrap());
}

/// Runs each command, which must fail and leave the image as it is; all that was otherwise.
fn violations(image: &Path, folder: &Path, may_succeed: &[&str]) -> Vec<String> {
    let before = testkit::read_image(image);
    let mut wrong = Vec::new();
    for line in WRITING {
        let output = lanefs().args(words(line, image, folder)).output().unwrap();
        let said = error(&output);
        if output.status.success() {
            if !may_succeed.contains(line) {
                wrong.push(format!("{line}: succeeded"));
            }
            restore(image, &before);
            continue;
        }
        if testkit::read_image(image) != before {
            wrong.push(format!("{line} changed the image: {said}"));
            restore(image, &before);
        }
        if !said.contains("error: ") || said.contains("panicked") {
            wrong.push(format!("{line}: said {said}"));
        }
    }
    wrong
}

#[test]
fn a_full_or_read_only_disk_of_the_host_leaves_every_image_as_it_was() {
    change_on_a_full_disk(&["-t", "ext4", "-b", "4096"]);
}

#[test]
#[ignore = "a minute: cargo xtask suites long"]
fn many_commands_on_a_full_disk_leave_an_image_without_a_journal_as_it_was() {
    change_on_a_full_disk(&["-t", "ext2", "-b", "1024"]);
}

/// Runs all commands that change an image of this kind, on a disk that is full and on one that is read-only.
fn change_on_a_full_disk(kind: &[&str]) {
    if !testkit::is_root() || !testkit::have("mke2fs") {
        return testkit::skip("a disk of the host is made by root, and the image by mke2fs");
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let at = folder.path().join("disk");
    fs::create_dir(&at).unwrap();
    let disk = SmallDisk::mount(&at, "24m").unwrap();
    let image = at.join("image");
    let source = folder.path().join("root");
    let (from, to) = (source.to_str().unwrap(), image.to_str().unwrap());
    testkit::mke2fs(&[&["-m", "0"][..], kind, &["-d", from, to, "48M"]].concat());
    fill(&at);
    // Without a journal most changes stay in blocks that the image has.
    let may_succeed = if kind.contains(&"ext2") {
        WRITING
    } else {
        WRITTEN_IN_PLACE
    };
    let wrong = violations(&image, folder.path(), may_succeed);
    assert!(wrong.is_empty(), "{kind:?}, full:\n{}", wrong.join("\n"));
    disk.remount("ro").unwrap();
    let wrong = violations(&image, folder.path(), &[]);
    disk.remount("rw").unwrap();
    assert!(
        wrong.is_empty(),
        "{kind:?}, read-only:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_limit_of_file_sizes_leaves_the_image_as_it_was() {
    if !testkit::have("mke2fs") || !testkit::have("prlimit") {
        return testkit::skip("needs mke2fs and prlimit");
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let image = folder.path().join("image");
    testkit::mke2fs(&["-t", "ext4", image.to_str().unwrap(), "48M"]);
    let before = testkit::read_image(&image);
    let program = lanefs().get_program().to_owned();
    for line in [
        "mkdir IMAGE:/new",
        "cp -r FOLDER/tree IMAGE:/new",
        "mkfs -F IMAGE 40M",
    ] {
        let limited = Command::new("prlimit")
            .arg(format!("--fsize={}", 8 * MIB))
            .arg(&program)
            .args(words(line, &image, folder.path()))
            .output()
            .unwrap();
        assert!(!limited.status.success(), "{line}");
        assert!(
            error(&limited).contains("File too large"),
            "{line}: {}",
            error(&limited)
        );
        assert!(
            testkit::read_image(&image) == before,
            "{line} changed the image"
        );
    }
}

/// Streams more than fits memory into the image.
fn stream(image: &Path, bytes: usize, spool: &Path) -> Output {
    let mut command = lanefs();
    command
        .args(["cp", "-"])
        .arg(format!("{}:/new", image.display()));
    command
        .env("TMPDIR", spool)
        .stdin(std::process::Stdio::piped());
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let data = vec![7; 1 << 20];
    for _ in 0..bytes >> 20 {
        // A command that fails early reads no more.
        if std::io::Write::write_all(&mut input, &data).is_err() {
            break;
        }
    }
    drop(input);
    child.wait_with_output().unwrap()
}

#[test]
fn more_than_waits_in_memory_changes_nothing_either_until_all_of_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (image, spool) = (folder.path().join("image"), folder.path().join("spool"));
    fs::create_dir(&spool).unwrap();
    ok(["mkfs", "-q", image.to_str().unwrap(), "120M"]);
    let before = testkit::read_image(&image);
    let output = stream(&image, 130 << 20, &spool);
    assert!(!output.status.success());
    assert!(
        error(&output).contains("no space left"),
        "{}",
        error(&output)
    );
    assert!(testkit::read_image(&image) == before, "{}", error(&output));
    let output = stream(&image, 90 << 20, &folder.path().join("nowhere"));
    assert!(!output.status.success());
    assert!(error(&output).contains("TMPDIR"), "{}", error(&output));
    assert!(testkit::read_image(&image) == before, "{}", error(&output));
    let output = stream(&image, 90 << 20, &spool);
    assert!(output.status.success(), "{}", error(&output));
    assert!(fs::read_dir(&spool).unwrap().next().is_none());
    if testkit::have("e2fsck") {
        testkit::e2fsck(&image);
    }
    let copied = lanefs()
        .arg("cat")
        .arg(format!("{}:/new", image.display()))
        .output()
        .unwrap();
    assert!(copied.stdout == vec![7; 90 << 20]);
}
