//! A device whose flushes take their time, so that others come meanwhile: by the schedule's clock where there is one.
//!
//! No lock; a crash leaves what the device below has.

use std::ops::Range;

use device::{BlockDevice, DeviceError};
use sync::clock::Duration;

/// The device.
#[derive(Debug)]
pub struct SlowFlush<D> {
    below: D,
    time: Duration,
}

impl<D> SlowFlush<D> {
    /// With flushes of this length, side by side.
    pub fn new(below: D, time: Duration) -> SlowFlush<D> {
        SlowFlush { below, time }
    }
}

impl<D: BlockDevice> BlockDevice for SlowFlush<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.below.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        sync::thread::sleep(self.time);
        self.below.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.below.discard(range)
    }
}
