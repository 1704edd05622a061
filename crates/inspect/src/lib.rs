//! Reads an image as it is on the disk, for people who want to see its structures.
//!
//! Nothing is replayed, repaired or trusted. The geometry bounds the numbers from the disk before they are used. If a
//! place can't be read, an [`InspectError`] names it. To show an image as it is after a replay, the caller replays its
//! journal in memory and passes the resulting device.
//!
//! - [`RawImage`] reads blocks, group descriptors and inodes. [`walk()`] visits the blocks of a file. Inodes are named
//!   by number, so that deleted ones can be read too, or by a path ([`find()`]).
//! - [`DirectoryReader`], [`JournalFile`] and [`orphans`] read one structure block by block.
//! - [`Survey`] and [`Fragmentation`] look at the whole image and keep sums only. [`ImageFacts`] is what `lanefs info`
//!   shows.
//!
//! This crate prints nothing: the caller gets values, or is called with them in the order of the disk. It writes to no
//! device, starts no thread and holds no lock.

#![warn(missing_docs)]

mod directory;
mod error;
mod facts;
mod find;
mod fragmentation;
mod grid;
mod image;
mod journal;
pub mod orphans;
mod survey;
mod users;
mod walk;

pub use directory::{DirectoryBlock, DirectoryIndex, DirectoryReader};
pub use error::InspectError;
pub use facts::{FoundJournal, GroupSums, ImageFacts, journal_checksums};
pub use find::find;
pub use fragmentation::{FilePieces, Fragmentation, FreeRuns, SizeCounts};
pub use grid::{BlockSums, Grid, Kind};
pub use image::{RawImage, Unvisited, geometry_of};
pub use journal::{JournalFile, Transactions};
pub use survey::Survey;
pub use users::{Need, Since, Use, need};
pub use walk::{BUDGET, Piece, walk};
