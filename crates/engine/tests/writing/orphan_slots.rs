//! The orphan file with more orphans than it has slots, as e2fsck and the kernel finish them; forms that follow one
//! another; files of slots that nobody honest wrote; and the form that notes nothing down.
//!
//! Cuts and schedules around a file that is full: `src/fs/orphan_tests.rs`.

use std::path::Path;

use device::{BlockDevice, CountedDevice, MemoryDevice};
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, NewInode, OrphanForm};
use ondisk::{BlockSize, Feature, FsBlock, orphan_file};
use simulate::CowDevice;
use sync::Arc;

use crate::files::{judge_image, opened};
use crate::image::{clock, make, open};

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// Orphan files of one block, with 254 and 1022 slots.
const FORMS: [&[&str]; 4] = [
    &[
        "-b",
        "1024",
        "-O",
        "orphan_file",
        "-E",
        "orphan_file_size=1",
    ],
    &[
        "-b",
        "1024",
        "-O",
        "orphan_file,^metadata_csum",
        "-E",
        "orphan_file_size=1",
    ],
    &[
        "-b",
        "4096",
        "-O",
        "orphan_file",
        "-E",
        "orphan_file_size=1",
    ],
    &[
        "-b",
        "4096",
        "-O",
        "orphan_file,^metadata_csum",
        "-E",
        "orphan_file_size=1",
    ],
];

fn image(options: &[&str]) -> Option<Vec<u8>> {
    let mut options = options.to_vec();
    options.extend(["-N", "2048"]);
    make(&options, 24 << 20)
}

fn slots(fs: &InodeFs) -> usize {
    orphan_file::slots_per_block(fs.geometry().block_size())
}

/// Makes `count` orphans: files without a name, and whatever can lose its name while it is held.
fn leave_orphans(fs: &InodeFs, count: usize) -> Vec<Ino> {
    let make = |number: usize| {
        let name = b"held";
        let made = match number % 8 {
            0 => fs.symlink(Ino::ROOT, name, b"short", NEW),
            1 => fs.symlink(Ino::ROOT, name, &[b'x'; 300], NEW),
            2 => fs.mkdir(Ino::ROOT, name, NEW),
            3 | 4 => fs.create(Ino::ROOT, name, NEW),
            _ => fs.create_unnamed(Ino::ROOT, NEW),
        };
        let ino = made.unwrap();
        if number % 8 > 2 {
            fs.write(ino, 0, &[7; 900]).unwrap();
        }
        if number % 8 < 5 {
            fs.hold(ino).unwrap();
            let removed = match number % 8 {
                2 => fs.rmdir(Ino::ROOT, name),
                _ => fs.unlink(Ino::ROOT, name),
            };
            removed.unwrap();
        }
        ino
    };
    (0..count).map(make).collect()
}

fn counter(fs: &InodeFs, name: &str) -> u64 {
    let counters = fs.counters();
    let found = counters.iter().find(|(known, _)| *known == name);
    found.unwrap().1
}

/// An image as a crash leaves it, with more orphans than slots.
struct Left {
    image: Vec<u8>,
    orphans: usize,
    /// Inodes that are free when all is finished.
    free: u64,
}

fn with_orphans_in_slots_and_on_the_list(options: &[&str]) -> Option<Left> {
    let image = image(options)?;
    let (device, fs) = opened(&image);
    let free = fs.statfs().unwrap().free_files;
    let count = slots(&fs) + 9;
    leave_orphans(&fs, count);
    assert_eq!(counter(&fs, "orphan.slots_taken"), slots(&fs) as u64);
    assert_eq!(counter(&fs, "orphan.list_fallbacks"), 9);
    fs.sync().unwrap();
    drop(fs);
    Some(Left {
        image: device.bytes(),
        orphans: count,
        free,
    })
}

fn e2fsck(path: &Path, options: &[&str]) -> (i32, String) {
    let output = testkit::e2fsck_with(options, path);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap(), text)
}

