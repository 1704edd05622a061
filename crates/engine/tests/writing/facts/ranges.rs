//! F15 and F16 in docs/logtree.md: the order in which ranges are logged, of which e2fsck makes a map for one inode
//! after the other.

use lanefs_engine::{Allocate, Error, Ino, InodeFs, MountOptions};

use super::case::{Case, OLD, e2fsck_at_boot, kernel};
use crate::fc_area::Tag;
use crate::fsync_log::{NEW, after_a_cut, device, shared};

const BLOCK: usize = 4096;

/// Zeros, with one block of this at a place.
fn sparse(byte: u8, place: usize) -> Vec<u8> {
    let mut bytes = vec![0; (place + 1) * BLOCK];
    bytes[place * BLOCK..].fill(byte);
    bytes
}

/// A file of one extent from its beginning on is cut to nothing, and gets a block further on; its records.
fn emptied(case: &Case, place: usize) -> Ino {
    let a = case.ino("a");
    case.fs.truncate(a, 0).unwrap();
    let offset = (place * BLOCK) as u64;
    case.fs.write(a, offset, &[b'n'; BLOCK]).unwrap();
    case.fsync("a");
    for number in 0..3 {
        let name = format!("f{number}");
        case.create(&name, b'f', 3 * BLOCK);
        case.fsync(&name);
    }
    assert_eq!(case.log_commits(), 4);
    a
}

#[test]
fn f16_e2fsck_goes_wrong_behind_a_range_that_takes_all_a_file_had() {
    let Some(case) = Case::new() else { return };
    let a = emptied(&case, 17);
    let (mut image, area, tags) = case.cut();
    // The ranges taken away first, as Linux has them.
    let ranges = |tag: &&Tag| tag.ino() == a && matches!(tag, Tag::Add(..) | Tag::Del(..));
    let mut of_a: Vec<Tag> = tags.iter().filter(ranges).cloned().collect();
    assert!(
        of_a.len() > 1 && matches!(of_a[0], Tag::Add(..)),
        "{of_a:?}"
    );
    of_a.reverse();
    let first = tags.iter().position(|tag| ranges(&tag)).unwrap();
    let mut turned = tags.clone();
    turned.splice(first..first + of_a.len(), of_a);
    area.write(&mut image, &turned, None);
    // What it makes of it has 2^32 blocks, each of which a full check would complain of.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &image);
    let output = testkit::e2fsck_with(&["-p"], &path);
    assert!(output.status.code() < Some(8));
    let replayed = device(testkit::read_image(&path));
    let fs = InodeFs::open(shared(&replayed), &MountOptions::default()).unwrap();
    let mut bytes = vec![0; 18 * BLOCK];
    match fs.read(a, 0, &mut bytes) {
        Ok(_) => {
            assert!(
                bytes == sparse(b'n', 17),
                "neither the defect nor what is right"
            );
            testkit::skip("mended in this version");
        }
        Err(error) => assert!(matches!(error, Error::Corrupt(_)), "{error}"),
    }
}

#[test]
fn f16_a_file_that_keeps_nothing_of_what_it_had_is_told_with_its_new_blocks_first() {
    for place in [17, 6, 5, 1] {
        let Some(case) = Case::new() else { return };
        emptied(&case, place);
        let (image, _, _) = case.cut();
        for seen in [e2fsck_at_boot(&image), kernel(&image)] {
            assert!(seen.is_clean(), "{seen:?}");
            assert!(seen.holds("dir/a", &sparse(b'n', place)), "{seen:?}");
            assert!(seen.holds("dir/f2", &[b'f'; 3 * BLOCK]), "{seen:?}");
        }
        after_a_cut(&case.device);
    }
}

/// Ranges that existed only for a while are logged, too: after one that takes all that a file had.
#[test]
fn f16_what_is_taken_away_is_told_from_the_end_on() {
    let Some(case) = Case::new() else { return };
    let a = case.ino("a");
    for place in [20, 30, 40] {
        let offset = place * BLOCK as u64;
        case.fs.write(a, offset, &[b'n'; BLOCK]).unwrap();
    }
    case.fs.truncate(a, 0).unwrap();
    case.fs.truncate(a, 50 * BLOCK as u64).unwrap();
    case.fsync("a");
    let (image, _, tags) = case.cut();
    let is_hole = |tag: &&Tag| matches!(tag, Tag::Del(..));
    assert!(tags.iter().filter(is_hole).count() > 1, "{tags:?}");
    for seen in [e2fsck_at_boot(&image), kernel(&image)] {
        assert!(seen.is_clean(), "{seen:?}");
        assert!(seen.holds("dir/a", &vec![0; 50 * BLOCK]), "{seen:?}");
        assert!(seen.holds("dir/b", &[b'b'; OLD]), "{seen:?}");
    }
    after_a_cut(&case.device);
}

/// A file whose map passes through five extents on its way from four to three, told with another's ranges.
#[test]
fn f15_a_map_is_whole_when_the_next_inode_is_told() {
    let Some(case) = Case::new() else { return };
    let a = case.fs.create(case.dir, b"many", NEW).unwrap();
    let write = |place: usize, blocks: usize, byte: u8| {
        let offset = (place * BLOCK) as u64;
        case.fs
            .write(a, offset, &vec![byte; blocks * BLOCK])
            .unwrap();
    };
    for (place, blocks) in [(0, 1), (33, 10), (53, 1), (55, 1)] {
        write(place, blocks, b'o');
    }
    case.fs.sync().unwrap();
    case.fs.checkpoint().unwrap();
    let mut expected = vec![0; 93 * BLOCK];
    case.fs.truncate(a, 43 * BLOCK as u64).unwrap();
    let hole = 38 * BLOCK as u64;
    case.fs
        .allocate(a, Allocate::Punch, hole, BLOCK as u64)
        .unwrap();
    write(53, 40, b'n');
    expected[..BLOCK].fill(b'o');
    expected[33 * BLOCK..43 * BLOCK].fill(b'o');
    expected[38 * BLOCK..39 * BLOCK].fill(0);
    expected[53 * BLOCK..].fill(b'n');
    case.rename("many", "moved");
    let other = case.create("other", b'p', 10 * BLOCK);
    case.fs.truncate(other, 5 * BLOCK as u64).unwrap();
    case.fs.fsync(case.dir).unwrap();
    assert_eq!(case.log_commits(), 1);
    for number in 0..10 {
        let name = format!("s{number}");
        case.create(&name, b's', BLOCK);
        case.fsync(&name);
    }
    let (image, _, tags) = case.cut();
    // e2fsck makes a map when the next inode's record comes: each file's ranges stand together.
    let with_ranges = tags
        .iter()
        .filter(|tag| matches!(tag, Tag::Add(..) | Tag::Del(..)));
    let mut turns: Vec<Ino> = with_ranges.map(Tag::ino).collect();
    turns.dedup();
    assert_eq!(turns.iter().filter(|ino| **ino == a).count(), 1, "{tags:?}");
    for seen in [e2fsck_at_boot(&image), kernel(&image)] {
        assert!(seen.is_clean(), "{seen:?}");
        assert!(seen.holds("dir/moved", &expected), "{seen:?}");
        assert!(seen.holds("dir/s9", &[b's'; BLOCK]), "{seen:?}");
    }
    after_a_cut(&case.device);
}
