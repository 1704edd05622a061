//! Names, changed by path: directories, links, removal and renaming.

use std::borrow::Cow;
use std::path::Path;

use device::host;
use engine::{FileType, Ino, NewInode, RenameFlag};

use crate::reach::{HeldInode, NameInParent, TRIES};
use crate::{Error, Fs};

/// A new directory's owner and permissions by default: root's, 0755.
const DIRECTORY: NewInode = NewInode {
    mode: 0o755,
    uid: 0,
    gid: 0,
    umask: 0,
    held: false,
};
/// As Linux makes them.
const SYMLINK: NewInode = NewInode {
    mode: 0o777,
    uid: 0,
    gid: 0,
    umask: 0,
    held: false,
};

impl Fs {
    /// The directory that holds (or would hold) a path's last part, and that part. Slashes at the end are left out.
    pub(crate) fn place<'a>(&'a self, path: &'a Path) -> Result<NameInParent<'a>, Error> {
        let bytes = &*host::path_bytes(path);
        let end = bytes.iter().rposition(|byte| *byte != b'/');
        let path_without = &bytes[..end.map_or(0, |last| last + 1)];
        let start = path_without.iter().rposition(|byte| *byte == b'/');
        let (above, name) = path_without.split_at(start.map_or(0, |slash| slash + 1));
        if name.is_empty() {
            // The root has no name; an empty path leads nowhere.
            let error = match bytes {
                b"" => engine::Error::NotFound,
                _ => engine::Error::NotPermitted,
            };
            return Err(Error::at(bytes, error));
        }
        let held = match above {
            b"" => None,
            above => Some(self.reach(Path::new(&*host::name(above)), true)?),
        };
        Ok(NameInParent {
            parent: held.as_ref().map_or(self.root, HeldInode::ino),
            _held: held,
            // The last component is at the same byte offset in the host's path.
            name: Cow::Borrowed(&path.as_os_str().as_encoded_bytes()[above.len()..][..name.len()]),
        })
    }

    /// Refuses a path with a slash at its end if the caller wants anything but a directory; `missing` is the
    /// reason if nothing is there.
    pub(crate) fn refuse_slash(&self, path: &Path, missing: engine::Error) -> Result<(), Error> {
        let bytes = &*host::path_bytes(path);
        if !bytes.ends_with(b"/") {
            return Ok(());
        }
        let error = match self.metadata(path) {
            Ok(found) if found.file_type == FileType::Directory => engine::Error::IsDirectory,
            Ok(_) => engine::Error::NotDirectory,
            Err(error) if error.is_not_found() => missing,
            Err(error) => return Err(error),
        };
        Err(Error::at(bytes, error))
    }

