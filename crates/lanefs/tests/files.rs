//! Open files, beside `std::fs` on the same calls; what stays open stays; and what may be sent where.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{BlockDevice, CountedDevice, FileDevice};
use lanefs::{Error, File, Fs, OpenOptions};
use sync::Arc;

fn made(folder: &Path, name: &str) -> Fs {
    let image = folder.join(name);
    lanefs::make::make(
        &image,
        Some(16 << 20),
        &lanefs::mkfs::Options::default(),
        false,
    )
    .unwrap();
    Fs::open_for_writing(&image).unwrap()
}

/// All choices, as bits.
fn choices(bits: u32) -> [bool; 6] {
    [0, 1, 2, 3, 4, 5].map(|bit| bits & 1 << bit != 0)
}

fn bytes_of(mut file: impl Read + Write + Seek) -> Result<Vec<u8>, io::Error> {
    let mut bytes = Vec::new();
    // What the file refuses is part of what is compared.
    let wrote = file.write_all(b"new").is_ok();
    file.seek(SeekFrom::Start(0))?;
    let read = file.read_to_end(&mut bytes).is_ok();
    bytes.extend([u8::from(wrote), u8::from(read)]);
    Ok(bytes)
}

#[test]
fn files_are_opened_as_std_opens_them() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    let host = folder.path().join("host");
    for bits in 0..64 {
        let [read, write, append, truncate, create, create_new] = choices(bits);
        for is_there in [false, true] {
            let _ = std::fs::remove_file(&host);
            let _ = fs.remove_file("/f");
            if is_there {
                std::fs::write(&host, "old bytes").unwrap();
                fs.write("/f", "old bytes").unwrap();
            }
            let theirs = std::fs::OpenOptions::new()
                .read(read)
                .write(write)
                .append(append)
                .truncate(truncate)
                .create(create)
                .create_new(create_new)
                .open(&host)
                .and_then(bytes_of);
            let ours = OpenOptions::new()
                .read(read)
                .write(write)
                .append(append)
                .truncate(truncate)
                .create(create)
                .create_new(create_new)
                .open(&fs, "/f")
                .map_err(io::Error::from)
                .and_then(bytes_of);
            let told = |result: io::Result<Vec<u8>>| result.map_err(|error| error.kind());
            assert_eq!(
                told(ours),
                told(theirs),
                "read {read}, write {write}, append {append}, truncate {truncate}, create {create}, new {create_new}, \
                 there {is_there}"
            );
            let left = std::fs::read(&host).ok();
            assert_eq!(fs.read("/f").ok(), left);
        }
    }
    fs.close().unwrap();
}

#[test]
fn a_file_that_is_open_stays_though_its_name_goes() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    fs.write("/f", vec![7; 100_000]).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().unwrap().free;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fs, "/f")
        .unwrap();
    fs.remove_file("/f").unwrap();
    file.write_at(b"still here", 50_000).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(
        (bytes.len(), &bytes[50_000..50_010]),
        (100_000, &b"still here"[..])
    );
    assert_eq!(file.metadata().unwrap().nlink, 0);
    file.close().unwrap();
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().free >= free + 24);
    fs.close().unwrap();
}

#[test]
fn links_are_followed_and_directories_are_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    fs.create_dir("/d").unwrap();
    fs.symlink("d/f", "/link").unwrap();
    fs.create("/link").unwrap().write_all(b"through").unwrap();
    assert_eq!(fs.read_to_string("/d/f").unwrap(), "through");
    let new = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&fs, "/link");
    assert_eq!(kind(new), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.file("/d")), io::ErrorKind::IsADirectory);
    assert_eq!(kind(fs.file("/")), io::ErrorKind::IsADirectory);
    assert_eq!(kind(fs.file("/missing")), io::ErrorKind::NotFound);
    fs.set_permissions("/d/f", 0o4750).unwrap();
    assert_eq!(fs.copy("/link", "/d/copy").unwrap(), 7);
    assert_eq!(fs.metadata("/d/copy").unwrap().mode & 0o7777, 0o4750);
    fs.close().unwrap();
}

fn kind(result: Result<File, Error>) -> io::ErrorKind {
    io::Error::from(result.err().unwrap()).kind()
}

#[test]
fn errors_pass_through_io_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    let error = io::Error::from(fs.read("/missing").unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(Error::from(error).is_not_found());
    let other = Error::from(io::Error::other("of somebody else"));
    assert!(matches!(other, Error::Output(_)));
    fs.close().unwrap();
}

#[test]
fn many_file_systems_are_used_by_many_threads() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<Fs> = (0..3)
        .map(|n| made(folder.path(), &format!("{n}")))
        .collect();
    std::thread::scope(|scope| {
        for fs in &all {
            for thread in 0..3 {
                scope.spawn(move || {
                    let path = format!("/{thread}");
                    let mut file = fs.create(&path).unwrap();
                    is_shared(&file);
                    is_shared(fs);
                    for _ in 0..20 {
                        file.write_all(&[thread; 1000]).unwrap();
                    }
                });
            }
        }
    });
    for fs in all {
        for thread in 0..3 {
            assert_eq!(fs.read(format!("/{thread}")).unwrap(), [thread; 20_000]);
        }
        fs.close().unwrap();
    }
}

