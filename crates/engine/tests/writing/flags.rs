//! Flags and times: what chattr sets, what is inherited and what is refused is the same as in the kernel; access times
//! follow the mount's policy.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

use device::BlockDevice;
use lanefs_engine::{
    Allocate, Atime, Error, Flags, Ino, InodeFs, MountOptions, RenameFlag, SetAttributes, SetTime,
    Timestamp, XattrFlag,
};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use simulate::CowDevice;
use sync::Arc;
use testkit::KernelMount;

use crate::files::{judge_image, opened};
use crate::image::{NEW, clock, finish, make, open};

const LETTERS: &[(&str, Flags)] = &[
    ("i", Flags::IMMUTABLE),
    ("a", Flags::APPEND),
    ("A", Flags::NO_ATIME),
    ("d", Flags::NO_DUMP),
    ("D", Flags::DIR_SYNC),
    ("S", Flags::SYNC),
    ("T", Flags::TOP_DIR),
    ("s", Flags::SECURE_DELETE),
    ("u", Flags::UNDELETE),
    ("c", Flags::COMPRESS),
    ("t", Flags::NO_TAIL),
];

fn chattr(path: &Path, change: &str) -> bool {
    let output = Command::new("chattr").arg(change).arg(path).output();
    output.unwrap().status.success()
}

fn by_letter(letter: &str) -> Flags {
    LETTERS.iter().find(|(l, _)| *l == letter).unwrap().1
}

