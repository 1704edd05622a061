//! An image in a regular file or on a block device, through the host's page cache.
//!
//! A writer holds an exclusive advisory lock (flock) on the file, a reader a shared one, for as long as the device is
//! open: two writers, or a writer and readers, are refused at open. The lock ends with the process, so a crash leaves
//! nothing behind. The lock of a loop device is also taken on the file behind it, so that it conflicts with an open of
//! that file or of another loop device on it. A block device that the kernel has mounted is also refused to writers. No
//! method holds a lock of ours; reads and writes run in parallel. After a crash, what was written since the last
//! `flush` may be there in part.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use sync::clock::Duration;
use sync::{Guarded, Mutex, Rank};

use crate::block_device::{BlockDevice, DeviceError, Resize, check_range};
use crate::host;
use crate::purpose::Purpose;
use crate::system::files;
use crate::system::ground::Ground;
use crate::system::holder;

/// One transfer is at most this long; the kernel cuts longer ones anyway.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// How often, and how far apart, a taken lock is asked for again: udev holds one for a moment on new block devices.
pub(crate) const LOCK_TRIES: u32 = 5;
pub(crate) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenMode {
    /// For reading.
    Read,
    /// For reading and writing.
    Write,
    /// As `Write`, without claiming a block device.
    Beside,
    /// For reading and writing; a file that does not exist is created.
    Create,
    /// For reading and writing; the file is created, and the name must not exist.
    CreateNew,
}

/// The kind of an open file.
pub(crate) enum Kind {
    Regular,
    BlockDevice,
    /// A file that can't hold an image, as a noun for a message.
    Other(&'static str),
}

/// Why a file was not opened.
pub(crate) enum OpenFailure {
    /// Its holder, as a clause.
    InUse(String),
    Failed(io::Error),
}

/// A regular file or block device that holds an image.
#[derive(Debug)]
pub struct FileDevice {
    pub(crate) file: File,
    /// Has the kernel's claim on a block device that is open for writing: while it is open, the kernel mounts the
    /// device for no other program. [leaf]
    claim: Mutex<Option<File>>,
    /// What is behind it, if it is a loop device, for the locks on that.
    _behind: Vec<File>,
    /// The bytes that it stands for.
    ground: Ground,
    path: String,
    read_only: bool,
    is_regular: bool,
    /// Bytes. [written by `set_size`, whose caller runs no other call on bytes that are cut off]
    size: Guarded<u64>,
}

/// A file that was just made, under its name; it is removed when this is dropped.
struct MadeFile<'p>(Option<&'p Path>);

