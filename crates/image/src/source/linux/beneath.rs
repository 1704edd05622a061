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
        Err(error) if may_lack_openat2(error) => open_file(root, name.as_bytes()),
        result => Ok(result?.into()),
    }
}

/// Opens a directory as [`open_beneath`] does, but through libc if a preloaded library needs that.
pub(in super::super) fn open_directory(
    root: BorrowedFd<'_>,
    relative: &[u8],
) -> Result<OwnedFd, Errno> {
    if device::host::follows_descriptors() {
        open_by_parts(root, relative, OFlags::DIRECTORY)
    } else {
        open_beneath(root, relative, OFlags::DIRECTORY)
    }
}

/// Whether an error of openat2(2) may mean that the call is missing: in kernels before 5.6, and in sandboxes whose
/// filter refuses it. Then files are opened part by part, and no symbolic link is followed.
fn may_lack_openat2(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::PERM)
}

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// Calls `open` with NOATIME: the build should not change times of access in the source. Only owners and root may set
/// it, so it is left out where it is refused.
fn without_trace(
    flags: OFlags,
    open: impl Fn(OFlags) -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        result => result,
    }
}

fn open_once(root: BorrowedFd<'_>, relative: &[u8], more: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let open = |flags| rustix::fs::openat2(root, relative, flags, Mode::empty(), resolve);
    match without_trace(FLAGS | OFlags::NONBLOCK | more, open) {
        Err(error) if may_lack_openat2(error) => open_by_parts(root, relative, more),
        result => result,
    }
}

/// Opens what is at `relative` below `root` with a call for each part of the path, none of which may be a symbolic link
/// or `..`.
fn open_by_parts(root: BorrowedFd<'_>, relative: &[u8], more: OFlags) -> Result<OwnedFd, Errno> {
    if relative.starts_with(b"/") {
        return Err(Errno::XDEV);
    }
    let parts = relative.split(|byte| *byte == b'/');
    let mut parts = parts.filter(|part| !part.is_empty() && *part != b".");
    let mut directory = rustix::fs::openat(root, c".", FLAGS | OFlags::DIRECTORY, Mode::empty())?;
    let Some(mut name) = parts.next() else {
        return Ok(directory);
    };
    loop {
        if name == b".." {
            return Err(Errno::XDEV);
        }
        let Some(next) = parts.next() else { break };
        directory = rustix::fs::openat(&directory, name, FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        name = next;
    }
    without_trace(FLAGS | OFlags::NONBLOCK | more, |flags| {
        rustix::fs::openat(&directory, name, flags, Mode::empty())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn parts_of_a_path_are_neither_links_nor_lead_up() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("in/deep/er")).unwrap();
        std::fs::write(at("out"), b"secret").unwrap();
        std::fs::write(at("in/deep/er/file"), b"open").unwrap();
        symlink("..", at("in/up")).unwrap();
        symlink("deep", at("in/link")).unwrap();
        symlink("er/file", at("in/deep/last")).unwrap();
        let root = open_root(&at("in")).unwrap();
        let open = |name: &str, more| open_by_parts(root.as_fd(), name.as_bytes(), more);
        for name in ["deep/er/file", "./deep//er/file"] {
            let mut text = String::new();
            let mut file = File::from(open(name, OFlags::empty()).unwrap());
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "open", "{name}");
        }
        for name in ["", ".", "deep", "deep/er/"] {
            assert!(open(name, OFlags::DIRECTORY).is_ok(), "{name}");
        }
        for name in ["deep/er/file", "link", "link/er"] {
            let error = open(name, OFlags::DIRECTORY).unwrap_err();
            assert_eq!(error, Errno::NOTDIR, "{name}");
        }
        for name in ["../out", "deep/../../out", "deep/..", "..", "/etc/passwd"] {
            let error = open(name, OFlags::empty()).unwrap_err();
            assert_eq!(error, Errno::XDEV, "{name}");
        }
        for name in ["up/out", "link/er/file"] {
            let error = open(name, OFlags::empty()).unwrap_err();
            assert_eq!(error, Errno::NOTDIR, "{name}");
        }
        assert_eq!(open("deep/last", OFlags::empty()).unwrap_err(), Errno::LOOP);
    }
}
