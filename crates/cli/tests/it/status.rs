//! Exit statuses, and messages that say what, where, and what to do.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::fixture::{Fixture, error, lanefs, mke2fs, ok, run};

#[test]
fn what_makes_no_sense_is_usage() {
    for arguments in [
        &["frobnicate"][..],
        &["ls"],
        &["ls", "--offset", "1", "--partition", "1", "x"],
        &["ls", "--offset", "many", "x"],
        &["extract", "x"],
        &["-q", "-v", "ls", "x"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    assert_eq!(run(["--version"]).status.code(), Some(0));
}

#[test]
fn check_mount_and_umount_answer_nonsense_as_fsck_and_mount_do() {
    for (arguments, status) in [
        (&["check"][..], 16),
        (&["check", "--bogus", "x"], 16),
        (&["-q", "check", "-p", "-y", "x"], 16),
        (&["mount"], 1),
        (&["mount", "--bogus", "x", "y"], 1),
        (&["umount"], 1),
        (&["ls", "--bogus", "check"], 2),
        (&["bogus", "check"], 2),
        (&["-q", "bogus", "umount"], 2),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_uri_is_named_as_a_whole_and_an_image_is_not_written_to_standard_output() {
    let output = run(["ls", "http://localhost:/disk.img"]);
    assert_eq!(output.status.code(), Some(1));
    let said = error(&output);
    assert!(
        said.contains("http://localhost:/disk.img") && said.contains("local files"),
        "{said}"
    );

    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("tree")).unwrap();
    for arguments in [&["build", "tree", "-"][..], &["mkfs", "-", "16M"]] {
        let output = lanefs()
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = error(&output);
        assert!(said.contains("standard output"), "{said}");
        assert!(!folder.path().join("-").exists(), "{arguments:?}");
    }
}

#[test]
fn an_image_that_is_not_there_is_named() {
    let output = run(["ls", "/nowhere/disk.img"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("/nowhere/disk.img"),
        "{}",
        error(&output)
    );
}

#[test]
fn a_path_that_is_not_there_is_named_and_the_others_are_shown() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let output = run(["cat", &fixture.at("/missing"), &fixture.at("/hello.txt")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("/missing: no such file or directory"),
        "{}",
        error(&output)
    );
    assert_eq!(output.stdout, b"hello, ext4\n");
    let image = fixture.image.to_str().unwrap();
    let output = run(["df", "/nowhere/disk.img", image]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("/nowhere/disk.img"));
    assert!(String::from_utf8_lossy(&output.stdout).contains(image));
}

/// A name, where its signature lies, the signature, what it is called, and what the hint holds.
type Foreign = (
    &'static str,
    usize,
    &'static [u8],
    &'static str,
    &'static str,
);

const OTHERS: &str = "ext2, ext3 and ext4 only";

#[rustfmt::skip]
const FOREIGN: &[Foreign] = &[
    ("a.qcow2", 0, b"QFI\xfb", "a qcow2 disk image", "qemu-img convert -O raw"),
    ("a.vmdk", 0, b"KDMV", "a VMDK disk image", "qemu-img convert -O raw"),
    ("a.vdi", 0x40, b"\x7f\x10\xda\xbe", "a VDI disk image", "qemu-img convert"),
    ("a.vhdx", 0, b"vhdxfile", "a VHDX disk image", "qemu-img convert"),
    ("a.luks", 0, b"LUKS\xba\xbe", "a LUKS encrypted volume", "cryptsetup open"),
    ("a.btrfs", 0x1_0040, b"_BHRfS_M", "a btrfs file system", OTHERS),
    ("a.xfs", 0, b"XFSB", "an XFS file system", OTHERS),
    ("a.squashfs", 0, b"hsqs", "a squashfs file system", OTHERS),
    ("a.erofs", 1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system", OTHERS),
    ("a.img.gz", 0, b"\x1f\x8b\x08", "a gzip file", "gzip -dk"),
    ("a.img.xz", 0, b"\xfd7zXZ\0", "an xz file", "xz -dk"),
    ("a.img.zst", 0, b"\x28\xb5\x2f\xfd", "a zstd file", "zstd -dk"),
    ("a.tar", 257, b"ustar", "a tar archive", "lanefs build"),
    ("zeros", 0, b"", "only zeros where a file system would begin", "lanefs mkfs"),
    ("noise", 0, &[0xA5; 4096], "not an ext2, ext3 or ext4", "--offset"),
];

#[test]
fn what_is_no_ext4_is_named_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    for (name, at, signature, what, next) in FOREIGN {
        let mut bytes = vec![0; 1 << 20];
        bytes[*at..at + signature.len()].copy_from_slice(signature);
        let path = folder.path().join(name);
        testkit::write_image(&path, &bytes);
        for command in ["ls", "info", "df"] {
            let output = run([command, path.to_str().unwrap()]);
            let said = error(&output);
            assert_eq!(output.status.code(), Some(1), "{command} {name}: {said}");
            assert!(
                said.contains(what) && said.contains(name),
                "{command} {name}: {said}"
            );
            assert!(said.contains(next), "{command} {name}: {said}");
        }
    }
}

#[test]
fn a_lost_superblock_is_told_and_what_is_something_else_now_stays_that() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let mut bytes = testkit::read_image(&fixture.image);
    bytes[1024..1536].fill(0);
    testkit::write_image(&fixture.image, &bytes);
    let output = run(["ls", &fixture.at("/hello.txt")]);
    assert!(output.status.success(), "{}", error(&output));
    assert!(error(&output).contains("superblock is damaged"));
    assert!(testkit::read_image(&fixture.image) == bytes);
    // As mkswap leaves it: the descriptors of the file system are still there.
    bytes[4086..4096].copy_from_slice(b"SWAPSPACE2");
    testkit::write_image(&fixture.image, &bytes);
    let output = run(["touch", &fixture.at("/hello.txt")]);
    assert_eq!(output.status.code(), Some(1));
    let said = error(&output);
    assert!(said.contains("swap space"), "{said}");
    assert!(testkit::read_image(&fixture.image) == bytes);
    // And made whole again by the first change.
    bytes[4086..4096].fill(0);
    testkit::write_image(&fixture.image, &bytes);
    ok(["touch", &fixture.at("/hello.txt")]);
    testkit::e2fsck(&fixture.image);
}

#[test]
fn empty_and_short_files_and_a_directory_are_said_to_be_that() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, short) = (folder.path().join("empty"), folder.path().join("short"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&short, [0; 1000]).unwrap();
    for (path, part, hint) in [
        (empty.as_path(), "it is empty", "lanefs mkfs"),
        (
            &short,
            "1000 bytes, too few for a file system",
            "copy or download",
        ),
        (folder.path(), "a directory", ""),
    ] {
        for command in ["ls", "info", "check", "df"] {
            let output = run([std::ffi::OsStr::new(command), path.as_os_str()]);
            let said = error(&output);
            assert!(!output.status.success(), "{command}: {said}");
            assert!(
                said.contains(part) && said.contains(hint),
                "{command}: {said}"
            );
            assert_eq!(
                said.contains("lanefs mkfs"),
                path == empty,
                "{command}: {said}"
            );
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error_to_talk_about() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let mut child = lanefs()
        .args(["cat", &fixture.at("/big")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(error(&output), "");
}

#[test]
fn output_to_a_full_disk_is_an_error() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = lanefs()
        .args(["ls", "-l", &fixture.at("/")])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("standard output"),
        "{}",
        error(&output)
    );
}

#[test]
fn nothing_that_goes_into_a_pipe_is_colored() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    for command in ["ls", "tree", "info", "map"] {
        let output = run([command, &fixture.image.to_string_lossy()]);
        assert!(output.status.success(), "{}", error(&output));
        assert!(!output.stdout.contains(&0x1B), "{command}");
    }
}

/// Copies a file out of an image under a limit on file sizes, because some host file systems can hold 2^60 bytes.
fn limited_copy(inside: &str, copy: &Path) -> Output {
    Command::new("prlimit")
        .arg("--fsize=1000000")
        .arg(lanefs().get_program())
        .args(["cp", inside])
        .arg(copy)
        .output()
        .unwrap()
}

/// A directory with a name in its own depths, and one whose first block holds a name with a slash: every command goes
/// on, and says which path and block.
#[test]
fn damaged_directories_are_named_by_path_and_block() {
    let has_programs = || testkit::have("debugfs") && testkit::have("prlimit");
    let Some(fixture) = Fixture::new().filter(|_| has_programs()) else {
        return testkit::skip("debugfs and prlimit are needed");
    };
    let image = fixture.path("small.img");
    let small = fixture.path("small");
    std::fs::create_dir_all(small.join("a/b")).unwrap();
    std::fs::write(small.join("marker-name"), "").unwrap();
    std::fs::write(small.join("a/other"), "").unwrap();
    mke2fs(&small, &image);
    let name = image.to_str().unwrap();
    testkit::debugfs(&["-w", "-R", "link a a/b/loop", name]);
    testkit::debugfs(&["-w", "-R", "feature ^metadata_csum", name]);
    let mut bytes = testkit::read_image(&image);
    let at = bytes
        .windows(11)
        .position(|window| window == b"marker-name")
        .unwrap();
    bytes[at] = b'/';
    testkit::write_image(&image, &bytes);
    let block = format!(
        "/: corrupt image: a directory entry's name is empty or holds a slash or NUL (inode 2, block {}",
        at / 1024
    );
    for command in ["find", "tree", "du", "ls", "extract"] {
        let mut arguments = vec![command, name];
        match command {
            "ls" => arguments.push("-R"),
            "extract" => arguments.push("-"),
            _ => (),
        }
        let output = run(arguments);
        let said = error(&output);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains(&block), "{command}: {said} lacks {block}");
        assert!(
            said.contains("/a/b/loop: a directory that is also elsewhere"),
            "{command}: {said}"
        );
        let found = output.stdout.windows(5).any(|window| window == b"other");
        assert!(found || command == "du", "{command} stopped");
    }
    // A single file goes by the name that it has in the image.
    testkit::debugfs(&[
        "-w",
        "-R",
        "set_inode_field a/other i_size 1152921504606846976",
        name,
    ]);
    let (inside, copy) = (format!("{name}:/a/other"), fixture.path("here/copy"));
    std::fs::create_dir(fixture.path("here")).unwrap();
    std::fs::write(&copy, "old").unwrap();
    let output = limited_copy(&inside, &copy);
    let said = error(&output);
    assert!(
        said.contains("small.img: /a/other: writing copy failed"),
        "{said}"
    );
    // What it would have replaced is there, and no half of the new one.
    assert_eq!(std::fs::read(&copy).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(fixture.path("here")).unwrap().count(), 1);
    std::fs::remove_file(&copy).unwrap();
    assert_eq!(limited_copy(&inside, &copy).status.code(), Some(1));
    assert!(!copy.exists());
}

#[test]
fn a_lookup_through_an_index_names_the_damaged_block() {
    let Some(fixture) = Fixture::new().filter(|_| testkit::have("debugfs")) else {
        return testkit::skip("debugfs is needed");
    };
    let (image, tree) = (fixture.path("index.img"), fixture.path("index"));
    std::fs::create_dir(&tree).unwrap();
    for number in 1000..3000 {
        std::fs::write(tree.join(format!("name-{number}")), "").unwrap();
    }
    ok([
        "build",
        "-q",
        "-O",
        "^metadata_csum,^metadata_csum_seed,^orphan_file",
        tree.to_str().unwrap(),
        image.to_str().unwrap(),
    ]);
    let mut bytes = testkit::read_image(&image);
    let name = b"name-2345";
    let at = bytes
        .windows(9)
        .position(|window| window == name)
        .expect("the name lies in a leaf");
    // A record of three bytes, four before its name.
    bytes[at - 4..at - 2].copy_from_slice(&[3, 0]);
    testkit::write_image(&image, &bytes);
    let output = run(["stat", &format!("{}:/name-2345", image.display())]);
    let said = error(&output);
    let place = format!("(inode 2, block {},", at / 4096);
    assert!(said.contains(&place), "{said} lacks {place}");
}

#[test]
fn of_two_entries_with_one_name_the_first_is_extracted_and_the_other_is_reported() {
    let Some(fixture) = Fixture::new().filter(|_| testkit::have("debugfs")) else {
        return testkit::skip("debugfs is needed");
    };
    let (image, tree) = (fixture.path("twins.img"), fixture.path("twins"));
    std::fs::create_dir_all(tree.join("below")).unwrap();
    std::fs::write(tree.join("below/marker-one"), "1").unwrap();
    std::fs::write(tree.join("below/marker-two"), "22").unwrap();
    mke2fs(&tree, &image);
    let name = image.to_str().unwrap();
    testkit::debugfs(&["-w", "-R", "feature ^metadata_csum", name]);
    let mut bytes = testkit::read_image(&image);
    let place = |bytes: &[u8], name: &[u8]| bytes.windows(10).position(|window| window == name);
    let (one, two) = (place(&bytes, b"marker-one"), place(&bytes, b"marker-two"));
    let first = if one < two { "1" } else { "22" };
    bytes[two.unwrap()..][..10].copy_from_slice(b"marker-one");
    testkit::write_image(&image, &bytes);
    let out = fixture.path("out");
    for options in [&["extract"][..], &["extract", "--overwrite"]] {
        let output = run([options, &[name, out.to_str().unwrap()]].concat());
        let said = error(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("/below: the directory has the name `marker-one` twice"),
            "{said}"
        );
        assert_eq!(
            std::fs::read_to_string(out.join("below/marker-one")).unwrap(),
            first
        );
    }
    let tar = fixture.path("out.tar");
    let output = run(["extract", name, tar.to_str().unwrap()]);
    assert!(error(&output).contains("twice"), "{}", error(&output));
    let listed = testkit::run("tar", &["-tf", tar.to_str().unwrap()]).stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    assert_eq!(listed.matches("marker-one").count(), 1, "{listed}");
}

/// The error for a missing journal device names the option that takes it.
#[test]
fn a_missing_external_journal_is_asked_for() {
    if !testkit::have("mke2fs") {
        return testkit::skip("mke2fs is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let journal = folder.path().join("journal");
    let [name, device] = [&image, &journal].map(|path| path.to_str().unwrap());
    ok([
        "mkfs",
        "-q",
        "-O",
        "journal_dev",
        "-b",
        "4096",
        device,
        "16M",
    ]);
    ok(["mkfs", "-q", "-J", &format!("device={device}"), name, "64M"]);
    // The state after a crash.
    testkit::debugfs(&["-w", "-R", "feature needs_recovery", name]);
    let output = run(["ls", name]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("--journal FILE"),
        "{}",
        error(&output)
    );
    assert!(ok(["ls", "--journal", device, name]).contains("lost+found"));
    assert!(ok(["ls", "--no-replay", name]).contains("lost+found"));
}

/// A name, where its signature lies, the signature, what it is called as a source of a build, and what is advised.
#[rustfmt::skip]
const SOURCES: &[Foreign] = &[
    ("a.qcow2", 0, b"QFI\xfb", "a qcow2 disk image", "qemu-img"),
    ("a.squashfs", 0, b"hsqs", "a squashfs file system", "unsquashfs"),
    ("a.iso", 0x8001, b"CD001", "an ISO 9660 file system", "directory"),
    ("a.xfs", 0, b"XFSB", "an XFS file system", "directory"),
    ("a.btrfs", 0x1_0040, b"_BHRfS_M", "a btrfs file system", "directory"),
    ("a.rpm", 0, b"\xed\xab\xee\xdb", "an RPM package", "rpm2archive"),
    ("a.deb", 0, b"!<arch>\ndebian-binary", "a Debian package", "dpkg-deb"),
    ("disk", 510, b"\x55\xaa", "a whole disk", "--partition"),
    ("script", 0, b"#!/bin/sh\n", "a script", "tars"),
];

/// Sources that are something else, as a file and through a pipe, and an image also compressed.
#[test]
fn a_source_that_is_no_archive_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (image, out, packed) = (path("disk.img"), path("out.img"), path("disk.img.gz"));
    ok(["mkfs", "-q", &image, "16M"]);
    let gzip = std::fs::File::create(&packed).unwrap();
    let gzip = Command::new("gzip")
        .arg("-c")
        .arg(&image)
        .stdout(gzip)
        .status();
    assert!(gzip.unwrap().success());
    let ext = "an ext2, ext3 or ext4 file system";
    let images = [&image, &packed].map(|name| (name.clone(), ext, "lanefs extract"));
    let others = SOURCES.iter().map(|(name, at, signature, what, next)| {
        let mut bytes = vec![0; 1 << 20];
        bytes[*at..at + signature.len()].copy_from_slice(signature);
        std::fs::write(path(name), bytes).unwrap();
        (path(name), *what, *next)
    });
    std::fs::write(&out, "kept").unwrap();
    for (source, what, next) in images.into_iter().chain(others) {
        let stdin = std::fs::File::open(&source).unwrap();
        let mut cat = Command::new("cat")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipe = cat.stdout.take().unwrap();
        let piped = lanefs()
            .args(["build", "-", &out])
            .stdin(pipe)
            .output()
            .unwrap();
        cat.wait().unwrap();
        for output in [run(["build", &source, &out]), piped] {
            let said = error(&output);
            assert_eq!(output.status.code(), Some(1), "{source}: {said}");
            assert!(
                said.contains(what) && said.contains(next),
                "{source}: {said}"
            );
        }
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "kept");
    }
    // A tar whose only file is an image is a tar.
    let (tar, here) = (path("image.tar"), folder.path().to_str().unwrap());
    testkit::run("tar", &["-cf", &tar, "-C", here, "disk.img"]);
    ok(["build", "-q", &tar, &out]);
}

#[test]
fn an_option_that_does_not_apply_is_refused_by_name() {
    for option in [
        &["--superblock", "1"][..],
        &["--no-replay"],
        &["--journal", "x"],
    ] {
        let words = [&["cp"][..], option, &["file", "image:/"]].concat();
        let output = run(words);
        assert_eq!(output.status.code(), Some(2));
        let said = error(&output);
        assert!(
            said.contains(&format!("{} is for reading only", option[0])),
            "{said}"
        );
    }
}
