//! Epochs: which changes are committed together. No word of memory is written by two threads.
//!
//! Each thread has a slot of its own. To begin a handle, it stores the running epoch in the slot with an exchange, and
//! checks that this epoch still runs; to end the handle, it clears the slot. The sealer closes the epoch, fences, and
//! waits until no slot holds the epoch.
//!
//! Why that is enough: let S be the exchange of a handle and L its second load of the epoch, both SeqCst; let C be the
//! sealer's store that closes the epoch, F its fence, and R its load of the slot. S and F are ordered. If S comes
//! first, R sees it, and the sealer waits for the handle. If F comes first, C comes before L, so L sees the closed
//! epoch, and the handle withdraws and waits. So no handle runs in an epoch that counts as drained. (A fence instead of
//! the exchange would be correct too, but takes eight times as long on x86.) Only the sealer writes the epoch; its
//! callers let one run at a time.
//!
//! Interleavings: `epoch::tests::seals_see_every_handle` with threads, and the schedules of `tests/it/attendant.rs`. A
//! slot is a word of a lane, and is freed with the journal.

use std::marker::PhantomData;

use sync::atomic::{AtomicU64, Ordering, fence};
use sync::clock::{Duration, Instant, now};
use sync::gauge::{self, Gauge, Under};
use sync::{CachePadded, Condvar, Lanes, Mutex, Rank};

use crate::options::JournalStatistics;

/// An epoch's number, from 1 on; 0 comes before all epochs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// This bit of the epoch's word is set while the epoch drains and no epoch is open.
const CLOSED: u64 = 1 << 63;
/// How long a sealer waits for a moment without open handles before it makes new handles wait.
const IDLE_LOOK: Duration = Duration::from_millis(1);
/// How often the sealer looks at the slots before it yields its core to other threads.
const LOOKS_BEFORE_YIELD: u32 = 64;
/// How often a thread that begins a handle looks whether the next epoch is open, before it sleeps: some microseconds.
const LOOKS_BEFORE_SLEEP: u32 = 512;

/// The running epoch and the handles in it.
pub(crate) struct Epochs {
    /// The running epoch; while one drains, that epoch with [`CLOSED`]. [atomic: written by the one sealer]
    word: CachePadded<AtomicU64>,
    /// When the last epoch was closed. [leaf lock; taken by the thread that closes it, and by a thread that ends a
    /// handle in a closed one]
    closed_at: Mutex<Instant>,
    /// For each thread the epoch of its open handle, or 0. [atomic: written by that thread]
    slots: Lanes<AtomicU64>,
    /// Threads that begin a handle wait here while an epoch drains. [epoch gate]
    gate: Mutex<()>,
    opened: Condvar,
}

/// A thread's presence in an epoch, until dropped on that thread.
pub(crate) struct Presence<'a> {
    slot: &'a AtomicU64,
    epoch: Epoch,
    /// The slot is the thread's own, so the value stays on its thread.
    not_send: PhantomData<*const ()>,
    /// Ends after the slot is empty.
    _under: Under,
}

impl Presence<'_> {
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        // Release: what the handle changed comes before the empty slot; pairs with the Acquire in `is_idle`.
        self.slot.store(0, Ordering::Release);
    }
}

impl Epochs {
    pub(crate) fn new() -> Epochs {
        Epochs {
            word: CachePadded::new(AtomicU64::new(1)),
            closed_at: Mutex::new(Rank::Leaf, now()),
            slots: Lanes::new(),
            gate: Mutex::new(Rank::EpochGate, ()),
            opened: Condvar::new(),
        }
    }

    /// The epoch that runs, or the one that drains.
    #[inline]
    pub(crate) fn current(&self) -> Epoch {
        // Acquire: pairs with the Release in `open`, so that what the sealer did before is seen.
        Epoch(self.word.load(Ordering::Acquire) & !CLOSED)
    }

    /// For how long a sealer has waited for handles; zero if no sealer waits, in which case no clock is read.
    #[inline]
    pub(crate) fn waited_for(&self) -> Duration {
        // Relaxed: only for what is counted; the lock orders the time, which may be that of the epoch before.
        if self.word.load(Ordering::Relaxed) & CLOSED == 0 {
            return Duration::ZERO;
        }
        now().saturating_duration_since(*self.closed_at.lock())
    }

