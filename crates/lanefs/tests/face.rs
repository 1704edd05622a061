//! The library as a stranger uses it: owned handles that move between threads, files without a lifetime, a file system
//! that is dropped without being closed, and errors by their kind.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use device::{BlockDevice, MemoryDevice};
use lanefs::{Dir, DirEntry, Error, File, Fs, FsBuilder, Metadata, OpenOptions, ReadDir, SetTime};
use simulate::{Cut, Recorder};
use sync::Arc;

fn in_memory() -> Fs {
    Fs::in_memory(8 << 20).unwrap()
}

/// A device, and a file system on it.
fn on_device() -> (Arc<MemoryDevice>, Fs) {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    let fs = Fs::builder().make_on(Arc::clone(&device) as _).unwrap();
    (device, fs)
}

fn reopened(device: &Arc<MemoryDevice>) -> Fs {
    Fs::builder().open_device(Arc::clone(device) as _).unwrap()
}

fn writable(device: Arc<dyn BlockDevice>) -> Fs {
    Fs::builder().write(true).open_device(device).unwrap()
}

/// Whether the image needs no replay.
fn is_clean(device: &Arc<MemoryDevice>) -> bool {
    reopened(device).inodes().recovery_report().is_none()
}

#[test]
fn all_handles_are_owned_and_may_be_sent_and_shared() {
    fn owned<T: Send + Sync + 'static>() {}
    owned::<Fs>();
    owned::<File>();
    owned::<Dir>();
    owned::<ReadDir>();
    owned::<DirEntry>();
    owned::<FsBuilder>();
    owned::<Error>();
    owned::<Metadata>();
}

