//! Mounts with `-o writeback_cache`: the kernel keeps what programs write, and writes it later.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};
use testkit::{DiskState, FailingDisk, KernelMount, Random};

use crate::hand::Hand;
use crate::rings;
use crate::served::{Served, can_mount, image, lanefs, said};

/// Options beside `writeback_cache`. The last needs FUSE over io_uring.
const MOUNTS: [&str; 5] = [
    "",
    "default_permissions,threads=1",
    "no_open",
    "nofuseblk",
    "io_uring=on,no_open,default_permissions",
];
const FILE_BYTES: usize = 300_000;
const APPEND_ONLY: u32 = 0x20;

/// Mounts with `writeback_cache` and more options; `None` without io_uring.
fn start(image: &Path, options: &str) -> Option<Served> {
    let all = format!("writeback_cache,{options}");
    if options.contains("io_uring") {
        rings::start(image, &all)
    } else {
        Some(Served::start(image, &all))
    }
}

fn tuned(directory: &Path, name: &str) -> String {
    let output = lanefs().arg("tune").arg(directory).arg(name).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What direct I/O finds: what the server has, once the kernel has written what it keeps.
fn direct(path: &Path, length: usize) -> Vec<u8> {
    const ALIGNED: usize = 4096;
    let flags = OFlags::DIRECT.bits() as i32;
    let mut options = File::options();
    let file = options.read(true).custom_flags(flags).open(path).unwrap();
    let mut bytes = vec![0; length.next_multiple_of(ALIGNED) + ALIGNED];
    let start = bytes.as_ptr().align_offset(ALIGNED);
    let found = file.read_at(&mut bytes[start..][..length.next_multiple_of(ALIGNED)], 0);
    bytes.drain(..start);
    bytes.truncate(found.unwrap().min(length));
    bytes
}

/// Changes a file at random, and a model of it in the same way.
struct Model<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
    random: Random,
    hand: &'a Hand,
}

impl Model<'_> {
    fn below(&mut self, limit: usize) -> usize {
        (self.random.bits() % limit as u64) as usize
    }

    fn open(&self, read: bool) -> File {
        let mut options = File::options();
        options.read(read).write(true).open(self.path).unwrap()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.resize(self.bytes.len().max(at + bytes.len()), 0);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn change(&mut self) {
        let (at, length) = (self.below(FILE_BYTES), 1 + self.below(9000));
        let byte = self.random.bits() as u8;
        let held = self.bytes.len();
        match self.below(9) {
            // The kernel reads the rest of the pages, though the file is only open to be written.
            0 | 1 => {
                self.open(false)
                    .write_all_at(&vec![byte; length], at as u64)
                    .unwrap();
                self.put(at, &vec![byte; length]);
            }
            2 | 3 => {
                let mut file = File::options().append(true).open(self.path).unwrap();
                for part in vec![byte; length].chunks(1 + length / 20) {
                    file.write_all(part).unwrap();
                }
                self.put(held, &vec![byte; length]);
            }
            4 if at + length <= held => {
                let arguments: [&dyn std::fmt::Display; 5] =
                    [&self.path.display(), &at, &length, &byte, &"unmapped"];
                self.hand.run("map", &arguments).unwrap();
                self.put(at, &vec![byte; length]);
            }
            5 => {
                self.open(false).set_len(at as u64).unwrap();
                self.bytes.resize(at, 0);
            }
            6 => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(self.open(false), mode, at as u64, length as u64).unwrap();
                let (at, end) = (at.min(held), (at + length).min(held));
                self.bytes[at..end].fill(0);
            }
            7 if held > 0 => {
                let (file, from) = (self.open(true), self.below(held));
                let length = length.min(held - from);
                if from + length <= at || at + length <= from {
                    let (mut old, mut new) = (from as u64, at as u64);
                    let copied =
                        copy_file_range(&file, Some(&mut old), &file, Some(&mut new), length);
                    assert_eq!(copied.unwrap(), length);
                    let bytes = self.bytes[from..from + length].to_vec();
                    self.put(at, &bytes);
                }
            }
            _ => self.open(false).sync_data().unwrap(),
        }
    }

    fn check(&self, what: &str) {
        assert!(fs::read(self.path).unwrap() == self.bytes, "{what}: read");
        assert_eq!(self.path.metadata().unwrap().len(), self.bytes.len() as u64);
    }

    /// Every byte outside the holes that lseek(2) finds is data, and all others are zeros.
    fn check_holes(&self, what: &str) {
        let mut file = File::open(self.path).unwrap();
        let len = self.bytes.len() as u64;
        let mut at = 0;
        while at < len {
            let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)).unwrap_or(len);
            let hole = &self.bytes[at as usize..data as usize];
            assert!(
                hole.iter().all(|byte| *byte == 0),
                "{what}: data in a hole at {at}"
            );
            at = if data < len {
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap()
            } else {
                len
            };
        }
        file.seek(SeekFrom::Start(0)).unwrap();
    }
}