#[test]
fn what_replaces_a_file_keeps_its_attributes_and_its_acl() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    // user::rw-, user:1000:rwx, group::---, mask::rwx, other::---
    let entries = [
        (1, 6, u32::MAX),
        (2, 7, 1000),
        (4, 0, u32::MAX),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut acl = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        acl.extend([tag, 0, permissions, 0]);
        acl.extend(u32::to_le_bytes(id));
    }
    let name = "system.posix_acl_access";
    fs.write("/f", "old").unwrap();
    fs.set_xattr("/f", name, &acl).unwrap();
    fs.set_xattr("/f", "user.kept", "value").unwrap();
    fs.write("/f", "new").unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"new");
    assert_eq!(fs.xattr("/f", name).unwrap(), acl);
    assert_eq!(fs.xattr("/f", "user.kept").unwrap(), b"value");
    assert_eq!(fs.metadata("/f").unwrap().mode & 0o7777, 0o670);
    // Under a default ACL, a file without an ACL does not get one by being replaced.
    fs.create_dir("/d").unwrap();
    fs.write("/d/f", "old").unwrap();
    fs.set_permissions("/d/f", 0o640).unwrap();
    fs.set_xattr("/d", "system.posix_acl_default", &acl)
        .unwrap();
    fs.write("/d/f", "new").unwrap();
    assert!(fs.xattrs("/d/f").unwrap().is_empty());
    assert_eq!(fs.metadata("/d/f").unwrap().mode & 0o7777, 0o640);
    fs.close().unwrap();
}

#[test]
fn a_name_that_is_replaced_leads_somewhere_at_every_moment() {
    /// Enough for a lookup without locks to fail now and then.
    const ROUNDS: usize = 400;
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    fs.create_dir("/d").unwrap();
    fs.write("/d/file", "same").unwrap();
    fs.write("/d/name", "same").unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Relaxed: a flag to end the test.
                while !is_done.load(Ordering::Relaxed) {
                    assert_eq!(fs.metadata("/d/name").unwrap().size, 4);
                    assert_eq!(fs.read("/d/name").unwrap(), b"same");
                    let owner = fs.set_owner("/d/name", Some(7), None);
                    owner.unwrap();
                }
            });
        }
        for _ in 0..ROUNDS {
            fs.symlink("file", "/d/new").unwrap();
            fs.rename("/d/new", "/d/name").unwrap();
            fs.write("/d/other", "same").unwrap();
            fs.rename("/d/other", "/d/name").unwrap();
        }
        // Relaxed: a flag to end the test.
        is_done.store(true, Ordering::Relaxed);
    });
    fs.close().unwrap();
}

#[test]
fn threads_that_write_the_same_name_all_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    std::thread::scope(|scope| {
        for byte in b'a'..b'd' {
            let fs = &fs;
            scope.spawn(move || {
                for _ in 0..100 {
                    fs.write("/f", [byte; 5000]).unwrap();
                    let _ = fs.remove_file("/f");
                }
            });
        }
    });
    fs.close().unwrap();
}

#[test]
fn a_change_by_path_hits_what_the_path_leads_to() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: a flag to end the test.
            while !is_done.load(Ordering::Relaxed) {
                let _ = fs.set_permissions("/public", 0o777);
            }
        });
        for _ in 0..1500 {
            // The number of the one is soon the other's.
            fs.create("/public").unwrap().close().unwrap();
            fs.remove_file("/public").unwrap();
            fs.create("/secret").unwrap().close().unwrap();
            fs.set_permissions("/secret", 0o600).unwrap();
            let mode = fs.metadata("/secret").unwrap().mode;
            assert_eq!(mode & 0o777, 0o600);
            fs.remove_file("/secret").unwrap();
        }
        // Relaxed: a flag to end the test.
        is_done.store(true, Ordering::Relaxed);
    });
    fs.close().unwrap();
}

#[test]
fn files_that_append_at_once_do_not_write_over_each_other() {
    const WRITES: usize = 400;
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    fs.write("/log", b"").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3_u8 {
            let fs = &fs;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(fs, "/log").unwrap();
                for _ in 0..WRITES {
                    // Longer than a write to a part of a block, and than one block now and then.
                    let line = [b'a' + thread; 700];
                    assert_eq!(file.write(&line).unwrap(), line.len());
                }
                file.close().unwrap();
            });
        }
    });
    let bytes = fs.read("/log").unwrap();
    assert_eq!(bytes.len(), 3 * WRITES * 700);
    let (lines, rest) = bytes.as_chunks::<700>();
    assert!(
        rest.is_empty()
            && lines
                .iter()
                .all(|line| line.iter().all(|byte| *byte == line[0]))
    );
    let of = |letter| lines.iter().filter(|line| line[0] == letter).count();
    assert_eq!([of(b'a'), of(b'b'), of(b'c')], [WRITES; 3]);
    fs.close().unwrap();
}

