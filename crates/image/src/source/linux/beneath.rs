//! Files in an open directory: neither a symbolic link nor a directory that is moved meanwhile can redirect a path.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The directory in which files are opened.
pub(in super::super) type Root = OwnedFd;

/// Opens the directory with this path.
pub(in super::super) fn open_root(path: &Path) -> io::Result<Root> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens the file at `relative` for reading. No symbolic link is followed.
pub(in super::super) fn open_file(root: &Root, relative: &[u8]) -> io::Result<File> {
    Ok(open_beneath(root.as_fd(), relative, OFlags::empty())?.into())
}

/// Opens the directory at `relative`. No symbolic link is followed.
pub(in super::super) fn open_folder(root: &Root, relative: &[u8]) -> io::Result<Root> {
    Ok(open_beneath(root.as_fd(), relative, OFlags::DIRECTORY)?)
}

/// The longest path for one system call, with room for its NUL.
const ONE_CALL: usize = 4000;

/// Opens the file at `relative` in `root` for reading, with `more` flags. No symbolic link is followed.
pub(in super::super) fn open_beneath(
    root: BorrowedFd<'_>,
    relative: &[u8],
    more: OFlags,
) -> Result<OwnedFd, Errno> {
    if relative.len() <= ONE_CALL {
        return open_once(root, relative, more);
    }
    let mut directory: Option<OwnedFd> = None;
    let mut rest = relative;
    while rest.len() > ONE_CALL {
        let slash = rest[..ONE_CALL].iter().rposition(|byte| *byte == b'/');
        let at = slash.ok_or(Errno::NAMETOOLONG)?;
        let from = directory.as_ref().map_or(root, |fd| fd.as_fd());
        directory = Some(open_once(from, &rest[..at], OFlags::DIRECTORY)?);
        rest = &rest[at + 1..];
    }
    open_once(directory.as_ref().map_or(root, |fd| fd.as_fd()), rest, more)
}

/// Opens the file at `name` for reading. Symbolic links are followed as if `root` were the root directory (chroot).
pub(in super::super) fn open_in_root(root: &Root, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat2(root, name, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        // Kernels before 5.6, and some sandboxes, do not have openat2(2). Then no symbolic link is followed.
        Err(Errno::NOSYS) => open_file(root, name.as_bytes()),
        result => Ok(result?.into()),
    }
}

/// Opens a directory as [`open_beneath`] does, but through libc if a preloaded library needs that.
pub(in super::super) fn open_directory(
    root: BorrowedFd<'_>,
    relative: &[u8],
) -> Result<OwnedFd, Errno> {
    if !device::host::follows_descriptors() {
        return open_beneath(root, relative, OFlags::DIRECTORY);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECTORY;
    let mut directory = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    let parts = relative.split(|byte| *byte == b'/');
    for part in parts.filter(|part| !part.is_empty() && *part != b".") {
        directory = rustix::fs::openat(&directory, part, flags, Mode::empty())?;
    }
    Ok(directory)
}

fn open_once(root: BorrowedFd<'_>, relative: &[u8], more: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | more;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    // NOATIME: the build should not change times of access in the source. Only owners and root may set it.
    for flags in [flags | OFlags::NOATIME, flags] {
        match rustix::fs::openat2(root, relative, flags, Mode::empty(), resolve) {
            Err(Errno::PERM) => {}
            // Kernels before 5.6, and some sandboxes, do not have openat2(2).
            Err(Errno::NOSYS) => break,
            result => return result,
        }
    }
    rustix::fs::openat(root, relative, flags, Mode::empty())
}
