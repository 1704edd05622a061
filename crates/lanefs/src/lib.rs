//! ext4 in userspace: read, build and make ext4 images.

pub mod build;
pub mod errno;
mod error;
pub mod extract;
mod fs;
mod in_use;
pub mod locate;
pub mod make;
pub mod partition;
pub mod probe;
pub mod walk;

pub use device::{BlockDevice, DeviceError, FileDevice, MemoryDevice};
pub use engine::Error as FsError;
pub use engine::{
    FileType, Flags, Fs as InodeFs, Generation, Ino, InodeRef, Journal, Mapping, Metadata,
    OpenOptions, StatFs, Superblock, Timestamp, Xattr,
};
pub use error::Error;
pub use fs::{DirEntry, File, Fs};
pub use mkfs;
