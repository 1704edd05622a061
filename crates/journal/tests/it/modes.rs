//! Ways to run a journal: one flush, no log, little room, an attendant, frozen; and which threads share a commit.

use std::time::Duration;

use device::BlockDevice;
use lanefs_journal::{JournalError, Options};
use model::Random;
use simulate::{Cut, Cuts, Event, Fault, Recorder};
use sync::Arc;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::schedule::SchedulePlan;

use crate::bank::{Bank, Canary, THREADS, check, check_data};
use crate::crash::sweep;
use crate::image::{Image, replay};

fn small() -> Option<Image> {
    Image::make(1024, "64bit,metadata_csum")
}

fn async_options(image: &Image) -> Options {
    Options {
        async_commit: true,
        ..image.options()
    }
}

#[test]
fn one_flush_is_enough_where_no_data_were_mapped_and_not_where_they_were() {
    let Some(image) = Image::make(1024, "64bit,^metadata_csum") else {
        return;
    };
    let mut async_commits = 0;
    for seed in 0..3 {
        let bank = Bank::open(&image, async_options(&image), None);
        bank.run(THREADS, seed, 40).unwrap();
        sweep(&image, &bank, 4, false).unwrap();
        async_commits += bank.journal.statistics().async_commits.sum();
    }
    assert!(async_commits > 0);
    // One thread: with others' blocks in its transaction, few cuts keep all of the log and lose the data, and which
    // they are would be a matter of timing.
    let seen = (0..40).find_map(|seed| {
        let bank = Bank::open(&image, async_options(&image), Some(Canary::MappedUnsaid));
        bank.run(1, seed, 40).unwrap();
        sweep(&image, &bank, 16, false)
            .err()
            .map(|wrong| format!("seed {seed}, {wrong}"))
    });
    let seen = seen.expect("data that were mapped unsaid are not seen to be missing");
    eprintln!("mapped unsaid: {seen}");
}

/// Checksums of versions 2 and 3 tell a damaged copy, but not a transaction of which a part never arrived.
#[test]
fn checksums_of_single_blocks_keep_their_two_flushes() {
    let Some(image) = small() else { return };
    let bank = Bank::open(&image, async_options(&image), None);
    bank.run(2, 3, 60).unwrap();
    assert_eq!(bank.journal.statistics().async_commits.sum(), 0);
    sweep(&image, &bank, 4, false).unwrap();
}

#[test]
fn without_a_log_no_file_shows_anothers_data_after_any_cut() {
    let Some(image) = Image::make(1024, "64bit,^metadata_csum") else {
        return;
    };
    let mut checked = 0;
    for seed in 0..3 {
        let bank = Bank::without_log(&image);
        bank.run(THREADS, seed, 60).unwrap();
        let (start, events) = bank.device.recording();
        let mut cuts = Cuts::new(start, events);
        let points: Vec<usize> = cuts.points().collect();
        for event in points {
            for seed in 0..4 {
                let cut = Cut { event, seed };
                let state = cuts.state(cut);
                checked += check_data(&image, &state)
                    .unwrap_or_else(|wrong| panic!("seed {seed}, {cut}: {wrong}"));
            }
        }
        // What was committed is home at once.
        bank.journal.close(&bank).unwrap();
        let home = simulate::CowDevice::new(bank.device.contents().into());
        check(&image, &home, &[0; THREADS]).unwrap();
    }
    assert!(checked > 1000, "{checked}");
}

/// Sixteen threads on the smallest journal, half of whose wishes are as large as a transaction may be.
#[test]
fn many_threads_on_the_smallest_journal_all_get_their_turn() {
    let Some(image) = small() else { return };
    let options = Options {
        staged_bytes: 256 << 10,
        ..image.options()
    };
    let bank = Bank::open(&image, options, None);
    let operations = 120;
    let staged = AtomicU64::new(0);
    sync::thread::workers(16, |thread| {
        let mut random = Random::new(thread as u64);
        for operation in 0..operations {
            // Relaxed: read when the threads have ended.
            staged.fetch_max(bank.journal.staged_bytes(), Ordering::Relaxed);
            if (operation + thread) % 2 == 0 {
                drop(bank.journal.reserve(&bank, 128, 256).unwrap());
            }
            bank.transfer(thread, &mut random).unwrap();
            if random.one_in(40) {
                let target = bank.journal.current_epoch();
                bank.journal.commit(&bank, target).unwrap();
            }
        }
    });
    let statistics = bank.journal.statistics();
    assert!(statistics.logged_blocks.sum() > 1024, "the log must wrap");
    assert!(statistics.room_waits.sum() > 0, "room must run out");
    let (staged, bound) = (
        staged.into_inner(),
        image.options().staged_bytes.min(256 << 10),
    );
    // One transaction more, and the one that is being written meanwhile.
    assert!(
        staged <= bound / 2 * 3,
        "{staged} bytes staged, {bound} allowed"
    );
    bank.journal.close(&bank).unwrap();
    let home: Arc<dyn BlockDevice> =
        Arc::new(simulate::CowDevice::new(bank.device.contents().into()));
    assert_eq!(replay(&home).blocks, 0);
    check(&image, &*home, &[operations as u64 * 4; THREADS]).unwrap();
}

