//! The file system by path, in the manner of `std::fs`.
//!
//! Paths begin at the root of the image, with or without a leading `/`; symbolic links in them stay within
//! the image. All methods take `&self`, may be called from any number of threads, and may block on I/O; readers of
//! different files share no lock.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use device::host;
use device::{BlockDevice, FileDevice};
use engine::{FileType, Ino, InodeRef, Metadata, MountOptions, StatFs};
use sync::Arc;

use crate::Error;
use crate::locate::{Location, locate};

/// An open ext2, ext3 or ext4 file system.
pub struct Fs(pub(crate) engine::InodeFs);

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
    pub fn file_name(&self) -> OsString {
        host::name(&self.name).into_owned()
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
        Fs::open_with(locate(device, location)?, &MountOptions::default())
    }

    /// Opens the file system on a device, with all choices there are.
    ///
    /// # Errors
    /// When the device holds no ext2/3/4, or one that is broken at its root.
    pub fn open_with(device: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Fs, Error> {
        Ok(Fs(engine::InodeFs::open(device, options)?))
    }

    /// Whether it can be changed: it was opened for writing, and neither a failing device nor corruption ended that.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.0.is_writable()
    }

    /// The same file system by inode number.
    #[must_use]
    pub fn inodes(&self) -> &engine::InodeFs {
        &self.0
    }

    /// The inode that a path leads to.
    ///
    /// # Errors
    /// When a part of the path does not exist or is not a directory, or there are too many links.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Result<Ino, Error> {
        self.find(path.as_ref(), true)
    }

    pub(crate) fn find(&self, path: &Path, follow_last: bool) -> Result<Ino, Error> {
        let bytes = &*host::path_bytes(path);
        self.0
            .resolve(bytes, follow_last)
            .map_err(|error| Error::at(bytes, error))
    }

    fn inode(&self, path: &Path, follow_last: bool) -> Result<InodeRef<'_>, Error> {
        let held = self.reach(path, follow_last)?;
        self.0
            .inode(held.ino())
            .map_err(|error| Error::at(&host::path_bytes(path), error))
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

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As for [`Fs::symlink_metadata`], and when it is not a link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        let path = path.as_ref();
        let target = self.inode(path, false)?.read_link();
        let target = target.map_err(|error| Error::at(&host::path_bytes(path), error))?;
        Ok(PathBuf::from(host::name(&target).into_owned()))
    }

    /// The entries of a directory in the order of the disk, without `.` and `..`.
    ///
    /// # Errors
    /// As for [`Fs::metadata`], and when it is not a directory; the iterator fails where the directory is broken.
    pub fn read_dir(
        &self,
        path: impl AsRef<Path>,
    ) -> Result<impl Iterator<Item = Result<DirEntry, Error>> + '_, Error> {
        let ino = self.resolve(&path)?;
        let place = host::path_bytes(path.as_ref()).into_owned();
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
