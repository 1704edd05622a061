//! F18 in docs/logtree.md: what a replay leaves that began in place and did not end, as a read-only mount's by Linux,
//! which fails at the first thing that it would commit. lanefs mends it, or refuses it.

use std::path::Path;
use std::process::Command;

use device::BlockDevice;
use lanefs_engine::{Error, InodeFs, MountOptions};
use ondisk::Site;
use simulate::CowDevice;
use sync::Arc;
use testkit::{LoopDevice, Manifest};

use super::case::{Case, OLD};
use crate::fsync_log::{by_lanefs, device, plain};
use crate::image::{clock, open};
use crate::interop::manifest;

/// What is fsynced, by name; then a cut.
type Change = (&'static str, fn(&Case));

const CHANGES: [Change; 5] = [
    ("rename", |case| {
        case.rename("a", "r");
        case.fsync("r");
    }),
    ("link", |case| {
        case.link("a", "l");
        case.fsync("l");
    }),
    ("new", |case| {
        case.create("new", b'n', OLD);
        case.fsync("new");
    }),
    ("append", |case| case.grow("a")),
    ("rename, new", |case| {
        case.rename("a", "r");
        case.create("a", b'n', OLD);
        case.fsync("a");
    }),
];

/// An image cut after this change; `a` has `more` pieces besides its first.
fn cut(change: fn(&Case), more: u64) -> Option<(Case, Vec<u8>)> {
    let case = Case::new()?;
    for piece in 2..2 + more {
        let at = piece * 10 * 4096;
        case.fs.write(case.ino("a"), at, &[b'a'; 4096]).unwrap();
    }
    case.fs.sync().unwrap();
    case.fs.checkpoint().unwrap();
    change(&case);
    assert!(case.log_commits() > 0, "it is logged");
    let image = case.cut().0;
    Some((case, image))
}

fn cow(image: &[u8]) -> CowDevice {
    CowDevice::new(image.into())
}

/// What is there after lanefs's replay, which e2fsck finds clean.
fn replayed(image: &[u8]) -> Manifest {
    let directory = tempfile::tempdir().unwrap();
    by_lanefs(&cow(image), directory.path())
}

fn refusal(image: &[u8]) -> Option<Site> {
    let device = device(testkit::copy_image(image)) as Arc<dyn BlockDevice>;
    match InodeFs::open_for_writing(device, &MountOptions::default(), clock) {
        Err(Error::Corrupt(corrupt)) => Some(corrupt.site()),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

/// The image as debugfs leaves it.
fn edited(image: &[u8], requests: &[String]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    for request in requests {
        let told = testkit::debugfs(&["-w", "-R", request, path.to_str().unwrap()]);
        let told = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(told.lines().count() < 2, "{request}: {told}");
    }
    testkit::read_image(&path)
}

/// Whether the kernel mounts an image read-only that it could write to.
fn mounts_read_only(path: &Path) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let disk = LoopDevice::over(path, &[]).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "ext4", "-o", "ro", disk.name()])
        .arg(directory.path())
        .output()
        .unwrap();
    let is_mounted = mounted.status.success();
    if is_mounted {
        testkit::run("umount", &[directory.path().to_str().unwrap()]);
    }
    is_mounted
}

#[test]
fn f18_a_read_only_mount_by_the_kernel_ends_half_way_and_lanefs_mends_it() {
    // What names nothing is replayed, except the ranges that it takes away.
    for (what, change) in [0, 1, 2, 4].map(|change| CHANGES[change]) {
        let Some((_, image)) = cut(change, 0) else {
            return;
        };
        let expected = replayed(&image);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &image);
        if mounts_read_only(&path) {
            testkit::skip("mended in this version");
        }
        let seen = replayed(&testkit::read_image(&path));
        let differences = seen.differences(&expected);
        assert!(differences.is_empty(), "{what}: {differences}");
    }
}