#[test]
fn threads_without_a_scope_share_a_file_system_and_its_files() {
    let (device, fs) = on_device();
    let log = Arc::new(
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&fs, "/log")
            .unwrap(),
    );
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (fs, log) = (fs.clone(), Arc::clone(&log));
            std::thread::spawn(move || {
                fs.write(format!("/{number}"), number.to_string()).unwrap();
                (&*log).write_all(b"done\n").unwrap();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(fs.read_to_string("/log").unwrap(), "done\n".repeat(4));
    drop(log);
    fs.close().unwrap();
    let fs = reopened(&device);
    assert_eq!(fs.read_to_string("/3").unwrap(), "3");
}

#[test]
fn a_dropped_file_system_is_closed_with_all_that_was_done() {
    let (device, fs) = on_device();
    let file = fs.create("/kept").unwrap();
    (&file).write_all(b"bytes").unwrap();
    let clone = fs.clone();
    drop(fs);
    drop(clone);
    // The file keeps it open.
    file.write_all_at(b"more", 5).unwrap();
    drop(file);
    assert!(is_clean(&device));
    assert_eq!(reopened(&device).read("/kept").unwrap(), b"bytesmore");
}

#[test]
fn a_file_system_that_unwinds_is_closed_too() {
    let (device, fs) = on_device();
    let panicked = std::thread::spawn(move || {
        fs.write("/before", "panic").unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    assert_eq!(reopened(&device).read("/before").unwrap(), b"panic");
}

#[test]
fn a_link_to_a_directory_that_is_not_there_makes_no_file() {
    let fs = in_memory();
    fs.symlink("nowhere/", "/link").unwrap();
    let now = fs.write("/link", "bytes").unwrap_err();
    assert_eq!(now.kind(), ErrorKind::IsADirectory, "{now}");
    let touched = fs.touch("/link", None, None, true).unwrap_err();
    assert_eq!(touched.kind(), ErrorKind::IsADirectory, "{touched}");
    assert!(fs.metadata("/nowhere").is_err());
    fs.symlink("file", "/other").unwrap();
    fs.write("/other", "bytes").unwrap();
    assert_eq!(fs.read("/file").unwrap(), b"bytes");
}

#[test]
fn a_file_that_touch_makes_with_a_time_is_there_with_it_or_not_at_all() {
    let (empty, fs) = on_device();
    fs.close().unwrap();
    let mut bytes = vec![0; 8 << 20];
    empty.read_at(0, &mut bytes).unwrap();
    let device = Arc::new(Recorder::new(&bytes));
    let fs = writable(Arc::clone(&device) as _);
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 7);
    let set = Some(SetTime::At(time.into()));
    fs.touch("/new", set, set, true).unwrap();
    fs.close().unwrap();

    let mut cuts = device.cuts();
    let points: Vec<usize> = cuts.points().collect();
    let mut made = Vec::new();
    for event in points {
        let fs = writable(Arc::new(cuts.state(Cut { event, seed: 1 })));
        let found = fs.metadata("/new");
        made.push(found.is_ok());
        match found {
            Ok(found) => assert_eq!((found.modified(), found.nlink), (time, 1), "{event}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{event}"),
        }
    }
    assert!(made.contains(&false) && made.contains(&true), "{made:?}");
}

#[test]
fn an_image_that_is_made_is_opened_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    let partition = lanefs::locate::Location::Partition(1);
    let fs = Fs::builder()
        .location(partition)
        .make(&path, 8 << 20)
        .unwrap();
    fs.write("/file", "bytes").unwrap();
    fs.close().unwrap();
    assert_eq!(Fs::open(&path).unwrap().read("/file").unwrap(), b"bytes");
}

#[test]
fn an_abandoned_file_system_keeps_what_was_synced_and_no_more() {
    let (device, fs) = on_device();
    fs.write("/synced", "").unwrap();
    fs.sync().unwrap();
    fs.write("/not-synced", "").unwrap();
    fs.abandon();
    assert!(!is_clean(&device));
    let fs = reopened(&device);
    assert!(fs.try_exists("/synced").unwrap());
    assert!(!fs.try_exists("/not-synced").unwrap());
}

#[test]
fn a_file_system_is_closed_under_open_handles() {
    let (device, fs) = on_device();
    fs.create_dir("/dir").unwrap();
    let (clone, dir) = (fs.clone(), fs.open_dir("/dir").unwrap());
    let file = fs.create("/file").unwrap();
    (&file).write_all(b"bytes").unwrap();
    fs.close().unwrap();
    assert!(is_clean(&device));

    assert!(!clone.is_writable());
    assert_eq!(clone.read("/file").unwrap(), b"bytes");
    assert_eq!(dir.entries().unwrap().count(), 0);
    let refused = [
        clone.write("/other", "").unwrap_err(),
        dir.create_dir("sub").unwrap_err(),
        file.write_at(b"x", 0).unwrap_err(),
        file.set_len(0).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{error}");
    }
    // A sync has nothing to make durable, and succeeds.
    file.sync_all().unwrap();
    clone.sync().unwrap();
    clone.clone().close().unwrap();
    clone.thaw().unwrap();
    assert!(clone.write("/other", "").is_err());
    drop((file, dir, clone));
    assert!(is_clean(&device));
}

#[test]
fn a_close_waits_for_the_writes_of_other_threads_and_stops_them() {
    for _ in 0..20 {
        let (device, fs) = on_device();
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                let fs = fs.clone();
                std::thread::spawn(move || {
                    (0..)
                        .find(|number| fs.create_dir(format!("/{thread}-{number}")).is_err())
                        .unwrap_or(0_u32)
                })
            })
            .collect();
        while !fs.try_exists("/0-0").unwrap() {
            std::thread::yield_now();
        }
        fs.close().unwrap();
        let made: Vec<u32> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        assert!(is_clean(&device));
        let found = reopened(&device).read_dir("/").unwrap().count();
        assert_eq!(found, 1 + made.iter().sum::<u32>() as usize);
    }
}

