//! Metadata blocks in memory: the volume with the cache of clean blocks, and the table of blocks that change. Also two
//! things that belong to one volume's blocks: which attribute blocks can be shared, and whether freed blocks are
//! discarded on the device.

mod discard;
mod live;
mod sharing;
mod volume;

pub(crate) use discard::Discard;
pub(crate) use live::{Live, Pin, Seal};
pub(crate) use sharing::AttributeBlocks;
pub(crate) use volume::{Choices, Kind, OpenVolume, Writing};
