//! Fast commits that Linux left behind: what lanefs makes of them is what Linux does, or where Linux can't, what they
//! mean.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use device::{BlockDevice, FileDevice, MemoryDevice, Scratch};
use lanefs_engine::{Ino, InodeFs, MountOptions};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use simulate::Cut;
use sync::Arc;
use testkit::{KernelMount, Manifest};

use crate::fsync_log;
use crate::image::{clock, open, record};
use crate::interop::manifest;

/// An image with an area for fast commits, mounted, and with some files in a full commit.
pub struct Linux {
    pub directory: tempfile::TempDir,
    pub image: PathBuf,
    pub mounted: KernelMount,
}

impl Linux {
    pub fn new(block_bytes: &str) -> Option<Linux> {
        Linux::with(block_bytes, "fast_commit", "size=8", 64)
    }

    pub fn with(block_bytes: &str, features: &str, journal: &str, mib: u64) -> Option<Linux> {
        if !testkit::is_root() || !testkit::have("mke2fs") {
            testkit::skip("needs root and mke2fs");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("live.img");
        File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let options = ["-t", "ext4", "-J", journal];
        let mut arguments = options.to_vec();
        arguments.extend(["-O", features, "-b", block_bytes, image.to_str().unwrap()]);
        testkit::mke2fs(&arguments);
        // On a busy machine Linux's own commit could come between a change and its fsync.
        let mounted = KernelMount::with(&image, "loop,commit=600").unwrap();
        let root = mounted.path();
        fs::create_dir(root.join("dir")).unwrap();
        for number in 0..8_u8 {
            let bytes = vec![number; 30_000];
            fs::write(root.join(format!("dir/old{number}")), bytes).unwrap();
        }
        testkit::run("sync", &["-f", root.to_str().unwrap()]);
        Some(Linux {
            directory,
            image,
            mounted,
        })
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.mounted.path().join("dir").join(name)
    }

    pub fn fsync(&self, name: &str) {
        File::open(self.at(name)).unwrap().sync_all().unwrap();
    }

    pub fn write(&self, name: &str, offset: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(self.at(name)).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn allocate(&self, name: &str, flags: FallocateFlags, offset: u64, len: u64) {
        let file = File::options().write(true).open(self.at(name)).unwrap();
        rustix::fs::fallocate(file, flags, offset, len).unwrap();
    }

    /// Whether a crash now leaves fast commits to replay.
    pub fn has_fast_commits(&self) -> bool {
        let image = self.crashed("look.img");
        let reader = InodeFs::open(device(&image), &MountOptions::default()).unwrap();
        let report = reader.recovery_report();
        report.is_some_and(|report| report.fast_commits.changes > 0)
    }

    /// The image as a crash leaves it now.
    pub fn crashed(&self, name: &str) -> PathBuf {
        let copy = self.directory.path().join(name);
        testkit::copy_mounted_image(&self.image, &copy);
        copy
    }
}

pub fn device(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(path).unwrap())
}

/// What Linux makes of an image.
pub fn by_linux(image: &Path) -> Manifest {
    let mounted = KernelMount::with(image, "loop").unwrap();
    Manifest::of(&mounted.path()).unwrap().without_lost_found()
}

/// Times of directories are those of the replay.
pub fn without_times_of_directories(mut manifest: Manifest) -> Manifest {
    for entry in manifest
        .entries
        .values_mut()
        .filter(|entry| entry.kind == 'd')
    {
        entry.mtime = 0;
    }
    manifest
}

/// Replays a crashed image by lanefs, to read and to write; gives what it shows, and how many records it replayed.
fn by_lanefs(image: &Path) -> (Manifest, u32) {
    let reader = InodeFs::open(device(image), &MountOptions::default()).unwrap();
    let report = *reader.recovery_report().unwrap();
    assert_eq!(report.fast_commits_pending, 0, "{report}");
    let seen = without_times_of_directories(manifest(&reader).without_lost_found());
    drop(reader);
    let fs = InodeFs::open_for_writing(device(image), &MountOptions::default(), clock).unwrap();
    let written = without_times_of_directories(manifest(&fs).without_lost_found());
    let differences = seen.differences(&written);
    assert!(
        differences.is_empty(),
        "to read and to write: {differences}"
    );
    fs.close().unwrap();
    testkit::e2fsck(image);
    let after = without_times_of_directories(by_linux(image));
    let differences = written.differences(&after);
    assert!(
        differences.is_empty(),
        "lanefs and then Linux: {differences}"
    );
    (written, report.fast_commits.changes)
}

fn agree(linux: &Linux) -> Manifest {
    let (one, other) = (linux.crashed("one.img"), linux.crashed("other.img"));
    let (ours, records) = by_lanefs(&one);
    assert!(records > 0, "Linux made no fast commit");
    let theirs = without_times_of_directories(by_linux(&other));
    let differences = theirs.differences(&ours);
    assert!(differences.is_empty(), "Linux and lanefs: {differences}");
    ours
}

#[test]
fn what_linux_logged_is_replayed_as_linux_does() {
    for block_bytes in ["1024", "4096"] {
        let Some(linux) = Linux::new(block_bytes) else {
            return;
        };
        let mut new = File::create(linux.at("new")).unwrap();
        new.write_all(&[9; 50_000]).unwrap();
        new.sync_all().unwrap();
        agree(&linux);
        linux.write("old0", 30_000, &[1; 70_000]);
        linux.fsync("old0");
        linux.write("old1", 1000, &[2; 100]);
        linux.fsync("old1");
        File::options()
            .write(true)
            .open(linux.at("old2"))
            .unwrap()
            .set_len(5000)
            .unwrap();
        linux.fsync("old2");
        agree(&linux);
        linux.allocate("old3", FallocateFlags::empty(), 40_000, 60_000);
        linux.fsync("old3");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        linux.allocate("old4", punch, 4096, 12_288);
        linux.fsync("old4");
        linux.write("old3", 50_000, &[3; 9000]);
        linux.fsync("old3");
        agree(&linux);
        fs::rename(linux.at("old5"), linux.at("renamed")).unwrap();
        linux.fsync("renamed");
        fs::hard_link(linux.at("old6"), linux.at("linked")).unwrap();
        linux.fsync("linked");
        fs::remove_file(linux.at("old7")).unwrap();
        linux.write("new", 0, &[4; 10]);
        linux.fsync("new");
        let seen = agree(&linux);
        assert_eq!(seen.entries[&b"dir/linked"[..]].size, 30_000);
        assert!(seen.entries.contains_key(&b"dir/renamed"[..]));
        assert!(!seen.entries.contains_key(&b"dir/old7"[..]));
    }
}

#[test]
fn what_linux_logs_and_can_not_replay_is_taken_for_what_it_means() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    // A directory with a file in it: after Linux's own replay it has no block, and its parent a link too few.
    fs::create_dir_all(linux.at("made/within")).unwrap();
    fs::write(linux.at("made/within/file"), [7; 9000]).unwrap();
    linux.fsync("made/within/file");
    let (seen, records) = by_lanefs(&linux.crashed("made.img"));
    assert!(records > 0, "Linux made no fast commit");
    assert_eq!(seen.entries[&b"dir/made/within/file"[..]].size, 9000);
    // A file without names that is open still: Linux's own mount fails after that.
    let open = File::open(linux.at("old1")).unwrap();
    fs::remove_file(linux.at("old1")).unwrap();
    linux.write("old2", 0, &[8; 10]);
    linux.fsync("old2");
    open.sync_all().unwrap();
    let (seen, _) = by_lanefs(&linux.crashed("nameless.img"));
    assert!(!seen.entries.contains_key(&b"dir/old1"[..]));
    drop(open);
    // A directory removed, a short link and a pipe.
    fs::remove_dir_all(linux.at("made")).unwrap();
    std::os::unix::fs::symlink("old2", linux.at("short")).unwrap();
    testkit::run("mkfifo", &[linux.at("pipe").to_str().unwrap()]);
    linux.write("old2", 100, &[8; 10]);
    linux.fsync("old2");
    let (seen, _) = by_lanefs(&linux.crashed("removed.img"));
    assert_eq!(seen.entries[&b"dir/old2"[..]].size, 30_000);
}

