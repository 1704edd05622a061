//! Files without names, for bytes that are read again.

use std::fs::File;
use std::io;

use rustix::fs::MemfdFlags;

/// An empty file in memory, called `name` where the kernel lists it.
pub(in super::super) fn in_memory(name: &str) -> io::Result<File> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

/// Bytes that this user may still write to the file system of `file`; `None` where that is unknown.
pub(in super::super) fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    let found = rustix::fs::fstatvfs(file)?;
    Ok(Some(found.f_bavail.saturating_mul(found.f_frsize)))
}