impl MadeFile<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for MadeFile<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            // The returned error matters more than a failure to remove what is left.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl FileDevice {
    /// Opens an existing image for reading.
    ///
    /// # Errors
    /// When the file can't be opened, is neither a regular file nor a block device, or has a writer.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<FileDevice, DeviceError> {
        FileDevice::open_with(
            path.as_ref(),
            OpenMode::Read,
            "opening",
            Some(Purpose::Read),
        )
    }

    /// Opens a file like [`FileDevice::open_read_only`], but with the lock of a writer: for a file that is to be
    /// replaced by another.
    pub(crate) fn open_to_replace(path: &Path) -> Result<FileDevice, DeviceError> {
        FileDevice::open_with(path, OpenMode::Read, "opening", Some(Purpose::Write))
    }

    /// Opens an existing image for reading without a lock, even while others use it: what is read may change at any
    /// time.
    ///
    /// # Errors
    /// When the file can't be opened, or is neither a regular file nor a block device.
    pub fn open_unlocked(path: impl AsRef<Path>) -> Result<FileDevice, DeviceError> {
        FileDevice::open_with(path.as_ref(), OpenMode::Read, "opening", None)
    }

    /// Opens an existing image for reading and writing. Its size stays as it is.
    ///
    /// # Errors
    /// As for [`FileDevice::open_read_only`], and when it has readers.
    pub fn open(path: impl AsRef<Path>) -> Result<FileDevice, DeviceError> {
        FileDevice::open_with(
            path.as_ref(),
            OpenMode::Write,
            "opening",
            Some(Purpose::Write),
        )
    }

    /// Creates a sparse file of exactly `size` bytes, or empties and resizes an existing one. A block device is
    /// opened as it is, and must have `size` bytes at least; its own size then counts.
    ///
    /// # Errors
    /// As for [`FileDevice::open`], and when the file system refuses a file of this size.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<FileDevice, DeviceError> {
        let purpose = Some(Purpose::Write);
        FileDevice::open_with(path.as_ref(), OpenMode::Create, "creating", purpose)?.emptied(size)
    }

    /// As [`FileDevice::create`], but refuses a name that exists.
    ///
    /// # Errors
    /// As for [`FileDevice::create`], and when the name exists.
    pub fn create_new(path: impl AsRef<Path>, size: u64) -> Result<FileDevice, DeviceError> {
        let (path, purpose) = (path.as_ref(), Some(Purpose::Write));
        let (device, made) = FileDevice::open_made(path, OpenMode::CreateNew, "creating", purpose)?;
        let device = device.emptied(size)?;
        made.keep();
        Ok(device)
    }

    fn open_with(
        path: &Path,
        access: OpenMode,
        operation: &'static str,
        purpose: Option<Purpose>,
    ) -> Result<FileDevice, DeviceError> {
        let (device, made) = FileDevice::open_made(path, access, operation, purpose)?;
        made.keep();
        Ok(device)
    }

    /// Opens `path`; a file that this made is removed again unless it is kept.
    fn open_made<'p>(
        path: &'p Path,
        access: OpenMode,
        operation: &'static str,
        purpose: Option<Purpose>,
    ) -> Result<(FileDevice, MadeFile<'p>), DeviceError> {
        let name = path.display().to_string();
        let failed = |source: io::Error| DeviceError::Open {
            operation,
            path: name.clone(),
            source,
        };
        let mut file = match files::open(path, access) {
            Ok(file) => file,
            Err(OpenFailure::InUse(holder)) => {
                return Err(DeviceError::InUse { path: name, holder });
            }
            Err(OpenFailure::Failed(source)) => return Err(failed(source)),
        };
        let made = MadeFile((access == OpenMode::CreateNew).then_some(path));
        let read_only = access == OpenMode::Read;
        let (kind, ground) = files::identify(&file).map_err(failed)?;
        let mut claim = None;
        if matches!(kind, Kind::BlockDevice) && !read_only {
            let beside = open_same(path, OpenMode::Beside, &ground).map_err(failed)?;
            claim = Some(std::mem::replace(&mut file, beside));
        }
        let is_regular = match kind {
            Kind::Regular => true,
            Kind::BlockDevice => false,
            Kind::Other(what) => {
                return Err(DeviceError::NotAnImage { path: name, what });
            }
        };
        if !read_only && !is_regular && files::is_write_protected(&file).map_err(failed)? {
            return Err(DeviceError::WriteProtected { path: name });
        }
        let behind = match purpose {
            Some(purpose) => lock_all(&file, &ground, purpose, &name)?,
            None => Vec::new(),
        };
        // The metadata of a block device do not contain its size, so seek to its end.
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let device = FileDevice {
            file,
            claim: Mutex::new(Rank::Leaf, claim),
            _behind: behind,
            ground,
            path: name,
            read_only,
            is_regular,
            size: Guarded::new(size),
        };
        Ok((device, made))
    }

    /// Empties a regular file and makes it `size` bytes long; checks a block device's size.
    fn emptied(self, size: u64) -> Result<FileDevice, DeviceError> {
        if self.is_regular {
            self.set_size(0)?;
            self.set_size(size)?;
        } else {
            check_range("creating", 0, size, self.size())?;
        }
        Ok(self)
    }

    /// Gives up the kernel's claim on a block device, so that the kernel can mount it; the lock stays. Until it is
    /// mounted, only programs that look for the lock stay away.
    pub fn give_up_claim(&self) {
        *self.claim.lock() = None;
    }

    /// Claims a block device again.
    ///
    /// # Errors
    /// `ResourceBusy` if another program has claimed it meanwhile; when it can't be opened by its name.
    pub fn claim_again(&self) -> io::Result<()> {
        if !self.is_regular && !self.read_only {
            let claim = open_same(Path::new(&self.path), OpenMode::Write, &self.ground)?;
            *self.claim.lock() = Some(claim);
        }
        Ok(())
    }

    /// Whether this is a regular file (not a block device).
    #[must_use]
    pub fn is_regular(&self) -> bool {
        self.is_regular
    }

    /// The bytes that it stands for, whatever other names lead to them.
    pub(crate) fn ground(&self) -> &Ground {
        &self.ground
    }

    /// The name it was opened by.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    fn io_error(
        operation: &'static str,
        offset: u64,
        len: usize,
        source: io::Error,
    ) -> DeviceError {
        DeviceError::Io {
            operation,
            offset,
            len: len as u64,
            source,
        }
    }
}