/// Sets a flag by letter; whether that was done.
fn set(fs: &InodeFs, ino: Ino, letter: &str) -> bool {
    let flags = fs.metadata(ino).unwrap().flags;
    match fs.set_flags(ino, flags.with(by_letter(letter))) {
        Ok(()) => true,
        Err(Error::NotSupported(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

fn listed(root: &Path) -> String {
    let output = Command::new("lsattr")
        .args(["-R", "-a"])
        .arg(root)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let root = root.to_str().unwrap();
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| !line.contains("lost+found") && !line.ends_with("/.."))
        .map(|line| line.replace(root, ""))
        .collect();
    lines.sort();
    lines.join("\n")
}

#[test]
fn flags_are_set_and_inherited_as_the_kernel_does_it() {
    if !testkit::is_root() || !testkit::have("chattr") {
        return testkit::skip("needs root and chattr");
    }
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    testkit::write_image(&path, &image);
    let mut done = Vec::new();
    let expected = {
        let mounted = KernelMount::with(&path, "loop").unwrap();
        let root = mounted.path();
        for (letter, _) in LETTERS {
            let name = |kind: &str| root.join(format!("{kind}-{}", hex(letter)));
            std::fs::create_dir(name("dir")).unwrap();
            std::fs::write(name("file"), "").unwrap();
            // chattr itself leaves D out for files, without a word.
            let is_tried = *letter != "D";
            done.push(is_tried && chattr(&name("file"), &format!("+{letter}")));
            done.push(chattr(&name("dir"), &format!("+{letter}")));
            let below = name("dir").join("file");
            done.push(std::fs::write(below, "").is_ok());
            done.push(std::fs::create_dir(name("dir").join("dir")).is_ok());
        }
        listed(&root)
    };
    let mut ours_done = Vec::new();
    let ours = finish(&image, |fs| {
        for (letter, _) in LETTERS {
            let name = |kind: &str| format!("{kind}-{}", hex(letter)).into_bytes();
            let directory = fs.mkdir(Ino::ROOT, &name("dir"), NEW).unwrap();
            let file = fs.create(Ino::ROOT, &name("file"), NEW).unwrap();
            ours_done.push(set(&fs, file, letter));
            ours_done.push(set(&fs, directory, letter));
            ours_done.push(fs.create(directory, b"file", NEW).is_ok());
            ours_done.push(fs.mkdir(directory, b"dir", NEW).is_ok());
        }
        fs.close().unwrap();
    });
    assert_eq!(ours_done, done);
    std::fs::write(&path, &ours).unwrap();
    let mounted = KernelMount::read_only(&path).unwrap();
    assert_eq!(listed(&mounted.path()), expected);
}

fn hex(letter: &str) -> String {
    format!("{:x}", letter.as_bytes()[0])
}

/// What is tried on a file `f` and a directory `d` (which holds `old`), beside `other`.
const TRIED: [&str; 18] = [
    "write",
    "append",
    "truncate",
    "chmod",
    "chown",
    "utimes",
    "touch",
    "setxattr",
    "removexattr",
    "link",
    "rename",
    "reserve",
    "punch",
    "create",
    "remove",
    "move-in",
    "move-out",
    "unlink",
];

fn kernel_tries(root: &Path, what: &str) -> Result<(), Errno> {
    let (file, directory, other) = (root.join("f"), root.join("d"), root.join("other"));
    let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    let writable = || std::fs::File::options().write(true).open(&file).map_err(io);
    let appending = || {
        std::fs::File::options()
            .append(true)
            .open(&file)
            .map_err(io)
    };
    let at = |seconds| Timespec {
        tv_sec: seconds,
        tv_nsec: if seconds == 0 {
            rustix::fs::UTIME_NOW
        } else {
            0
        },
    };
    let times = |seconds| Timestamps {
        last_access: at(seconds),
        last_modification: at(seconds),
    };
    match what {
        "write" => writable()?.write_all_at(b"x", 0).map_err(io),
        "append" => {
            use std::io::Write;
            appending()?.write_all(b"x").map_err(io)
        }
        "truncate" => rustix::fs::ftruncate(&writable()?, 1),
        "chmod" => rustix::fs::chmod(&file, Mode::from_raw_mode(0o600)),
        "chown" => std::os::unix::fs::chown(&file, Some(5), None).map_err(io),
        "utimes" => rustix::fs::utimensat(CWD, &file, &times(77), AtFlags::empty()),
        "touch" => rustix::fs::utimensat(CWD, &file, &times(0), AtFlags::empty()),
        "setxattr" => rustix::fs::setxattr(&file, "user.new", b"1", XattrFlags::empty()),
        "removexattr" => rustix::fs::removexattr(&file, "user.old"),
        "link" => std::fs::hard_link(&file, root.join("linked")).map_err(io),
        "rename" => std::fs::rename(&file, root.join("renamed")).map_err(io),
        "reserve" => {
            let file = appending()?;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 5000)
        }
        "punch" => {
            let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            rustix::fs::fallocate(&appending()?, flags, 0, 1024)
        }
        "create" => std::fs::write(directory.join("new"), "").map_err(io),
        "remove" => std::fs::remove_file(directory.join("old")).map_err(io),
        "move-in" => std::fs::rename(&other, directory.join("other")).map_err(io),
        "move-out" => std::fs::rename(directory.join("old"), root.join("out")).map_err(io),
        _ => std::fs::remove_file(&file).map_err(io),
    }
}

fn lanefs_tries(fs: &InodeFs, what: &str) -> Result<(), Errno> {
    let root = Ino::ROOT;
    let find = |path: &str| fs.resolve(path.as_bytes(), false).unwrap();
    let (file, directory) = (find("f"), find("d"));
    let set = |attributes: SetAttributes| fs.set_attributes(file, &attributes);
    let nothing = SetAttributes::default();
    let times = |time: SetTime| SetAttributes {
        atime: Some(time),
        mtime: Some(time),
        ..nothing
    };
    let long_ago = Timestamp {
        seconds: 77,
        nanoseconds: 0,
    };
    let replace = RenameFlag::Replace;
    let size = fs.metadata(file).unwrap().size;
    let done = match what {
        "write" => fs.write(file, 0, b"x").map(drop),
        "append" => fs.write(file, size, b"x").map(drop),
        "truncate" => fs.truncate(file, 1),
        "chmod" => set(SetAttributes {
            mode: Some(0o600),
            ..nothing
        }),
        "chown" => set(SetAttributes {
            uid: Some(5),
            ..nothing
        }),
        "utimes" => set(times(SetTime::At(long_ago))),
        "touch" => set(times(SetTime::Now)),
        "setxattr" => fs.set_xattr(file, b"user.new", b"1", XattrFlag::Any),
        "removexattr" => fs.remove_xattr(file, b"user.old"),
        "link" => fs.link(file, root, b"linked"),
        "rename" => fs.rename(root, b"f", root, b"renamed", replace),
        "reserve" => fs.allocate(file, Allocate::Grow, 0, 5000),
        "punch" => fs.allocate(file, Allocate::Punch, 0, 1024),
        "create" => fs.create(directory, b"new", NEW).map(drop),
        "remove" => fs.unlink(directory, b"old"),
        "move-in" => fs.rename(root, b"other", directory, b"other", replace),
        "move-out" => fs.rename(directory, b"old", root, b"out", replace),
        _ => fs.unlink(root, b"f"),
    };
    match done {
        Ok(()) => Ok(()),
        Err(Error::NotPermitted) => Err(Errno::PERM),
        Err(error) => panic!("{what}: {error:?}"),
    }
}

#[test]
fn immutable_and_append_only_refuse_what_the_kernel_refuses() {
    if !testkit::is_root() || !testkit::have("chattr") {
        return testkit::skip("needs root and chattr");
    }
    let Some(image) = make(&["-b", "1024"], 4 << 20) else {
        return;
    };
    for letter in ["i", "a"] {
        // The same tree for both, made by lanefs, with flags on the file and the directory.
        let flagged = finish(&image, |fs| {
            let file = fs.create(Ino::ROOT, b"f", NEW).unwrap();
            fs.write(file, 0, &[1; 3000]).unwrap();
            fs.set_xattr(file, b"user.old", b"1", XattrFlag::Any)
                .unwrap();
            fs.create(Ino::ROOT, b"other", NEW).unwrap();
            let directory = fs.mkdir(Ino::ROOT, b"d", NEW).unwrap();
            fs.create(directory, b"old", NEW).unwrap();
            assert!(set(&fs, file, letter) && set(&fs, directory, letter));
            fs.close().unwrap();
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        for what in TRIED {
            std::fs::write(&path, &flagged).unwrap();
            let expected = {
                let mounted = KernelMount::with(&path, "loop").unwrap();
                kernel_tries(&mounted.path(), what)
            };
            let mut found = Ok(());
            finish(&flagged, |fs| {
                found = lanefs_tries(&fs, what);
                fs.close().unwrap();
            });
            // The kernel refuses when a file is opened, lanefs when it is written to: both with EPERM.
            assert_eq!(found, expected, "+{letter}: {what}");
        }
    }
}

#[test]
fn what_is_done_to_a_synchronous_file_or_directory_is_there_after_a_cut() {
    let (plain, fast) = (
        make(&["-b", "1024"], 4 << 20),
        make(
            &["-b", "4096", "-O", "fast_commit", "-J", "size=8"],
            24 << 20,
        ),
    );
    let (Some(plain), Some(fast)) = (plain, fast) else {
        return;
    };
    for (image, letter, flags_file) in [
        (&plain, "D", false),
        (&plain, "S", false),
        (&plain, "S", true),
        (&fast, "D", false),
        (&fast, "S", false),
        (&fast, "S", true),
    ] {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let directory = fs.mkdir(Ino::ROOT, b"d", NEW).unwrap();
        let file = fs.create(directory, b"f", NEW).unwrap();
        let flagged = if flags_file { file } else { directory };
        assert!(set(&fs, flagged, letter));
        fs.sync().unwrap();
        let commits = fs.journal_statistics().unwrap().commits.sum();
        if flags_file {
            fs.write(file, 0, b"written").unwrap();
        } else {
            fs.create(directory, b"new", NEW).unwrap();
            fs.rename(directory, b"f", directory, b"g", RenameFlag::Replace)
                .unwrap();
        }
        let after = fs.journal_statistics().unwrap().commits.sum();
        assert_eq!(
            after == commits,
            image == &fast,
            "by the log where there is one"
        );
        // As after a cut here: what is on the device, and nothing else.
        let after = Arc::new(CowDevice::new(device.bytes().into()));
        let recovered = open(after as Arc<dyn BlockDevice>);
        if flags_file {
            assert_eq!(recovered.metadata(file).unwrap().size, 7)
        } else {
            assert!(recovered.lookup(directory, b"new").is_ok());
            assert!(recovered.lookup(directory, b"g").is_ok());
        }
        recovered.close().unwrap();
        fs.close().unwrap();
    }
}

/// Seconds of the clock of the test below; nobody else uses it.
static SECONDS: AtomicI64 = AtomicI64::new(0);

fn moving_clock() -> Timestamp {
    Timestamp {
        // Relaxed: one thread.
        seconds: SECONDS.load(Ordering::Relaxed),
        nanoseconds: 0,
    }
}

fn at(seconds: i64) {
    // Relaxed: one thread.
    SECONDS.store(seconds, Ordering::Relaxed);
}

#[test]
fn times_of_access_follow_the_policy() {
    let Some(image) = make(&["-b", "1024"], 4 << 20) else {
        return;
    };
    let day = 24 * 60 * 60;
    let start = 3_000_000_000;
    for (atime, lazytime) in [
        (Atime::Relative, false),
        (Atime::Relative, true),
        (Atime::Always, false),
        (Atime::Always, true),
        (Atime::Never, false),
    ] {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let options = MountOptions {
            atime,
            lazytime,
            ..MountOptions::default()
        };
        at(start);
        let fs = InodeFs::open_for_writing(
            Arc::clone(&device) as Arc<dyn BlockDevice>,
            &options,
            moving_clock,
        )
        .unwrap();
        let file = fs.create(Ino::ROOT, b"f", NEW).unwrap();
        fs.write(file, 0, b"bytes").unwrap();
        let flagged = fs.create(Ino::ROOT, b"n", NEW).unwrap();
        assert!(set(&fs, flagged, "A"));
        let read = |ino: Ino, seconds: i64| {
            at(seconds);
            fs.read(ino, 0, &mut [0; 5]).unwrap();
            fs.metadata(ino).unwrap().atime.seconds
        };
        let expected = |often: i64, seldom: i64| match atime {
            Atime::Never => start,
            Atime::Always => often,
            Atime::Relative => seldom,
        };
        assert_eq!(read(file, start + 10), expected(start + 10, start + 10));
        assert_eq!(read(file, start + 20), expected(start + 20, start + 10));
        fs.write(file, 0, b"other").unwrap();
        assert_eq!(read(file, start + 30), expected(start + 30, start + 30));
        assert_eq!(
            read(file, start + 30 + day),
            expected(start + 30 + day, start + 30 + day)
        );
        assert_eq!(read(flagged, start + 40 + day), start);
        at(start + 50 + day);
        drop(fs.read_dir(Ino::ROOT).unwrap());
        let root = fs.metadata(Ino::ROOT).unwrap().atime.seconds;
        assert!(atime == Atime::Never || root == start + 50 + day, "{root}");
        let last = fs.metadata(file).unwrap().atime;
        fs.close().unwrap();
        let fs = open(device as Arc<dyn BlockDevice>);
        assert_eq!(
            fs.metadata(file).unwrap().atime,
            last,
            "{atime:?} {lazytime}"
        );
        fs.close().unwrap();
    }
}

fn later() -> Timestamp {
    Timestamp {
        seconds: clock().seconds + 1000,
        nanoseconds: 0,
    }
}

#[test]
fn times_of_access_of_more_files_than_threads_remember_are_all_written() {
    let Some(image) = make(&["-b", "1024", "-N", "1024"], 4 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let name = |number: usize| format!("{number}").into_bytes();
    let files: Vec<Ino> = (0..700)
        .map(|number| fs.create(Ino::ROOT, &name(number), NEW).unwrap())
        .collect();
    fs.close().unwrap();
    let options = MountOptions {
        lazytime: true,
        ..MountOptions::default()
    };
    let shared = || Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open_for_writing(shared(), &options, later).unwrap();
    let seconds = |fs: &InodeFs, ino: Ino| fs.metadata(ino).unwrap().atime.seconds;
    // A thread's list is full twice over.
    sync::thread::workers(2, |thread| {
        for ino in files.iter().skip(thread).step_by(2) {
            fs.read(*ino, 0, &mut [0; 5]).unwrap();
        }
    });
    assert!(
        files
            .iter()
            .all(|ino| seconds(&fs, *ino) == later().seconds)
    );
    fs.close().unwrap();
    let fs = open(shared());
    assert!(
        files
            .iter()
            .all(|ino| seconds(&fs, *ino) == later().seconds)
    );
    fs.close().unwrap();
    judge_image(&device);
}

/// Times at the ends of what inodes with and without extra fields hold, inside and outside.
const FAR: [i64; 12] = [
    -9_000_000_000,
    -2_147_483_649,
    -2_147_483_648,
    -2_147_483_647,
    -1,
    0,
    2_147_483_646,
    2_147_483_647,
    4_294_967_296,
    15_032_385_534,
    15_032_385_535,
    15_032_385_536,
];

/// The times of modification and access of the files that are named by the places in [`FAR`].
fn times_by_kernel(root: &Path) -> Vec<[i64; 4]> {
    use std::os::unix::fs::MetadataExt;
    let times = |index: usize| {
        let metadata = std::fs::metadata(root.join(index.to_string())).unwrap();
        let (mtime, atime) = (metadata.mtime(), metadata.atime());
        [mtime, metadata.mtime_nsec(), atime, metadata.atime_nsec()]
    };
    (0..FAR.len()).map(times).collect()
}

#[test]
fn times_far_away_are_kept_or_cut_as_the_kernel_does_it() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    for inode_size in ["256", "128"] {
        let Some(image) = make(&["-b", "1024", "-I", inode_size], 4 << 20) else {
            return;
        };
        let nanoseconds = 999_999_999;
        let mut ours = Vec::new();
        let after = finish(&image, |fs| {
            for (index, seconds) in FAR.into_iter().enumerate() {
                let name = index.to_string();
                let ino = fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
                let time = SetTime::At(Timestamp {
                    seconds,
                    nanoseconds,
                });
                let attributes = SetAttributes {
                    atime: Some(time),
                    mtime: Some(time),
                    ..SetAttributes::default()
                };
                fs.set_attributes(ino, &attributes).unwrap();
                let found = fs.metadata(ino).unwrap();
                let is_made = found.crtime == Some(crate::image::clock());
                assert_eq!(is_made, inode_size == "256");
                let parts = |time: Timestamp| [time.seconds, time.nanoseconds.into()];
                let ([a, b], [c, d]) = (parts(found.mtime), parts(found.atime));
                ours.push([a, b, c, d]);
            }
            fs.close().unwrap();
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, &after).unwrap();
        let mounted = KernelMount::read_only(&path).unwrap();
        assert_eq!(times_by_kernel(&mounted.path()), ours, "{inode_size}");
        drop(mounted);
        testkit::write_image(&path, &image);
        let mounted = KernelMount::with(&path, "loop").unwrap();
        for (index, seconds) in FAR.into_iter().enumerate() {
            let file = mounted.path().join(index.to_string());
            std::fs::write(&file, "").unwrap();
            let time = Timespec {
                tv_sec: seconds,
                tv_nsec: nanoseconds.into(),
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
        }
        assert_eq!(times_by_kernel(&mounted.path()), ours, "{inode_size}");
    }
}