#[test]
fn what_is_written_in_any_way_is_read_at_once_and_later() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let hand = Hand::start();
    for (number, options) in MOUNTS.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let blocks = ["1024", "4096"][number % 2];
        let image = image(folder.path(), "a.img", 64 << 20, &["-b", blocks]);
        let Some(served) = start(&image, options) else {
            return;
        };
        let path = served.path().join("file");
        File::create(&path).unwrap();
        let mut model = Model {
            path: &path,
            bytes: Vec::new(),
            random: Random::new(number as u64 + 1),
            hand: &hand,
        };
        for round in 0..400 {
            model.change();
            let what = format!("{options}: {round}");
            model.check(&what);
            if round % 20 == 0 {
                // Holes are looked for while the file is open to be written, too.
                let _writer = (round % 40 == 0).then(|| model.open(false));
                model.check_holes(&what);
                let found = direct(&path, model.bytes.len());
                assert!(found == model.bytes, "{what}: direct");
            }
        }
        let expected = model.bytes.clone();
        served.unmount();
        testkit::e2fsck(&image);
        let mounted = KernelMount::with(&image, "loop,ro").unwrap();
        let found = fs::read(mounted.path().join("file")).unwrap();
        assert!(found == expected, "{options}: the image");
    }
}

/// Sizes and times of the files in a directory, by name.
fn shown(root: &Path) -> BTreeMap<String, [i64; 5]> {
    let entries = fs::read_dir(root).unwrap().map(Result::unwrap);
    let shown = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let shown = shown.map(|entry| {
        let shown = entry.metadata().unwrap();
        let times = [
            shown.mtime(),
            shown.mtime_nsec(),
            shown.ctime(),
            shown.ctime_nsec(),
        ];
        let size = shown.len() as i64;
        let name = entry.file_name().into_string().unwrap();
        (name, [size, times[0], times[1], times[2], times[3]])
    });
    shown.collect()
}

#[test]
fn sizes_and_times_are_those_of_the_writes_also_after_another_mount() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let (folder, hand) = (tempfile::tempdir().unwrap(), Hand::start());
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let served = start(&image, "").unwrap();
    let root = served.path();
    let names = [
        "written", "touched", "mode", "linked", "renamed", "mapped", "appended",
    ];
    for name in names {
        fs::write(root.join(name), vec![7; 5000]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    let mut file = File::options()
        .append(true)
        .open(root.join("appended"))
        .unwrap();
    for _ in 0..500 {
        file.write_all(b"abcd").unwrap();
    }
    drop(file);
    let blocks = |name| root.join(name).metadata().unwrap().blocks();
    let held = File::options()
        .write(true)
        .open(root.join("written"))
        .unwrap();
    held.write_all_at(&[8; 100], 90_000).unwrap();
    blocks("written");
    held.sync_all().unwrap();
    // The kernel has asked for the attributes before, and is told that they changed.
    assert_eq!(blocks("written"), 18);
    let touched = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_000_000, 5);
    let times = fs::FileTimes::new()
        .set_modified(touched)
        .set_accessed(touched);
    let file = File::options()
        .write(true)
        .open(root.join("touched"))
        .unwrap();
    file.set_times(times).unwrap();
    drop(file);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    fs::set_permissions(root.join("mode"), mode).unwrap();
    fs::hard_link(root.join("linked"), root.join("linked too")).unwrap();
    fs::rename(root.join("renamed"), root.join("renamed now")).unwrap();
    let mapped = root.join("mapped");
    let arguments: [&dyn std::fmt::Display; 5] = [&mapped.display(), &10, &3000, &9, &"msync"];
    hand.run("map", &arguments).unwrap();
    rustix::fs::chownat(
        rustix::fs::CWD,
        root.join("mode"),
        None,
        None,
        rustix::fs::AtFlags::empty(),
    )
    .unwrap();
    let before = shown(root);
    assert_eq!(before["touched"][1..3], [1_000_000, 5]);
    drop((held, hand));
    served.unmount();
    testkit::e2fsck(&image);
    let again = Served::start(&image, "");
    assert_eq!(shown(again.path()), before);
    again.unmount();
}