/// Opens a block device that is open already.
fn open_same(path: &Path, access: OpenMode, ground: &Ground) -> io::Result<File> {
    let file = files::open(path, access).map_err(|failure| match failure {
        OpenFailure::InUse(holder) => io::Error::new(io::ErrorKind::ResourceBusy, holder),
        OpenFailure::Failed(error) => error,
    })?;
    let (_, found) = files::identify(&file)?;
    if found.is_same(ground) {
        Ok(file)
    } else {
        Err(io::Error::other("its name leads to another device now"))
    }
}

/// Locks a file or device as far as it can be opened and, if it is a loop device, the file behind it. The lock covers
/// all of it even if only a range may be reached, because a lock of a range would not conflict with readers of the
/// whole.
fn lock_all(
    file: &File,
    ground: &Ground,
    purpose: Purpose,
    path: &str,
) -> Result<Vec<File>, DeviceError> {
    let in_use = |holder: String| DeviceError::InUse {
        path: path.to_owned(),
        holder,
    };
    let locked = |file: &File| {
        if lock(file, purpose, path)? {
            Ok(())
        } else {
            Err(in_use(holder::with_lock(ground)))
        }
    };
    locked(file)?;
    let mut behind = Vec::new();
    for layer in ground.layers() {
        let opened = layer.open(purpose == Purpose::Read);
        let claimed = |_| in_use(format!("{} behind it is claimed", layer.path().display()));
        if let Some(file) = opened.map_err(claimed)? {
            locked(&file)?;
            behind.push(file);
        }
    }
    Ok(behind)
}

/// Takes the locks of the host, exclusive for writers. Returns `false` if another open file has a lock that excludes
/// this one.
fn lock(file: &File, purpose: Purpose, path: &str) -> Result<bool, DeviceError> {
    for attempt in 1..=LOCK_TRIES {
        let locked = files::try_lock(file, purpose).map_err(|source| DeviceError::Open {
            operation: "locking",
            path: path.to_owned(),
            source,
        });
        if locked? {
            return Ok(true);
        }
        if attempt < LOCK_TRIES {
            sync::thread::sleep(LOCK_PAUSE);
        }
    }
    Ok(false)
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.size.get()
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range("read", offset, buf.len() as u64, self.size())?;
        let len = buf.len();
        let mut done = 0;
        while done < len {
            let end = len.min(done + TRANSFER_BYTES_MAX);
            let at = offset + done as u64;
            match host::read_at(&self.file, &mut buf[done..end], at) {
                // The file was cut short behind our back.
                Ok(0) => {
                    let short = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Err(FileDevice::io_error("read", at, len - done, short));
                }
                Ok(count) => done += count,
                Err(source) => return Err(FileDevice::io_error("read", at, len - done, source)),
            }
        }
        Ok(())
    }

    fn will_read(&self, range: Range<u64>) {
        files::will_read(&self.file, &range);
    }

    fn data_from(&self, offset: u64) -> Option<u64> {
        if offset >= self.size() {
            return None;
        }
        if !self.is_regular {
            return Some(offset);
        }
        files::data_from(&self.file, offset)
    }

    fn laid_over_from(&self, _: u64) -> Option<Range<u64>> {
        None
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly);
        }
        check_range("write", offset, bytes.len() as u64, self.size())?;
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let part = &rest[..rest.len().min(TRANSFER_BYTES_MAX)];
            match host::write_at(&self.file, part, at) {
                Ok(0) => {
                    let short = io::Error::from(io::ErrorKind::WriteZero);
                    return Err(FileDevice::io_error("write", at, rest.len(), short));
                }
                Ok(count) => {
                    rest = &rest[count..];
                    at += count as u64;
                }
                Err(source) => return Err(FileDevice::io_error("write", at, rest.len(), source)),
            }
        }
        Ok(())
    }

    fn reserve(&self, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
        if !self.is_regular || self.read_only {
            return Ok(());
        }
        let longest = files::longest_file();
        for range in ranges {
            let failed = |source: io::Error| DeviceError::NoRoom {
                offset: range.start,
                len: range.end.saturating_sub(range.start),
                source,
            };
            if !files::reserve(&self.file, range, longest).map_err(failed)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.read_only {
            return Ok(());
        }
        // std repeats a call that a signal interrupted.
        let flushed = self.file.sync_data();
        flushed.map_err(|source| FileDevice::io_error("flush", 0, 0, source))
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly);
        }
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(());
        }
        check_range("discard", range.start, len, self.size())?;
        files::punch(&self.file, &range).map_err(|source| DeviceError::Io {
            operation: "discard",
            offset: range.start,
            len,
            source,
        })
    }
}

