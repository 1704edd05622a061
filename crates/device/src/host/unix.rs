//! Files on Linux, macOS and other systems with POSIX calls.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use super::{HostAttributes, Special};
use crate::FileDevice;

/// Bytes of the unit in which the host counts a file's blocks.
const HOST_BLOCK: u64 = 512;

impl AsFd for FileDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A name of ext4 as a name of the host.
#[must_use]
pub fn name(bytes: &[u8]) -> Cow<'_, OsStr> {
    Cow::Borrowed(OsStr::from_bytes(bytes))
}

/// The bytes of a path, with `/` between its components.
#[must_use]
pub fn path_bytes(path: &Path) -> Cow<'_, [u8]> {
    Cow::Borrowed(path.as_os_str().as_bytes())
}

/// Reads from byte `at` on, and returns the number of bytes: 0 at the end. Repeats a call that a signal interrupted.
///
/// # Errors
/// When the file can't be read.
pub fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    uninterrupted(|| file.read_at(buf, at))
}

/// Writes at byte `at`, and returns the number of bytes. Repeats a call that a signal interrupted.
///
/// # Errors
/// When the file can't be written.
pub fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    uninterrupted(|| file.write_at(bytes, at))
}

fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Whether a file is a block device.
#[must_use]
pub fn is_block_device(kind: FileType) -> bool {
    kind.is_block_device()
}

/// The kind of a file that is not a regular file, a directory or a symbolic link.
#[must_use]
pub fn special_of(kind: FileType) -> Special {
    if kind.is_char_device() {
        Special::CharDevice
    } else if kind.is_block_device() {
        Special::BlockDevice
    } else if kind.is_fifo() {
        Special::Fifo
    } else {
        Special::Socket
    }
}

/// The two numbers that identify a file under all of its names; symbolic links are followed.
#[must_use]
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = path.metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Standard input as a file.
///
/// # Errors
/// When this process may open no more files.
pub fn stdin() -> io::Result<File> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

/// The user and group of this process.
#[must_use]
pub fn user() -> (u32, u32) {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    (user.as_raw(), group.as_raw())
}

pub(super) fn attributes(metadata: &Metadata) -> HostAttributes {
    // Always less than a second.
    let time = |seconds, nanoseconds: i64| (seconds, u32::try_from(nanoseconds).unwrap_or(0));
    let device = metadata.rdev() as rustix::fs::Dev;
    HostAttributes {
        mode: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        nlink: metadata.nlink(),
        identity: Some((metadata.dev(), metadata.ino())),
        rdev: (rustix::fs::major(device), rustix::fs::minor(device)),
        held: metadata.blocks().saturating_mul(HOST_BLOCK),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
    }
}