#[test]
fn a_file_without_names_at_the_close_is_deleted_at_the_next_opening() {
    let (device, fs) = on_device();
    let free = fs.statfs().unwrap().free;
    let file = fs.create("/gone").unwrap();
    (&file).write_all(&[1; 1 << 20]).unwrap();
    fs.remove_file("/gone").unwrap();
    fs.clone().close().unwrap();
    assert_eq!(file.metadata().unwrap().nlink, 0);
    drop((file, fs));
    let fs = writable(Arc::clone(&device) as _);
    assert_eq!(fs.statfs().unwrap().free, free);
    fs.close().unwrap();
}

#[test]
fn many_changes_are_one_only_while_nobody_else_has_the_file_system() {
    let (_, fs) = on_device();
    let clone = fs.clone();
    let refused = fs.atomically(|fs| fs.create_dir("/a"));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ResourceBusy);

    let (device, fs) = on_device();
    let leaked: Result<File, Error> = fs.atomically(|fs| fs.create("/a"));
    assert_eq!(leaked.unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert!(!reopened(&device).try_exists("/a").unwrap());

    let (device, fs) = on_device();
    fs.atomically(|fs| {
        fs.create("/a")?.close()?;
        fs.rename("/a", "/b")
    })
    .unwrap();
    assert!(is_clean(&device));
    assert!(reopened(&device).try_exists("/b").unwrap());
    drop(clone);
}

#[test]
fn a_panic_within_one_change_leaves_nothing_of_it() {
    let (device, fs) = on_device();
    let panicked = std::thread::spawn(move || {
        fs.atomically(|fs| -> Result<(), Error> {
            fs.create_dir("/a")?;
            panic!("on purpose");
        })
    });
    assert!(panicked.join().is_err());
    assert!(!reopened(&device).try_exists("/a").unwrap());
}

#[test]
fn a_directory_is_the_root_of_its_paths_wherever_it_is_moved() {
    let fs = in_memory();
    fs.create_dir_all("/a/b/c").unwrap();
    fs.write("/a/outside", "secret").unwrap();
    let dir = fs.open_dir("/a/b").unwrap();
    fs.rename("/a/b", "/moved").unwrap();

    dir.write("c/file", "inside").unwrap();
    assert_eq!(fs.read("/moved/c/file").unwrap(), b"inside");
    assert_eq!(dir.read("/c/file").unwrap(), b"inside");
    assert_eq!(dir.read("../../c/file").unwrap(), b"inside");
    for way_out in ["../outside", "/a/outside", "c/../../outside"] {
        assert_eq!(dir.read(way_out).unwrap_err().kind(), ErrorKind::NotFound);
    }
    dir.symlink("/c/file", "absolute").unwrap();
    dir.symlink("../../../c/file", "upwards").unwrap();
    fs.symlink("/a/outside", "/moved/out").unwrap();
    assert_eq!(dir.read("absolute").unwrap(), b"inside");
    assert_eq!(dir.read("upwards").unwrap(), b"inside");
    assert_eq!(dir.read("out").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(dir.write("out", "x").is_err());
    assert_eq!(fs.read("/a/outside").unwrap(), b"secret");

    let sub = dir.open_dir("c").unwrap();
    assert_eq!(sub.ino(), fs.metadata("/moved/c").unwrap().ino);
    let mut file = sub
        .open_with("new", OpenOptions::new().write(true).create_new(true))
        .unwrap();
    file.write_all(b"new").unwrap();
    sub.rename("new", "old").unwrap();
    let mut text = String::new();
    sub.open("old").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "new");
    sub.remove_dir_all("/").unwrap_err();
    assert!(sub.dir_metadata().unwrap().file_type.is_dir());
}

