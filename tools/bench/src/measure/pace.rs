//! How workers begin, go on and end: each for itself, or in step.
//!
//! No lock: a meeting is two words. A waiting worker spins if each worker has a core of its own, so that all begin
//! within a fraction of a microsecond; otherwise it yields. A worker that panics breaks the meeting, so that no worker
//! waits for it.

use lanefs::Error;
use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::clock::{self, Instant};
use sync::thread;
use sync::{Guarded, Hint};

use super::{Done, Stop};
use crate::machine::thread_time;
use crate::workload::WorkerJob;

/// Where a number of workers wait for each other, again and again.
struct Meeting {
    workers: usize,
    /// Each has a core of its own.
    has_cores: bool,
    /// Workers that have arrived. [atomic: incremented by each worker that arrives, reset to 0 by the last]
    here: AtomicUsize,
    /// Meetings that were complete. [atomic: incremented by the last worker that arrives]
    held: AtomicU64,
    /// A worker panicked, and will not arrive.
    is_broken: Hint<bool>,
}

impl Meeting {
    /// Waits for all workers; true for the last one that arrives.
    fn wait(&self) -> bool {
        // Acquire: pairs with the Release below, so that the number is that of this meeting.
        let held = self.held.load(Ordering::Acquire);
        // AcqRel: pairs with itself; the last worker that arrives sees what all did before.
        if self.here.fetch_add(1, Ordering::AcqRel) + 1 == self.workers {
            // Relaxed: seen with the store that follows.
            self.here.store(0, Ordering::Relaxed);
            // Release: pairs with the Acquire of the waiting workers.
            self.held.store(held + 1, Ordering::Release);
            return true;
        }
        // Acquire: pairs with the Release above.
        while self.held.load(Ordering::Acquire) == held && !self.is_broken.get() {
            if self.has_cores {
                thread::spin()
            } else {
                thread::yield_now()
            }
        }
        false
    }
}

/// Breaks the meeting when its thread panics.
struct Attending<'p>(&'p Meeting);

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.is_broken.set(true);
        }
    }
}

/// The workers' common clock and their meetings.
pub(super) struct Pace {
    meeting: Meeting,
    stop: Stop,
    /// What times are counted from.
    origin: Instant,
    /// The first begin and the last end, of the batches that all do now or of the whole run, in nanoseconds. [read once
    /// the workers have met or are gone; in all that follow]
    first: Guarded<u64>,
    last: Guarded<u64>,
    /// Of the batches before.
    spent: Guarded<u64>,
    /// When the first batch began.
    begun: Guarded<u64>,
    /// Workers that have not done their operations yet.
    busy: Guarded<usize>,
    has_failed: Guarded<bool>,
    is_over: Guarded<bool>,
}

impl Pace {
    pub(super) fn new(workers: usize, stop: Stop) -> Pace {
        Pace {
            meeting: Meeting {
                workers,
                has_cores: workers <= thread::available_parallelism(),
                here: AtomicUsize::new(0),
                held: AtomicU64::new(0),
                is_broken: Hint::new(false),
            },
            stop,
            origin: clock::now(),
            first: Guarded::new(u64::MAX),
            last: Guarded::new(0),
            spent: Guarded::new(0),
            begun: Guarded::new(u64::MAX),
            busy: Guarded::new(workers),
            has_failed: Guarded::new(false),
            is_over: Guarded::new(false),
        }
    }

    fn now(&self) -> u64 {
        // Five centuries fit.
        (clock::now() - self.origin).as_nanos() as u64
    }

    fn begin(&self) {
        let now = self.now();
        for least in [&self.first, &self.begun] {
            // Where it is not the least, nothing is written.
            let _ = least.update(|least| (now < least).then_some(now));
        }
    }

    fn end(&self) {
        let now = self.now();
        let _ = self.last.update(|last| (last < now).then_some(now));
    }

    /// Whether a worker that did `operations` operations has done enough.
    fn is_enough(&self, operations: u64) -> bool {
        match self.stop {
            Stop::Time(time) => {
                // The worker's own begin came before.
                let begun = self.begun.get();
                u128::from(self.now() - begun) >= time.as_nanos()
            }
            Stop::Operations(wanted) => operations >= wanted,
        }
    }

    /// All have ended a batch: its time counts, and whether another follows is decided, by one of them.
    fn count(&self) {
        // No worker changes them before the next meeting, which this worker comes to afterwards.
        let first = self.first.swap(u64::MAX);
        let last = self.last.swap(0);
        self.spent.add(last.saturating_sub(first));
        let is_over = match self.stop {
            Stop::Time(_) => self.is_enough(0),
            Stop::Operations(_) => self.busy.get() == 0,
        };
        let has_failed = self.has_failed.get();
        self.is_over.set(is_over || has_failed);
    }

    /// What counts, once all workers are gone.
    pub(super) fn seconds(&self) -> f64 {
        let first = self.first.get();
        let last = self.last.get();
        let nanos = self.spent.get() + last.saturating_sub(first);
        nanos as f64 / 1e9
    }
}

/// Batches until the worker has done enough, whatever the others do.
pub(super) fn freely<'t>(mut job: Box<dyn WorkerJob + 't>, pace: &Pace) -> Result<Done<'t>, Error> {
    let _attending = Attending(&pace.meeting);
    pace.meeting.wait();
    pace.begin();
    let (mut operations, cpu) = (0, thread_time());
    loop {
        operations += job.batch()?;
        if pace.is_enough(operations) {
            break;
        }
        job.between()?;
    }
    pace.end();
    let cpu = thread_time() - cpu;
    Ok(Done {
        job,
        operations,
        cpu,
    })
}

/// Batches that all workers begin together, and what must be done between them, until all have done enough.
pub(super) fn in_step<'t>(
    mut job: Box<dyn WorkerJob + 't>,
    pace: &Pace,
) -> Result<Done<'t>, Error> {
    let _attending = Attending(&pace.meeting);
    let (mut operations, mut cpu, mut is_done) = (0, 0.0, false);
    let mut result = Ok(());
    loop {
        pace.meeting.wait();
        // Decided before this meeting, or set for good.
        let is_broken = pace.meeting.is_broken.get();
        if pace.is_over.get() || is_broken {
            break;
        }
        let was_done = is_done;
        if !was_done {
            let from = thread_time();
            pace.begin();
            let batch = job.batch();
            pace.end();
            cpu += thread_time() - from;
            result = batch.map(|count| operations += count);
            let is_enough = matches!(pace.stop, Stop::Operations(most) if operations >= most);
            is_done = result.is_err() || is_enough;
        }
        if result.is_err() {
            pace.has_failed.set(true);
        }
        if is_done && !was_done {
            pace.busy.sub(1);
        }
        if pace.meeting.wait() {
            pace.count();
        }
        // A worker that failed or has done enough keeps meeting the others until all end.
        if !is_done {
            result = job.between();
            is_done = result.is_err();
        }
    }
    result.map(|()| Done {
        job,
        operations,
        cpu,
    })
}