    /// Makes an empty directory that belongs to root, with permissions 0755.
    ///
    /// # Errors
    /// When the name exists, its directory does not, or as [`Fs::sync`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.create_dir_with(path, DIRECTORY)
    }

    /// As [`Fs::create_dir`], with this owner and these permissions.
    ///
    /// # Errors
    /// As [`Fs::create_dir`].
    pub fn create_dir_with(&self, path: impl AsRef<Path>, new: NewInode) -> Result<(), Error> {
        let path = path.as_ref();
        let place = self.place(path)?;
        self.named(path, self.engine.mkdir(place.parent, &place.name, new))?;
        Ok(())
    }

    /// Makes a directory and those above it that are missing, as [`Fs::create_dir`] does.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("disk.img");
    /// # lanefs::make::make(&image, Some(8 << 20), &Default::default(), false)?;
    /// let fs = lanefs::Fs::open_for_writing(&image)?;
    /// fs.create_dir_all("/etc/app/conf.d")?;
    /// fs.write("/etc/app/main.conf", "answer = 42\n")?;
    /// fs.symlink("../main.conf", "/etc/app/conf.d/00-main.conf")?;
    /// fs.rename("/etc/app", "/etc/application")?;
    /// assert_eq!(fs.read_to_string("/etc/application/conf.d/00-main.conf")?, "answer = 42\n");
    /// fs.remove_dir_all("/etc/application")?;
    /// fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When something that is not a directory has one of the names; as [`Fs::create_dir`].
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let mut ways: Vec<&Path> = path.ancestors().collect();
        while let Some(way) = ways.pop() {
            if way.as_os_str().is_empty() {
                continue;
            }
            match self.metadata(way) {
                Ok(metadata) if metadata.file_type == FileType::Directory => {}
                Ok(_) => {
                    let bytes = &*host::path_bytes(way);
                    return Err(Error::at(bytes, engine::Error::NotDirectory));
                }
                Err(error) if error.is_not_found() => self.create_dir(way)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a symbolic link at `path` that says `target`, which need not exist.
    ///
    /// # Errors
    /// As [`Fs::create_dir`]; when the target is empty or of 4096 bytes or more.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let place = self.place(path)?;
        let target = &*host::path_bytes(target.as_ref());
        let made = self
            .engine
            .symlink(place.parent, &place.name, target, SYMLINK);
        self.named(path, made)?;
        Ok(())
    }

    /// Makes a device (with major and minor number), pipe or socket; or an empty regular file.
    ///
    /// # Errors
    /// As [`Fs::create_dir`]; for a directory or symbolic link.
    pub fn create_special(
        &self,
        path: impl AsRef<Path>,
        file_type: FileType,
        device: (u32, u32),
        new: NewInode,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        let place = self.place(path)?;
        let made = self
            .engine
            .mknod(place.parent, &place.name, file_type, device, new);
        self.named(path, made)?;
        Ok(())
    }

    /// Gives what is at `original` (a symbolic link itself, not what it leads to) one more name.
    ///
    /// # Errors
    /// As [`Fs::create_dir`]; when `original` is a directory or does not exist.
    pub fn hard_link(
        &self,
        original: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> Result<(), Error> {
        self.link_by(original.as_ref(), path.as_ref(), |ino, place| {
            self.engine.link(ino, place.parent, &place.name)
        })
    }

    /// Makes a symbolic link as [`Fs::symlink`] does, and replaces what has the name, except a directory, in one step.
    ///
    /// # Errors
    /// As [`Fs::symlink`]; when a directory has the name.
    pub fn symlink_over(
        &self,
        target: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> Result<(), Error> {
        let path = path.as_ref();
        let place = self.place(path)?;
        let target = &*host::path_bytes(target.as_ref());
        let made = self
            .engine
            .create_unnamed_symlink(place.parent, target, SYMLINK);
        self.with_unnamed(path, made, |ino| {
            self.named(path, self.install_over(ino, &place))
        })
    }

    /// Gives a file one more name as [`Fs::hard_link`] does, and replaces what has the name, except a directory, in one
    /// step.
    ///
    /// # Errors
    /// As [`Fs::hard_link`]; when a directory has the name.
    pub fn hard_link_over(
        &self,
        original: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> Result<(), Error> {
        self.link_by(original.as_ref(), path.as_ref(), |ino, place| {
            self.install_over(ino, place)
        })
    }

    /// Gives what is at `original` the name `path`, by calling `link`.
    fn link_by(
        &self,
        original: &Path,
        path: &Path,
        link: impl FnOnce(Ino, &NameInParent<'_>) -> Result<(), engine::Error>,
    ) -> Result<(), Error> {
        let held = self.reach(original, false)?;
        let place = self.place(path)?;
        self.named(path, link(held.ino(), &place))
    }

    /// Gives an inode a name, and takes the name from the file that has it.
    fn install_over(&self, ino: Ino, place: &NameInParent<'_>) -> Result<(), engine::Error> {
        for _ in 0..TRIES {
            let replaced = match self.engine.lookup(place.parent, &place.name) {
                Ok(replaced) => Some(replaced),
                Err(engine::Error::NotFound) => None,
                Err(error) => return Err(error),
            };
            if self
                .engine
                .install(ino, place.parent, &place.name, replaced)?
            {
                return Ok(());
            }
        }
        Err(engine::Error::Busy)
    }

    /// Removes a name of something that is not a directory; with its last name a file is deleted.
    ///
    /// # Errors
    /// When the name does not exist, or belongs to a directory; as [`Fs::sync`].
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        self.refuse_slash(path, engine::Error::NotFound)?;
        let place = self.place(path)?;
        self.named(path, self.engine.unlink(place.parent, &place.name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// When it does not exist, or is not empty; as [`Fs::sync`].
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let place = self.place(path)?;
        self.named(path, self.engine.rmdir(place.parent, &place.name))
    }

    /// Removes a directory with all that is below it; symbolic links are removed, not followed. What a cut in between
    /// leaves: a part of it.
    ///
    /// # Errors
    /// As [`Fs::remove_dir`]; what was removed before stays so. A path that ends in `.` or `..` is refused with nothing
    /// removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        // Nothing is taken from below what can't be removed itself, and a link is not a directory.
        // The place is kept: the way to it may lead through what is removed.
        let last = self.place(path)?;
        if &*last.name == b"." || &*last.name == b".." {
            let error = engine::Error::InvalidArgument;
            return Err(Error::at(&host::path_bytes(path), error));
        }
        let start = self.reach(path, false)?;
        let named = |error| Error::at(&host::path_bytes(path), error);
        // The directories on the way down, each with its name in the one before.
        let mut way: Vec<(HeldInode<'_>, Vec<u8>)> = vec![(start, Vec::new())];
        while let Some((directory, _)) = way.last() {
            let directory = directory.ino();
            let below = self.empty(directory).map_err(named)?;
            match below {
                Some(child) if way.iter().any(|(held, _)| held.ino() == child.0.ino()) => {
                    return Err(Error::invalid("a directory lies in itself"));
                }
                Some(child) => way.push(child),
                None => {
                    let name = way.pop().map(|(_, name)| name).unwrap_or_default();
                    match way.last() {
                        Some((parent, _)) => {
                            self.engine.rmdir(parent.ino(), &name).map_err(named)?
                        }
                        None => return self.engine.rmdir(last.parent, &last.name).map_err(named),
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes what is in a directory, up to the first directory in it, which it gives.
    fn empty(&self, directory: Ino) -> Result<Option<(HeldInode<'_>, Vec<u8>)>, engine::Error> {
        /// How many names are taken at once: removing does not change what was read.
        const AT_ONCE: usize = 4096;
        loop {
            let entries = self.list(directory)?.take(AT_ONCE);
            let entries: Vec<_> = entries.collect::<Result<_, _>>()?;
            if entries.is_empty() {
                return Ok(None);
            }
            for entry in entries {
                let held = self.reach_in(directory, &entry.name)?;
                if self.engine.metadata(held.ino())?.file_type == FileType::Directory {
                    return Ok(Some((held, entry.name)));
                }
                // Deleted by the next call, which says what fails.
                drop(held);
                self.engine.unlink(directory, &entry.name)?;
            }
        }
    }

    /// Gives what is at `from` the name `to`; a file or an empty directory that has it is replaced, in the same step.
    ///
    /// # Errors
    /// When there is nothing at `from`, what is at `to` can't be replaced by it, or a directory would lie in itself; as
    /// [`Fs::sync`].
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        self.rename_with(from, to, RenameFlag::Replace)
    }

    /// As [`Fs::rename`], with a choice of what happens to what is at `to`.
    ///
    /// # Errors
    /// As [`Fs::rename`].
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flag: RenameFlag,
    ) -> Result<(), Error> {
        let old = self.place(from.as_ref())?;
        let new = self.place(to.as_ref())?;
        let renamed = self
            .engine
            .rename(old.parent, &old.name, new.parent, &new.name, flag);
        // If a name is missing, the error names the old path; otherwise it names the new one.
        let about = match renamed {
            Err(engine::Error::NotFound) => from.as_ref(),
            _ => to.as_ref(),
        };
        self.named(about, renamed)
    }
}
