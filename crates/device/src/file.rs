//! An image in a regular file or on a block device, through the host's page cache.
//!
//! Who writes holds an exclusive advisory lock (flock) on the file, who reads a shared one, for as long as the
//! device is open: two writers, or a writer beside readers, are refused at the door. The lock ends with the process,
//! so a crash leaves nothing behind. A loop device is locked with the file behind it, so that who opens the file, or
//! another loop device on it, is met. A block device that the kernel has mounted is refused to writers too. No lock of
//! ours is held in any method; reads and writes run in parallel.
//! After a crash, what was written since the last `flush` may be there in part.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, opcode};
use rustix::process::Resource;
use sync::atomic::{AtomicU64, Ordering};
use sync::clock::Duration;

use crate::block_device::{BlockDevice, DeviceError, Resize, check_range};
use crate::ground::Ground;
use crate::holder::{self, Purpose};
use crate::record_lock;

/// One transfer is at most this long; the kernel cuts longer ones anyway.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// How often, and how far apart, a taken lock is asked for again: udev holds one for a moment on new block devices.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A regular file or block device that holds an image.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// What is behind it, if it is a loop device, for the locks on that.
    _behind: Vec<File>,
    /// The bytes that it stands for.
    ground: Ground,
    path: String,
    read_only: bool,
    is_regular: bool,
    /// Bytes. [atomic: Relaxed, changed by `set_size` only]
    size: AtomicU64,
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
            // The error that is returned says more than a failure to remove what is left.
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
            OFlags::RDONLY,
            "opening",
            Some(Purpose::Read),
        )
    }

    /// As [`FileDevice::open_read_only`], with the lock of a writer: for a file that is to be replaced by another.
    pub(crate) fn open_to_replace(path: &Path) -> Result<FileDevice, DeviceError> {
        FileDevice::open_with(path, OFlags::RDONLY, "opening", Some(Purpose::Write))
    }

    /// Opens an existing image for reading, whoever uses it meanwhile: what is read may change at any time.
    ///
    /// # Errors
    /// When the file can't be opened, or is neither a regular file nor a block device.
    pub fn open_unlocked(path: impl AsRef<Path>) -> Result<FileDevice, DeviceError> {
        FileDevice::open_with(path.as_ref(), OFlags::RDONLY, "opening", None)
    }

    /// Opens an existing image for reading and writing. Its size stays as it is.
    ///
    /// # Errors
    /// As for [`FileDevice::open_read_only`], and when it has readers.
    pub fn open(path: impl AsRef<Path>) -> Result<FileDevice, DeviceError> {
        FileDevice::open_with(path.as_ref(), OFlags::RDWR, "opening", Some(Purpose::Write))
    }

    /// Creates a sparse file of exactly `size` bytes, or empties and resizes an existing one. A block device is
    /// opened as it is, and must have `size` bytes at least; its own size then counts.
    ///
    /// # Errors
    /// As for [`FileDevice::open`], and when the file system refuses a file of this size.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<FileDevice, DeviceError> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        FileDevice::open_with(path.as_ref(), flags, "creating", Some(Purpose::Write))?.emptied(size)
    }

    /// As [`FileDevice::create`], but refuses a name that exists.
    ///
    /// # Errors
    /// As for [`FileDevice::create`], and when the name exists.
    pub fn create_new(path: impl AsRef<Path>, size: u64) -> Result<FileDevice, DeviceError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let path = path.as_ref();
        let (device, made) = FileDevice::open_made(path, flags, "creating", Some(Purpose::Write))?;
        let device = device.emptied(size)?;
        made.keep();
        Ok(device)
    }

    fn open_with(
        path: &Path,
        flags: OFlags,
        operation: &'static str,
        purpose: Option<Purpose>,
    ) -> Result<FileDevice, DeviceError> {
        let (device, made) = FileDevice::open_made(path, flags, operation, purpose)?;
        made.keep();
        Ok(device)
    }

    /// Opens `path`; a file that this made is removed again unless it is kept.
    fn open_made<'p>(
        path: &'p Path,
        flags: OFlags,
        operation: &'static str,
        purpose: Option<Purpose>,
    ) -> Result<(FileDevice, MadeFile<'p>), DeviceError> {
        let name = path.display().to_string();
        let failed = |source: Errno| DeviceError::Open {
            operation,
            path: name.clone(),
            source: source.into(),
        };
        let mut flags = flags;
        let takes_a_new_name = flags.contains(OFlags::EXCL);
        if flags.contains(OFlags::RDWR) && !takes_a_new_name && is_block_device(path) {
            // The kernel then refuses a block device that is mounted or otherwise taken.
            flags = flags.difference(OFlags::CREATE) | OFlags::EXCL;
        }
        // NONBLOCK: opening a FIFO must not wait; it changes nothing for files and block devices.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = Mode::from_raw_mode(0o666);
        let file: File = match open_waiting(path, flags, mode) {
            Ok(file) => file.into(),
            Err(Errno::WOULDBLOCK) => {
                let holder = "another program has a lease on it".to_owned();
                return Err(DeviceError::InUse { path: name, holder });
            }
            Err(Errno::BUSY) => return Err(claimed(path, name)),
            Err(source) => return Err(failed(source)),
        };
        let made = MadeFile(takes_a_new_name.then_some(path));
        let read_only = !flags.contains(OFlags::RDWR);
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        let is_regular = match kind_of(FileType::from_raw_mode(stat.st_mode)) {
            Kind::Regular => true,
            Kind::BlockDevice => false,
            Kind::Other(what) => {
                return Err(DeviceError::NotAnImage { path: name, what });
            }
        };
        if !read_only && !is_regular && is_write_protected(&file).map_err(failed)? {
            return Err(DeviceError::WriteProtected { path: name });
        }
        let ground = Ground::of(&stat);
        let behind = match purpose {
            Some(purpose) => lock_all(&file, &ground, purpose, &name)?,
            None => Vec::new(),
        };
        // For a block device fstat has no size, but its end can be sought.
        let size = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(failed)?;
        let device = FileDevice {
            file,
            _behind: behind,
            ground,
            path: name,
            read_only,
            is_regular,
            size: AtomicU64::new(size),
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
        source: impl Into<io::Error>,
    ) -> DeviceError {
        DeviceError::Io {
            operation,
            offset,
            len: len as u64,
            source: source.into(),
        }
    }
}