#[test]
fn an_append_only_file_is_appended_to_and_not_changed() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let hand = Hand::start();
    for options in ["", "no_open"] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", 64 << 20, &[]);
        let served = start(&image, options).unwrap();
        let path = served.path().join("log");
        let mut before = File::create(&path).unwrap();
        before.write_all(&[1; 6000]).unwrap();
        before.sync_all().unwrap();
        let flag = |is_set: u8| {
            let arguments: [&dyn std::fmt::Display; 3] = [&path.display(), &APPEND_ONLY, &is_set];
            hand.run("flag", &arguments).unwrap();
        };
        flag(1);
        let mut expected = vec![1; 6000];
        for byte in 2..200_u8 {
            let mut log = File::options().append(true).open(&path).unwrap();
            log.write_all(&[byte; 50]).unwrap();
            expected.extend([byte; 50]);
            if byte % 10 == 0 {
                log.sync_all().unwrap();
            }
        }
        let opened = File::options().write(true).open(&path);
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(1), "{options}");
        assert!(fs::read(&path).unwrap() == expected, "{options}");
        assert!(direct(&path, expected.len()) == expected);
        flag(0);
        drop(before);
        served.unmount();
        testkit::e2fsck(&image);
    }
}

#[test]
fn a_write_that_fails_is_told_by_fsync_and_reads_tell_the_truth_then() {
    if !can_mount() {
        return;
    }
    for options in MOUNTS {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", 16 << 20, &["-b", "4096"]);
        let Some(served) = start(&image, options) else {
            return;
        };
        let path = served.path().join("large");
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        // More than there is room for: the kernel takes it all.
        for byte in 1..=24 {
            file.write_all(&vec![byte; 1 << 20]).unwrap();
        }
        let error = file.sync_all().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(28), "{options}: {error}");
        file.sync_all().unwrap();
        // The kernel is told outside the requests.
        std::thread::sleep(Duration::from_millis(500));
        let mut kept = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut kept).unwrap();
        let there = direct(&path, 24 << 20);
        assert!(
            kept == there,
            "{options}: pages that were not written are shown"
        );
        let written = there.iter().filter(|byte| **byte != 0).count();
        assert!(
            written > 8 << 20 && written < 16 << 20,
            "{options}: {written}"
        );
        drop(file);
        fs::remove_file(&path).unwrap();
        served.unmount();
        testkit::e2fsck(&image);
    }
}

#[test]
fn an_fsync_on_a_device_that_fails_says_so_and_reads_tell_the_truth() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 32 << 20, &["-b", "4096"]);
    let disk = FailingDisk::of(&image).unwrap();
    let served = start(&disk.path(), "").unwrap();
    let path = served.path().join("file");
    let mut options = File::options();
    let file = options
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    disk.set(DiskState::FailsToWrite);
    file.write_all_at(&vec![2; 1 << 20], 0).unwrap();
    assert!(file.sync_all().is_err());
    std::thread::sleep(Duration::from_millis(500));
    let mut kept = vec![0; 1 << 20];
    file.read_exact_at(&mut kept, 0).unwrap();
    assert!(
        kept == vec![1; 1 << 20],
        "pages that were not written are shown"
    );
    drop(file);
    served.kill();
}

/// What a crash now would leave of a file, after the kernel's replay.
fn crashed(image: &Path, name: &str) -> Vec<u8> {
    let copy = image.with_extension("crashed");
    testkit::copy_mounted_image(image, &copy);
    let mounted = KernelMount::with(&copy, "loop").unwrap();
    let found = fs::read(mounted.path().join(name)).unwrap();
    drop(mounted);
    testkit::e2fsck(&copy);
    found
}

/// Replaces a file, and closes what replaced it some time later.
fn replace(root: &Path, byte: u8, after: Duration) {
    let (good, new) = (root.join("good"), root.join("new"));
    let mut file = File::create(&new).unwrap();
    file.write_all(&vec![byte; FILE_BYTES]).unwrap();
    match byte % 3 {
        0 => {
            File::create(root.join("other")).unwrap();
            let (exchange, cwd) = (rustix::fs::RenameFlags::EXCHANGE, rustix::fs::CWD);
            rustix::fs::renameat_with(cwd, &new, cwd, &good, exchange).unwrap();
        }
        _ => fs::rename(&new, &good).unwrap(),
    }
    std::thread::sleep(after);
}