/// What the superblock counts free, after e2fsck agreed with it.
fn free_inodes(path: &Path) -> u64 {
    testkit::e2fsck(path);
    let output = testkit::dumpe2fs(&["-h", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("Free inodes:"));
    line.unwrap()["Free inodes:".len()..]
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn e2fsck_finishes_the_orphans_that_we_leave_in_slots_and_on_the_list() {
    for options in FORMS {
        let Some(left) = with_orphans_in_slots_and_on_the_list(options) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &left.image);
        let (status, text) = e2fsck(&path, &["-fy"]);
        assert!(status <= 1, "{text}");
        assert_eq!(
            text.matches("Clearing orphaned inode").count(),
            left.orphans,
            "{text}"
        );
        assert_eq!(free_inodes(&path), left.free);
    }
}

#[test]
fn the_kernel_finishes_the_orphans_that_we_leave_in_slots_and_on_the_list() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    for options in FORMS {
        let Some(left) = with_orphans_in_slots_and_on_the_list(options) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &left.image);
        drop(testkit::KernelMount::with(&path, "loop").unwrap());
        assert_eq!(free_inodes(&path), left.free);
    }
}

#[test]
fn we_finish_the_orphans_that_we_left_and_the_file_is_empty_then() {
    for options in FORMS {
        let Some(left) = with_orphans_in_slots_and_on_the_list(options) else {
            return;
        };
        let (device, fs) = opened(&left.image);
        assert_eq!(fs.statfs().unwrap().free_files, left.free);
        // All slots are free again.
        let held = leave_orphans(&fs, slots(&fs) + 1);
        assert_eq!(counter(&fs, "orphan.list_fallbacks"), 1);
        for ino in held {
            fs.release(ino).unwrap();
        }
        fs.close().unwrap();
        judge_image(&device);
        let fs = InodeFs::open(device, &MountOptions::default()).unwrap();
        assert!(!fs.superblock().features().has(Feature::ORPHAN_PRESENT));
        assert!(fs.superblock().last_orphan().is_none());
    }
}

#[test]
fn orphans_in_blocks_of_other_sizes_are_finished_by_e2fsck_and_by_us() {
    for (block, megabytes) in [(2048, 16), (16_384, 48), (65_536, 160)] {
        for features in ["orphan_file", "orphan_file,^metadata_csum", "^orphan_file"] {
            finish_orphans(block, features, megabytes << 20);
        }
    }
}

/// More orphans than a range has slots, so that each block of the file has some; or all of them on the list.
fn finish_orphans(block: usize, features: &str, size: u64) {
    let (case, block) = (format!("{block}, {features}"), format!("{block}"));
    let mut options = vec!["-b", &block, "-O", features];
    if features.starts_with("orphan_file") {
        options.extend(["-E", "orphan_file_size=2"]);
    }
    let Some(image) = make(&options, size) else {
        return;
    };
    let count = 300;
    let (device, fs) = opened(&image);
    let free = fs.statfs().unwrap().free_files;
    leave_orphans(&fs, count);
    if features.starts_with("orphan_file") {
        assert_eq!(counter(&fs, "orphan.slots_taken"), count as u64, "{case}");
        // Neighbouring ranges are in different blocks.
        assert!(counter(&fs, "orphan.ranges_skipped") > 0, "{case}");
    }
    fs.sync().unwrap();
    drop(fs);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    let (status, text) = e2fsck(&path, &["-fy"]);
    assert!(status <= 1, "{case}: {text}");
    let cleared = text.matches("Clearing orphaned inode").count();
    assert_eq!(cleared, count, "{case}: {text}");
    assert_eq!(free_inodes(&path), free, "{case}");
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    assert_eq!(fs.statfs().unwrap().free_files, free, "{case}");
    fs.close().unwrap();
    judge_image(&device);
}

