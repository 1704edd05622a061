//! What a leader's flushes make durable, and for which callers: data before the blocks that show them, each promise
//! kept, and no more flushes than it takes.

use ondisk::fast_commit::{FcRecord, records};
use ondisk::inode::Inode;
use ondisk::{FsBlock, LBlock};
use sync::clock::{self, Duration};
use sync::schedule::{self, SchedulePlan};
use sync::thread::workers;

use std::collections::BTreeSet;

use super::tests::{FakeDevice, lead, sync};
use super::*;

const BLOCK: usize = 4096;

/// What is on a device, and what of it a flush made durable. Data are named by inode and size.
#[derive(Default)]
struct Contents {
    data: BTreeSet<(Ino, u64)>,
    durable: BTreeSet<(Ino, u64)>,
    shown: BTreeSet<(Ino, u64)>,
    flushes: u32,
}

/// A device that forgets what was not flushed, and has someone do something while it flushes.
struct Disk<'a> {
    contents: Mutex<Contents>,
    meanwhile: &'a (dyn Fn(u32) + Sync),
}

impl<'a> Disk<'a> {
    fn new(meanwhile: &'a (dyn Fn(u32) + Sync)) -> Disk<'a> {
        Disk {
            contents: Mutex::new(Rank::Leaf, Contents::default()),
            meanwhile,
        }
    }

    fn write_data(&self, ino: Ino, size: u64) {
        self.contents.lock().data.insert((ino, size));
    }
}

impl FakeDevice for Disk<'_> {
    fn write(&self, _: u32, blocks: &[u8]) -> Result<(), String> {
        let mut contents = self.contents.lock();
        for record in blocks.chunks(BLOCK).flat_map(|block| records(block, 256)) {
            if let FcRecord::Inode { ino, raw } = record.unwrap() {
                let size = Inode::parse(raw).unwrap().size(false);
                assert!(contents.durable.contains(&(ino, size)), "{ino:?} {size}");
                contents.shown.insert((ino, size));
            }
        }
        drop(contents);
        self.flush()
    }

    fn flush(&self) -> Result<(), String> {
        let mut contents = self.contents.lock();
        contents.flushes += 1;
        let number = contents.flushes;
        // What is written while a flush is under way may be lost.
        let before = contents.data.clone();
        drop(contents);
        (self.meanwhile)(number);
        self.contents.lock().durable.extend(before);
        Ok(())
    }
}

/// A file that has grown to this size, or was overwritten.
fn closure(ino: u32, size: u64, grows: bool) -> Closure {
    let mut fields: Box<[u8]> = vec![0; 160].into();
    fields[0..2].copy_from_slice(&0o100_644_u16.to_le_bytes());
    fields[4..8].copy_from_slice(&(size as u32).to_le_bytes());
    fields[26..28].copy_from_slice(&1_u16.to_le_bytes());
    let range = Range {
        first: LBlock(size as u32),
        len: 1,
        at: Some((FsBlock(1000 + size), false)),
    };
    Closure {
        inodes: vec![InodeState {
            ino: Ino(ino),
            fields,
            is_new: false,
            is_known: false,
            ranges: Vec::from_iter(grows.then_some(range)),
            shows_data: grows,
        }],
        names: Vec::new(),
    }
}

fn log() -> FsyncLog {
    FsyncLog::new(Tid(7), BLOCK, 256, LogUpdate::InPlace)
}

