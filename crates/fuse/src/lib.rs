//! ext4 images mounted through FUSE: the only crate that knows that protocol.
//!
//! [`mount`] puts an open [`lanefs::Fs`] at a directory of the host, as root by mount(2) and else through fusermount3;
//! [`Mounted::serve`] then answers the kernel from several threads, each with its own channel to it, until the
//! directory is unmounted, and closes the file system: the image is then clean. The layers, each of which knows only
//! those below:
//!
//! - `classic`: the transport in which workers read requests from `/dev/fuse` and write replies to it;
//! - `uring`: the transport with an io_uring queue for each CPU;
//! - `session`: which worker answers with the volume, and how it is closed;
//! - `serve`: what each request does; knows no transport. It takes a `request`, gives a `reply`, in the structures of
//!   `abi`, and calls
//! - `operations`: what a kernel asks of a file system, in lanefs's own types; answered by
//! - `volume`: a [`lanefs::Fs`], and which inodes the kernel knows.
//!
//! `readers` decides which workers of the classic transport read, and when one of them polls. If many fsyncs wait for
//! the disk, the threads of `waiters` do so in place of the threads that answer.
//!
//! The kernel may keep names and attributes for long, because nothing else changes the image. An inode that it knows is
//! held in the engine, so that files that are open live on without names until they are forgotten.

mod abi;
mod anchor;
mod bdi;
mod callers;
mod classic;
mod connect;
mod control;
mod counted_channel;
mod extension;
mod handles;
#[cfg(feature = "hostile")]
mod hostile;
mod idle;
mod lookups;
mod memory;
mod messages;
mod mount;
mod mounts;
#[cfg(any(test, feature = "null"))]
mod null;
mod operations;
mod readers;
mod reply;
mod request;
mod serve;
mod session;
mod stale;
mod tuning;
mod uring;
mod volume;
mod waiters;

pub use connect::{Access, Fuseblk, MountError, Synced, Unmounter};
#[cfg(feature = "hostile")]
pub use hostile::{Broken, Parts, answer_all};
pub use memory::leave_memory_group;
pub use mount::{IoUring, Mounted, Options, Polling, mount};
pub use mounts::{ListedMount, mounted_at, mounts_of};
#[cfg(feature = "null")]
pub use null::{NullTree, mount_null};
pub use session::ServeError;
