//! The gate that every change of the file system passes: while it is closed none is under way, metadata or data.
//!
//! Each thread counts its changes in a word of its own. The closer sets `is_closed`, fences, and waits until all words
//! are 0. An exchange on the one side and a fence on the other are enough, as in the journal's epochs: either the
//! closer sees the count, or the change sees that the gate is closed, takes its count back and waits ([`Rank::Freeze`],
//! the outermost lock of the file system: no other lock is held there). A thread within a change may begin another one.
//!
//! Freezing and thawing take time, and happen one after the other: a thread that comes while another closes or opens
//! the gate waits until that is over ([`State::Turning`]). So does a thread that takes the last free space, and must be
//! sure that no other thread is in a change ([`Gate::enter_alone`]). A retired gate stays closed for good: a change
//! that would begin is refused instead of waiting.
//!
//! Interleavings: `nothing_is_under_way_while_the_gate_is_closed` below with threads, and `tests/writing/freezing.rs`
//! under schedules. A count is a word of a lane, and is freed with the gate.

use std::marker::PhantomData;

use sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use sync::clock::Duration;
use sync::{CachePadded, Condvar, Lanes, Mutex, Rank};

/// How long the closer sleeps between two looks.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// What becomes of the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    /// Someone closes or opens it, and does what belongs to that.
    Turning,
    Closed,
    /// Closed for good.
    Retired,
}

/// The gate.
pub(crate) struct Gate {
    /// [freeze; read: any time]
    is_closed: CachePadded<AtomicBool>,
    /// For each thread, how many changes it is in. [atomic: written by that thread]
    changes: Lanes<AtomicU64>,
    /// [freeze]
    state: Mutex<State>,
    turned: Condvar,
}

/// A change that is under way on this thread, until dropped.
#[must_use = "the change is over when this is dropped"]
pub(crate) struct Entered<'a> {
    count: &'a AtomicU64,
    /// The count is the thread's own.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Relaxed: only this thread writes its count.
        let count = self.count.load(Ordering::Relaxed);
        // Release: what the change did comes before; pairs with the Acquire in `Gate::close`.
        self.count.store(count.saturating_sub(1), Ordering::Release);
    }
}

