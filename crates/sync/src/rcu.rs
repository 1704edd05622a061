//! Reading without a lock: a [`CountedTable`] whose readers write no cache line that another thread reads, and the
//! grace periods after which removed entries are freed.
//!
//! A reader holds a [`Guard`], which is one word on its thread's own cache line. An entry that is taken out of the
//! table is given to the table's [`Domain`], which drops it when all guards that existed at that moment are gone. A
//! thread that holds a guard waits for nothing and does no I/O, so the guard is short: as long as it exists, nothing is
//! freed.
//!
//! The table is an array of buckets, one cache line each, with up to five entries in the line and the others in lines
//! chained to it. A change takes the lock of one bucket. The table grows by a second array, into which buckets move one
//! by one; a reader that finds its bucket moved looks in the second array. No thread waits for that. An entry leaves
//! when it is removed ([`LockedBucket::remove`]), or when a [`Hand`] passes and finds that no thread used the entry
//! since the hand last passed.
//!
//! A [`SwitchedTable`] can also be used in a plain form, under one lock and without guards; the form may be changed
//! while threads use it (`rcu/switched.rs`).
//!
//! The only unsafe code of this crate is here. Interleavings: `rcu/tests.rs`, under `schedule`, where the scheduler may
//! switch threads at every link. When memory is freed: `rcu/domain.rs`; why readers find every entry: `rcu/table.rs`.

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
