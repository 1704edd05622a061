//! Block devices: where an image's bytes live. The only crate from the engine down that opens a file.
//!
//! [`FileDevice`] is a regular file or a block device, [`MemoryDevice`] a sparse one in memory, [`Scratch`] another
//! device with changes in memory, [`HeldDevice`] one whose writes wait. [`Slice`], [`ReadOnly`], [`Incomplete`] and
//! [`CountedDevice`] wrap another device. [`in_use`] finds the program that holds a file, and [`signature`] names
//! contents other than ext2/3/4. Nothing here knows ext4.
//!
//! The parts that differ between systems are in `linux` and, with the same functions, in `elsewhere`. [`host`] exports
//! what other crates need of them.

mod block_device;
mod file;
mod held;
pub mod host;
pub mod in_use;
mod incomplete;
mod memory;
mod purpose;
mod scratch;
pub mod signature;
mod spool;
mod view;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(not(target_os = "linux"))]
use elsewhere as system;

pub use block_device::{BlockDevice, DeviceError, Resize};
pub use file::FileDevice;
pub use held::HeldDevice;
pub use incomplete::Incomplete;
#[cfg(target_os = "linux")]
pub use linux::ground::{Ground, Layer};
pub use memory::MemoryDevice;
pub use scratch::Scratch;
pub use view::{CountedDevice, DeviceCounts, ReadOnly, Slice};