#[test]
fn threads_that_sync_at_once_share_commits() {
    let Some(image) = small() else { return };
    let bank = Bank::open(&image, image.options(), None);
    let (threads, operations) = (8, 60);
    sync::thread::workers(threads, |thread| {
        let mut random = Random::new(thread as u64);
        for _ in 0..operations {
            bank.transfer(thread, &mut random).unwrap();
            // The others get to their transfers before the next epoch is sealed, as they would while a disk flushes.
            let target = bank.journal.current_epoch();
            sync::thread::sleep(Duration::from_millis(1));
            bank.journal.commit(&bank, target).unwrap();
        }
    });
    let statistics = bank.journal.statistics();
    let asked = (threads * operations) as u64;
    let commits = statistics.commits.sum();
    eprintln!("{asked} syncs, {commits} commits");
    assert!(commits * 2 < asked, "{asked} syncs took {commits} commits");
    assert_eq!(statistics.seal_pauses.count(), commits);
}

#[test]
fn a_handle_that_a_seal_waited_for_is_counted_by_its_place() {
    let Some(image) = small() else { return };
    let bank = Bank::open(&image, image.options(), None);
    let line = line!() + 3;
    let begin = || {
        let credits = bank.journal.reserve(&bank, 1, 0).unwrap();
        bank.journal.begin(credits)
    };
    let long = Duration::from_millis(20);
    let alone = begin();
    sync::thread::sleep(long);
    drop(alone);
    assert_eq!(bank.journal.long_handles(), [], "no seal waited");
    let mut rounds = 0;
    // On a busy machine the commit may begin only when the handle has ended: then nothing is counted.
    while bank
        .journal
        .long_handles()
        .iter()
        .all(|(_, count)| *count < 2)
    {
        rounds += 1;
        assert!(rounds <= 500, "{:?}", bank.journal.long_handles());
        let target = bank.journal.current_epoch();
        let handle = begin();
        sync::thread::scope(|scope| {
            scope.spawn(|| bank.journal.commit(&bank, target).unwrap());
            // More than a sealer looks for a moment without handles, and what is counted.
            sync::thread::sleep(long);
            drop(handle);
        });
    }
    let place = (format!("{}:{line}", file!()), 2);
    assert_eq!(bank.journal.long_handles(), [place]);
}

/// A step that panics may have changed half of a transfer in memory.
#[test]
fn a_step_that_panics_aborts_and_none_of_it_becomes_durable() {
    let Some(image) = small() else { return };
    let bank = Bank::open(&image, image.options(), None);
    let stepped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let credits = bank.journal.reserve(&bank, 1, 0).unwrap();
        let _handle = bank.journal.begin(credits);
        panic!("on purpose");
    }));
    assert!(stepped.is_err());
    let target = bank.journal.current_epoch();
    let refused = bank.journal.commit(&bank, target).unwrap_err();
    assert!(
        refused.to_string().contains("panic within a step"),
        "{refused}"
    );
    assert!(bank.journal.reserve(&bank, 1, 0).is_err());
}

