//! Threads that create, write, cut, punch, replace and delete on an image with too little room for all of it:
//! operations fail only for want of space, no block is lost or used twice, and the sums agree with what the next mount
//! finds.

use device::{BlockDevice, DeviceError};
use lanefs_engine::{Allocate, Error, Flags, Ino, InodeFs, MountOptions, RenameFlag};
use model::Random;
use simulate::{CowDevice, Cuts, Recorder};
use sync::Arc;

use crate::files::judge_image;
use crate::image::{NEW, clock, make, open, sweep};

/// What may come of an operation on names that others use too.
fn allowed<T>(outcome: Result<T, Error>) {
    match outcome {
        Ok(_) | Err(Error::NoSpace | Error::NotFound | Error::Exists) => {}
        Err(error) => panic!("{error}"),
    }
}

fn has_extents(fs: &InodeFs, ino: Ino) -> bool {
    let inode = fs.metadata(ino);
    inode.is_ok_and(|inode| inode.flags.contains(Flags::EXTENTS))
}

/// Reads a file of which each block holds one byte throughout, or zeros, or is only begun.
fn check(fs: &InodeFs, ino: Ino) {
    let mut bytes = vec![0; 1 << 20];
    let Ok(len) = fs.read(ino, 0, &mut bytes) else {
        return;
    };
    for block in bytes[..len].chunks(1024) {
        let first = block.iter().find(|byte| **byte != 0);
        let is_one = |first: &u8| block.iter().all(|byte| byte == first || *byte == 0);
        assert!(first.is_none_or(is_one), "two files' bytes in one block");
    }
}

fn churn(fs: &InodeFs, thread: u64, steps: usize) {
    let mut random = Random::new(thread + 1);
    for step in 0..steps {
        let name = format!("{thread}-{}", random.below(12)).into_bytes();
        let other = format!("{thread}-{}", random.below(12)).into_bytes();
        let found = fs.lookup(Ino::ROOT, &name).ok();
        let (at, len) = (random.below(300) * 1024, (1 + random.below(60)) * 1024);
        match (random.below(9), found) {
            (0..=3, None) => allowed(fs.create(Ino::ROOT, &name, NEW)),
            (0..=2, Some(ino)) => {
                let byte = 1 + (ino.0 % 250) as u8;
                allowed(fs.write(ino, at, &vec![byte; len as usize]));
            }
            (3, Some(ino)) => allowed(fs.truncate(ino, at)),
            (4, Some(ino)) => fs.allocate(ino, Allocate::Punch, at + 512, len).unwrap(),
            (5, Some(ino)) if has_extents(fs, ino) => {
                allowed(fs.allocate(ino, Allocate::Grow, at, len))
            }
            (6, Some(_)) => {
                let flag = RenameFlag::Replace;
                allowed(fs.rename(Ino::ROOT, &name, Ino::ROOT, &other, flag));
            }
            (7, Some(_)) => fs.unlink(Ino::ROOT, &name).unwrap(),
            (_, Some(ino)) => check(fs, ino),
            (_, None) => {}
        }
        if step % 150 == 149 {
            fs.sync().unwrap();
        }
    }
}

