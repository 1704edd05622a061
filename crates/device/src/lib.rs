//! Block devices: where an image's bytes live. The only crate from the engine down that opens a file.
//!
//! [`FileDevice`] is a regular file or a block device, [`MemoryDevice`] a sparse one in memory, [`Scratch`] another
//! device with changes in memory. [`Slice`],
//! [`ReadOnly`] and [`Counted`] wrap another device. [`Ground`] tells which names stand for the same bytes, and
//! [`in_use`] which program holds them. Nothing here knows ext4.

mod block_device;
mod file;
mod ground;
mod holder;
pub mod host;
pub mod in_use;
mod lease;
mod memory;
mod record_lock;
mod scratch;
mod view;

pub use block_device::{BlockDevice, DeviceError, Resize};
pub use file::FileDevice;
pub use ground::{Ground, Layer};
pub use memory::MemoryDevice;
pub use scratch::Scratch;
pub use view::{Counted, Counts, ReadOnly, Slice};
