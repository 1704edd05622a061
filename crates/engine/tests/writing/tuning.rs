//! An area for fast commits is made in a journal that has none, and taken away: by lanefs and the kernel it is used,
//! e2fsck finds nothing wrong, and a cut leaves it or the journal without it.

use std::fs;

use device::BlockDevice;
use lanefs_engine::{Clock, Error, Feature, Ino, InodeFs, Superblock, tune};
use ondisk::Features;
use ondisk::jbd2::{JournalFeatures, JournalSuperblock};
use simulate::{CowDevice, Cut, Recorder};
use sync::Arc;
use testkit::KernelMount;

use crate::fc_area::FcArea;
use crate::fsync_log::{NEW, after_a_cut, device, shared};
use crate::image::{clock, make, open};

fn set_area(device: &Arc<dyn BlockDevice>, is_wanted: bool) -> Result<(), Error> {
    tune(device, Clock::Ask(clock), |superblock| {
        let features = superblock.features();
        superblock.set_features(if is_wanted {
            features.with(Feature::FAST_COMMIT)
        } else {
            features.without(Feature::FAST_COMMIT)
        });
        Ok(())
    })
}

/// The log commits so far; none on an image without an area for fast commits.
fn log_commits(fs: &InodeFs) -> u64 {
    let counters = fs.counters();
    let mut logged = counters
        .iter()
        .filter(|(name, _)| *name == "fsync.log_commits");
    logged.next().map_or(0, |(_, count)| *count)
}

fn e2fsck(device: &CowDevice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    testkit::e2fsck(&path);
}

/// Makes a file and fsyncs it; the log commits that it took. What a cut leaves then is seen alike by all.
fn fsynced(device: &Arc<CowDevice>, name: &str) -> u64 {
    let fs = open(shared(device));
    let file = fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
    fs.write(file, 0, &[7; 9000]).unwrap();
    fs.fsync(file).unwrap();
    let logged = log_commits(&fs);
    let seen = after_a_cut(device);
    assert_eq!(seen.entries[name.as_bytes()].size, 9000);
    fs.close().unwrap();
    e2fsck(device);
    logged
}

/// The kernel writes a file and fsyncs it; whether it did so by a fast commit.
fn fsynced_by_kernel(device: &mut Arc<CowDevice>) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    let mounted = KernelMount::with(&path, "loop").unwrap();
    let root = mounted.path();
    fs::write(root.join("before"), "in a full commit").unwrap();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
    fs::write(root.join("by-linux"), [8; 9000]).unwrap();
    let file = fs::File::open(root.join("by-linux")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    drop(mounted);
    testkit::e2fsck(&path);
    let image = testkit::read_image(&path);
    *device = Arc::new(CowDevice::new(image.as_slice().into()));
    let fs = open(shared(&Arc::new(CowDevice::clone(device))));
    let area = FcArea::of(&fs, &image);
    // It is left where it was when the file system is unmounted.
    area.first(&image).starts_with(&[9, 0, 8, 0])
}

#[test]
fn an_area_that_was_made_is_used_by_lanefs_and_by_the_kernel() {
    for block_bytes in ["1024", "4096"] {
        let options = ["-b", block_bytes, "-J", "size=8"];
        let Some(image) = make(&options, 64 << 20) else {
            return;
        };
        let mut device = device(image);
        assert_eq!(fsynced(&device, "none"), 0);
        set_area(&shared(&device), true).unwrap();
        e2fsck(&device);
        assert_eq!(fsynced(&device, "on"), 1);
        if block_bytes == "4096" {
            if !testkit::is_root() {
                return testkit::skip("mounting needs root");
            }
            assert!(fsynced_by_kernel(&mut device), "the kernel uses it");
        }
        set_area(&shared(&device), false).unwrap();
        e2fsck(&device);
        assert_eq!(fsynced(&device, "off"), 0);
        set_area(&shared(&device), true).unwrap();
        assert_eq!(fsynced(&device, "again"), 1);
    }
}

#[test]
fn an_area_that_tune2fs_made_is_used() {
    if !testkit::have("tune2fs") {
        return testkit::skip("needs tune2fs");
    }
    let Some(image) = make(&["-b", "4096", "-J", "size=8"], 64 << 20) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &image);
    testkit::tune2fs(&["-O", "fast_commit", path.to_str().unwrap()]);
    let device = device(testkit::read_image(&path));
    assert_eq!(fsynced(&device, "file"), 1);
}

#[test]
fn a_journal_without_room_for_an_area_stays_as_it_is() {
    // 1024 blocks, all of which the log needs.
    let Some(image) = make(&["-b", "4096", "-J", "size=4"], 16 << 20) else {
        return;
    };
    let device = device(testkit::copy_image(&image));
    let refused = set_area(&shared(&device), true).unwrap_err().to_string();
    assert!(
        refused.contains("the journal has 1024 blocks") && refused.contains("it needs 1040"),
        "{refused}"
    );
    assert!(device.bytes() == image, "something was written");
}

