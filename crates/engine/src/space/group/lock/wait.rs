//! The plain form: a thread that wants a group's lock waits for it.

use sync::{Mutex, MutexGuard};

use super::{Counts, Locking};

/// See the module.
pub(super) struct Wait;

impl Locking for Wait {
    fn lock<'a, T>(&self, of: &'a Mutex<T>, counts: &Counts) -> Option<MutexGuard<'a, T>> {
        Some(wait(of, counts))
    }
}

/// Waits for a lock, and counts that if another thread has it.
pub(super) fn wait<'a, T>(of: &'a Mutex<T>, counts: &Counts) -> MutexGuard<'a, T> {
    of.try_lock().unwrap_or_else(|| {
        counts.waits.add(1);
        of.lock()
    })
}
