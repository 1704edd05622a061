//! Asks the kernel about one file: attributes, extended attributes, holes, and whether it can be read.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{Access, AtFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::super::limits;
use super::super::time::Time;
use super::super::tree::{Attributes, DataExtent};
use super::super::xattrs::{ACL_ACCESS, Xattrs, is_stored};

/// Mode, owner and times of `stat`.
pub(super) fn attributes(stat: &Stat) -> Attributes {
    // Some of the kernel's types hold times before 1970 in two's complement.
    let time = |seconds: i64, nanoseconds: i64| Time::new(seconds, nanoseconds as u32);
    Attributes {
        mode: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// The buffers of one thread, which are reused for each file.
pub(super) struct Prober {
    /// The path of the name that is asked about. If the thread has no working directory of its own, the path of the
    /// name's directory comes before it.
    path: Vec<u8>,
    directory: usize,
    own_working_directory: bool,
    list: Vec<u8>,
    value: Vec<u8>,
    effective_uid: u32,
}

impl Prober {
    /// For a thread whose working directory stays unchanged; [`Prober::enter`] must not be called.
    pub(super) fn new() -> Self {
        Self {
            path: Vec::new(),
            directory: 0,
            own_working_directory: false,
            list: vec![0; limits::XATTR_LIST],
            value: vec![0; limits::XATTR_VALUE],
            effective_uid: rustix::process::geteuid().as_raw(),
        }
    }

    /// For a thread that this program started. Kernels older than 6.13 can't read extended attributes relative to an
    /// open directory, and through /proc this takes twice as long. So the thread gets a working directory of its own,
    /// if that is permitted. The working directory of other threads does not change.
    pub(super) fn for_own_thread() -> Self {
        if device::host::follows_descriptors() {
            return Self::new();
        }
        // The function is deprecated because it can split the table of open files, which it does not do here.
        #[allow(deprecated)]
        let split = rustix::thread::unshare(rustix::thread::UnshareFlags::FS);
        Self {
            own_working_directory: split.is_ok(),
            ..Self::new()
        }
    }

    /// From now on names are relative to `directory`.
    pub(super) fn enter(&mut self, directory: BorrowedFd<'_>) {
        self.path.clear();
        self.directory = 0;
        if self.own_working_directory && rustix::process::fchdir(directory).is_ok() {
            return;
        }
        // Writing to a Vec does not fail.
        let _ = write!(self.path, "/proc/self/fd/{}/", directory.as_raw_fd());
        self.directory = self.path.len();
    }

    /// The extended attributes of `name` in the entered directory; symbolic links are not followed.
    pub(super) fn xattrs(&mut self, name: &CStr) -> Result<Xattrs, Errno> {
        self.path.truncate(self.directory);
        self.path.extend_from_slice(name.to_bytes());
        self.path.push(0);
        // The path ends with its only NUL, because names contain none.
        let path = CStr::from_bytes_until_nul(&self.path).map_err(|_| Errno::INVAL)?;
        // Most files have no attributes, and then asking for the length takes less time than asking for the list.
        let query = match rustix::fs::llistxattr_query(path) {
            Ok(0) | Err(Errno::NOTSUP | Errno::NOENT) => return Ok(Xattrs::default()),
            Ok(_) => rustix::fs::llistxattr(path, self.list.as_mut_slice()),
            Err(errno) => Err(errno),
        };
        let length = query?;
        let value = &mut self.value;
        collect(&self.list[..length], |name| {
            let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice())?;
            Ok(value[..length].to_vec())
        })
    }

    /// The extended attributes of an open file or directory.
    pub(super) fn xattrs_of(&mut self, fd: BorrowedFd<'_>) -> Result<Xattrs, Errno> {
        let length = match rustix::fs::flistxattr(fd, self.list.as_mut_slice()) {
            Ok(length) => length,
            Err(Errno::NOTSUP) => return Ok(Xattrs::default()),
            Err(errno) => return Err(errno),
        };
        let value = &mut self.value;
        collect(&self.list[..length], |name| {
            let length = rustix::fs::fgetxattr(fd, name, value.as_mut_slice())?;
            Ok(value[..length].to_vec())
        })
    }

    /// Whether file `name` can be opened for reading. If its mode does not decide that, the kernel is asked.
    pub(super) fn readable(
        &self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
        xattrs: &Xattrs,
    ) -> Result<(), Errno> {
        let granted = if stat.st_uid == self.effective_uid {
            stat.st_mode & 0o400 != 0
        } else {
            stat.st_mode & 0o044 == 0o044 && xattrs.get(ACL_ACCESS).is_none()
        };
        if granted {
            return Ok(());
        }
        rustix::fs::accessat(directory, name, Access::READ_OK, AtFlags::EACCESS)
    }
}

fn collect(
    names: &[u8],
    mut value: impl FnMut(&CStr) -> Result<Vec<u8>, Errno>,
) -> Result<Xattrs, Errno> {
    let mut xattrs = Xattrs::default();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        if is_stored(name.to_bytes()) {
            match value(name) {
                Ok(value) => xattrs.set(name.to_bytes(), &value),
                // The attribute was removed meanwhile, or the file may not be read, which is reported separately.
                Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::NOTSUP) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(xattrs)
}

/// The data extents of `file` below `size`; `None` if it has no holes.
pub(super) fn extents(file: impl AsFd, size: u64) -> Result<Option<Vec<DataExtent>>, Errno> {
    let file = file.as_fd();
    let mut extents: Vec<DataExtent> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // No data follow.
            Err(Errno::NXIO) => break,
            // The file system does not report holes: everything is data.
            Err(Errno::INVAL | Errno::NOTSUP) if at == 0 => return Ok(None),
            Err(errno) => return Err(errno),
        };
        if start >= size || start < at {
            break;
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        if end <= start {
            break;
        }
        extents.push(DataExtent {
            offset: start,
            len: end - start,
        });
        if extents.len() > limits::EXTENTS {
            return Err(Errno::FBIG);
        }
        at = end;
    }
    let whole = DataExtent {
        offset: 0,
        len: size,
    };
    Ok((size > 0 && extents != [whole]).then_some(extents))
}
