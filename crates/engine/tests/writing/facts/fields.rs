//! F19, F20 and F21 in docs/logtree.md: records of inodes whose fields e2fsck reads or counts wrongly, though no range
//! of theirs changed.

use lanefs_engine::Ino;

use super::case::{Case, OLD, e2fsck_at_boot, kernel, record, shows, wrong_after_e2fsck_at_boot};
use crate::fc_area::Tag;
use crate::fsync_log::{NEW, after_a_cut, count, device, shared};
use crate::image::{make, open};

/// Extents that take more than one leaf: a block holds 340.
const MANY: u64 = 700;

#[test]
fn f19_e2fsck_counts_one_block_of_a_map_that_has_more() {
    let Some(case) = Case::new() else { return };
    let many = case.pieces("many", MANY);
    case.create("f", b'f', 9000);
    case.fsync("f");
    assert_eq!(case.log_commits(), 1);
    let (mut image, area, mut tags) = case.cut();
    tags.push(record(&image, many));
    area.write(&mut image, &tags, None);
    let seen = kernel(&image);
    assert!(seen.is_clean() && seen.has("dir/f"), "{seen:?}");
    let seen = e2fsck_at_boot(&image);
    let is_right = seen.is_clean() && seen.has("dir/f");
    shows(seen.wrong.contains("i_blocks is"), is_right, &seen);
}

#[test]
fn f19_a_map_of_more_leaves_than_one_is_committed_in_full() {
    let Some(case) = Case::new() else { return };
    let many = case.pieces("many", MANY);
    let few = case.pieces("few", 20);
    let logged = |work: &dyn Fn()| {
        let before = case.log_commits();
        work();
        case.log_commits() - before
    };
    let by_fields = logged(&|| {
        case.change_mode(many);
        case.fsync("many");
    });
    assert_eq!(by_fields, 0);
    // A file that is logged because of its name is treated the same.
    let by_name = logged(&|| {
        case.rename("many", "moved");
        case.create("many", b'n', 9000);
        case.fsync("many");
    });
    assert_eq!(by_name, 0);
    assert_eq!(count(&case.fs, "fsync.full_unloggable"), 2);
    let seen = e2fsck_at_boot(&case.cut().0);
    assert!(seen.is_clean(), "{seen:?}");
    // A map of one leaf is counted right.
    let of_one_leaf = logged(&|| {
        case.change_mode(few);
        case.fsync("few");
    });
    assert_eq!(of_one_leaf, 1);
    let seen = e2fsck_at_boot(&case.cut().0);
    assert!(seen.is_clean(), "{seen:?}");
    after_a_cut(&case.device);
}

/// The case's image, closed, with `a` as `tune2fs -I 256` would leave it: all of its extra fields are zeros.
fn without_extra_fields(case: Case) -> Vec<u8> {
    let Case { device, fs, .. } = case;
    fs.close().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    // The size last: without it debugfs finds the others nowhere.
    for field in [
        "ctime_extra",
        "mtime_extra",
        "atime_extra",
        "crtime",
        "crtime_extra",
        "extra_isize",
    ] {
        let request = format!("set_inode_field /dir/a {field} 0");
        testkit::debugfs(&["-w", "-R", &request, path.to_str().unwrap()]);
    }
    testkit::e2fsck(&path);
    testkit::read_image(&path)
}

#[test]
fn f20_e2fsck_reads_the_next_record_as_extra_fields() {
    let Some(case) = Case::new() else { return };
    let (a, dir) = (case.ino("a"), case.dir);
    let device = device(without_extra_fields(case));
    let fs = open(shared(&device));
    let b = fs.lookup(dir, b"b").unwrap();
    let case = Case { device, fs, dir };
    case.change_mode(b);
    case.fsync("b");
    assert_eq!(case.log_commits(), 1);
    let (mut image, area, tags) = case.cut();
    let of_a = record(&image, a);
    assert!(matches!(&of_a, Tag::Inode(_, raw) if raw.len() == 128));
    // INODE is tag 6: no size of extra fields, which is a multiple of 4.
    let tags = [&[of_a], &tags[..]].concat();
    area.write(&mut image, &tags, None);
    let seen = kernel(&image);
    assert!(seen.is_clean() && seen.has("dir/a"), "{seen:?}");
    let seen = e2fsck_at_boot(&image);
    let is_wrong = seen.wrong.contains("has a extra size");
    shows(is_wrong, seen.is_clean() && seen.has("dir/a"), &seen);
}

#[test]
fn f20_an_inode_without_extra_fields_is_committed_in_full() {
    let Some(case) = Case::new() else { return };
    let dir = case.dir;
    let device = device(without_extra_fields(case));
    let fs = open(shared(&device));
    let case = Case { device, fs, dir };
    case.change_mode(case.ino("a"));
    case.fsync("a");
    assert_eq!(count(&case.fs, "fsync.full_unloggable"), 1);
    case.rename("a", "t");
    case.rename("b", "a");
    case.rename("t", "b");
    case.fsync("a");
    assert_eq!(count(&case.fs, "fsync.full_unloggable"), 2);
    assert_eq!(case.log_commits(), 0);
    let seen = e2fsck_at_boot(&case.cut().0);
    assert!(
        seen.is_clean() && seen.holds("dir/b", &[b'a'; OLD]),
        "{seen:?}"
    );
    after_a_cut(&case.device);
}

/// An image without `large_file`, open, with a file that is home.
fn without_large_file() -> Option<Case> {
    if !testkit::is_root() {
        testkit::skip("mounting needs root");
        return None;
    }
    let features = "fast_commit,^large_file,^resize_inode";
    let options = ["-b", "4096", "-O", features, "-J", "size=8"];
    let device = device(make(&options, 64 << 20)?);
    let fs = open(shared(&device));
    let dir = fs.mkdir(Ino::ROOT, b"dir", NEW).unwrap();
    let case = Case { device, fs, dir };
    case.create("a", b'a', OLD);
    case.fs.sync().unwrap();
    case.fs.checkpoint().unwrap();
    Some(case)
}

#[test]
fn f21_e2fsck_does_not_turn_on_large_file() {
    let Some(case) = without_large_file() else {
        return;
    };
    case.grow("a");
    let (mut image, area, mut tags) = case.cut();
    for tag in &mut tags {
        if let Tag::Inode(_, raw) = tag {
            // The high half of the size.
            raw[108] = 1;
        }
    }
    area.write(&mut image, &tags, None);
    let wrong = wrong_after_e2fsck_at_boot(&image);
    match wrong.contains("LARGE_FILE") {
        true => {}
        false if wrong.is_empty() => testkit::skip("mended in this version"),
        false => panic!("neither the defect nor what is right: {wrong}"),
    }
}

#[test]
fn f21_a_file_that_needs_large_file_is_committed_in_full_until_it_is_there() {
    let Some(case) = without_large_file() else {
        return;
    };
    let a = case.ino("a");
    // Made in one epoch, both need it.
    let b = case.create("b", b'b', OLD);
    case.grow("a");
    assert_eq!(case.log_commits(), 1);
    case.fs.truncate(b, 3 << 30).unwrap();
    case.fs.truncate(a, 3 << 30).unwrap();
    case.fsync("a");
    assert_eq!(case.log_commits(), 1);
    assert_eq!(count(&case.fs, "fsync.full_unloggable"), 1);
    assert_eq!(wrong_after_e2fsck_at_boot(&case.cut().0), "");
    // Now it is there.
    case.change_mode(b);
    case.fsync("b");
    assert_eq!(case.log_commits(), 2);
    assert_eq!(wrong_after_e2fsck_at_boot(&case.cut().0), "");
}
