//! F8 in docs/logtree.md: names for which a replay has no room, though there was some.

use lanefs_engine::{Ino, InodeFs, RenameFlag};

use super::case::{e2fsck_at_boot, kernel};
use crate::fsync_log::{NEW, after_a_cut, count, device, image, shared};
use crate::image::{make, open};

/// Bytes of the names' records, and how many of them a block of entries holds beside `.` and `..`.
const RECORD: usize = 104;
const FULL: usize = (4096 - 12 - 24) / RECORD;

fn name(number: usize) -> Vec<u8> {
    format!("{number:0>len$}", len = RECORD - 8).into_bytes()
}

/// A directory of one block with `names` names, all home, of which every second one stands for the same file.
fn directory(fs: &InodeFs, names: usize) -> Ino {
    let dir = fs.mkdir(Ino::ROOT, b"dir", NEW).unwrap();
    for number in 0..names {
        fs.create(dir, &name(number), NEW).unwrap();
    }
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    dir
}

/// All three see the file, and e2fsck finds nothing wrong when a machine starts.
fn is_promised(device: &std::sync::Arc<simulate::CowDevice>, path: &[u8]) {
    let seen = after_a_cut(device);
    assert!(seen.entries.contains_key(path));
    let image = device.bytes();
    let at_boot = e2fsck_at_boot(&image);
    assert!(at_boot.is_clean(), "{at_boot:?}");
    assert!(at_boot.tree.unwrap().entries.contains_key(path));
    if testkit::is_root() {
        let seen = kernel(&image);
        assert!(seen.is_clean(), "{seen:?}");
    }
}

fn path(number: usize) -> Vec<u8> {
    [b"dir/", &*name(number)].concat()
}

#[test]
fn f8_where_only_a_removal_that_is_not_logged_made_room_it_is_committed_in_full() {
    let Some(image) = image("4096") else { return };
    // What another name's end leaves, one moved elsewhere, and one replaced.
    for kind in 0..3 {
        let device = device(testkit::copy_image(&image));
        let fs = open(shared(&device));
        let dir = directory(&fs, FULL);
        match kind {
            0 => fs.unlink(dir, &name(7)).unwrap(),
            1 => {
                let flag = RenameFlag::Replace;
                fs.rename(dir, &name(7), Ino::ROOT, b"away", flag).unwrap();
            }
            _ => {
                let flag = RenameFlag::Replace;
                fs.rename(dir, &name(7), dir, &name(8), flag).unwrap();
            }
        }
        let new = fs.create(dir, &name(1000), NEW).unwrap();
        fs.write(new, 0, b"promised").unwrap();
        fs.fsync(new).unwrap();
        assert_eq!(count(&fs, "fsync.log_commits"), 0, "{kind}");
        assert_eq!(count(&fs, "fsync.full_unloggable"), 1, "{kind}");
        is_promised(&device, &path(1000));
        assert_eq!(fs.metadata(dir).unwrap().size, 4096);
        // The full commit has all of it, so that what comes then is logged.
        fs.write(new, 8, b" again").unwrap();
        fs.fsync(new).unwrap();
        assert_eq!(count(&fs, "fsync.log_commits"), 1, "{kind}");
    }
}

#[test]
fn f8_names_that_come_and_go_are_logged_as_long_as_the_gaps_take_them() {
    let Some(image) = image("4096") else { return };
    let device = device(image);
    let fs = open(shared(&device));
    let gaps = 10;
    let dir = directory(&fs, FULL - gaps);
    // A mail is removed and another one comes: in the full commit's gaps there is room for ten.
    for number in 0..2 * gaps + 2 {
        fs.unlink(dir, &name(number)).unwrap();
        let new = fs.create(dir, &name(1000 + number), NEW).unwrap();
        fs.write(new, 0, b"promised").unwrap();
        fs.fsync(new).unwrap();
        if number % 5 == 4 || number % gaps == 0 {
            is_promised(&device, &path(1000 + number));
        }
    }
    assert_eq!(count(&fs, "fsync.full_unloggable"), 2);
    assert_eq!(count(&fs, "fsync.log_commits"), 2 * gaps as u64);
}

/// A replay puts names where they first fit, in another order than the one in which they came.
#[test]
fn f8_names_of_different_lengths_fit_in_any_order() {
    let Some(image) = image("4096") else { return };
    let device = device(image);
    let fs = open(shared(&device));
    let dir = directory(&fs, FULL);
    for gap in [3, 9] {
        fs.unlink(dir, &name(gap)).unwrap();
    }
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    // A short one takes the first gap; the long ones then fill the second and what is left of the block.
    for (number, len) in [(1, 40), (2, RECORD - 8), (3, 40), (4, 12)] {
        let name = format!("n{number:0>len$}", len = len - 1);
        let new = fs.create(dir, name.as_bytes(), NEW).unwrap();
        fs.fsync(new).unwrap();
        is_promised(&device, &[b"dir/", name.as_bytes()].concat());
    }
}

/// In a directory with an index, a name can go to one leaf only: it is that leaf's room that counts, however much there
/// is in others.
#[test]
fn f8_in_an_indexed_directory_each_leaf_has_gaps_of_its_own() {
    // The same hashes each time.
    let seed = "hash_seed=6c616e65-6673-4000-8000-000000000008";
    let options = [
        "-O",
        "fast_commit",
        "-J",
        "size=8",
        "-b",
        "4096",
        "-E",
        seed,
    ];
    let Some(image) = make(&options, 64 << 20) else {
        return;
    };
    let device = device(image);
    let fs = open(shared(&device));
    let names = 8 * FULL;
    let dir = directory(&fs, names);
    let is_indexed = || {
        let flags = fs.metadata(dir).unwrap().flags;
        flags.contains(lanefs_engine::Flags::INDEX)
    };
    assert!(is_indexed());
    let size = fs.metadata(dir).unwrap().size;
    // One of the blocks is the index.
    let gaps = (size / 4096 - 1) as usize * FULL - names;
    // Mails come and go, until a leaf has had as many as it had gaps for.
    let mut number = 0;
    loop {
        fs.unlink(dir, &name(number)).unwrap();
        let new = fs.create(dir, &name(names + number), NEW).unwrap();
        fs.write(new, 0, b"promised").unwrap();
        fs.fsync(new).unwrap();
        if number % 50 == 0 {
            is_promised(&device, &path(names + number));
        }
        if count(&fs, "fsync.full_unloggable") > 0 {
            break;
        }
        number += 1;
    }
    assert_eq!(count(&fs, "fsync.log_commits"), number as u64);
    assert!((1..gaps).contains(&number), "{number} of {gaps}");
    // No leaf was split: what has no room for sure is in the replay, not in the directory.
    assert_eq!(fs.metadata(dir).unwrap().size, size);
    is_promised(&device, &path(names + number));
    assert!(is_indexed());
    fs.close().unwrap();
}
