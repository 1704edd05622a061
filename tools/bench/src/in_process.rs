//! The engine, called in this process by inode number, on a fresh image with `mkfs`'s default features.

use std::path::Path;

use device::{BlockDevice, FileDevice, MemoryDevice};
use engine::{Allocate, Ino, MountOptions, NewInode, RenameFlag};
use lanefs::{Error, Fs};
use sync::Arc;

use crate::target::{Counters, FileHandle, MountedTarget, Remount, Target};

/// Files that workloads create. Their owner does not matter.
const NEW_FILE: NewInode = NewInode {
    mode: 0o644,
    umask: 0,
    held: false,
    uid: 0,
    gid: 0,
};
const NEW_DIRECTORY: NewInode = NewInode {
    mode: 0o755,
    ..NEW_FILE
};
const NEW_OPEN_FILE: NewInode = NewInode {
    held: true,
    ..NEW_FILE
};

/// A file system of our own.
pub struct InProcess {
    fs: Fs,
    root: Ino,
    device: Arc<dyn BlockDevice>,
    options: MountOptions,
    /// Bytes that the options began with, for a remount.
    inodes: usize,
}

/// A file in hand.
#[derive(Debug)]
pub struct OpenFile {
    ino: Ino,
    is_held: bool,
}

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}

/// Bytes of a device that is touched, at most.
const TOUCHED_MOST: u64 = 2 << 30;

/// Gives a device that is all zeros its memory, or its blocks: else what is written first to each place would be
/// measured with what the host does then, in the first samples more than in the last.
fn touch(device: &dyn BlockDevice) -> Result<(), device::DeviceError> {
    if device.size() > TOUCHED_MOST {
        return Ok(());
    }
    let mut bytes = vec![1; 1 << 20];
    for _ in 0..2 {
        for start in (0..device.size()).step_by(bytes.len()) {
            let len = (device.size() - start).min(bytes.len() as u64);
            // At most the buffer's length.
            device.write_at(start, &bytes[..len as usize])?;
        }
        // Zeros alone would not be kept where nothing is.
        bytes.fill(0);
    }
    Ok(())
}

impl InProcess {
    /// Makes a file system of `size` bytes in memory and opens it. Its memory is the process's already, up to 2 GiB.
    ///
    /// # Errors
    /// When no file system of that size can be made.
    pub fn in_memory(size: u64, options: &MountOptions) -> Result<InProcess, Error> {
        let device = MemoryDevice::new(size);
        touch(&device).map_err(lanefs::make::MakeError::from)?;
        InProcess::on(Arc::new(device), None, options)
    }

    /// Makes a file of `size` bytes that was not there, with a file system in it, and opens it. Up to 2 GiB it has no
    /// holes. Removing the file is the caller's.
    ///
    /// # Errors
    /// When the file exists or can't be made, or no file system of that size can be.
    pub fn in_file(path: &Path, size: u64, options: &MountOptions) -> Result<InProcess, Error> {
        InProcess::in_file_with(path, size, "", options)
    }

    /// As [`InProcess::in_file`], with these of mke2fs's features besides the default ones.
    pub(crate) fn in_file_with(
        path: &Path,
        size: u64,
        features: &str,
        options: &MountOptions,
    ) -> Result<InProcess, Error> {
        let device = FileDevice::create_new(path, size).map_err(lanefs::make::MakeError::from)?;
        touch(&device).map_err(lanefs::make::MakeError::from)?;
        InProcess::on_with(Arc::new(device), None, features, options)
    }

    /// Makes a file system on a device that is all zeros, with `inodes` inodes or mke2fs's share, and opens it.
    ///
    /// # Errors
    /// When no file system of that size can be made.
    pub fn on(
        device: Arc<dyn BlockDevice>,
        inodes: Option<u64>,
        options: &MountOptions,
    ) -> Result<InProcess, Error> {
        InProcess::on_with(device, inodes, "", options)
    }

    /// As [`InProcess::on`], with these of mke2fs's features besides the default ones.
    pub(crate) fn on_with(
        device: Arc<dyn BlockDevice>,
        inodes: Option<u64>,
        features: &str,
        options: &MountOptions,
    ) -> Result<InProcess, Error> {
        let make = lanefs::mkfs::Options {
            device_is_zero: true,
            inodes,
            features: features.to_owned(),
            ..lanefs::mkfs::Options::default()
        };
        InProcess::made(device, &make, options)
    }

