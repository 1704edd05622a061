//! ext4 in userspace: read, build and make ext4 images.

pub mod build;
mod in_use;
pub mod locate;
pub mod make;
pub mod partition;
pub mod probe;

pub use mkfs;
