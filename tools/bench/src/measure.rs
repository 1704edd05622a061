//! Rounds, threads and the clock.
//!
//! In each round every contender runs every number of workers once, one after the other, in an order that is drawn for
//! this round and number of workers, so that none always follows the same other one. Workers are made ready before the
//! clock runs, begin together, and stop after the batch in which the time is over, which is the same moment for all,
//! or their work done. A rate is all operations by the time from the first worker's begin to the last one's end, so
//! that workers who wait for a core count as waiting. Where a workload must do something between batches that is not
//! timed, its workers go in step: all begin a batch together, and its time is from the first one's begin to the last
//! one's end.

use std::rc::Rc;
use std::time::Duration;

use lanefs::Error;
use sync::thread;

use crate::table::{Cell, Column, Sample};
use crate::target::{Counters, Target};
use crate::workload::{WorkerJob, Workload, job};

mod pace;
mod turns;

use pace::{Pace, freely, in_step};
pub(crate) use turns::Turns;

/// Details of workloads that sync files.
pub(crate) const FSYNCS: &str = "fsyncs/operation";
pub(crate) const FSYNC_P50: &str = "fsync p50 us";
pub(crate) const FSYNC_P99: &str = "fsync p99 us";

/// When workers stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// After so long: a sample's value is operations a second, of all workers together.
    Time(Duration),
    /// After this number of operations by each worker: a sample's value is the seconds until the last of them was done.
    Operations(u64),
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct MeasurePlan {
    /// The workload.
    pub workload: Workload,
    /// Numbers of workers, each measured by itself.
    pub workers: Vec<usize>,
    /// Rounds that count; one more comes before and does not.
    pub rounds: usize,
    /// How long a sample takes.
    pub stop: Stop,
    /// What random choices follow from.
    pub seed: u64,
}

/// A file system in a comparison, or a form of a mechanism on one that others use too, in turns.
#[derive(Clone)]
pub struct Contender<'t> {
    /// Its column.
    pub column: Column,
    target: Rc<dyn Measured + 't>,
    /// Chosen before each of its samples.
    options: Vec<String>,
}

impl std::fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Contender").field(&self.column).finish()
    }
}

impl<'t> Contender<'t> {
    /// Names a target and the way that its calls take.
    pub fn new(
        label: impl Into<String>,
        way: impl Into<String>,
        target: impl Target + 't,
    ) -> Contender<'t> {
        Contender {
            column: Column {
                label: label.into(),
                way: way.into(),
            },
            target: Rc::new(Shared(target)),
            options: Vec::new(),
        }
    }

    /// Names file systems of which each worker has one for itself, so that workers share nothing but the machine: what
    /// it gives to that many, whatever a file system does. At most as many workers as there are.
    pub fn apart(
        label: impl Into<String>,
        way: impl Into<String>,
        targets: Vec<impl Target + 't>,
    ) -> Contender<'t> {
        Contender {
            column: Column {
                label: label.into(),
                way: way.into(),
            },
            target: Rc::new(Apart(targets)),
            options: Vec::new(),
        }
    }

    /// The same target with other forms, `name=value` each.
    #[must_use]
    pub fn with(&self, label: impl Into<String>, options: Vec<String>) -> Contender<'t> {
        Contender {
            column: Column {
                label: label.into(),
                way: self.column.way.clone(),
            },
            target: Rc::clone(&self.target),
            options,
        }
    }

    /// The forms that it chooses, `name=value`.
    #[must_use]
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// Uses a mechanism's form from now on, `name=value`; false if the target has no forms to choose from.
    pub(crate) fn select(&self, option: &str) -> bool {
        self.target.select(option)
    }

    /// Runs one sample.
    fn sample(&self, plan: &MeasurePlan, workers: usize) -> Result<Sample, Error> {
        for option in &self.options {
            if !self.select(option) {
                return Err(Error::Host {
                    operation: "choosing",
                    path: option.into(),
                    source: std::io::ErrorKind::InvalidInput.into(),
                });
            }
        }
        self.target.sample(plan, workers)
    }
}

/// A target whose types are forgotten.
trait Measured {
    fn sample(&self, plan: &MeasurePlan, workers: usize) -> Result<Sample, Error>;
    fn select(&self, option: &str) -> bool;
}

