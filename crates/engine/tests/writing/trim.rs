//! Discarding on request: exactly the free blocks are discarded, also while other threads change the file system, and
//! no cut after it shows discarded blocks in a file.

use std::ops::Range;

use device::{BlockDevice, DeviceError};
use lanefs_engine::{Allocate, Error, Ino, InodeFs, MountOptions};
use simulate::{CowDevice, Cuts, Recorder};
use sync::atomic::{AtomicBool, Ordering};
use sync::{Arc, Mutex, Rank};

use crate::files::{contents, judge_image};
use crate::image::{NEW, clock, make, sweep};

const ALL: Range<u64> = 0..u64::MAX;

/// A device that overwrites discarded ranges with garbage, and records them.
struct Garbage<D> {
    below: Arc<D>,
    discarded: Mutex<Vec<Range<u64>>>,
}

impl<D: BlockDevice> Garbage<D> {
    fn over(below: Arc<D>) -> Arc<Garbage<D>> {
        Arc::new(Garbage {
            below,
            discarded: Mutex::new(Rank::Leaf, Vec::new()),
        })
    }

    /// The ranges that were discarded since the last call; adjacent ones are joined.
    fn take(&self) -> Vec<Range<u64>> {
        let mut ranges = std::mem::take(&mut *self.discarded.lock());
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, before| {
            let follows = before.end == next.start;
            if follows {
                before.end = next.end;
            }
            follows
        });
        ranges
    }
}

impl<D: BlockDevice> BlockDevice for Garbage<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.below.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.discarded.lock().push(range.clone());
        let len = usize::try_from(range.end - range.start).unwrap();
        self.below.write_at(range.start, &vec![0xdb; len])
    }
}

fn open<D: BlockDevice + 'static>(device: &Arc<Garbage<D>>) -> InodeFs {
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    InodeFs::open_for_writing(shared, &MountOptions::default(), clock).unwrap()
}

/// Ends another thread's loop when it is dropped, also by a panic.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // Relaxed: nothing else depends on it.
        self.0.store(true, Ordering::Relaxed);
    }
}

fn bytes_in(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[test]
fn all_that_is_free_is_discarded_and_nothing_else() {
    let Some(image) = make(&["-b", "1024"], 24 << 20) else {
        return;
    };
    let device = Garbage::over(Arc::new(CowDevice::new(image.into())));
    let fs = open(&device);
    for number in 0..200_u8 {
        let ino = fs
            .create(
                Ino::ROOT,
                &[b'n', b'0' + number / 16, b'0' + number % 16],
                NEW,
            )
            .unwrap();
        fs.write(ino, 0, &vec![number; 9000]).unwrap();
    }
    // After this no blocks are kept for files that were written to.
    fs.close().unwrap();
    let fs = open(&device);
    for number in (0..200_u8).step_by(2) {
        fs.unlink(Ino::ROOT, &[b'n', b'0' + number / 16, b'0' + number % 16])
            .unwrap();
    }
    // What was removed before counts, although no commit was asked for.
    let trimmed = fs.trim(ALL, 0).unwrap();
    assert_eq!(trimmed, fs.statfs().unwrap().free * 1024);
    let all = device.take();
    assert_eq!(bytes_in(&all), trimmed);

    // Only long runs are discarded, and only blocks within the range; a run counts with its part in the range.
    let least = 100 << 10;
    let is_long = |range: &&Range<u64>| range.end - range.start >= least;
    let long: Vec<_> = all.iter().filter(is_long).cloned().collect();
    assert!(!long.is_empty() && long.len() < all.len());
    assert_eq!(fs.trim(ALL, least).unwrap(), bytes_in(&long));
    assert_eq!(device.take(), long);
    let part = 5 << 20..17 << 20;
    let within = |range: &Range<u64>| range.start.max(part.start)..range.end.min(part.end);
    let within: Vec<_> = all
        .iter()
        .map(within)
        .filter(|range| range.start < range.end)
        .collect();
    assert_eq!(fs.trim(part, 0).unwrap(), bytes_in(&within));
    assert_eq!(device.take(), within);

    for refused in [0..0, 0..1023, 24 << 20..25 << 20] {
        let error = fs.trim(refused, 0).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument), "{error}");
    }
    let error = fs.trim(ALL, (8 << 20) + 1024).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument), "{error}");
    assert_eq!(fs.trim(ALL, 8 << 20).unwrap(), 0);

    for number in (1..200_u8).step_by(2) {
        let ino = fs
            .lookup(Ino::ROOT, &[b'n', b'0' + number / 16, b'0' + number % 16])
            .unwrap();
        assert_eq!(contents(&fs, ino), vec![number; 9000]);
    }
    fs.close().unwrap();
    judge_image(&device.below);
}

