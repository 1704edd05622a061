//! jbd2 at run time: many threads change metadata at once, and after any crash the changes of whole epochs are there
//! or not at all. Knows the journal's format and nothing of ext4.
//!
//! 1. An operation begins a [`Handle`] ([`Journal::begin`]), which belongs to the epoch running at that moment; it
//!    changes [`Object`]s and hands words changed without a lock to the client's own lists, and ends. No I/O, no wait.
//! 2. A commit ([`Journal::commit`], by the thread that needs it: sync callers share) seals the epoch, waits for its
//!    handles to end and opens the next one. Then it stages: every object changed in the epoch gives its sealed image,
//!    the client folds its lists in, and the blocks so built go to the log; flush, commit record, flush.
//! 3. A checkpoint ([`Journal::checkpoint`]) writes the newest committed images home, flushes, and moves the tail.
//!
//! A failure of the device aborts: the first cause is kept, nothing is committed any more, and every later call returns
//! that cause. The crate starts no thread ([`Journal::attend`] runs on one that is lent to it); it waits only in
//! `reserve`, `commit`, `checkpoint`, `freeze`, `flush_data`, `delay_commits`, `await_delays` and, while an epoch
//! drains, in `begin`.
//!
//! What a crash leaves: the journal of a clean or dirty image, in both cases one that `e2fsck`, the kernel and
//! lanefs replay to the state at the end of some committed epoch, not older than the last one that
//! `commit` returned for.

mod abort;
mod client;
mod epoch;
mod handle;
mod journal;
mod lists;
mod long_handles;
mod object;
mod options;
mod room;
mod space;
mod table;

pub use abort::{Aborted, JournalError};
pub use client::{Client, Folded};
pub use epoch::Epoch;
pub use handle::Handle;
pub use jbd2::{LogMap, canary, commit_in_place_of_fast_commits, has_fast_area, set_fast_area};
pub use journal::{CommitDelay, Journal};
pub use lists::EpochLists;
pub use object::{Object, Stageable};
pub use options::{CommitCause, JournalStatistics, Options};
pub use room::Credits;
