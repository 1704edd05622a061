//! Files on systems other than Linux, with std alone: the same functions as in `linux`.
//!
//! An image that is written to is a regular file here; a block device is opened for reading only. The locks of std keep
//! other lanefs processes away; other programs that hold a file are not detected. No space is reserved, and no hole is
//! made or found, so a write may fail because the disk is full.

/// Opening, locking and sizes of files, for [`FileDevice`](crate::FileDevice).
pub(crate) mod files {
    use std::fs::{File, FileType, TryLockError};
    use std::io::{self, ErrorKind};
    use std::ops::Range;
    use std::path::Path;

    use super::ground::Ground;
    use crate::file::{Kind, OpenFailure, OpenMode};
    use crate::purpose::Purpose;

    /// The most names that are tried for a temporary file.
    const NAMES: u32 = 100;

    /// Opens a regular file or a block device. Anything else under that name is not opened, because opening might wait.
    pub(crate) fn open(path: &Path, access: OpenMode) -> Result<File, OpenFailure> {
        if let Ok(found) = path.metadata()
            && let Kind::Other(what) = kind_of(found.file_type())
            && access != OpenMode::CreateNew
        {
            let text = format!("it is {what}; an image must be a regular file");
            return Err(OpenFailure::Failed(io::Error::new(
                ErrorKind::Unsupported,
                text,
            )));
        }
        let mut options = File::options();
        options.read(true);
        match access {
            OpenMode::Read => &mut options,
            OpenMode::Write | OpenMode::Beside => options.write(true),
            OpenMode::Create => options.write(true).create(true),
            OpenMode::CreateNew => options.write(true).create_new(true),
        };
        options.open(path).map_err(|error| match error.kind() {
            ErrorKind::ResourceBusy => OpenFailure::InUse("the system has claimed it".to_owned()),
            _ => OpenFailure::Failed(error),
        })
    }

    fn kind_of(kind: FileType) -> Kind {
        if kind.is_file() {
            Kind::Regular
        } else if kind.is_dir() {
            Kind::Other("a directory")
        } else if crate::host::is_block_device(kind) {
            Kind::BlockDevice
        } else {
            Kind::Other("a device, pipe or socket")
        }
    }

    /// The kind and identity of an open file.
    pub(crate) fn identify(file: &File) -> io::Result<(Kind, Ground)> {
        let metadata = file.metadata()?;
        Ok((kind_of(metadata.file_type()), Ground::of(&metadata)))
    }

    /// Whether a block device refuses writes: here every one counts as write-protected.
    pub(crate) fn is_write_protected(_device: &File) -> io::Result<bool> {
        Ok(true)
    }

    /// Takes std's lock, exclusive for writers; a file system without locks needs none. Returns `false` if another open
    /// file has a lock that excludes this one.
    pub(crate) fn try_lock(file: &File, purpose: Purpose) -> io::Result<bool> {
        let locked = match purpose {
            Purpose::Read => file.try_lock_shared(),
            Purpose::Write => file.try_lock(),
        };
        match locked {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The first byte at or after `at` that may not be zero: `at`, because holes are not known here.
    pub(crate) fn data_from(_file: &File, at: u64) -> Option<u64> {
        Some(at)
    }

    /// Does nothing: no way to read ahead is used here.
    pub(crate) fn will_read(_file: &File, _range: &Range<u64>) {}

    /// The longest file that this process may write: no limit is detected here.
    pub(crate) fn longest_file() -> Option<u64> {
        None
    }

    /// Reserves space for a range: not supported here.
    pub(crate) fn reserve(
        _file: &File,
        _range: &Range<u64>,
        _longest: Option<u64>,
    ) -> io::Result<bool> {
        Ok(false)
    }

    /// Frees the space of a range: not supported here, so the bytes stay.
    pub(crate) fn punch(_file: &File, _range: &Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Makes a file in `folder` and removes its name at once.
    ///
    /// # Errors
    /// If no file can be made there.
    pub fn open_unnamed(folder: &Path) -> io::Result<File> {
        for number in 0..NAMES {
            let path = folder.join(format!(".lanefs-{}-{number}.spool", std::process::id()));
            let made = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path);
            match made {
                Ok(file) => {
                    std::fs::remove_file(&path)?;
                    return Ok(file);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

/// The identity of files.
pub(crate) mod ground {
    use std::fs::{File, Metadata};
    use std::io;
    use std::path::Path;
    use sync::clock::HostTime;

    use crate::host::HostAttributes;

    /// The identity of a file: its numbers, and its creation time, which distinguishes files without numbers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) struct Ground {
        numbers: Option<(u64, u64)>,
        made: Option<HostTime>,
    }

    /// A file behind a loop device, which only Linux has.
    pub(crate) enum Layer {}

    impl Layer {
        pub(crate) fn path(&self) -> &Path {
            match *self {}
        }

        pub(crate) fn open(&self, _read_only: bool) -> io::Result<Option<File>> {
            match *self {}
        }
    }

    impl Ground {
        pub(crate) fn of_path(path: &Path) -> Option<Ground> {
            path.metadata().ok().map(|metadata| Ground::of(&metadata))
        }

        pub(crate) fn of(metadata: &Metadata) -> Ground {
            Ground {
                numbers: HostAttributes::of(metadata).identity,
                made: metadata.created().ok(),
            }
        }

        pub(crate) fn layers(&self) -> &[Layer] {
            &[]
        }

        pub(crate) fn is_same(&self, other: &Ground) -> bool {
            self == other
        }

        pub(crate) fn is_file(&self) -> bool {
            true
        }

        pub(crate) fn has_anchor(&self) -> bool {
            false
        }
    }
}

/// Which program holds a file: not detected here.
pub(crate) mod holder {
    use super::ground::Ground;
    use crate::purpose::Purpose;

    pub(crate) fn in_kernel(_ground: &Ground, _purpose: Purpose) -> Option<String> {
        None
    }

    pub(crate) fn with_lock(_ground: &Ground) -> String {
        "another program, or this one, has a lock on it".to_owned()
    }

    pub(crate) fn writer(_ground: &Ground) -> Option<String> {
        None
    }

    pub(crate) fn is_own_writer(_ground: &Ground) -> bool {
        false
    }
}

/// Whether a file is open for writing: not detected here.
pub(crate) mod lease {
    use std::path::Path;

    pub(crate) fn is_open_for_writing(_path: &Path) -> Option<bool> {
        None
    }
}

/// Preloaded libraries.
pub(crate) mod preload {
    /// Whether a preloaded library keeps its own list of open directories: no known library does here.
    #[must_use]
    pub fn follows_descriptors() -> bool {
        false
    }
}
