//! Block devices: where an image's bytes live. The only crate from the engine down that opens a file.
//!
//! [`FileDevice`] is a regular file or a block device, [`MemoryDevice`] a sparse one in memory, [`Scratch`] another
//! device with changes in memory, [`Held`] one whose writes wait. [`Slice`], [`ReadOnly`], [`Incomplete`] and
//! [`Counted`] wrap another device. [`Ground`] tells which names stand for the same bytes, [`in_use`] which program
//! holds them, and [`signature`] what else than ext2/3/4 they hold. Nothing here knows ext4.

mod block_device;
mod file;
mod ground;
mod held;
mod holder;
pub mod host;
pub mod in_use;
mod incomplete;
mod lease;
mod mapping;
mod memory;
mod record_lock;
mod scratch;
pub mod signature;
mod spool;
mod view;

pub use block_device::{BlockDevice, DeviceError, Resize};
pub use file::FileDevice;
pub use ground::{Ground, Layer};
pub use held::Held;
pub use incomplete::Incomplete;
pub use memory::MemoryDevice;
pub use scratch::Scratch;
pub use view::{Counted, Counts, ReadOnly, Slice};
