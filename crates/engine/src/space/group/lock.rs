//! How an allocation locks a group that another thread may be using: the interface of the two forms, and which of them
//! is used.
//!
//! In both forms, a thread that frees blocks, gives them back or looks at a group as the last resort waits for the
//! lock. It is never held across I/O, a checksum or an access to the caller's memory.

use sync::{Counter, Mutex, MutexGuard};

use crate::core::variants::{Chosen, GroupLock};

mod skip;
mod wait;

use skip::Skip;
use wait::Wait;

/// A way to take a group's lock while looking for blocks.
pub(super) trait Locking: Send + Sync {
    /// The lock, or nothing for "look elsewhere".
    fn lock<'a, T>(&self, of: &'a Mutex<T>, counts: &Counts) -> Option<MutexGuard<'a, T>>;
}

/// What became of it.
#[derive(Default)]
pub(super) struct Counts {
    /// Groups that were left alone because another had their lock.
    pub(super) skips: Counter,
    /// How often a lock that another had was waited for.
    pub(super) waits: Counter,
}

/// Both forms, and which is used.
pub(super) struct Locks {
    form: Chosen<GroupLock>,
    pub(super) counts: Counts,
}

impl Locks {
    pub(super) fn new(form: GroupLock) -> Locks {
        Locks {
            form: Chosen::new(form),
            counts: Counts::default(),
        }
    }

    /// From now on this form is used.
    pub(super) fn choose(&self, form: GroupLock) {
        self.form.set(form);
    }

    /// The lock, by the form that is used.
    pub(super) fn lock<'a, T>(&self, of: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        match self.form.get() {
            GroupLock::Try => Skip.lock(of, &self.counts),
            GroupLock::Wait => Wait.lock(of, &self.counts),
        }
    }

    /// The lock, whatever it takes.
    pub(super) fn wait<'a, T>(&self, of: &'a Mutex<T>) -> MutexGuard<'a, T> {
        wait::wait(of, &self.counts)
    }
}