/// Two files grow, and one is logged; the other's closure comes while the first one's data are flushed.
fn with_one_late(then: impl Fn(&FsyncLog, &Disk<'_>, &LogStatistics, Batch)) {
    let (log, statistics) = (log(), LogStatistics::default());
    let late = Mutex::new(Rank::Leaf, None);
    let add_late = |flush| {
        if flush == 1 {
            *late.lock() = Some(log.add(&closure(13, 1, true), &statistics).unwrap());
        }
    };
    let disk = Disk::new(&add_late);
    disk.write_data(Ino(12), 1);
    disk.write_data(Ino(13), 1);
    let first = log.add(&closure(12, 1, true), &statistics).unwrap();
    sync(&log, first, &disk, &statistics).unwrap();
    let late = late.lock().take().unwrap();
    then(&log, &disk, &statistics, late);
}

#[test]
fn a_flush_makes_one_batch_durable_and_the_data_of_the_next() {
    with_one_late(|log, disk, statistics, late| {
        assert_eq!(disk.contents.lock().flushes, 2);
        // Its data went with the first one's block.
        sync(log, late, disk, statistics).unwrap();
        assert_eq!(disk.contents.lock().flushes, 3);
        assert_eq!(statistics.log_commits.sum(), 2);
        // Nothing is new about an overwritten file's blocks.
        let over = log.add(&closure(12, 1, false), statistics).unwrap();
        sync(log, over, disk, statistics).unwrap();
        assert_eq!(disk.contents.lock().flushes, 4);
    });
}

#[test]
fn what_is_ready_when_the_log_is_closed_was_promised_to_nobody() {
    with_one_late(|log, disk, statistics, late| {
        assert!(log.close().is_touched);
        assert_eq!(sync(log, late, disk, statistics), Err(Unlogged::Closed));
        assert_eq!(disk.contents.lock().shown, [(Ino(12), 1)].into());
    });
}

#[test]
fn threads_that_write_and_fsync_never_show_data_that_may_be_lost() {
    for seed in 0..200 {
        let work = || {
            let (log, statistics) = (log(), LogStatistics::default());
            let disk = Disk::new(&|_| ());
            workers(3, |thread| {
                let ino = Ino(12 + thread as u32);
                for step in 1..5 {
                    // Every other time nothing new is shown.
                    let size = step / 2 + 1;
                    disk.write_data(ino, size);
                    let grows = step == 1 || step % 2 == 0;
                    let state = closure(ino.0, size, grows);
                    let batch = log.add(&state, &statistics).unwrap();
                    sync(&log, batch, &disk, &statistics).unwrap();
                    let contents = disk.contents.lock();
                    assert!(contents.shown.contains(&(ino, size)));
                    assert!(contents.durable.contains(&(ino, size)));
                    drop(contents);
                    if (step + thread as u64).is_multiple_of(2) {
                        // Others' bytes in the same blocks.
                        disk.write_data(ino, 100 + size);
                        flush(&log, &disk, &statistics);
                        let durable = &disk.contents.lock().durable;
                        assert!(durable.contains(&(ino, 100 + size)));
                    }
                }
            });
            // Alone they would take two flushes to grow and one to be overwritten, and one for the bytes.
            assert!(disk.contents.lock().flushes <= 3 * (3 * 2 + 1 + 2));
        };
        let plan = SchedulePlan {
            seed,
            points: 1_000_000,
        };
        schedule::run(plan, work).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// Returns when the data are durable that were written before a batch was joined.
fn flush_batch(
    log: &FsyncLog,
    batch: Batch,
    disk: &Disk<'_>,
    statistics: &LogStatistics,
) -> Result<(), Unlogged> {
    lead(log.flush(batch, statistics)?, disk)
}

/// Makes data durable that were written over others.
fn flush(log: &FsyncLog, disk: &Disk<'_>, statistics: &LogStatistics) {
    let batch = log.join();
    flush_batch(log, batch, disk, statistics).unwrap();
}

#[test]
fn who_joins_is_served_by_the_next_flush_whatever_the_batch_shows() {
    let (log, statistics) = (log(), LogStatistics::default());
    let disk = Disk::new(&|_| ());
    // Alone: a flush, and nothing is logged.
    disk.write_data(Ino(12), 1);
    flush(&log, &disk, &statistics);
    assert_eq!(disk.contents.lock().flushes, 1);
    assert!(disk.contents.lock().durable.contains(&(Ino(12), 1)));
    // With a file that was overwritten: the flush of its block.
    let over = log.add(&closure(12, 1, false), &statistics).unwrap();
    disk.write_data(Ino(13), 1);
    flush(&log, &disk, &statistics);
    assert_eq!(disk.contents.lock().flushes, 2);
    assert!(disk.contents.lock().durable.contains(&(Ino(13), 1)));
    sync(&log, over, &disk, &statistics).unwrap();
    assert_eq!(disk.contents.lock().flushes, 2, "it is logged by now");
    // With one that grew: the flush of its data, not that of its block.
    disk.write_data(Ino(14), 1);
    let grown = log.add(&closure(14, 1, true), &statistics).unwrap();
    flush(&log, &disk, &statistics);
    assert_eq!(disk.contents.lock().flushes, 3);
    sync(&log, grown, &disk, &statistics).unwrap();
    assert_eq!(disk.contents.lock().flushes, 4);
    assert_eq!(
        (statistics.log_commits.sum(), statistics.joined.sum()),
        (2, 3)
    );
    let ended = log.close();
    // The one alone, the overwritten with its company, and the one that grew.
    assert_eq!((ended.is_touched, ended.syncs), (true, 3));
    let late = log.join();
    assert_eq!(
        flush_batch(&log, late, &disk, &statistics),
        Err(Unlogged::Closed)
    );
}

#[test]
fn nobody_joins_where_steps_are_short() {
    for (flush, gathers) in [(FLUSH, true), (Duration::ZERO, false)] {
        with_two_expected(1, flush, |log, _, _| assert_eq!(log.gathers(), gathers));
    }
}

const FLUSH: Duration = Duration::from_millis(8);
/// More than the steps take that the schedule's clock counts.
const SLACK: Duration = Duration::from_micros(300);

/// On a schedule's clock: two files are overwritten and logged with one flush of this time, so that two are expected
/// back.
fn with_two_expected(
    seed: u64,
    flush: Duration,
    then: impl Fn(&FsyncLog, &Disk<'_>, &LogStatistics) + Sync,
) {
    let work = || {
        let (log, statistics) = (log(), LogStatistics::default());
        let takes_time = |_| sync::thread::sleep(flush);
        let disk = Disk::new(&takes_time);
        for ino in [12, 13] {
            disk.write_data(Ino(ino), 1);
        }
        disk.contents.lock().durable = [(Ino(12), 1), (Ino(13), 1)].into();
        log.add(&closure(12, 1, false), &statistics).unwrap();
        let batch = log.add(&closure(13, 1, false), &statistics).unwrap();
        sync(&log, batch, &disk, &statistics).unwrap();
        assert_eq!(disk.contents.lock().flushes, 1);
        then(&log, &disk, &statistics);
    };
    let plan = SchedulePlan {
        seed,
        points: 1_000_000,
    };
    schedule::run(plan, work).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
}

/// How long an fsync of a file takes that was overwritten, a moment from now.
fn overwrite(ino: u32, log: &FsyncLog, disk: &Disk<'_>, statistics: &LogStatistics) -> Duration {
    let begin = clock::now();
    let batch = log.add(&closure(ino, 1, false), statistics).unwrap();
    sync(log, batch, disk, statistics).unwrap();
    clock::now() - begin
}

#[test]
fn a_leader_waits_for_who_comes_back_within_an_eighth_of_a_flush_and_serves_both_with_one() {
    for seed in 0..100 {
        // In time, and too late.
        for (late, flushes) in [(FLUSH / 16, 1), (FLUSH / 4, 2)] {
            with_two_expected(seed, FLUSH, |log, disk, statistics| {
                let begin = clock::now();
                workers(2, |thread| match thread {
                    0 => {
                        let took = overwrite(12, log, disk, statistics);
                        assert!(took < FLUSH + FLUSH / 8 + SLACK, "{took:?}");
                    }
                    _ => {
                        sync::thread::sleep(late);
                        overwrite(13, log, disk, statistics);
                    }
                });
                let took = clock::now() - begin;
                assert!(took < (FLUSH + FLUSH / 8) * flushes + SLACK, "{took:?}");
                assert_eq!(disk.contents.lock().flushes, 1 + flushes, "{late:?}");
                // A thread that came in time only waited for the leader; a thread that came late leads after that one.
                let followers = u64::from(flushes == 1);
                assert_eq!(statistics.followers.sum(), followers, "{late:?}");
                assert_eq!(statistics.log_commits.sum(), 1 + u64::from(flushes));
            });
        }
    }
}

#[test]
fn a_leader_waits_for_who_joins_again_as_for_who_logs_again() {
    for seed in 0..100 {
        with_two_expected(seed, FLUSH, |log, disk, statistics| {
            workers(2, |thread| match thread {
                0 => {
                    overwrite(12, log, disk, statistics);
                }
                _ => {
                    sync::thread::sleep(FLUSH / 16);
                    flush(log, disk, statistics);
                }
            });
            // One flush for both, and then, as two are known, for both again.
            assert_eq!(disk.contents.lock().flushes, 2);
            workers(2, |thread| {
                sync::thread::sleep(FLUSH / 16 * thread as u32);
                flush(log, disk, statistics);
            });
            assert_eq!(disk.contents.lock().flushes, 3);
            assert_eq!(statistics.joined.sum(), 3);
        });
    }
}

#[test]
fn a_leader_whose_followers_stay_away_waits_once_and_not_for_long() {
    let micros = Duration::from_micros;
    for (flush, patience) in [
        (FLUSH, FLUSH / 8),
        (micros(64_000), micros(2000)),
        (micros(40), Duration::ZERO),
    ] {
        with_two_expected(1, flush, |log, disk, statistics| {
            let took = overwrite(12, log, disk, statistics);
            assert!(took >= flush + patience, "{flush:?}: {took:?}");
            assert!(took < flush + patience + SLACK, "{flush:?}: {took:?}");
            // By now it is known to be alone.
            let took = overwrite(12, log, disk, statistics);
            assert!(took < flush + SLACK, "{flush:?}: {took:?}");
            assert_eq!(disk.contents.lock().flushes, 3);
            assert_eq!(statistics.followers.sum(), 0);
        });
    }
}

/// A thread that waits for a leader that panics gets an error, so that it flushes by itself or commits in full.
#[test]
fn who_joined_under_a_leader_that_panics_does_not_wait_for_ever() {
    for seed in 0..20 {
        let work = || {
            let (log, statistics) = (log(), LogStatistics::default());
            let fails = |_| {
                sync::thread::sleep(FLUSH);
                panic!("the device's own");
            };
            let disk = Disk::new(&fails);
            workers(2, |thread| {
                sync::thread::sleep(FLUSH / 2 * thread as u32);
                let batch = log.join();
                let flush = || flush_batch(&log, batch, &disk, &statistics);
                let flushed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(flush));
                let panicked = flushed.is_err();
                assert!(panicked == (thread == 0) && (panicked || flushed.unwrap().is_err()));
            });
            log.close();
        };
        let plan = SchedulePlan {
            seed,
            points: 1_000_000,
        };
        schedule::run(plan, work).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// A thread that comes to a closed log takes part in nothing.
#[test]
fn who_is_turned_away_did_not_join() {
    let (log, statistics) = (log(), LogStatistics::default());
    let disk = Disk::new(&|_| ());
    log.close();
    let late = log.join();
    assert_eq!(
        flush_batch(&log, late, &disk, &statistics),
        Err(Unlogged::Closed)
    );
    assert_eq!(statistics.joined.sum(), 0);
}
