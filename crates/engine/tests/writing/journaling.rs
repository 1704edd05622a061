//! How changes become durable: fsync and fdatasync and which threads share their commits, the commit interval,
//! freezing, what a failure leaves, and images without a journal.

use std::time::Duration;

use device::{BlockDevice, MemoryDevice};
use lanefs_engine::{
    DataMode, Error, FileType, Ino, InodeFs, MountOptions, NewInode, SetAttributes,
};
use model::Random;
use ondisk::Feature;
use simulate::{CowDevice, Cut, Event, Fault, Recorder, SlowFlush};
use sync::Arc;
use sync::atomic::{AtomicBool, Ordering};

use crate::files::{contents, judge_image, with_files};
use crate::image::{clock, make, open, record_with, sweep};

fn memory(image: &[u8]) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(image.len() as u64);
    device.write_at(0, image).unwrap();
    Arc::new(device)
}

fn copy(device: &dyn BlockDevice) -> Arc<CowDevice> {
    let bytes = testkit::image_of(device.size(), |at, piece| {
        device.read_at(at, piece).unwrap()
    });
    Arc::new(CowDevice::new(bytes.into()))
}

fn open_with(device: Arc<dyn BlockDevice>, options: &MountOptions) -> InodeFs {
    InodeFs::open_for_writing(device, options, clock).unwrap()
}

fn new() -> NewInode {
    NewInode {
        mode: 0o644,
        umask: 0,
        uid: 0,
        gid: 0,
        held: false,
    }
}

fn touch() -> SetAttributes {
    SetAttributes {
        mtime: Some(lanefs_engine::SetTime::Now),
        ..SetAttributes::default()
    }
}

fn commits(fs: &InodeFs) -> u64 {
    fs.journal_statistics().unwrap().commits.sum()
}

#[test]
fn fdatasync_commits_what_it_takes_to_read_the_data_and_no_times() {
    let Some(image) = with_files(&["-b", "4096"], 8 << 20, &["one"]) else {
        return;
    };
    let device = Arc::new(Recorder::new(&image));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let flushes = || {
        let (_, events) = device.recording();
        events
            .iter()
            .filter(|event| **event == Event::Flush)
            .count()
    };
    let ino = fs.resolve(b"one", true).unwrap();
    let count = |work: &dyn Fn()| {
        let before = (commits(&fs), flushes());
        work();
        (commits(&fs) - before.0, flushes() - before.1)
    };
    let data = || fs.fdatasync(ino).unwrap();
    let all = || fs.fsync(ino).unwrap();
    fs.write(ino, 0, &[1; 10_000]).unwrap();
    assert_eq!(count(&data), (1, 2), "the map and the size changed");
    assert_eq!(count(&data), (0, 0), "nothing changed");
    assert_eq!(count(&all), (0, 0), "all of it was committed");
    fs.set_attributes(ino, &touch()).unwrap();
    assert_eq!(count(&data), (0, 0), "only times changed");
    assert_eq!(count(&all), (1, 2), "times changed");
    fs.write(ino, 100, &[2; 3000]).unwrap();
    assert_eq!(count(&data), (0, 1), "data in place, and times");
    assert_eq!(count(&all), (1, 2), "times");
    fs.write(ino, 100, &[3; 3000]).unwrap();
    assert_eq!(
        count(&all),
        (0, 1),
        "data in place; nobody saw the times, which stay"
    );
    fs.metadata(ino).unwrap();
    fs.write(ino, 100, &[4; 3000]).unwrap();
    assert_eq!(count(&all), (1, 2), "the commit's flush covers the data");
    assert_eq!(count(&data), (0, 0), "no flush is owed");
    fs.truncate(ino, 20_000).unwrap();
    assert_eq!(count(&data), (1, 2), "the size changed");
    fs.truncate(ino, 5_000).unwrap();
    assert_eq!(count(&data), (1, 2), "the size and the map changed");
    fs.close().unwrap();
}

#[test]
fn fsync_of_a_directory_makes_its_names_durable() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let device = memory(&image);
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let directory = fs.mkdir(Ino::ROOT, b"d", new()).unwrap();
    fs.fsync(Ino::ROOT).unwrap();
    fs.create(directory, b"one", new()).unwrap();
    fs.fsync(directory).unwrap();
    fs.create(directory, b"two", new()).unwrap();
    drop(fs);
    let fs = open(copy(&*device));
    fs.resolve(b"d/one", true).unwrap();
    assert!(matches!(fs.resolve(b"d/two", true), Err(Error::NotFound)));
    fs.close().unwrap();
}

