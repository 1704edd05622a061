//! Reads images that mke2fs and the kernel made, and compares with what the kernel and debugfs say of them.
//!
//! Needs root (loop mounts) and e2fsprogs; a test that lacks one of them prints that.

mod blocks;
mod damage;
mod dirty;
mod hostile;
mod image;
mod oracle;
mod populate;
mod profiles;
mod threads;
