//! Tables under threads and, with the feature `simulate`, under schedules: an entry has one instance at a time, no
//! change is lost when it leaves and comes back, and nothing is dropped under a reader.

use super::*;
use crate::atomic::{AtomicU64, Ordering};
use crate::thread::workers;
use crate::{Arc, Mutex, Rank};

/// What the tests keep: a number that is read from `Disk` and written there when it goes.
struct Cell {
    key: u64,
    value: AtomicU64,
    /// 1 until it is dropped.
    life: Arc<std::sync::atomic::AtomicU64>,
}

impl Keyed for Cell {
    fn key(&self) -> u64 {
        self.key
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // SeqCst: a test's.
        self.life.store(0, Ordering::SeqCst);
    }
}

struct Disk {
    table: SwitchedTable<Cell>,
    home: Vec<AtomicU64>,
    /// How often each was raised.
    truth: Vec<AtomicU64>,
    /// The instances of each key that a thread uses.
    used: Mutex<Vec<Vec<usize>>>,
    hand: Mutex<Hand>,
    stale: AtomicU64,
    lost: AtomicU64,
    gone: AtomicU64,
}

impl Disk {
    fn new(keys: usize, buckets: usize) -> Disk {
        let zeros = || (0..keys).map(|_| AtomicU64::new(0)).collect();
        Disk {
            table: SwitchedTable::new(Rank::IcacheTable, Rank::IcacheBucket, buckets, false),
            home: zeros(),
            truth: zeros(),
            used: Mutex::new(Rank::Leaf, vec![Vec::new(); keys]),
            hand: Mutex::new(Rank::Job, Hand::new(0, 1)),
            stale: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            gone: AtomicU64::new(0),
        }
    }

    /// Found, or loaded and added after a second look.
    fn get(&self, key: u64) -> Arc<Cell> {
        loop {
            if let Some(cell) = self.table.find(key) {
                return cell;
            }
            let version = self.table.version(key);
            // SeqCst: a test's, here and below.
            let value = self.home[key as usize].load(Ordering::SeqCst);
            let cell = Arc::new(Cell {
                key,
                value: AtomicU64::new(value),
                life: Arc::new(std::sync::atomic::AtomicU64::new(1)),
            });
            let added = self.table.locked(key, |locked| match locked.get() {
                Some(there) => {
                    // Relaxed: a statistic.
                    self.lost.fetch_add(1, Ordering::Relaxed);
                    Some(there)
                }
                None if locked.version() != version => {
                    // Relaxed: a statistic.
                    self.stale.fetch_add(1, Ordering::Relaxed);
                    None
                }
                None => {
                    locked.insert(Arc::clone(&cell));
                    Some(cell)
                }
            });
            if let Some(cell) = added {
                return cell;
            }
        }
    }

    fn raise(&self, key: u64) {
        let cell = self.get(key);
        let instance = Arc::as_ptr(&cell).addr();
        {
            let mut used = self.used.lock();
            assert!(
                used[key as usize].iter().all(|other| *other == instance),
                "two instances"
            );
            used[key as usize].push(instance);
        }
        // SeqCst: a test's.
        cell.value.fetch_add(1, Ordering::SeqCst);
        // SeqCst: a test's.
        self.truth[key as usize].fetch_add(1, Ordering::SeqCst);
        let mut used = self.used.lock();
        let place = used[key as usize]
            .iter()
            .position(|other| *other == instance);
        used[key as usize].swap_remove(place.unwrap());
    }

    /// What may go is written home first.
    fn sweep(&self, want: usize) {
        let Some(mut hand) = self.hand.try_lock() else {
            return;
        };
        let swept = self.table.sweep(&mut hand, want, &mut |cell| {
            // SeqCst: a test's.
            let value = cell.value.load(Ordering::SeqCst);
            // SeqCst: a test's.
            self.home[cell.key as usize].store(value, Ordering::SeqCst);
            true
        });
        // Relaxed: a statistic.
        self.gone.fetch_add(swept.gone as u64, Ordering::Relaxed);
    }