#[test]
fn a_file_that_replaces_another_is_not_committed_before_it_is_closed() {
    if !can_mount() {
        return;
    }
    for options in MOUNTS {
        let folder = tempfile::tempdir().unwrap();
        let features = ["-J", "size=8", "-O", "fast_commit"];
        let image = image(folder.path(), "a.img", 64 << 20, &features);
        let Some(served) = start(&image, &format!("{options},commit=300")) else {
            return;
        };
        let root = served.path();
        fs::write(root.join("good"), vec![1; FILE_BYTES]).unwrap();
        File::open(root.join("good")).unwrap().sync_all().unwrap();
        for byte in 2..8_u8 {
            std::thread::scope(|scope| {
                let replaced = scope.spawn(|| replace(root, byte, Duration::from_millis(500)));
                std::thread::sleep(Duration::from_millis(100));
                // Syncs that nothing asks to write that file wait until it is closed.
                for what in ["other", "."] {
                    scope.spawn(move || {
                        let path = root.join(what);
                        let other = if what == "." {
                            File::open(path)
                        } else {
                            File::create(path)
                        };
                        other.unwrap().sync_all().unwrap();
                    });
                }
                std::thread::sleep(Duration::from_millis(100));
                let found = crashed(&image, "good");
                assert!(
                    found == vec![byte - 1; FILE_BYTES],
                    "{options}: {byte}: {}",
                    found.len()
                );
                replaced.join().unwrap();
            });
            let found = crashed(&image, "good");
            assert!(
                found == vec![byte; FILE_BYTES],
                "{options}: {byte}: {}",
                found.len()
            );
        }
        let held: u64 = tuned(root, "writeback.renames_held").parse().unwrap();
        assert_eq!(held, 6, "{options}");
        // A file that stays open holds a commit back for a second.
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| replace(root, 8, Duration::from_secs(3)));
            std::thread::sleep(Duration::from_millis(100));
            File::create(root.join("last")).unwrap().sync_all().unwrap();
            let time = begin.elapsed();
            let (least, most) = (Duration::from_millis(900), Duration::from_millis(2500));
            assert!(least < time && time < most, "{options}: {time:?}");
        });
        served.unmount();
        testkit::e2fsck(&image);
    }
}

#[test]
fn a_file_that_is_replaced_again_and_again_is_whole_after_a_kill_at_any_moment() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "a.img", 64 << 20, &["-J", "size=4"]);
    let mut random = Random::new(7);
    for round in 0..12 {
        let options = ["commit=1", "nofuseblk", "commit=1,default_permissions"][round % 3];
        let served = start(&path, options).unwrap();
        let root = served.path().to_owned();
        fs::write(root.join("good"), vec![1; FILE_BYTES]).unwrap();
        File::open(root.join("good")).unwrap().sync_all().unwrap();
        let once = |byte: u8| -> std::io::Result<()> {
            let mut file = File::create(root.join("new"))?;
            file.write_all(&vec![byte; FILE_BYTES])?;
            fs::rename(root.join("new"), root.join("good"))?;
            std::thread::sleep(Duration::from_millis(u64::from(byte % 2) * 30));
            Ok(())
        };
        std::thread::scope(|scope| {
            let replacing = scope.spawn(|| (2..=255).cycle().find(|byte| once(*byte).is_err()));
            std::thread::sleep(Duration::from_millis(100 + random.bits() % 1500));
            served.kill();
            replacing.join().unwrap();
        });
        let mounted = KernelMount::with(&path, "loop").unwrap();
        let found = fs::read(mounted.path().join("good")).unwrap();
        drop(mounted);
        assert_eq!(found.len(), FILE_BYTES, "{options}");
        assert!(
            found.iter().all(|byte| *byte == found[0]),
            "{options}: torn"
        );
        testkit::e2fsck(&path);
    }
}

#[test]
fn the_server_is_outside_its_clients_memory_group_and_the_mount_says_what_syncs_it() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 16 << 20, &[]);
    let served = start(&image, "").unwrap();
    let sync = tuned(served.path(), "sync");
    assert!(
        sync.contains("fsync only") && sync.contains("writeback_cache"),
        "{sync}"
    );
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", served.process())).unwrap();
    let group = groups.lines().find(|line| line.contains(":memory:"));
    let is_root = group.or_else(|| groups.lines().find(|line| line.starts_with("0::")));
    assert!(is_root.is_none_or(|line| line.ends_with(":/")), "{groups}");
    served.unmount();
    // Without changes there is nothing to keep.
    let served = start(&image, "ro").unwrap();
    assert_eq!(tuned(served.path(), "sync"), "all");
    served.unmount();
}
