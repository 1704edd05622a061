//! A builder with options for opening and making file systems in files, on devices and in memory.
//!
//! Crash: opening for writing replays the journal, and a replay that is cut is repeated by the next opening. A file
//! system of which only a part was made has no superblock.

use std::path::Path;

use device::{BlockDevice, FileDevice, MemoryDevice};
use engine::{MountOptions, Timestamp};
use sync::Arc;

use crate::locate::{Location, locate};
use crate::{Error, Fs, errno, in_use, make};

/// Options for opening or making a file system. By default one is opened for reading and is the whole device; one that
/// is made has the layout that `mke2fs` chooses; times are those of the wall clock.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("disk.img");
/// use std::time::{Duration, UNIX_EPOCH};
/// use lanefs::Fs;
///
/// let moment = UNIX_EPOCH + Duration::from_secs(946_684_800);
/// let fs = Fs::builder().time(moment).make(&image, 16 << 20)?;
/// fs.write("/motd", "welcome\n")?;
/// fs.close()?;
///
/// let fs = Fs::builder().write(true).open(&image)?;
/// assert_eq!(fs.metadata("/motd")?.modified(), moment);
///
/// // The same in memory.
/// drop(fs);
/// let fs = Fs::builder().write(true).open_bytes(std::fs::read(&image)?)?;
/// fs.remove_file("/motd")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it opens or makes a file system"]
pub struct FsBuilder {
    is_writable: bool,
    location: Location,
    options: MountOptions,
    clock: fn() -> Timestamp,
    layout: mkfs::Options,
}

impl Default for FsBuilder {
    fn default() -> FsBuilder {
        FsBuilder::new()
    }
}

impl FsBuilder {
    /// Returns a builder with all defaults.
    pub fn new() -> FsBuilder {
        FsBuilder {
            is_writable: false,
            location: Location::Whole,
            options: MountOptions::default(),
            clock: crate::now,
            layout: mkfs::Options::default(),
        }
    }

    /// Whether the file system is opened for writing; the default is for reading only. No other program may use the
    /// image while it is open for writing.
    pub fn write(mut self, write: bool) -> FsBuilder {
        self.is_writable = write;
        self
    }

    /// Where on the device the file system is: in a partition, or from an offset on. The default is the whole device.
    pub fn location(mut self, location: Location) -> FsBuilder {
        self.location = location;
        self
    }

    /// How the file system is opened and used: journal, caches, checks. See [`MountOptions`].
    pub fn mount_options(mut self, options: MountOptions) -> FsBuilder {
        self.options = options;
        self
    }

    /// The clock from which inodes take their times. The default is [`crate::now`], the wall clock.
    pub fn clock(mut self, clock: fn() -> Timestamp) -> FsBuilder {
        self.clock = clock;
        self
    }

    /// A fixed time for all changes, instead of a clock.
    pub fn time(mut self, time: impl Into<Timestamp>) -> FsBuilder {
        self.options.time = Some(time.into());
        self
    }

    /// Block size, features and the other choices for a file system that is made. Opening ignores them.
    pub fn layout(mut self, layout: mkfs::Options) -> FsBuilder {
        self.layout = layout;
        self
    }

    /// Opens an image file or a block device. One that is opened for writing is locked until the file system is
    /// dropped.
    ///
    /// # Errors
    /// As [`Fs::open`]; for writing as [`Fs::open_for_writing`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Fs, Error> {
        let device: Arc<dyn BlockDevice> = if self.is_writable {
            Arc::new(in_use::open_unused(path)?)
        } else {
            Arc::new(FileDevice::open_read_only(path)?)
        };
        self.open_device(device)
    }

    /// Opens the file system on a device that the caller provides.
    ///
    /// # Errors
    /// As [`FsBuilder::open`].
    pub fn open_device(self, device: Arc<dyn BlockDevice>) -> Result<Fs, Error> {
        let device = locate(device, self.location)?;
        if self.is_writable {
            Fs::open_for_writing_with(device, &self.options, self.clock)
        } else {
            Fs::open_with(device, &self.options)
        }
    }

    /// Opens a copy of an image in memory. `fs.inodes().device()` reads the copy with its changes.
    ///
    /// # Errors
    /// As [`FsBuilder::open`].
    pub fn open_bytes(self, bytes: impl AsRef<[u8]>) -> Result<Fs, Error> {
        let bytes = bytes.as_ref();
        let device = MemoryDevice::new(bytes.len() as u64);
        device.write_at(0, bytes)?;
        self.open_device(Arc::new(device))
    }

    /// Makes an empty file system of `size` bytes in a new file and opens it for writing.
    ///
    /// # Errors
    /// When the file exists, which then stays as it is; when the size is too small or the layout is not possible, after
    /// which no file is left.
    pub fn make(self, path: impl AsRef<Path>, size: u64) -> Result<Fs, Error> {
        let path = path.as_ref();
        if path.exists() {
            let exists = errno::as_io_error(errno::Errno::EXIST);
            return Err(Error::host("making a file system in", path, exists));
        }
        let builder = self.for_new();
        make::make(path, Some(size), &builder.layout, false)?;
        builder.open(path).inspect_err(|_| {
            // This call made the file. The caller gets the error of the open, not one of the removal.
            let _ = std::fs::remove_file(path);
        })
    }

    /// Makes an empty file system on the whole of a device that the caller provides, and opens it for writing. What the
    /// device held is lost.
    ///
    /// # Errors
    /// When the device is too small, the layout is not possible, or the device fails.
    pub fn make_on(self, device: Arc<dyn BlockDevice>) -> Result<Fs, Error> {
        let builder = self.for_new();
        make::make_on(&*device, &builder.layout)?;
        builder.open_device(device)
    }

    /// Makes an empty file system of `size` bytes in memory and opens it for writing. Blocks that were never written
    /// take no memory.
    ///
    /// # Errors
    /// When the size is too small or the layout is not possible.
    pub fn make_in_memory(mut self, size: u64) -> Result<Fs, Error> {
        self.layout.device_is_zero = true;
        self.make_on(Arc::new(MemoryDevice::new(size)))
    }

    /// The builder for a new file system, which is opened for writing on the whole device. A layout without a time gets
    /// that of the builder's clock.
    fn for_new(mut self) -> FsBuilder {
        let (time, clock) = (self.options.time, self.clock);
        let seconds = || time.unwrap_or_else(clock).seconds;
        self.layout.time.get_or_insert_with(seconds);
        self.location = Location::Whole;
        self.write(true)
    }
}
