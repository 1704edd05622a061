//! The trait every device implements. Offsets and lengths are bytes; any alignment is allowed.

use std::ops::Range;

use sync::Arc;

/// Why a device could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system, or the device behind it, failed.
    #[error("{} failed: {source}", io_operation(operation, *offset, *len))]
    Io {
        /// `read`, `write`, `flush` or `discard`.
        operation: &'static str,
        /// Byte at which it began.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The range does not lie within the device.
    #[error(
        "{operation} of {len} bytes at byte {offset} is beyond the end of the device ({size} bytes)"
    )]
    OutOfRange {
        /// `read`, `write` or `discard`.
        operation: &'static str,
        /// Byte at which it would begin.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The range lies in what a device that was cut short lost ([`crate::Incomplete`]).
    #[error("byte {offset} is missing: the image ends after {present} of {size} bytes")]
    Missing {
        /// The first byte that is not there.
        offset: u64,
        /// Bytes that the device should have.
        size: u64,
        /// Bytes that it has.
        present: u64,
    },
    /// A write or discard on a device opened for reading only.
    #[error("the device is open for reading only")]
    ReadOnly,
    /// A block device that can't be written to, opened for writing.
    #[error("{path} is a read-only block device")]
    WriteProtected {
        /// The device's name as given.
        path: String,
    },
    /// The file could not be opened, created or resized.
    #[error("{operation} {path} failed: {source}")]
    Open {
        /// `opening`, `creating`, `locking` or `resizing`.
        operation: &'static str,
        /// The file's name as given.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file in which bytes wait, outside the device, could not be made, written or read.
    #[error(
        "what is changed waits in {} until all of it is known to succeed, and that failed: {source}; set TMPDIR \
         to a folder with more room",
        .folder.display()
    )]
    Spool {
        /// The folder.
        folder: std::path::PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file lies on a disk that has no room for what is to be written to it; nothing was written.
    #[error("{} {len} bytes at byte {offset} of it: {source}", no_room(source))]
    NoRoom {
        /// Byte at which it would begin.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Another program (or another handle of this one), or the kernel, holds the image in a way that excludes this use.
    #[error("{path} is in use: {holder}")]
    InUse {
        /// The file's name as given.
        path: String,
        /// What holds it, as a clause: `mounted on /mnt`, `lanefs (process 7) has it open`.
        holder: String,
    },
    /// Only regular files and block devices hold images.
    #[error("{path} is {what}, and an image must be a regular file or a block device")]
    NotAnImage {
        /// The file's name as given.
        path: String,
        /// What it is instead.
        what: &'static str,
    },
}

/// An operation as a clause; a flush has no place.
fn io_operation(operation: &str, offset: u64, len: u64) -> String {
    match operation {
        "flush" => "flushing what was written".to_owned(),
        _ => format!("{operation} of {len} bytes at byte {offset}"),
    }
}

/// Why room was not reserved, as the start of a sentence.
fn no_room(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match source.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => {
            "the disk that holds the image lacks room for"
        }
        _ => "the disk that holds the image failed to reserve",
    }
}

impl DeviceError {
    /// Whether the error is the operating system's "no space left on device".
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        match self {
            DeviceError::Io { source, .. }
            | DeviceError::Open { source, .. }
            | DeviceError::NoRoom { source, .. } => {
                source.kind() == std::io::ErrorKind::StorageFull
            }
            _ => false,
        }
    }
}

/// Refuses a range that does not lie within `size` bytes.
///
/// # Errors
/// [`DeviceError::OutOfRange`], also when the range's end does not fit 64 bits.
pub(crate) fn check_range(
    operation: &'static str,
    offset: u64,
    len: u64,
    size: u64,
) -> Result<(), DeviceError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(DeviceError::OutOfRange {
            operation,
            offset,
            len,
            size,
        }),
    }
}

