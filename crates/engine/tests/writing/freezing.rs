//! Freezing and thawing by several threads at once, and what is on the device in between.

use device::BlockDevice;
use lanefs_engine::{Ino, InodeFs, MountOptions, NewInode, ReplayPolicy};
use simulate::{CowDevice, Fault, Recorder};
use sync::Arc;
use sync::schedule::{self, SchedulePlan};

use crate::files::{contents, judge_image, with_files};
use crate::image::{clock, make, record_with, sweep};

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};
/// The superblock's bit that says that the journal comes first.
const NEEDS_RECOVERY: u32 = 4;

/// Whether the superblock says that the file system is open.
fn is_in_use(device: &Arc<CowDevice>) -> bool {
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    let options = MountOptions {
        journal: ReplayPolicy::Ignore,
        ..MountOptions::default()
    };
    let fs = InodeFs::open(shared, &options).unwrap();
    fs.superblock().features().incompat & NEEDS_RECOVERY != 0
}

#[test]
fn threads_that_freeze_and_thaw_at_once_leave_an_image_that_says_what_it_is() {
    let Some(image) = make(&["-b", "1024", "-J", "size=1"], 4 << 20) else {
        return;
    };
    for seed in 0..60 {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let plan = SchedulePlan {
            seed,
            points: 1_000_000,
        };
        let work = || {
            let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
            let fs = InodeFs::open_for_writing(shared, &MountOptions::default(), clock).unwrap();
            sync::thread::workers(3, |thread| {
                for round in 0..3 {
                    if thread == 2 {
                        let name = format!("made{round}");
                        fs.create(Ino::ROOT, name.as_bytes(), NEW).unwrap();
                        continue;
                    }
                    fs.freeze().unwrap();
                    sync::thread::yield_now();
                    fs.thaw().unwrap();
                }
            });
            fs.create(Ino::ROOT, b"last", NEW).unwrap();
            fs.sync().unwrap();
            assert!(is_in_use(&device), "seed {seed}: its journal has changes");
            // As after a crash.
            drop(fs);
        };
        schedule::run(plan, work).unwrap();
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let fs = InodeFs::open_for_writing(shared, &MountOptions::default(), clock).unwrap();
        fs.lookup(Ino::ROOT, b"last").unwrap();
        fs.close().unwrap();
    }
    // One of the images, from beginning to end.
    let device = Arc::new(CowDevice::new(image.into()));
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open_for_writing(shared, &MountOptions::default(), clock).unwrap();
    fs.create(Ino::ROOT, b"made", NEW).unwrap();
    fs.freeze().unwrap();
    judge_image(&device);
    fs.thaw().unwrap();
    fs.close().unwrap();
}

#[test]
fn what_is_synced_after_a_freeze_that_failed_is_there_after_a_crash() {
    let Some(image) = make(&["-b", "1024", "-J", "size=1"], 4 << 20) else {
        return;
    };
    let start = CowDevice::new(image.into());
    let mut failed_freezes = 0;
    for kind in [Fault::Write as fn(u64) -> Fault, Fault::Flush] {
        for number in 0.. {
            let recorder = Arc::new(Recorder::over(&start).fails(kind(number), false));
            let shared = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
            let Ok(fs) = InodeFs::open_for_writing(shared, &MountOptions::default(), clock) else {
                continue;
            };
            let made = fs.create(Ino::ROOT, b"before", NEW);
            let frozen = fs.freeze();
            failed_freezes += u32::from(frozen.is_err());
            let _ = fs.thaw();
            let synced = made
                .and_then(|_| fs.create(Ino::ROOT, b"after", NEW))
                .and_then(|_| fs.sync());
            // As after a crash.
            drop(fs);
            let left = Arc::new(recorder.live()) as Arc<dyn BlockDevice>;
            let fs = InodeFs::open_for_writing(left, &MountOptions::default(), clock).unwrap();
            if synced.is_ok() {
                fs.lookup(Ino::ROOT, b"after").unwrap();
            }
            if frozen.is_ok() {
                fs.lookup(Ino::ROOT, b"before").unwrap();
            }
            fs.close().unwrap();
            if !recorder.has_failed() {
                break;
            }
        }
    }
    assert!(failed_freezes > 5, "{failed_freezes}");
}

