//! F19, F20 and F21 in docs/logtree.md: records of inodes whose fields e2fsck reads or counts wrongly, though no range
//! of theirs changed.

use lanefs_engine::{Fs, Ino, SetAttributes};

use super::case::{Case, e2fsck_at_boot, kernel, place, shows};
use crate::fc_area::Tag;
use crate::fsync_log::{NEW, after_a_cut, count};

const BLOCK: u64 = 4096;
/// Extents that take more than one leaf: a block holds 340.
const MANY: u64 = 700;

/// A file of so many pieces, all home.
fn pieces(case: &Case, name: &str, number: u64) -> Ino {
    let file = case.fs.create(case.dir, name.as_bytes(), NEW).unwrap();
    for piece in 0..number {
        case.fs
            .write(file, 2 * piece * BLOCK, &[b'p'; BLOCK as usize])
            .unwrap();
    }
    case.fs.sync().unwrap();
    case.fs.checkpoint().unwrap();
    file
}

/// Changes nothing but an inode's fields.
fn change_mode(fs: &Fs, ino: Ino) {
    let private = SetAttributes {
        mode: Some(0o600),
        ..Default::default()
    };
    fs.set_attributes(ino, &private).unwrap();
}

/// The record of an inode as it is in an image.
fn record(image: &[u8], ino: Ino) -> Tag {
    let slot = &image[place(image, ino)..][..256];
    let extra = usize::from(u16::from_le_bytes([slot[128], slot[129]]));
    Tag::Inode(ino, slot[..128 + extra].to_vec())
}

#[test]
fn f19_e2fsck_counts_one_block_of_a_map_that_has_more() {
    let Some(case) = Case::new() else { return };
    let many = pieces(&case, "many", MANY);
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
    let many = pieces(&case, "many", MANY);
    let few = pieces(&case, "few", 20);
    let logged = |work: &dyn Fn()| {
        let before = case.log_commits();
        work();
        case.log_commits() - before
    };
    let by_fields = logged(&|| {
        change_mode(&case.fs, many);
        case.fsync("many");
    });
    assert_eq!(by_fields, 0);
    // One that a name brings is no exception.
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
        change_mode(&case.fs, few);
        case.fsync("few");
    });
    assert_eq!(of_one_leaf, 1);
    let seen = e2fsck_at_boot(&case.cut().0);
    assert!(seen.is_clean(), "{seen:?}");
    after_a_cut(&case.device);
}