impl AsFd for FileDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Calls again as long as a signal interrupts.
fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(call)
}

/// Opens a file. One on which another program has a lease (`lease`) is asked for again, since a lease is short.
fn open_waiting(path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let mut opened = retry(|| rustix::fs::open(path, flags, mode));
    for _ in 1..LOCK_TRIES {
        if !matches!(opened, Err(Errno::WOULDBLOCK)) {
            break;
        }
        sync::thread::sleep(LOCK_PAUSE);
        opened = retry(|| rustix::fs::open(path, flags, mode));
    }
    opened
}

/// Whether the name stands for a block device; a race with its owner only makes the open fail.
fn is_block_device(path: &Path) -> bool {
    rustix::fs::stat(path)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
}

/// Whether a block device refuses writes (`blockdev --setro`, `losetup -r`): the kernel opens it for writing all the
/// same, and fails the first write.
fn is_write_protected(file: &File) -> rustix::io::Result<bool> {
    // BLKROGET
    const IS_READ_ONLY: Opcode = opcode::none(0x12, 94);
    #[allow(unsafe_code)]
    // SAFETY: for block devices the operation takes a pointer to an int, which it writes; other files don't know it.
    let is_set = unsafe { rustix::ioctl::ioctl(file, Getter::<IS_READ_ONLY, i32>::new()) };
    is_set.map(|value| value != 0)
}

