//! F15 in docs/logtree.md: a map for which a replay takes a block. That what lanefs logs avoids it shows
//! `f15_a_map_with_an_index_is_committed_in_full` beside the other tests of the fsync log.

use std::collections::BTreeSet;

use super::case::{Case, OLD, e2fsck_at_boot, shows};
use crate::fc_area::Tag;

const BLOCK: usize = 4096;
/// Blocks of the file that has a hole, and of that whose data are to be lost.
const HOLES: usize = 16;
const OTHERS: u32 = 100;

/// An ADD_RANGE's extent.
fn extent(first: u32, blocks: u32, physical: u32) -> [u8; 12] {
    let len = u16::try_from(blocks).unwrap();
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&first.to_le_bytes());
    bytes[4..6].copy_from_slice(&len.to_le_bytes());
    bytes[8..].copy_from_slice(&physical.to_le_bytes());
    bytes
}

/// First block and number of blocks that an ADD_RANGE takes on the device.
fn taken(tag: &Tag) -> Option<(u32, u32)> {
    let Tag::Add(_, bytes) = tag else { return None };
    let len = u16::from_le_bytes([bytes[4], bytes[5]]);
    let first = u32::from_le_bytes(bytes[8..].try_into().unwrap());
    Some((first, u32::from(len)))
}

/// Blocks of the image's one group that nobody has, as dumpe2fs lists them.
fn free_blocks(image: &[u8]) -> BTreeSet<u32> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, image).unwrap();
    let told = testkit::run("dumpe2fs", &[path.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let list = told
        .lines()
        .filter_map(|line| line.strip_prefix("  Free blocks: "));
    let runs = list.flat_map(|line| line.split(", "));
    runs.flat_map(|run| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        first.parse().unwrap()..=last.parse().unwrap()
    })
    .collect()
}

#[test]
fn f15_e2fsck_puts_an_index_where_another_files_data_are() {
    let Some(case) = Case::new() else { return };
    let holes = case.create("holes", b'h', BLOCK);
    case.fs.truncate(holes, (HOLES * BLOCK) as u64).unwrap();
    for place in [2, 4, 6] {
        let offset = place * BLOCK as u64;
        case.fs.write(holes, offset, &[b'h'; BLOCK]).unwrap();
    }
    case.fsync("holes");
    let other = case.create("other", b'o', BLOCK);
    let size = (OTHERS as usize + 1) * BLOCK;
    case.fs.truncate(other, size as u64).unwrap();
    case.fsync("other");
    assert_eq!(case.log_commits(), 2);
    let (mut image, area, mut tags) = case.cut();
    let mut free = free_blocks(&image);
    for (first, blocks) in tags.iter().filter_map(taken) {
        (first..first + blocks).for_each(|block| assert!(free.remove(&block)));
    }
    // Two pieces more in the first file's holes, from the end of what is free; and the other file's data are all that
    // is free behind the first one's.
    let of_holes = |tag: &&Tag| tag.ino() == holes;
    let goal = tags.iter().filter(of_holes).find_map(taken).unwrap().0;
    let last = tags.iter().rposition(|tag| tag.ino() == holes).unwrap();
    for place in [8, 10] {
        let physical = free.pop_last().unwrap();
        image[physical as usize * BLOCK..][..BLOCK].fill(b'h');
        tags.insert(last + 1, Tag::Add(holes, extent(place, 1, physical)));
    }
    for (place, physical) in free.range(goal..).take(OTHERS as usize).enumerate() {
        image[*physical as usize * BLOCK..][..BLOCK].fill(b'o');
        let first = u32::try_from(place).unwrap() + 1;
        tags.push(Tag::Add(other, extent(first, 1, *physical)));
    }
    area.write(&mut image, &tags, None);
    let seen = e2fsck_at_boot(&image);
    assert!(seen.holds("dir/a", &[b'a'; OLD]), "{seen:?}");
    let is_right = seen.holds("dir/other", &vec![b'o'; size]);
    shows(!is_right, is_right, &seen);
    assert!(seen.has("dir/other"), "{seen:?}");
    // Nothing of it is refused, so all of it was replayed.
    let mut expected = vec![b'h'; BLOCK];
    expected.resize(HOLES * BLOCK, 0);
    for place in [2, 4, 6, 8, 10] {
        expected[place * BLOCK..][..BLOCK].fill(b'h');
    }
    assert!(seen.holds("dir/holes", &expected), "{seen:?}");
}
