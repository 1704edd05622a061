//! Gathers what lies together on the device, so that many small files are one write.
//!
//! The caller asks for the bytes of a range and fills all of them; ranges that continue one another share the buffer,
//! and go to the device when another range begins elsewhere, when the buffer is full, and on [`BlockWriter::flush`].

use device::{BlockDevice, DeviceError};

/// A buffer in front of a device, for one thread.
pub(crate) struct BlockWriter<'a> {
    device: &'a dyn BlockDevice,
    buffer: Vec<u8>,
    /// Where the buffer's bytes belong.
    start: u64,
    used: usize,
}

impl<'a> BlockWriter<'a> {
    /// An empty buffer of `capacity` bytes.
    pub(crate) fn new(device: &'a dyn BlockDevice, capacity: usize) -> BlockWriter<'a> {
        BlockWriter {
            device,
            buffer: vec![0; capacity],
            start: 0,
            used: 0,
        }
    }

    /// The most bytes that [`BlockWriter::range`] gives at once.
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes of `offset..offset + len`, to be filled completely. They hold anything before.
    ///
    /// # Errors
    /// When what was gathered before can't be written.
    ///
    /// # Panics
    /// When `len` is above the capacity.
    pub(crate) fn range(&mut self, offset: u64, len: usize) -> Result<&mut [u8], DeviceError> {
        assert!(len <= self.buffer.len(), "a range is at most the buffer");
        let continues = self.used > 0 && self.start + self.used as u64 == offset;
        if !continues || self.used + len > self.buffer.len() {
            self.flush()?;
            self.start = offset;
        }
        let at = self.used;
        self.used += len;
        Ok(&mut self.buffer[at..at + len])
    }

    /// Writes what was gathered.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn flush(&mut self) -> Result<(), DeviceError> {
        if self.used > 0 {
            self.device
                .write_at(self.start, &self.buffer[..self.used])?;
            self.used = 0;
        }
        Ok(())
    }
}
