//! jbd2's log on disk: recovery, the map of its blocks, and the transactions that are written to it.
//!
//! - [`recovery`] finds a file system's journal, and replays it into an overlay in memory or onto the device.
//! - [`LogMap`] maps the log's blocks to blocks of a device.
//! - [`Log`] writes one transaction after another.
//! - [`offline`] writes a single transaction into a log that nothing else uses.
//!
//! The crate `journal` runs a journal on top of this.

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
