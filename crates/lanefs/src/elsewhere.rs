//! Errors, holes and extended attributes on systems other than Linux, with std alone: the same functions as in `linux`.
//! Files are read whole, holes as zeros, without their extended attributes.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::host_run::HostRun;

/// Error numbers. They are Linux's on every host, because ext4's errors are Linux's.
pub(crate) mod errno {
    use std::io::{self, ErrorKind};

    /// The number of an error on Linux.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Errno(i32);

    impl Errno {
        /// `EACCES`
        pub const ACCESS: Errno = Errno(13);
        /// `EBADF`
        pub const BADF: Errno = Errno(9);
        /// `EBUSY`
        pub const BUSY: Errno = Errno(16);
        /// `EEXIST`
        pub const EXIST: Errno = Errno(17);
        /// `EFBIG`
        pub const FBIG: Errno = Errno(27);
        /// `EINTR`
        pub const INTR: Errno = Errno(4);
        /// `EINVAL`
        pub const INVAL: Errno = Errno(22);
        /// `EIO`
        pub const IO: Errno = Errno(5);
        /// `EISDIR`
        pub const ISDIR: Errno = Errno(21);
        /// `ELOOP`
        pub const LOOP: Errno = Errno(40);
        /// `EMLINK`
        pub const MLINK: Errno = Errno(31);
        /// `ENAMETOOLONG`
        pub const NAMETOOLONG: Errno = Errno(36);
        /// `ENODATA`
        pub const NODATA: Errno = Errno(61);
        /// `ENOENT`
        pub const NOENT: Errno = Errno(2);
        /// `ENOKEY`
        pub const NOKEY: Errno = Errno(126);
        /// `ENOSPC`
        pub const NOSPC: Errno = Errno(28);
        /// `ENOTDIR`
        pub const NOTDIR: Errno = Errno(20);
        /// `ENOTEMPTY`
        pub const NOTEMPTY: Errno = Errno(39);
        /// `EOPNOTSUPP`
        pub const OPNOTSUPP: Errno = Errno(95);
        /// `EPERM`
        pub const PERM: Errno = Errno(1);
        /// `ERANGE`
        pub const RANGE: Errno = Errno(34);
        /// `EROFS`
        pub const ROFS: Errno = Errno(30);
        /// `ESTALE`
        pub const STALE: Errno = Errno(116);
        /// `E2BIG`
        pub const TOOBIG: Errno = Errno(7);
        /// `EUCLEAN`
        pub const UCLEAN: Errno = Errno(117);

        /// The number.
        #[must_use]
        pub const fn raw_os_error(self) -> i32 {
            self.0
        }
    }

    /// The host's error of the same kind as Linux's error of this number.
    #[must_use]
    pub fn as_io_error(errno: Errno) -> io::Error {
        let kind = match errno {
            Errno::EXIST => ErrorKind::AlreadyExists,
            Errno::TOOBIG => ErrorKind::ArgumentListTooLong,
            Errno::NOTEMPTY => ErrorKind::DirectoryNotEmpty,
            Errno::FBIG => ErrorKind::FileTooLarge,
            Errno::INTR => ErrorKind::Interrupted,
            Errno::UCLEAN => ErrorKind::InvalidData,
            Errno::NAMETOOLONG => ErrorKind::InvalidFilename,
            Errno::BADF | Errno::INVAL | Errno::LOOP | Errno::RANGE => ErrorKind::InvalidInput,
            Errno::ISDIR => ErrorKind::IsADirectory,
            Errno::NOTDIR => ErrorKind::NotADirectory,
            Errno::NODATA | Errno::NOENT => ErrorKind::NotFound,
            Errno::ACCESS | Errno::NOKEY | Errno::PERM => ErrorKind::PermissionDenied,
            Errno::ROFS => ErrorKind::ReadOnlyFilesystem,
            Errno::BUSY => ErrorKind::ResourceBusy,
            Errno::STALE => ErrorKind::StaleNetworkFileHandle,
            Errno::NOSPC => ErrorKind::StorageFull,
            Errno::MLINK => ErrorKind::TooManyLinks,
            Errno::OPNOTSUPP => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        };
        kind.into()
    }

    /// Linux's number for an error of this kind.
    pub(crate) fn from_io_error(error: &io::Error) -> Errno {
        match error.kind() {
            ErrorKind::AlreadyExists => Errno::EXIST,
            ErrorKind::ArgumentListTooLong => Errno::TOOBIG,
            ErrorKind::DirectoryNotEmpty => Errno::NOTEMPTY,
            ErrorKind::FileTooLarge => Errno::FBIG,
            ErrorKind::Interrupted => Errno::INTR,
            ErrorKind::InvalidData => Errno::UCLEAN,
            ErrorKind::InvalidFilename => Errno::NAMETOOLONG,
            ErrorKind::InvalidInput => Errno::INVAL,
            ErrorKind::IsADirectory => Errno::ISDIR,
            ErrorKind::NotADirectory => Errno::NOTDIR,
            ErrorKind::NotFound => Errno::NOENT,
            ErrorKind::PermissionDenied => Errno::ACCESS,
            ErrorKind::ReadOnlyFilesystem => Errno::ROFS,
            ErrorKind::ResourceBusy => Errno::BUSY,
            ErrorKind::StaleNetworkFileHandle => Errno::STALE,
            ErrorKind::StorageFull => Errno::NOSPC,
            ErrorKind::TooManyLinks => Errno::MLINK,
            ErrorKind::Unsupported => Errno::OPNOTSUPP,
            _ => Errno::IO,
        }
    }
}

/// The run of data or zeros from byte `at` of a file on: everything counts as data.
pub(crate) fn next_run(file: &File, at: u64) -> io::Result<HostRun> {
    let metadata = file.metadata()?;
    Ok(match (metadata.is_file(), metadata.len()) {
        (true, size) if at < size => HostRun::Data(at..size),
        (true, size) => HostRun::End(size),
        (false, _) => HostRun::Unknown,
    })
}

/// The names of a file's extended attributes: not read here, so none.
pub(crate) fn list_xattrs(_path: &Path, _follows: bool) -> io::Result<Vec<Vec<u8>>> {
    Ok(Vec::new())
}

/// The value of an extended attribute: not read here, so none.
pub(crate) fn xattr(_path: &Path, _name: &[u8], _follows: bool) -> io::Result<Option<Vec<u8>>> {
    Ok(None)
}