#[test]
fn a_new_file_whose_number_belonged_to_one_that_linux_deleted_is_found_again() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    // Linux leaves the mode of a deleted inode where it is.
    let number = |path: &Path| fs::metadata(path).unwrap().ino();
    let old = number(&linux.at("old7"));
    fs::remove_file(linux.at("old7")).unwrap();
    let root = linux.mounted.path();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
    fs::write(linux.at("new"), [9; 5000]).unwrap();
    assert_eq!(
        number(&linux.at("new")),
        old,
        "Linux takes the number again"
    );
    linux.fsync("new");
    let seen = agree(&linux);
    assert_eq!(seen.entries[&b"dir/new"[..]].size, 5000);
    // And one that came and went with its directory.
    fs::create_dir(linux.at("made")).unwrap();
    fs::write(linux.at("made/file"), [7; 9000]).unwrap();
    fs::remove_dir_all(linux.at("made")).unwrap();
    linux.write("old2", 0, &[8; 10]);
    linux.fsync("old2");
    let (seen, _) = by_lanefs(&linux.crashed("gone.img"));
    assert!(!seen.entries.contains_key(&b"dir/made"[..]));
}

/// As where a file is removed while it is open, and closed a commit later: the number is among the orphans still.
#[test]
fn a_new_file_that_has_the_number_of_an_orphan_is_found_again() {
    for features in ["fast_commit", "fast_commit,orphan_file"] {
        let Some(linux) = Linux::with("4096", features, "size=8", 64) else {
            return;
        };
        let held = ["old1", "old4", "old6"].map(|name| File::open(linux.at(name)).unwrap());
        let numbers = held.each_ref().map(|file| file.metadata().unwrap().ino());
        for name in ["old1", "old4", "old6"] {
            fs::remove_file(linux.at(name)).unwrap();
        }
        let root = linux.mounted.path();
        testkit::run("sync", &["-f", root.to_str().unwrap()]);
        let [first, second, _third] = held;
        drop((first, second));
        for (name, number) in [("one", numbers[0]), ("two", numbers[1])] {
            fs::write(linux.at(name), [9; 5000]).unwrap();
            let now = fs::metadata(linux.at(name)).unwrap().ino();
            if now != number {
                // Linux leaves out numbers that were freed a moment ago (its `recently_deleted`).
                testkit::skip("Linux did not take a freed inode number again");
                return;
            }
        }
        linux.fsync("two");
        let (seen, records) = by_lanefs(&linux.crashed("orphans.img"));
        assert!(records > 0, "Linux made no fast commit");
        let here = Manifest::of(&linux.mounted.path()).unwrap();
        let two = &b"dir/two"[..];
        let (ours, theirs) = (&seen.entries[two], &here.entries[two]);
        assert_eq!((ours.size, &ours.contents), (theirs.size, &theirs.contents));
    }
}