/// A run of bytes that can be read, written and flushed by many threads at once.
///
/// All methods may block on I/O and take no lock of ours. Reads and writes of ranges that do not overlap
/// are independent; overlapping ones leave each byte with one of the values written. After a crash, any
/// subset of the sectors written since the last completed `flush` may have reached the medium.
///
/// A device that only gives [`size`](BlockDevice::size) and [`read_at`](BlockDevice::read_at) is read-only. One that
/// can be written gives `is_read_only`, `write_at`, `flush` and `discard` too.
pub trait BlockDevice: Send + Sync {
    /// Bytes on the device; fixed while it is open.
    fn size(&self) -> u64;

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool {
        true
    }

    /// Whether all that is written is gone with this process, so that no crash leaves anything to recover.
    fn is_volatile(&self) -> bool {
        false
    }

    /// Fills `buf` from the bytes at `offset`.
    ///
    /// # Errors
    /// When the range is not on the device or the medium fails; `buf`'s contents are then unspecified.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Announces that this range will be read soon. A device that can read ahead fetches it meanwhile, and nothing
    /// else. The call neither waits nor fails; what is not on the device is ignored.
    fn will_read(&self, range: Range<u64>) {
        let _ = range;
    }

    /// The first byte at or after `offset` that may hold something other than zero, as far as that is known without
    /// reading; `None` where only zeros follow. What is not known counts as data.
    fn data_from(&self, offset: u64) -> Option<u64> {
        (offset < self.size()).then_some(offset)
    }

    /// The first range of bytes at or after `offset` that may not be the storage's own, but those of memory or of a log
    /// that this device lays over it; `None` where none follows. What is not known counts as laid over.
    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        (offset < self.size()).then(|| offset..self.size())
    }

    /// Writes `bytes` at `offset`. Durable only after a later `flush`.
    ///
    /// # Errors
    /// When the range is not on the device, the device is read-only, or the medium fails (any part may then have
    /// been written).
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let _ = (offset, bytes);
        Err(DeviceError::ReadOnly)
    }

    /// Makes sure that writes to these ranges do not fail for want of room, on devices that get their room as they are
    /// written to (sparse files). No byte changes.
    ///
    /// # Errors
    /// [`DeviceError::NoRoom`] where there is too little. Devices that can't reserve do nothing.
    fn reserve(&self, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
        let _ = ranges;
        Ok(())
    }

    /// Makes all writes that completed before this call durable.
    ///
    /// # Errors
    /// When the medium fails: none of the writes since the last flush can then be relied on. A device that can be
    /// written and does not say how it is flushed fails each flush.
    fn flush(&self) -> Result<(), DeviceError> {
        if self.is_read_only() {
            Ok(())
        } else {
            Err(DeviceError::ReadOnly)
        }
    }

    /// Tells the device that the bytes of this range are no longer needed; they may read as anything later.
    ///
    /// # Errors
    /// As for `write_at`. Devices that can be written and can't discard do nothing.
    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let _ = range;
        if self.is_read_only() {
            Err(DeviceError::ReadOnly)
        } else {
            Ok(())
        }
    }
}

/// A device whose size can be changed while it is open: what a build that learns its size at the end writes to.
pub trait Resize: BlockDevice {
    /// Makes the device `size` bytes long; new bytes read as zeros. No other call may run meanwhile on bytes that are
    /// cut off.
    ///
    /// # Errors
    /// When the device is read-only or the operating system refuses.
    fn set_size(&self, size: u64) -> Result<(), DeviceError>;
}

impl<D: BlockDevice + ?Sized> BlockDevice for Arc<D> {
    fn size(&self) -> u64 {
        (**self).size()
    }
    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read_at(offset, buf)
    }
    fn will_read(&self, range: Range<u64>) {
        (**self).will_read(range);
    }
    fn data_from(&self, offset: u64) -> Option<u64> {
        (**self).data_from(offset)
    }
    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        (**self).laid_over_from(offset)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        (**self).write_at(offset, bytes)
    }
    fn reserve(&self, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
        (**self).reserve(ranges)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        (**self).flush()
    }
    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        (**self).discard(range)
    }
}
