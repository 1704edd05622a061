//! Grace periods: what is given to a [`Domain`] is dropped only when every [`Guard`] that existed at that moment is
//! gone.
//!
//! The domain has a number, the epoch. A guard publishes in its thread's lane the epoch that it read; the epoch rises
//! by one when every lane with a guard shows the current one. What is given away in epoch `r` is dropped in `r + 2` or
//! later.
//!
//! Why that is enough. Let a thread take X out of reach, then read the epoch, `r`, and give X away. X is dropped only
//! after some thread looked through the lanes while the epoch was `r + 1`. All these are SeqCst, as are a guard's
//! publication and the loads by which readers reach things, so they have one order. If that look comes after a guard's
//! publication, it sees the guard: a guard that could reach X read the epoch before X was out of reach, so it shows at
//! most `r`, and keeps the epoch from rising. If the look comes first, the guard's loads come after X was out of reach,
//! and don't find it.
//!
//! A lane's word is the epoch and how many guards there are. Only the lane's own thread writes it, so that a guard is
//! one exchange and one store. A thread that may have no lane of its own (one that is being torn down, or runs under a
//! schedule) shares one, and every change is an exchange.
//!
//! What a thread gave away waits in its lane, and is dropped by a thread that gives away more; the domain has no thread
//! of its own. When a lane has [`BATCH`] things more than the last look left there, its thread raises the epoch by one,
//! if no guard prevents that, and drops what is old enough. So about two batches wait in each lane, and any number
//! while a guard stays. When a thread ends, its things stay in its lane until the next thread of that lane gives away
//! more, [`Domain::flush`] is called, or the domain is dropped.

use std::collections::VecDeque;
use std::marker::PhantomData;

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::lanes::{self, Lanes};
use crate::{CachePadded, Mutex, Rank};

/// Bits of a lane's word that count guards.
const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// Things given away by one thread before it looks which of them can be dropped.
const BATCH: usize = 64;

/// A lane: a thread's guards, and what it gave away.
struct Lane<G> {
    /// Epoch and count of guards; 0 without guards. [atomic: SeqCst]
    word: CachePadded<Word>,
    /// What waits to be dropped, with the epochs. [leaf]
    bag: CachePadded<Mutex<Bag<G>>>,
}

#[derive(Default)]
struct Word {
    /// [atomic: SeqCst; written by the lane's threads]
    guards: AtomicU64,
    /// Not 0 once the lane was used, so that a look through the lanes finds it. [atomic: Relaxed]
    known: AtomicU64,
}

struct Bag<G> {
    items: VecDeque<(u64, G)>,
    /// How many there may be before the next look.
    look_at: usize,
}

impl<G> Default for Lane<G> {
    fn default() -> Lane<G> {
        let bag = Bag {
            items: VecDeque::new(),
            look_at: BATCH,
        };
        Lane {
            word: CachePadded::default(),
            bag: CachePadded::new(Mutex::new(Rank::Leaf, bag)),
        }
    }
}

/// Readers, and what is kept for them; see the module. `G` is what is given away.
pub struct Domain<G> {
    /// [atomic: SeqCst]
    epoch: CachePadded<AtomicU64>,
    /// One for each thread.
    lanes: Lanes<Lane<G>>,
    /// For threads that have no lane of their own.
    shared: Lane<G>,
}

/// A reader's stay: nothing that it can reach is dropped before it ends. Guards of one domain nest.
pub struct Guard<'a> {
    word: &'a Word,
    /// Only this thread writes the word.
    is_alone: bool,
    /// The word belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

/// Why nothing that is reached meanwhile is dropped: the thread has a guard, or the table for itself.
#[derive(Clone, Copy)]
pub(super) struct Kept<'g> {
    is_alone: bool,
    _of: PhantomData<&'g ()>,
}

impl Kept<'_> {
    /// For a thread that has the table for itself.
    ///
    /// # Safety
    /// While this is used, no other thread is in a method of the table, and none has a guard of its domain.
    #[allow(unsafe_code)]
    pub(super) unsafe fn alone() -> Self {
        Kept {
            is_alone: true,
            _of: PhantomData,
        }
    }

    /// Whether the thread has the table for itself: it locks no bucket, and what it takes out is dropped at once.
    pub(super) fn is_alone(self) -> bool {
        self.is_alone
    }
}

impl Guard<'_> {
    /// What is reached while this guard is there is kept.
    pub(super) fn kept(&self) -> Kept<'_> {
        Kept {
            is_alone: false,
            _of: PhantomData,
        }
    }
}

impl<G: Send> Default for Domain<G> {
    fn default() -> Domain<G> {
        Domain::new()
    }
}

impl<G: Send> Domain<G> {
    /// No readers, nothing kept.
    #[must_use]
    pub fn new() -> Domain<G> {
        Domain {
            // The first two are never the epoch of anything, so that none is 0.
            epoch: CachePadded::new(AtomicU64::new(2)),
            lanes: Lanes::new(),
            shared: Lane::default(),
        }
    }

    /// The calling thread's lane, and whether it is its own.
    #[inline]
    fn lane(&self) -> (&Lane<G>, bool) {
        match lanes::own_index() {
            Some(index) => (self.lanes.at(index), true),
            None if cfg!(feature = "simulate") => (self.lanes.at(lanes::thread_index()), false),
            None => (&self.shared, false),
        }
    }

