//! Reads images that mke2fs and the kernel made, and compares with what the kernel and debugfs say of them.
//!
//! Needs root (loop mounts) and e2fsprogs; a test that has not both says so.

mod blocks;
mod damage;
mod dirty;
mod hostile;
mod image;
mod oracle;
mod populate;
mod profiles;
mod threads;
