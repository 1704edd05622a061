//! Temporary files without names.

use std::fs::File;
use std::io;

use rustix::fs::MemfdFlags;

/// Makes an empty file in memory. The kernel shows `name` for it in /proc.
pub(in super::super) fn in_memory(name: &str) -> io::Result<File> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

/// Bytes that this user can still write to the file system of `file`; `None` if that is not known.
pub(in super::super) fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let found = rustix::fs::fstatvfs(file)?;
    Ok(Some(found.f_bavail.saturating_mul(found.f_frsize)))
}