    /// Begins a stay.
    ///
    /// # Panics
    /// With sixteen million guards in one thread.
    #[inline]
    pub fn enter(&self) -> Guard<'_> {
        let (lane, is_alone) = self.lane();
        let word = &*lane.word;
        // Relaxed: written by the lane's threads only, after the fence below.
        if word.known.load(Ordering::Relaxed) == 0 {
            // SeqCst: the lane was made before; pairs with the fence in `advance`. If this fence comes first, that look
            // sees the lane; if that one does, the loads of this stay find nothing that was out of reach then.
            fence(Ordering::SeqCst);
            // Relaxed: written by the lane's threads only, after the fence.
            word.known.store(1, Ordering::Relaxed);
        }
        if is_alone {
            // Relaxed: this thread alone writes it.
            let now = word.guards.load(Ordering::Relaxed);
            if now == 0 {
                // SeqCst: see the module; pairs with the exchange in `advance`.
                let epoch = self.epoch.load(Ordering::SeqCst);
                // SeqCst: before the loads of this stay; pairs with the loads in `advance`. If this exchange comes
                // first, that look sees the guard; if the look does, this stay's loads come after what it was for.
                word.guards.swap(epoch << COUNT_BITS | 1, Ordering::SeqCst);
            } else {
                // Relaxed: the guard around this one is published.
                word.guards.store(one_more(now), Ordering::Relaxed);
            }
        } else {
            // SeqCst: see the module; pairs with the exchange in `advance`.
            let epoch = self.epoch.load(Ordering::SeqCst);
            let enter = |now| match now {
                0 => Some(epoch << COUNT_BITS | 1),
                _ => Some(one_more(now)),
            };
            let entered = word
                .guards
                // SeqCst: as where the lane is the thread's own; pairs with the loads in `advance`.
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter);
            debug_assert!(entered.is_ok(), "the update always gives a value");
        }
        Guard {
            word,
            is_alone,
            _not_send: PhantomData,
        }
    }

    /// Drops `garbage`, which no reader can reach any more, after all guards that are there now.
    pub fn retire(&self, garbage: G) {
        // SeqCst: after what put it out of reach; pairs with the exchange in `advance`.
        let epoch = self.epoch.load(Ordering::SeqCst);
        let (lane, _) = self.lane();
        let mut bag = lane.bag.lock();
        bag.items.push_back((epoch, garbage));
        let is_due = bag.items.len() >= bag.look_at;
        drop(bag);
        if is_due {
            self.advance();
            self.collect(lane);
        }
    }

    /// The present epoch: what became unreachable when it was `e` is seen by no thread once it is `e + 2`.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        // SeqCst: pairs with the exchange in `advance`.
        self.epoch.load(Ordering::SeqCst)
    }

    /// Increments the epoch, if no guard of an earlier epoch is left; returns the epoch afterwards.
    pub fn advance(&self) -> u64 {
        let now = self.epoch();
        // SeqCst: after what was put out of reach in earlier epochs; pairs with the fence in `enter`. If this fence
        // comes first, that stay's loads do not find what was put out of reach; if that fence does, this look sees the
        // lane.
        fence(Ordering::SeqCst);
        let is_left = |lane: &Lane<G>| {
            // SeqCst: pairs with the exchange in `enter`. The guard's end is a Release, seen with its 0.
            let word = lane.word.guards.load(Ordering::SeqCst);
            word != 0 && word >> COUNT_BITS != now
        };
        if is_left(&self.shared) || self.lanes.iter().any(is_left) {
            return now;
        }
        // SeqCst: after the look, before what is dropped for it; pairs with all other uses of the epoch. If another
        // was first, its look serves as well.
        let won = self
            .epoch
            .compare_exchange(now, now + 1, Ordering::SeqCst, Ordering::SeqCst);
        won.map_or_else(|other| other, |_| now + 1)
    }

    /// Drops what can be dropped of what a lane keeps.
    fn collect(&self, lane: &Lane<G>) {
        let epoch = self.epoch();
        let mut bag = lane.bag.lock();
        let is_old = |(given, _): &(u64, G)| given + 2 <= epoch;
        let count = bag.items.iter().take_while(|item| is_old(item)).count();
        let old: Vec<(u64, G)> = bag.items.drain(..count).collect();
        bag.look_at = bag.items.len() + BATCH;
        drop(bag);
        // With nothing locked.
        drop(old);
    }

    /// Drops all that can be dropped now of what any thread gave away.
    pub fn flush(&self) {
        self.advance();
        self.advance();
        self.collect(&self.shared);
        self.lanes.iter().for_each(|lane| self.collect(lane));
    }

    /// How many things wait to be dropped.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let lanes = self.lanes.iter().chain([&self.shared]);
        lanes.map(|lane| lane.bag.lock().items.len()).sum()
    }
}

/// One guard more.
fn one_more(word: u64) -> u64 {
    assert!(word & COUNT < COUNT, "too many guards in one thread");
    word + 1
}

/// One guard less.
fn one_less(word: u64) -> u64 {
    match word & COUNT {
        1 => 0,
        _ => word - 1,
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let guards = &self.word.guards;
        if self.is_alone {
            // Relaxed: this thread alone writes it.
            let now = guards.load(Ordering::Relaxed);
            // Release: what the reader saw, it saw before; pairs with the load in `advance`.
            guards.store(one_less(now), Ordering::Release);
        } else {
            let leave = |now| Some(one_less(now));
            let left = guards
                // Release: the reader's loads come before; pairs with the load in `advance`. Relaxed: another try
                // follows.
                .fetch_update(Ordering::Release, Ordering::Relaxed, leave);
            debug_assert!(left.is_ok(), "the update always gives a value");
        }
    }
}