#[test]
fn threads_that_fsync_their_files_at_once_share_commits() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let Some(image) = with_files(&["-b", "4096"], 16 << 20, &names) else {
        return;
    };
    let device = MemoryDevice::new(image.len() as u64);
    device.write_at(0, &image).unwrap();
    let fs = open(Arc::new(SlowFlush::new(device, Duration::from_millis(2))));
    let rounds = 40;
    sync::thread::workers(names.len(), |thread| {
        let ino = fs.resolve(names[thread].as_bytes(), true).unwrap();
        for round in 0..rounds {
            fs.write(ino, round * 100, &[thread as u8; 100]).unwrap();
            fs.fsync(ino).unwrap();
        }
    });
    let (asked, took) = (rounds * names.len() as u64, commits(&fs));
    eprintln!("{asked} fsyncs of 8 threads took {took} commits");
    assert!(took * 2 < asked, "{asked} fsyncs took {took} commits");
    fs.close().unwrap();
}

/// Sixteen threads on a journal as small as there is: they create, fill, cut, rename and delete, and all get done.
#[test]
fn many_threads_get_through_the_smallest_journal() {
    let Some(image) = make(&["-b", "1024", "-J", "size=1", "-N", "4096"], 64 << 20) else {
        return;
    };
    for (staged_bytes, commit_interval) in
        [(1 << 20, None), (64 << 20, Some(Duration::from_millis(50)))]
    {
        let device = memory(&image);
        let options = MountOptions {
            staged_bytes,
            commit_interval,
            ..MountOptions::default()
        };
        let fs = open_with(Arc::clone(&device) as Arc<dyn BlockDevice>, &options);
        let shared = fs.mkdir(Ino::ROOT, b"shared", new()).unwrap();
        sync::thread::workers(16, |thread| {
            let mut random = Random::new(thread as u64);
            for round in 0..120 {
                let (name, other) = (format!("{thread}-{round}"), format!("{thread}"));
                let ino = fs.create(shared, name.as_bytes(), new()).unwrap();
                let size = 1 + random.below(120_000);
                fs.write(ino, random.below(50_000), &vec![1; size as usize])
                    .unwrap();
                fs.truncate(ino, size / 3).unwrap();
                let flag = lanefs_engine::RenameFlag::Replace;
                fs.rename(shared, name.as_bytes(), shared, other.as_bytes(), flag)
                    .unwrap();
                if random.one_in(10) {
                    fs.fsync(ino).unwrap();
                }
            }
        });
        let logged = fs.journal_statistics().unwrap().logged_blocks.sum();
        assert!(logged > 1024, "the log of 1,024 blocks wraps: {logged}");
        fs.close().unwrap();
        judge_image(&copy(&*device));
    }
}

#[test]
fn a_frozen_image_is_clean_and_its_writers_wait() {
    let names = ["one", "two"];
    for options in [&["-b", "1024"][..], &["-b", "1024", "-O", "^has_journal"]] {
        let Some(image) = with_files(options, 8 << 20, &names) else {
            return;
        };
        let device = memory(&image);
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let stop = AtomicBool::new(false);
        sync::thread::scope(|scope| {
            let (fs, stop) = (&fs, &stop);
            for name in names {
                scope.spawn(move || {
                    let ino = fs.resolve(name.as_bytes(), true).unwrap();
                    let mut random = Random::new(7);
                    // Relaxed: a flag to end the test.
                    while !stop.load(Ordering::Relaxed) {
                        fs.write(ino, random.below(50_000), &[7; 3000]).unwrap();
                        let _ = fs.unlink(Ino::ROOT, format!("{name}.new").as_bytes());
                        fs.create(Ino::ROOT, format!("{name}.new").as_bytes(), new())
                            .unwrap();
                    }
                });
            }
            for _ in 0..5 {
                sync::thread::sleep(Duration::from_millis(20));
                fs.freeze().unwrap();
                fs.freeze().unwrap();
                let first = copy(&*device);
                judge_image(&first);
                // Reads continue; so does a sync, which has nothing to do.
                let ino = fs.resolve(b"one", true).unwrap();
                contents(fs, ino);
                fs.sync().unwrap();
                fs.fsync(ino).unwrap();
                assert!(copy(&*device).bytes() == first.bytes(), "it was written to");
                fs.thaw().unwrap();
                fs.thaw().unwrap();
            }
            // Relaxed: a flag to end the test.
            stop.store(true, Ordering::Relaxed);
        });
        fs.freeze().unwrap();
        fs.close().unwrap();
        judge_image(&copy(&*device));
    }
}

