//! Files of Windows.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::windows::fs::FileExt;
use std::os::windows::io::AsHandle;
use std::path::Path;
use sync::clock::HostTime;

use super::{Attributes, Moment, Special};

/// A name of ext4 as one of the host, whose names are Unicode: bytes that are not UTF-8 become U+FFFD.
#[must_use]
pub fn name(bytes: &[u8]) -> Cow<'_, OsStr> {
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(name) => Cow::Borrowed(OsStr::new(name)),
        Cow::Owned(name) => Cow::Owned(OsString::from(name)),
    }
}

/// A path as ext4 has them: `/` between its parts takes the place of each `\`, so that no name of an image with a `\`
/// in it is reached. The length stays.
#[must_use]
pub fn path_bytes(path: &Path) -> Cow<'_, [u8]> {
    let bytes = path.as_os_str().as_encoded_bytes();
    match bytes.contains(&b'\\') {
        false => Cow::Borrowed(bytes),
        true => {
            let slash = |byte: &u8| if *byte == b'\\' { b'/' } else { *byte };
            Cow::Owned(bytes.iter().map(slash).collect())
        }
    }
}

/// Reads from byte `at` on; says how many bytes, none at the end. The file's own position moves, and nothing uses it.
///
/// # Errors
/// When the file can't be read.
pub fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    file.seek_read(buf, at)
}

/// Writes at byte `at`; says how many bytes. The file's own position moves, and nothing uses it.
///
/// # Errors
/// When the file can't be written.
pub fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    file.seek_write(bytes, at)
}

/// Whether it is a block device, which std does not say here.
#[must_use]
pub fn is_block_device(_kind: FileType) -> bool {
    false
}

/// What a file is that is neither a regular file nor a directory nor a symbolic link.
#[must_use]
pub fn special_of(_kind: FileType) -> Special {
    Special::Socket
}

/// Two numbers by which a file is known whatever its name, made from the one name that the system has for it; so of two
/// hard links each is a file of its own. Symbolic links are followed.
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

/// The user and group that files belong to.
#[must_use]
pub fn user() -> (u32, u32) {
    (0, 0)
}

pub(super) fn attributes(metadata: &Metadata) -> Attributes {
    let mtime = moment(metadata.modified());
    Attributes {
        mode: match metadata.is_dir() {
            true => 0o755,
            false => 0o644,
        },
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

/// 1970 where the file system does not tell.
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