/// A change that is under way while no other is, until dropped.
#[must_use = "others go on when this is dropped"]
pub(crate) struct Alone<'a> {
    gate: &'a Gate,
    /// Nothing once it is over.
    change: Option<Entered<'a>>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // First: the thread that opens the gate must not be in a change.
        self.change = None;
        self.gate.open();
    }
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            is_closed: CachePadded::new(AtomicBool::new(false)),
            changes: Lanes::new(),
            state: Mutex::new(Rank::Freeze, State::Open),
            turned: Condvar::new(),
        }
    }

    /// Begins a change; waits while the gate is closed. `None` if it is retired. The thread holds no locks, unless it
    /// is within a change.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        let count = self.changes.mine();
        // Relaxed: only this thread writes its count.
        let before = count.load(Ordering::Relaxed);
        loop {
            if self.is_in(count, before) {
                return Some(Entered {
                    count,
                    not_send: PhantomData,
                });
            }
            let mut state = self.state.lock();
            // Acquire: pairs with the Release in `open`.
            while self.is_closed.load(Ordering::Acquire) {
                if *state == State::Retired {
                    return None;
                }
                self.turned.wait(&mut state);
            }
        }
    }

    /// Begins a change unless the gate is closed.
    pub(crate) fn try_enter(&self) -> Option<Entered<'_>> {
        let count = self.changes.mine();
        // Relaxed: only this thread writes its count.
        let before = count.load(Ordering::Relaxed);
        self.is_in(count, before).then_some(Entered {
            count,
            not_send: PhantomData,
        })
    }

    /// Counts one more change of this thread, unless the gate is closed.
    fn is_in(&self, count: &AtomicU64, before: u64) -> bool {
        if before > 0 {
            // Relaxed: ordered by the exchange of the change around this one.
            count.store(before + 1, Ordering::Relaxed);
            return true;
        }
        // SeqCst: pairs with the fence in `close`. If the exchange comes first, the closer sees the count and waits for
        // this change; if the fence does, the load below sees the closed gate.
        count.swap(1, Ordering::SeqCst);
        // SeqCst: after the exchange; pairs with the fence in `close`, and with the Release in `open`.
        if !self.is_closed.load(Ordering::SeqCst) {
            return true;
        }
        // Release: nothing was done; pairs with the Acquire in `close`.
        count.store(0, Ordering::Release);
        false
    }

    /// Waits until no other thread turns the gate, and begins to turn it; false if it is `already` so, or retired.
    fn turn(&self, already: State) -> bool {
        let mut state = self.state.lock();
        while *state == State::Turning {
            self.turned.wait(&mut state);
        }
        if *state == already || *state == State::Retired {
            return false;
        }
        *state = State::Turning;
        if already == State::Closed {
            // Relaxed: ordered by the fence in `close`, and by the lock.
            self.is_closed.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Closes the gate and waits until no change is under way; false if it was closed already. The caller then does
    /// what belongs to closing and calls [`Gate::shut`], or opens the gate again.
    pub(crate) fn close(&self) -> bool {
        if !self.turn(State::Closed) {
            return false;
        }
        // SeqCst: pairs with the exchange in `is_in`. If the fence comes first, the change sees the closed gate and
        // takes its count back; if the exchange does, the loop below sees the count.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release stores of the counts.
        while self
            .changes
            .iter()
            .any(|count| count.load(Ordering::Acquire) > 0)
        {
            sync::thread::sleep(LOOK_AGAIN);
        }
        true
    }

    /// Begins a change when no other is under way, and keeps others from beginning; waits while the gate is closed.
    /// The thread holds no locks. `None` if the gate is retired, and if the thread is within a change: it would wait
    /// for itself.
    pub(crate) fn enter_alone(&self) -> Option<Alone<'_>> {
        let count = self.changes.mine();
        // Relaxed: only this thread writes its count.
        if count.load(Ordering::Relaxed) > 0 {
            return None;
        }
        while !self.close() {
            // Frozen: until it is thawed.
            drop(self.enter()?);
        }
        // Relaxed: no other thread looks at it before the gate is open.
        count.store(1, Ordering::Relaxed);
        Some(Alone {
            gate: self,
            change: Some(Entered {
                count,
                not_send: PhantomData,
            }),
        })
    }

    /// The gate stays closed, and others may open it.
    pub(crate) fn shut(&self) {
        *self.state.lock() = State::Closed;
        self.turned.notify_all();
    }

    /// Retires the gate if it is closed: it is never opened again. Returns whether it is retired now.
    pub(crate) fn retire(&self) -> bool {
        let mut state = self.state.lock();
        if matches!(*state, State::Closed | State::Retired) {
            *state = State::Retired;
        }
        let is_retired = *state == State::Retired;
        drop(state);
        self.turned.notify_all();
        is_retired
    }

    /// Whether it is retired.
    pub(crate) fn is_retired(&self) -> bool {
        // Relaxed: it only spares the lock while the gate is open; the state under the lock decides.
        self.is_closed.load(Ordering::Relaxed) && *self.state.lock() == State::Retired
    }

    /// Whether the gate was closed, and is the caller's to open.
    pub(crate) fn unlock(&self) -> bool {
        self.turn(State::Open)
    }

    /// Opens the gate.
    pub(crate) fn open(&self) {
        let mut state = self.state.lock();
        // Release: pairs with the Acquire in `enter`.
        self.is_closed.store(false, Ordering::Release);
        *state = State::Open;
        drop(state);
        self.turned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_under_way_while_the_gate_is_closed() {
        let gate = Gate::new();
        let (under_way, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        sync::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // Relaxed: a flag to end the test.
                    while !stop.load(Ordering::Relaxed) {
                        let _outer = gate.enter().unwrap();
                        let _inner = gate.enter().unwrap();
                        // Relaxed: the gate orders it.
                        under_way.fetch_add(1, Ordering::Relaxed);
                        sync::thread::yield_now();
                        // Relaxed: the gate orders it.
                        under_way.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..200 {
                assert!(gate.close());
                gate.shut();
                assert!(!gate.close());
                for _ in 0..10 {
                    // Relaxed: the gate ordered it.
                    assert_eq!(under_way.load(Ordering::Relaxed), 0);
                    sync::thread::yield_now();
                }
                assert!(gate.unlock());
                gate.open();
                assert!(!gate.unlock());
                sync::thread::yield_now();
            }
            // Relaxed: a flag to end the test.
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_retired_gate_refuses_changes_that_wait_and_those_that_begin() {
        let gate = Gate::new();
        assert!(!gate.retire(), "it is open");
        assert!(gate.close());
        gate.shut();
        sync::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter().is_none());
            sync::thread::yield_now();
            assert!(gate.retire());
            assert!(waiting.join().unwrap());
        });
        assert!(gate.is_retired() && gate.retire());
        assert!(gate.enter().is_none() && gate.try_enter().is_none());
        assert!(gate.enter_alone().is_none());
        assert!(!gate.close() && !gate.unlock());
    }

    #[test]
    fn who_is_alone_is_so_also_beside_others_who_want_to_be_and_who_freeze() {
        let gate = Gate::new();
        let under_way = AtomicU64::new(0);
        sync::thread::scope(|scope| {
            for thread in 0..4 {
                let (gate, under_way) = (&gate, &under_way);
                scope.spawn(move || {
                    for turn in 0..300 {
                        let change = gate.enter().unwrap();
                        assert!(gate.enter_alone().is_none());
                        // Relaxed: the gate orders it; here and below.
                        under_way.fetch_add(1, Ordering::Relaxed);
                        sync::thread::yield_now();
                        // Relaxed: the gate orders it.
                        under_way.fetch_sub(1, Ordering::Relaxed);
                        drop(change);
                        if (turn + thread) % 3 == 0 {
                            let _alone = gate.enter_alone().unwrap();
                            // It may do what is a change in itself.
                            let _within = gate.try_enter().unwrap();
                            // Relaxed: the gate orders it.
                            assert_eq!(under_way.fetch_add(1, Ordering::Relaxed), 0);
                            sync::thread::yield_now();
                            // Relaxed: the gate orders it.
                            assert_eq!(under_way.fetch_sub(1, Ordering::Relaxed), 1);
                        }
                    }
                });
            }
            for _ in 0..50 {
                assert!(gate.close());
                gate.shut();
                sync::thread::yield_now();
                assert!(gate.unlock());
                gate.open();
                sync::thread::yield_now();
            }
        });
    }
}