    /// Enters the running epoch; waits while one drains.
    ///
    /// # Panics
    /// When this thread is in an epoch already: handles do not nest.
    pub(crate) fn enter(&self, statistics: &JournalStatistics) -> Presence<'_> {
        let slot = self.slots.mine();
        // Relaxed: only this thread writes its slot.
        assert_eq!(
            slot.load(Ordering::Relaxed),
            0,
            "a handle is open on this thread: handles do not nest"
        );
        loop {
            // Relaxed: a guess, which is checked after the exchange.
            let epoch = self.word.load(Ordering::Relaxed);
            if epoch & CLOSED == 0 {
                // SeqCst: S of the module's argument; pairs with the fence in `close`. If this exchange comes first,
                // the sealer sees the slot and waits; if the fence does, the load below sees the closed epoch.
                slot.swap(epoch, Ordering::SeqCst);
                // SeqCst: L of the module's argument; pairs with the fence in `close`, and with the Release in `open`:
                // what was staged before this epoch opened is seen.
                if self.word.load(Ordering::SeqCst) == epoch {
                    return Presence {
                        slot,
                        epoch: Epoch(epoch),
                        not_send: PhantomData,
                        _under: gauge::begin(Gauge::Handle),
                    };
                }
                // Release: nothing was changed under this slot; pairs with the Acquire in `is_idle`.
                slot.store(0, Ordering::Release);
            }
            statistics.begin_waits.add(1);
            self.wait_until_open();
        }
    }

    fn wait_until_open(&self) {
        // Acquire: pairs with the Release in `open`.
        let is_open = || self.word.load(Ordering::Acquire) & CLOSED == 0;
        // Most seals take less time than it takes to sleep and to be woken.
        if sync::thread::spin_until(LOOKS_BEFORE_SLEEP, is_open) {
            return;
        }
        let mut gate = self.gate.lock();
        // Acquire: pairs with the Release in `open`, which stores before it takes the gate: no lost wake-up.
        while self.word.load(Ordering::Acquire) & CLOSED != 0 {
            self.opened.wait(&mut gate);
        }
    }

    /// Closes the running epoch and waits until its last handle has ended. The caller is the only sealer. Returns the
    /// epoch and the time at which it was closed; no epoch runs until [`Epochs::open`].
    pub(crate) fn seal(&self, statistics: &JournalStatistics) -> (Epoch, Instant) {
        let epoch = self.current();
        let start = now();
        // Looking at the slots delays no thread; closing the epoch makes new handles wait.
        while !self.is_idle(epoch) && now() - start < IDLE_LOOK {
            sync::thread::yield_now();
        }
        let closed_at = now();
        *self.closed_at.lock() = closed_at;
        self.close(epoch);
        if self.is_idle(epoch) {
            statistics.seals_when_idle.add(1);
            return (epoch, closed_at);
        }
        let mut looks = 0_u32;
        while !self.is_idle(epoch) {
            // A handle does no I/O and waits for nothing, so it ends soon; the yield lets its thread run on a busy
            // machine.
            looks += 1;
            if looks.is_multiple_of(LOOKS_BEFORE_YIELD) {
                sync::thread::yield_now();
            } else {
                sync::thread::spin();
            }
        }
        (epoch, closed_at)
    }

    fn close(&self, epoch: Epoch) {
        // Relaxed: ordered by the fence below.
        self.word.store(epoch.0 | CLOSED, Ordering::Relaxed);
        // SeqCst: F of the module's argument; pairs with the exchange in `enter`. If this fence comes first, the handle
        // sees the closed epoch and withdraws; if the exchange does, `is_idle` sees the slot.
        fence(Ordering::SeqCst);
    }

    fn is_idle(&self, epoch: Epoch) -> bool {
        // Acquire: pairs with the Release in `Presence::drop`: all that the handle changed is seen.
        self.slots
            .iter()
            .all(|slot| slot.load(Ordering::Acquire) != epoch.0)
    }

    /// Opens the epoch after a sealed one.
    pub(crate) fn open(&self, sealed: Epoch) {
        // Release: pairs with the Acquire loads in `enter` and `wait_until_open`.
        self.word.store(sealed.0 + 1, Ordering::Release);
        // Taking the gate waits for a thread that is between its look at the word and its wait.
        drop(self.gate.lock());
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sync::atomic::AtomicBool;

    #[test]
    fn seals_see_every_handle() {
        let (epochs, statistics) = (Epochs::new(), JournalStatistics::default());
        // What the open epoch's handles count; after a drain no thread may count in the sealed one.
        let counts: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
        let stop = AtomicBool::new(false);
        sync::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // Relaxed: a flag to end the test.
                    while !stop.load(Ordering::Relaxed) {
                        let presence = epochs.enter(&statistics);
                        let count = &counts[(presence.epoch().0 & 1) as usize];
                        // Relaxed: the seal's drain orders it.
                        count.fetch_add(1, Ordering::Relaxed);
                        sync::thread::yield_now();
                        // Relaxed: the seal's drain orders it.
                        count.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..2000 {
                let (sealed, _) = epochs.seal(&statistics);
                // Relaxed: the drain ordered it.
                assert_eq!(
                    counts[(sealed.0 & 1) as usize].load(Ordering::Relaxed),
                    0,
                    "{sealed:?}"
                );
                epochs.open(sealed);
            }
            // Relaxed: a flag to end the test.
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(epochs.current(), Epoch(2001));
    }

    #[test]
    #[should_panic(expected = "do not nest")]
    fn handles_do_not_nest() {
        let (epochs, statistics) = (Epochs::new(), JournalStatistics::default());
        let _one = epochs.enter(&statistics);
        let _two = epochs.enter(&statistics);
    }
}