/// Runs the plan: cells by number of workers and contender. `progress` hears of every sample.
///
/// # Errors
/// The first error of any contender; what the workers made by then stays.
pub fn run(
    plan: &MeasurePlan,
    contenders: &[Contender<'_>],
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Vec<Cell>>, Error> {
    let mut cells = vec![vec![Cell::default(); contenders.len()]; plan.workers.len()];
    let mut turns = Turns::of_rows(plan.workers.len(), contenders.len(), plan.seed);
    for round in 0..=plan.rounds {
        let rows = plan.workers.iter().zip(&mut cells).zip(&mut turns);
        for ((workers, row), turns) in rows {
            for index in turns.next() {
                let contender = &contenders[index];
                let sample = contender.sample(plan, *workers)?;
                progress(&format!(
                    "{} round {round}: {}, {workers} workers: {:.3}",
                    plan.workload.name(),
                    contender.column.label,
                    sample.value
                ));
                if round > 0 {
                    row[index].samples.push(sample);
                }
            }
        }
    }
    Ok(cells)
}

/// Values of two contenders with one worker, in pairs, each first in every other one.
///
/// # Errors
/// As [`run`].
pub fn pairs(
    plan: &MeasurePlan,
    first: &Contender<'_>,
    second: &Contender<'_>,
    count: usize,
) -> Result<Vec<(f64, f64)>, Error> {
    in_pairs(count, |is_first| {
        let contender = if is_first { first } else { second };
        Ok(contender.sample(plan, 1)?.value)
    })
}

/// As [`pairs`], with what gives the first's value, or the second's.
pub(crate) fn in_pairs(
    count: usize,
    mut value: impl FnMut(bool) -> Result<f64, Error>,
) -> Result<Vec<(f64, f64)>, Error> {
    let mut pairs = Vec::with_capacity(count);
    // The first pair warms up.
    for number in 0..=count {
        let pair = match number % 2 {
            0 => (value(true)?, value(false)?),
            _ => {
                let second = value(false)?;
                (value(true)?, second)
            }
        };
        if number > 0 {
            pairs.push(pair);
        }
    }
    Ok(pairs)
}

/// What a worker did.
struct Done<'t> {
    job: Box<dyn WorkerJob + 't>,
    operations: u64,
    /// Of batches, in seconds.
    cpu: f64,
}

/// A file system for each worker.
struct Apart<T>(Vec<T>);

impl<T: Target> Measured for Apart<T> {
    fn select(&self, option: &str) -> bool {
        self.0.iter().all(|target| target.choose(option))
    }

    fn sample(&self, plan: &MeasurePlan, workers: usize) -> Result<Sample, Error> {
        let all = self.0.iter().enumerate().take(workers);
        let jobs =
            all.map(|(number, target)| job(target, plan.workload, number, workers, plan.seed));
        let jobs = jobs.collect::<Result<Vec<_>, Error>>()?;
        let settle = || self.0.iter().try_for_each(Target::settle);
        settle()?;
        let ran = work(jobs, plan.stop, Counters::new)?;
        settle()?;
        Ok(ran.sample(plan.stop))
    }
}

/// A target that all workers use.
struct Shared<T>(T);

impl<T: Target> Measured for Shared<T> {
    fn select(&self, option: &str) -> bool {
        self.0.choose(option)
    }

    fn sample(&self, plan: &MeasurePlan, workers: usize) -> Result<Sample, Error> {
        let target = &self.0;
        let jobs: Result<Vec<_>, Error> = (0..workers)
            .map(|number| job(target, plan.workload, number, workers, plan.seed))
            .collect();
        let jobs = jobs?;
        target.settle()?;
        let ran = work(jobs, plan.stop, || target.counters())?;
        target.settle()?;
        Ok(ran.sample(plan.stop))
    }
}

/// What workers did.
struct Ran {
    seconds: f64,
    operations: u64,
    /// In seconds, of all of them.
    cpu: f64,
    /// Of each fsync, in nanoseconds.
    waits: Vec<u64>,
    /// Before, and when all had ended.
    counters: (Counters, Counters),
}

/// Has workers do their jobs, each on a thread of its own, and looks at the counters before and after.
fn work(
    jobs: Vec<Box<dyn WorkerJob + '_>>,
    stop: Stop,
    counters: impl Fn() -> Counters,
) -> Result<Ran, Error> {
    let pauses = jobs.iter().any(|job| job.pauses());
    let pace = Pace::new(jobs.len(), stop);
    let before = counters();
    let results: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                scope.spawn(|| {
                    if pauses {
                        in_step(job, &pace)
                    } else {
                        freely(job, &pace)
                    }
                })
            })
            .collect();
        // Gone only if a worker panicked, which is passed on.
        let join = |handle: thread::ScopedJoinHandle<'_, _>| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        running.into_iter().map(join).collect()
    });
    let after = counters();
    let mut ran = Ran {
        seconds: 0.0,
        operations: 0,
        cpu: 0.0,
        waits: Vec::new(),
        counters: (before, after),
    };
    for result in results {
        let mut done = result?;
        ran.waits.append(&mut done.job.waits());
        ran.operations += done.operations;
        ran.cpu += done.cpu;
        done.job.finish()?;
    }
    ran.seconds = pace.seconds().max(1e-9);
    Ok(ran)
}

impl Ran {
    fn sample(self, stop: Stop) -> Sample {
        let operations = self.operations as f64;
        let mut details = vec![
            ("operations", operations),
            ("CPU us/operation", self.cpu * 1e6 / operations.max(1.0)),
        ];
        details.extend(waited(self.waits, self.operations));
        Sample {
            value: match stop {
                Stop::Time(_) => operations / self.seconds,
                Stop::Operations(_) => self.seconds,
            },
            details,
            counters: by_operation(&self.counters.0, &self.counters.1, self.operations),
        }
    }
}

/// How many fsyncs an operation took, and how long they took: the middle one, and the one that 99 of 100 are under.
fn waited(mut waits: Vec<u64>, operations: u64) -> Vec<(&'static str, f64)> {
    waits.sort_unstable();
    let Some(last) = waits.len().checked_sub(1) else {
        return Vec::new();
    };
    let at = |hundredths: usize| waits[last * hundredths / 100] as f64 / 1e3;
    let each = waits.len() as f64 / operations.max(1) as f64;
    vec![(FSYNCS, each), (FSYNC_P50, at(50)), (FSYNC_P99, at(99))]
}

/// Counters that tell how much there is now, not how often something happened.
const GAUGES: [&str; 5] = [
    "prealloc.blocks",
    "icache.inodes",
    "icache.buckets",
    "icache.longest_chain",
    "mballoc.groups_in_memory",
];

/// What was counted between two looks, by operation.
pub(crate) fn by_operation(
    before: &Counters,
    after: &Counters,
    operations: u64,
) -> Vec<(&'static str, f64)> {
    let counters = after.iter().filter(|(name, _)| !GAUGES.contains(name));
    let each = counters.map(|(name, now)| {
        let then = before.iter().find(|(known, _)| known == name);
        let count = now.saturating_sub(then.map_or(0, |(_, then)| *then));
        (*name, count as f64 / operations.max(1) as f64)
    });
    each.collect()
}
