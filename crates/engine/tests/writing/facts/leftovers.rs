//! F17 in docs/logtree.md: what a free inode's record still holds, which Linux and e2fsck leave there when they replay
//! the record of a new file.

use lanefs_engine::XattrFlag;

use super::case::{Case, OLD, Seen, e2fsck_at_boot, kernel, place, shows};
use crate::fsync_log::{NEW, after_a_cut, count, device, shared};
use crate::image::open;

/// Where an inode's fields are in its slot of 256 bytes, and what lies behind 32 bytes of extra fields.
const BLOCK_AREA: usize = 40;
const ATTRIBUTES: usize = 128 + 32;

/// A map of one extent: the first block of a file in its place.
fn map(physical: u32) -> Vec<u8> {
    let words: [u16; 8] = [0xf30a, 1, 4, 0, 0, 0, 0, 0];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend([1, 0, 0, 0]);
    bytes.extend(physical.to_le_bytes());
    bytes
}

/// What one file has, put where a free inode is.
struct Left {
    what: &'static str,
    at: usize,
    bytes: Vec<u8>,
    /// Whether that would show in a new file.
    lasts: bool,
}

/// An image with an old file that has an attribute, and what may be left of such ones.
fn left(case: &Case) -> (Vec<u8>, Vec<Left>) {
    let b = case.ino("b");
    case.fs
        .set_xattr(b, b"user.old", b"secret", XattrFlag::Any)
        .unwrap();
    case.fs.sync().unwrap();
    case.fs.checkpoint().unwrap();
    let image = case.device.bytes();
    let of_b = image[place(&image, b)..][..256].to_vec();
    let a = case
        .fs
        .mappings(case.ino("a"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let physical = u32::try_from(a.physical.unwrap().0).unwrap();
    let ordinary = |what, at, bytes, lasts| Left {
        what,
        at,
        bytes,
        lasts,
    };
    let all = vec![
        ordinary("a map", BLOCK_AREA, map(physical), true),
        // A character device 243:10, as Linux leaves it.
        ordinary("a number", BLOCK_AREA, vec![0x0a, 0xf3], true),
        ordinary("attributes", ATTRIBUTES, of_b[ATTRIBUTES..].to_vec(), true),
        ordinary(
            "a link's text",
            BLOCK_AREA,
            b"to/some/where".to_vec(),
            false,
        ),
        ordinary(
            "a map's empty head",
            BLOCK_AREA,
            vec![0x0a, 0xf3, 0, 0, 4, 0],
            false,
        ),
    ];
    (image, all)
}

fn has_attribute(seen: &Seen, path: &str) -> bool {
    let tree = seen.tree.as_ref().unwrap();
    let entry = &tree.entries[path.as_bytes()];
    entry.xattrs.iter().any(|(name, _)| name.ends_with(b"old"))
}

#[test]
fn f17_a_replay_leaves_what_a_free_record_holds() {
    let Some(case) = Case::new() else { return };
    let (_, lefts) = left(&case);
    let new = case.fs.create(case.dir, b"new", NEW).unwrap();
    case.fs.write(new, 4 * 4096, &[b'n'; 4096]).unwrap();
    case.fsync("new");
    assert_eq!(case.log_commits(), 1);
    let expected = [vec![0; 4 * 4096], vec![b'n'; 4096]].concat();
    let (image, ..) = case.cut();
    let at = place(&image, new);
    for left in lefts.iter().filter(|left| left.lasts) {
        let mut image = testkit::copy_image(&image);
        image[at + left.at..][..left.bytes.len()].copy_from_slice(&left.bytes);
        let seen = e2fsck_at_boot(&image);
        let is_right = seen.holds("dir/new", &expected) && !has_attribute(&seen, "dir/new");
        shows(!is_right, is_right, &seen);
        if left.what == "attributes" {
            let seen = kernel(&image);
            let has = has_attribute(&seen, "dir/new");
            shows(has, !has, &seen);
        }
    }
}

#[test]
fn f17_a_new_file_where_something_lasts_is_committed_in_full() {
    let Some(case) = Case::new() else { return };
    let (image, lefts) = left(&case);
    // Which number comes next.
    let probe = open(shared(&device(testkit::copy_image(&image))));
    let number = probe.create(case.dir, b"new", NEW).unwrap();
    drop(probe);
    for left in lefts {
        let mut image = testkit::copy_image(&image);
        let at = place(&image, number) + left.at;
        image[at..][..left.bytes.len()].copy_from_slice(&left.bytes);
        let device = device(image);
        let fs = open(shared(&device));
        let new = fs.create(case.dir, b"new", NEW).unwrap();
        assert_eq!(new, number);
        fs.write(new, 4 * 4096, b"promised").unwrap();
        fs.fsync(new).unwrap();
        let full = u64::from(left.lasts);
        assert_eq!(count(&fs, "fsync.full_unloggable"), full, "{}", left.what);
        assert_eq!(count(&fs, "fsync.log_commits"), 1 - full, "{}", left.what);
        let seen = after_a_cut(&device);
        assert!(seen.entries[&b"dir/new"[..]].xattrs.is_empty());
        // What is told then is told of our own record.
        fs.write(new, 0, b"again").unwrap();
        fs.fsync(new).unwrap();
        assert_eq!(count(&fs, "fsync.full_unloggable"), full, "{}", left.what);
        let seen = after_a_cut(&device);
        assert_eq!(seen.entries[&b"dir/new"[..]].size, 4 * 4096 + 8);
    }
}

#[test]
fn f17_attributes_go_with_their_file() {
    let Some(case) = Case::new() else { return };
    let b = case.ino("b");
    case.fs
        .set_xattr(b, b"user.old", b"secret", XattrFlag::Any)
        .unwrap();
    case.fs.sync().unwrap();
    case.unlink("b");
    case.fs.sync().unwrap();
    case.fs.checkpoint().unwrap();
    let image = case.device.bytes();
    let slot = &image[place(&image, b)..][..256];
    assert!(slot[ATTRIBUTES..].iter().all(|byte| *byte == 0), "{slot:?}");
    // Its number, used again, is logged at once: by the mount that deleted it, and by the next one.
    for fs in [open(shared(&case.device)), open(shared(&device(image)))] {
        for number in 0..32 {
            let name = format!("n{number}");
            let new = fs.create(case.dir, name.as_bytes(), NEW).unwrap();
            fs.write(new, 0, &[b'n'; OLD]).unwrap();
            fs.fsync(new).unwrap();
            if new == b {
                break;
            }
            assert!(number < 31, "the number is not used again");
        }
        assert_eq!(count(&fs, "fsync.full_unloggable"), 0);
    }
}
