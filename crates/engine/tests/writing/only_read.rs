//! Fast commits that Linux left on images of kinds that lanefs only reads: what was fsynced is shown; an image whose
//! fast commits can't be replayed does not open.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use device::BlockDevice;
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, ReplayPolicy};
use testkit::Manifest;

use crate::fast_commits::{Linux, by_linux, device, without_times_of_directories};
use crate::image::clock;
use crate::interop::manifest;

/// Byte offsets in a superblock of the incompatible features, and of those that only a writer must know.
const INCOMPATIBLE: usize = 0x60;
const FOR_WRITERS: usize = 0x64;

/// What lanefs shows of a crashed image, which it refuses to write to and leaves as it is. What it shows is clean.
fn shown(image: &Path) -> Manifest {
    let before = testkit::read_image(image);
    let refused = InodeFs::open_for_writing(device(image), &MountOptions::default(), clock);
    assert!(refused.err().unwrap().is_only_read());
    let reader = InodeFs::open(device(image), &MountOptions::default()).unwrap();
    let report = *reader.recovery_report().unwrap();
    assert!(report.fast_commits.changes > 0, "Linux made no fast commit");
    assert!(!report.is_incomplete(), "{report}");
    assert!(testkit::read_image(image) == before, "it was written to");
    let view = image.with_extension("view");
    let mut bytes = vec![0; before.len()];
    reader.device().read_at(0, &mut bytes).unwrap();
    testkit::write_image(&view, &bytes);
    testkit::e2fsck(&view);
    without_times_of_directories(manifest(&reader).without_lost_found())
}

/// What Linux shows in the mount in which the image is made.
fn here(linux: &Linux) -> Manifest {
    let here = Manifest::of(&linux.mounted.path()).unwrap();
    without_times_of_directories(here.without_lost_found())
}

fn assert_same(what: &str, one: &Manifest, other: &Manifest) {
    let differences = one.differences(other);
    assert!(differences.is_empty(), "{what}: {differences}");
}

/// Makes some small files, and has Linux commit them in full.
fn make_small(linux: &Linux) {
    for number in 0..8 {
        fs::write(
            linux.at(&format!("small{number}")),
            format!("small{number}\n"),
        )
        .unwrap();
    }
    fs::create_dir(linux.at("below")).unwrap();
    fs::write(linux.at("below/there"), "there\n").unwrap();
    let root = linux.mounted.path();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
}