#[test]
fn a_new_file_or_directory_that_has_the_number_of_a_removed_one_is_found_again() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    let number = |name: &str| fs::metadata(linux.at(name)).unwrap().ino();
    let make = |name: &str| {
        fs::create_dir_all(linux.at(name)).unwrap();
        fs::write(linux.at(name).join("file"), [7; 9000]).unwrap();
    };
    make("one");
    make("one/two");
    let old = (number("one"), number("one/file"), number("one/two"));
    let root = linux.mounted.path();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
    fs::remove_dir_all(linux.at("one")).unwrap();
    // A directory with its number, and in it, a file with a file's; then a file with a directory's.
    make("new");
    fs::write(linux.at("other"), [8; 5000]).unwrap();
    assert_eq!((number("new"), number("new/file")), (old.0, old.1));
    assert_eq!(number("other"), old.2);
    linux.fsync("new/file");
    let (seen, records) = by_lanefs(&linux.crashed("reused.img"));
    assert!(records > 0, "Linux made no fast commit");
    assert_eq!(seen.entries[&b"dir/new/file"[..]].size, 9000);
    assert_eq!(
        seen.entries[&b"dir/other"[..]].size,
        0,
        "it was not fsynced"
    );
    assert!(!seen.entries.contains_key(&b"dir/one"[..]));
    // A file's number, and then that of the next, is a directory's.
    fs::remove_file(linux.at("old0")).unwrap();
    fs::remove_file(linux.at("old1")).unwrap();
    make("made");
    linux.fsync("made/file");
    let (seen, _) = by_lanefs(&linux.crashed("again.img"));
    assert_eq!(seen.entries[&b"dir/made/file"[..]].size, 9000);
}

