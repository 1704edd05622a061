//! What the threads of one build share: when to stop, why, and how far they are.

use sync::atomic::{AtomicBool, Ordering};
use sync::{Hint, Mutex, Rank};

use crate::error::BuildError;
use crate::progress::{Phase, Progress};

/// The state of one build. Threads ask [`Job::check`] between pieces of work.
pub(crate) struct Job<'a> {
    /// Set by the caller, from a signal handler perhaps. [atomic: Relaxed]
    cancel: &'a AtomicBool,
    /// Set with the first error.
    failed: Hint<bool>,
    error: Mutex<Option<BuildError>>,
    progress: &'a dyn Progress,
    threads: usize,
}

impl<'a> Job<'a> {
    pub(crate) fn new(
        cancel: &'a AtomicBool,
        progress: &'a dyn Progress,
        threads: usize,
    ) -> Job<'a> {
        Job {
            cancel,
            failed: Hint::new(false),
            error: Mutex::new(Rank::Job, None),
            progress,
            threads: threads.max(1),
        }
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// [`BuildError::Interrupted`] when the caller wants to stop or another thread failed.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        // Relaxed: a flag that only ends loops; nothing is read because of it.
        let stop = self.cancel.load(Ordering::Relaxed) || self.failed.get();
        if stop {
            Err(BuildError::Interrupted)
        } else {
            Ok(())
        }
    }

    /// The caller's wish to stop.
    pub(crate) fn cancel(&self) -> &'a AtomicBool {
        self.cancel
    }

    /// Runs `work` on all threads and gives back the first error.
    ///
    /// # Errors
    /// What the first thread that failed says.
    pub(crate) fn run(
        &self,
        work: impl Fn(usize) -> Result<(), BuildError> + Sync,
    ) -> Result<(), BuildError> {
        sync::thread::workers(self.threads, |number| {
            if let Err(error) = work(number) {
                let mut first = self.error.lock();
                // A worker that was only stopped by another's failure has no error of its own to report.
                if first.is_none() || matches!(*first, Some(BuildError::Interrupted)) {
                    *first = Some(error);
                }
                self.failed.set(true);
            }
        });
        match self.error.lock().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// A phase begins.
    pub(crate) fn phase(&self, phase: Phase) {
        self.progress.phase(phase);
    }

    /// Bytes of the phase are done.
    pub(crate) fn advance(&self, bytes: u64) {
        self.progress.advance(bytes);
    }
}
