//! The scalable form: a search skips a group whose lock another thread has, because other groups have free blocks too.
//! The last criterion of a search does not use this, so that a volume never seems full that is not.

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