#[test]
fn a_new_file_that_has_the_number_of_one_in_the_log_has_none_of_its_blocks() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    let number = |name: &str| fs::metadata(linux.at(name)).unwrap().ino();
    fs::write(linux.at("first"), [7; 60_000]).unwrap();
    linux.fsync("first");
    let (first, old) = (number("first"), number("old3"));
    linux.write("old3", 30_000, &[7; 50_000]);
    linux.fsync("old3");
    for name in ["first", "old3"] {
        fs::remove_file(linux.at(name)).unwrap();
    }
    // Each has holes where the other had data, and less behind its end.
    for name in ["sparse", "other"] {
        let file = File::create_new(linux.at(name)).unwrap();
        file.write_all_at(&[1; 4096], 16_384).unwrap();
        linux.fsync(name);
    }
    let mut numbers = [number("sparse"), number("other")];
    numbers.sort_unstable();
    assert_eq!(numbers, [old.min(first), old.max(first)], "used again");
    let (seen, records) = by_lanefs(&linux.crashed("replayed.img"));
    assert!(records > 0, "Linux made no fast commit");
    assert_eq!(seen.entries[&b"dir/sparse"[..]].size, 20_480);
    let fs = InodeFs::open_for_writing(
        device(&linux.crashed("long.img")),
        &MountOptions::default(),
        clock,
    )
    .unwrap();
    let dir = fs.lookup(Ino::ROOT, b"dir").unwrap();
    for name in ["sparse", "other"] {
        let ino = fs.lookup(dir, name.as_bytes()).unwrap();
        fs.truncate(ino, 90_000).unwrap();
        let mut bytes = vec![0; 90_000];
        assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), 90_000);
        assert!(bytes[16_384..20_480].iter().all(|byte| *byte == 1));
        bytes[16_384..20_480].fill(0);
        let shown = bytes.iter().filter(|byte| **byte != 0).count();
        assert_eq!(shown, 0, "bytes of the removed file in {name}");
    }
}

#[test]
fn a_file_that_was_made_without_a_name_and_has_a_number_of_the_log_keeps_its_blocks() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    fs::write(linux.at("first"), [7; 60_000]).unwrap();
    linux.fsync("first");
    let old = fs::metadata(linux.at("first")).unwrap().ino();
    fs::remove_file(linux.at("first")).unwrap();
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let nameless = rustix::fs::open(linux.at(""), flags, Mode::RUSR).unwrap();
    let nameless = File::from(nameless);
    assert_eq!(nameless.metadata().unwrap().ino(), old, "used again");
    nameless.write_all_at(&[1; 8192], 4096).unwrap();
    nameless.sync_all().unwrap();
    let path = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    let here = rustix::fs::CWD;
    let named = linux.at("named");
    rustix::fs::linkat(here, &path, here, &named, AtFlags::SYMLINK_FOLLOW).unwrap();
    nameless.write_all_at(&[2; 4096], 20_480).unwrap();
    linux.fsync("named");
    let (seen, records) = by_lanefs(&linux.crashed("named.img"));
    assert!(records > 0, "Linux made no fast commit");
    let here = Manifest::of(&linux.mounted.path()).unwrap();
    let (ours, theirs) = (
        &seen.entries[&b"dir/named"[..]],
        &here.entries[&b"dir/named"[..]],
    );
    assert_eq!((ours.size, &ours.contents), (theirs.size, &theirs.contents));
}