#[test]
fn nothing_is_written_while_the_journal_is_frozen() {
    let Some(image) = small() else { return };
    let bank = Bank::open(&image, image.options(), None);
    bank.run(2, 1, 30).unwrap();
    bank.journal.freeze(&bank).unwrap();
    bank.journal.freeze(&bank).unwrap();
    let frozen = bank.device.contents();
    let is_done = AtomicBool::new(false);
    sync::thread::scope(|scope| {
        let (bank, is_done) = (&bank, &is_done);
        scope.spawn(move || {
            bank.transfer(0, &mut Random::new(1)).unwrap();
            // Relaxed: a flag of the test.
            is_done.store(true, Ordering::Relaxed);
        });
        sync::thread::sleep(Duration::from_millis(50));
        // What was there before is durable already: no wait.
        bank.journal
            .commit(bank, bank.journal.committed_epoch())
            .unwrap();
        // Relaxed: a flag of the test.
        assert!(!is_done.load(Ordering::Relaxed), "a handle began");
        assert!(bank.device.contents() == frozen);
        let home: Arc<dyn BlockDevice> =
            Arc::new(simulate::CowDevice::new(frozen.as_slice().into()));
        assert_eq!(replay(&home).blocks, 0, "a frozen journal is empty");
        check(&image, &*home, &[0; THREADS]).unwrap();
        bank.journal.thaw();
    });
    // Relaxed: the thread was joined.
    assert!(is_done.load(Ordering::Relaxed));
    bank.run(2, 2, 30).unwrap();
    bank.journal.close(&bank).unwrap();
}

#[test]
fn an_attendant_commits_what_nobody_syncs_and_goes_when_sent_away() {
    let Some(image) = small() else { return };
    let bank = Bank::open(&image, image.options(), None);
    sync::thread::scope(|scope| {
        let bank = &bank;
        let attendant = scope.spawn(move || bank.journal.attend(bank, Duration::from_millis(20)));
        let mut random = Random::new(3);
        bank.transfer(0, &mut random).unwrap();
        // Also after a pause of any length, in which it falls asleep or is about to.
        for pause in [0, 10, 30, 38, 42, 60, 100] {
            bank.transfer(0, &mut random).unwrap();
            let epoch = bank.journal.current_epoch();
            let start = sync::clock::now();
            while bank.journal.committed_epoch() < epoch {
                assert!(sync::clock::now() - start < Duration::from_secs(10));
                sync::thread::sleep(Duration::from_millis(5));
            }
            sync::thread::sleep(Duration::from_millis(pause));
        }
        // Changes beyond what a transaction takes are committed by it, too.
        for _ in 0..400 {
            bank.transfer(0, &mut random).unwrap();
        }
        bank.journal.dismiss();
        attendant.join().unwrap();
    });
    bank.journal.close(&bank).unwrap();
}

#[test]
fn an_attendant_may_have_no_interval_to_speak_of() {
    let Some(image) = small() else { return };
    let bank = Bank::open(&image, image.options(), None);
    sync::thread::scope(|scope| {
        let bank = &bank;
        let attendant = scope.spawn(move || bank.journal.attend(bank, Duration::MAX));
        bank.journal.dismiss();
        attendant.join().unwrap();
    });
    bank.journal.close(&bank).unwrap();
}

#[test]
fn flushes_of_data_are_shared_and_a_failing_one_aborts() {
    let Some(image) = small() else { return };
    let bank = Bank::open(&image, image.options(), None);
    let flushes = || {
        let (_, events) = bank.device.recording();
        events
            .iter()
            .filter(|event| **event == Event::Flush)
            .count()
    };
    bank.journal.flush_data().unwrap();
    assert_eq!(flushes(), 1);
    sync::thread::workers(4, |_| {
        for _ in 0..50 {
            bank.journal.flush_data().unwrap();
        }
    });
    assert!((2..=201).contains(&flushes()));

    let device = Recorder::failing(&Bank::contents(&image), Fault::Flush(0), false);
    let bank = Bank::on(&image, device, image.options(), None);
    let error = bank.journal.flush_data().unwrap_err();
    assert!(matches!(error, JournalError::Device(_)), "{error}");
    // The device works again, but what it lost nobody knows.
    for _ in 0..2 {
        let again = bank.journal.flush_data().unwrap_err();
        assert!(matches!(again, JournalError::Aborted(_)), "{again}");
        assert!(again.to_string().contains(&error.to_string()), "{again}");
        assert!(bank.journal.check().is_err());
    }
    assert!(bank.transfer(0, &mut Random::new(1)).is_err());
}

/// How long a flush takes, by the schedule's clock.
const FLUSH: Duration = Duration::from_millis(8);
/// More than the steps take that it counts.
const SLACK: Duration = Duration::from_millis(1);

