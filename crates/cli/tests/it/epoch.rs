//! With `SOURCE_DATE_EPOCH` the same changes give the same bytes, whenever they are made.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::fixture::{error, lanefs, mke2fs, ok, tool};

const EPOCH: i64 = 1_600_000_000;

/// One of each change; `TREE` is a directory of the host.
const SCRIPT: &str = "mkdir -p /a/b/c\ncp -r TREE /plain\ncp -a TREE /archive\ncp TREE/big /grown\n\
    mv /old /a/moved\nln /a/moved /hard\nln -s ../x /a/soft\nchmod 4711 /grown\nchown 5:6 /a\ntouch /new /grown\n\
    touch -d @1234567890.5 /a/b\ntouch -d @1700000000 /a/b/c\ntruncate -s 5000 /grown\nsetfattr -n user.k -v v /new\n\
    chattr +i /a/soft-not\nrm -r /gone\nrm /short\n";

/// Changes an image by every command there is; the image as bytes.
fn changed(folder: &Path, name: &str, options: &[&str]) -> Vec<u8> {
    let (tree, image) = (folder.join("tree"), folder.join(name));
    fs::copy(folder.join("before.img"), &image).unwrap();
    let script = SCRIPT.replace("TREE", tree.to_str().unwrap());
    let script = script.replace("/a/soft-not", "/new");
    fs::write(folder.join("script"), script).unwrap();
    let path = image.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = lanefs();
        command.env("SOURCE_DATE_EPOCH", EPOCH.to_string());
        tool(command.args(arguments));
    };
    let script = folder.join("script");
    run(&[&["edit"], options, &[path, script.to_str().unwrap()]].concat());
    let at = |place: &str| format!("{path}:{place}");
    for directory in 0..20 {
        run(&["mkdir", &at(&format!("/many{directory}"))]);
    }
    run(&["cp", "-rp", tree.to_str().unwrap(), &at("/again")]);
    run(&["rm", "-r", &at("/again")]);
    run(&["tune", path, "label=later"]);
    testkit::read_image(&image)
}

