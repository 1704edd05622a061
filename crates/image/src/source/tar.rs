//! Tar archives: v7, ustar, old GNU and PAX, read once from start to end.
//!
//! [`read`] hands each entry to a [`Visitor`], with the data if that wants it. Every number, name and count is bounded
//! (see [`super::limits`]); whatever is wrong is an error with the entry's name and the header's offset.

pub(crate) mod ending;
pub(crate) mod header;
mod pax;
mod reader;
mod sparse;

pub(crate) use ending::{Ending, Rules};
pub(crate) use header::is_header;
pub(crate) use reader::{TarMember, TarStop, Visitor, What, read};