impl Resize for FileDevice {
    fn set_size(&self, size: u64) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly);
        }
        if !self.is_regular {
            // A block device keeps its size; a smaller file system on it is fine.
            return check_range("resize", 0, size, self.size());
        }
        self.file
            .set_len(size)
            .map_err(|source| DeviceError::Open {
                operation: "resizing",
                path: self.path.clone(),
                source,
            })?;
        self.size.set(size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("lanefs-device-{}-{name}", std::process::id());
            Scratch(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_created_file_is_sparse_and_exactly_as_long_as_asked() {
        use std::os::unix::fs::MetadataExt;
        let path = Scratch::new("sparse");
        let device = FileDevice::create(&path.0, 10_000_000_001).unwrap();
        device.write_at(9_999_999_990, b"end").unwrap();
        device.flush().unwrap();
        let metadata = std::fs::metadata(&path.0).unwrap();
        assert_eq!(metadata.len(), 10_000_000_001);
        assert!(metadata.blocks() < 100);
        let mut buf = [1; 12];
        device.read_at(9_999_999_988, &mut buf).unwrap();
        assert_eq!(&buf, b"\0\0end\0\0\0\0\0\0\0");
        device.set_size(4096).unwrap();
        assert_eq!((device.size(), device.is_regular()), (4096, true));
        assert!(matches!(
            device.read_at(4095, &mut buf),
            Err(DeviceError::OutOfRange { .. })
        ));
    }

    #[test]
    fn a_file_that_can_not_have_its_size_is_not_left() {
        let path = Scratch::new("beyond");
        assert!(FileDevice::create_new(&path.0, u64::MAX).is_err());
        assert!(!path.0.exists());
        drop(FileDevice::create_new(&path.0, 10).unwrap());
        assert!(FileDevice::create_new(&path.0, 10).is_err());
        assert!(path.0.exists(), "one that was there before stays");
    }

    #[test]
    fn a_discarded_range_is_a_hole() {
        let path = Scratch::new("hole");
        let device = FileDevice::create(&path.0, 1 << 20).unwrap();
        device.write_at(0, &vec![7; 1 << 20]).unwrap();
        device.discard(65536..131_072).unwrap();
        let mut buf = vec![1; 65536];
        device.read_at(131_072, &mut buf).unwrap();
        assert!(buf.iter().all(|byte| *byte == 7));
        device.read_at(65536, &mut buf).unwrap();
        // A file system without holes keeps the bytes.
        assert!(buf.iter().all(|byte| *byte == 0) || buf.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_writer_excludes_others_and_readers_share() {
        let path = Scratch::new("lock");
        let writer = FileDevice::create(&path.0, 4096).unwrap();
        let in_use = FileDevice::open_read_only(&path.0).unwrap_err();
        assert!(matches!(in_use, DeviceError::InUse { .. }), "{in_use}");
        drop(writer);
        let reader = FileDevice::open_read_only(&path.0).unwrap();
        let _second = FileDevice::open_read_only(&path.0).unwrap();
        assert!(matches!(
            FileDevice::open(&path.0),
            Err(DeviceError::InUse { .. })
        ));
        assert!(matches!(
            reader.write_at(0, b"x"),
            Err(DeviceError::ReadOnly)
        ));
        assert!(FileDevice::create_new(&path.0, 1).is_err());
    }

    #[test]
    fn a_read_only_block_device_is_refused_at_the_door() {
        let path = Scratch::new("loop");
        drop(FileDevice::create(&path.0, 1 << 20).unwrap());
        if !testkit::is_root() || !testkit::have("losetup") {
            return testkit::skip("needs root and losetup");
        }
        let Ok(attached) = testkit::LoopDevice::over(&path.0, &["-r"]) else {
            return testkit::skip("no loop device");
        };
        let device = attached.name();
        let refused = FileDevice::open(device).map(drop).unwrap_err();
        let read = FileDevice::open_read_only(device).map(|device| device.size());
        assert!(matches!(refused, DeviceError::WriteProtected { .. }));
        let text = refused.to_string();
        assert_eq!(text, format!("{device} is a read-only block device"));
        assert_eq!(read.unwrap(), 1 << 20);
    }

    #[test]
    fn what_cannot_hold_an_image_is_named() {
        let error = FileDevice::open_read_only("/").unwrap_err();
        assert!(error.to_string().contains("a directory"), "{error}");
        let error = FileDevice::open("/dev/null").unwrap_err();
        assert!(error.to_string().contains("a character device"), "{error}");
        let error = FileDevice::open_read_only("/nonexistent").unwrap_err();
        assert!(
            error.to_string().contains("opening /nonexistent"),
            "{error}"
        );
    }
}