    fn look(&self, key: u64) {
        self.table.look(key, |cell| {
            // SeqCst: a test's; the reader's three loads and the writers' stores have one order.
            assert_eq!(
                cell.life.load(Ordering::SeqCst),
                1,
                "dropped under a reader"
            );
            // SeqCst: a test's; the reader's three loads and the writers' stores have one order.
            cell.value.load(Ordering::SeqCst);
            assert_eq!(cell.key, key);
            // SeqCst: a test's; the reader's three loads and the writers' stores have one order.
            assert_eq!(
                cell.life.load(Ordering::SeqCst),
                1,
                "dropped under a reader"
            );
        });
    }

    /// Nothing was lost, and the table is as it should be.
    fn verify(&self) {
        for key in 0..self.home.len() as u64 {
            let cell = self.get(key);
            // SeqCst: a test's.
            let value = cell.value.load(Ordering::SeqCst);
            // SeqCst: a test's.
            assert_eq!(
                value,
                self.truth[key as usize].load(Ordering::SeqCst),
                "{key}"
            );
        }
        let mut seen = Vec::new();
        self.table.for_each(|cell| seen.push(cell.key));
        seen.sort_unstable();
        assert_eq!(seen, (0..self.home.len() as u64).collect::<Vec<_>>());
        let statistics = self.table.statistics();
        assert_eq!(statistics.entries, self.home.len() as u64);
        assert_eq!(self.table.len(), statistics.entries);
    }

    /// One thread's random work.
    fn work(&self, seed: u64, steps: usize) {
        let mut numbers = model::Random::new(seed);
        for _ in 0..steps {
            let random = numbers.bits();
            let key = (random >> 40) % self.home.len() as u64;
            match (random >> 33) % 8 {
                0 | 1 => self.sweep(1 + (random >> 60) as usize),
                2 | 3 => self.look(key),
                4 => {
                    // It matches, or the cell is not there.
                    let found = self.table.find_by(key, |cell| cell.key == key);
                    assert!(found.is_none_or(|cell| cell.key == key));
                    assert!(self.table.find_by(key, |_| false).is_none());
                }
                _ => self.raise(key),
            }
        }
    }
}

#[test]
fn what_is_added_is_found_until_it_is_removed_however_far_the_table_grew() {
    let disk = Disk::new(5000, 1);
    for key in 0..5000 {
        assert!(disk.table.find(key).is_none());
        disk.get(key);
    }
    disk.verify();
    let statistics = disk.table.statistics();
    assert!(
        statistics.grown >= 8 && statistics.buckets >= 1024,
        "{statistics:?}"
    );
    assert!(statistics.longest <= 64, "{statistics:?}");
    for key in (0..5000).step_by(2) {
        let before = disk.table.version(key);
        assert_eq!(
            disk.table
                .locked(key, |locked| locked.remove())
                .unwrap()
                .key,
            key
        );
        assert_ne!(disk.table.version(key), before);
        assert!(disk.table.find(key).is_none());
    }
    assert_eq!(disk.table.len(), 2500);
    disk.table.flush();
    assert_eq!(disk.table.statistics().waiting, 0);
}

#[test]
fn a_removal_is_still_known_when_the_bucket_has_moved() {
    let disk = Disk::new(1000, 1);
    let before: Vec<u32> = (0..1000).map(|key| disk.table.version(key)).collect();
    disk.get(7);
    disk.table.locked(7, |locked| locked.remove());
    (100..1000).for_each(|key| drop(disk.get(key)));
    assert!(disk.table.statistics().grown > 0);
    assert_ne!(disk.table.version(7), before[7]);
}

#[test]
fn one_entry_takes_the_place_of_another_with_its_key() {
    let disk = Disk::new(1, 1);
    let first = disk.get(0);
    let second = Arc::new(Cell {
        key: 0,
        value: AtomicU64::new(9),
        life: Arc::new(std::sync::atomic::AtomicU64::new(1)),
    });
    let old = disk
        .table
        .locked(0, |locked| locked.insert(Arc::clone(&second)));
    assert!(Arc::ptr_eq(&old.unwrap(), &first));
    assert!(Arc::ptr_eq(&disk.table.find(0).unwrap(), &second));
    assert_eq!(disk.table.len(), 1);
}

