//! Rounds, threads and the clock.
//!
//! In each round every contender runs once with every number of workers. The order of the contenders is drawn for each
//! round and number of workers, so that none always follows the same other one. Workers are prepared before the clock
//! starts, begin together, and stop after the batch during which the time ends, which is the same moment for all, or
//! when their work is done. A rate is the number of all operations divided by the time from the first worker's begin to
//! the last one's end, so workers that wait for a core count as waiting. If a workload must do something between
//! batches that is not timed, its workers go in step: all begin a batch together, and its time is from the first one's
//! begin to the last one's end.

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
    /// After this time; a sample's value is the operations per second of all workers together.
    Time(Duration),
    /// After this number of operations by each worker; a sample's value is the seconds until the last of them was done.
    Operations(u64),
}

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct MeasurePlan {
    /// The workload.
    pub workload: Workload,
    /// The numbers of workers, each of which is measured separately.
    pub workers: Vec<usize>,
    /// The rounds that count; one more before them does not.
    pub rounds: usize,
    /// When a sample ends.
    pub stop: Stop,
    /// The seed for random choices.
    pub seed: u64,
}

/// A file system in a comparison, or a form of a mechanism on a file system that other contenders use, too.
#[derive(Clone)]
pub struct Contender<'t> {
    /// Its column in the table.
    pub column: Column,
    target: Rc<dyn Measured + 't>,
    /// The forms that are chosen before each of its samples.
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

    /// A contender that has a file system for each worker, so that workers share nothing but the machine. It shows what
    /// the machine allows for that many workers, whatever a file system does. The workers are at most as many as the
    /// file systems.
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

    /// The same contender with other forms, as `name=value`.
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

    /// The forms that it chooses, as `name=value`.
    #[must_use]
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// Chooses a mechanism's form, `name=value`; returns false if the target has no forms.
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

/// A target without its types.
trait Measured {
    fn sample(&self, plan: &MeasurePlan, workers: usize) -> Result<Sample, Error>;
    fn select(&self, option: &str) -> bool;
}

/// Runs the plan; returns cells by number of workers and contender. Calls `progress` for every sample.
///
/// # Errors
/// The first error of any contender; files that the workers made by then remain.
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

/// Values of two contenders with one worker, in pairs; the contenders take turns in being first.
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

/// Does what [`pairs`] does, with a function that returns the value of the first or the second contender.
pub(crate) fn in_pairs(
    count: usize,
    mut value: impl FnMut(bool) -> Result<f64, Error>,
) -> Result<Vec<(f64, f64)>, Error> {
    let mut pairs = Vec::with_capacity(count);
    // The first pair does not count.
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

/// The result of a worker.
struct Done<'t> {
    job: Box<dyn WorkerJob + 't>,
    operations: u64,
    /// Processor time of its batches, in seconds.
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

/// The result of all workers.
struct Ran {
    seconds: f64,
    operations: u64,
    /// Their processor time together, in seconds.
    cpu: f64,
    /// The time of each fsync, in nanoseconds.
    waits: Vec<u64>,
    /// The counters before the work, and after all workers had ended.
    counters: (Counters, Counters),
}

/// Runs the workers' jobs, each on a thread of its own, and reads the counters before and after.
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
        // A worker that panicked has no result, and its panic is passed on.
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

/// The number of fsyncs per operation, and their times: the median, and the time that 99 of 100 are below.
fn waited(mut waits: Vec<u64>, operations: u64) -> Vec<(&'static str, f64)> {
    waits.sort_unstable();
    let Some(last) = waits.len().checked_sub(1) else {
        return Vec::new();
    };
    let at = |hundredths: usize| waits[last * hundredths / 100] as f64 / 1e3;
    let each = waits.len() as f64 / operations.max(1) as f64;
    vec![(FSYNCS, each), (FSYNC_P50, at(50)), (FSYNC_P99, at(99))]
}

/// Counters of a state, not of events.
const GAUGES: [&str; 5] = [
    "prealloc.blocks",
    "icache.inodes",
    "icache.buckets",
    "icache.longest_chain",
    "mballoc.groups_in_memory",
];

/// The counts between two readings, per operation.
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
