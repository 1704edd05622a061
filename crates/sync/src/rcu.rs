//! Reading without a lock: a [`CountedTable`] whose readers write no line that another thread reads, and the grace
//! periods after which what they may still see is freed.
//!
//! A reader stands inside a [`Guard`], which is one word on its thread's own line. What is taken out of the table is
//! given to the table's [`Domain`], and dropped when every guard that was there then is gone. A guard waits for
//! nothing, does no I/O and is short: while one stays, nothing is freed.
//!
//! The table is an array of buckets, one cache line each, with up to five entries in the line and the others in lines
//! chained to it. Changes take the one bucket's lock. It grows by a second array, into which buckets move one by one;
//! a reader that finds its bucket moved looks there. Nobody waits for that. Entries leave by hand
//! ([`LockedBucket::remove`]) or because a [`Hand`] comes round and finds that nobody used them since it last came.
//!
//! A [`SwitchedTable`] can also be used in a plain form, under one lock and without guards; the form may be changed
//! while threads use it (`rcu/switched.rs`).
//!
//! The only unsafe code of this crate is here. Interleavings: `rcu/tests.rs`, under `schedule`, where every link is a
//! point. What is freed when: `rcu/domain.rs`; why readers see what they should: `rcu/table.rs`.

mod bucket;
mod domain;
mod hand;
mod switched;
mod table;

pub use domain::{Domain, Guard};
pub use hand::{Hand, Swept};
pub use switched::SwitchedTable;
pub use table::{CountedTable, Keyed, LockedBucket, TableStatistics};

#[cfg(test)]
mod tests;
