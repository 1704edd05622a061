//! Commits of a mount that sync(1) does not reach, when nothing has changed for a moment.
//!
//! # Why
//!
//! The kernel passes sync(1) on to a FUSE server only where the mount has a block device. Elsewhere what was changed
//! would be durable only after the commit interval, although nothing keeps the disk busy. So a thread of the mount
//! commits [`QUIET`] after the last change, at most once in [`INTERVAL`].
//!
//! # Locking
//!
//! A change costs its thread one load, unless it is the first since the committing thread looked. That thread sleeps
//! while nothing changes, and is woken by the first change after that; while changes come it looks every [`QUIET`]. The
//! flags live in [`Idle`], so no memory is reclaimed. Tested with threads:
//! `a_change_is_committed_when_nothing_follows_it_and_not_before`.

use sync::atomic::{AtomicBool, Ordering};
use sync::clock::{self, Duration, Instant};
use sync::{Condvar, Mutex, Rank};

/// How long nothing must have changed.
const QUIET: Duration = Duration::from_millis(100);
/// From one commit to the next at least.
const INTERVAL: Duration = Duration::from_secs(1);

/// What changed, for the thread that commits.
pub(crate) struct Idle {
    /// Something changed since the committing thread cleared this. [atomic: SeqCst]
    is_changed: AtomicBool,
    /// The committing thread waits for a change. [atomic: SeqCst]
    is_asleep: AtomicBool,
    /// The mount has ended. [leaf]
    has_ended: Mutex<bool>,
    /// Notified of a change and of the end, under `has_ended`.
    event: Condvar,
}

impl Idle {
    pub(crate) fn new() -> Idle {
        Idle {
            is_changed: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            has_ended: Mutex::new(Rank::Leaf, false),
            event: Condvar::new(),
        }
    }

    /// Notes a change that has just been made.
    pub(crate) fn changed(&self) {
        // SeqCst: pairs with the store in `is_quiet`. If the load comes first, the change is in the commit that follows
        // that store by at least `QUIET`; if the store does, this thread sets the flag again.
        if self.is_changed.load(Ordering::SeqCst) {
            return;
        }
        // SeqCst: pairs with the loads in `sleep`. If this store comes first, the committing thread does not fall
        // asleep; if `is_asleep` is set first, this thread sees it and wakes that one.
        self.is_changed.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the store of `is_asleep` in `sleep`.
        if self.is_asleep.load(Ordering::SeqCst) {
            // Under the lock, so that the thread is either before its last look or waits already.
            let _ended = self.has_ended.lock();
            self.event.notify_all();
        }
    }

    /// Ends the committing thread at its next step.
    pub(crate) fn end(&self) {
        *self.has_ended.lock() = true;
        self.event.notify_all();
    }

    /// What the committing thread does until the end.
    pub(crate) fn commit_when_quiet(&self, mut commit: impl FnMut()) {
        let mut last: Option<Instant> = None;
        while self.sleep() {
            let next = last.map_or(Duration::ZERO, |last| {
                INTERVAL.saturating_sub(last.elapsed())
            });
            match self.is_quiet(next.max(QUIET)) {
                Some(true) => {
                    commit();
                    last = Some(clock::now());
                }
                // The flag is set, so the next round begins at once.
                Some(false) => {}
                None => return,
            }
        }
    }

    /// Waits for a change; false at the end.
    fn sleep(&self) -> bool {
        let mut ended = self.has_ended.lock();
        // SeqCst: pairs with the load of `is_asleep` in `changed`.
        self.is_asleep.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the store of `is_changed` in `changed`.
        while !*ended && !self.is_changed.load(Ordering::SeqCst) {
            self.event.wait(&mut ended);
        }
        // SeqCst: pairs with the load in `changed`; a wake-up too many does no harm.
        self.is_asleep.store(false, Ordering::SeqCst);
        !*ended
    }

    /// Whether nothing changes for this long; `None` at the end.
    fn is_quiet(&self, time: Duration) -> Option<bool> {
        // SeqCst: pairs with the load in `changed`.
        self.is_changed.store(false, Ordering::SeqCst);
        let mut ended = self.has_ended.lock();
        let deadline = clock::now() + time;
        while !*ended {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                // SeqCst: pairs with the stores in `changed`. A change from now on counts for the next round.
                return Some(!self.is_changed.load(Ordering::SeqCst));
            }
            let _is_late = self.event.wait_for(&mut ended, left);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use sync::atomic::AtomicU32;
    use sync::{Arc, thread};

    use super::*;

    #[test]
    fn a_change_is_committed_when_nothing_follows_it_and_not_before() {
        let idle = Arc::new(Idle::new());
        let commits = Arc::new(AtomicU32::new(0));
        let committer = thread::spawn({
            let (idle, commits) = (Arc::clone(&idle), Arc::clone(&commits));
            move || {
                idle.commit_when_quiet(|| {
                    // Relaxed: a count that is compared after sleeping or joining.
                    commits.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        // Relaxed: compared after sleeping or joining.
        let count = || commits.load(Ordering::Relaxed);
        thread::sleep(QUIET * 3);
        assert_eq!(count(), 0);
        let begin = clock::now();
        while begin.elapsed() < QUIET * 4 {
            idle.changed();
            thread::sleep(Duration::from_millis(2));
        }
        let busy = count();
        let begin = clock::now();
        while count() == busy {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(2));
        }
        // With nothing changed, nothing is committed.
        let quiet = count();
        thread::sleep(INTERVAL + QUIET * 2);
        assert_eq!(count(), quiet);
        // Soon after a commit the next one waits.
        idle.changed();
        thread::sleep(QUIET * 4);
        idle.changed();
        idle.end();
        committer.join().unwrap();
        assert!(count() <= quiet + 1);
    }
}
