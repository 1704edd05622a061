//! ext4 images mounted through FUSE: the only crate that knows that protocol.
//!
//! [`mount`] puts an open [`lanefs::Fs`] at a directory of the host, as root by mount(2) and else through fusermount3;
//! [`Mounted::serve`] then answers the kernel from several threads, each with its own channel to it, until the
//! directory is unmounted, and closes the file system: the image is then clean. Three layers, each knowing only the one
//! below:
//!
//! - `protocol`: requests and replies, by the fuser library; turns them into
//! - `operations`: what a kernel asks of a file system, in lanefs's own types; answered by
//! - `volume`: a [`lanefs::Fs`], and which inodes the kernel knows.
//!
//! Where many fsyncs wait for the disk, `waiters` do so in place of the threads that answer.
//!
//! The kernel is told to keep names and attributes for long, for nobody else changes the image. An inode that it knows
//! is held in the engine, so that files that are open live on without names until they are forgotten.

mod callers;
mod connect;
mod handles;
mod lookups;
mod mount;
mod mounts;
mod operations;
mod protocol;
mod times;
mod tuning;
mod volume;
mod waiters;

pub use connect::{Access, MountError, Unmounter};
pub use mount::{Mounted, Options, ServeError, mount};
pub use mounts::{Listed, mounted_at};