#[test]
fn what_nobody_syncs_is_committed_after_the_interval() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let device = memory(&image);
    let options = MountOptions {
        commit_interval: Some(Duration::from_millis(20)),
        ..MountOptions::default()
    };
    let fs = open_with(Arc::clone(&device) as Arc<dyn BlockDevice>, &options);
    fs.create(Ino::ROOT, b"one", new()).unwrap();
    let start = sync::clock::now();
    while commits(&fs) == 0 {
        assert!(sync::clock::now() - start < Duration::from_secs(10));
        sync::thread::sleep(Duration::from_millis(5));
    }
    drop(fs);
    let fs = open(copy(&*device));
    fs.resolve(b"one", true).unwrap();
    fs.close().unwrap();
    // Without it nobody does.
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    fs.create(Ino::ROOT, b"two", new()).unwrap();
    sync::thread::sleep(Duration::from_millis(60));
    assert_eq!(commits(&fs), 0);
    drop(fs);
}

#[test]
fn a_failed_flush_ends_all_writing_and_its_cause_stays() {
    let Some(image) = with_files(&["-b", "1024"], 8 << 20, &["one"]) else {
        return;
    };
    // The opening flushes once.
    let device = Arc::new(Recorder::failing(&image, Fault::Flush(1), false));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let ino = fs.resolve(b"one", true).unwrap();
    fs.write(ino, 0, &[1; 3000]).unwrap();
    let first = fs.fsync(ino).unwrap_err().to_string();
    let before = device.contents();
    let cause = first.trim_start_matches("the journal's device failed: ");
    let promises = [fs.fsync(ino), fs.fdatasync(ino), fs.sync(), fs.freeze()];
    let changes = [
        fs.write(ino, 0, &[2; 10]).map(drop),
        fs.truncate(ino, 0),
        fs.create(Ino::ROOT, b"two", new()).map(drop),
        fs.unlink(Ino::ROOT, b"one"),
        fs.set_attributes(ino, &touch()),
        fs.set_xattr(ino, b"user.a", b"b", lanefs_engine::XattrFlag::Any),
    ];
    // A promise that can't be kept is an error of the device; a change is refused as on a read-only file system.
    let is_promise = |error: &Error| matches!(error, Error::Aborted(_));
    let is_change = |error: &Error| matches!(error, Error::Stopped(_));
    let of_promises = promises.into_iter().map(|failure| (failure, true));
    let of_changes = changes.into_iter().map(|failure| (failure, false));
    for (failure, promised) in of_promises.chain(of_changes) {
        let failure = failure.unwrap_err();
        let is_right = if promised {
            is_promise(&failure)
        } else {
            is_change(&failure)
        };
        assert!(is_right, "{failure:?}");
        assert!(
            failure.to_string().contains(cause),
            "{failure}, not {cause}"
        );
    }
    assert!(!fs.is_writable());
    assert!(fs.statfs().unwrap().is_read_only);
    assert_eq!(contents(&fs, ino), [1; 3000], "reading goes on");
    assert!(device.contents() == before, "nothing is written any more");
    let last = fs.close().unwrap_err();
    assert!(last.to_string().contains(cause), "{last}");
}

#[test]
fn a_write_that_was_cut_short_is_reported_by_the_next_fsync_once() {
    let Some(image) = with_files(&["-b", "1024"], 8 << 20, &["one"]) else {
        return;
    };
    let mut reports = 0;
    for n in 0..40 {
        let device = Arc::new(Recorder::failing(&image, Fault::Write(n), false));
        let opened = InodeFs::open_for_writing(
            Arc::clone(&device) as Arc<dyn BlockDevice>,
            &MountOptions::default(),
            clock,
        );
        let Ok(fs) = opened else { continue };
        let ino = fs.resolve(b"one", true).unwrap();
        fs.allocate(ino, lanefs_engine::Allocate::KeepSize, 2048, 4096)
            .unwrap();
        if let Ok(written) = fs.write(ino, 0, &[1; 20_000])
            && written < 20_000
        {
            let error = fs.fsync(ino).unwrap_err();
            assert!(matches!(error, Error::Io(_)), "{error:?}");
            fs.fsync(ino).unwrap();
            reports += 1;
        }
    }
    assert!(reports > 0);
}

#[test]
fn an_image_without_a_journal_is_changed_and_must_be_closed() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal"], 16 << 20) else {
        return;
    };
    let device = memory(&image);
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let mut random = Random::new(3);
    for round in 0..300_u32 {
        let name = format!("f{}", random.below(20));
        match fs.create(Ino::ROOT, name.as_bytes(), new()) {
            Ok(ino) => {
                let bytes = vec![round as u8; random.below(40_000) as usize];
                fs.write(ino, random.below(9000), &bytes).unwrap();
            }
            Err(Error::Exists) => fs.unlink(Ino::ROOT, name.as_bytes()).unwrap(),
            Err(error) => panic!("{error}"),
        }
        if round % 20 == 0 {
            fs.sync().unwrap();
        }
    }
    // In use, it is left to e2fsck.
    let refused = InodeFs::open_for_writing(copy(&*device), &MountOptions::default(), clock);
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("e2fsck comes first"), "{refused}");
    fs.close().unwrap();
    judge_image(&copy(&*device));
    let fs = InodeFs::open(copy(&*device), &MountOptions::default()).unwrap();
    assert!(!fs.superblock().features().has(Feature::HAS_JOURNAL));
    assert!(!fs.superblock().features().has(Feature::NEEDS_RECOVERY));
}

