//! Writing by path, in the manner of `std::fs`.
//!
//! Every change takes effect in memory as a whole. It becomes durable, as a whole or not at all, by [`Fs::sync`],
//! [`Fs::close`], or a commit that another change needed; the order of changes is kept. After a crash, lanefs, e2fsck
//! and the kernel bring the image to the state after some change, not older than the last one that was synced. All
//! methods may be called from any number of threads. Permissions are not checked: a caller that may write to the image
//! may change everything in it.

use std::path::Path;

use device::BlockDevice;
use device::host;
use engine::{FileType, Metadata, MountOptions, SetAttributes, SetTime, Timestamp};
use sync::Arc;

use crate::locate::{Location, locate};
use crate::{Error, Fs, in_use};

/// The set-user-ID bit.
const SETUID: u16 = 0o4000;
/// The set-group-ID bit and the group's right to execute; without that right set-group-ID has another meaning.
const SETGID: u16 = 0o2010;

impl Fs {
    /// Opens an image file or a block device that holds a file system as a whole, for reading and writing. The contents
    /// of its journal are written home first.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("disk.img");
    /// lanefs::make::make(&image, Some(8 << 20), &Default::default(), false)?;
    ///
    /// let fs = lanefs::Fs::open_for_writing(&image)?;
    /// fs.set_permissions("/lost+found", 0o750)?;
    /// fs.close()?;
    ///
    /// let fs = lanefs::Fs::open(&image)?;
    /// assert_eq!(fs.metadata("/lost+found")?.mode & 0o7777, 0o750);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::open`]; when the image is in use, or has a feature that lanefs can read but not write: then nothing is
    /// changed.
    pub fn open_for_writing(path: impl AsRef<Path>) -> Result<Fs, Error> {
        let device = Arc::new(in_use::open_unused(path)?);
        Fs::open_for_writing_with(
            locate(device, Location::Whole)?,
            &MountOptions::default(),
            now,
        )
    }

    /// Opens the file system on a device for reading and writing, with all options; `clock` supplies the times that
    /// inodes are stamped with ([`now`] is the wall clock). No other program may use the device meanwhile.
    ///
    /// # Errors
    /// As [`Fs::open_for_writing`].
    pub fn open_for_writing_with(
        device: Arc<dyn BlockDevice>,
        options: &MountOptions,
        clock: fn() -> Timestamp,
    ) -> Result<Fs, Error> {
        Ok(Fs::of(engine::InodeFs::open_for_writing(
            device, options, clock,
        )?))
    }

    /// Makes everything that was done before this call durable.
    ///
    /// # Errors
    /// When the file system is open for reading only, or when its journal can't be written: nothing is written any more
    /// then, and what was durable before stays durable.
    pub fn sync(&self) -> Result<(), Error> {
        Ok(self.engine.sync()?)
    }

    /// Commits, then discards the free blocks in a range of bytes on the device, so that the device can release their
    /// space: an image in a file gets holes (`fstrim`). Runs of free blocks shorter than `min_len` bytes are skipped.
    /// Returns how many bytes were discarded. Other threads may use the file system meanwhile.
    ///
    /// ```
    /// # let fs = lanefs::Fs::in_memory(8 << 20)?;
    /// let released = fs.trim(0..u64::MAX, 0)?;
    /// # assert!(released > 1 << 20);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the range is shorter than a block or beyond the end, or when no group has `min_len` bytes; as [`Fs::sync`].
    /// When the device fails, a part of the range may have been discarded.
    pub fn trim(&self, range: std::ops::Range<u64>, min_len: u64) -> Result<u64, Error> {
        Ok(self.engine.trim(range, min_len)?)
    }

    /// Waits for the changes that are under way, writes everything home, and lets no other change begin until
    /// [`Fs::thaw`]; reads are still possible. Meanwhile the device holds a clean image, which may be copied.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let (image, copy) = (folder.path().join("disk.img"), folder.path().join("copy.img"));
    /// lanefs::make::make(&image, Some(8 << 20), &Default::default(), false)?;
    ///
    /// let fs = lanefs::Fs::open_for_writing(&image)?;
    /// fs.set_permissions("/lost+found", 0o750)?;
    /// fs.freeze()?;
    /// std::fs::copy(&image, &copy)?;
    /// fs.thaw()?;
    ///
    /// let copied = lanefs::Fs::open(&copy)?;
    /// assert_eq!(copied.metadata("/lost+found")?.mode & 0o7777, 0o750);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::sync`]; then nothing is frozen.
    pub fn freeze(&self) -> Result<(), Error> {
        Ok(self.engine.freeze()?)
    }

    /// Lets changes begin again; does nothing if the file system is not frozen.
    ///
    /// # Errors
    /// When the file system is open for reading only, or its device fails: then nothing is written any more.
    pub fn thaw(&self) -> Result<(), Error> {
        Ok(self.engine.thaw()?)
    }

