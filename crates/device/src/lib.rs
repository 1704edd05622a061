//! Block devices: where an image's bytes live. The only crate from the engine down that opens a file.

mod block_device;

pub use block_device::{BlockDevice, DeviceError};