/// tune2fs turns the feature on and does not look at the journal: Linux then refuses the mount, or takes what an area
/// needs from a log that needs it.
#[test]
fn asking_again_for_an_area_that_has_no_room_makes_it_or_says_why_not() {
    if !testkit::have("tune2fs") {
        return testkit::skip("needs tune2fs");
    }
    for (size, has_room) in [("size=4", false), ("size=5", true)] {
        let Some(image) = make(&["-b", "4096", "-J", size], 32 << 20) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &image);
        testkit::tune2fs(&["-O", "fast_commit", path.to_str().unwrap()]);
        let image = testkit::read_image(&path);
        let device = device(testkit::copy_image(&image));
        match set_area(&shared(&device), true) {
            Ok(()) => {
                assert!(has_room, "{size}");
                assert_eq!(fsynced(&device, "file"), 1);
            }
            Err(error) => {
                let error = error.to_string();
                assert!(
                    !has_room && error.contains("it needs 1040"),
                    "{size}: {error}"
                );
                assert!(device.bytes() == image, "something was written");
            }
        }
        // What does not ask for it changes nothing of it.
        let label = |superblock: &mut Superblock| {
            superblock.set_mount_count(7);
            Ok::<(), Error>(())
        };
        tune(&shared(&device), Clock::Ask(clock), label).unwrap();
        e2fsck(&device);
    }
}

#[test]
fn a_cut_while_an_area_is_made_or_taken_away_leaves_it_or_none() {
    let Some(none) = make(&["-b", "4096", "-J", "size=8"], 24 << 20) else {
        return;
    };
    let with = device(none.clone());
    set_area(&shared(&with), true).unwrap();
    let mut states = [0, 0];
    for (before, is_wanted) in [(none, true), (with.bytes(), false)] {
        let recorder = Arc::new(Recorder::new(&before));
        set_area(&(Arc::clone(&recorder) as Arc<dyn BlockDevice>), is_wanted).unwrap();
        let mut cuts = recorder.cuts();
        let points: Vec<usize> = cuts.points().collect();
        assert!(points.len() > 3, "{points:?}");
        for event in points {
            for seed in 0..4 {
                let state = cuts.state(Cut { event, seed });
                let device = Arc::new(state);
                let fs = open(shared(&device));
                let has_area = fs.superblock().features().has(Feature::FAST_COMMIT);
                let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
                fs.fsync(file).unwrap();
                let logged = log_commits(&fs);
                assert_eq!(logged, u64::from(has_area), "{event}, {seed}");
                fs.close().unwrap();
                e2fsck(&device);
                states[usize::from(has_area)] += 1;
            }
        }
    }
    assert!(states[0] > 3 && states[1] > 3, "{states:?}");
}

/// Copies of the superblock stay as they are, so the first one says something else from then on: of it, and of what
/// other writers turn on when it is needed.
#[test]
fn a_superblock_that_is_torn_behind_a_tune_keeps_its_area_and_its_orphans() {
    let groups: [&[&str]; 2] = [&[], &["-g", "4096"]];
    for more in groups {
        let mut options = vec!["-b", "1024", "-J", "size=8"];
        options.extend(["-O", "^orphan_file,^ext_attr,^large_file,^resize_inode"]);
        options.extend(more);
        let Some(image) = make(&options, 24 << 20) else {
            return;
        };
        let device = device(image);
        let fs = open(shared(&device));
        let held = fs.create(Ino::ROOT, b"held", NEW).unwrap();
        fs.write(held, 0, &[2; 20_000]).unwrap();
        fs.hold(held).unwrap();
        fs.unlink(Ino::ROOT, b"held").unwrap();
        fs.sync().unwrap();
        drop(fs);
        let before = device.bytes();
        let turned_on = [Feature::FAST_COMMIT, Feature::EXT_ATTR, Feature::LARGE_FILE];
        let turn_on = |superblock: &mut Superblock| {
            let features = superblock.features();
            superblock.set_features(turned_on.into_iter().fold(features, Features::with));
            Ok::<(), Error>(())
        };
        tune(&shared(&device), Clock::Ask(clock), turn_on).unwrap();
        let mut torn = device.bytes();
        // Its checksum is there.
        torn[1536..2048].copy_from_slice(&before[1536..2048]);
        assert!(torn != device.bytes());
        let torn = Arc::new(CowDevice::new(torn.into()));
        let fs = open(shared(&torn));
        let features = fs.superblock().features();
        assert!(turned_on.into_iter().all(|feature| features.has(feature)));
        fs.close().unwrap();
        e2fsck(&torn);
    }
}

#[test]
fn what_is_taken_away_leaves_no_trace_in_the_journals_superblock() {
    let Some(image) = make(&["-b", "4096", "-J", "size=8"], 64 << 20) else {
        return;
    };
    let device = device(testkit::copy_image(&image));
    let area = FcArea::of(&open(shared(&Arc::new(CowDevice::clone(&device)))), &image);
    let said = |device: &CowDevice| -> JournalSuperblock { area.superblock(&device.bytes()) };
    assert_eq!(said(&device).fast_commit_blocks_raw(), 0);
    set_area(&shared(&device), true).unwrap();
    assert_eq!(said(&device).fast_commit_blocks_raw(), 256);
    // It says that there is one only while it is used.
    let feature = JournalFeatures::INCOMPAT_FAST_COMMIT;
    assert!(!said(&device).features().has_incompat(feature));
    set_area(&shared(&device), false).unwrap();
    assert_eq!(said(&device).fast_commit_blocks_raw(), 0);
    assert!(!said(&device).features().has_incompat(feature));
}