/// A destructor can't say what goes wrong, so it does nothing that can.
#[test]
fn dropping_a_file_waits_for_nothing_and_the_next_change_deletes_it() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = lanefs::mkfs::Options::default();
    lanefs::make::make(&image, Some(16 << 20), &options, false).unwrap();
    let device = Arc::new(CountedDevice::new(FileDevice::open(&image).unwrap()));
    let choices = lanefs::MountOptions::default();
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = Fs::open_for_writing_with(shared, &choices, lanefs::now).unwrap();
    fs.write("kept", b"kept").unwrap();
    fs.sync().unwrap();
    let free = || fs.statfs().unwrap().free;
    let before = free();
    let mut open = Vec::new();
    // More than the queue of the deleting threads takes.
    for number in 0..1100 {
        let name = number.to_string();
        let mut made = OpenOptions::new();
        let mut file = made.write(true).create(true).open(&fs, &name).unwrap();
        if number < 20 {
            file.write_all(&[1; 9000]).unwrap();
        }
        fs.remove_file(&name).unwrap();
        open.push(file);
    }
    fs.sync().unwrap();
    let (used, counts) = (free(), device.counts());
    assert!(used < before);
    drop(open);
    assert_eq!(device.counts(), counts, "neither reads nor writes");
    assert_eq!(free(), used);
    fs.create_dir("d").unwrap();
    fs.remove_dir("d").unwrap();
    fs.sync().unwrap();
    assert_eq!(free(), before);
    // Those that nothing comes after are deleted at the end.
    let file = fs.create("last").unwrap();
    fs.remove_file("last").unwrap();
    drop(file);
    fs.close().unwrap();
    drop(device);
    if testkit::have("e2fsck") {
        testkit::e2fsck(&image);
    }
    let fs = Fs::open(&image).unwrap();
    assert_eq!(fs.statfs().unwrap().free, before);
}

#[test]
fn files_whose_size_says_nothing_are_copied_in_whole() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    lanefs::make::make(&image, Some(8 << 20), &Default::default(), false).unwrap();
    let fs = lanefs::Fs::open_for_writing(&image).unwrap();
    let options = lanefs::CopyOptions::default();
    let copied = |from: &str| {
        fs.copy_in(from, "/copy", &options)?;
        fs.read("/copy")
    };
    // These have a size of 0, and lseek finds no data in the first.
    for from in ["/proc/self/cmdline", "/proc/self/mounts"] {
        let copy = copied(from).unwrap();
        assert!(copy == std::fs::read(from).unwrap() && !copy.is_empty());
    }
    assert!(copied("/dev/null").unwrap().is_empty());
    let error = copied("/dev/zero").unwrap_err();
    assert!(error.to_string().contains("no space"), "{error}");
    fs.close().unwrap();
    testkit::e2fsck(&image);
}

#[test]
fn touch_makes_what_is_missing_where_a_link_leads_and_sets_times() {
    use lanefs::{SetTime, Timestamp};
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path(), "image");
    let time = |seconds| Timestamp {
        seconds,
        nanoseconds: 0,
    };
    let at = |seconds| Some(SetTime::At(time(seconds)));
    fs.create_dir("/a").unwrap();
    fs.symlink("../b", "/a/link").unwrap();
    fs.symlink("a/link", "/link").unwrap();
    fs.touch("/link", at(5), at(6), true).unwrap();
    let made = fs.symlink_metadata("/b").unwrap();
    assert_eq!((made.atime, made.mtime), (time(5), time(6)));
    assert_eq!((made.size, made.mode & 0o7777, made.nlink), (0, 0o644, 1));
    fs.touch("/a/link", None, at(7), false).unwrap();
    let touched = fs.metadata("/b").unwrap();
    assert_eq!((touched.ino, touched.atime), (made.ino, time(5)));
    assert_eq!(touched.mtime, time(7));
    // A directory, with a slash and without.
    fs.touch("/a", at(8), at(9), true).unwrap();
    fs.touch("a/", at(8), None, true).unwrap();
    fs.touch("/", at(10), None, true).unwrap();
    assert_eq!(fs.metadata("/").unwrap().atime, time(10));
    for (path, create) in [
        ("/c", false),
        ("/c/", true),
        ("/b/", true),
        ("/c/d", true),
        ("", true),
    ] {
        let refused = fs.touch(path, None, Some(SetTime::Now), create);
        assert!(refused.is_err(), "{path:?}");
    }
    fs.touch("/a/../c", Some(SetTime::Now), Some(SetTime::Now), true)
        .unwrap();
    assert_eq!(fs.metadata("/c").unwrap().size, 0);
    fs.close().unwrap();
}