/// The same by hand: links as a record in the middle of the log says, and what the file has is free.
#[test]
fn f18_blocks_and_links_of_a_replay_that_did_not_end_are_mended() {
    // With an index and without; with one the other changes are not logged.
    let changes = [0, 1, 3, 0, 1].into_iter().zip([0, 0, 0, 6, 6]);
    for ((what, change), more) in changes.map(|(change, more)| (CHANGES[change], more)) {
        let Some((case, image)) = cut(change, more) else {
            return;
        };
        let expected = replayed(&image);
        let a = case.fs.lookup(case.dir, b"a");
        let a = a.or_else(|_| case.fs.lookup(case.dir, b"r")).unwrap();
        let blocks: Vec<u64> = home_blocks(&image, "/dir/a").collect();
        let index = u64::from(more > 0);
        assert_eq!(blocks.len() as u64, 5 + more + index);
        let free = u64::from(u16::from_le_bytes([image[4096 + 12], image[4096 + 13]]));
        let free = free + blocks.len() as u64;
        let mut requests = vec![format!("set_inode_field <{a}> links_count 2")];
        requests.extend(blocks.iter().map(|block| format!("freeb {block}")));
        requests.push(format!("set_bg 0 free_blocks_count {free}"));
        requests.push("set_bg 0 checksum calc".into());
        let seen = replayed(&edited(&image, &requests));
        let differences = seen.differences(&expected);
        assert!(differences.is_empty(), "{what}: {differences}");
    }
}

/// The blocks that a file has in the image without its log, as debugfs lists them.
fn home_blocks(image: &[u8], path: &str) -> impl Iterator<Item = u64> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    testkit::write_image(&file, image);
    let request = format!("blocks {path}");
    let told = testkit::debugfs(&["-R", &request, file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let blocks: Vec<u64> = (told.split_whitespace())
        .map(|block| block.parse().unwrap())
        .collect();
    blocks.into_iter()
}

/// A new file's name is home and its number is not: it was deleted, with what was fsynced.
#[test]
fn f18_a_new_file_whose_name_is_there_already_stays() {
    let Some((case, image)) = cut(CHANGES[2].1, 0) else {
        return;
    };
    let expected = replayed(&image);
    let new = case.ino("new");
    let seen = replayed(&edited(&image, &[format!("ln <{new}> /dir/new")]));
    let differences = seen.differences(&expected);
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn f18_an_old_file_whose_number_is_free_is_not_made_anew() {
    for (what, change) in [CHANGES[0], CHANGES[1], CHANGES[3]] {
        let Some((case, image)) = cut(change, 0) else {
            return;
        };
        let a = case.fs.lookup(case.dir, b"a");
        let a = a.or_else(|_| case.fs.lookup(case.dir, b"r")).unwrap();
        let image = edited(&image, &[format!("freei <{a}>")]);
        assert_eq!(refusal(&image), Some(Site::FastCommitHalf), "{what}");
    }
}

/// The state that e2fsck leaves in the superblock when it does not come to the end.
#[test]
fn f18_what_e2fsck_did_not_end_is_replayed_and_said_so() {
    let Some((_, image)) = cut(CHANGES[0].1, 0) else {
        return;
    };
    let expected = replayed(&image);
    // Valid, with errors, fast commits being replayed.
    let image = edited(&image, &["set_super_value state 0x23".into()]);
    let cow = cow(&image);
    let shared = Arc::new(cow.clone());
    let fs = open(Arc::clone(&shared) as Arc<dyn BlockDevice>);
    let differences = plain(manifest(&fs)).differences(&expected);
    assert!(differences.is_empty(), "{differences}");
    fs.close().unwrap();
    assert_eq!(shared.bytes()[1024 + 0x3a], 0x03, "errors stay on record");
}

/// A system that stopped may have written a bitmap and not its checksum.
#[test]
fn f18_where_a_bitmap_of_its_files_is_not_whole_nothing_is_replayed() {
    for (what, change) in CHANGES {
        let Some((_, mut image)) = cut(change, 0) else {
            return;
        };
        let bitmap = u32::from_le_bytes(image[4096..4100].try_into().unwrap());
        // Far behind the last block in use.
        image[bitmap as usize * 4096 + 1500] ^= 1;
        let refused = refusal(&image);
        assert_eq!(refused, Some(Site::BlockBitmapChecksum), "{what}");
    }
}
