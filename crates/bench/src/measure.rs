//! Rounds, threads and the clock.
//!
//! In each round every contender runs every number of threads once, one after the other. Workers are made ready before
//! the clock runs, begin together, and stop after the batch in which their time is over; each one's rate is its
//! operations by its own time, and a sample is the sum of the rates.

use std::time::Duration;

use lanefs::Error;
use rustix::time::{ClockId, clock_gettime};
use sync::{Barrier, clock, thread};

use crate::target::Target;
use crate::workload::{Worker, Workload};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workload.
    pub workload: Workload,
    /// Numbers of workers, each measured by itself.
    pub threads: Vec<usize>,
    /// Rounds that count; one more comes before and does not.
    pub rounds: usize,
    /// How long a sample takes.
    pub time: Duration,
}

/// A file system in a comparison.
pub struct Contender<'t> {
    /// Its name in tables.
    pub label: String,
    target: Box<dyn Measured + 't>,
}

impl std::fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Contender").field(&self.label).finish()
    }
}

impl<'t> Contender<'t> {
    /// Names a target.
    pub fn new(label: impl Into<String>, target: impl Target + 't) -> Contender<'t> {
        Contender {
            label: label.into(),
            target: Box::new(target),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Operations a second, of all workers together.
    pub rate: f64,
    /// Processor time of this process, kernel included, by operation, in microseconds. What a kernel's own threads do
    /// (a loop device's, a journal's) and a FUSE server in another process are not in it.
    pub cpu_micros: f64,
}

/// A contender's samples with one number of workers.
#[derive(Clone, Debug)]
pub struct Row {
    /// The contender.
    pub label: String,
    /// Workers.
    pub threads: usize,
    /// One for each round.
    pub samples: Vec<Sample>,
}

impl Row {
    /// The median rate, and the least and the greatest.
    #[must_use]
    pub fn rates(&self) -> (f64, f64, f64) {
        spread(self.samples.iter().map(|sample| sample.rate))
    }

    /// The median processor time of an operation, in microseconds.
    #[must_use]
    pub fn cpu_micros(&self) -> f64 {
        spread(self.samples.iter().map(|sample| sample.cpu_micros)).0
    }
}

/// Median, least and greatest; zeros of nothing.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match (values.first(), values.last()) {
        (Some(least), Some(greatest)) => (values[values.len() / 2], *least, *greatest),
        _ => (0.0, 0.0, 0.0),
    }
}

/// A target whose types are forgotten.
trait Measured {
    fn sample(&self, workload: Workload, threads: usize, time: Duration) -> Result<Sample, Error>;
}

/// Runs the plan. `progress` hears of every sample, the round before those that count as round 0.
///
/// # Errors
/// The first error of any contender; what the workers made by then stays.
pub fn run(
    plan: &Plan,
    contenders: &[Contender<'_>],
    mut progress: impl FnMut(usize, &str, usize, &Sample),
) -> Result<Vec<Row>, Error> {
    let mut rows: Vec<Row> = Vec::new();
    for contender in contenders {
        rows.extend(plan.threads.iter().map(|threads| Row {
            label: contender.label.clone(),
            threads: *threads,
            samples: Vec::new(),
        }));
    }
    for round in 0..=plan.rounds {
        let each = contenders.iter().flat_map(|contender| {
            plan.threads
                .iter()
                .map(move |threads| (contender, *threads))
        });
        for ((contender, threads), row) in each.zip(&mut rows) {
            let sample = contender.target.sample(plan.workload, threads, plan.time)?;
            progress(round, &contender.label, threads, &sample);
            if round > 0 {
                row.samples.push(sample);
            }
        }
    }
    Ok(rows)
}

fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl<T: Target> Measured for T {
    fn sample(&self, workload: Workload, threads: usize, time: Duration) -> Result<Sample, Error> {
        let workers: Result<Vec<_>, Error> = (0..threads)
            .map(|number| Worker::new(self, workload, number))
            .collect();
        let workers = workers?;
        self.settle()?;
        let start = Barrier::new(threads);
        let before = cpu_time();
        let results: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = workers
                .into_iter()
                .map(|worker| scope.spawn(|| work(worker, &start, time)))
                .collect();
            // Gone only if a worker panicked, which is passed on.
            let join = |handle: thread::ScopedJoinHandle<'_, _>| match handle.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            running.into_iter().map(join).collect()
        });
        let cpu = cpu_time() - before;
        let (mut rate, mut operations) = (0.0, 0);
        for result in results {
            let (worker, done, seconds) = result?;
            rate += done as f64 / seconds;
            operations += done;
            worker.finish()?;
        }
        self.settle()?;
        Ok(Sample {
            rate,
            cpu_micros: cpu * 1e6 / operations.max(1) as f64,
        })
    }
}

/// Batches until the time is over: the worker, its operations and its seconds.
fn work<'t, T: Target>(
    mut worker: Worker<'t, T>,
    start: &Barrier,
    time: Duration,
) -> Result<(Worker<'t, T>, u64, f64), Error> {
    start.wait();
    let begin = clock::now();
    let mut operations = 0;
    loop {
        operations += worker.batch()?;
        let passed = begin.elapsed();
        if passed >= time {
            return Ok((worker, operations, passed.as_secs_f64()));
        }
    }
}