fn append(linux: &Linux, name: &str, bytes: &[u8]) {
    let mut file = File::options().append(true).open(linux.at(name)).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Makes every kind of change that Linux logs and can replay.
fn change(linux: &Linux) {
    for (name, bytes) in [("none", 0), ("few", 7), ("some", 130), ("many", 50_000)] {
        let mut new = File::create(linux.at(name)).unwrap();
        new.write_all(&vec![b'n'; bytes]).unwrap();
        new.sync_all().unwrap();
    }
    fs::write(linux.mounted.path().join("at the top"), "top\n").unwrap();
    File::open(linux.mounted.path().join("at the top"))
        .unwrap()
        .sync_all()
        .unwrap();
    fs::rename(linux.at("small1"), linux.at("renamed")).unwrap();
    linux.fsync("renamed");
    fs::rename(linux.at("small5"), linux.at("below/moved")).unwrap();
    linux.fsync("below/moved");
    fs::hard_link(linux.at("small2"), linux.at("linked")).unwrap();
    linux.fsync("linked");
    append(linux, "small0", b"more\n");
    linux.write("old0", 30_000, &[1; 70_000]);
    linux.fsync("old0");
    let cut = File::options().write(true).open(linux.at("old2")).unwrap();
    cut.set_len(5000).unwrap();
    cut.sync_all().unwrap();
    fs::remove_file(linux.at("small6")).unwrap();
    fs::remove_file(linux.at("old7")).unwrap();
    fs::rename(linux.at("small7"), linux.at("below/there")).unwrap();
    linux.fsync("below/there");
}

#[test]
fn what_linux_logged_is_shown_on_images_that_are_only_read() {
    let kinds = [
        ("1024", "fast_commit,inline_data"),
        ("4096", "fast_commit,inline_data"),
        ("4096", "fast_commit,ea_inode"),
        ("1024", "fast_commit,meta_bg,^resize_inode"),
        ("4096", "fast_commit,mmp"),
        ("4096", "fast_commit,encrypt"),
        (
            "4096",
            "fast_commit,inline_data,ea_inode,mmp,^metadata_csum",
        ),
    ];
    for (block_bytes, features) in kinds {
        let Some(linux) = Linux::with(block_bytes, features, "size=4", 24) else {
            return;
        };
        make_small(&linux);
        change(&linux);
        let ours = shown(&linux.crashed("one.img"));
        assert_same(features, &here(&linux), &ours);
        // Linux waits a minute before it mounts such an image.
        if !features.contains("mmp") {
            let theirs = without_times_of_directories(by_linux(&linux.crashed("other.img")));
            assert_same(features, &theirs, &ours);
        }
    }
}

/// Linux's own replay loses these contents: the inode still has the inline form, and the file reads as zeros.
#[test]
fn a_file_that_outgrew_its_inode_and_one_in_a_new_directory_are_shown() {
    for block_bytes in ["1024", "4096"] {
        let features = "fast_commit,inline_data";
        let Some(linux) = Linux::with(block_bytes, features, "size=4", 24) else {
            return;
        };
        make_small(&linux);
        append(&linux, "small3", &[b'm'; 5000]);
        assert_same("outgrown", &here(&linux), &shown(&linux.crashed("one.img")));
        append(&linux, "small3", &[b'm'; 90_000]);
        fs::create_dir_all(linux.at("made/within")).unwrap();
        fs::write(linux.at("made/within/few"), [7; 9]).unwrap();
        linux.fsync("made/within/few");
        fs::write(linux.at("made/many"), [7; 9000]).unwrap();
        linux.fsync("made/many");
        assert_same("made", &here(&linux), &shown(&linux.crashed("two.img")));
        fs::remove_dir_all(linux.at("below")).unwrap();
        append(&linux, "small4", b"again\n");
        assert_same("gone", &here(&linux), &shown(&linux.crashed("three.img")));
    }
}

#[test]
fn values_in_inodes_of_their_own_go_with_the_last_file_that_has_them() {
    let Some(linux) = Linux::with("4096", "fast_commit,ea_inode", "size=4", 24) else {
        return;
    };
    let set = |name: &str, bytes: usize| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(linux.at(name), "user.large", &vec![b'v'; bytes], flags).unwrap();
    };
    // Two share a value; the third has its own.
    set("old0", 20_000);
    set("old1", 20_000);
    set("old2", 30_000);
    let root = linux.mounted.path();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
    // Linux commits in full when it deletes such a file, so they stay open.
    let _open = ["old0", "old1", "old2"].map(|name| File::open(linux.at(name)).unwrap());
    fs::remove_file(linux.at("old0")).unwrap();
    fs::remove_file(linux.at("old2")).unwrap();
    append(&linux, "old3", b"more");
    assert_same("one", &here(&linux), &shown(&linux.crashed("one.img")));
    fs::rename(linux.at("old4"), linux.at("old1")).unwrap();
    linux.fsync("old1");
    assert_same("both", &here(&linux), &shown(&linux.crashed("two.img")));
}

/// The copies of the superblock in an image without checksums, those in its log among them.
fn superblocks(image: &[u8]) -> Vec<usize> {
    let uuid = &image[1024 + 104..1024 + 120];
    let is_copy =
        |at: &usize| image[at + 56..at + 58] == [0x53, 0xef] && &image[at + 104..at + 120] == uuid;
    (0..image.len()).step_by(1024).filter(is_copy).collect()
}