#[test]
fn an_entry_goes_whatever_form_made_it() {
    let Some(image) = image(FORMS[0]) else {
        return;
    };
    let (device, fs) = opened(&image);
    let free = fs.statfs().unwrap().free_files;
    let mut held = Vec::new();
    for form in ["locked", "list", "lockless", "list", "locked"] {
        fs.choose(&format!("orphan={form}")).unwrap();
        held.extend(leave_orphans(&fs, 4));
    }
    assert_eq!(counter(&fs, "orphan.slots_taken"), 12);
    // From the middle of the list, its head and its end; slots by each form.
    for (round, place) in [9, 2, 4, 0, 7, 5, 1, 3, 2, 6, 0, 1].into_iter().enumerate() {
        let form = ["list", "lockless", "locked"][round % 3];
        fs.choose(&format!("orphan={form}")).unwrap();
        fs.release(held.remove(place)).unwrap();
    }
    fs.sync().unwrap();
    drop(fs);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    let (status, text) = e2fsck(&path, &["-fp"]);
    assert!(status <= 1, "{text}");
    assert_eq!(text.matches("Clearing orphaned inode").count(), 8, "{text}");
    assert_eq!(free_inodes(&path), free);
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    fs.close().unwrap();
    judge_image(&device);
}

/// The orphan file's blocks on an image, and the seed of their checksums.
fn orphan_file_of(image: &[u8]) -> (Ino, Vec<FsBlock>, Option<u32>) {
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = InodeFs::open(device, &MountOptions::default()).unwrap();
    let ino = fs.superblock().orphan_file_ino().unwrap();
    let runs = fs.mappings(ino).unwrap();
    let blocks = runs.flat_map(|run| {
        let run = run.unwrap();
        let start = run.physical.unwrap().0;
        (start..start + run.len).map(FsBlock)
    });
    let blocks = blocks.collect();
    let generation = fs.metadata(ino).unwrap().generation;
    let geometry = fs.geometry();
    let seed = ondisk::inode::checksum_seed(geometry.csum_seed(), ino, generation);
    (ino, blocks, geometry.has_metadata_csum().then_some(seed))
}

/// The image, marked as one with orphans, with these numbers in the slots of its orphan file's first block.
fn with_slots(image: &[u8], numbers: &[(usize, u32)]) -> Vec<u8> {
    let (_, blocks, seed) = orphan_file_of(image);
    let mut image = testkit::copy_image(image);
    let size = BlockSize::K1.bytes();
    let start = blocks[0].0 as usize * size;
    let block = &mut image[start..start + size];
    for (slot, number) in numbers {
        orphan_file::set_slot(block, *slot, Some(Ino(*number)));
    }
    orphan_file::seal(block, blocks[0], seed);
    let bytes = image[1024..2048].try_into().unwrap();
    let mut superblock = *ondisk::Superblock::view(&bytes);
    let features = superblock.features().with(Feature::ORPHAN_PRESENT);
    superblock.set_features(features);
    superblock.seal();
    image[1024..2048].copy_from_slice(superblock.bytes());
    image
}

#[test]
fn slots_that_nobody_honest_wrote_are_put_on_record_and_the_others_finished() {
    let Some(image) = image(FORMS[0]) else {
        return;
    };
    let (device, fs) = opened(&image);
    let kept = fs.create(Ino::ROOT, b"kept", NEW).unwrap();
    fs.write(kept, 0, &[3; 5000]).unwrap();
    let doomed = fs.create_unnamed(Ino::ROOT, NEW).unwrap();
    // What is held when it is closed stays an orphan.
    fs.close().unwrap();
    let closed = device.bytes();
    let (own, ..) = orphan_file_of(&closed);
    let bad = [
        (100, 8),
        (101, 2),
        (102, 2049),
        (103, u32::MAX),
        (104, own.0),
        // Not in use; in use with its name, and twice.
        (105, 1900),
        (106, kept.0),
        (107, kept.0),
        (108, doomed.0),
    ];
    let bad = with_slots(&closed, &bad);
    let (device, fs) = opened(&bad);
    // The file with a name is an orphan in the middle of being cut, and so keeps what it has; it may be there twice,
    // for the first entry is gone when the second is met. The doomed one's second entry is of an unused inode then.
    assert_eq!(fs.recorded_errors(), 7);
    let mut bytes = vec![0; 5000];
    assert_eq!(fs.read(kept, 0, &mut bytes).unwrap(), 5000);
    assert!(bytes.iter().all(|byte| *byte == 3));
    assert!(matches!(fs.metadata(doomed), Err(Error::NotFound)));
    let held = leave_orphans(&fs, slots(&fs));
    assert_eq!(counter(&fs, "orphan.list_fallbacks"), 7);
    for ino in held {
        fs.release(ino).unwrap();
    }
    fs.close().unwrap();
    // What can't be finished is still there, and e2fsck takes care of it.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    let (_, text) = e2fsck(&path, &["-fy"]);
    assert!(text.contains("rphan"), "{text}");
    testkit::e2fsck(&path);
}

