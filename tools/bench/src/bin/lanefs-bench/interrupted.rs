//! Interrupting a run: what it made in the directories that it measures goes, and then the signal does what it would
//! have done.

use std::path::PathBuf;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use sync::atomic::{AtomicBool, Ordering};
use sync::{Arc, thread};

use crate::failure::RunFailure;

/// Attempts to remove a directory: workers may still make files in it until they see that it is gone.
const TRIES: u32 = 40;
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Knows whether the run was interrupted.
pub struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    /// From here on a signal ends the process when what it made in these directories is removed, and the image that it
    /// makes.
    pub fn watch(
        mut directories: Vec<PathBuf>,
        image: Option<PathBuf>,
    ) -> Result<Interrupted, RunFailure> {
        directories.push(lanefs_bench::scratch());
        // One that is there already is not the run's.
        let image = image.filter(|path| !path.exists());
        let said = |error| RunFailure::new(format!("signals can't be caught: {error}"));
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(said)?;
        let flag = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&flag);
        thread::spawn(move || {
            let Some(signal) = signals.forever().next() else {
                return;
            };
            // Relaxed: nothing but the flag itself is passed on.
            seen.store(true, Ordering::Relaxed);
            for _ in 0..TRIES {
                if lanefs_bench::clear_leavings(&directories) {
                    break;
                }
                thread::sleep(PAUSE);
            }
            // It may not be there yet.
            let _ = image.map(std::fs::remove_file);
            // Does not return: each of them ends a process.
            let _ = emulate_default_handler(signal);
        });
        Ok(Interrupted(flag))
    }

    /// Does not return once the run was interrupted: the thread that removes the run's files ends the process.
    pub fn stay_if_so(&self) {
        // Relaxed: a flag; no data is published with it.
        while self.0.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
        }
    }
}
