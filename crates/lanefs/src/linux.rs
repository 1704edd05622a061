//! Errors, holes and extended attributes on Linux. `elsewhere` has the same functions for other systems.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::host_run::HostRun;

/// The most bytes of all attribute names of a file, and of one value, on the host.
const XATTR_BYTES: usize = 1 << 16;

/// Error numbers.
pub(crate) mod errno {
    use std::io;

    pub use rustix::io::Errno;

    /// The host's error of this number.
    #[must_use]
    pub fn as_io_error(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }

    /// The number of an error of the host.
    pub(crate) fn from_io_error(error: &io::Error) -> Errno {
        Errno::from_io_error(error).unwrap_or(Errno::IO)
    }
}

/// The run of data or zeros from byte `at` of a file on.
pub(crate) fn next_run(file: &File, at: u64) -> io::Result<HostRun> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(HostRun::End(rustix::fs::seek(file, SeekFrom::End(0))?)),
        // A pipe, or a file system that does not record holes.
        Err(Errno::SPIPE | Errno::INVAL) => return Ok(HostRun::Unknown),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    Ok(HostRun::Data(start..end))
}

/// The names of a file's extended attributes; empty if its file system has none.
pub(crate) fn list_xattrs(path: &Path, follows: bool) -> io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; XATTR_BYTES];
    let listed = if follows {
        rustix::fs::listxattr(path, &mut names[..])
    } else {
        rustix::fs::llistxattr(path, &mut names[..])
    };
    let len = match listed {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let names = names[..len].split(|byte| *byte == 0);
    Ok(names
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect())
}

/// The value of an extended attribute; `None` if it was removed, or this user may not read it.
pub(crate) fn xattr(path: &Path, name: &[u8], follows: bool) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; XATTR_BYTES];
    let read = if follows {
        rustix::fs::getxattr(path, name, &mut value[..])
    } else {
        rustix::fs::lgetxattr(path, name, &mut value[..])
    };
    match read {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