#[test]
fn a_directory_that_was_removed_is_empty_and_takes_nothing() {
    let fs = in_memory();
    fs.create_dir("/a").unwrap();
    let dir = fs.open_dir("/a").unwrap();
    fs.remove_dir("/a").unwrap();
    assert_eq!(dir.dir_metadata().unwrap().nlink, 0);
    assert_eq!(dir.entries().unwrap().count(), 0);
    assert_eq!(dir.write("x", "").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(fs.open_dir("/a").is_err());
    // A clone keeps the directory, so that no new file receives its number.
    let ino = dir.ino();
    let view: Fs = Fs::clone(&dir);
    drop(dir);
    for number in 0..100 {
        fs.write(format!("/{number}"), "").unwrap();
        assert_ne!(fs.metadata(format!("/{number}")).unwrap().ino, ino);
    }
    assert!(view.read("0").is_err());
    drop(view);
    fs.close().unwrap();
}

#[test]
fn entries_have_paths_and_metadata_and_outlive_what_they_came_from() {
    let fs = in_memory();
    fs.create_dir("/dir").unwrap();
    for number in 0..1500 {
        fs.create_dir(format!("/dir/{number}")).unwrap();
    }
    fs.write("/dir/file", "12345").unwrap();
    let listed = fs.read_dir("/dir").unwrap();
    drop(fs);
    let entries: Vec<DirEntry> = listed.map(Result::unwrap).collect();
    assert_eq!(entries.len(), 1501);
    let file = entries
        .iter()
        .find(|entry| entry.name() == b"file")
        .unwrap();
    assert_eq!(file.path(), Path::new("/dir/file"));
    assert_eq!(file.file_name(), "file");
    assert!(file.file_type().unwrap().is_file());
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.ino), (5, file.ino()));
    assert!(!metadata.is_dir() && metadata.is_file());
    assert_eq!(format!("{file:?}"), r#"DirEntry("/dir/file")"#);
    let mut names: Vec<PathBuf> = entries.iter().map(DirEntry::path).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1501);
}

#[test]
fn metadata_of_an_entry_whose_name_was_removed_is_not_found() {
    let fs = in_memory();
    fs.write("/file", "").unwrap();
    let mut entries = fs.read_dir("/").unwrap().map(Result::unwrap);
    let entry = entries.find(|entry| entry.name() == b"file").unwrap();
    fs.remove_file("/file").unwrap();
    let error = entry.metadata().unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NotFound, 2));
}

#[test]
fn reads_and_writes_have_positions_of_their_own_or_share_one() {
    let fs = in_memory();
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).open(&fs, "/f");
    let file = file.unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    let mut two = [0; 2];
    let (mut one, mut other) = (&file, &file);
    one.read_exact(&mut two).unwrap();
    other.read_exact(&mut two).unwrap();
    assert_eq!(&two, b"23");
    file.read_exact_at(&mut two, 8).unwrap();
    assert_eq!(&two, b"89");
    let error = file.read_exact_at(&mut two, 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(one.stream_position().unwrap(), 4);
    assert_eq!(other.seek(SeekFrom::End(-1)).unwrap(), 9);
    let before = other.seek(SeekFrom::Current(-10)).unwrap_err();
    assert_eq!(before.kind(), ErrorKind::InvalidInput);
    std::io::copy(&mut &b"abc"[..], &mut one).unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"012345678abc");
    assert_eq!(fs.file("/f").unwrap().metadata().unwrap().len(), 12);
}

#[test]
fn times_are_those_of_std_both_ways() {
    fn noon() -> lanefs::Timestamp {
        (UNIX_EPOCH + Duration::from_secs(946_728_000)).into()
    }
    let fs = Fs::builder().clock(noon).make_in_memory(8 << 20).unwrap();
    let made = fs.metadata("/lost+found").unwrap();
    assert_eq!(made.modified(), SystemTime::from(noon()));
    fs.write("/f", "").unwrap();
    let found = fs.metadata("/f").unwrap();
    assert_eq!(found.created(), Some(noon().into()));
    assert_eq!(
        (found.changed(), found.accessed()),
        (noon().into(), noon().into())
    );
    let long_ago = UNIX_EPOCH - Duration::new(5, 250_000_000);
    let file = OpenOptions::new().write(true).open(&fs, "/f").unwrap();
    file.set_modified(long_ago).unwrap();
    assert_eq!(fs.metadata("/f").unwrap().modified(), long_ago);
    let later = UNIX_EPOCH + Duration::new(1 << 33, 1);
    fs.set_times("/f", Some(later.into()), None).unwrap();
    let found = file.metadata().unwrap();
    assert_eq!((found.accessed(), found.modified()), (later, long_ago));
    assert_eq!(found.permissions(), 0o644);
}