enum Kind {
    Regular,
    BlockDevice,
    Other(&'static str),
}

fn kind_of(file_type: FileType) -> Kind {
    match file_type {
        FileType::RegularFile => Kind::Regular,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Directory => Kind::Other("a directory"),
        FileType::CharacterDevice => Kind::Other("a character device"),
        FileType::Fifo => Kind::Other("a FIFO"),
        FileType::Socket => Kind::Other("a socket"),
        _ => Kind::Other("of an unknown type"),
    }
}

/// The error of a block device that the kernel refuses to a second user.
fn claimed(path: &Path, name: String) -> DeviceError {
    let ground = Ground::of_path(path);
    let known = ground.and_then(|ground| holder::in_kernel(&ground, Purpose::Write));
    DeviceError::InUse {
        path: name,
        holder: known.unwrap_or_else(|| "the kernel or another program has claimed it".to_owned()),
    }
}

/// Locks a file or device and what is behind it, if it is a loop device, as far as that can be opened: all of it,
/// though only a range may be reached. There is no lock of a range that readers of the whole would meet.
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
    let locked = |file: &File| match lock(file, purpose, path)? {
        true => Ok(()),
        false => Err(in_use(holder::with_lock(ground))),
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

/// Takes the advisory locks, exclusive for writers. File systems without such locks go without. `false` where another
/// open file has one that excludes this.
fn lock(file: &File, purpose: Purpose, path: &str) -> Result<bool, DeviceError> {
    let operation = match purpose {
        Purpose::Read => FlockOperation::NonBlockingLockShared,
        Purpose::Write => FlockOperation::NonBlockingLockExclusive,
    };
    for attempt in 1..=LOCK_TRIES {
        let is_free = match retry(|| rustix::fs::flock(file, operation)) {
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => true,
            Err(Errno::WOULDBLOCK) => false,
            Err(source) => {
                return Err(DeviceError::Open {
                    operation: "locking",
                    path: path.to_owned(),
                    source: source.into(),
                });
            }
        };
        if is_free && !record_lock::is_forbidden(file, purpose) {
            record_lock::announce(file, purpose);
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
        // Relaxed: nothing is published with it; pairs with the store in `set_size`, whose caller tells others.
        self.size.load(Ordering::Relaxed)
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
            match retry(|| rustix::io::pread(&self.file, &mut buf[done..end], at)) {
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

    fn data_from(&self, offset: u64) -> Option<u64> {
        if offset >= self.size() {
            return None;
        }
        if !self.is_regular {
            return Some(offset);
        }
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(found) => Some(found.max(offset)),
            Err(Errno::NXIO) => None,
            // The file system does not tell.
            Err(_) => Some(offset),
        }
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
            match retry(|| rustix::io::pwrite(&self.file, part, at)) {
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
        let longest = rustix::process::getrlimit(Resource::Fsize).current;
        for range in ranges {
            let len = range.end.saturating_sub(range.start);
            let failed = |source: Errno| DeviceError::NoRoom {
                offset: range.start,
                len,
                source: source.into(),
            };
            // The kernel ends a process that writes beyond this limit.
            if longest.is_some_and(|longest| range.end > longest) {
                return Err(failed(Errno::FBIG));
            }
            let flags = FallocateFlags::KEEP_SIZE;
            match retry(|| rustix::fs::fallocate(&self.file, flags, range.start, len)) {
                Ok(()) => {}
                // The file system can't.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(source) => return Err(failed(source)),
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.read_only {
            return Ok(());
        }
        retry(|| rustix::fs::fdatasync(&self.file))
            .map_err(|source| FileDevice::io_error("flush", 0, 0, source))
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
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| rustix::fs::fallocate(&self.file, flags, range.start, len)) {
            // What can't be discarded stays as it is. INVAL: a block device wants whole sectors.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(source) => Err(DeviceError::Io {
                operation: "discard",
                offset: range.start,
                len,
                source: source.into(),
            }),
        }
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
        retry(|| rustix::fs::ftruncate(&self.file, size)).map_err(|source| DeviceError::Open {
            operation: "resizing",
            path: self.path.clone(),
            source: source.into(),
        })?;
        // Relaxed: publishes nothing by itself; pairs with the load in `size`.
        self.size.store(size, Ordering::Relaxed);
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
        assert!(FileDevice::create_new(&path.0, i64::MAX as u64).is_err());
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
        let name = path.0.to_str().unwrap();
        let losetup = std::process::Command::new("losetup")
            .args(["-r", "-f", "--show", name])
            .output()
            .unwrap();
        if !losetup.status.success() {
            return testkit::skip("no loop device");
        }
        let device = String::from_utf8(losetup.stdout).unwrap();
        let device = device.trim();
        let refused = FileDevice::open(device).map(drop);
        let read = FileDevice::open_read_only(device).map(|device| device.size());
        testkit::run("losetup", &["-d", device]);
        let refused = refused.unwrap_err();
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