#[test]
fn what_lanefs_logs_of_a_file_whose_number_linux_freed_is_found_again_by_everyone() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    let number = fs::metadata(linux.at("old0")).unwrap().ino();
    for old in 0..8 {
        fs::remove_file(linux.at(&format!("old{old}"))).unwrap();
    }
    let Linux {
        directory,
        image,
        mounted,
    } = linux;
    drop(mounted);
    let device = fsync_log::device(testkit::read_image(&image));
    let fs = open(fsync_log::shared(&device));
    let dir = fs.lookup(Ino::ROOT, b"dir").unwrap();
    let new = fs.create(dir, b"new", fsync_log::NEW).unwrap();
    assert_eq!(u64::from(new.0), number, "lanefs takes the number again");
    fs.write(new, 0, &[2; 30_000]).unwrap();
    fs.fsync(new).unwrap();
    assert_eq!(fsync_log::count(&fs, "fsync.log_commits"), 1);
    let seen = fsync_log::after_a_cut(&device);
    assert_eq!(seen.entries[&b"dir/new"[..]].size, 30_000);
    drop(directory);
}

#[test]
fn a_file_is_found_again_with_extents_and_without_whatever_it_had_before() {
    // Linux's own replay leaves bytes of the one form where the record says the other.
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    let chattr = |flag: &str, name: &str| {
        testkit::run("chattr", &[flag, linux.at(name).to_str().unwrap()]);
        linux.fsync(name);
    };
    chattr("-e", "old0");
    chattr("-e", "old1");
    linux.write("old1", 28_000, &[7; 100_000]);
    linux.fsync("old1");
    chattr("-e", "old2");
    let root = linux.mounted.path();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
    chattr("+e", "old2");
    let (seen, records) = by_lanefs(&linux.crashed("forms.img"));
    assert!(records > 0, "Linux made no fast commit");
    let here = Manifest::of(&root).unwrap();
    for name in ["dir/old0", "dir/old1", "dir/old2"] {
        let (ours, theirs) = (
            &seen.entries[name.as_bytes()],
            &here.entries[name.as_bytes()],
        );
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn a_new_directory_right_behind_the_log_is_found_again() {
    // Blocks smaller than a page, and the log's end within one.
    let journal = "size=5,fast_commit_size=512";
    let Some(linux) = Linux::with("1024", "fast_commit", journal, 16) else {
        return;
    };
    let root = linux.mounted.path();
    fs::remove_dir_all(root.join("dir")).unwrap();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
    for name in ["a", "b", "c", "d"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    File::create(root.join("new")).unwrap().sync_all().unwrap();
    let (seen, records) = by_lanefs(&linux.crashed("behind.img"));
    assert!(records > 0, "Linux made no fast commit");
    assert!(seen.entries.contains_key(&b"d"[..]));
}

#[test]
fn files_without_extents_are_found_again() {
    let Some(linux) = Linux::with("4096", "fast_commit,^extent,^64bit", "size=8", 64) else {
        return;
    };
    fs::write(linux.at("new"), vec![9; 500_000]).unwrap();
    linux.fsync("new");
    linux.write("old0", 29_000, &[1; 90_000]);
    linux.fsync("old0");
    let (seen, records) = by_lanefs(&linux.crashed("pointers.img"));
    assert!(records > 0, "Linux made no fast commit");
    let here = Manifest::of(&linux.mounted.path()).unwrap();
    for name in ["dir/new", "dir/old0"] {
        let (ours, theirs) = (
            &seen.entries[name.as_bytes()],
            &here.entries[name.as_bytes()],
        );
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn records_that_contradict_the_file_system_are_refused_and_nothing_is_written() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    for number in 0..6_u8 {
        let name = format!("new{number}");
        fs::write(linux.at(&name), vec![number; 20_000]).unwrap();
        linux.fsync(&name);
    }
    let crashed = linux.crashed("crashed.img");
    let bytes = fs::read(&crashed).unwrap();
    // The area begins with HEAD, which no other block of this image does.
    let head = [9, 0, 8, 0, 0, 0, 0, 0];
    let mut blocks = bytes.chunks(4096);
    let at = blocks.position(|block| block.starts_with(&head)).unwrap() * 4096;
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&bytes));
    let mut refused = 0;
    for seed in 0..100_u32 {
        let damaged = Arc::new(Scratch::new(Arc::clone(&base), 1 << 20));
        let mut block = bytes[at..at + 4096].to_vec();
        // One bit of the first fast commit, whose checksum is then made right.
        let place = 16 + (seed.wrapping_mul(2_654_435_761) >> 8) as usize % 600;
        block[place] ^= 1 << (seed % 8);
        reseal(&mut block);
        damaged.write_at(at as u64, &block).unwrap();
        let device = Arc::new(Scratch::new(damaged, 32 << 20));
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        match InodeFs::open_for_writing(shared, &MountOptions::default(), clock) {
            Err(error) => {
                let written = device.written(4096);
                assert!(written.is_empty(), "seed {seed}: {error}, but {written:?}");
                refused += 1;
            }
            // Times, sizes, names and owners may be anything; the structure holds.
            Ok(fs) => {
                fs.close().unwrap();
                if seed % 10 == 0 {
                    let mut after = vec![0; bytes.len()];
                    device.read_at(0, &mut after).unwrap();
                    let path = linux.directory.path().join("damaged.img");
                    fs::write(&path, after).unwrap();
                    testkit::e2fsck(&path);
                }
            }
        }
    }
    assert!(refused > 3, "{refused} refused");
}

/// Makes the checksum of a block's one fast commit right; a block without TAIL stays.
fn reseal(block: &mut [u8]) {
    let mut at = 0;
    while at + 12 <= block.len() {
        let tag = u16::from_le_bytes([block[at], block[at + 1]]);
        let len = u16::from_le_bytes([block[at + 2], block[at + 3]]);
        if tag == 8 {
            let crc = ondisk::csum::crc32c(0, &block[..at + 8]);
            block[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
            return;
        }
        at += 4 + usize::from(len);
    }
}

#[test]
fn a_cut_at_any_write_of_the_replay_leaves_what_was_fsynced() {
    let Some(linux) = Linux::new("1024") else {
        return;
    };
    fs::write(linux.at("new"), [5; 40_000]).unwrap();
    linux.fsync("new");
    fs::rename(linux.at("old5"), linux.at("old6")).unwrap();
    linux.fsync("old6");
    let image = testkit::read_image(&linux.crashed("crashed.img"));
    let show = |device: Arc<dyn BlockDevice>| {
        let fs = InodeFs::open(device, &MountOptions::default()).unwrap();
        without_times_of_directories(manifest(&fs).without_lost_found())
    };
    let expected = show(Arc::new(MemoryDevice::from_bytes(&image)));
    assert_eq!(expected.entries[&b"dir/new"[..]].size, 40_000);
    let mut cuts = record(&image, |_, fs| fs.close().unwrap());
    let points: Vec<usize> = cuts.points().collect();
    assert!(points.len() > 20, "{} points", points.len());
    for event in points {
        for seed in 0..2 {
            let state = Arc::new(cuts.state(Cut { event, seed }));
            let shared = Arc::clone(&state) as Arc<dyn BlockDevice>;
            let differences = expected.differences(&show(shared));
            assert!(differences.is_empty(), "{event}, {seed}: {differences}");
            let shared = Arc::clone(&state) as Arc<dyn BlockDevice>;
            let fs = InodeFs::open_for_writing(shared, &MountOptions::default(), clock).unwrap();
            fs.close().unwrap();
            if event % 8 == 0 && seed == 0 {
                let path = linux.directory.path().join("cut.img");
                testkit::write_image(&path, &state.bytes());
                testkit::e2fsck(&path);
            }
        }
    }
}
