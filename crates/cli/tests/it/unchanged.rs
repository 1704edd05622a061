//! A command that fails, that only asks, or that changes nothing, leaves the image byte for byte as it was.

use std::fs;
use std::path::Path;

use testkit::have;

use crate::fixture::{error, lanefs};

const MIB: usize = 1 << 20;

/// Commands that fail. `FULL` is more than the image holds.
const FAILING: &[&str] = &[
    "cp FULL IMAGE:/etc/",
    "cp FULL IMAGE:/etc/motd",
    "cp -r FOLDER/tree IMAGE:/new",
    "cp FOLDER/nowhere IMAGE:/etc/",
    "cp FOLDER/small IMAGE:/no/dir/",
    "cp FOLDER/small IMAGE:/etc/motd/x",
    "cp FOLDER/tree IMAGE:/x",
    "rm IMAGE:/nothing",
    "rm IMAGE:/etc",
    "rm -d IMAGE:/etc",
    "mkdir IMAGE:/etc",
    "mkdir IMAGE:/no/dir",
    "mkdir -p IMAGE:/new/LONG",
    "mv IMAGE:/etc IMAGE:/etc/d/",
    "mv IMAGE:/nothing IMAGE:/x",
    "mv IMAGE:/etc/motd IMAGE:/no/x",
    "ln IMAGE:/etc IMAGE:/x",
    "ln -s target IMAGE:/etc/motd",
    "chmod 644 IMAGE:/nothing",
    "chown 1:1 IMAGE:/nothing",
    "touch IMAGE:/no/x",
    "truncate -s 1 IMAGE:/etc",
    "truncate -s 99999999999999 IMAGE:/etc/motd",
    "setfattr -n user.x -v y IMAGE:/nothing",
    "setfattr -x user.none IMAGE:/etc/motd",
    "setfattr -n nonsense -v y IMAGE:/etc/motd",
    "chattr +i IMAGE:/nothing",
    "edit IMAGE FOLDER/wrong",
    "edit IMAGE FOLDER/fails",
    "edit --atomic IMAGE FOLDER/late",
    "tune IMAGE nonsense=1",
    "tune IMAGE label=a label_that_is_not",
    "tune IMAGE errors=nonsense",
    "mkfs IMAGE 8M",
    "mkfs -F IMAGE 1K",
    "mkfs -F -O nonsense IMAGE",
    "build FOLDER/nowhere IMAGE",
    "build --size 1M FOLDER/tree IMAGE",
    "mount IMAGE FOLDER/nowhere",
    "mount IMAGE FOLDER/small",
];

/// Commands that succeed and change nothing.
const ASKING: &[&str] = &[
    "ls -lR IMAGE",
    "tree IMAGE",
    "cat IMAGE:/etc/motd",
    "stat IMAGE:/etc",
    "find IMAGE",
    "du IMAGE",
    "df IMAGE",
    "info IMAGE",
    "map IMAGE",
    "dump IMAGE superblock",
    "tune IMAGE",
    "tune IMAGE label",
    "mkfs -n -F IMAGE",
    "rm -f IMAGE:/nothing",
    "mkdir -p IMAGE:/etc/d",
    "touch -c IMAGE:/nothing",
    "cp -n FOLDER/small IMAGE:/etc/motd",
    "edit IMAGE /dev/null",
];

/// Replaces the words of a command by names.
fn words(line: &str, image: &Path, folder: &Path) -> Vec<String> {
    let (image, folder) = (image.to_str().unwrap(), folder.to_str().unwrap());
    let replaced = |word: &str| {
        let full = word
            .replace("FULL", "FOLDER/full")
            .replace("FOLDER", folder);
        full.replace("IMAGE", image)
            .replace("LONG", &"n".repeat(256))
    };
    line.split(' ').map(replaced).collect()
}

