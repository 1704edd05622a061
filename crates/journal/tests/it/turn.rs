//! A log before an area for fast commits, which begins anew instead of going over its end.

use device::{BlockDevice, DeviceError};
use lanefs_journal::Options;
use model::Random;
use ondisk::Tid;
use simulate::{Cut, Cuts, Recorder};
use sync::atomic::{AtomicBool, Ordering};
use sync::{Arc, OnceLock, Weak};

use crate::bank::{Bank, THREADS, check};
use crate::crash::promised;
use crate::image::{Image, try_replay};

/// The device to which checkpoints write: while one flushes, a transaction is committed, so that the log is not empty
/// behind it.
struct Busy {
    device: Arc<Recorder>,
    bank: OnceLock<Weak<Bank>>,
    is_busy: AtomicBool,
}

impl BlockDevice for Busy {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // Relaxed: one thread.
        if self.is_busy.swap(false, Ordering::Relaxed) {
            commit_one(&self.bank.get().and_then(Weak::upgrade).unwrap(), 0);
        }
        self.device.flush()
    }

    fn discard(&self, range: std::ops::Range<u64>) -> Result<(), DeviceError> {
        self.device.discard(range)
    }
}

/// A transaction, promised to the bank's first thread.
fn commit_one(bank: &Bank, seed: u64) {
    bank.transfer(0, &mut Random::new(seed)).unwrap();
    let journal = &bank.journal;
    journal.commit(bank, journal.current_epoch()).unwrap();
    bank.device.mark(journal.statistics().commits.sum());
}

/// A log that begins in its middle, with one transaction in it.
fn half_full(image: &Image) -> Arc<Bank> {
    let device = Arc::new(Recorder::new(&Bank::contents(image)));
    let busy = Arc::new(Busy {
        device: Arc::clone(&device),
        bank: OnceLock::new(),
        is_busy: AtomicBool::new(false),
    });
    let home = Arc::clone(&busy) as Arc<dyn BlockDevice>;
    // Small transactions, so that a checkpoint is due when two thirds of the log are in use.
    let options = Options {
        staged_bytes: 640 << 10,
        ..image.options()
    };
    let bank = Arc::new(Bank::with_home(image, device, home, options, None));
    assert!(busy.bank.set(Arc::downgrade(&bank)).is_ok());
    let mut seed = 1;
    while image.log(&*bank.device).1.iter().all(|(_, at)| *at < 500) {
        commit_one(&bank, seed);
        seed += 1;
    }
    // Relaxed: one thread.
    busy.is_busy.store(true, Ordering::Relaxed);
    bank.journal.checkpoint().unwrap();
    bank
}

/// That the log has no block that recovery would have to read before the place where it begins to.
fn goes_straight(image: &Image, device: &dyn BlockDevice) {
    let ((oldest, start), found) = image.log(device);
    for (tid, position) in found {
        assert!(
            position >= start,
            "{tid:?} at {position}, {oldest:?} at {start}"
        );
    }
}

#[test]
fn before_an_area_a_log_begins_anew_and_loses_nothing_at_any_cut() {
    let Some(image) = Image::with_area(1024, "64bit,metadata_csum") else {
        return;
    };
    let bank = half_full(&image);
    let turns = || bank.journal.statistics().log_turns.sum();
    let ((_, start), _) = image.log(&*bank.device);
    assert!(start > 490, "{start}");
    let mut seed = 1000;
    while turns() == 0 {
        commit_one(&bank, seed);
        seed += 1;
        assert!(seed < 2000, "the log has no end");
    }
    commit_one(&bank, seed);
    let ((tid, start), found) = image.log(&*bank.device);
    assert_eq!(start, 1);
    assert!(found.contains(&(tid, 1)) && found.iter().any(|(of, _)| *of == Tid(tid.0 + 1)));
    let (start, events) = bank.device.recording();
    let mut cuts = Cuts::new(start, events);
    let points: Vec<usize> = cuts.points().collect();
    for event in points {
        let mut counts = [0; THREADS];
        counts[0] = promised(&cuts.events()[..event])[0];
        for seed in 0..4 {
            let state = Arc::new(cuts.state(Cut { event, seed }));
            if seed == 0 {
                goes_straight(&image, &*state);
            }
            let state = state as Arc<dyn BlockDevice>;
            try_replay(&state).unwrap();
            check(&image, &*state, &counts).unwrap();
        }
    }
}

#[test]
fn a_log_without_an_area_stays_a_ring() {
    let Some(image) = Image::make(1024, "64bit,metadata_csum") else {
        return;
    };
    let bank = half_full(&image);
    for seed in 1000.. {
        commit_one(&bank, seed);
        let ((_, start), found) = image.log(&*bank.device);
        if found.iter().any(|(_, position)| *position < start) {
            break;
        }
        assert!(seed < 2000, "the log never goes over its end");
    }
    assert_eq!(bank.journal.statistics().log_turns.sum(), 0);
    let state = simulate::CowDevice::new(bank.device.contents().into());
    let state = Arc::new(state) as Arc<dyn BlockDevice>;
    try_replay(&state).unwrap();
    let done = bank.journal.statistics().commits.sum();
    check(&image, &*state, &[done, 0, 0, 0]).unwrap();
}

/// Threads with the largest steps there are, whose commits and checkpoints come in between each other.
#[test]
fn many_threads_get_through_the_smallest_log_that_is_no_ring() {
    let Some(image) = Image::with_area(1024, "64bit,metadata_csum") else {
        return;
    };
    let bank = Bank::open(&image, image.options(), None);
    sync::thread::workers(16, |thread| {
        let mut random = Random::new(thread as u64);
        for operation in 0..120 {
            if (operation + thread) % 2 == 0 {
                drop(bank.journal.reserve(&bank, 128, 256).unwrap());
            }
            bank.transfer(thread, &mut random).unwrap();
            if random.one_in(20) {
                let target = bank.journal.current_epoch();
                bank.journal.commit(&bank, target).unwrap();
            }
        }
    });
    eprintln!("{} turns", bank.journal.statistics().log_turns.sum());
    bank.journal.close(&bank).unwrap();
    let home = simulate::CowDevice::new(bank.device.contents().into());
    check(&image, &home, &[0; THREADS]).unwrap();
}
