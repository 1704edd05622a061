//! An inode that a caller has found, and what `stat` reports of it.
//!
//! No lock is held between calls. On a file system that is written to, data, maps and attributes may have changed since
//! the inode was found, so each call reads them again.

use std::time::SystemTime;

use ondisk::inode::Inode;
use ondisk::{Feature, FileType, Flags, FsBlock, Generation, Ino, Timestamp};

use crate::attr;
use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::data;
use crate::fs::InodeFs;
use crate::inode::LoadedInode;
use crate::map::Mappings;
use crate::token::OpenFs;
use crate::xattr::{self, Xattr};

/// What `stat` reports of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The inode's number.
    pub ino: Ino,
    /// The type of file.
    pub file_type: FileType,
    /// Type and permissions.
    pub mode: u16,
    /// The owner.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
    /// Bytes in the file.
    pub size: u64,
    /// Space taken, in sectors of 512 bytes.
    pub blocks: u64,
    /// The number of links; 1 for a directory with more links than can be counted.
    pub nlink: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth, where the inode has room for it.
    pub crtime: Option<Timestamp>,
    /// Flags, as `lsattr` shows them.
    pub flags: Flags,
    /// The generation, as `lsattr -v` shows it.
    pub generation: Generation,
    /// Major and minor number of a device; zeros for anything else.
    pub rdev: (u32, u32),
    /// The project; 0 where the file system has none.
    pub project: u32,
    /// Counts changes (`i_version`).
    pub version: u64,
}

impl Metadata {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type == FileType::Regular
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.file_type == FileType::Symlink
    }

    /// Bytes in the file: [`Metadata::size`].
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.size
    }

    /// The permission bits: the mode without the type of file.
    #[must_use]
    pub fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }

    /// When the contents were last changed.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        self.mtime.into()
    }

    /// When the contents were last read, as far as the file system records that.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        self.atime.into()
    }

    /// When contents, attributes or names were last changed (`st_ctime`).
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        self.ctime.into()
    }

    /// When the file was created; `None` if its inode has no room for that.
    #[must_use]
    pub fn created(&self) -> Option<SystemTime> {
        self.crtime.map(SystemTime::from)
    }

    /// The metadata of a record.
    pub(super) fn of(volume: &OpenVolume, ino: Ino, inode: &Inode) -> Metadata {
        let geometry = volume.geometry();
        // A loaded inode in use has a type.
        let file_type = inode.file_type().unwrap_or(FileType::Regular);
        let size = inode.size(volume.has(Feature::LARGE_DIR));
        let is_inline = inode.flags().contains(Flags::INLINE_DATA);
        // Linux counts a file's inline contents (not a directory's) as if they took blocks of their own.
        let inside = if is_inline && file_type == FileType::Regular {
            size.div_ceil(512)
        } else {
            0
        };
        let sectors = inode.sectors(geometry.has(Feature::HUGE_FILE), geometry.block_size());
        Metadata {
            ino,
            file_type,
            mode: inode.mode(),
            uid: inode.uid(),
            gid: inode.gid(),
            size,
            blocks: sectors.saturating_add(inside),
            nlink: inode.links_count().into(),
            atime: inode.atime(),
            mtime: inode.mtime(),
            ctime: inode.ctime(),
            crtime: inode.crtime(),
            flags: inode.flags(),
            generation: inode.generation(),
            rdev: match file_type {
                FileType::CharDevice | FileType::BlockDevice => inode.device_number(),
                _ => (0, 0),
            },
            project: if volume.has(Feature::PROJECT) {
                inode.project()
            } else {
                0
            },
            version: inode.version(),
        }
    }
}

/// An inode that was found: its methods use it without looking it up again.
pub struct InodeRef<'fs> {
    pub(super) mounted: &'fs OpenFs,
    pub(super) inode: LoadedInode,
}

/// An inode that was found, without a borrow of its file system. An open file keeps it: on a file system that is only
/// read, the inode need not be looked up again.
#[derive(Clone)]
pub struct FoundInode(LoadedInode);

