//! Files on Windows.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::windows::fs::FileExt;
use std::os::windows::io::AsHandle;
use std::path::Path;
use sync::clock::HostTime;

use super::{HostAttributes, Moment, Special};

/// A name of ext4 as a name of the host, which is Unicode: bytes that are not UTF-8 become U+FFFD.
#[must_use]
pub fn name(bytes: &[u8]) -> Cow<'_, OsStr> {
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(name) => Cow::Borrowed(OsStr::new(name)),
        Cow::Owned(name) => Cow::Owned(OsString::from(name)),
    }
}

/// The bytes of a path with `/` in place of each `\`, so names of an image that contain `\` can't be reached. The
/// length is unchanged.
#[must_use]
pub fn path_bytes(path: &Path) -> Cow<'_, [u8]> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.contains(&b'\\') {
        let slash = |byte: &u8| if *byte == b'\\' { b'/' } else { *byte };
        Cow::Owned(bytes.iter().map(slash).collect())
    } else {
        Cow::Borrowed(bytes)
    }
}

/// Reads from byte `at` on, and returns the number of bytes: 0 at the end. Moves the file's own position, which nothing
/// uses.
///
/// # Errors
/// When the file can't be read.
pub fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    file.seek_read(buf, at)
}

/// Writes at byte `at`, and returns the number of bytes. Moves the file's own position, which nothing uses.
///
/// # Errors
/// When the file can't be written.
pub fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    file.seek_write(bytes, at)
}

/// Whether a file is a block device: std can't tell here.
#[must_use]
pub fn is_block_device(_kind: FileType) -> bool {
    false
}

/// The kind of a file that is not a regular file, a directory or a symbolic link.
#[must_use]
pub fn special_of(_kind: FileType) -> Special {
    Special::Socket
}

/// Two numbers that identify a file, made from its canonical path; so two hard links count as two files. Symbolic links
/// are followed.
#[must_use]
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    let path = path.canonicalize().ok()?;
    let half = |first: u8| {
        let mut hasher = DefaultHasher::new();
        (first, &path).hash(&mut hasher);
        hasher.finish()
    };
    Some((half(0), half(1)))
}

/// Standard input as a file.
///
/// # Errors
/// When this process may open no more files.
pub fn stdin() -> io::Result<File> {
    Ok(io::stdin().as_handle().try_clone_to_owned()?.into())
}

/// The user and group to which all files belong.
#[must_use]
pub fn user() -> (u32, u32) {
    (0, 0)
}

pub(super) fn attributes(metadata: &Metadata) -> HostAttributes {
    let mtime = moment(metadata.modified());
    HostAttributes {
        mode: if metadata.is_dir() { 0o755 } else { 0o644 },
        uid: 0,
        gid: 0,
        nlink: 1,
        identity: None,
        rdev: (0, 0),
        held: metadata.len(),
        atime: moment(metadata.accessed()),
        mtime,
        ctime: mtime,
    }
}

/// 1970 if the file system does not record it.
fn moment(time: io::Result<HostTime>) -> Moment {
    let since = time
        .ok()
        .and_then(|time| time.duration_since(HostTime::UNIX_EPOCH).ok());
    since.map_or((0, 0), |since| {
        (
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            since.subsec_nanos(),
        )
    })
}
