//! F13 in docs/logtree.md: an area that is full of fast commits.

use lanefs_engine::{Ino, InodeFs};
use ondisk::fast_commit::FcRecord;
use testkit::Manifest;

use super::case::{e2fsck_at_boot, kernel, shows};
use crate::fc_area::FcArea;
use crate::fsync_log::{NEW, after_a_cut, count, device, image, shared};
use crate::image::open;

fn name(number: usize) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

/// A new file, fsynced, which takes one block of the area, or a full commit.
fn fsync_new(fs: &InodeFs, number: usize) {
    let file = fs.create(Ino::ROOT, &name(number), NEW).unwrap();
    fs.fsync(file).unwrap();
}

fn has_all(tree: Option<&Manifest>, files: usize) -> bool {
    let has = |tree: &Manifest| (0..files).all(|number| tree.entries.contains_key(&*name(number)));
    tree.is_some_and(has)
}

/// An image where the area's last block holds nothing but PAD, behind which a scan goes on.
fn padded() -> Option<(Vec<u8>, FcArea)> {
    let mut image = image("4096")?;
    let area = FcArea::of(&open(shared(&device(testkit::copy_image(&image)))), &image);
    let last = area.block(&mut image, area.len() - 1);
    let mut pad = Vec::new();
    FcRecord::Pad(&vec![0; last.len() - 4]).write(&mut pad);
    last.copy_from_slice(&pad);
    Some((image, area))
}

#[test]
fn f13_who_fills_the_area_to_its_last_block_loses_the_journal() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let Some((image, area)) = padded() else {
        return;
    };
    let (first, files) = (device(image), 8);
    let fs = open(shared(&first));
    (0..files).for_each(|number| fsync_new(&fs, number));
    let mut image = first.bytes();
    // The last one said again and again, to the last block, is replayed to the same.
    let again = area.block(&mut image, files - 1).to_vec();
    for block in files..area.len() {
        area.block(&mut image, block).copy_from_slice(&again);
    }
    for seen in [kernel(&image), e2fsck_at_boot(&image)] {
        let has_all = has_all(seen.tree.as_ref(), files);
        shows(!has_all, has_all, &seen);
    }
    let fs = open(shared(&device(image)));
    let is_there = |number| fs.lookup(Ino::ROOT, &name(number)).is_ok();
    assert!((0..files).all(is_there), "lanefs reads such an area");
}

#[test]
fn f13_the_areas_last_block_is_never_used() {
    let Some((image, area)) = padded() else {
        return;
    };
    let device = device(image);
    let fs = open(shared(&device));
    let files = area.len() - 1;
    (0..files).for_each(|number| fsync_new(&fs, number));
    assert_eq!(count(&fs, "fsync.log_blocks"), files as u64);
    let seen = after_a_cut(&device);
    assert!(has_all(Some(&seen), files));
    let seen = e2fsck_at_boot(&device.bytes());
    assert!(has_all(seen.tree.as_ref(), files), "{seen:?}");
    assert_eq!(count(&fs, "journal.commits"), 0);
    fsync_new(&fs, files);
    assert_eq!(count(&fs, "journal.commits"), 1);
    assert_eq!(count(&fs, "fsync.full_log_ended"), 1);
    let seen = after_a_cut(&device);
    assert!(has_all(Some(&seen), files + 1));
}

#[test]
fn f13_an_area_without_a_block_to_use_is_none() {
    // One more is left unused before it.
    for (blocks, used) in [(1, 0), (2, 0), (3, 1), (4, 2)] {
        let Some((mut image, area)) = padded() else {
            return;
        };
        let mut superblock = area.superblock(&image);
        superblock.set_fast_commit_blocks_raw(blocks);
        area.set_superblock(&mut image, &superblock);
        let device = device(image);
        let fs = open(shared(&device));
        for number in 0..5 {
            fsync_new(&fs, number);
            let seen = after_a_cut(&device);
            assert!(has_all(Some(&seen), number + 1), "{blocks}");
        }
        let counters = fs.counters();
        let logged = counters
            .iter()
            .find(|(name, _)| *name == "fsync.log_blocks");
        let logged = logged.map_or(0, |(_, logged)| *logged);
        // A log that is full ends with a full commit, which the next fsync may follow with another log.
        assert!(
            logged >= used && (used > 0 || logged == 0),
            "{blocks}: {logged}"
        );
    }
}
