//! Attributes, names and contents of the host's files: the same functions on every system that lanefs compiles for. No
//! locks, no state.
//!
//! Windows has no owners, modes and devices in the sense of ext4, and std does not identify hard links there:
//! everything belongs to 0:0, directories have the mode 0755 and files 0644, and each name counts as a file of its own.

use std::fs::{File, Metadata};
use std::io;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
use unix as own;
#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as own;

pub use crate::system::files::open_unnamed;
pub use crate::system::preload::follows_descriptors;
pub use own::{
    identity, is_block_device, name, path_bytes, read_at, special_of, stdin, user, write_at,
};

/// A point in time: seconds since 1970, and nanoseconds within that second.
pub type Moment = (i64, u32);

/// The attributes of a file of the host, as ext4 stores them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostAttributes {
    /// Permissions and special bits: 12 bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u64,
    /// The numbers of its file system and of its inode, if the host has them: two names with the same numbers are one
    /// file.
    pub identity: Option<(u64, u64)>,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Bytes that it occupies on the disk.
    pub held: u64,
    /// Last access.
    pub atime: Moment,
    /// Last modification.
    pub mtime: Moment,
    /// Last change of the inode.
    pub ctime: Moment,
}

impl HostAttributes {
    /// The attributes that `metadata` describes.
    #[must_use]
    pub fn of(metadata: &Metadata) -> HostAttributes {
        own::attributes(metadata)
    }
}

/// A file that is not a regular file, a directory or a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket, or another kind that only this host has.
    Socket,
}

/// Fills `buf` from byte `at` of a file.
///
/// # Errors
/// If the file can't be read, or ends before.
pub fn read_exact_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match read_at(file, &mut buf[done..], at + done as u64)? {
            0 => {
                let text = "failed to fill whole buffer";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            count => done += count,
        }
    }
    Ok(())
}

/// Writes all of `bytes` at byte `at` of a file.
///
/// # Errors
/// If the file can't be written.
pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match write_at(file, &bytes[done..], at + done as u64)? {
            0 => {
                let text = "failed to write whole buffer";
                return Err(io::Error::new(io::ErrorKind::WriteZero, text));
            }
            count => done += count,
        }
    }
    Ok(())
}
