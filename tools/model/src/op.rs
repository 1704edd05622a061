//! The operations, in the terms of Linux system calls run by root with `O_NOFOLLOW` everywhere.

use std::fmt;

/// Names from the root down; empty for the root itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelPath(pub Vec<Vec<u8>>);

impl ModelPath {
    /// The path spelled with slashes, relative to the root.
    #[must_use]
    pub fn new(text: &str) -> ModelPath {
        ModelPath(
            text.split('/')
                .filter(|name| !name.is_empty())
                .map(|name| name.as_bytes().to_vec())
                .collect(),
        )
    }

    /// The directory that holds the last name, and that name; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(ModelPath, &[u8])> {
        let (name, parents) = self.0.split_last()?;
        Some((ModelPath(parents.to_vec()), name))
    }

    /// This path with one more name.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> ModelPath {
        let mut names = self.0.clone();
        names.push(name.to_vec());
        ModelPath(names)
    }
}

impl fmt::Display for ModelPath {
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

impl fmt::Debug for ModelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What an operation works on: a name, or a file kept open in a numbered slot.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum OpTarget {
    /// The inode with this name now.
    Path(ModelPath),
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
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails.
    NoReplace,
    /// Gives it the old name.
    Exchange,
    /// Replaces it, and leaves a whiteout under the old name.
    Whiteout,
}

/// The modes of `fallocate`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FallocateMode {
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
pub enum XattrCondition {
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
    Create { path: ModelPath, mode: u16 },
    /// `mkdir`.
    Mkdir { path: ModelPath, mode: u16 },
    /// `mknod`.
    Mknod {
        path: ModelPath,
        mode: u16,
        device: Device,
    },
    /// `symlink`.
    Symlink { path: ModelPath, target: Vec<u8> },
    /// `link` (of a slot: as `linkat` of its `/proc/self/fd` entry).
    Link { from: OpTarget, to: ModelPath },
    /// `unlink`.
    Unlink { path: ModelPath },
    /// `rmdir`.
    Rmdir { path: ModelPath },
    /// `renameat2`.
    Rename {
        from: ModelPath,
        to: ModelPath,
        flag: RenameMode,
    },
    /// `pwrite`.
    Write {
        file: OpTarget,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// `truncate`.
    Truncate { file: OpTarget, size: u64 },
    /// `fallocate`.
    Fallocate {
        file: OpTarget,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    /// `setxattr`.
    SetXattr {
        file: OpTarget,
        name: Vec<u8>,
        value: Vec<u8>,
        flag: XattrCondition,
    },
    /// `removexattr`.
    RemoveXattr { file: OpTarget, name: Vec<u8> },
    /// `chmod`.
    Chmod { file: OpTarget, mode: u16 },
    /// `chown`.
    Chown { file: OpTarget, uid: u32, gid: u32 },
    /// `open(O_RDWR)` of a regular file into a slot, closing what was there.
    Open { path: ModelPath, slot: u8 },
    /// `open(O_TMPFILE)` in a directory into a slot, closing what was there.
    OpenTemp {
        directory: ModelPath,
        slot: u8,
        mode: u16,
    },
    /// `close`; an empty slot stays empty.
    Close { slot: u8 },
    /// `fsync` of a file or directory.
    Fsync { file: OpTarget },
    /// `fdatasync`.
    Fdatasync { file: OpTarget },
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