#[test]
fn an_orphan_file_full_of_numbers_that_cannot_be_is_refused() {
    let Some(image) = make(&["-b", "1024", "-O", "orphan_file"], 24 << 20) else {
        return;
    };
    let (_, blocks, seed) = orphan_file_of(&image);
    let mut bad = with_slots(&image, &[]);
    for block in blocks {
        let start = block.0 as usize * 1024;
        let bytes = &mut bad[start..start + 1024];
        for slot in 0..254 {
            orphan_file::set_slot(bytes, slot, Some(Ino(u32::MAX - slot as u32)));
        }
        orphan_file::seal(bytes, block, seed);
    }
    let device = Arc::new(CowDevice::new(bad.into()));
    let refused = InodeFs::open_for_writing(device, &MountOptions::default(), clock);
    assert!(matches!(refused, Err(Error::Corrupt(_))));
}

#[test]
fn the_orphan_files_inode_is_not_reached_by_a_name() {
    let Some(image) = image(FORMS[0]) else {
        return;
    };
    let (own, ..) = orphan_file_of(&image);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &image);
    let request = format!("ln <{}> bad", own.0);
    testkit::debugfs(&["-w", "-R", &request, path.to_str().unwrap()]);
    let (_, fs) = opened(&testkit::read_image(&path));
    let ino = fs.lookup(Ino::ROOT, b"bad").unwrap_or(own);
    let outcomes = [
        fs.write(ino, 0, b"x").map(drop),
        fs.truncate(ino, 0),
        fs.unlink(Ino::ROOT, b"bad"),
        fs.link(ino, Ino::ROOT, b"worse"),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(Error::Corrupt(_))), "{outcome:?}");
    }
}

#[test]
fn noting_nothing_down_is_for_measurements_on_a_device_in_memory() {
    let Some(image) = image(FORMS[0]) else {
        return;
    };
    let memory = || {
        let device = Arc::new(CountedDevice::new(MemoryDevice::new(image.len() as u64)));
        device.write_at(0, &image).unwrap();
        device
    };
    let nothing = |is_measurement| {
        let mut options = MountOptions {
            is_measurement,
            ..MountOptions::default()
        };
        options.variants.orphan = OrphanForm::Nothing;
        options
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &image).unwrap();
    let file: Arc<dyn BlockDevice> = Arc::new(device::FileDevice::open(file.path()).unwrap());
    let refused = [
        InodeFs::open_for_writing(Arc::clone(&file), &nothing(true), clock),
        InodeFs::open_for_writing(file, &nothing(false), clock),
        InodeFs::open_for_writing(memory(), &nothing(false), clock),
    ];
    for refused in refused {
        let text = refused.err().unwrap().to_string();
        assert!(text.contains("orphan=none"), "{text}");
    }
    let device = memory();
    let fs = InodeFs::open_for_writing(
        Arc::clone(&device) as Arc<dyn BlockDevice>,
        &nothing(true),
        clock,
    )
    .unwrap();
    assert!(fs.choose("orphan=none").is_err());
    let free = fs.statfs().unwrap().free_files;
    let mut held = leave_orphans(&fs, 20);
    assert_eq!(counter(&fs, "orphan.slots_taken"), 0);
    // An orphan that was not recorded is deleted all the same when it is released, in any form.
    fs.choose("orphan=lockless").unwrap();
    held.extend(leave_orphans(&fs, 3));
    assert_eq!(counter(&fs, "orphan.slots_taken"), 3);
    for ino in held {
        fs.release(ino).unwrap();
    }
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().free_files, free);
    fs.close().unwrap();
    let mut bytes = vec![0; image.len()];
    device.read_at(0, &mut bytes).unwrap();
    judge_image(&CowDevice::new(bytes.into()));
}
