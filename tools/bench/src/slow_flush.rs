//! A device whose flushes take a given time: what a disk's cache costs, on a device in memory.
//!
//! Flushes take their time side by side, as those of a queue with room do. No lock; a crash leaves what the device
//! below has.

use std::ops::Range;
use std::time::Duration;

use device::{BlockDevice, DeviceError};
use sync::{clock, thread};

/// Waits longer than this are slept, shorter ones are spent looking at the clock.
const SLEPT: Duration = Duration::from_micros(200);

/// The device.
pub(crate) struct SlowFlushDevice<D> {
    below: D,
    time: Duration,
}

impl<D> SlowFlushDevice<D> {
    /// With flushes of this length.
    pub(crate) fn new(below: D, time: Duration) -> SlowFlushDevice<D> {
        SlowFlushDevice { below, time }
    }
}

impl<D: BlockDevice> BlockDevice for SlowFlushDevice<D> {
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
        let begin = clock::now();
        if self.time > SLEPT {
            thread::sleep(self.time);
        }
        while begin.elapsed() < self.time {
            thread::yield_now();
        }
        self.below.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.below.discard(range)
    }
}
