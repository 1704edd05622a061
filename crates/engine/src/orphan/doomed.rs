//! Inodes without names that nobody holds any more: the queue of those who delete them.
//!
//! Whoever lets go of such an inode last puts its number here ([`Doomed::push`]), if threads serve the queue and it has
//! room; else it deletes the inode itself, when it has dropped its locks. Who takes a number from here holds nothing.
//! [`Doomed::wait_idle`] tells when all that was doomed is gone. One lock ([`Rank::Leaf`]) around a few words. What a
//! crash leaves: nothing of this; each such inode is among the orphans.

use std::collections::VecDeque;

use ondisk::Ino;
use sync::{Condvar, Mutex, Rank};

/// Numbers that wait at most.
const MOST: usize = 1024;

/// The queue; see the module.
pub(crate) struct Doomed {
    /// [leaf]
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Ino>,
    /// Inodes that are being deleted now.
    under_way: usize,
    /// Threads serve the queue.
    is_served: bool,
}

/// The deletion of an inode, while it is under way.
pub(crate) struct UnderWay<'a> {
    doomed: &'a Doomed,
    ino: Ino,
}

impl UnderWay<'_> {
    /// Which inode.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.doomed.state.lock().under_way -= 1;
        self.doomed.changed.notify_all();
    }
}

impl Doomed {
    /// An empty queue that nobody serves.
    pub(crate) fn new() -> Doomed {
        Doomed {
            state: Mutex::new(Rank::Leaf, State::default()),
            changed: Condvar::new(),
        }
    }

    /// Leaves an inode to those who serve the queue; `false` if the caller must delete it itself.
    pub(crate) fn push(&self, ino: Ino) -> bool {
        let mut state = self.state.lock();
        if !state.is_served || state.waiting.len() >= MOST {
            return false;
        }
        state.waiting.push_back(ino);
        self.changed.notify_all();
        true
    }

    /// The caller deletes an inode itself.
    pub(crate) fn begin(&self, ino: Ino) -> UnderWay<'_> {
        self.state.lock().under_way += 1;
        UnderWay { doomed: self, ino }
    }

    /// Takes an inode that waits.
    pub(crate) fn take(&self) -> Option<UnderWay<'_>> {
        let mut state = self.state.lock();
        let ino = state.waiting.pop_front()?;
        state.under_way += 1;
        Some(UnderWay { doomed: self, ino })
    }

    /// Waits for an inode to delete; `None` when the queue is no longer served.
    pub(crate) fn next(&self) -> Option<UnderWay<'_>> {
        let mut state = self.state.lock();
        while state.is_served {
            if let Some(ino) = state.waiting.pop_front() {
                state.under_way += 1;
                return Some(UnderWay { doomed: self, ino });
            }
            self.changed.wait(&mut state);
        }
        None
    }

    /// Says whether threads serve the queue from now on.
    pub(crate) fn serve(&self, is_served: bool) {
        self.state.lock().is_served = is_served;
        self.changed.notify_all();
    }

    /// Whether the queue is full, so that who dooms more should help first.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().waiting.len() >= MOST
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && state.under_way == 0
    }

    /// Waits until nothing is under way. The caller holds nothing and deletes nothing.
    pub(crate) fn wait_idle(&self) {
        let mut state = self.state.lock();
        while state.under_way > 0 {
            self.changed.wait(&mut state);
        }
    }
}