impl FoundInode {
    /// As [`InodeRef::read`]; `fs` is the file system in which it was found.
    ///
    /// # Errors
    /// As [`InodeRef::read`].
    pub fn read(&self, fs: &InodeFs, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        fs.noting(read(&fs.mounted, &self.0, offset, buf))
    }

    /// What `stat` reports of the inode now.
    ///
    /// # Errors
    /// As [`InodeFs::metadata`].
    pub fn metadata(&self, fs: &InodeFs) -> Result<Metadata, Error> {
        let volume = fs.mounted.volume();
        if volume.is_writable() {
            fs.metadata(self.0.ino())
        } else {
            Ok(Metadata::of(volume, self.0.ino(), &self.0))
        }
    }
}

/// Reads an inode's bytes, and updates its time of access.
fn read(
    mounted: &OpenFs,
    inode: &LoadedInode,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, Error> {
    let read = read_noatime(mounted, inode, offset, buf)?;
    note_access(mounted, inode.ino());
    Ok(read)
}

fn read_noatime(
    mounted: &OpenFs,
    inode: &LoadedInode,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, Error> {
    if mounted.volume().is_writable() {
        // The map may have changed since the inode was found.
        data::read_now(mounted, inode.ino(), offset, buf)
    } else {
        data::read(mounted.volume(), inode, offset, buf)
    }
}

impl InodeRef<'_> {
    /// The inode without the borrow of its file system.
    #[must_use]
    pub fn found(self) -> FoundInode {
        FoundInode(self.inode)
    }

    /// What `stat` reports.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        Metadata::of(self.mounted.volume(), self.inode.ino(), &self.inode)
    }

    /// Fills `buf` from byte `offset`; returns how many bytes there were, fewer than asked for only at the end.
    ///
    /// # Errors
    /// `IsDirectory` or `NotRegular` for an inode that is not a regular file, `Encrypted` and `Unsupported` (verity)
    /// for contents that can't be read, `Corrupt` for broken maps, `Io`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        read(self.mounted, &self.inode, offset, buf)
    }

    /// Does what [`InodeRef::read`] does, but leaves the time of access unchanged, as with `O_NOATIME`.
    ///
    /// # Errors
    /// As [`InodeRef::read`].
    pub fn read_noatime(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        read_noatime(self.mounted, &self.inode, offset, buf)
    }

    /// The runs of the inode's blocks in ascending order: holes up to the end of the file, and blocks allocated beyond
    /// the end, included.
    ///
    /// # Errors
    /// When the root of the extent tree is broken; later errors come from the iterator.
    pub fn mappings(&self) -> Result<Mappings<'_>, Error> {
        Mappings::new(self.mounted.volume(), &self.inode, 0..u64::MAX)
    }

    /// Whether contents are stored in the inode itself; such a file has no mappings.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.inode.is_inline()
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `NotSymlink`, `Encrypted`, `Corrupt`, `Io`.
    pub fn read_link(&self) -> Result<Vec<u8>, Error> {
        let target = data::read_link(self.mounted.volume(), &self.inode)?;
        note_access(self.mounted, self.inode.ino());
        Ok(target)
    }

    /// All extended attributes; ACLs in the form that system calls exchange.
    ///
    /// # Errors
    /// When a list or a value is broken, there are too many, or the device fails.
    pub fn xattrs(&self) -> Result<Vec<Xattr>, Error> {
        if self.mounted.volume().is_writable() {
            xattr::read_now(self.mounted, self.inode.ino())
        } else {
            xattr::read_all(self.mounted, &self.inode)
        }
    }

    /// The block of extended attributes, if the inode has one.
    #[must_use]
    pub fn xattr_block(&self) -> Option<FsBlock> {
        Some(xattr::block_of(self.mounted.volume(), &self.inode)).filter(|block| block.0 != 0)
    }
}

/// Updates the time of access after the inode's contents were read, if the file system is written to.
pub(super) fn note_access(mounted: &OpenFs, ino: Ino) {
    if let Ok(live) = mounted.live() {
        attr::accessed(live, ino);
    }
}
