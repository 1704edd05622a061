//! The file system by path, in the manner of `std::fs`.
//!
//! Paths begin at the root of the image, with or without a leading `/`; symbolic links in them stay within
//! the image. All methods take `&self`, may be called from any number of threads, and may block on I/O; readers of
//! different files share no lock. Nothing is written.

use std::ffi::OsStr;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use device::{BlockDevice, FileDevice};
use engine::{FileType, Ino, InodeRef, Metadata, OpenOptions, StatFs};
use sync::Arc;

use crate::Error;
use crate::locate::{Location, locate};

/// The most bytes of a file that [`Fs::read`] takes into memory.
const MAX_READ: u64 = 1 << 40;

/// An open ext2, ext3 or ext4 file system.
pub struct Fs(pub(crate) engine::Fs);

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Its inode.
    pub ino: Ino,
    /// Its name, as bytes.
    pub name: Vec<u8>,
    /// Its type as the directory says it, where directories do (`filetype`).
    pub file_type: Option<FileType>,
}

impl DirEntry {
    /// The name, as the operating system writes names.
    #[must_use]
    pub fn file_name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }
}

impl Fs {
    /// Opens an image file or a block device that holds a file system as a whole.
    ///
    /// # Errors
    /// When it can't be opened, holds something else (which is named), or is broken at its root.
    pub fn open(path: impl AsRef<Path>) -> Result<Fs, Error> {
        Fs::open_at(Arc::new(FileDevice::open_read_only(path)?), Location::Whole)
    }

    /// Opens the file system at a place on a device: on the whole, in a partition, or from an offset on.
    ///
    /// # Errors
    /// As for [`Fs::open`].
    pub fn open_at(device: Arc<dyn BlockDevice>, location: Location) -> Result<Fs, Error> {
        Fs::open_with(locate(device, location)?, &OpenOptions::default())
    }

    /// Opens the file system on a device, with all choices there are.
    ///
    /// # Errors
    /// When the device holds no ext2/3/4, or one that is broken at its root.
    pub fn open_with(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Fs, Error> {
        Ok(Fs(engine::Fs::open(device, options)?))
    }

    /// The same file system by inode number.
    #[must_use]
    pub fn inodes(&self) -> &engine::Fs {
        &self.0
    }

    /// The inode that a path leads to.
    ///
    /// # Errors
    /// When a part of the path does not exist or is no directory, or there are too many links.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<Ino, Error> {
        self.find(path.as_ref(), true)
    }

    pub(crate) fn find(&self, path: &Path, follow_last: bool) -> Result<Ino, Error> {
        let bytes = path.as_os_str().as_bytes();
        self.0
            .resolve(bytes, follow_last)
            .map_err(|error| Error::at(bytes, error))
    }

