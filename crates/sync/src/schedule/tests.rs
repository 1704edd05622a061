//! The schedule itself: what it repeats, and what it finds.

use super::*;
use crate::atomic::{AtomicU64, Ordering};
use crate::clock::{Duration, now};
use crate::thread::{sleep, workers, yield_now};
use crate::{Queue, Rank, RwLock};

fn plan(seed: u64) -> SchedulePlan {
    SchedulePlan {
        seed,
        points: 100_000,
    }
}

/// The order in which three threads append to a list.
fn order(seed: u64) -> Vec<(usize, u64)> {
    let work = || {
        let list = crate::Mutex::new(Rank::Leaf, Vec::new());
        workers(3, |thread| {
            (0..5).for_each(|step| list.lock().push((thread, step)));
        });
        list.into_inner()
    };
    run(plan(seed), work).unwrap().0
}

#[test]
fn a_seed_gives_the_same_run_each_time_and_others_give_others() {
    let orders: std::collections::HashSet<_> = (0..40).map(order).collect();
    assert!(orders.len() > 10, "{}", orders.len());
    assert!((0..40).all(|seed| order(seed) == order(seed)));
}

#[test]
fn a_lost_update_is_found() {
    let lost = |seed| {
        let work = || {
            let count = AtomicU64::new(0);
            workers(2, |_| {
                // Relaxed: the mistake is the point.
                let before = count.load(Ordering::Relaxed);
                // Relaxed: the mistake is the point.
                count.store(before + 1, Ordering::Relaxed);
            });
            count.into_inner()
        };
        run(plan(seed), work).unwrap().0 == 1
    };
    assert!((0..200).any(lost) && !(0..200).all(lost));
}

#[test]
fn a_deadlock_is_told_with_its_places() {
    let deadlock = |seed| {
        let work = || {
            let (a, b) = (RwLock::new(Rank::Job, ()), RwLock::new(Rank::Queue, ()));
            workers(2, |thread| {
                let (first, second) = if thread == 0 { (&a, &b) } else { (&b, &a) };
                // Trying in a loop is allowed in any order, so that the ranks do not find this first.
                let _first = first.write();
                crate::turn::point();
                while second.try_write().is_none() {
                    sleep_forever();
                }
            });
        };
        run(plan(seed), work).err()
    };
    let cause = (0..100).find_map(deadlock).unwrap();
    assert!(cause.contains("deadlock"), "{cause}");
    assert!(cause.contains("tests.rs"), "{cause}");
}

/// Waits for something that never comes.
#[track_caller]
fn sleep_forever() {
    let never = crate::Condvar::new();
    let lock = crate::Mutex::new(Rank::Leaf, ());
    never.wait(&mut lock.lock());
}

#[test]
fn a_livelock_is_found() {
    let cause = run(plan(1), || {
        workers(2, |_| {
            loop {
                yield_now();
            }
        });
    })
    .unwrap_err();
    assert!(cause.contains("livelock"), "{cause}");
}

#[test]
fn a_panic_of_one_thread_ends_the_run_with_its_message() {
    for seed in 0..50 {
        let cause = run(plan(seed), || {
            let lock = crate::Mutex::new(Rank::Leaf, 0);
            workers(3, |thread| {
                let mut count = lock.lock();
                *count += 1;
                if thread == 2 {
                    resume_unwind(Box::new("on purpose"));
                }
            });
        })
        .unwrap_err();
        assert_eq!(cause, "on purpose");
    }
}

#[test]
fn queues_and_time_work_and_time_is_the_schedules_own() {
    let start = std::time::Instant::now();
    for seed in 0..50 {
        let work = || {
            let queue = Queue::new(2);
            let sum = AtomicU64::new(0);
            let begun = now();
            workers(3, |thread| match thread {
                0 => {
                    for item in 0..20 {
                        queue.push(item).unwrap();
                        sleep(Duration::from_secs(60));
                    }
                    queue.close();
                }
                _ => {
                    while let Some(item) = queue.pop() {
                        // Relaxed: read after the workers ended.
                        sum.fetch_add(item, Ordering::Relaxed);
                    }
                }
            });
            (sum.into_inner(), now() - begun)
        };
        let ((sum, time), _) = run(plan(seed), work).unwrap();
        assert_eq!(sum, 190);
        assert!(time >= Duration::from_secs(20 * 60));
    }
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_condition_that_times_out_says_so() {
    let work = || {
        let (lock, never) = (crate::Mutex::new(Rank::Leaf, ()), crate::Condvar::new());
        never.wait_for(&mut lock.lock(), Duration::from_secs(5))
    };
    assert!(run(plan(3), work).unwrap().0);
}
