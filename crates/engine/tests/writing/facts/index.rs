//! F15 and F22 in docs/logtree.md: maps for which a replay takes a block, or that have some. That what lanefs logs
//! avoids F15 shows `f15_a_map_with_an_index_is_committed_in_full` beside the other tests of the fsync log.

use std::collections::BTreeSet;

use lanefs_engine::{Allocate, Ino, InodeFs};
use ondisk::extent::Extent;
use ondisk::{FsBlock, LBlock};

use super::case::{Case, OLD, e2fsck_at_boot, kernel, record, shows};
use crate::fc_area::Tag;
use crate::fsync_log::{after_a_cut, count, device, shared};
use crate::image::open;

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

/// Free blocks of the image's one group, as dumpe2fs lists them.
fn free_blocks(image: &[u8]) -> BTreeSet<u32> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    let told = testkit::dumpe2fs(&[path.to_str().unwrap()]);
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

/// Pieces whose leaves take all four places of the inode's map.
const PIECES: u64 = 1340;

/// A file of many pieces is made anew with three extents, of which one was never written and lies behind the end.
fn remade(fs: &InodeFs, ino: Ino) -> Vec<u8> {
    let block = BLOCK as u64;
    fs.truncate(ino, 0).unwrap();
    fs.write(ino, 2 * block, &[b'n'; BLOCK]).unwrap();
    fs.write(ino, 170 * block, &[b'n'; 11 * BLOCK]).unwrap();
    let (from, len) = (300 * block, 700 * block);
    fs.allocate(ino, Allocate::KeepSize, from, len).unwrap();
    let mut expected = vec![0; 181 * BLOCK];
    expected[2 * BLOCK..3 * BLOCK].fill(b'n');
    expected[170 * BLOCK..].fill(b'n');
    expected
}

/// Records that make the map of the file in the last full commit that which it has in another: added first, then taken
/// from the end on.
fn ranges(then: &InodeFs, ino: Ino) -> Vec<Tag> {
    let (mut added, mut taken) = (Vec::new(), Vec::new());
    let mut end = 0;
    for run in then.mappings(ino).unwrap() {
        let run = run.unwrap();
        let Some(FsBlock(at)) = run.physical else {
            continue;
        };
        let (first, len) = (u32::try_from(run.logical).unwrap(), run.len);
        if first > end {
            taken.push(Tag::Del(ino, end, first - end));
        }
        end = first + u32::try_from(len).unwrap();
        let len = u16::try_from(len).unwrap();
        let extent = Extent::new(LBlock(first), len, FsBlock(at), run.unwritten);
        added.push(Tag::Add(ino, extent.to_bytes()));
    }
    taken.push(Tag::Del(ino, end, 2 * PIECES as u32 - end));
    taken.reverse();
    [added, taken].concat()
}

#[test]
fn f22_the_kernel_goes_wrong_where_a_map_had_an_index() {
    let Some(case) = Case::new() else { return };
    let file = case.pieces("pieces", PIECES);
    let then = device(case.device.bytes());
    let fs = open(shared(&then));
    let expected = remade(&fs, file);
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    let mut told = ranges(&fs, file);
    told.push(record(&then.bytes(), file));
    case.change_mode(case.ino("b"));
    case.fsync("b");
    let (mut image, area, tags) = case.cut();
    // Its data, which fsync writes before the log.
    for run in fs.mappings(file).unwrap() {
        let run = run.unwrap();
        if let Some(FsBlock(at)) = run.physical.filter(|_| !run.unwritten) {
            image[at as usize * BLOCK..][..run.len as usize * BLOCK].fill(b'n');
        }
    }
    area.write(&mut image, &[tags, told].concat(), None);
    let seen = e2fsck_at_boot(&image);
    assert!(seen.is_clean() && seen.holds("dir/pieces", &expected));
    let seen = kernel(&image);
    let is_right = seen.is_clean() && seen.holds("dir/pieces", &expected);
    let is_wrong = seen.wrong.contains("end of extent exceeds");
    shows(is_wrong && seen.has("dir/a"), is_right, &seen);
}

#[test]
fn f22_a_map_that_had_an_index_is_committed_in_full() {
    for (pieces, loads_anew) in [(20, false), (20, true), (PIECES, true)] {
        let Some(mut case) = Case::new() else { return };
        let file = case.pieces("pieces", pieces);
        if loads_anew {
            let image = case.device.bytes();
            case.device = device(image);
            case.fs = open(shared(&case.device));
        }
        let expected = remade(&case.fs, file);
        case.fsync("pieces");
        assert_eq!(case.log_commits(), 0);
        assert_eq!(count(&case.fs, "fsync.full_unloggable"), 1);
        for seen in [kernel(&case.cut().0), e2fsck_at_boot(&case.cut().0)] {
            assert!(seen.is_clean(), "{seen:?}");
            assert!(seen.holds("dir/pieces", &expected), "{seen:?}");
        }
        // From the full commit on it has none.
        case.fs.write(file, 0, &[b'n'; BLOCK]).unwrap();
        case.fsync("pieces");
        assert_eq!(case.log_commits(), 1);
        after_a_cut(&case.device);
        // Nor is one logged that comes and goes again.
        for place in 0..10 {
            let offset = (1001 + 2 * place) * BLOCK as u64;
            case.fs.write(file, offset, &[b'p'; BLOCK]).unwrap();
        }
        case.fs.truncate(file, 181 * BLOCK as u64).unwrap();
        case.fsync("pieces");
        assert_eq!(case.log_commits(), 1);
        after_a_cut(&case.device);
    }
}