/// Runs two threads by a schedule, on a bank on a slow device; gives what `count` says then.
fn of_two(
    image: &Image,
    seed: u64,
    work: impl Fn(&Bank, usize) + Sync,
    count: impl Fn(&Bank) -> u64,
) -> u64 {
    let work = || {
        let bank = Bank::slow(image, FLUSH);
        sync::thread::workers(2, |thread| work(&bank, thread));
        count(&bank)
    };
    let plan = SchedulePlan {
        seed,
        points: 1_000_000,
    };
    let run = sync::schedule::run(plan, work);
    run.unwrap_or_else(|why| panic!("seed {seed}: {why}")).0
}

/// A leader waits for an eighth of one flush, and of the two that a commit has.
const FOR_FLUSH: Duration = Duration::from_millis(1);
const FOR_COMMIT: Duration = Duration::from_millis(2);

/// Runs `work`, which must end within the time of `flushes` flushes and one wait.
fn in_time(flushes: u32, wait: Duration, work: impl FnOnce()) {
    let begin = sync::clock::now();
    work();
    let took = sync::clock::now() - begin;
    assert!(took < FLUSH * flushes + wait + SLACK, "{took:?}");
}

/// One thread flushes, waits and flushes again; another asks during the first flush. How many flushes there were; each
/// ends in time.
fn flushes_of_two(image: &Image, seed: u64, late: Duration) -> u64 {
    let work = |bank: &Bank, thread: usize| {
        let flush = |flushes| in_time(flushes, FOR_FLUSH, || bank.journal.flush_data().unwrap());
        if thread == 0 {
            flush(1);
            sync::thread::sleep(late);
            flush(2);
        } else {
            sync::thread::sleep(FLUSH / 2);
            // What is left of the first, and one of its own.
            flush(2);
        }
    };
    of_two(image, seed, work, |bank| {
        let flushes = bank.journal.statistics().flushes.sum();
        // A thread that comes back alone waits for the other once.
        in_time(1, FOR_FLUSH, || bank.journal.flush_data().unwrap());
        in_time(1, Duration::ZERO, || bank.journal.flush_data().unwrap());
        flushes
    })
}

#[test]
fn a_flush_waits_for_who_comes_back_within_an_eighth_of_its_time_and_no_longer() {
    let Some(image) = small() else { return };
    for seed in 0..50 {
        assert_eq!(flushes_of_two(&image, seed, FLUSH / 16), 2, "seed {seed}");
        assert_eq!(flushes_of_two(&image, seed, FLUSH / 4), 3, "seed {seed}");
    }
}

/// Changes something and makes it durable; a commit has two flushes.
fn transfer(bank: &Bank, thread: usize) {
    bank.transfer(thread, &mut Random::new(1)).unwrap();
    let target = bank.journal.current_epoch();
    bank.journal.commit(bank, target).unwrap();
}

/// As [`flushes_of_two`], with commits.
fn commits_of_two(image: &Image, seed: u64, late: Duration) -> u64 {
    let work = |bank: &Bank, thread: usize| {
        if thread == 0 {
            in_time(2, FOR_COMMIT, || transfer(bank, thread));
            sync::thread::sleep(late);
            in_time(4, FOR_COMMIT, || transfer(bank, thread));
        } else {
            sync::thread::sleep(FLUSH);
            in_time(4, FOR_COMMIT, || transfer(bank, thread));
        }
    };
    of_two(image, seed, work, |bank| {
        let statistics = bank.journal.statistics();
        let commits = statistics.commits.sum();
        // What makes others wait, waits for nobody, though two shared the last one.
        bank.transfer(0, &mut Random::new(1)).unwrap();
        let (flushes, begin) = (statistics.flushes.sum(), sync::clock::now());
        bank.journal.freeze(bank).unwrap();
        let flushes = (statistics.flushes.sum() - flushes) as u32;
        let took = sync::clock::now() - begin;
        assert!(flushes >= 2 && took < FLUSH * flushes + SLACK, "{took:?}");
        commits
    })
}

#[test]
fn a_commit_waits_for_who_comes_back_within_an_eighth_of_its_time_and_no_longer() {
    let Some(image) = small() else { return };
    for seed in 0..50 {
        assert_eq!(commits_of_two(&image, seed, FLUSH / 16), 2, "seed {seed}");
        assert_eq!(commits_of_two(&image, seed, FLUSH / 2), 3, "seed {seed}");
    }
}

