//! The host's side of an extraction: names that can't leave the destination, and attributes as far as this user may set
//! them.
//!
//! Directories are opened below the destination without following any symbolic link, and files are created under a name
//! that must not exist, so neither a hostile image nor another process that plants links meanwhile leads a write
//! astray.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use sync::Counter;

use super::super::{Existing, Keep, Lost};
use crate::{Metadata, Xattr};

/// Bytes of all names of a file's attributes, and of one's value, that the host gives at most.
const XATTR_BYTES: usize = 1 << 16;

/// The names of the two ACLs.
pub const ACCESS_ACL: &CStr = c"system.posix_acl_access";
pub const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// The most bytes of a path that the kernel takes at once, with room to spare.
const MAX_PATH: usize = 4000;

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A handle that does not open what it stands for: nothing is read from or written to a device.
const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the destination, creating it (its last part only) when it is not there: for the directory `from` with the mode
/// that [`make_directory`] gives it. Returns a mode to set in the end as that does.
pub fn open_destination(
    path: &Path,
    from: Option<&Metadata>,
    umask: Option<u16>,
) -> io::Result<(OwnedFd, Option<Mode>)> {
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    let made = match (from, umask) {
        (Some(from), Some(umask)) => make_as_cp(CWD, &name, from, umask),
        _ => rustix::fs::mkdir(path, Mode::from_raw_mode(0o777)).map(|()| None),
    };
    let last = match made {
        Ok(last) => last,
        Err(Errno::EXIST) => None,
        Err(error) => return Err(error.into()),
    };
    // The destination itself is the user's choice, so here a symbolic link is followed.
    let flags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
    Ok((rustix::fs::openat(CWD, path, flags, Mode::empty())?, last))
}

/// Whether a directory holds nothing.
pub fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Opens a directory below another; `path` is relative, empty for the directory itself.
pub fn open_beneath(root: &OwnedFd, path: &[u8]) -> io::Result<OwnedFd> {
    let mut current = rustix::fs::openat(root, c".", DIRECTORY, Mode::empty())?;
    let mut rest = path;
    while !rest.is_empty() {
        let cut = if rest.len() <= MAX_PATH {
            rest.len()
        } else {
            rest[..MAX_PATH]
                .iter()
                .rposition(|byte| *byte == b'/')
                .unwrap_or(rest.len())
        };
        current = open_part(current.as_fd(), &rest[..cut])?;
        rest = rest.get(cut + 1..).unwrap_or_default();
    }
    Ok(current)
}

/// Opens a path of a few parts without following links, in one call where the kernel has openat2.
fn open_part(from: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if !device::host::follows_descriptors() {
        match rustix::fs::openat2(from, path, DIRECTORY, Mode::empty(), resolve) {
            // Old kernels do not have the call, and sandboxes forbid what they do not know.
            Err(Errno::NOSYS | Errno::PERM) => {}
            other => return Ok(other?),
        }
    }
    let mut current = from.try_clone_to_owned()?;
    for part in path
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
    {
        if part == b".." {
            return Err(Errno::INVAL.into());
        }
        current = rustix::fs::openat(&current, part, DIRECTORY, Mode::empty())?;
    }
    Ok(current)
}

/// Makes a directory; unless `existing` refuses, one that exists will do. Without an `umask` its attributes are set
/// later, and only we can enter it until then. Otherwise it gets the mode that `cp -r` gives, and where that mode can't
/// be the directory's before it is filled, the mode to set in the end is returned.
pub fn make_directory(
    parent: &OwnedFd,
    name: &CStr,
    metadata: &Metadata,
    umask: Option<u16>,
    existing: Existing,
) -> io::Result<Option<Mode>> {
    let made = match umask {
        None => rustix::fs::mkdirat(parent, name, Mode::RWXU).map(|()| None),
        Some(umask) => make_as_cp(parent.as_fd(), name, metadata, umask),
    };
    match made {
        Err(Errno::EXIST) if existing != Existing::Refuse => {
            // It must be a directory, not a link to one.
            rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?;
            Ok(None)
        }
        other => Ok(other?),
    }
}

/// Makes a directory as `cp -r` does: less the umask, without set-user-ID; set-group-ID is the parent's. Others may not
/// write to it before it is filled; that they may is added in the end, less the umask, also where the parent's default
/// ACL decides about all other bits. Returns the mode to set in the end, if it is another one.
fn make_as_cp(
    parent: BorrowedFd<'_>,
    name: &CStr,
    metadata: &Metadata,
    umask: u16,
) -> Result<Option<Mode>, Errno> {
    let others_write = Mode::WGRP | Mode::WOTH;
    let wanted = Mode::from_raw_mode(u32::from(metadata.mode) & 0o7777);
    rustix::fs::mkdirat(parent, name, wanted.difference(others_write) | Mode::RWXU)?;
    let made = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let made = Mode::from_raw_mode(made.st_mode & 0o7777);
    if !made.contains(Mode::RWXU) {
        // The umask took the owner's own rights.
        let handle = rustix::fs::openat(parent, name, PATH | OFlags::DIRECTORY, Mode::empty())?;
        rustix::fs::chmod(proc_path(&handle), made | Mode::RWXU)?;
    }
    let late = wanted & others_write & !Mode::from_raw_mode(umask.into());
    let last = made & (wanted | !Mode::RWXU) | late;
    Ok((last != made | Mode::RWXU).then_some(last))
}

