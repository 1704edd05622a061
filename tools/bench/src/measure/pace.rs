//! How workers begin, go on and end: each for itself, or in step.
//!
//! No lock: a meeting is two words. Who waits spins where there is a core for each worker, so that all begin within a
//! fraction of a microsecond; else it lets others run. A worker that panics breaks the meeting, so that nobody waits
//! for it.

use lanefs::Error;
use sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sync::clock::{self, Instant};
use sync::thread;

use super::{Done, Stop};
use crate::machine::thread_time;
use crate::workload::WorkerJob;

/// Where a number of workers wait for each other, again and again.
struct Meeting {
    workers: usize,
    /// Each has a core of its own.
    has_cores: bool,
    /// [atomic: changed by who comes; back to 0 by the last]
    here: AtomicUsize,
    /// Meetings that were complete. [atomic: changed by the last who comes]
    held: AtomicU64,
    /// One of them will not come. [atomic: Relaxed, set only]
    is_broken: AtomicBool,
}

impl Meeting {
    /// Waits for all; true for the last who came.
    fn wait(&self) -> bool {
        // Acquire: pairs with the Release below, so that the number is that of this meeting.
        let held = self.held.load(Ordering::Acquire);
        // AcqRel: pairs with itself; the last who comes sees what all did before.
        if self.here.fetch_add(1, Ordering::AcqRel) + 1 == self.workers {
            // Relaxed: seen with the store that follows.
            self.here.store(0, Ordering::Relaxed);
            // Release: pairs with the Acquire of those who wait.
            self.held.store(held + 1, Ordering::Release);
            return true;
        }
        // Acquire: pairs with the Release above. Relaxed: a flag without data behind it.
        while self.held.load(Ordering::Acquire) == held && !self.is_broken.load(Ordering::Relaxed) {
            match self.has_cores {
                true => thread::spin(),
                false => thread::yield_now(),
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
            // Relaxed: as in `wait`.
            self.0.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

/// The workers' common clock and their meetings.
pub(super) struct Pace {
    meeting: Meeting,
    stop: Stop,
    /// What times are counted from.
    origin: Instant,
    /// The first begin and the last end, of the batches that all do now or of the whole run, in nanoseconds. [atomic:
    /// Relaxed, read once the workers have met or are gone; in all that follow]
    first: AtomicU64,
    last: AtomicU64,
    /// Of the batches before.
    spent: AtomicU64,
    /// When the first batch began.
    begun: AtomicU64,
    /// Workers that have not done their operations yet.
    busy: AtomicUsize,
    has_failed: AtomicBool,
    is_over: AtomicBool,
}

impl Pace {
    pub(super) fn new(workers: usize, stop: Stop) -> Pace {
        Pace {
            meeting: Meeting {
                workers,
                has_cores: workers <= thread::available_parallelism(),
                here: AtomicUsize::new(0),
                held: AtomicU64::new(0),
                is_broken: AtomicBool::new(false),
            },
            stop,
            origin: clock::now(),
            first: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            begun: AtomicU64::new(u64::MAX),
            busy: AtomicUsize::new(workers),
            has_failed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        // Five centuries fit.
        (clock::now() - self.origin).as_nanos() as u64
    }

    fn begin(&self) {
        let now = self.now();
        // Relaxed: as the fields say.
        self.first.fetch_min(now, Ordering::Relaxed);
        // Relaxed: as above.
        self.begun.fetch_min(now, Ordering::Relaxed);
    }

    fn end(&self) {
        // Relaxed: as above.
        self.last.fetch_max(self.now(), Ordering::Relaxed);
    }

    /// Whether who did so many operations has done enough.
    fn is_enough(&self, operations: u64) -> bool {
        match self.stop {
            Stop::Time(time) => {
                // Relaxed: the worker's own begin came before.
                let begun = self.begun.load(Ordering::Relaxed);
                u128::from(self.now() - begun) >= time.as_nanos()
            }
            Stop::Operations(wanted) => operations >= wanted,
        }
    }

    /// All have ended a batch: its time counts, and whether another follows is decided, by one of them.
    fn count(&self) {
        // Relaxed: nobody changes them before the next meeting, which this worker comes to afterwards.
        let first = self.first.swap(u64::MAX, Ordering::Relaxed);
        // Relaxed: as above.
        let last = self.last.swap(0, Ordering::Relaxed);
        // Relaxed: as above.
        self.spent
            .fetch_add(last.saturating_sub(first), Ordering::Relaxed);
        let is_over = match self.stop {
            Stop::Time(_) => self.is_enough(0),
            // Relaxed: as above.
            Stop::Operations(_) => self.busy.load(Ordering::Relaxed) == 0,
        };
        // Relaxed: as above.
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        // Relaxed: as above.
        self.is_over.store(is_over || has_failed, Ordering::Relaxed);
    }

    /// What counts, once all workers are gone.
    pub(super) fn seconds(&self) -> f64 {
        // Relaxed: their threads were joined.
        let first = self.first.load(Ordering::Relaxed);
        // Relaxed: as above.
        let last = self.last.load(Ordering::Relaxed);
        // Relaxed: as above.
        let nanos = self.spent.load(Ordering::Relaxed) + last.saturating_sub(first);
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
        // Relaxed: decided before this meeting, or set for good.
        let is_broken = pace.meeting.is_broken.load(Ordering::Relaxed);
        // Relaxed: as above.
        if pace.is_over.load(Ordering::Relaxed) || is_broken {
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
        // Relaxed: read after the meeting below.
        pace.has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
        if is_done && !was_done {
            // Relaxed: as above.
            pace.busy.fetch_sub(1, Ordering::Relaxed);
        }
        if pace.meeting.wait() {
            pace.count();
        }
        // Who fails or has done enough goes on meeting the others, until all end.
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
