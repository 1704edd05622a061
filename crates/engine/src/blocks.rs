//! Metadata blocks in memory: the volume with the cache of clean ones, and the table of those that change. Also what
//! belongs to the blocks of one volume: which attribute blocks can be shared, and whether free blocks are discarded on
//! the device.

mod discard;
mod live;
mod sharing;
mod volume;

pub(crate) use discard::Discard;
pub(crate) use live::{Live, Pin, Seal};
pub(crate) use sharing::AttributeBlocks;
pub(crate) use volume::{Choices, Kind, OpenVolume, Writing};
