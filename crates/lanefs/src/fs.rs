//! The file system by path, in the manner of `std::fs`.
//!
//! Paths begin at the root of the image, with or without a leading `/`; symbolic links in them stay within
//! the image. All methods take `&self`, may be called from any number of threads, and may block on I/O; readers of
//! different files share no lock.

use std::fmt;
use std::path::{Path, PathBuf};

use device::host;
use device::{BlockDevice, FileDevice};
use engine::{Ino, InodeRef, ListedEntry, Metadata, MountOptions, StatFs};
use sync::Arc;

use crate::locate::{Location, locate};
use crate::open_image::OpenImage;
use crate::reach::OwnedInode;
use crate::{Dir, Error, FsBuilder, ReadDir};

/// An open ext2, ext3 or ext4 file system. A clone is the same file system, and cheap to make; each open file and
/// directory ([`crate::File`], [`Dir`]) has one.
///
/// The drop of the last clone makes all changes durable and leaves a clean image, which may block. If that fails, it
/// reports the error through `tracing`, and only if the feature of that name is on. [`Fs::close`] returns errors, and
/// [`Fs::abandon`] writes nothing.
///
/// All clones share one reference count, which [`Fs::file`] and [`Fs::open_dir`] also change. A server that opens many
/// files in many threads uses [`Fs::inodes`], which does not change it.
#[derive(Clone)]
pub struct Fs {
    pub(crate) engine: Arc<OpenImage>,
    /// The directory that paths begin at and do not leave.
    pub(crate) root: Ino,
    /// Keeps that directory from being deleted; `None` for the file system's root, which never is.
    pub(crate) _held_root: Option<Arc<OwnedInode>>,
}

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs")
            .field("root", &self.root.0)
            .field("is_writable", &self.is_writable())
            .finish_non_exhaustive()
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
        Ok(Fs::of(engine::InodeFs::open(device, options)?))
    }

    /// Makes an empty ext4 of `size` bytes in memory and opens it for writing. [`FsBuilder`] does so with options.
    ///
    /// ```
    /// let fs = lanefs::Fs::in_memory(16 << 20)?;
    /// fs.write("/motd", "welcome\n")?;
    /// assert_eq!(fs.metadata("/motd")?.len(), 8);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the size is too small.
    pub fn in_memory(size: u64) -> Result<Fs, Error> {
        FsBuilder::new().make_in_memory(size)
    }

    /// Returns a builder that opens or makes a file system with options.
    pub fn builder() -> FsBuilder {
        FsBuilder::new()
    }

    pub(crate) fn of(inodes: engine::InodeFs) -> Fs {
        Fs {
            engine: Arc::new(OpenImage::new(inodes)),
            root: Ino::ROOT,
            _held_root: None,
        }
    }

    /// Whether it can be changed: it was opened for writing, and neither a failing device nor corruption ended that.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.engine.is_writable()
    }

    /// The same file system by inode number.
    #[must_use]
    pub fn inodes(&self) -> &engine::InodeFs {
        &self.engine
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
        self.engine
            .resolve_in(self.root, bytes, follow_last)
            .map_err(|error| Error::at(bytes, error))
    }

    fn inode(&self, path: &Path, follow_last: bool) -> Result<InodeRef<'_>, Error> {
        let held = self.reach(path, follow_last)?;
        self.engine
            .inode(held.ino())
            .map_err(|error| Error::at(&host::path_bytes(path), error))
    }

    /// What `stat` reports of a path; symbolic links are followed.
    ///
    /// # Errors
    /// As for [`Fs::resolve`], and when the inode is broken.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        Ok(self.inode(path.as_ref(), true)?.metadata())
    }

    /// What `lstat` reports of a path: a symbolic link at its end is not followed.
    ///
    /// # Errors
    /// As for [`Fs::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        Ok(self.inode(path.as_ref(), false)?.metadata())
    }

    /// Whether a path leads to something.
    ///
    /// # Errors
    /// If that is not known, because the image is broken or its device fails.
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

    /// Opens a directory, which becomes the root of the paths that are given to it, wherever it is moved.
    ///
    /// # Errors
    /// As [`Fs::metadata`], and when it is not a directory.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir, Error> {
        Dir::open_at(self, path.as_ref())
    }

    /// The entries of a directory in the order of the disk, without `.` and `..`.
    ///
    /// # Errors
    /// As [`Fs::metadata`], and when it is not a directory; the iterator fails where the directory is broken.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        ReadDir::new(self, path.as_ref())
    }

    /// The entries of the directory with an inode number, without `.` and `..`.
    pub(crate) fn list(
        &self,
        ino: Ino,
    ) -> Result<impl Iterator<Item = Result<ListedEntry, engine::Error>> + '_, engine::Error> {
        let entries = self.engine.read_dir(ino)?;
        Ok(entries
            .filter(|entry| !matches!(entry, Ok(entry) if matches!(&entry.name[..], b"." | b".."))))
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
        Ok(self.engine.statfs()?)
    }
}
