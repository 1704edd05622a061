//! jbd2's log at work: finding the journal of a file system, reading it into an overlay in memory or writing it home
//! ([`recovery`]), where its blocks lie ([`LogMap`]), and one transaction into a log that nothing else uses
//! ([`offline`]). A running journal is the crate `journal`.

#![warn(missing_docs)]

mod made;
mod map;
pub mod offline;
pub mod recovery;

pub use made::empty_superblock;
pub use map::LogMap;
