//! Tar archives: v7, ustar, old GNU and PAX, read once from start to end.
//!
//! [`read`] calls a [`Visitor`] with each entry, and with its data if the visitor wants them. Every number, name and
//! count is bounded (see [`super::limits`]). An error names the entry and the offset of its header.

pub(crate) mod ending;
pub(crate) mod header;
mod pax;
mod reader;
mod sparse;

pub(crate) use ending::{Ending, Rules};
pub(crate) use header::is_header;
pub(crate) use reader::{TarMember, TarStop, Visitor, What, read};