#[test]
fn a_freeze_makes_data_written_over_others_durable_and_leaves_nothing_to_flush() {
    let Some(image) = with_files(&["-b", "1024"], 8 << 20, &["file"]) else {
        return;
    };
    let cuts = record_with(&image, &MountOptions::default(), |device, fs| {
        let ino = fs.lookup(Ino::ROOT, b"file").unwrap();
        fs.write(ino, 0, &[1; 2048]).unwrap();
        fs.sync().unwrap();
        // The clock stands still, so that nothing but data changes.
        fs.write(ino, 0, &[2; 2048]).unwrap();
        fs.freeze().unwrap();
        device.mark(1);
        let events = device.events_so_far();
        fs.sync().unwrap();
        fs.fsync(ino).unwrap();
        fs.fdatasync(ino).unwrap();
        assert_eq!(device.events_so_far(), events, "requests while frozen");
        fs.thaw().unwrap();
        fs.close().unwrap();
    });
    let mut frozen = 0;
    sweep(cuts, 3, |cut, mark, fs| {
        if mark.is_some() {
            frozen += 1;
            let found = contents(fs, fs.lookup(Ino::ROOT, b"file").unwrap());
            assert_eq!(found, [2; 2048], "{cut}");
        }
    });
    assert!(frozen > 0);
}

#[test]
fn no_request_of_a_sync_that_was_under_way_comes_after_a_freeze() {
    let Some(image) = with_files(&["-b", "1024"], 8 << 20, &["file"]) else {
        return;
    };
    for seed in 0..100 {
        let device = Arc::new(Recorder::new(&image));
        let plan = SchedulePlan {
            seed,
            points: 1_000_000,
        };
        let work = || {
            let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
            let fs = InodeFs::open_for_writing(shared, &MountOptions::default(), clock).unwrap();
            let ino = fs.lookup(Ino::ROOT, b"file").unwrap();
            fs.write(ino, 0, &[1; 2048]).unwrap();
            fs.sync().unwrap();
            sync::thread::workers(3, |thread| {
                for _ in 0..4 {
                    match thread {
                        0 => {}
                        1 => {
                            fs.write(ino, 0, &[2; 2048]).unwrap();
                            fs.fdatasync(ino).unwrap();
                            continue;
                        }
                        _ => {
                            (0..8).for_each(|_| fs.sync().unwrap());
                            continue;
                        }
                    }
                    fs.freeze().unwrap();
                    let events = device.events_so_far();
                    (0..60).for_each(|_| sync::thread::yield_now());
                    let more = device.events_so_far() - events;
                    fs.thaw().unwrap();
                    assert_eq!(more, 0, "seed {seed}: requests while frozen");
                }
            });
            fs.close().unwrap();
        };
        schedule::run(plan, work).unwrap();
    }
}

#[test]
fn who_lets_go_of_what_has_no_names_waits_for_the_thaw_with_nothing_locked() {
    let Some(image) = make(&["-b", "1024", "-O", "^orphan_file"], 8 << 20) else {
        return;
    };
    for seed in 0..100 {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let plan = SchedulePlan {
            seed,
            points: 1_000_000,
        };
        let work = || {
            let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
            let fs = InodeFs::open_for_writing(shared, &MountOptions::default(), clock).unwrap();
            let held = NewInode { held: true, ..NEW };
            let names = ["a", "b", "c", "d"].map(str::as_bytes);
            let files = names.map(|name| fs.create(Ino::ROOT, name, held).unwrap());
            for name in names {
                fs.unlink(Ino::ROOT, name).unwrap();
            }
            sync::thread::workers(2, |thread| {
                for ino in files {
                    if thread > 0 {
                        fs.release(ino).unwrap();
                        continue;
                    }
                    fs.freeze().unwrap();
                    (0..20).for_each(|_| sync::thread::yield_now());
                    fs.thaw().unwrap();
                }
            });
            fs.close().unwrap();
        };
        schedule::run(plan, work).unwrap();
        judge_image(&device);
    }
}

#[test]
fn a_file_system_that_is_dropped_while_it_is_frozen_waits_for_nobody() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let options = MountOptions {
        reaper_thread: true,
        ..MountOptions::default()
    };
    // The thread that deletes may wait for a thaw, in real time.
    for _ in 0..50 {
        let device = Arc::new(CowDevice::new(image.as_slice().into()));
        let fs = InodeFs::open_for_writing(device, &options, clock).unwrap();
        let held = NewInode { held: true, ..NEW };
        let files = ["a", "b", "c"].map(|name| fs.create(Ino::ROOT, name.as_bytes(), held));
        for name in ["a", "b", "c"] {
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        fs.freeze().unwrap();
        for ino in files {
            fs.let_go(ino.unwrap());
        }
        drop(fs);
    }
}
