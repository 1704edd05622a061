//! Shares, leases and the sum: what is handed out never exceeds what there is, and nobody is refused what is there.

use model::Random;
use sync::atomic::{AtomicU64, Ordering};

use super::*;

#[test]
fn shares_leave_the_floor_and_add_up() {
    let space = ExactSum::new(100, 50);
    assert_eq!(space.share(30, 50), 30);
    assert_eq!(space.share(30, 50), 20);
    assert_eq!(space.share(30, 50), 0);
    assert_eq!(space.share(1, 0), 1);
    space.freed(10);
    assert_eq!(space.sum(), 59);
    assert!(space.commit_helps(50) && !space.commit_helps(59));
    space.durable(10);
    assert_eq!((space.sum(), space.share(100, 0)), (59, 59));
    assert!(!space.commit_helps(0));
}

#[test]
fn one_word_is_written_for_many_shares_while_there_is_plenty() {
    let space = ExactSum::new(1 << 20, 5000);
    for _ in 0..6400 {
        assert_eq!(space.share(2, 5000), 2);
    }
    assert!(space.counts().0 <= 6400 * 2 / LEASE as u64 + 1);
    assert_eq!(space.sum(), (1 << 20) - 12_800);
    (0..6400).for_each(|_| space.give_back(2));
    assert_eq!(space.sum(), 1 << 20);
    let large = ExactSum::new(1 << 30, 0);
    (0..6400).for_each(|_| assert_eq!(large.share(2048, 0), 2048));
    assert!(large.counts().0 <= 100);
}

#[test]
fn no_block_is_shared_twice_and_none_is_left() {
    for (free, floor) in [(10_000, 7), (200_000, 1000)] {
        let space = ExactSum::new(free, floor);
        let taken = AtomicU64::new(0);
        sync::thread::workers(4, |number| {
            let mut random = Random::new(number as u64);
            loop {
                let share = space.share(1 + random.below(9) as u32, floor);
                if share == 0 {
                    break;
                }
                if random.below(4) == 0 {
                    space.give_back(share);
                } else {
                    // Relaxed: a count.
                    taken.fetch_add(share.into(), Ordering::Relaxed);
                }
            }
        });
        assert_eq!(taken.into_inner(), free - floor);
        assert_eq!(space.sum(), floor);
    }
}

/// Threads take, give back, free and commit under schedules, around the point where leases end and begin again.
#[test]
fn under_any_schedule_nobody_is_refused_what_nobody_has() {
    let run = |seed| {
        let plan = sync::schedule::SchedulePlan {
            seed,
            points: 1_000_000,
        };
        let work = || {
            // Few beyond the floor where leases begin.
            let (floor, total) = (100, 100 + PLENTY as u64 + 60);
            let space = ExactSum::new(total, floor);
            let taken = AtomicU64::new(0);
            sync::thread::workers(3, |number| {
                let mut random = Random::new(seed * 7 + number as u64);
                let mut mine = 0;
                for _ in 0..25 {
                    let share = space.share(1 + random.below(600) as u32, floor);
                    match random.below(4) {
                        0 => space.give_back(share),
                        1 => {
                            space.freed(share);
                            space.durable(share.into());
                        }
                        _ => mine += u64::from(share),
                    }
                }
                // Relaxed: a count.
                taken.fetch_add(mine, Ordering::Relaxed);
            });
            let taken = taken.into_inner();
            assert_eq!(space.sum(), total - taken);
            let rest = space.share(1 << 20, floor);
            assert_eq!(taken + u64::from(rest), total - floor);
        };
        sync::schedule::run(plan, work).unwrap();
    };
    (0..150).for_each(run);
}
