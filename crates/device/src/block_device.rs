//! The trait every device implements. Offsets and lengths are bytes; any alignment is allowed.

use std::ops::Range;

use sync::Arc;

/// Why a device could not carry out a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system, or the device behind it, failed.
    #[error("{} failed: {source}", io_operation(operation, *offset, *len))]
    Io {
        /// `read`, `write`, `flush` or `discard`.
        operation: &'static str,
        /// The byte at which the range begins.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The range does not lie within the device.
    #[error(
        "{operation} of {len} bytes at byte {offset} is beyond the end of the device ({size} bytes)"
    )]
    OutOfRange {
        /// `read`, `write` or `discard`.
        operation: &'static str,
        /// The byte at which the range would begin.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The range is in the missing part of a device that was cut short ([`crate::Incomplete`]).
    #[error("byte {offset} is missing: the image ends after {present} of {size} bytes")]
    Missing {
        /// The first missing byte.
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
        /// The device's name, as the caller gave it.
        path: String,
    },
    /// The file could not be opened, created or resized.
    #[error("{operation} {path} failed: {source}")]
    Open {
        /// `opening`, `creating`, `locking` or `resizing`.
        operation: &'static str,
        /// The file's name, as the caller gave it.
        path: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file that keeps bytes outside the device could not be made, written or read.
    #[error(
        "what is changed waits in {} until all of it is known to succeed, and that failed: {source}; set TMPDIR \
         to a folder with more room",
        .folder.display()
    )]
    Spool {
        /// The folder of that file.
        folder: std::path::PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The disk that holds the file has no room for the bytes; nothing was written.
    #[error("{} {len} bytes at byte {offset} of it: {source}", no_room(source))]
    NoRoom {
        /// The byte at which the write would begin.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Another program (or another handle of this one), or the kernel, holds the image in a way that excludes this use.
    #[error("{path} is in use: {holder}")]
    InUse {
        /// The file's name, as the caller gave it.
        path: String,
        /// What holds it, as a clause: `mounted on /mnt`, `lanefs (process 7) has it open`.
        holder: String,
    },
    /// Only regular files and block devices hold images.
    #[error("{path} is {what}, and an image must be a regular file or a block device")]
    NotAnImage {
        /// The file's name, as the caller gave it.
        path: String,
        /// What the file is instead.
        what: &'static str,
    },
}

/// A failed operation as a clause; a flush has no range.
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
/// All methods may block on I/O. Reads and writes of ranges that do not overlap are independent; if ranges overlap,
/// each byte gets one of the written values. After a crash, any subset of the sectors written since the last completed
/// `flush` may have reached the medium.
///
/// A device that implements only [`size`](BlockDevice::size) and [`read_at`](BlockDevice::read_at) is read-only. A
/// device that can be written also implements `is_read_only`, `write_at`, `flush` and `discard`.
pub trait BlockDevice: Send + Sync {
    /// The size of the device in bytes; it does not change while the device is open.
    fn size(&self) -> u64;

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool {
        true
    }

    /// Whether everything written is lost when this process ends, so that a crash leaves nothing to recover.
    fn is_volatile(&self) -> bool {
        false
    }

    /// Fills `buf` from the bytes at `offset`.
    ///
    /// # Errors
    /// When the range is not on the device or the medium fails; `buf`'s contents are then unspecified.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Announces that this range will be read soon. A device that can read ahead begins to read it; other devices do
    /// nothing. The call neither waits nor fails; bytes beyond the device's end are ignored.
    fn will_read(&self, range: Range<u64>) {
        let _ = range;
    }

    /// The first byte at or after `offset` that may not be zero, as far as that is known without reading; `None` if
    /// only zeros follow. Unknown bytes count as data.
    fn data_from(&self, offset: u64) -> Option<u64> {
        (offset < self.size()).then_some(offset)
    }

    /// The first range of bytes at or after `offset` that may not come from the storage itself, but from memory or a
    /// log that this device lays over it; `None` if no such range follows. Unknown ranges count as laid over.
    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        (offset < self.size()).then(|| offset..self.size())
    }

    /// Writes `bytes` at `offset`. Durable only after a later `flush`.
    ///
    /// # Errors
    /// When the range is not on the device, the device is read-only, or the medium fails; any part may have been
    /// written then.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let _ = (offset, bytes);
        Err(DeviceError::ReadOnly)
    }

    /// Makes sure that writes to these ranges do not fail because of missing room, on devices that get room as they are
    /// written (sparse files). Changes no byte.
    ///
    /// # Errors
    /// [`DeviceError::NoRoom`] if there is too little room. Devices that can't reserve room do nothing.
    fn reserve(&self, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
        let _ = ranges;
        Ok(())
    }

    /// Makes all writes that completed before this call durable.
    ///
    /// # Errors
    /// When the medium fails; then no write since the last flush is certain to be durable. A device that can be written
    /// but does not implement this fails each flush.
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
    /// As for `write_at`. Devices that can be written but can't discard do nothing.
    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let _ = range;
        if self.is_read_only() {
            Err(DeviceError::ReadOnly)
        } else {
            Ok(())
        }
    }
}

/// A device whose size can be changed while it is open, for a build that learns the size of its image at the end.
pub trait Resize: BlockDevice {
    /// Makes the device `size` bytes long; new bytes read as zeros. No other thread may use the bytes that are cut off.
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
    fn is_volatile(&self) -> bool {
        (**self).is_volatile()
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