/// Crowds an image, and empties it.
fn crowd(options: &[&str], reaper_thread: bool, steps: usize) {
    let Some(image) = make(options, 5 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let options = MountOptions {
        reaper_thread,
        ..MountOptions::default()
    };
    let shared = || Arc::clone(&device) as Arc<dyn BlockDevice>;
    let fs = InodeFs::open_for_writing(shared(), &options, clock).unwrap();
    let before = fs.statfs().unwrap();
    sync::thread::workers(3, |thread| churn(&fs, thread as u64, steps));
    let after = fs.statfs().unwrap();
    fs.close().unwrap();
    judge_image(&device);
    let fs = open(shared());
    let found = fs.statfs().unwrap();
    if !reaper_thread {
        // With it, some may have been on the way out when it was asked.
        assert_eq!(
            (found.free, found.free_files),
            (after.free, after.free_files)
        );
    }
    for entry in fs.read_dir(Ino::ROOT).unwrap() {
        let entry = entry.unwrap();
        if entry.name.contains(&b'-') {
            check(&fs, entry.ino);
            fs.unlink(Ino::ROOT, &entry.name).unwrap();
        }
    }
    let now = fs.statfs().unwrap();
    assert_eq!((now.free, now.free_files), (before.free, before.free_files));
    fs.close().unwrap();
    judge_image(&device);
}

/// Threads in [`taking_turns`], and how often each takes what it needs.
const TURNS: (usize, usize) = (8, 200);
/// Blocks that each of them takes at a time.
const BLOCKS: u64 = 4;

/// Threads that take what they need, give it back, and do so again, on an image that `fill` leaves just enough for all
/// of them; returns how often one got ENOSPC.
fn taking_turns(
    form: &str,
    fill: impl FnOnce(&InodeFs),
    turn: impl Fn(&InodeFs, Ino) -> Result<(), Error> + Sync,
) -> u64 {
    let Some(image) = make(&["-b", "1024", "-N", "64", "-m", "0"], 8 << 20) else {
        return 0;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    fs.choose(form).unwrap();
    let make = |thread| {
        let name = format!("of{thread}").into_bytes();
        let directory = fs.mkdir(Ino::ROOT, &name, NEW).unwrap();
        fs.create(directory, b"there", NEW).unwrap();
        directory
    };
    let directories: Vec<Ino> = (0..TURNS.0).map(make).collect();
    fill(&fs);
    let refused = sync::Counter::new();
    sync::thread::workers(TURNS.0, |thread| {
        for _ in 0..TURNS.1 {
            match turn(&fs, directories[thread]) {
                Err(Error::NoSpace) => refused.add(1),
                done => done.unwrap(),
            }
        }
    });
    fs.close().unwrap();
    judge_image(&device);
    refused.sum()
}

/// What one gives back comes back by a commit, and others are as quick to take it.
#[test]
fn threads_are_not_told_of_no_space_where_there_is_a_number_for_each() {
    for form in ["dir_ireserve=auto", "dir_ireserve=off", "dir_ireserve=high"] {
        let fill = |fs: &InodeFs| {
            for number in 0..fs.statfs().unwrap().free_files - TURNS.0 as u64 {
                let name = format!("filler{number}").into_bytes();
                fs.create(Ino::ROOT, &name, NEW).unwrap();
            }
        };
        let refused = taking_turns(form, fill, |fs, directory| {
            fs.create(directory, b"new", NEW)?;
            fs.unlink(directory, b"new")
        });
        assert_eq!(refused, 0, "{form}");
    }
}

#[test]
fn threads_are_not_told_of_no_space_where_there_are_blocks_for_each() {
    for form in ["prealloc=on", "prealloc=off", "group_lock=wait"] {
        let fill = |fs: &InodeFs| {
            let filler = fs.create(Ino::ROOT, b"filler", NEW).unwrap();
            let mut at = 0;
            while fs.statfs().unwrap().available > TURNS.0 as u64 * BLOCKS {
                at += fs.write(filler, at, &[1; 1024]).unwrap() as u64;
            }
            fs.sync().unwrap();
        };
        let refused = taking_turns(form, fill, |fs, directory| {
            let file = fs.lookup(directory, b"there")?;
            let bytes = [2; BLOCKS as usize * 1024];
            let mut at = 0;
            while at < bytes.len() {
                at += fs.write(file, at as u64, &bytes[at..])?;
            }
            fs.truncate(file, 0)
        });
        assert_eq!(refused, 0, "{form}");
    }
}

#[test]
fn a_crowded_image_loses_no_block() {
    crowd(&["-b", "1024", "-N", "32"], false, 500);
    crowd(&["-b", "1024", "-N", "32"], true, 500);
}

#[test]
fn a_crowded_image_of_block_maps_loses_no_block() {
    let options = [
        "-b",
        "1024",
        "-N",
        "32",
        "-O",
        "^extents,^64bit,^metadata_csum",
    ];
    crowd(&options, false, 500);
}

#[test]
#[ignore = "minutes: cargo xtask suites long"]
fn a_crowded_image_loses_no_block_in_the_long_run() {
    crowd(&["-b", "1024", "-N", "32"], false, 60_000);
    crowd(&["-b", "1024", "-N", "32"], true, 60_000);
}

/// A device on which discarded blocks are overwritten at once.
struct Overwriting(Arc<Recorder>);

impl BlockDevice for Overwriting {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn discard(&self, range: std::ops::Range<u64>) -> Result<(), DeviceError> {
        let len = usize::try_from(range.end - range.start).unwrap();
        self.0.write_at(range.start, &vec![0xdb; len])
    }
}

/// What is discarded is free after any cut: no file uses it, nor does the map of one.
#[test]
fn what_is_discarded_is_nobodys_after_any_cut() {
    let Some(image) = make(&["-b", "1024", "-N", "32"], 3 << 20) else {
        return;
    };
    let recorder = Arc::new(Recorder::new(&image));
    let options = MountOptions {
        discard: Some(true),
        ..MountOptions::default()
    };
    let device = Arc::new(Overwriting(Arc::clone(&recorder)));
    let fs = InodeFs::open_for_writing(device, &options, clock).unwrap();
    let file = |round: u8| vec![round + 1; 100_000];
    for round in 0..4_u8 {
        let ino = fs.create(Ino::ROOT, &[b'a' + round], NEW).unwrap();
        for (piece, bytes) in file(round).chunks(25_000).enumerate() {
            fs.write(ino, piece as u64 * 25_000, bytes).unwrap();
        }
        fs.fsync(ino).unwrap();
        recorder.mark(round.into());
        if round > 0 {
            fs.unlink(Ino::ROOT, &[b'a' + round - 1]).unwrap();
        }
        if round % 2 == 0 {
            fs.allocate(ino, Allocate::Punch, 10_000, 5000).unwrap();
        }
    }
    fs.close().unwrap();
    let (start, events) = recorder.recording();
    let mut is_found = 0;
    sweep(Cuts::new(start, events), 1, |cut, mark, fs| {
        for round in 0..4_u8 {
            let found = fs.lookup(Ino::ROOT, &[b'a' + round]);
            let is_there = found.is_ok();
            if mark == Some(round.into()) {
                assert!(is_there, "{cut}: a file that was synced is lost");
            }
            let Ok(ino) = found else { continue };
            let mut bytes = vec![0; 100_000];
            let len = fs.read(ino, 0, &mut bytes).unwrap();
            let is_own = |byte: &u8| *byte == round + 1 || *byte == 0;
            assert!(bytes[..len].iter().all(is_own), "{cut}: {round}");
            is_found += 1;
        }
    });
    assert!(is_found > 20, "{is_found}");
}
