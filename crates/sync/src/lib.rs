//! The one crate that names a lock, an atomic, a thread or a clock; all others get them here, so that every lock has a
//! [`Rank`] and everything can run under a deterministic scheduler.
//!
//! [`Mutex`] and [`RwLock`] are parking_lot's (no poisoning) plus a rank. Builds with debug assertions keep each
//! thread's stack of held locks. They panic if a thread waits for a lock that is not after all the locks it holds in
//! [`Rank`]'s order; the message names both places. Other builds store and check nothing.
//!
//! [`Hint`], [`Statistic`], [`Balance`], [`OwnThread`], [`Guarded`] and [`Stamp`] are atomic words that carry their
//! memory ordering and its reason. [`Counter`] counts without two threads writing one cache line. [`Queue`] hands work
//! from thread to thread with bounded memory. [`rcu`] is a table that is read without a lock, [`Latest`] a few words.
//! [`thread`] and [`clock`] are the standard library's, in one place; [`company`] decides how long leaders wait for
//! others. [`gauge`] tells a simulation what its threads are in the middle of.
//!
//! With the feature `simulate`, threads started within `schedule::run` run one at a time, and a seed decides which one
//! at each lock, wait and atomic; all other threads run as usual, a little slower.

#[cfg(feature = "simulate")]
#[path = "atomic_points.rs"]
pub mod atomic;
pub mod clock;
pub mod company;
mod counter;
pub mod gauge;
mod held;
mod histogram;
mod lanes;
mod latest;
mod lock;
mod queue;
mod rank;
pub mod rcu;
#[cfg(feature = "simulate")]
pub mod schedule;
pub mod thread;
mod turn;
mod words;

/// Atomics. Every use of an `Ordering` has a comment that begins with its name and says what it pairs with.
#[cfg(not(feature = "simulate"))]
pub mod atomic {
    pub use std::sync::atomic::*;
}

pub use counter::Counter;
pub use crossbeam_utils::CachePadded;
pub use histogram::Histogram;
pub use lanes::{Lanes, thread_index};
pub use latest::Latest;
pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use queue::Queue;
pub use rank::Rank;
pub use std::sync::{Arc, Barrier, LazyLock, OnceLock, Weak};
pub use words::{AtomicNumber, AtomicValue, Balance, Guarded, Hint, OwnThread, Stamp, Statistic};
