//! Opening, locking and sizes of files and block devices on Linux, for [`FileDevice`](crate::FileDevice). No locks of
//! ours.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Getter, Opcode, opcode};
use rustix::process::Resource;

use super::ground::Ground;
use super::{holder, record_lock};
use crate::file::{Kind, LOCK_PAUSE, LOCK_TRIES, OpenFailure, OpenMode};
use crate::purpose::Purpose;

/// The most names that are tried if the file system supports no file without a name.
const NAMES: u32 = 100;

/// Opens a file or block device; on any other kind of file it does not wait.
pub(crate) fn open(path: &Path, access: OpenMode) -> Result<File, OpenFailure> {
    let flags = match access {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::Write | OpenMode::Beside => OFlags::RDWR,
        OpenMode::Create => OFlags::RDWR | OFlags::CREATE,
        OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
    };
    let flags = match access {
        // With O_EXCL the kernel refuses a block device that is mounted or claimed.
        OpenMode::Write | OpenMode::Create if is_block_device(path) => {
            flags.difference(OFlags::CREATE) | OFlags::EXCL
        }
        _ => flags,
    };
    // NONBLOCK: opening a FIFO must not wait. For files and block devices the flag has no effect.
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match open_waiting(path, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => Ok(file.into()),
        Err(Errno::WOULDBLOCK) => Err(OpenFailure::InUse(
            "another program has a lease on it".to_owned(),
        )),
        Err(Errno::BUSY) => Err(OpenFailure::InUse(claimant(path))),
        Err(error) => Err(OpenFailure::Failed(error.into())),
    }
}

/// Opens a file. If another program has a lease on it (see `lease`), tries again, because leases are short.
fn open_waiting(path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let mut opened = retry_on_intr(|| rustix::fs::open(path, flags, mode));
    for _ in 1..LOCK_TRIES {
        if !matches!(opened, Err(Errno::WOULDBLOCK)) {
            break;
        }
        sync::thread::sleep(LOCK_PAUSE);
        opened = retry_on_intr(|| rustix::fs::open(path, flags, mode));
    }
    opened
}

/// Whether a name is that of a block device. If the name changes before the open, the open fails.
fn is_block_device(path: &Path) -> bool {
    rustix::fs::stat(path)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
}

/// The holder of a block device that the kernel refuses to open exclusively.
fn claimant(path: &Path) -> String {
    let ground = Ground::of_path(path);
    let known = ground.and_then(|ground| holder::in_kernel(&ground, Purpose::Write));
    known.unwrap_or_else(|| "the kernel or another program has claimed it".to_owned())
}

/// The kind of an open file, and the identity of its bytes.
pub(crate) fn identify(file: &File) -> io::Result<(Kind, Ground)> {
    let stat = rustix::fs::fstat(file)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::Regular,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Directory => Kind::Other("a directory"),
        FileType::CharacterDevice => Kind::Other("a character device"),
        FileType::Fifo => Kind::Other("a FIFO"),
        FileType::Socket => Kind::Other("a socket"),
        _ => Kind::Other("of an unknown type"),
    };
    Ok((kind, Ground::of(&stat)))
}

/// Whether a block device refuses writes (`blockdev --setro`, `losetup -r`). The kernel opens such a device for
/// writing, and fails the first write.
pub(crate) fn is_write_protected(file: &File) -> io::Result<bool> {
    // BLKROGET
    const IS_READ_ONLY: Opcode = opcode::none(0x12, 94);
    #[allow(unsafe_code)]
    // SAFETY: a block device writes an int through the pointer, which is that of one; other files refuse the operation.
    let is_set = unsafe { rustix::ioctl::ioctl(file, Getter::<IS_READ_ONLY, i32>::new()) };
    Ok(is_set.map(|value| value != 0)?)
}

/// Takes the advisory locks, exclusive for writers; a file system without locks needs none. Returns `false` if another
/// open file has a lock that excludes this one.
pub(crate) fn try_lock(file: &File, purpose: Purpose) -> io::Result<bool> {
    let operation = match purpose {
        Purpose::Read => FlockOperation::NonBlockingLockShared,
        Purpose::Write => FlockOperation::NonBlockingLockExclusive,
    };
    let is_free = match retry_on_intr(|| rustix::fs::flock(file, operation)) {
        Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => true,
        Err(Errno::WOULDBLOCK) => false,
        Err(error) => return Err(error.into()),
    };
    if !is_free || record_lock::is_forbidden(file, purpose) {
        return Ok(false);
    }
    record_lock::announce(file, purpose);
    Ok(true)
}

/// The first byte at or after `at` that may not be zero; `None` if only zeros follow.
pub(crate) fn data_from(file: &File, at: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(found) => Some(found.max(at)),
        Err(Errno::NXIO) => None,
        // The file system does not record holes.
        Err(_) => Some(at),
    }
}

/// Makes the kernel fetch a range into its cache. If it does not, reads of the range only take longer.
pub(crate) fn will_read(file: &File, range: &Range<u64>) {
    // To posix_fadvise(2), a length of zero means everything after the start.
    if let Some(len) = NonZeroU64::new(range.end.saturating_sub(range.start)) {
        let _ = rustix::fs::fadvise(file, range.start, Some(len), Advice::WillNeed);
    }
}

/// The longest file that this process may write: the kernel ends a process that exceeds it.
pub(crate) fn longest_file() -> Option<u64> {
    rustix::process::getrlimit(Resource::Fsize).current
}

/// Reserves space for a range of a regular file of at most `longest` bytes, without changing its size. Returns `false`
/// if the file system can't.
pub(crate) fn reserve(file: &File, range: &Range<u64>, longest: Option<u64>) -> io::Result<bool> {
    if longest.is_some_and(|longest| range.end > longest) {
        return Err(Errno::FBIG.into());
    }
    match allocate(file, FallocateFlags::KEEP_SIZE, range) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Frees the space of a range, as far as possible.
pub(crate) fn punch(file: &File, range: &Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match allocate(file, flags, range) {
        // Blocks that can't be freed keep their bytes. INVAL: the range is not whole sectors of a block device.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn allocate(file: &File, flags: FallocateFlags, range: &Range<u64>) -> rustix::io::Result<()> {
    let len = range.end.saturating_sub(range.start);
    retry_on_intr(|| rustix::fs::fallocate(file, flags, range.start, len))
}

/// Makes a file without a name in `folder`.
///
/// # Errors
/// If no file can be made there.
pub fn open_unnamed(folder: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match retry_on_intr(|| rustix::fs::open(folder, flags | OFlags::TMPFILE, mode)) {
        Ok(file) => return Ok(file.into()),
        // Not supported by the file system, or by an old kernel.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    for number in 0..NAMES {
        let path = folder.join(format!(".lanefs-{}-{number}.spool", std::process::id()));
        let flags = flags | OFlags::CREATE | OFlags::EXCL;
        match retry_on_intr(|| rustix::fs::open(&path, flags, mode)) {
            Ok(file) => {
                rustix::fs::unlink(&path)?;
                return Ok(file.into());
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}