/// Two share a commit; then one leads the next and waits for the other, which freezes instead.
#[test]
fn who_can_not_wait_ends_a_leaders_wait() {
    let Some(image) = small() else { return };
    for seed in 0..50 {
        let work = |bank: &Bank, thread: usize| {
            sync::thread::sleep(FLUSH * thread as u32);
            transfer(bank, thread);
            if thread == 0 {
                // With what the other asks during the first.
                transfer(bank, thread);
                in_time(2, Duration::ZERO, || transfer(bank, thread));
            } else {
                sync::thread::sleep(SLACK / 4);
                bank.journal.freeze(bank).unwrap();
                bank.journal.thaw();
            }
        };
        of_two(&image, seed, work, |_| 0);
    }
}

/// Where the log is on another device than the file system, fast commits count only with what both have written.
#[test]
fn data_are_flushed_before_and_with_fast_commits_on_another_device_than_the_log() {
    let Some(image) = Image::with_area(1024, "64bit,metadata_csum") else {
        return;
    };
    let recorder = || Arc::new(Recorder::new(&Bank::contents(&image)));
    let (log, home) = (recorder(), recorder());
    let shared = Arc::clone(&home) as Arc<dyn BlockDevice>;
    let bank = Bank::with_home(&image, Arc::clone(&log), shared, image.options(), None);
    bank.journal.begin_fast().unwrap();
    let flushes = |of: &Recorder| {
        let (_, events) = of.recording();
        let flushes = events.iter().filter(|event| **event == Event::Flush);
        flushes.count()
    };
    let both = || (flushes(&log), flushes(&home));
    let before = both();
    bank.journal.flush_before_fast().unwrap();
    assert_eq!(both(), (before.0 + 1, before.1 + 1));
    bank.journal.write_fast(0, &[0; 1024]).unwrap();
    assert_eq!(both(), (before.0 + 2, before.1 + 2));
}

/// One thread commits; another asks, during each commit, for what that one makes durable, and never for more. Two
/// threads are all there are, and three are waited for.
#[test]
fn who_was_served_by_the_commit_under_way_is_not_waited_for_before_each_next_one() {
    let Some(image) = small() else { return };
    for seed in 0..10 {
        let is_done = AtomicBool::new(false);
        let work = |bank: &Bank, thread: usize| {
            if thread == 0 {
                for round in 0..8 {
                    let begin = sync::clock::now();
                    transfer(bank, thread);
                    let took = sync::clock::now() - begin;
                    // Once may be a mistake.
                    assert!(round < 4 || took < FLUSH * 2 + SLACK, "{round}: {took:?}");
                    sync::thread::sleep(FLUSH);
                }
                // Relaxed: a flag to end the test.
                is_done.store(true, Ordering::Relaxed);
                return;
            }
            // Relaxed: a flag to end the test.
            while !is_done.load(Ordering::Relaxed) {
                let journal = &bank.journal;
                let (running, committed) = (journal.current_epoch(), journal.committed_epoch());
                if running.0 - committed.0 == 2 {
                    // One is sealed, and being written.
                    let sealed = lanefs_journal::Epoch(running.0 - 1);
                    journal.commit(bank, sealed).unwrap();
                }
                sync::thread::sleep(FLUSH / 8);
            }
        };
        of_two(&image, seed, work, |_| 0);
    }
}

/// Two threads that take turns and come back a quarter of a commit later: each commit waits for nobody that comes.
#[test]
fn who_never_comes_in_time_is_not_waited_for_for_ever() {
    let Some(image) = small() else { return };
    for seed in 0..3 {
        let work = || {
            let bank = Bank::slow(&image, FLUSH);
            let begin = sync::clock::now();
            sync::thread::workers(2, |thread| {
                sync::thread::sleep(FLUSH * thread as u32);
                for _ in 0..20 {
                    transfer(&bank, thread);
                    sync::thread::sleep(FLUSH / 2);
                }
            });
            let commits = bank.journal.statistics().commits.sum() as u32;
            (sync::clock::now() - begin) / commits
        };
        let plan = SchedulePlan {
            seed,
            points: 1_000_000,
        };
        let run = sync::schedule::run(plan, work);
        let (each, _) = run.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        // The first few may be mistakes.
        assert!(each < FLUSH * 2 + SLACK, "{each:?} for each commit");
    }
}