/// Two threads write, check and remove files while a third discards.
#[test]
fn nothing_is_discarded_that_others_take_or_free_meanwhile() {
    let Some(image) = make(&["-b", "1024"], 24 << 20) else {
        return;
    };
    let device = Garbage::over(Arc::new(CowDevice::new(image.into())));
    let fs = open(&device);
    let done = AtomicBool::new(false);
    sync::thread::workers(3, |thread| {
        if thread == 2 {
            // Relaxed: nothing else depends on it.
            while !done.load(Ordering::Relaxed) {
                fs.trim(ALL, 0).unwrap();
            }
            return;
        }
        let _done = Done(&done);
        for round in 0..60_u8 {
            let name = [b'a' + thread as u8, b'0' + round];
            let ino = fs.create(Ino::ROOT, &name, NEW).unwrap();
            let bytes = vec![round + 1; 30_000 + usize::from(round) * 100];
            for (piece, bytes) in bytes.chunks(4000).enumerate() {
                fs.write(ino, piece as u64 * 4000, bytes).unwrap();
            }
            if round >= 20 {
                let old = [b'a' + thread as u8, b'0' + round - 20];
                let ino = fs.lookup(Ino::ROOT, &old).unwrap();
                let expected = vec![round - 19; 30_000 + usize::from(round - 20) * 100];
                assert!(contents(&fs, ino) == expected, "{thread} {round}");
                fs.unlink(Ino::ROOT, &old).unwrap();
            }
        }
    });
    // The third thread may not have come to run while the others did.
    fs.trim(ALL, 0).unwrap();
    fs.close().unwrap();
    assert!(!device.take().is_empty());
    judge_image(&device.below);
}

/// Blocks are kept from other threads while they are discarded; a write that needs them must not be refused.
#[test]
fn no_write_is_refused_because_of_a_run_that_is_discarded() {
    let Some(image) = make(&["-b", "1024", "-m", "0", "-N", "32"], 6 << 20) else {
        return;
    };
    let device = Garbage::over(Arc::new(CowDevice::new(image.into())));
    let fs = open(&device);
    let done = AtomicBool::new(false);
    sync::thread::workers(2, |thread| {
        if thread == 1 {
            // Relaxed: nothing else depends on it.
            while !done.load(Ordering::Relaxed) {
                fs.trim(ALL, 0).unwrap();
            }
            return;
        }
        let _done = Done(&done);
        for round in 0..6_u8 {
            let ino = fs.create(Ino::ROOT, b"file", NEW).unwrap();
            let mut blocks = 0;
            while fs.write(ino, blocks * 1024, &[round; 1024]).is_ok() {
                blocks += 1;
            }
            // Only what operations that free may need is left.
            let free = fs.statfs().unwrap().available;
            assert!(blocks > 3000 && free == 0, "{blocks} {free}");
            fs.unlink(Ino::ROOT, b"file").unwrap();
        }
    });
    fs.close().unwrap();
    judge_image(&device.below);
}

#[test]
fn what_was_discarded_is_nobodys_after_any_cut() {
    let Some(image) = make(&["-b", "1024", "-N", "32"], 3 << 20) else {
        return;
    };
    let recorder = Arc::new(Recorder::new(&image));
    let device = Garbage::over(Arc::clone(&recorder));
    let fs = open(&device);
    for round in 0..3_u8 {
        let ino = fs.create(Ino::ROOT, &[b'a' + round], NEW).unwrap();
        fs.write(ino, 0, &[round + 1; 60_000]).unwrap();
        if round > 0 {
            fs.unlink(Ino::ROOT, &[b'a' + round - 1]).unwrap();
        }
        fs.allocate(ino, Allocate::Punch, 10_000, 5000).unwrap();
        fs.trim(ALL, 0).unwrap();
        recorder.mark(round.into());
    }
    fs.close().unwrap();
    let (start, events) = recorder.recording();
    let mut is_found = 0;
    sweep(Cuts::new(start, events), 1, |cut, mark, fs| {
        for round in 0..3_u8 {
            let found = fs.lookup(Ino::ROOT, &[b'a' + round]);
            // The last file is not removed.
            assert!(round < 2 || mark != Some(2) || found.is_ok(), "{cut}: lost");
            let Ok(ino) = found else { continue };
            let is_own = |byte: &u8| *byte == round + 1 || *byte == 0;
            assert!(contents(fs, ino).iter().all(is_own), "{cut}: {round}");
            is_found += 1;
        }
    });
    assert!(is_found > 20, "{is_found}");
}
