//! A device whose first superblock is to be replaced, but only if something else is written as well.
//!
//! A replay reads the log more than once, and refuses a log that was not the same each time. Until its first write, the
//! superblock under which it runs is in memory only, so that a replay that refuses has written nothing. Reads show that
//! superblock from the beginning. One thread writes at a time.
//!
//! CRASH: the superblock is one write, and durable before any other.

use std::ops::Range;

use device::{BlockDevice, DeviceError};
use ondisk::Superblock;
use sync::Arc;
use sync::atomic::{AtomicBool, Ordering};

use super::RepairError;
use crate::substitute;

/// A device with a first superblock that is not yet written.
pub(super) struct Pending {
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    is_put: AtomicBool,
}

impl Pending {
    pub(super) fn new(device: &Arc<dyn BlockDevice>, superblock: &Superblock) -> Arc<Pending> {
        Arc::new(Pending {
            device: Arc::clone(device),
            superblock: *superblock,
            is_put: AtomicBool::new(false),
        })
    }

    /// Writes the superblock, durably, unless that was done.
    ///
    /// # Errors
    /// As [`substitute::put`].
    pub(super) fn put(&self) -> Result<(), RepairError> {
        // Relaxed: one thread writes.
        if self.is_put.load(Ordering::Relaxed) {
            return Ok(());
        }
        substitute::put(&*self.device, &self.superblock)?;
        // Relaxed: one thread writes.
        self.is_put.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// As [`Pending::put`], on behalf of another write.
    fn put_before(&self) -> Result<(), DeviceError> {
        self.put().map_err(|error| match error {
            RepairError::Device(error) => error,
            error => DeviceError::Io {
                operation: "write",
                offset: Superblock::OFFSET,
                len: Superblock::SIZE as u64,
                source: std::io::Error::other(error.to_string()),
            },
        })
    }
}

impl BlockDevice for Pending {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read_at(offset, buf)?;
        // Relaxed: the thread that writes is the one that reads what it wrote.
        if self.is_put.load(Ordering::Relaxed) {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        let own = Superblock::OFFSET..Superblock::OFFSET + Superblock::SIZE as u64;
        let (from, to) = (own.start.max(offset), own.end.min(end));
        if from < to {
            let source =
                &self.superblock.bytes()[(from - own.start) as usize..(to - own.start) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
        Ok(())
    }

    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        // A caller that compares this device with a view of it reads the superblock in both.
        self.device.laid_over_from(offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.put_before()?;
        self.device.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.put_before()?;
        self.device.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.put_before()?;
        self.device.discard(range)
    }
}
