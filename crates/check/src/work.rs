//! Work units that idle threads take from one counter, in disk order.

use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::clock::{self, Instant};
use sync::{Guarded, Statistic};

/// A pass.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Inodes, their maps and attributes.
    Inodes,
    /// Directories.
    Directories,
    /// Connectivity.
    Connectivity,
    /// Link counts.
    Links,
    /// Bitmaps and counts.
    Counts,
}

impl Stage {
    /// All passes in their order.
    pub const ALL: [Stage; 5] = [
        Stage::Inodes,
        Stage::Directories,
        Stage::Connectivity,
        Stage::Links,
        Stage::Counts,
    ];

    /// The pass's name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stage::Inodes => "inodes",
            Stage::Directories => "directories",
            Stage::Connectivity => "connectivity",
            Stage::Links => "link counts",
            Stage::Counts => "bitmaps and counts",
        }
    }
}

/// How far a pass is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassProgress {
    /// The pass.
    pub stage: Stage,
    /// Units that are done.
    pub done: u64,
    /// All units of the pass; their size differs from pass to pass.
    pub total: u64,
}

/// What one thread did between two moments.
#[derive(Clone, Copy, Debug)]
pub struct PassSpan {
    /// The pass.
    pub stage: Stage,
    /// The thread's number, from 0.
    pub thread: usize,
    /// When it began to take units.
    pub begin: Instant,
    /// When no unit was left for it.
    pub end: Instant,
}

/// The threads of a check, and the functions that hear of their work.
pub struct Crew<'a> {
    pub threads: usize,
    pub cancelled: &'a AtomicBool,
    pub progress: &'a (dyn Fn(PassProgress) + Sync),
    pub trace: Option<&'a (dyn Fn(PassSpan) + Sync)>,
    /// The number of the pass in [`Stage::ALL`]. [written between passes]
    pub stage: Guarded<u8>,
    /// Units of the pass that are done.
    pub done: Statistic,
    /// Units of the pass. [written between passes]
    pub total: Guarded<u64>,
}

impl Crew<'_> {
    fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.get())]
    }

    /// Begins a pass of this many units.
    pub fn begin(&self, stage: Stage, total: u64) {
        // No thread of a pass runs.
        self.stage.set(stage as u8);
        self.done.set(0);
        self.total.set(total);
        (self.progress)(PassProgress {
            stage,
            done: 0,
            total,
        });
    }

    /// Counts units of the pass that are done.
    pub fn add(&self, units: u64) {
        let done = self.done.add(units) + units;
        let total = self.total.get();
        let stage = self.stage();
        (self.progress)(PassProgress { stage, done, total });
    }

    /// Whether the caller wants the check to end.
    pub fn is_cancelled(&self) -> bool {
        // Relaxed: a late look at the flag only costs a little more work.
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Runs `work` for every number below `units` on all threads. A thread that has finished a unit takes the next one
    /// that no other has taken. Ends early, between two units, once the check is cancelled.
    pub fn share_out(&self, units: usize, work: impl Fn(usize) + Sync) {
        self.share_out_with(units, || (), |(), unit| work(unit));
    }

    /// Like [`Crew::share_out`], with a value that each thread makes once and keeps for all its units, such as a
    /// buffer.
    pub fn share_out_with<T>(
        &self,
        units: usize,
        begin: impl Fn() -> T + Sync,
        work: impl Fn(&mut T, usize) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        sync::thread::workers(self.threads.clamp(1, units.max(1)), |thread| {
            let started = clock::now();
            let mut value = begin();
            loop {
                // Relaxed: only hands out numbers; what units write is published when the threads are joined.
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= units || self.is_cancelled() {
                    break;
                }
                work(&mut value, unit);
            }
            if let Some(trace) = self.trace {
                trace(PassSpan {
                    stage: self.stage(),
                    thread,
                    begin: started,
                    end: clock::now(),
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_unit_is_done_once_on_any_number_of_threads() {
        for threads in [0, 1, 3, 9] {
            let sum = AtomicU64::new(0);
            let cancelled = AtomicBool::new(false);
            let crew = Crew {
                threads,
                cancelled: &cancelled,
                progress: &|_| {},
                trace: None,
                stage: Guarded::new(0),
                done: Statistic::new(0),
                total: Guarded::new(0),
            };
            crew.share_out(100, |unit| {
                sum.fetch_add(1 << (unit % 50), Ordering::Relaxed);
            });
            // Relaxed: the threads are joined.
            assert_eq!(sum.load(Ordering::Relaxed), 2 * ((1 << 50) - 1));
        }
    }
}
