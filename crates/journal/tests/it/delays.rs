//! Delays of commits, under schedules: no thread waits for good, and a commit waits for delays that began before it.

use std::sync::Mutex;
use std::time::Duration;

use model::Random;
use sync::schedule::{self, SchedulePlan};

use crate::bank::Bank;
use crate::image::Image;

/// Of the schedule's own time.
const MOST: Duration = Duration::from_millis(1);
const POINTS: u64 = 1_000_000;

/// A commit waits for a delay, a second delay waits for that commit, and a freeze, which waits for no delay, does the
/// commit's work: the second delay must begin all the same.
#[test]
fn under_schedules_a_delay_begins_when_the_commit_it_waits_for_is_done_by_another_thread() {
    let Some(image) = Image::make(1024, "64bit,metadata_csum") else {
        return;
    };
    for seed in 0..testkit::number_in("LANEFS_SCHEDULES", 100) {
        let bank = Bank::open(&image, image.options(), None);
        let points = POINTS;
        let run = schedule::run(SchedulePlan { seed, points }, || {
            let first = bank.journal.delay_commits(MOST);
            bank.transfer(0, &mut Random::new(seed)).unwrap();
            let epoch = bank.journal.current_epoch();
            sync::thread::workers(3, |number| match number {
                0 => bank.journal.commit(&bank, epoch).unwrap(),
                1 => {
                    let second = bank.journal.delay_commits(MOST);
                    bank.journal.end_delay(second);
                }
                _ => {
                    bank.journal.freeze(&bank).unwrap();
                    bank.journal.thaw();
                }
            });
            bank.journal.end_delay(first);
        });
        run.unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
        bank.journal.close(&bank).unwrap();
    }
}

/// What is changed during a delay is not committed before the delay ends, or its time has passed.
#[test]
fn under_schedules_a_commit_waits_for_a_delay_and_no_longer_than_its_time() {
    let Some(image) = Image::make(1024, "64bit,metadata_csum") else {
        return;
    };
    for seed in 0..testkit::number_in("LANEFS_SCHEDULES", 100) / 2 {
        let is_ended_early = seed % 2 == 0;
        let bank = Bank::open(&image, image.options(), None);
        let points = POINTS;
        let run = schedule::run(SchedulePlan { seed, points }, || {
            let begun = sync::clock::now();
            let delay = Mutex::new(Some(bank.journal.delay_commits(MOST)));
            bank.transfer(0, &mut Random::new(seed)).unwrap();
            let epoch = bank.journal.current_epoch();
            let is_over = || {
                let has_passed = sync::clock::now() - begun >= MOST;
                has_passed || delay.lock().unwrap().is_none()
            };
            sync::thread::workers(3, |number| match number {
                0 => {
                    bank.journal.commit(&bank, epoch).unwrap();
                    assert!(is_over(), "committed during the delay");
                }
                1 => {
                    bank.journal.await_delays();
                    assert!(is_over(), "awaited less than the delay");
                }
                _ if is_ended_early => {
                    sync::thread::sleep(MOST / 4);
                    let ended = delay.lock().unwrap().take();
                    ended
                        .into_iter()
                        .for_each(|delay| bank.journal.end_delay(delay));
                }
                _ => {}
            });
            let waited = sync::clock::now() - begun;
            assert!(waited < 10 * MOST, "all took {waited:?}");
        });
        run.unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
        bank.journal.close(&bank).unwrap();
    }
}
