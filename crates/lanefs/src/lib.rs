//! ext4 in userspace: read, edit, build and make ext4 images, without root and without the kernel.
//!
//! [`Fs`] reads any ext2, ext3 or ext4 image in the manner of `std::fs`, from any number of threads; an image that was
//! not unmounted is read as if its journal had been replayed, and stays as it is. [`Fs::inodes`] gives the same by
//! inode number. [`extract`] copies trees out, [`build`] makes images of directories, tars and OCI images, and [`make`]
//! makes empty file systems. No thread outlives a call, nothing is printed, and there is no global state.
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
//! # A device of your own
//!
//! Anything that can be read at an offset holds an image: here, bytes in memory.
//!
//! ```
//! use std::ops::Range;
//! use std::sync::{Arc, RwLock};
//! use lanefs::{BlockDevice, DeviceError, Fs, locate::Location};
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
//! let device = Bytes(RwLock::new(vec![0; 4 << 20]));
//! let layout = lanefs::mkfs::Layout::plan(device.size(), &Default::default())?;
//! lanefs::mkfs::format(&device, &layout)?;
//!
//! let fs = Fs::open_at(Arc::new(device), Location::Whole)?;
//! assert!(fs.metadata("/lost+found")?.mode & 0o777 == 0o700);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attributes;
pub mod build;
mod contents;
mod copy_in;
pub mod errno;
mod error;
pub mod extract;
mod fs;
pub mod in_use;
pub mod locate;
pub mod make;
mod names;
pub mod partition;
pub mod probe;
pub mod walk;
mod write;

pub use copy_in::{CopyOptions, CopySummary};
pub use device::{BlockDevice, DeviceError, FileDevice, MemoryDevice};
pub use engine::Error as FsError;
pub use engine::RecoveryError;
pub use engine::{
    Acting, Allocate, Atime, Caller, FileType, Flags, Fs as InodeFs, Generation, Ino, InodeRef,
    Journal, Mapping, Metadata, NewInode, OnError, OpenOptions as MountOptions, OrphanForm,
    RenameFlag, SetAttributes, SetTime, StatFs, StreamGoal, Superblock, Timestamp, VariantError,
    Variants, Xattr, XattrFlag,
};
pub use error::Error;
pub use fs::{DirEntry, File, Fs};
pub use mkfs;
pub use write::now;
