//! What a workload may do to a file system, whichever it is.
//!
//! All operations may be called from many threads at once. Nothing survives a run: what a workload makes it removes.
//! Each fails with what the file system says.

use lanefs::Error;

/// Counters by name, since the file system was mounted.
pub type Counters = Vec<(&'static str, u64)>;

/// A file system that is measured.
pub trait Target: Sync {
    /// A directory in hand, so that no path is walked.
    type Dir: Send + Sync;
    /// A file in hand, open for reading and writing.
    type File: Send;

    /// The directory in which workloads make theirs.
    fn root(&self) -> &Self::Dir;

    /// Makes a directory.
    ///
    /// # Errors
    /// What the file system says; so for all that follow.
    fn mkdir(&self, parent: &Self::Dir, name: &str) -> Result<Self::Dir, Error>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the file system says.
    fn rmdir(&self, parent: &Self::Dir, name: &str) -> Result<(), Error>;

    /// Looks up a directory.
    ///
    /// # Errors
    /// What the file system says.
    fn open_dir(&self, parent: &Self::Dir, name: &str) -> Result<Self::Dir, Error>;

    /// Gives each name in a directory, but `.` and `..`, to `visit`, and whether it names a directory.
    ///
    /// # Errors
    /// What the file system says.
    fn read_dir(&self, dir: &Self::Dir, visit: &mut dyn FnMut(&[u8], bool)) -> Result<(), Error>;

    /// Makes an empty file that was not there, in hand as long as it has its name; dropping it costs what the way of
    /// the call makes it cost.
    ///
    /// # Errors
    /// What the file system says.
    fn create(&self, parent: &Self::Dir, name: &str) -> Result<Self::File, Error>;

    /// Makes a file or empties the one that is there, and opens it: `creat`. To be closed; stays without a name.
    ///
    /// # Errors
    /// What the file system says.
    fn creat(&self, parent: &Self::Dir, name: &str) -> Result<Self::File, Error>;

    /// Opens a file that is there. To be closed; stays without a name.
    ///
    /// # Errors
    /// What the file system says.
    fn open(&self, parent: &Self::Dir, name: &str) -> Result<Self::File, Error>;

    /// Opens a file by a path from a directory on, with `/` between the names.
    ///
    /// # Errors
    /// What the file system says.
    fn open_path(&self, from: &Self::Dir, path: &str) -> Result<Self::File, Error>;

    /// Closes a file; without a name it is deleted.
    ///
    /// # Errors
    /// What the file system says.
    fn close(&self, file: Self::File) -> Result<(), Error>;

    /// Removes a name.
    ///
    /// # Errors
    /// What the file system says.
    fn unlink(&self, parent: &Self::Dir, name: &str) -> Result<(), Error>;

    /// Gives a file of a directory another name there, which must not exist.
    ///
    /// # Errors
    /// What the file system says.
    fn rename(&self, parent: &Self::Dir, name: &str, new_name: &str) -> Result<(), Error>;

    /// Gives a file another name, which is free, in another directory or the same.
    ///
    /// # Errors
    /// What the file system says.
    fn move_file(
        &self,
        parent: &Self::Dir,
        name: &str,
        new_parent: &Self::Dir,
        new_name: &str,
    ) -> Result<(), Error>;

    /// A name's size in bytes: looks it up and reads its inode.
    ///
    /// # Errors
    /// What the file system says.
    fn stat(&self, parent: &Self::Dir, name: &str) -> Result<u64, Error>;

    /// Reads at byte `offset`; says how many bytes.
    ///
    /// # Errors
    /// What the file system says.
    fn read(&self, file: &Self::File, offset: u64, bytes: &mut [u8]) -> Result<usize, Error>;

    /// Writes all of `bytes` at byte `offset`.
    ///
    /// # Errors
    /// What the file system says.
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Reserves `len` bytes from byte `offset` on; the file grows (`fallocate` with mode 0).
    ///
    /// # Errors
    /// What the file system says.
    fn fallocate(&self, file: &Self::File, offset: u64, len: u64) -> Result<(), Error>;

    /// Sets a file's size in bytes.
    ///
    /// # Errors
    /// What the file system says.
    fn truncate(&self, file: &Self::File, size: u64) -> Result<(), Error>;

    /// How many pieces a file's blocks lie in; `None` where that can't be found out.
    ///
    /// # Errors
    /// What the file system says.
    fn pieces(&self, file: &Self::File) -> Result<Option<u64>, Error>;

    /// Makes a file durable.
    ///
    /// # Errors
    /// What the file system says.
    fn fsync(&self, file: &Self::File) -> Result<(), Error>;

    /// Ends what the last round left to be written, so that it does not burden the next one.
    ///
    /// # Errors
    /// What the file system says.
    fn settle(&self) -> Result<(), Error>;

    /// What was counted so far; empty if the target reports nothing.
    fn counters(&self) -> Counters {
        Counters::new()
    }

    /// Uses a form of a mechanism from now on, `name=value`; false where it has none to choose from.
    fn choose(&self, _option: &str) -> bool {
        false
    }

    /// What identifies a file for [`Target::find_by_handle`]; `None` if the target can't find files by handle.
    ///
    /// # Errors
    /// What the file system says.
    fn handle(&self, _parent: &Self::Dir, _name: &str) -> Result<Option<FileHandle>, Error> {
        Ok(None)
    }

    /// Finds an inode by its handle, without a name: as an NFS server does. False if it is another file's by now.
    ///
    /// # Errors
    /// What the file system says.
    fn find_by_handle(&self, _handle: FileHandle) -> Result<bool, Error> {
        Ok(false)
    }
}

/// An inode's number and generation.
pub type FileHandle = (u32, u32);

/// A target that can be mounted anew.
pub trait Remount: Target + Sized {
    /// Leaves the file system clean and mounts it again, with nothing in memory and these options. `inodes` is the
    /// number of inodes that memory shall have room for, on targets where that can be chosen. Nothing changes where a
    /// remount is not possible or not allowed.
    ///
    /// # Errors
    /// What the file system says.
    fn remount(
        self,
        inodes: Option<usize>,
        options: &[String],
    ) -> Result<MountedTarget<Self>, Error>;
}

/// A target, and whether its memory is empty.
#[derive(Debug)]
pub struct MountedTarget<T> {
    /// The target, to be used from now on.
    pub target: T,
    /// Whether it was mounted anew; if not, all is as before.
    pub is_fresh: bool,
    /// Whether it keeps no more inodes than was asked for.
    pub is_bounded: bool,
}