#[test]
fn a_builder_opens_files_devices_and_bytes_with_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let fs = Fs::builder().make(&image, 8 << 20).unwrap();
    fs.write("/f", "1").unwrap();
    let taken = Fs::builder().make(&image, 8 << 20).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    drop(fs);

    let fs = Fs::builder().open(&image).unwrap();
    assert_eq!(
        fs.write("/f", "2").unwrap_err().kind(),
        ErrorKind::ReadOnlyFilesystem
    );
    drop(fs);
    let fs = Fs::builder().write(true).open(&image).unwrap();
    fs.write("/f", "2").unwrap();
    let held = Fs::builder().write(true).open(&image).unwrap_err();
    assert_eq!(held.kind(), ErrorKind::ResourceBusy, "{held}");
    drop(fs);

    let bytes = testkit::read_image(&image);
    let fs = Fs::builder().write(true).open_bytes(&bytes).unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"2");
    fs.write("/f", "3").unwrap();
    let device = Arc::clone(fs.inodes().device());
    fs.close().unwrap();
    let mut changed = vec![0; bytes.len()];
    device.read_at(0, &mut changed).unwrap();
    let fs = Fs::builder().open_bytes(&changed).unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"3");
    assert!(Fs::builder().open_bytes(b"no image").is_err());
}

#[test]
fn every_refusal_has_the_kind_that_std_has_for_it() {
    let fs = in_memory();
    fs.create_dir_all("/dir/sub").unwrap();
    fs.write("/file", "text").unwrap();
    fs.symlink("loop", "/loop").unwrap();
    fs.write("/bytes", [0xff]).unwrap();
    let only_read = fs.file("/file").unwrap();
    let cases: Vec<(Result<(), Error>, ErrorKind, i32)> = vec![
        (fs.read("/none").map(drop), ErrorKind::NotFound, 2),
        (
            fs.xattr("/file", "user.x").map(drop),
            ErrorKind::NotFound,
            61,
        ),
        (fs.read("/file/x").map(drop), ErrorKind::NotADirectory, 20),
        (fs.read("/dir").map(drop), ErrorKind::IsADirectory, 21),
        (fs.create_dir("/dir"), ErrorKind::AlreadyExists, 17),
        (fs.remove_dir("/dir"), ErrorKind::DirectoryNotEmpty, 39),
        (fs.rename("/dir", "/dir/sub/x"), ErrorKind::InvalidInput, 22),
        (
            fs.create_dir("/".to_owned() + &"n".repeat(256)),
            ErrorKind::InvalidFilename,
            36,
        ),
        (
            fs.hard_link("/dir", "/link"),
            ErrorKind::PermissionDenied,
            1,
        ),
        (fs.set_len("/file", 1 << 60), ErrorKind::FileTooLarge, 27),
        (
            fs.set_xattr("/file", "none.x", ""),
            ErrorKind::Unsupported,
            95,
        ),
        (
            fs.write("/big", vec![1; 9 << 20]),
            ErrorKind::StorageFull,
            28,
        ),
        (
            only_read.write_at(b"x", 0).map(drop),
            ErrorKind::PermissionDenied,
            9,
        ),
        (
            fs.read_to_string("/bytes").map(drop),
            ErrorKind::InvalidData,
            117,
        ),
        (fs.read_link("/file").map(drop), ErrorKind::InvalidInput, 22),
    ];
    for (result, kind, errno) in cases {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.errno()), (kind, errno), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), kind);
    }
    let looping = fs.read("/loop").unwrap_err();
    assert_eq!(looping.errno(), 40);
    let shown = format!("{:?}", fs.read("/none").unwrap_err());
    assert_eq!(shown, r#"Fs { path: "/none", source: NotFound }"#);
}