#[test]
fn entries_with_one_bucket_make_it_long_and_are_all_found() {
    // Far apart by the length of the array: they stay together until it has grown.
    let disk = Disk::new(0, 64);
    let cell = |key| Cell {
        key,
        value: AtomicU64::new(0),
        life: Arc::new(std::sync::atomic::AtomicU64::new(1)),
    };
    for key in (0..40).map(|n| n * 64) {
        disk.table
            .locked(key, |locked| locked.insert(Arc::new(cell(key))));
    }
    assert!((0..40).all(|n| {
        disk.table
            .find(n * 64)
            .is_some_and(|cell| cell.key == n * 64)
    }));
    assert!(disk.table.statistics().longest >= 10);
}

#[test]
fn a_hand_takes_what_nobody_uses_and_leaves_what_was_found_since() {
    let disk = Disk::new(64, 64);
    let held: Vec<_> = (0..8).map(|key| disk.get(key)).collect();
    (8..64).for_each(|key| drop(disk.get(key)));
    for round in 0..20 {
        (8..16).for_each(|key| disk.look(key));
        disk.sweep(4);
        assert!(
            (0..8).all(|key| Arc::ptr_eq(&disk.get(key), &held[key as usize])),
            "{round}"
        );
    }
    assert!(disk.table.len() < 30, "{}", disk.table.len());
    // SeqCst: a test's.
    assert!(disk.gone.load(Ordering::SeqCst) >= 40);
    drop(held);
    (0..20).for_each(|_| disk.sweep(64));
    assert_eq!(disk.table.len(), 0);
    disk.table.flush();
    assert_eq!(disk.table.statistics().waiting, 0);
}

#[test]
fn what_was_counted_while_a_hand_marked_it_stays() {
    let disk = Disk::new(1, 1);
    disk.get(0);
    // The mark comes between the reader's meeting the entry and counting it.
    let found = disk.table.find_by(0, |_| {
        disk.sweep(1);
        true
    });
    (0..4).for_each(|_| disk.sweep(1));
    assert!(Arc::ptr_eq(&disk.get(0), &found.unwrap()));
}

#[test]
fn what_was_removed_is_dropped_when_the_last_reader_left() {
    let disk = Disk::new(4, 1);
    let life = Arc::clone(&disk.get(3).life);
    let guard = disk.table.counted().domain().enter();
    let nested = disk.table.counted().domain().enter();
    disk.table.locked(3, |locked| locked.remove());
    disk.table.flush();
    drop(guard);
    disk.table.flush();
    // SeqCst: a test's.
    assert_eq!(life.load(Ordering::SeqCst), 1);
    drop(nested);
    disk.table.flush();
    // SeqCst: a test's.
    assert_eq!(life.load(Ordering::SeqCst), 0);
}

#[test]
fn a_table_that_is_dropped_drops_every_entry_in_whatever_line_and_array_it_is() {
    for (keys, buckets, removed) in [(3, 1 << 10, 1), (7, 1, 5), (400, 1, 40)] {
        let disk = Disk::new(keys, buckets);
        let lives: Vec<_> = (0..keys as u64)
            .map(|key| Arc::clone(&disk.get(key).life))
            .collect();
        // In a bucket of two lines this empties the first.
        for key in 0..removed {
            disk.table.locked(key, |locked| locked.remove());
        }
        drop(disk);
        // SeqCst: a test's.
        let left = lives.iter().filter(|life| life.load(Ordering::SeqCst) > 0);
        assert_eq!(left.count(), 0, "{keys} entries, {buckets} buckets");
    }
}

#[test]
fn a_panic_under_the_lock_drops_nothing_that_is_read() {
    let disk = Disk::new(4, 1);
    let life = Arc::clone(&disk.get(2).life);
    disk.table.look(2, |_| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            disk.table.locked(2, |locked| {
                locked.remove();
                std::panic::resume_unwind(Box::new("on purpose"));
            });
        }));
        assert!(panic.is_err());
        disk.table.flush();
        // SeqCst: a test's.
        assert_eq!(life.load(Ordering::SeqCst), 1);
    });
    assert!(disk.table.find(2).is_none());
}