/// Creates an entry under a name. Returns `None` where an existing entry of that name is kept; one that is replaced is
/// not a directory, and is removed first.
pub fn create<T>(
    parent: &OwnedFd,
    name: &CStr,
    existing: Existing,
    create: impl Fn() -> Result<T, Errno>,
) -> io::Result<Option<T>> {
    match create() {
        Err(Errno::EXIST) if existing == Existing::Keep => Ok(None),
        Err(Errno::EXIST) if existing == Existing::Replace => {
            rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
            Ok(Some(create()?))
        }
        other => Ok(Some(other?)),
    }
}

/// Creates a regular file under a name that does not exist.
pub fn create_file(parent: &OwnedFd, name: &CStr, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(mode))
}

/// Creates a device, FIFO or socket. With `keep_mode` only we can use it until its attributes are set; otherwise it
/// gets all bits of its mode that the umask leaves, as `cp -r` gives them.
pub fn create_node(
    parent: &OwnedFd,
    name: &CStr,
    metadata: &Metadata,
    keep_mode: bool,
) -> Result<(), Errno> {
    let (major, minor) = metadata.rdev;
    let device = rustix::fs::makedev(major, minor);
    let kind = FileType::from_raw_mode(metadata.mode.into());
    let mode = if keep_mode {
        0o600
    } else {
        u32::from(metadata.mode) & 0o7777
    };
    rustix::fs::mknodat(parent, name, kind, Mode::from_raw_mode(mode), device)
}

/// Sets what is to be kept of a file or directory that is open.
pub fn set_open(
    file: &OwnedFd,
    metadata: &Metadata,
    xattrs: &[Xattr],
    keep: &Keep,
    lost: &Lost,
) -> io::Result<()> {
    let mut owned = keep.owner;
    let made = rustix::fs::fstat(file)?;
    // Changing the owner takes set-user-ID and set-group-ID away, which a file that `cp` writes into may keep.
    if keep.owner && (made.st_uid, made.st_gid) != (metadata.uid, metadata.gid) {
        let chowned = set_owner(metadata, |uid, gid| fchown(file, uid, gid));
        owned = permitted(chowned, &lost.owners)?;
    }
    if keep.acls {
        for name in [ACCESS_ACL, DEFAULT_ACL] {
            // One that the directory above gave it; most have none.
            if !xattrs.iter().any(|xattr| xattr.name == name.to_bytes()) {
                let _ = rustix::fs::fremovexattr(file, name);
            }
        }
    }
    if keep.xattrs || keep.acls {
        for xattr in xattrs {
            let Ok(name) = CString::new(&*xattr.name) else {
                continue;
            };
            let set = rustix::fs::fsetxattr(file, &*name, &xattr.value, XattrFlags::empty());
            permitted(set, &lost.xattrs)?;
        }
    }
    if keep.mode {
        let mut mode = mode_bits(metadata, owned);
        if keep.special_bits && mode & 0o7000 == 0 {
            mode |= rustix::fs::fstat(file)?.st_mode & 0o7000;
        }
        let chmoded = fchmod(file, Mode::from_raw_mode(mode));
        permitted(chmoded, &lost.modes)?;
    }
    if keep.times {
        rustix::fs::futimens(file, &times(metadata))?;
    }
    Ok(())
}

