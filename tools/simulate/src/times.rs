//! What decides about the times of files in a run: how its clock runs, and whether the times are read between
//! operations. A write in place leaves an inode as it is if its times are of the same tick and were not read, so that
//! only its data are to be made durable; if they were read, the write changes the inode each time.
//!
//! Guarantees that both follow from the run's number, and what the clock says from the schedule: a run that is repeated
//! has the same times. Takes no lock; what a crash leaves is the device's.

use std::fmt;

use engine::Timestamp;
use model::Random;
use sync::clock;

/// Times follow from other numbers than the work.
const TIMES: u64 = 0x7469_6d65_7300;
/// Of eight runs, those with a clock that stands still, and those with one that goes in ticks.
const STILL_OF_EIGHT: u64 = 4;
const TICKING_OF_EIGHT: u64 = 2;
/// Of four runs, those in which each operation looks at the times of its file.
const SEEN_OF_FOUR: u64 = 1;
/// Nanoseconds of a tick: as a kernel's clock for stamps has them.
const TICK: i128 = 4_000_000;
/// How much faster than the schedule's time, in which an operation takes a tenth of a millisecond, a clock goes: so
/// that operations are now and then in one tick, and now and then not.
const SPEED: i128 = 16;
const BILLION: i128 = 1_000_000_000;
/// When every run begins.
const START: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanoseconds: 5,
};

/// How a clock goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SimulatedClock {
    /// Not at all.
    Still,
    /// In ticks of four milliseconds.
    Ticking,
    /// On with everything that is done.
    Running,
}

impl SimulatedClock {
    /// What reads it: within a scheduled run, unless it stands still.
    #[must_use]
    pub fn reader(self) -> fn() -> Timestamp {
        match self {
            SimulatedClock::Still => || START,
            SimulatedClock::Ticking => || time(TICK),
            SimulatedClock::Running => || time(1),
        }
    }
}

/// The time in units of `unit` nanoseconds.
fn time(unit: i128) -> Timestamp {
    let (seconds, nanoseconds) = clock::wall();
    let start = i128::from(START.seconds) * BILLION;
    let passed = i128::from(seconds) * BILLION + i128::from(nanoseconds) - start;
    let now = start + passed * SPEED / unit * unit;
    Timestamp {
        // A run takes far less than 2^63 seconds, and the remainder is below 2^32.
        seconds: (now / BILLION) as i64,
        nanoseconds: (now % BILLION) as u32,
    }
}

/// What decides about the times of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunTimes {
    /// How its clock goes.
    pub clock: SimulatedClock,
    /// Whether each operation looks at the times of its file.
    pub are_seen: bool,
}

impl RunTimes {
    /// Where nothing is said of them: every write changes the inode, to the same times.
    pub const PLAIN: RunTimes = RunTimes {
        clock: SimulatedClock::Still,
        are_seen: true,
    };

    /// Those of the run with this number.
    #[must_use]
    pub fn of(number: u64) -> RunTimes {
        let mut random = Random::new(number ^ TIMES);
        let clock = match random.below(8) {
            0..STILL_OF_EIGHT => SimulatedClock::Still,
            drawn if drawn < STILL_OF_EIGHT + TICKING_OF_EIGHT => SimulatedClock::Ticking,
            _ => SimulatedClock::Running,
        };
        RunTimes {
            clock,
            are_seen: random.below(4) < SEEN_OF_FOUR,
        }
    }
}

impl fmt::Display for RunTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.clock {
            SimulatedClock::Still => "a clock that stands still",
            SimulatedClock::Ticking => "a clock in ticks",
            SimulatedClock::Running => "a clock that runs",
        })?;
        f.write_str(if self.are_seen {
            ", seen"
        } else {
            ", not seen"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sync::schedule::{self, SchedulePlan};

    #[test]
    fn runs_get_every_clock_seen_and_not_seen() {
        for clock in [
            SimulatedClock::Still,
            SimulatedClock::Ticking,
            SimulatedClock::Running,
        ] {
            for are_seen in [false, true] {
                let wanted = RunTimes { clock, are_seen };
                let count = (0..1000)
                    .filter(|seed| RunTimes::of(*seed) == wanted)
                    .count();
                assert!(count > 40, "{wanted}: {count}");
            }
        }
    }

    #[test]
    fn a_clock_stands_still_goes_in_ticks_or_runs_as_its_schedule_does() {
        let plan = SchedulePlan {
            seed: 1,
            points: 1_000_000,
        };
        let read = |clock: SimulatedClock| {
            let run = || {
                let read = || {
                    sync::thread::yield_now();
                    clock.reader()()
                };
                (0..1000).map(|_| read()).collect::<Vec<_>>()
            };
            let mut times = schedule::run(plan, run).unwrap().0;
            assert_eq!(times, schedule::run(plan, run).unwrap().0);
            times.dedup();
            times
        };
        assert_eq!(read(SimulatedClock::Still), [START]);
        assert_eq!(read(SimulatedClock::Running).len(), 1000);
        let ticks = read(SimulatedClock::Ticking);
        assert!((20..400).contains(&ticks.len()), "{}", ticks.len());
        let whole = |time: &Timestamp| i128::from(time.nanoseconds) % TICK == 0;
        assert!(ticks.iter().all(whole));
    }
}
