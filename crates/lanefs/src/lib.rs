//! ext4 in userspace: read, edit, build and make ext4 images, without root and without the kernel.
//!
//! [`Fs`] reads and changes ext2, ext3 and ext4 images in the manner of `std::fs`, from any number of threads; an image
//! that was not unmounted is read as if its journal had been replayed, and stays as it is. [`Fs::inodes`] gives the
//! same by inode number. [`extract`] copies trees out, [`build`] makes images of directories, tars and OCI images, and
//! [`make`] makes empty file systems.
//!
//! The library prints nothing, installs no signal handler, and starts only the threads that its caller asks for. File
//! systems share nothing in memory. The process shares the numbers that threads get at their first operation, and what
//! was read once from the host: whether a preloaded library (pseudo) follows descriptors, and, by the first `build`
//! whose archive has ACLs with names, `/etc/passwd` and `/etc/group`.
//!
//! # Making and reading an image
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use lanefs::{Fs, build::{self, BuildOptions, Silent}};
//! # let folder = tempfile::tempdir()?;
//! # let source = folder.path().join("rootfs");
//! # let image = folder.path().join("disk.img");
//! # std::fs::create_dir_all(source.join("etc"))?;
//! # std::fs::write(source.join("etc/hostname"), "lane\n")?;
//!
//! let options = BuildOptions::from_directory(&source);
//! build::build(&options, &image, &Silent, &AtomicBool::new(false))?;
//!
//! let fs = Fs::open(&image)?;
//! assert_eq!(fs.read_to_string("/etc/hostname")?, "lane\n");
//! for entry in fs.read_dir("/etc")? {
//!     println!("{}", entry?.file_name().display());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Changing an image
//!
//! Every change of names and attributes is whole at once, and durable when it was synced: after a crash the image is as
//! it was after some change, no older than the last one synced ([`Fs::sync`], [`File::sync_all`], [`Fs::close`], which
//! also leaves it clean). Of a long write to a [`File`] a crash may leave a prefix; [`Fs::write`] and [`Fs::copy_in`]
//! are whole or not at all, and [`Fs::atomically`] makes many changes one.
//!
//! ```
//! use std::io::Write;
//! use lanefs::Fs;
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("disk.img");
//!
//! lanefs::make::make(&image, Some(16 << 20), &Default::default(), false)?;
//! let fs = Fs::open_for_writing(&image)?;
//! fs.create_dir_all("/srv/www")?;
//! let mut page = fs.create("/srv/www/index.html")?;
//! page.write_all(b"<p>hello</p>")?;
//! page.sync_all()?;
//! page.close()?;
//! fs.symlink("www", "/srv/html")?;
//! fs.set_permissions("/srv/www/index.html", 0o640)?;
//! fs.rename("/srv/www/index.html", "/srv/www/index.htm")?;
//! assert_eq!(fs.read_to_string("/srv/html/index.htm")?, "<p>hello</p>");
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # By inode number
//!
//! [`Fs::inodes`] is what a server needs that hands out numbers (FUSE, NFS): an inode that is held stays, though its
//! last name may go, until it was forgotten as often.
//!
//! ```
//! use lanefs::{Fs, Ino, NewInode};
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("disk.img");
//! # lanefs::make::make(&image, Some(8 << 20), &Default::default(), false)?;
//!
//! let fs = Fs::open_for_writing(&image)?;
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
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A device of your own
//!
//! Anything that can be read and written at an offset holds an image: here, bytes in memory. The clock is yours too.
//!
//! ```
//! use std::ops::Range;
//! use std::sync::{Arc, RwLock};
//! use lanefs::{BlockDevice, DeviceError, Fs, MountOptions, Timestamp};
//!
//! struct Bytes(RwLock<Vec<u8>>);
//!
//! impl BlockDevice for Bytes {
//!     fn size(&self) -> u64 {
//!         self.0.read().unwrap().len() as u64
//!     }
//!     fn is_read_only(&self) -> bool {
//!         false
//!     }
//!     fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
//!         let bytes = self.0.read().unwrap();
//!         let size = bytes.len() as u64;
//!         let from = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)?.get(..buf.len()));
//!         let beyond = DeviceError::OutOfRange { operation: "read", offset, len: buf.len() as u64, size };
//!         buf.copy_from_slice(from.ok_or(beyond)?);
//!         Ok(())
//!     }
//!     fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
//!         let at = offset as usize;
//!         self.0.write().unwrap()[at..at + from.len()].copy_from_slice(from);
//!         Ok(())
//!     }
//!     fn flush(&self) -> Result<(), DeviceError> {
//!         Ok(())
//!     }
//!     fn discard(&self, _range: Range<u64>) -> Result<(), DeviceError> {
//!         Ok(())
//!     }
//! }
//!
//! let device = Arc::new(Bytes(RwLock::new(vec![0; 8 << 20])));
//! let layout = lanefs::mkfs::Layout::plan(device.size(), &Default::default())?;
//! lanefs::mkfs::format(&*device, &layout)?;
//!
//! let midnight = || Timestamp { seconds: 946_684_800, nanoseconds: 0 };
//! let fs = Fs::open_for_writing_with(device, &MountOptions::default(), midnight)?;
//! fs.write("/motd", "welcome")?;
//! assert_eq!(fs.metadata("/motd")?.mtime, midnight());
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// The Rust code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod attributes;
pub mod build;
pub mod check;
mod contents;
pub mod copies;
mod copy_in;
pub mod errno;
mod error;
pub mod extract;
mod file;
mod fs;
mod host_run;
pub mod in_use;
pub mod locate;
pub mod make;
mod names;
pub mod partition;
pub mod probe;
mod reach;
pub mod repair;
mod room;
pub mod tune;
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

pub use copy_in::{CopyOptions, CopySummary};
pub use device::{BlockDevice, DeviceError, FileDevice, MemoryDevice};
pub use engine::Error as FsError;
pub use engine::RecoveryError;
#[cfg(feature = "canaries")]
pub use engine::canary;
pub use engine::{
    Acting, Allocate, Atime, BlockClaimant, CutDevice, DataMode, DirReserve, FileType, Flags,
    Generation, GroupLock, GroupScan, Ino, InodeFs, InodeLookup, InodeRef, LogUpdate, LogUse,
    Mapping, Metadata, MountOptions, NewInode, OnError, OrphanForm, Preallocation, RenameFlag,
    ReplayPolicy, SetAttributes, SetTime, StatFs, Stopped, StreamGoal, Superblock, Synchronous,
    Timestamp, VariantError, Variants, Xattr, XattrFlag,
};
pub use error::Error;
pub use file::{File, OpenOptions};
pub use fs::{DirEntry, Fs};
pub use mkfs;
pub use write::now;
