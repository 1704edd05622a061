//! Extended attributes and flags, by path. A link at a path's end is followed unless a method says otherwise.
//!
//! Each change is one step: after a crash it was done, or it was not.

use std::path::Path;

use device::host;
use engine::{Flags, Ino, Xattr, XattrFlag};
use ondisk::Geometry;
use sync::Arc;

use crate::{Error, Fs};

impl Fs {
    /// All extended attributes of a path, ACLs in the form that system calls use.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("disk.img");
    /// # lanefs::make::make(&image, Some(8 << 20), &Default::default(), false)?;
    /// let fs = lanefs::Fs::open_for_writing(&image)?;
    /// fs.write("/notes", "...")?;
    /// fs.set_xattr("/notes", "user.origin", "https://example.org/")?;
    /// assert_eq!(fs.xattr("/notes", "user.origin")?, b"https://example.org/");
    /// fs.remove_xattr("/notes", "user.origin")?;
    /// assert!(fs.xattrs("/notes")?.is_empty());
    /// fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::metadata`], and when an attribute is broken.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Xattr>, Error> {
        let held = self.reach(path.as_ref(), true)?;
        self.named(path.as_ref(), self.engine.xattrs(held.ino()))
    }

    /// The value of one extended attribute, by its whole name.
    ///
    /// # Errors
    /// As [`Fs::xattrs`]; when no attribute has this name.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        let held = self.reach(path.as_ref(), true)?;
        self.named(path.as_ref(), self.engine.xattr(held.ino(), name.as_ref()))
    }

    /// Sets an extended attribute, by its whole name (`user.`, `trusted.`, `security.`, or an ACL in the form of
    /// system calls); one that is there is replaced.
    ///
    /// # Errors
    /// As [`Fs::metadata`] and [`Fs::sync`]; for a name that can't be, a value that does not fit, or a file whose flags
    /// forbid it.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), true)?;
        self.set_xattr_of(path.as_ref(), held.ino(), name.as_ref(), value.as_ref())
    }

    /// As [`Fs::set_xattr`]; a symbolic link at the path's end is not followed.
    ///
    /// # Errors
    /// As [`Fs::set_xattr`].
    pub fn set_symlink_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), false)?;
        self.set_xattr_of(path.as_ref(), held.ino(), name.as_ref(), value.as_ref())
    }

    pub(crate) fn set_xattr_of(
        &self,
        path: &Path,
        ino: Ino,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        let set = self.engine.set_xattr(ino, name, value, XattrFlag::Any);
        let block = Geometry::of(self.engine.superblock())
            .map_or(0, |geometry| geometry.block_size().bytes());
        if matches!(set, Err(engine::Error::NoSpace)) && value.len() >= block {
            return Err(Error::XattrTooLarge {
                path: host::path_bytes(path).into_owned(),
                name: name.to_vec(),
                len: value.len(),
            });
        }
        self.named(path, set)
    }

    /// Removes an extended attribute, by its whole name.
    ///
    /// # Errors
    /// As [`Fs::set_xattr`]; when no attribute has this name.
    pub fn remove_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), true)?;
        self.named(
            path.as_ref(),
            self.engine.remove_xattr(held.ino(), name.as_ref()),
        )
    }

    /// As [`Fs::remove_xattr`]; a symbolic link at the path's end is not followed.
    ///
    /// # Errors
    /// As [`Fs::remove_xattr`].
    pub fn remove_symlink_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), false)?;
        self.named(
            path.as_ref(),
            self.engine.remove_xattr(held.ino(), name.as_ref()),
        )
    }

    /// Sets the flags that `chattr` can change as in `flags`; others stay.
    ///
    /// # Errors
    /// As [`Fs::metadata`] and [`Fs::sync`]; for a flag that the type of file does not have, or that lanefs can't
    /// change.
    pub fn set_flags(&self, path: impl AsRef<Path>, flags: Flags) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), true)?;
        self.named(path.as_ref(), self.engine.set_flags(held.ino(), flags))
    }

    /// Makes all that `work` does one change, and closes the file system: after a crash, or when `work` fails, the
    /// image is as it was before, or it has all of it. Nobody else uses the file system meanwhile.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("disk.img");
    /// # lanefs::make::make(&image, Some(8 << 20), &Default::default(), false)?;
    /// let fs = lanefs::Fs::open_for_writing(&image)?;
    /// let failed = fs.atomically(|fs| {
    ///     fs.create_dir("/etc")?;
    ///     fs.rename("/missing", "/etc/found")
    /// });
    /// assert!(failed.is_err());
    /// assert!(!lanefs::Fs::open(&image)?.try_exists("/etc")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What `work` fails with; as [`Fs::close`]; when it all does not fit one transaction of the journal, needs space
    /// that it frees itself, or changes bytes of files in place; `Busy` when a clone, an open file or an open directory
    /// exists before `work` or after it.
    pub fn atomically<T, E: From<Error>>(
        mut self,
        work: impl FnOnce(&Fs) -> Result<T, E>,
    ) -> Result<T, E> {
        let engine =
            Arc::get_mut(&mut self.engine).ok_or_else(|| Error::from(engine::Error::Busy))?;
        if let Err(error) = engine.begin_atomic() {
            // Nothing was done, so closing leaves the image as clean as it was. The first error is the one to return.
            let _ = self.close();
            return Err(Error::from(error).into());
        }
        // If `work` fails, the drop of the file system discards its changes.
        let done = work(&self)?;
        let engine =
            Arc::into_inner(self.engine).ok_or_else(|| Error::from(engine::Error::Busy))?;
        engine.close_atomic().map_err(Error::from)?;
        Ok(done)
    }
}
