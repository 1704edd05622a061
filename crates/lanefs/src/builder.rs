//! Opening and making file systems with choices: in files, on devices, in memory. Each choice has a default.
//!
//! Crash: opening writes what the journal holds home first; making leaves a file without a superblock.

use std::path::Path;

use device::{BlockDevice, FileDevice, MemoryDevice};
use engine::{MountOptions, Timestamp};
use sync::Arc;

use crate::locate::{Location, locate};
use crate::{Error, Fs, errno, in_use, make};

/// How to open or make a file system. Without a choice it is opened for reading, as a whole, and made as `mke2fs` makes
/// one; times are the wall clock's.
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
    /// All defaults.
    pub fn new() -> FsBuilder {
        FsBuilder {
            is_writable: false,
            location: Location::Whole,
            options: MountOptions::default(),
            clock: crate::now,
            layout: mkfs::Options::default(),
        }
    }

    /// To change it. Nobody else may use the image meanwhile.
    pub fn write(mut self, write: bool) -> FsBuilder {
        self.is_writable = write;
        self
    }

    /// Where on the device it is: in a partition, or from an offset on. The default is the whole device.
    pub fn location(mut self, location: Location) -> FsBuilder {
        self.location = location;
        self
    }

    /// How it is used.
    pub fn mount_options(mut self, options: MountOptions) -> FsBuilder {
        self.options = options;
        self
    }

    /// The clock that inodes are stamped with. The default is [`crate::now`], the wall clock.
    pub fn clock(mut self, clock: fn() -> Timestamp) -> FsBuilder {
        self.clock = clock;
        self
    }

    /// The time of all changes, instead of a clock.
    pub fn time(mut self, time: impl Into<Timestamp>) -> FsBuilder {
        self.options.time = Some(time.into());
        self
    }

    /// How [`FsBuilder::make`] and its like lay out the file system.
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

    /// Opens a file system on a device of the caller.
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

    /// Opens an image that is in memory. `fs.inodes().device()` is what its bytes become.
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
    /// When the file exists, the size is too small or the layout can't be; then no file is left.
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

    /// Makes an empty file system on all of a device of the caller and opens it for writing. What the device holds is
    /// lost.
    ///
    /// # Errors
    /// When the device is too small, the layout can't be, or the device fails.
    pub fn make_on(self, device: Arc<dyn BlockDevice>) -> Result<Fs, Error> {
        let builder = self.for_new();
        make::make_on(&*device, &builder.layout)?;
        builder.open_device(device)
    }

    /// Makes an empty file system of `size` bytes in memory and opens it for writing. It takes as much memory as is
    /// written to it.
    ///
    /// # Errors
    /// When the size is too small or the layout can't be.
    pub fn make_in_memory(mut self, size: u64) -> Result<Fs, Error> {
        self.layout.device_is_zero = true;
        self.make_on(Arc::new(MemoryDevice::new(size)))
    }

    /// The same builder, which opens what it makes: for writing and on the whole device. If the layout has no time, it
    /// gets that of the builder's clock.
    fn for_new(mut self) -> FsBuilder {
        let (time, clock) = (self.options.time, self.clock);
        let seconds = || time.unwrap_or_else(clock).seconds;
        self.layout.time.get_or_insert_with(seconds);
        self.location = Location::Whole;
        self.write(true)
    }
}
