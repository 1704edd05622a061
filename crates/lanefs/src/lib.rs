//! ext4 in userspace: read, build and make ext4 images.

pub mod build;
pub mod locate;
pub mod partition;
pub mod probe;

pub use mkfs;
