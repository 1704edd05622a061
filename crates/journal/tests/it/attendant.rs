//! The attendant that commits what nobody syncs, under schedules: a change at any moment is committed, also at the one
//! at which the attendant falls asleep.

use std::time::Duration;

use model::Random;
use sync::schedule::{self, SchedulePlan};

use crate::bank::Bank;
use crate::image::Image;

/// Of the schedule's own time.
const INTERVAL: Duration = Duration::from_millis(1);
const POLL: Duration = Duration::from_micros(20);
const CHANGES: u64 = 8;

#[test]
fn under_schedules_a_change_is_committed_whenever_it_comes() {
    let Some(image) = Image::make(1024, "64bit,metadata_csum") else {
        return;
    };
    for seed in 0..testkit::number_in("LANEFS_SCHEDULES", 100) {
        let bank = Bank::open(&image, image.options(), None);
        let points = 1_000_000;
        let run = schedule::run(SchedulePlan { seed, points }, || {
            sync::thread::workers(2, |number| match number {
                0 => bank.journal.attend(&bank, INTERVAL),
                _ => change_and_wait(&bank, &mut Random::new(seed)),
            });
        });
        run.unwrap_or_else(|cause| panic!("seed {seed}: {cause}"));
        bank.journal.close(&bank).unwrap();
    }
}

/// Changes something about when the attendant falls asleep, and waits until it has committed that; several times.
fn change_and_wait(bank: &Bank, random: &mut Random) {
    for _ in 0..CHANGES {
        bank.transfer(0, random).unwrap();
        let epoch = bank.journal.current_epoch();
        let start = sync::clock::now();
        while bank.journal.committed_epoch() < epoch {
            let waited = sync::clock::now() - start;
            assert!(waited < 20 * INTERVAL, "not committed after {waited:?}");
            sync::thread::sleep(POLL);
        }
        // The attendant looks once more an interval after its commit, which was up to a poll ago.
        let early = Duration::from_micros(random.below(60));
        sync::thread::sleep(INTERVAL.saturating_sub(early));
    }
    bank.journal.dismiss();
}