fn prepare(folder: &Path) {
    let path = |name: &str| folder.join(name);
    fs::create_dir_all(path("root/etc/d")).unwrap();
    fs::write(path("root/etc/motd"), "hi\n").unwrap();
    fs::create_dir_all(path("tree/a")).unwrap();
    fs::write(path("small"), "x").unwrap();
    // Not zeros: they would be holes on some hosts.
    fs::write(path("full"), vec![7; 40 * MIB]).unwrap();
    fs::write(path("tree/a/first"), vec![1; MIB]).unwrap();
    fs::write(path("tree/a/second"), vec![2; 40 * MIB]).unwrap();
    fs::write(path("wrong"), "mkdir /x\nnonsense\n").unwrap();
    fs::write(path("fails"), "mkdir /etc\nmkdir /x\n").unwrap();
    fs::write(path("late"), "mkdir /x\nrm /nothing\n").unwrap();
}

#[test]
fn a_command_that_fails_or_changes_nothing_changes_no_byte() {
    if !have("mke2fs") || !have("debugfs") {
        return testkit::skip("needs mke2fs and debugfs");
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let image = folder.join("image");
    let kinds: [(&str, &[&str]); 3] = [
        ("ext4", &[]),
        ("ext2", &["-t", "ext2"]),
        ("dirty", &["-t", "ext4", "-O", "orphan_file"]),
    ];
    for (kind, options) in kinds {
        let source = folder.join("root");
        let (from, to) = (source.to_str().unwrap(), image.to_str().unwrap());
        let _ = fs::remove_file(&image);
        testkit::mke2fs(&[options, &["-d", from, to, "24M"]].concat());
        if kind == "dirty" {
            testkit::debugfs(&["-w", "-R", "feature needs_recovery", to]);
        }
        let before = testkit::read_image(&image);
        let mut wrong = Vec::new();
        let commands = FAILING.iter().map(|line| (line, false));
        for (line, succeeds) in commands.chain(ASKING.iter().map(|line| (line, true))) {
            let output = lanefs().args(words(line, &image, folder)).output().unwrap();
            let said = error(&output);
            if output.status.success() != succeeds {
                wrong.push(format!("{kind}: {line}: {}: {said}", output.status));
            }
            if testkit::read_image(&image) != before {
                wrong.push(format!("{kind}: {line} changed the image: {said}"));
                fs::write(&image, &before).unwrap();
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn a_stream_that_does_not_fit_leaves_no_byte() {
    if !have("mke2fs") {
        return testkit::skip("needs mke2fs");
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let image = folder.path().join("image");
    testkit::mke2fs(&["-t", "ext4", image.to_str().unwrap(), "24M"]);
    let before = testkit::read_image(&image);
    let full = fs::File::open(folder.path().join("full")).unwrap();
    let command = words("cp - IMAGE:/x", &image, folder.path());
    let output = lanefs().args(command).stdin(full).output().unwrap();
    assert!(!output.status.success());
    assert!(testkit::read_image(&image) == before, "{}", error(&output));
}

#[test]
fn a_tree_that_can_not_fit_is_refused_before_it_is_copied_however_large() {
    if !have("mke2fs") {
        return testkit::skip("needs mke2fs");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::mke2fs(&["-t", "ext4", image.to_str().unwrap(), "128M"]);
    // More than waits in memory, in two files of which one fits.
    fs::create_dir(folder.path().join("tree")).unwrap();
    for name in ["tree/a", "tree/b"] {
        fs::write(folder.path().join(name), vec![7; 80 * MIB]).unwrap();
    }
    let before = testkit::read_image(&image);
    let command = words("cp -r FOLDER/tree IMAGE:/tree", &image, folder.path());
    let output = lanefs().args(command).output().unwrap();
    assert!(!output.status.success());
    assert!(testkit::read_image(&image) == before, "{}", error(&output));
    let command = words("cp FOLDER/tree/a IMAGE:/a", &image, folder.path());
    assert!(lanefs().args(command).output().unwrap().status.success());
    testkit::e2fsck(&image);
}

#[test]
fn operands_before_the_one_that_fails_are_done() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let run = |line: &str| {
        let output = lanefs()
            .args(words(line, &image, folder.path()))
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    assert!(run("mkfs -q IMAGE 16M").0);
    assert!(!run("mkdir IMAGE:/a IMAGE:/no/b IMAGE:/c").0);
    fs::write(
        folder.path().join("script"),
        "mkdir /d\nrm /nothing\nmkdir /e\n",
    )
    .unwrap();
    assert!(!run("edit IMAGE FOLDER/script").0);
    assert_eq!(run("ls IMAGE").1, "a\nd\nlost+found\n");
}