/// Gives a crashed image without checksums a feature, as if it had been used with it.
fn give(image: &mut [u8], word: usize, feature: u32) {
    for at in superblocks(image) {
        let at = at + word;
        let features = u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) | feature;
        image[at..at + 4].copy_from_slice(&features.to_le_bytes());
    }
}

/// Gives the inodes of this generation a flag, wherever they are.
fn give_inodes(image: &mut [u8], generation: u32, flag: u32) {
    let mut found = 0;
    for slot in image.chunks_mut(256) {
        if slot[100..104] == generation.to_le_bytes() && slot[0..2] != [0; 2] {
            let flags = u32::from_le_bytes(slot[32..36].try_into().unwrap()) | flag;
            slot[32..36].copy_from_slice(&flags.to_le_bytes());
            found += 1;
        }
    }
    assert!(found > 0);
}

fn generation_of(path: &Path) -> u32 {
    let listed = testkit::run("lsattr", &["-vd", path.to_str().unwrap()]);
    let line = String::from_utf8(listed.stdout).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The kernel under test can't mount these kinds: the features are put into an image that it left.
#[test]
fn kinds_that_linux_here_can_not_mount_are_shown() {
    let plain = "fast_commit,^metadata_csum";
    // Quota, project quota, verity.
    for feature in [0x100, 0x2000, 0x8000] {
        let Some(linux) = Linux::with("4096", plain, "size=4", 24) else {
            return;
        };
        make_small(&linux);
        change(&linux);
        let path = linux.crashed("one.img");
        let mut image = testkit::read_image(&path);
        give(&mut image, FOR_WRITERS, feature);
        testkit::write_image(&path, &image);
        let fs = InodeFs::open(device(&path), &MountOptions::default()).unwrap();
        let ours = without_times_of_directories(manifest(&fs).without_lost_found());
        assert_same("features", &here(&linux), &ours);
    }
}

#[test]
fn names_in_a_directory_without_case_are_found_whatever_their_case() {
    let plain = "fast_commit,^metadata_csum";
    let Some(linux) = Linux::with("1024", plain, "size=4", 24) else {
        return;
    };
    fs::create_dir(linux.at("folded")).unwrap();
    make_small(&linux);
    for number in 0..120 {
        let name = format!("folded/Größe {number:050}");
        fs::write(linux.at(&name), "x").unwrap();
        linux.fsync(&name);
    }
    let path = linux.crashed("one.img");
    let generation = generation_of(&linux.at("folded"));
    let mut image = testkit::read_image(&path);
    give(&mut image, INCOMPATIBLE, 0x2_0000);
    for at in superblocks(&image) {
        image[at + 0x27C] = 1;
    }
    give_inodes(&mut image, generation, 0x4000_0000);
    testkit::write_image(&path, &image);
    let fs = InodeFs::open(device(&path), &MountOptions::default()).unwrap();
    let dir = fs.lookup(Ino::ROOT, b"dir").unwrap();
    let folded = fs.lookup(dir, b"folded").unwrap();
    assert_eq!(fs.read_dir(folded).unwrap().count(), 122);
    for number in 0..120 {
        for name in ["Größe", "GRÖSSE"] {
            let name = format!("{name} {number:050}");
            fs.lookup(folded, name.as_bytes()).unwrap();
        }
    }
}

#[test]
fn what_can_not_be_replayed_is_not_passed_over() {
    let Some(linux) = Linux::with("4096", "fast_commit,bigalloc", "size=4", 24) else {
        return;
    };
    fs::write(linux.at("new"), [9; 50_000]).unwrap();
    linux.fsync("new");
    let path = linux.crashed("one.img");
    let refused = InodeFs::open(device(&path), &MountOptions::default());
    let error = refused.err().unwrap();
    assert!(matches!(error, Error::FastCommits(_)), "{error}");
    let ignoring = MountOptions {
        journal: ReplayPolicy::Ignore,
        ..MountOptions::default()
    };
    InodeFs::open(device(&path), &ignoring).unwrap();
}
