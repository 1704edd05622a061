//! The operations, in the terms of Linux system calls run by root with `O_NOFOLLOW` everywhere.

use std::fmt;

/// Names from the root down; empty for the root itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub Vec<Vec<u8>>);

impl Path {
    /// The path spelled with slashes, relative to the root.
    #[must_use]
    pub fn new(text: &str) -> Path {
        Path(
            text.split('/')
                .filter(|name| !name.is_empty())
                .map(|name| name.as_bytes().to_vec())
                .collect(),
        )
    }

    /// The directory that holds the last name, and that name; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Path, &[u8])> {
        let (name, parents) = self.0.split_last()?;
        Some((Path(parents.to_vec()), name))
    }

    /// This path with one more name.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Path {
        let mut names = self.0.clone();
        names.push(name.to_vec());
        Path(names)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        for (index, name) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("/")?;
            }
            write!(f, "{}", String::from_utf8_lossy(name))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What an operation works on: a name, or a file kept open in a numbered slot.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// The inode with this name now.
    Path(Path),
    /// The inode that was opened into this slot, whatever its names are now.
    Slot(u8),
}

/// A node without contents of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Device {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device (major, minor).
    Char(u32, u32),
    /// A block device (major, minor).
    Block(u32, u32),
}

/// What `rename` does when the new name exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RenameFlag {
    /// Replaces it.
    Replace,
    /// Fails.
    NoReplace,
    /// Gives it the old name.
    Exchange,
}

/// The modes of `fallocate`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Allocate, and grow the file.
    Allocate,
    /// Allocate, also beyond the end, and leave the size.
    KeepSize,
    /// Make a hole.
    Punch,
    /// Make the range read as zeros and stay allocated; grow the file.
    Zero,
    /// As `Zero`, and leave the size.
    ZeroKeepSize,
    /// Cut the range out; whole blocks only.
    Collapse,
    /// Push what follows back and leave a hole; whole blocks only.
    Insert,
}

/// Whether `setxattr` may create or replace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum XattrFlag {
    /// Either.
    Any,
    /// Only create.
    Create,
    /// Only replace.
    Replace,
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The fields are the arguments of the system call that the variant names.
pub enum Op {
    /// `open(O_CREAT | O_EXCL)` and close.
    Create { path: Path, mode: u16 },
    /// `mkdir`.
    Mkdir { path: Path, mode: u16 },
    /// `mknod`.
    Mknod {
        path: Path,
        mode: u16,
        device: Device,
    },
    /// `symlink`.
    Symlink { path: Path, target: Vec<u8> },
    /// `link` (of a slot: as `linkat` of its `/proc/self/fd` entry).
    Link { from: Target, to: Path },
    /// `unlink`.
    Unlink { path: Path },
    /// `rmdir`.
    Rmdir { path: Path },
    /// `renameat2`.
    Rename {
        from: Path,
        to: Path,
        flag: RenameFlag,
    },
    /// `pwrite`.
    Write {
        file: Target,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// `truncate`.
    Truncate { file: Target, size: u64 },
    /// `fallocate`.
    Fallocate {
        file: Target,
        mode: Mode,
        offset: u64,
        len: u64,
    },
    /// `setxattr`.
    SetXattr {
        file: Target,
        name: Vec<u8>,
        value: Vec<u8>,
        flag: XattrFlag,
    },
    /// `removexattr`.
    RemoveXattr { file: Target, name: Vec<u8> },
    /// `chmod`.
    Chmod { file: Target, mode: u16 },
    /// `chown`.
    Chown { file: Target, uid: u32, gid: u32 },
    /// `open(O_RDWR)` of a regular file into a slot, closing what was there.
    Open { path: Path, slot: u8 },
    /// `open(O_TMPFILE)` in a directory into a slot, closing what was there.
    OpenTemp {
        directory: Path,
        slot: u8,
        mode: u16,
    },
    /// `close`; an empty slot stays empty.
    Close { slot: u8 },
    /// `fsync` of a file or directory.
    Fsync { file: Target },
    /// `fdatasync`.
    Fdatasync { file: Target },
    /// `syncfs`.
    Sync,
}

/// Why an operation was refused: the error numbers of Linux, by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(clippy::upper_case_acronyms, missing_docs)]
pub enum Errno {
    EPERM,
    ENOENT,
    EACCES,
    EBADF,
    EEXIST,
    ENOTDIR,
    EISDIR,
    EINVAL,
    EFBIG,
    ENOSPC,
    ERANGE,
    ENODATA,
    ELOOP,
    ENOTEMPTY,
    ENAMETOOLONG,
    EOPNOTSUPP,
    ENODEV,
    ENXIO,
    EBUSY,
    EMLINK,
    ESPIPE,
}
