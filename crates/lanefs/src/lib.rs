//! ext4 in userspace: read, edit, build and make ext4 images, without root and without the kernel.
//!
//! [`Fs`] reads and changes ext2, ext3 and ext4 images in the manner of `std::fs`, from any number of threads; an image
//! that was not unmounted is read as if its journal had been replayed, and stays as it is. [`File`] and [`Dir`] are
//! owned, as in cap-std. [`Fs::inodes`] has the same operations by inode number.
//!
//! ```
//! use std::io::Write;
//! use lanefs::Fs;
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("disk.img");
//!
//! let fs = Fs::builder().make(&image, 16 << 20)?;
//! fs.create_dir_all("/srv/www")?;
//! let mut page = fs.create("/srv/www/index.html")?;
//! page.write_all(b"<p>hello</p>")?;
//! page.sync_all()?;
//! page.close()?;
//! fs.symlink("www", "/srv/html")?;
//! fs.set_permissions("/srv/www/index.html", 0o640)?;
//! fs.close()?;
//!
//! let fs = Fs::open(&image)?;
//! assert_eq!(fs.read_to_string("/srv/html/index.html")?, "<p>hello</p>");
//! for entry in fs.read_dir("/srv/www")? {
//!     let entry = entry?;
//!     println!("{} has {} bytes", entry.path().display(), entry.metadata()?.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is durable
//!
//! Every change of names and attributes takes effect as a whole. [`Fs::sync`], [`File::sync_all`] and [`Fs::close`],
//! which also leaves the image clean, make it durable: after a crash the image has all changes up to some moment, which
//! is not earlier than the last sync. A long write to a [`File`] may then be there in part, as a prefix; [`Fs::write`]
//! and [`Fs::copy_in`] of a file take effect as a whole or not at all. [`Fs::atomically`] makes many changes one.
//!
//! The drop of the last clone, file and directory of an [`Fs`] closes it too, but returns no error: the feature
//! `tracing` reports it. [`Fs::abandon`] writes nothing.
//!
//! # By inode number
//!
//! [`Fs::inodes`] is for servers that hand out inode numbers (FUSE, NFS): an inode that is held is kept, even without a
//! name, until it was forgotten as often as it was held. `examples/inodes.rs` is such a server.
//!
//! ```
//! use lanefs::{Fs, Ino, NewInode};
//!
//! let fs = Fs::in_memory(8 << 20)?;
//! let inodes = fs.inodes();
//! let new = NewInode { mode: 0o666, umask: 0o022, uid: 1000, gid: 1000, held: true };
//! let ino = inodes.create(Ino::ROOT, b"file", new)?;
//! inodes.write(ino, 0, b"bytes")?;
//! inodes.unlink(Ino::ROOT, b"file")?;
//!
//! let mut bytes = [0; 5];
//! inodes.read(ino, 0, &mut bytes)?;
//! assert_eq!((&bytes, inodes.metadata(ino)?.nlink), (b"bytes", 0));
//! inodes.forget(ino, 1)?;
//! assert!(inodes.metadata(ino).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where an image is stored
//!
//! [`Fs::builder`] opens and makes file systems in files, on block devices, in memory, and on any other
//! [`BlockDevice`], and takes a clock. `examples/device.rs` implements a device, `examples/tokio.rs` is an async
//! program, and `examples/embedder.rs` shows what most programs need.
//!
//! # Features
//!
//! No feature is on by default; everything above is the core.
//!
//! | feature | adds |
//! |---|---|
//! | `build` | `build`: images from directories, tar archives and OCI images |
//! | `extract` | `extract`: trees of an image into directories and tar archives |
//! | `check` | `check`, `repair`, `undo`: finding and mending what is wrong with an image |
//! | `casefold` | names in directories that ignore case |
//! | `tracing` | errors that can't be returned are reported through the crate `tracing` |
//!
//! # What it does to the process
//!
//! The library prints nothing, installs no signal handler, and starts only the threads that its caller asks for. File
//! systems share nothing in memory except, in the whole process, the numbers that threads receive at their first
//! operation, and what was read once from the host: whether a preloaded library (pseudo) follows descriptors, and
//! `/etc/passwd` and `/etc/group`, which the first `build` reads whose archive has ACLs with names.

/// The Rust code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod attributes;
#[cfg(feature = "build")]
pub mod build;
mod builder;
#[cfg(feature = "check")]
pub mod check;
mod contents;
pub mod copies;
mod copy_in;
mod dir;
pub mod errno;
mod error;
#[cfg(feature = "extract")]
pub mod extract;
mod file;
mod fs;
mod host_run;
pub mod in_use;
pub mod locate;
pub mod make;
mod names;
mod open_image;
pub mod partition;
pub mod probe;
mod reach;
#[cfg(feature = "check")]
pub mod repair;
#[cfg(feature = "check")]
mod repair_error;
mod report;
mod room;
#[cfg(feature = "check")]
mod substitute;
pub mod tune;
#[cfg(feature = "check")]
pub mod undo;
pub mod walk;
mod write;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(not(target_os = "linux"))]
use elsewhere as system;

pub use builder::FsBuilder;
pub use copy_in::{CopyOptions, CopySummary};
pub use device::{BlockDevice, DeviceError, FileDevice, MemoryDevice};
pub use dir::{Dir, DirEntry, ReadDir};
pub use engine::Error as FsError;
pub use engine::RecoveryError;
#[cfg(feature = "canaries")]
pub use engine::canary;
pub use engine::{
    Acting, Allocate, Atime, BlockClaimant, CommitDelay, CutDevice, DataMode, DirReserve, FileType,
    Flags, Generation, GroupLock, GroupScan, Ino, InodeFs, InodeLookup, InodeRef, LogUpdate,
    LogUse, Mapping, Metadata, MountOptions, NewContent, NewInode, OnError, OrphanForm,
    Preallocation, RenameFlag, ReplayPolicy, SetAttributes, SetTime, StatFs, Stopped, StreamGoal,
    Superblock, Synchronous, Timestamp, VariantError, Variants, Xattr, XattrFlag,
};
pub use error::Error;
pub use file::{File, OpenOptions};
pub use fs::Fs;
pub use mkfs;
pub use write::now;