    /// As [`InProcess::on_with`] on a device that may hold anything.
    pub(crate) fn on_used(
        device: Arc<dyn BlockDevice>,
        features: &str,
        options: &MountOptions,
    ) -> Result<InProcess, Error> {
        let make = lanefs::mkfs::Options {
            features: features.to_owned(),
            ..lanefs::mkfs::Options::default()
        };
        InProcess::made(device, &make, options)
    }

    /// On a fresh file system, made so.
    pub(crate) fn made(
        device: Arc<dyn BlockDevice>,
        make: &lanefs::mkfs::Options,
        options: &MountOptions,
    ) -> Result<InProcess, Error> {
        let plan = lanefs::mkfs::Layout::plan(device.size(), make);
        plan.and_then(|layout| lanefs::mkfs::format(&*device, &layout))
            .map_err(lanefs::make::MakeError::from)?;
        InProcess::open(device, options.clone())
    }

    /// Opens the file system on a device.
    pub(crate) fn open(
        device: Arc<dyn BlockDevice>,
        options: MountOptions,
    ) -> Result<InProcess, Error> {
        Ok(InProcess {
            fs: Fs::open_for_writing_with(Arc::clone(&device), &options, lanefs::now)?,
            root: Ino::ROOT,
            device,
            inodes: options.live_inodes,
            options,
        })
    }

    /// The engine beneath.
    #[must_use]
    pub fn fs(&self) -> &engine::InodeFs {
        self.fs.inodes()
    }

    /// Leaves a clean image.
    ///
    /// # Errors
    /// What the file system says.
    pub fn close(self) -> Result<(), Error> {
        self.fs.close()
    }
}

/// An error of the engine.
pub(crate) fn said(source: engine::Error) -> Error {
    Error::Fs {
        path: Vec::new(),
        source,
    }
}

impl Remount for InProcess {
    fn remount(
        self,
        inodes: Option<usize>,
        options: &[String],
    ) -> Result<MountedTarget<InProcess>, Error> {
        let InProcess {
            fs,
            device,
            options: mut mount,
            inodes: usual,
            ..
        } = self;
        fs.close()?;
        mount.live_inodes = inodes.unwrap_or(usual);
        for option in options {
            mount.variants.set(option).map_err(unknown)?;
        }
        let mut target = InProcess::open(device, mount)?;
        target.inodes = usual;
        Ok(MountedTarget {
            target,
            is_fresh: true,
            is_bounded: inodes.is_some(),
        })
    }
}

/// A form that can't be chosen.
pub(crate) fn unknown(error: engine::VariantError) -> Error {
    Error::Host {
        operation: "choosing",
        path: error.to_string().into(),
        source: std::io::ErrorKind::InvalidInput.into(),
    }
}

impl Target for InProcess {
    type Dir = Ino;
    type File = OpenFile;

    fn root(&self) -> &Ino {
        &self.root
    }

    fn mkdir(&self, parent: &Ino, name: &str) -> Result<Ino, Error> {
        let made = self.fs().mkdir(*parent, name.as_bytes(), NEW_DIRECTORY);
        made.map_err(said)
    }

    fn rmdir(&self, parent: &Ino, name: &str) -> Result<(), Error> {
        self.fs().rmdir(*parent, name.as_bytes()).map_err(said)
    }

    fn open_dir(&self, parent: &Ino, name: &str) -> Result<Ino, Error> {
        self.fs().lookup(*parent, name.as_bytes()).map_err(said)
    }

    fn read_dir(&self, dir: &Ino, visit: &mut dyn FnMut(&[u8], bool)) -> Result<(), Error> {
        for entry in self.fs().read_dir(*dir).map_err(said)? {
            let entry = entry.map_err(said)?;
            if entry.name != b"." && entry.name != b".." {
                let is_dir = entry.file_type == Some(engine::FileType::Directory);
                visit(&entry.name, is_dir);
            }
        }
        Ok(())
    }

    fn create(&self, parent: &Ino, name: &str) -> Result<OpenFile, Error> {
        let made = self.fs().create(*parent, name.as_bytes(), NEW_FILE);
        made.map_err(said).map(|ino| OpenFile {
            ino,
            is_held: false,
        })
    }

