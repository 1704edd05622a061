//! What every other chapter may use: errors, bounds, the superblock, the options of a mount, the forms of mechanisms,
//! and the gate that a frozen file system closes. Nothing here knows a block or an inode in memory.

mod error;
pub(crate) mod freeze;
pub mod limits;
pub(crate) mod options;
pub(crate) mod sb;
pub(crate) mod variants;

pub use error::Error;