#[test]
fn the_same_changes_at_two_moments_give_the_same_bytes() {
    if !testkit::have("mke2fs") {
        return testkit::skip("mke2fs is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, tree) = (folder.path().join("source"), folder.path().join("tree"));
    fs::create_dir_all(source.join("gone/deep")).unwrap();
    fs::create_dir_all(tree.join("sub")).unwrap();
    for (name, len) in [("old", 10), ("short", 3), ("gone/deep/file", 9000)] {
        fs::write(source.join(name), vec![7; len]).unwrap();
    }
    for (name, len) in [("big", 300_000), ("sub/small", 10)] {
        fs::write(tree.join(name), vec![9; len]).unwrap();
    }
    mke2fs(&source, &folder.path().join("before.img"));
    for options in [&[][..], &["--atomic"]] {
        let first = changed(folder.path(), "first.img", options);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        // Reading the tree changed its times of access, too.
        fs::read(tree.join("big")).unwrap();
        let second = changed(folder.path(), "second.img", options);
        let differs = first
            .iter()
            .zip(&second)
            .position(|(one, other)| one != other);
        assert_eq!(differs, None, "{options:?}: the first byte that differs");
        testkit::e2fsck(&folder.path().join("second.img"));
    }
    let image = folder.path().join("second.img");
    let asked = ok(["stat", "--json", &format!("{}:/a/b/c", image.display())]);
    assert!(asked.contains("2023-11-14T22:13:20"), "{asked}");
    let dumpe2fs = testkit::dumpe2fs(&["-h".as_ref(), image.as_os_str()]);
    let dumpe2fs = String::from_utf8_lossy(&dumpe2fs.stdout);
    for line in ["Last mount time", "Last write time"] {
        let line = dumpe2fs
            .lines()
            .find(|found| found.starts_with(line))
            .unwrap();
        assert!(line.ends_with("Sun Sep 13 12:26:40 2020"), "{line}");
    }
    let moved = ok(["stat", "--json", &format!("{}:/a/moved", image.display())]);
    assert!(moved.contains("2020-09-13T12:26:40"), "{moved}");
}

#[test]
fn a_moment_that_is_none_is_a_usage_error_before_anything_is_changed() {
    if !testkit::have("mke2fs") {
        return testkit::skip("mke2fs is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("disk.img"));
    fs::create_dir(&source).unwrap();
    mke2fs(&source, &image);
    let before = testkit::read_image(&image);
    let (path, place) = (image.to_str().unwrap(), format!("{}:/x", image.display()));
    let source = source.to_str().unwrap();
    let new = folder.path().join("new.img");
    let new = new.to_str().unwrap();
    for moment in ["", "now", "1.5", "99999999999", "-9999999999", "12 "] {
        let all: [&[&str]; 6] = [
            &["mkdir", &place],
            &["cp", "-r", source, &place],
            &["edit", path, "/dev/null"],
            &["tune", path, "label=x"],
            &["mkfs", new, "8M"],
            &["build", source, new],
        ];
        for arguments in all {
            let output = lanefs()
                .env("SOURCE_DATE_EPOCH", moment)
                .args(arguments)
                .output();
            let output = output.unwrap();
            let said = error(&output);
            assert_eq!(
                output.status.code(),
                Some(2),
                "{arguments:?} {moment:?}: {said}"
            );
            assert!(said.contains("SOURCE_DATE_EPOCH"), "{said}");
        }
    }
    assert!(before == testkit::read_image(&image));
    assert!(!Path::new(new).exists());
}

#[test]
fn mkfs_makes_the_same_bytes_at_two_moments_unless_a_random_uuid_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = |name: &str, options: &[&str]| {
        let mut command = lanefs();
        command.env("SOURCE_DATE_EPOCH", EPOCH.to_string());
        let command = command.args(["mkfs", "-q"]).args(options);
        tool(command.arg(path(name)).arg("20M"));
        fs::read(path(name)).unwrap()
    };
    for options in [
        &[][..],
        &["-t", "ext2"],
        &["-t", "ext3", "-L", "label"],
        &["-O", "fast_commit,casefold", "-b", "4096"],
        &["-O", "bigalloc", "-N", "5000"],
        &["-O", "^metadata_csum", "-I", "128"],
        &["-O", "journal_dev"],
    ] {
        let first = made("first", options);
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(first == made("second", options), "{options:?}");
        if testkit::have("e2fsck") && !options.contains(&"journal_dev") {
            testkit::e2fsck(&path("second"));
        }
        for name in ["first", "second"] {
            fs::remove_file(path(name)).unwrap();
        }
    }
    let uuid = |bytes: &[u8]| bytes[1024 + 104..1024 + 120].to_vec();
    let (plain, label) = (made("a", &[]), made("b", &["-L", "other"]));
    assert_ne!(uuid(&plain), uuid(&label));
    let (one, other) = (made("c", &["-U", "random"]), made("d", &["-U", "random"]));
    assert_ne!(uuid(&one), uuid(&other));
}

/// Builds an image from a tar, read as a file or through a pipe; returns its bytes.
fn built_from_tar(folder: &Path, tar: &Path, through_pipe: bool, options: &[&str]) -> Vec<u8> {
    let image = folder.join("built");
    let mut command = lanefs();
    command
        .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
        .args(["build", "-q"])
        .args(options);
    let mut cat = None;
    if through_pipe {
        let mut child = Command::new("cat")
            .arg(tar)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        command.arg("-").stdin(child.stdout.take().unwrap());
        cat = Some(child);
    } else {
        command.arg(tar);
    }
    tool(command.arg(&image));
    if let Some(mut child) = cat {
        assert!(child.wait().unwrap().success());
    }
    testkit::read_image(&image)
}

#[test]
fn a_pipe_gives_the_same_bytes_twice_and_the_identity_that_a_file_gives() {
    if !testkit::have("tar") || !testkit::have("cat") {
        return testkit::skip("tar and cat are needed");
    }
    let folder = tempfile::tempdir().unwrap();
    let (tree, tar) = (folder.path().join("tree"), folder.path().join("tree.tar"));
    fs::create_dir(&tree).unwrap();
    for number in 0..300 {
        fs::write(tree.join(format!("file{number}")), vec![7; number * 10]).unwrap();
    }
    tool(
        Command::new("tar")
            .arg("-cf")
            .arg(&tar)
            .arg("-C")
            .arg(&tree)
            .arg("."),
    );
    // The UUID and the hash seed of directories.
    let identity = |image: &[u8]| {
        let superblock = &image[1024..2048];
        (
            superblock[0x68..0x78].to_vec(),
            superblock[0xec..0xfc].to_vec(),
        )
    };
    for options in [
        &["--size", "auto"][..],
        &["--size", "min"],
        &["--size", "32M"],
        &["--size", "16M", "-O", "^flex_bg", "-b", "1024"],
    ] {
        let of_pipe = built_from_tar(folder.path(), &tar, true, options);
        let again = built_from_tar(folder.path(), &tar, true, options);
        assert!(of_pipe == again, "{options:?}: two pipes differ");
        let of_file = built_from_tar(folder.path(), &tar, false, options);
        assert_eq!(identity(&of_pipe), identity(&of_file), "{options:?}");
    }
}

#[test]
fn times_that_small_inodes_can_not_hold_are_said_to_be_cut_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for name in ["a", "b"] {
        let file = fs::File::create(tree.join(name)).unwrap();
        let late = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 32);
        file.set_modified(late).unwrap();
    }
    let (small, large, built) = (path("small"), path("large"), path("built"));
    let warned = |epoch: &str, arguments: &[&str]| {
        let mut command = lanefs();
        let output = command
            .env("SOURCE_DATE_EPOCH", epoch)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", error(&output));
        error(&output)
            .matches("hold no times after 2038-01-19")
            .count()
    };
    let now = "1600000000";
    let tree = tree.to_str().unwrap();
    assert_eq!(warned(now, &["mkfs", "-I", "128", &small, "16M"]), 1);
    assert_eq!(warned(now, &["mkfs", &large, "16M"]), 0);
    assert_eq!(warned(now, &["build", "-I", "128", tree, &built]), 1);
    for (image, expected) in [(&small, 1), (&large, 0)] {
        let at = |name: &str| format!("{image}:/{name}");
        let file = format!("{tree}/a");
        assert_eq!(warned(now, &["cp", &file, &at("")]), 0);
        assert_eq!(
            warned("4294967296", &["cp", "-p", &file, &at("")]),
            expected
        );
        assert_eq!(warned("4294967296", &["mkdir", &at("d")]), expected);
        let touched = ["touch", "-d", "2050-01-01", &at("a"), &at("b")];
        assert_eq!(warned(now, &touched), expected);
        assert_eq!(warned(now, &["touch", "-d", "2037-01-01", &at("a")]), 0);
    }
}
