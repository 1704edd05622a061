//! F23 in docs/logtree.md: logs whose replay by Linux takes minutes. How long it takes shows no test, for that depends
//! on the machine; that no log gets that far shows the counter.

use lanefs_engine::{Allocate, Ino};

use super::case::{Case, OLD, wrong_after_e2fsck_at_boot};
use crate::fsync_log::{NEW, count, device, shared};
use crate::image::{make, open};

const BLOCK: u64 = 4096;
/// Bytes of a file whose holes take a fourth of what a log may bring.
const SPARSE: u64 = 4 << 30;

/// An image whose area has room for more than a log's replay may cost, open, with a file that is home.
fn wide(bytes: u64) -> Option<Case> {
    let journal = "size=8,fast_commit_size=1024";
    let options = ["-b", "4096", "-O", "fast_commit", "-J", journal];
    let device = device(make(&options, bytes)?);
    let fs = open(shared(&device));
    fs.choose("log_use=always").unwrap();
    let dir = fs.mkdir(Ino::ROOT, b"dir", NEW).unwrap();
    let case = Case { device, fs, dir };
    case.create("b", b'b', OLD);
    case.fs.sync().unwrap();
    Some(case)
}

fn over_budget(case: &Case) -> u64 {
    count(&case.fs, "fsync.full_replay_budget")
}

/// Writes a block behind those that are there, so that the file's map stays one extent; whether that was logged.
fn is_append_logged(case: &Case, file: Ino, block: u64) -> bool {
    let before = (case.log_commits(), over_budget(case));
    let bytes = [b'n'; BLOCK as usize];
    case.fs.write(file, block * BLOCK, &bytes).unwrap();
    case.fs.fsync(file).unwrap();
    let logged = case.log_commits() - before.0;
    assert_eq!(logged + over_budget(case) - before.1, 1);
    logged == 1
}

#[test]
fn f23_holes_that_a_replay_looks_at_are_bounded_for_each_log() {
    let Some(case) = wide(64 << 20) else { return };
    let file = case.create("sparse", b's', 0);
    case.fs.truncate(file, SPARSE).unwrap();
    let logged: Vec<bool> = (0..8)
        .map(|block| is_append_logged(&case, file, block))
        .collect();
    // After a full commit the next log takes four of five again.
    let four_of_five =
        |from: usize| logged[from..from + 4].iter().all(|is| *is) && !logged[from + 4];
    assert!(four_of_five(0), "{logged:?}");
    assert!(logged[5..].iter().all(|is| *is), "{logged:?}");
    assert_eq!(wrong_after_e2fsck_at_boot(&case.cut().0), "");
    // What a file had before it was cut counts: the replay begins with that.
    case.fs.truncate(file, 4 * SPARSE + 64 * BLOCK).unwrap();
    case.fs.sync().unwrap();
    case.fs.truncate(file, 8 * BLOCK).unwrap();
    assert!(!is_append_logged(&case, file, 8));
    assert!(is_append_logged(&case, file, 9));
    assert_eq!(count(&case.fs, "fsync.full_unloggable"), 0);
}

#[test]
fn f23_a_large_file_without_holes_is_appended_to_in_one_log() {
    let Some(case) = wide(160 << 20) else { return };
    let file = case.create("large", b's', 0);
    let len = 96 << 20;
    case.fs.allocate(file, Allocate::Grow, 0, len).unwrap();
    case.fs.sync().unwrap();
    for block in 0..500 {
        assert!(
            is_append_logged(&case, file, len / BLOCK + block),
            "{block}"
        );
        // The area has room for 200 such blocks.
        if block % 200 == 199 {
            case.fs.sync().unwrap();
        }
    }
}

#[test]
fn f23_extents_that_a_replay_writes_are_bounded_for_each_log() {
    let Some(case) = wide(64 << 20) else { return };
    let pieces = case.pieces("pieces", 300);
    let mut logged = 0;
    while over_budget(&case) == 0 {
        case.fs.write(pieces, BLOCK, &[b'o'; 100]).unwrap();
        case.change_mode(pieces);
        case.fsync("pieces");
        logged += 1;
        assert!(logged < 100);
    }
    // Of 340 extents, which fit in the map's one leaf.
    assert_eq!(logged, 16_384 / 340 + 1);
    assert_eq!(case.log_commits(), 16_384 / 340);
    // Maps in their inodes take more fsyncs than the area has blocks.
    let b = case.ino("b");
    for _ in 0..200 {
        case.change_mode(b);
        case.fsync("b");
    }
    assert_eq!(over_budget(&case), 1);
    assert_eq!(case.log_commits(), 16_384 / 340 + 200);
    assert_eq!(wrong_after_e2fsck_at_boot(&case.cut().0), "");
}
