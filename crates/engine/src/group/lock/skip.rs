//! The scalable form: a group whose lock another thread has is left alone, for blocks can be had elsewhere as well. The
//! last criterion of a search does not ask here, so that no volume seems full that is not.

use sync::{Mutex, MutexGuard};

use super::{Counts, Locking};

/// See the module.
pub(super) struct Skip;

impl Locking for Skip {
    fn lock<'a, T>(&self, of: &'a Mutex<T>, counts: &Counts) -> Option<MutexGuard<'a, T>> {
        let guard = of.try_lock();
        if guard.is_none() {
            counts.skips.add(1);
        }
        guard
    }
}