    fn inode(&self, path: &Path, follow_last: bool) -> Result<InodeRef<'_>, Error> {
        let ino = self.find(path, follow_last)?;
        self.0
            .inode(ino)
            .map_err(|error| Error::at(path.as_os_str().as_bytes(), error))
    }

    /// What `stat` tells of a path; symbolic links are followed.
    ///
    /// # Errors
    /// As for [`Fs::resolve`], and when the inode is broken.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        Ok(self.inode(path.as_ref(), true)?.metadata())
    }

    /// What `lstat` tells of a path: a symbolic link at its end is not followed.
    ///
    /// # Errors
    /// As for [`Fs::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        Ok(self.inode(path.as_ref(), false)?.metadata())
    }

    /// Whether a path leads to something.
    ///
    /// # Errors
    /// When that can't be told, since the image is broken or its device fails.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        match self.find(path.as_ref(), true) {
            Ok(_) => Ok(true),
            Err(Error::Fs {
                source: engine::Error::NotFound | engine::Error::NotDirectory,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All bytes of a regular file.
    ///
    /// # Errors
    /// As for [`Fs::metadata`], and when it is no regular file or its map is broken.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let mut file = self.file(&path)?;
        let mut bytes = Vec::new();
        file.read_all(&mut bytes)
            .map_err(|error| Error::at(path.as_ref().as_os_str().as_bytes(), error))?;
        Ok(bytes)
    }

    /// All of a regular file, as text.
    ///
    /// # Errors
    /// As for [`Fs::read`], and when it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String, Error> {
        let bytes = self.read(path)?;
        String::from_utf8(bytes).map_err(|_| Error::invalid("the file is not UTF-8 text"))
    }

    /// A regular file, for reading in pieces.
    ///
    /// # Errors
    /// As for [`Fs::metadata`], and when it is no regular file.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<File<'_>, Error> {
        let path = path.as_ref();
        let inode = self.inode(path, true)?;
        let metadata = inode.metadata();
        let wrong = match metadata.file_type {
            FileType::Regular => {
                return Ok(File {
                    inode,
                    metadata,
                    position: 0,
                });
            }
            FileType::Directory => engine::Error::IsDirectory,
            _ => engine::Error::NotRegular,
        };
        Err(Error::at(path.as_os_str().as_bytes(), wrong))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As for [`Fs::symlink_metadata`], and when it is no link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let target = self.inode(path, false)?.read_link();
        let target = target.map_err(|error| Error::at(path.as_os_str().as_bytes(), error))?;
        Ok(PathBuf::from(OsStr::from_bytes(&target)))
    }

    /// The entries of a directory in the order of the disk, without `.` and `..`.
    ///
    /// # Errors
    /// As for [`Fs::metadata`], and when it is no directory; the iterator fails where the directory is broken.
    pub fn read_dir(
        &self,
        path: impl AsRef<Path>,
    ) -> Result<impl Iterator<Item = Result<DirEntry, Error>> + '_, Error> {
        let ino = self.resolve(&path)?;
        let place = path.as_ref().as_os_str().as_bytes().to_vec();
        let entries = self
            .read_dir_ino(ino)
            .map_err(|error| Error::at(&place, error))?;
        Ok(entries.map(move |entry| entry.map_err(|error| Error::at(&place, error))))
    }

    /// As [`Fs::read_dir`], by inode.
    pub(crate) fn read_dir_ino(
        &self,
        ino: Ino,
    ) -> Result<impl Iterator<Item = Result<DirEntry, engine::Error>> + '_, engine::Error> {
        let entries = self.0.read_dir(ino)?;
        Ok(entries.filter_map(|entry| match entry {
            Ok(entry) if matches!(&entry.name[..], b"." | b"..") => None,
            Ok(entry) => Some(Ok(DirEntry {
                ino: entry.ino,
                name: entry.name,
                file_type: entry.file_type,
            })),
            Err(error) => Some(Err(error)),
        }))
    }

    /// What is below a directory, parents first, names in byte order.
    ///
    /// # Errors
    /// When the path does not lead anywhere. What goes wrong below it, the walk says.
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<crate::walk::Walk<'_>, Error> {
        Ok(crate::walk::Walk::new(self, self.resolve(path)?))
    }

    /// Space and inodes, in use and free.
    ///
    /// # Errors
    /// When a group descriptor is broken or the device fails.
    pub fn statfs(&self) -> Result<StatFs, Error> {
        Ok(self.0.statfs()?)
    }
}

/// A regular file of an image, with a position as in `std::fs::File`.
///
/// Reading does not share anything but the file system: two `File`s, also of one file, can be read at once.
pub struct File<'fs> {
    inode: InodeRef<'fs>,
    metadata: Metadata,
    position: u64,
}

impl File<'_> {
    /// What `fstat` tells.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        self.metadata
    }

    /// Fills `buf` from byte `offset`; fewer bytes only at the end of the file. The position stays.
    ///
    /// # Errors
    /// When the file's map is broken, or the device fails.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        Ok(self.inode.read(offset, buf)?)
    }

    fn read_all(&mut self, bytes: &mut Vec<u8>) -> Result<(), engine::Error> {
        /// How many bytes are added at once: the size on disk alone decides no allocation.
        const STEP: usize = 8 << 20;
        if self.metadata.size > MAX_READ {
            return Err(engine::Error::Unsupported(
                "a file of more than 1 TiB in memory",
            ));
        }
        loop {
            let at = bytes.len();
            let left =
                usize::try_from(self.metadata.size.saturating_sub(at as u64)).unwrap_or(STEP);
            if left == 0 {
                return Ok(());
            }
            bytes.resize(at + left.min(STEP), 0);
            let read = self.inode.read(at as u64, &mut bytes[at..])?;
            bytes.truncate(at + read);
            if read == 0 {
                return Ok(());
            }
        }
    }
}

impl Read for File<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inode.read(self.position, buf).map_err(Error::from)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for File<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata.size.checked_add_signed(by),
        };
        self.position = target.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "seeking before the beginning of the file",
            )
        })?;
        Ok(self.position)
    }
}