#[test]
fn threads_find_add_sweep_and_grow_at_once_and_nothing_is_lost() {
    for round in 0..10 {
        let disk = Disk::new(300, 1);
        workers(4, |thread| disk.work(round * 10 + thread as u64, 4000));
        disk.verify();
        // SeqCst: a test's.
        assert!(disk.gone.load(Ordering::SeqCst) > 0);
    }
}

#[test]
fn alone_a_thread_drops_what_it_takes_out_at_once() {
    let disk = Disk::new(400, 1);
    disk.table.choose(true);
    let lives: Vec<_> = (0..400)
        .map(|key| Arc::clone(&disk.get(key).life))
        .collect();
    let statistics = disk.table.statistics();
    assert!(statistics.grown > 2, "{statistics:?}");
    disk.table.locked(3, |locked| locked.remove());
    assert!(disk.table.find(3).is_none());
    let dead = || {
        // SeqCst: a test's.
        let dead = lives.iter().filter(|life| life.load(Ordering::SeqCst) == 0);
        dead.count()
    };
    assert_eq!(dead(), 1);
    disk.sweep(100);
    assert!(dead() > 100);
    assert_eq!(disk.table.statistics().waiting, 0);
    disk.table.choose(false);
    disk.verify();
}

#[test]
fn threads_find_add_sweep_and_grow_while_the_form_changes() {
    for round in 0..10 {
        let disk = Disk::new(300, 1);
        let left = AtomicU64::new(3);
        workers(4, |thread| {
            if thread > 0 {
                disk.work(round * 10 + thread as u64, 4000);
                // SeqCst: a test's.
                left.fetch_sub(1, Ordering::SeqCst);
                return;
            }
            let mut is_plain = false;
            // SeqCst: a test's.
            while left.load(Ordering::SeqCst) > 0 {
                is_plain = !is_plain;
                disk.table.choose(is_plain);
                crate::thread::yield_now();
            }
        });
        disk.verify();
    }
}

#[test]
#[cfg(feature = "simulate")]
fn under_many_schedules_nothing_is_lost_while_the_form_changes() {
    let (mut gone, mut grown) = (0, 0);
    for seed in 0..1000 {
        let plan = crate::schedule::SchedulePlan {
            seed,
            points: 1_000_000,
        };
        let work = || {
            let disk = Disk::new(if seed % 2 == 0 { 3 } else { 24 }, 1);
            workers(3, |thread| match thread {
                0 => (0..6).for_each(|turn| disk.table.choose(turn % 2 == 0)),
                _ => disk.work(seed * 8 + thread as u64, 12),
            });
            disk.verify();
            disk
        };
        let (disk, _) =
            crate::schedule::run(plan, work).unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
        gone += disk.gone.into_inner();
        grown += disk.table.statistics().grown;
    }
    assert!(gone > 50 && grown > 50, "{gone} {grown}");
}

#[test]
#[cfg(feature = "simulate")]
fn under_many_schedules_an_entry_has_one_instance_and_loses_nothing() {
    let (mut stale, mut lost, mut gone, mut grown) = (0, 0, 0, 0);
    for seed in 0..1500 {
        let plan = crate::schedule::SchedulePlan {
            seed,
            points: 1_000_000,
        };
        let work = || {
            // A few keys meet in what they do, many make the table grow.
            let disk = Disk::new(if seed % 2 == 0 { 3 } else { 24 }, 1);
            workers(3, |thread| disk.work(seed * 8 + thread as u64, 12));
            disk.verify();
            disk
        };
        let (disk, _) =
            crate::schedule::run(plan, work).unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
        stale += disk.stale.into_inner();
        lost += disk.lost.into_inner();
        gone += disk.gone.into_inner();
        grown += disk.table.statistics().grown;
    }
    // The schedules met what they are for.
    assert!(
        stale > 0 && lost > 0 && gone > 100 && grown > 100,
        "{stale} {lost} {gone} {grown}"
    );
}
