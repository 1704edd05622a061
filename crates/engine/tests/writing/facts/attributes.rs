//! F12 in docs/logtree.md: files with a block of attributes.

use std::fs;
use std::io::Write;

use lanefs_engine::XattrFlag;

use super::case::{Case, OLD, e2fsck_at_boot, shows};
use crate::fast_commits::Linux;
use crate::fsync_log::{after_a_cut, count};

/// How often Linux is asked for a fast commit.
const TRIES: usize = 20;

#[test]
fn f12_e2fsck_does_not_count_the_block_of_attributes() {
    if !testkit::have("setfattr") {
        return testkit::skip("needs setfattr");
    }
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    let file = linux.at("old1");
    let value = "v".repeat(400);
    let path = file.to_str().unwrap();
    testkit::run("setfattr", &["-n", "user.long", "-v", &value, path]);
    testkit::run("sync", &["-f", path]);
    let mut open = fs::File::options().append(true).open(&file).unwrap();
    // Linux commits in full where its own commit comes in between.
    let is_logged = (0..TRIES).any(|_| {
        open.write_all(&[b'+'; 5000]).unwrap();
        linux.fsync("old1");
        linux.has_fast_commits()
    });
    if !is_logged {
        return testkit::skip("Linux made no fast commit");
    }
    let seen = e2fsck_at_boot(&testkit::read_image(&linux.crashed("after.img")));
    let is_right = seen.is_clean() && seen.has("dir/old1");
    shows(seen.wrong.contains("i_blocks is"), is_right, &seen);
}

#[test]
fn f12_a_file_with_a_block_of_attributes_is_committed_in_full() {
    let Some(case) = Case::new() else { return };
    let a = case.ino("a");
    case.fs
        .set_xattr(a, b"user.long", &[b'v'; 400], XattrFlag::Any)
        .unwrap();
    case.fs.sync().unwrap();
    case.grow("a");
    case.fs.write(a, 0, &[b'o'; OLD]).unwrap();
    case.fsync("a");
    assert_eq!(case.log_commits(), 0);
    assert_eq!(count(&case.fs, "fsync.full_unloggable"), 2);
    let seen = e2fsck_at_boot(&case.cut().0);
    assert!(seen.is_clean(), "{seen:?}");
    after_a_cut(&case.device);
    // A file that is logged because of its name is treated the same.
    case.link("a", "x");
    case.unlink("x");
    case.rename("a", "y");
    case.create("a", b'n', 9000);
    case.fsync("a");
    assert_eq!(case.log_commits(), 0);
    after_a_cut(&case.device);
    // Attributes within the inode make no difference.
    let b = case.ino("b");
    case.fs
        .set_xattr(b, b"user.short", b"v", XattrFlag::Any)
        .unwrap();
    case.fs.sync().unwrap();
    case.grow("b");
    assert_eq!(case.log_commits(), 1);
    after_a_cut(&case.device);
}
