//! F14 in docs/logtree.md: a log that goes over its end before an area for fast commits.

use device::BlockDevice;
use lanefs_engine::{Ino, InodeFs, MountOptions};
use ondisk::Tid;
use ondisk::jbd2::{BlockHeader, JournalFeatures, JournalSuperblock};
use simulate::{CowDevice, Cut};
use sync::Arc;

use super::case::{Seen, e2fsck_at_boot, shows};
use crate::fc_area::FcArea;
use crate::fsync_log::{NEW, after_a_cut, count, device, image, shared};
use crate::image::{clock, open, record};

fn name(number: usize) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

fn has_all(seen: &Seen, files: usize) -> bool {
    let tree = seen.tree.as_ref();
    let has = |number| tree.is_some_and(|tree| tree.entries.contains_key(&*name(number)));
    (0..files).all(has)
}

/// A new file and a full commit.
fn commit_new(fs: &InodeFs, number: usize) {
    fs.create(Ino::ROOT, &name(number), NEW).unwrap();
    fs.sync().unwrap();
}

/// The byte at which each block of the journal stands.
fn places(fs: &InodeFs) -> Vec<u64> {
    let runs = fs.mappings(Ino(8)).unwrap().map(Result::unwrap);
    let blocks = runs.flat_map(|run| {
        let start = run.physical.unwrap().0;
        start..start + run.len
    });
    blocks.map(|block| block * 4096).collect()
}

/// Where the log begins, and the places in it of blocks as young.
fn log(device: &CowDevice, places: &[u64]) -> (u32, Vec<u32>) {
    let mut bytes = vec![0; JournalSuperblock::SIZE];
    device.read_at(places[0], &mut bytes).unwrap();
    let sb = JournalSuperblock::read(&bytes).unwrap();
    let oldest: Tid = sb.sequence();
    let mut found = Vec::new();
    for position in sb.first()..sb.log_end() {
        let mut header = [0; 12];
        let at = places[position as usize];
        device.read_at(at, &mut header).unwrap();
        let header = BlockHeader::of(&header);
        if header.is_some_and(|header| header.tid().is_at_or_after(oldest)) {
            found.push(position);
        }
    }
    (sb.start(), found)
}

#[test]
fn f14_e2fsck_goes_over_a_logs_end_into_the_area() {
    let Some(mut image) = image("4096") else {
        return;
    };
    // A ring as long as the log beside the area is, and no area.
    let area = FcArea::of(&open(shared(&device(testkit::copy_image(&image)))), &image);
    let superblock = area.superblock(&image);
    let (blocks, in_area) = (superblock.blocks_count(), area.len() as u32 + 1);
    let mut shorter = superblock;
    shorter.set_blocks_count(blocks - in_area);
    area.set_superblock(&mut image, &shorter);
    let device = device(image);
    let options = MountOptions {
        fast_commits: false,
        ..MountOptions::default()
    };
    let fs = InodeFs::open_for_writing(shared(&device), &options, clock).unwrap();
    let places = places(&fs);
    let mut files = 0;
    loop {
        commit_new(&fs, files);
        files += 1;
        let (start, found) = log(&device, &places);
        if found.iter().filter(|position| **position < start).count() > 10 {
            break;
        }
    }
    let mut image = device.bytes();
    let mut with_area = area.superblock(&image);
    with_area.set_blocks_count(blocks);
    let mut features = with_area.features();
    features.incompat |= JournalFeatures::INCOMPAT_FAST_COMMIT;
    with_area.set_features(features);
    area.set_superblock(&mut image, &with_area);
    let seen = e2fsck_at_boot(&image);
    shows(!has_all(&seen, files), has_all(&seen, files), &seen);
    let fs = open(shared(&crate::fsync_log::device(image)));
    let is_there = |number| fs.lookup(Ino::ROOT, &name(number)).is_ok();
    assert!((0..files).all(is_there), "lanefs reads such a log");
}

#[test]
fn f14_before_an_area_a_log_never_goes_over_its_end() {
    let Some(image) = image("4096") else {
        return;
    };
    let device = device(image);
    let fs = open(shared(&device));
    let places = places(&fs);
    let (mut turns, mut furthest, mut files) = (0, 0, 0);
    while turns < 3 {
        commit_new(&fs, files);
        files += 1;
        let (start, found) = log(&device, &places);
        assert!(found.iter().all(|position| *position >= start), "{start}");
        let now = found.last().copied().unwrap_or(start);
        let has_turned = now < furthest;
        turns += u32::from(has_turned);
        if has_turned || turns == 0 && files == 100 {
            let seen = e2fsck_at_boot(&device.bytes());
            assert!(has_all(&seen, files), "{seen:?}");
            after_a_cut(&device);
        }
        furthest = now;
    }
    assert_eq!(count(&fs, "journal.commits"), files as u64);
}

/// Linux leaves fast commits behind a log that ends anywhere.
#[test]
fn f14_nor_does_the_transaction_that_stands_for_the_fast_commits_of_a_crash() {
    let Some(image) = image("4096") else {
        return;
    };
    let device = device(image);
    let fs = open(shared(&device));
    let file = fs.create(Ino::ROOT, &name(0), NEW).unwrap();
    fs.fsync(file).unwrap();
    let mut image = device.bytes();
    let area = FcArea::of(&fs, &image);
    let mut superblock = area.superblock(&image);
    assert_eq!(superblock.start(), superblock.first());
    superblock.set_start(superblock.log_end() - 1);
    area.set_superblock(&mut image, &superblock);
    let places = places(&fs);
    let mut cuts = record(&image, |_, fs| drop(fs));
    let points: Vec<usize> = cuts.points().collect();
    let (mut seen_in_log, mut last) = (0, None);
    for event in points {
        let state = cuts.state(Cut { event, seed: 1 });
        let (start, found) = log(&state, &places);
        assert!(found.iter().all(|position| *position >= start), "{event}");
        seen_in_log = found.len().max(seen_in_log);
        let reader = InodeFs::open(Arc::new(state.clone()), &MountOptions::default()).unwrap();
        assert!(reader.lookup(Ino::ROOT, &name(0)).is_ok(), "{event}");
        last = Some(state);
    }
    assert!(seen_in_log > 1, "{seen_in_log}");
    // Not at each cut: F1 has its moment between the commit and the wipe of the area.
    let last = last.expect("there are cuts");
    assert!(has_all(&e2fsck_at_boot(&last.bytes()), 1));
}