    /// Makes everything durable and leaves a clean image. If clones, open files or open directories remain, changes by
    /// them fail from then on with [`std::io::ErrorKind::ReadOnlyFilesystem`], and reads still work. The image is
    /// locked against other programs until the last of them is dropped.
    ///
    /// ```
    /// use std::io::{ErrorKind, Write};
    ///
    /// let fs = lanefs::Fs::in_memory(8 << 20)?;
    /// let mut log = fs.create("/log")?;
    /// log.write_all(b"first\n")?;
    /// fs.clone().close()?;
    ///
    /// assert_eq!(fs.read_to_string("/log")?, "first\n");
    /// assert_eq!(log.write_all(b"second\n").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::sync`].
    pub fn close(self) -> Result<(), Error> {
        match Arc::try_unwrap(self.engine) {
            Ok(alone) => Ok(alone.close()?),
            Err(shared) => Ok(shared.retire()?),
        }
    }

    /// Drops the file system without writing anything more; the drop of the last clone, open file or open directory
    /// does not write either. Changes that were not synced are lost, as in a power cut; those that were synced are in
    /// the image or its journal.
    pub fn abandon(self) {
        self.engine.leave_alone();
    }

    /// Changes permissions, owner or times of what a path leads to, and stamps its time of change.
    ///
    /// # Errors
    /// As [`Fs::metadata`] and [`Fs::sync`].
    pub fn set_attributes(
        &self,
        path: impl AsRef<Path>,
        attributes: &SetAttributes,
    ) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), true)?;
        self.named(
            path.as_ref(),
            self.engine.set_attributes(held.ino(), attributes),
        )
    }

    /// Does what [`Fs::set_attributes`] does, but does not follow a symbolic link at the path's end.
    ///
    /// # Errors
    /// As [`Fs::set_attributes`].
    pub fn set_symlink_attributes(
        &self,
        path: impl AsRef<Path>,
        attributes: &SetAttributes,
    ) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), false)?;
        self.named(
            path.as_ref(),
            self.engine.set_attributes(held.ino(), attributes),
        )
    }

    /// Sets the permission bits (within `0o7777`) of what a path leads to.
    ///
    /// # Errors
    /// As [`Fs::set_attributes`].
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u16) -> Result<(), Error> {
        let attributes = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        self.set_attributes(path, &attributes)
    }

    /// Sets the owner and the group (`None`: unchanged) of what a path leads to. As in Linux, a file then loses
    /// set-user-ID, and set-group-ID if its group may execute it. Before that it loses its capabilities
    /// (`security.capability`); a crash in between leaves the former owner.
    ///
    /// # Errors
    /// As [`Fs::set_attributes`].
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Error> {
        let held = self.reach(path.as_ref(), true)?;
        let found = self.named(path.as_ref(), self.engine.metadata(held.ino()))?;
        if !found.is_dir() {
            match self.engine.remove_xattr(held.ino(), b"security.capability") {
                Ok(()) | Err(engine::Error::NoAttribute) => {}
                Err(error) => return self.named(path.as_ref(), Err(error)),
            }
        }
        let changed = self
            .engine
            .set_attributes(held.ino(), &owned(&found, uid, gid));
        self.named(path.as_ref(), changed)
    }

    /// Does what [`Fs::set_owner`] does, but does not follow a symbolic link at the path's end.
    ///
    /// # Errors
    /// As [`Fs::set_attributes`].
    pub fn set_symlink_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Error> {
        let attributes = owned(&self.symlink_metadata(&path)?, uid, gid);
        self.set_symlink_attributes(path, &attributes)
    }

    /// Sets the times of last access and last modification (`None`: unchanged) of what a path leads to.
    ///
    /// # Errors
    /// As [`Fs::set_attributes`].
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        atime: Option<Timestamp>,
        mtime: Option<Timestamp>,
    ) -> Result<(), Error> {
        let attributes = SetAttributes {
            atime: atime.map(SetTime::At),
            mtime: mtime.map(SetTime::At),
            ..SetAttributes::default()
        };
        self.set_attributes(path, &attributes)
    }

    /// A result of the engine, with the path that it is about.
    pub(crate) fn named<T>(
        &self,
        path: &Path,
        result: Result<T, engine::Error>,
    ) -> Result<T, Error> {
        result.map_err(|error| Error::at(&host::path_bytes(path), error))
    }
}

/// The wall clock.
#[must_use]
pub fn now() -> Timestamp {
    let (seconds, nanoseconds) = sync::clock::wall();
    Timestamp {
        seconds,
        nanoseconds,
    }
}

/// The attributes that change an owner, without the permission bits that the change removes.
fn owned(metadata: &Metadata, uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
    let mut kept = metadata.mode & 0o7777;
    if metadata.file_type != FileType::Directory {
        kept &= !SETUID;
        if metadata.mode & SETGID == SETGID {
            kept &= !(SETGID & !0o10);
        }
    }
    SetAttributes {
        mode: Some(kept).filter(|kept| *kept != metadata.mode & 0o7777),
        uid,
        gid,
        ..SetAttributes::default()
    }
}