    fn creat(&self, parent: &Ino, name: &str) -> Result<OpenFile, Error> {
        let made = self.fs().create(*parent, name.as_bytes(), NEW_OPEN_FILE);
        let ino = match made {
            Err(engine::Error::Exists) => {
                let file = self.open(parent, name)?;
                if self.fs().metadata(file.ino).map_err(said)?.size > 0 {
                    self.truncate(&file, 0)?;
                }
                return Ok(file);
            }
            made => made.map_err(said)?,
        };
        Ok(OpenFile { ino, is_held: true })
    }

    fn open(&self, parent: &Ino, name: &str) -> Result<OpenFile, Error> {
        let found = self.fs().lookup_held(*parent, name.as_bytes());
        let ino = found.map_err(said)?;
        Ok(OpenFile { ino, is_held: true })
    }

    fn open_path(&self, from: &Ino, path: &str) -> Result<OpenFile, Error> {
        let (mut directory, mut rest) = (*from, path);
        while let Some((name, behind)) = rest.split_once('/') {
            directory = self.open_dir(&directory, name)?;
            rest = behind;
        }
        self.open(&directory, rest)
    }

    fn close(&self, file: OpenFile) -> Result<(), Error> {
        if file.is_held {
            self.fs().release(file.ino).map_err(said)
        } else {
            Ok(())
        }
    }

    fn unlink(&self, parent: &Ino, name: &str) -> Result<(), Error> {
        self.fs().unlink(*parent, name.as_bytes()).map_err(said)
    }

    fn rename(&self, parent: &Ino, name: &str, new_name: &str) -> Result<(), Error> {
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        self.fs()
            .rename(*parent, name, *parent, new_name, RenameFlag::Replace)
            .map_err(said)
    }

    fn move_file(
        &self,
        parent: &Ino,
        name: &str,
        new_parent: &Ino,
        new_name: &str,
    ) -> Result<(), Error> {
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let flag = RenameFlag::Replace;
        let moved = self.fs().rename(*parent, name, *new_parent, new_name, flag);
        moved.map_err(said)
    }

    fn stat(&self, parent: &Ino, name: &str) -> Result<u64, Error> {
        let ino = self.fs().lookup(*parent, name.as_bytes()).map_err(said)?;
        Ok(self.fs().metadata(ino).map_err(said)?.size)
    }

    fn read(&self, file: &OpenFile, offset: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        self.fs().read(file.ino, offset, bytes).map_err(said)
    }

    fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes.len() {
            let written = self
                .fs()
                .write(file.ino, offset + done as u64, &bytes[done..]);
            done += written.map_err(said)?;
        }
        Ok(())
    }

    fn fallocate(&self, file: &OpenFile, offset: u64, len: u64) -> Result<(), Error> {
        let allocated = self.fs().allocate(file.ino, Allocate::Grow, offset, len);
        allocated.map_err(said)
    }

    fn truncate(&self, file: &OpenFile, size: u64) -> Result<(), Error> {
        self.fs().truncate(file.ino, size).map_err(said)
    }

    fn pieces(&self, file: &OpenFile) -> Result<Option<u64>, Error> {
        let (mut pieces, mut next) = (0, None);
        for run in self.fs().mappings(file.ino).map_err(said)? {
            let run = run.map_err(said)?;
            let Some(physical) = run.physical else {
                continue;
            };
            pieces += u64::from(next != Some(physical.0));
            next = Some(physical.0 + run.len);
        }
        Ok(Some(pieces))
    }

    fn fsync(&self, file: &OpenFile) -> Result<(), Error> {
        self.fs().fsync(file.ino).map_err(said)
    }

    fn settle(&self) -> Result<(), Error> {
        self.fs().sync().map_err(said)
    }

    fn counters(&self) -> Counters {
        self.fs().counters()
    }

    fn choose(&self, option: &str) -> bool {
        self.fs().choose(option).is_ok()
    }

    fn handle(&self, parent: &Ino, name: &str) -> Result<Option<FileHandle>, Error> {
        let ino = self.fs().lookup(*parent, name.as_bytes()).map_err(said)?;
        let generation = self.fs().metadata(ino).map_err(said)?.generation;
        Ok(Some((ino.0, generation.0)))
    }

    fn find_by_handle(&self, (ino, generation): FileHandle) -> Result<bool, Error> {
        let generation = engine::Generation(generation);
        match self.fs().open_by_handle(Ino(ino), generation) {
            Ok(_) => self.fs().release(Ino(ino)).map(|()| true).map_err(said),
            Err(engine::Error::Stale) => Ok(false),
            Err(error) => Err(said(error)),
        }
    }
}