/// Files of one byte each, again and again in the blocks that others gave up.
fn fill_and_empty(fs: &InodeFs) {
    let mut random = Random::new(11);
    for round in 0..60_u8 {
        let name = format!("f{}", random.below(6));
        let _ = fs.unlink(Ino::ROOT, name.as_bytes());
        let ino = fs.create(Ino::ROOT, name.as_bytes(), new()).unwrap();
        let bytes = vec![round + 1; 400_000 + random.below(300_000) as usize];
        // The image has room for few of them.
        if let Err(error) = fs.write(ino, 0, &bytes) {
            assert!(matches!(error, Error::NoSpace), "{error}");
        }
        if round % 4 == 3 {
            fs.sync().unwrap();
        }
    }
}

/// After any cut e2fsck makes the image whole, and each file then has the bytes of one writer, or zeros.
#[test]
fn a_cut_without_a_journal_leaves_no_file_with_anothers_data() {
    let options = ["-b", "1024", "-O", "^has_journal,^metadata_csum"];
    let Some(image) = make(&options, 3 << 20) else {
        return;
    };
    let mut cuts = record_with(&image, &MountOptions::default(), |_, fs| {
        fill_and_empty(&fs);
        drop(fs);
    });
    let points: Vec<usize> = cuts.points().collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let (mut files, step) = (0, points.len() / 60);
    for (number, event) in points.into_iter().step_by(step.max(1)).enumerate() {
        let cut = Cut {
            event,
            seed: number as u64 % 4,
        };
        testkit::write_image(&path, &cuts.state(cut).bytes());
        let output = testkit::e2fsck_with(&["-f", "-y"], &path);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.code().is_some_and(|code| code <= 1),
            "{cut}: {text}"
        );
        assert!(!text.contains("Multiply-claimed"), "{cut}: {text}");
        let device = Arc::new(CowDevice::new(testkit::read_image(&path).into()));
        let fs = InodeFs::open(device, &MountOptions::default()).unwrap();
        let lost = fs.resolve(b"lost+found", true).unwrap();
        for directory in [Ino::ROOT, lost] {
            for entry in fs.read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
                if fs.metadata(entry.ino).unwrap().file_type != FileType::Regular {
                    continue;
                }
                let mut found = contents(&fs, entry.ino);
                found.retain(|byte| *byte != 0);
                found.dedup();
                assert!(found.len() <= 1, "{cut}: {:?}: {found:?}", entry.name);
                files += 1;
            }
        }
    }
    assert!(files > 100, "{files}");
}

#[test]
fn one_flush_a_commit_where_nothing_was_mapped_loses_nothing() {
    let Some(image) = with_files(
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        8 << 20,
        &["one"],
    ) else {
        return;
    };
    for data in [DataMode::Ordered, DataMode::Writeback] {
        let options = MountOptions {
            async_commit: true,
            data,
            ..MountOptions::default()
        };
        let cuts = record_with(&image, &options, |device, fs| {
            let ino = fs.resolve(b"one", true).unwrap();
            for round in 1..=12_u64 {
                fs.create(Ino::ROOT, format!("n{round}").as_bytes(), new())
                    .unwrap();
                fs.sync().unwrap();
                device.mark(round * 2);
                fs.write(ino, (round - 1) * 2000, &[round as u8; 2000])
                    .unwrap();
                fs.fsync(ino).unwrap();
                device.mark(round * 2 + 1);
            }
            assert!(fs.journal_statistics().unwrap().async_commits.sum() > 5);
            fs.close().unwrap();
        });
        sweep(cuts, 3, |cut, mark, fs| {
            let mark = mark.unwrap_or(0);
            for round in 1..=mark / 2 {
                fs.resolve(format!("n{round}").as_bytes(), true)
                    .unwrap_or_else(|error| panic!("{cut}: n{round}: {error}"));
            }
            let bytes = contents(fs, fs.resolve(b"one", true).unwrap());
            let promised = (mark.saturating_sub(1) / 2) as usize * 2000;
            assert!(bytes.len() >= promised, "{cut}: {}", bytes.len());
            if data == DataMode::Ordered {
                let wrong = (0..bytes.len()).find(|at| bytes[*at] != (at / 2000 + 1) as u8);
                assert_eq!(wrong, None, "{cut}");
            }
        });
    }
}
