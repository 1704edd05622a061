//! Gathers what lies together on the device, so that many small files are one write.
//!
//! The caller asks for the bytes of a range and fills all of them; ranges that continue one another share the buffer,
//! and are written to the device when another range begins elsewhere, when the buffer is full, and by
//! [`BlockWriter::flush`].
//!
//! Writes to one file exclude one another in the kernel, and a thread that waits there spins. So threads that fill one
//! image share a [`Turn`], a hint: a thread that finds another one writing fills a second buffer meanwhile, and then
//! writes both.

use device::{BlockDevice, DeviceError};
use sync::{Mutex, Rank};

/// Whose turn it is to write to a device.
pub(crate) struct Turn(Mutex<()>);

impl Turn {
    /// Nobody's.
    pub(crate) fn new() -> Turn {
        Turn(Mutex::new(Rank::Output, ()))
    }
}

/// Bytes that continue one another.
struct Stretch {
    bytes: Vec<u8>,
    /// Where they belong.
    start: u64,
    used: usize,
}

impl Stretch {
    fn new(capacity: usize) -> Stretch {
        Stretch {
            bytes: vec![0; capacity],
            start: 0,
            used: 0,
        }
    }

    fn write(&mut self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        if self.used > 0 {
            device.write_at(self.start, &self.bytes[..self.used])?;
            self.used = 0;
        }
        Ok(())
    }
}

/// A buffer in front of a device, for one thread.
pub(crate) struct BlockWriter<'a> {
    device: &'a dyn BlockDevice,
    current: Stretch,
    /// With others that write to the device: what waits for its turn, and the turn.
    shared: Option<(Stretch, &'a Turn)>,
}

impl<'a> BlockWriter<'a> {
    /// An empty buffer of `capacity` bytes, for the only thread that writes.
    pub(crate) fn new(device: &'a dyn BlockDevice, capacity: usize) -> BlockWriter<'a> {
        BlockWriter {
            device,
            current: Stretch::new(capacity),
            shared: None,
        }
    }

    /// Two of them, for one of several threads.
    pub(crate) fn shared(
        device: &'a dyn BlockDevice,
        capacity: usize,
        turn: &'a Turn,
    ) -> BlockWriter<'a> {
        BlockWriter {
            shared: Some((Stretch::new(capacity), turn)),
            ..BlockWriter::new(device, capacity)
        }
    }

    /// The most bytes that [`BlockWriter::range`] gives at once.
    pub(crate) fn capacity(&self) -> usize {
        self.current.bytes.len()
    }

    /// The bytes of `offset..offset + len`, to be filled completely. They hold anything before.
    ///
    /// # Errors
    /// When what was gathered before can't be written.
    ///
    /// # Panics
    /// When `len` is above the capacity.
    pub(crate) fn range(&mut self, offset: u64, len: usize) -> Result<&mut [u8], DeviceError> {
        let capacity = self.capacity();
        assert!(len <= capacity, "a range is at most the buffer");
        let current = &self.current;
        let continues = current.used > 0 && current.start + current.used as u64 == offset;
        if !continues || current.used + len > capacity {
            self.pass_on()?;
            self.current.start = offset;
        }
        let at = self.current.used;
        self.current.used += len;
        Ok(&mut self.current.bytes[at..at + len])
    }

    /// Empties the current buffer: by writing it, or while another thread writes by leaving it for later.
    fn pass_on(&mut self) -> Result<(), DeviceError> {
        let Some((waiting, turn)) = &mut self.shared else {
            return self.current.write(self.device);
        };
        let mine = turn.0.try_lock();
        if mine.is_none() && waiting.used == 0 {
            std::mem::swap(waiting, &mut self.current);
            return Ok(());
        }
        // With both full there is nothing else to do, and to wait in the kernel is quicker than to be woken up.
        waiting.write(self.device)?;
        self.current.write(self.device)
    }

    /// Writes what was gathered.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn flush(&mut self) -> Result<(), DeviceError> {
        self.pass_on()?;
        if let Some((waiting, turn)) = &mut self.shared
            && waiting.used > 0
        {
            let _mine = turn.0.try_lock();
            waiting.write(self.device)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use device::MemoryDevice;

    use super::*;

    #[test]
    fn what_finds_another_writing_is_written_later() {
        let device = MemoryDevice::new(1 << 20);
        let turn = Turn::new();
        let mut writer = BlockWriter::shared(&device, 4096, &turn);
        let at = |offset| {
            let mut byte = [0];
            device.read_at(offset, &mut byte).unwrap();
            byte[0]
        };
        let other = turn.0.lock();
        writer.range(0, 4096).unwrap().fill(1);
        // The first buffer is put aside, the second one is filled.
        writer.range(8192, 4096).unwrap().fill(2);
        assert_eq!((at(0), at(8192)), (0, 0));
        drop(other);
        writer.range(16384, 10).unwrap().fill(3);
        assert_eq!((at(0), at(8192), at(16384)), (1, 2, 0));
        let other = turn.0.lock();
        writer.range(32768, 10).unwrap().fill(4);
        drop(other);
        writer.flush().unwrap();
        assert_eq!((at(16384), at(16393), at(16394), at(32768)), (3, 3, 0, 4));
    }
}