/// Sets what is to be kept of something that can't be opened: a link, a device, a FIFO or a socket.
pub fn set_named(
    parent: &OwnedFd,
    name: &CStr,
    metadata: &Metadata,
    xattrs: &[Xattr],
    keep: &Keep,
    lost: &Lost,
) -> io::Result<()> {
    let mut owned = keep.owner;
    if keep.owner {
        let chowned = set_owner(metadata, |uid, gid| {
            rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        });
        owned = permitted(chowned, &lost.owners)?;
    }
    if keep.acls {
        let path = [proc_path(parent).as_bytes(), b"/", name.to_bytes()].concat();
        let _ = rustix::fs::lremovexattr(&*path, ACCESS_ACL);
    }
    if !xattrs.is_empty() {
        let path = [proc_path(parent).as_bytes(), b"/", name.to_bytes()].concat();
        for xattr in xattrs {
            let Ok(attribute) = CString::new(&*xattr.name) else {
                continue;
            };
            let flags = XattrFlags::empty();
            let set = rustix::fs::lsetxattr(&*path, &*attribute, &xattr.value, flags);
            permitted(set, &lost.xattrs)?;
        }
    }
    let is_link = metadata.mode & 0o170_000 == 0o120_000;
    if keep.mode && !is_link {
        let handle = rustix::fs::openat(parent, name, PATH, Mode::empty())?;
        let mode = Mode::from_raw_mode(mode_bits(metadata, owned));
        permitted(rustix::fs::chmod(proc_path(&handle), mode), &lost.modes)?;
    }
    if keep.times {
        rustix::fs::utimensat(parent, name, &times(metadata), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// What a file that is about to be replaced leaves to its successor, as if `cp` wrote into it: owner, mode, ACL and
/// extended attributes.
pub struct Inheritance {
    mode: u32,
    uid: u32,
    gid: u32,
    xattrs: Vec<(CString, Vec<u8>)>,
}

impl Inheritance {
    /// The metadata of the regular file that has a name; `None` if another kind of file has it.
    pub fn of(parent: &OwnedFd, name: &CStr) -> io::Result<Option<Inheritance>> {
        let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let path = [proc_path(parent).as_bytes(), b"/", name.to_bytes()].concat();
        let mut names = vec![0; XATTR_BYTES];
        // A file system without attributes, and attributes that this user may not read, leave none.
        let len = rustix::fs::llistxattr(&*path, &mut names[..]).unwrap_or(0);
        let mut value = vec![0; XATTR_BYTES];
        let mut xattrs = Vec::new();
        for name in names[..len].split_inclusive(|byte| *byte == 0) {
            // Writing into a file takes its capabilities away.
            let kept = CStr::from_bytes_with_nul(name).ok();
            let Some(name) = kept.filter(|name| *name != c"security.capability") else {
                continue;
            };
            if let Ok(len) = rustix::fs::lgetxattr(&*path, name, &mut value[..]) {
                xattrs.push((name.to_owned(), value[..len].to_vec()));
            }
        }
        Ok(Some(Inheritance {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            xattrs,
        }))
    }

    /// Gives it to the successor, as far as this user may and `keep` does not ask for what the image has.
    pub fn give(&self, file: &OwnedFd, keep: &Keep) -> io::Result<()> {
        let mut mode = self.mode;
        if !keep.owner || keep.special_bits {
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            let made = rustix::fs::fstat(file)?;
            let is_same = (made.st_uid, made.st_gid) == (self.uid, self.gid);
            if !is_same && fchown(file, Some(uid), Some(gid)).is_err() {
                mode &= 0o1777;
            }
        }
        if !keep.xattrs {
            let is_taken = |name: &CStr| keep.mode && name == c"system.posix_acl_access";
            for (name, value) in self.xattrs.iter().filter(|(name, _)| !is_taken(name)) {
                // Labels of the system may be refused; the file has its directory's then, as any new file.
                let _ = rustix::fs::fsetxattr(file, name, value, XattrFlags::empty());
            }
        }
        if !keep.mode || keep.special_bits {
            fchmod(file, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }
}

/// The name that the kernel gives to something open.
fn proc_path(file: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Whether it was done; what this user or the destination's file system does not permit is counted, not an error.
fn permitted(result: Result<(), Errno>, lost: &Counter) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::INVAL | Errno::NOENT) => {
            lost.add(1);
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// The permission bits to set; without the owner, set-user-ID and set-group-ID would give rights to the wrong one.
fn mode_bits(metadata: &Metadata, owned: bool) -> u32 {
    let mode = u32::from(metadata.mode) & 0o7777;
    if owned { mode } else { mode & 0o1777 }
}

/// Sets the mode of a file or directory that is open, by libc's function: rustix asks the kernel here, behind a
/// preloaded library's back.
pub fn fchmod(file: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode.as_raw_mode());
    let file = file.try_clone().map(std::fs::File::from);
    let done = file.and_then(|file| file.set_permissions(permissions));
    done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Sets owner and group, by libc's function as [`fchmod`].
fn fchown(file: &OwnedFd, uid: Option<Uid>, gid: Option<Gid>) -> Result<(), Errno> {
    let done = std::os::unix::fs::fchown(file, uid.map(Uid::as_raw), gid.map(Gid::as_raw));
    done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Sets owner and group; a user who may not set the owner sets the group alone, as `cp -p` does, and the call fails.
fn set_owner(
    metadata: &Metadata,
    chown: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // The one number that means "leave it".
    let uid = (metadata.uid != u32::MAX).then(|| Uid::from_raw(metadata.uid));
    let gid = (metadata.gid != u32::MAX).then(|| Gid::from_raw(metadata.gid));
    let chowned = chown(uid, gid);
    if chowned == Err(Errno::PERM) {
        // The error above is the one to report.
        let _ = chown(None, gid);
    }
    chowned
}

fn times(metadata: &Metadata) -> Timestamps {
    // Nanoseconds beyond a second would be refused or, worse, mean "now" or "leave it".
    let time = |time: crate::Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: i64::from(time.nanoseconds.min(999_999_999)),
    };
    Timestamps {
        last_access: time(metadata.atime),
        last_modification: time(metadata.mtime),
    }
}
