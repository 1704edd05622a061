//! jbd2's log at work: finding the journal of a file system, reading it into an overlay in memory or writing it home
//! ([`recovery`]), where its blocks lie ([`LogMap`]), writing transactions ([`Log`]), and one transaction into a log
//! that nothing else uses ([`offline`]). A running journal is the crate `journal`.

#![warn(missing_docs)]

pub mod canary;
mod error;
mod log;
mod made;
mod map;
pub mod offline;
pub mod recovery;

pub use error::JournalError;
pub use log::{
    Log, LogCounters, LogOptions, Transaction, Written, commit_in_place_of_fast_commits, cost,
    has_fast_area, set_fast_area,
};
pub use made::empty_superblock;
pub use map::LogMap;
