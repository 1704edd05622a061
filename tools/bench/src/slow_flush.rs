//! A device whose flushes take a given time: it simulates the cost of a disk's cache on a device in memory.
//!
//! Flushes at the same time overlap, as on a device with a queue. No lock; a crash leaves what the device below has.

use std::ops::Range;
use std::time::Duration;

use device::{BlockDevice, DeviceError};
use sync::{clock, thread};

/// Longer waits are slept; shorter ones are spent reading the clock.
const SLEPT: Duration = Duration::from_micros(200);

/// The device with slow flushes.
pub(crate) struct SlowFlushDevice<D> {
    below: D,
    time: Duration,
}

impl<D> SlowFlushDevice<D> {
    /// A device whose flushes take this time.
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
