//! Writes that are kept in memory until it is known that they are wanted: so that a command that fails has changed no
//! byte of the device, not even those that opening a file system changes.
//!
//! All requests are kept in their order, flushes among them, and are made in that order by [`Held::release`]: a crash
//! at any moment leaves what it would have left without this device. Until then nothing is durable, whatever a flush
//! says. Beyond a bound of memory the kept requests are made at once, and all later ones go straight through.
//!
//! One lock ([`Rank::DeviceOrder`]) around the kept requests, held across requests to the device below.

use std::ops::Range;

use sync::atomic::{AtomicBool, Ordering};
use sync::{Arc, Mutex, Rank};

use crate::Scratch;
use crate::block_device::{BlockDevice, DeviceError, check_range};

/// A device whose writes wait.
pub struct Held {
    below: Arc<dyn BlockDevice>,
    /// The device as it will be.
    view: Scratch,
    /// What was asked for, in its order. [device order]
    kept: Mutex<Kept>,
    /// Whether nothing waits any more. [atomic: set once, under `kept`]
    is_released: AtomicBool,
    /// Bytes that may wait. [const]
    most: usize,
}

#[derive(Default)]
struct Kept {
    requests: Vec<Request>,
    bytes: usize,
}

enum Request {
    Write(u64, Box<[u8]>),
    Discard(Range<u64>),
    Flush,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl Held {
    /// Over `below`; about `most` bytes may wait.
    #[must_use]
    pub fn new(below: Arc<dyn BlockDevice>, most: usize) -> Held {
        Held {
            view: Scratch::new(Arc::clone(&below), usize::MAX),
            below,
            kept: Mutex::new(Rank::DeviceOrder, Kept::default()),
            is_released: AtomicBool::new(false),
            most,
        }
    }

    /// Whether the device below is still as it was.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        // Acquire: pairs with the Release in `pass`, so that who sees it set finds everything written below.
        !self.is_released.load(Ordering::Acquire)
    }

    /// Makes all requests that wait, and lets all later ones through.
    ///
    /// # Errors
    /// As the device below: what was asked for before the failure is there, as after a crash.
    pub fn release(&self) -> Result<(), DeviceError> {
        self.pass(&mut self.kept.lock())
    }

    fn pass(&self, kept: &mut Kept) -> Result<(), DeviceError> {
        let requests = std::mem::take(&mut kept.requests);
        kept.bytes = 0;
        let done = requests.into_iter().try_for_each(|request| match request {
            Request::Write(offset, bytes) => self.below.write_at(offset, &bytes),
            Request::Discard(range) => self.below.discard(range),
            Request::Flush => self.below.flush(),
        });
        // Release: pairs with the Acquire in `is_untouched`.
        self.is_released.store(true, Ordering::Release);
        // A reader that is late finds the same below.
        self.view.forget();
        done
    }

    /// Keeps a request, if they are still kept; `false` where it must be made.
    fn keep(&self, size: usize, request: impl FnOnce() -> Request) -> Result<bool, DeviceError> {
        if !self.is_untouched() {
            return Ok(false);
        }
        let mut kept = self.kept.lock();
        if !self.is_untouched() {
            return Ok(false);
        }
        if kept.bytes.saturating_add(size) > self.most {
            self.pass(&mut kept)?;
            return Ok(false);
        }
        let request = request();
        if let Request::Write(offset, bytes) = &request {
            self.view.write_at(*offset, bytes)?;
        }
        kept.bytes += size + size_of::<Request>();
        kept.requests.push(request);
        Ok(true)
    }
}

impl BlockDevice for Held {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        match self.is_untouched() {
            true => self.view.read_at(offset, buf),
            false => self.below.read_at(offset, buf),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range("write", offset, bytes.len() as u64, self.size())?;
        match self.keep(bytes.len(), || Request::Write(offset, bytes.into()))? {
            true => Ok(()),
            false => self.below.write_at(offset, bytes),
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        match self.keep(0, || Request::Flush)? {
            true => Ok(()),
            false => self.below.flush(),
        }
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let len = range.end.saturating_sub(range.start);
        check_range("discard", range.start, len, self.size())?;
        match self.keep(0, || Request::Discard(range.clone()))? {
            true => Ok(()),
            false => self.below.discard(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counted, MemoryDevice};

    fn read(device: &dyn BlockDevice, offset: u64) -> [u8; 4] {
        let mut bytes = [0; 4];
        device.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_held_is_read_and_reaches_the_device_only_when_it_is_released() {
        let below = Arc::new(Counted::new(MemoryDevice::from_bytes(&[1; 10_000])));
        let held = Held::new(below.clone(), 1 << 20);
        held.write_at(4094, &[2; 4]).unwrap();
        held.flush().unwrap();
        held.write_at(4096, &[3; 4]).unwrap();
        assert!(held.write_at(9_999, &[1; 2]).is_err());
        assert_eq!(
            (read(&held, 4094), read(&*below, 4094)),
            ([2, 2, 3, 3], [1; 4])
        );
        assert!(held.is_untouched());
        let counts = below.counts();
        assert_eq!((counts.writes, counts.flushes), (0, 0));
        held.release().unwrap();
        let counts = below.counts();
        assert_eq!(
            (counts.writes, counts.flushes, held.is_untouched()),
            (2, 1, false)
        );
        assert_eq!(
            (read(&held, 4094), read(&*below, 4096)),
            ([2, 2, 3, 3], [3; 4])
        );
        held.write_at(0, &[4; 4]).unwrap();
        assert_eq!((read(&held, 0), read(&*below, 0)), ([4; 4], [4; 4]));
    }

    #[test]
    fn more_than_the_bound_goes_through_in_its_order() {
        let below = Arc::new(MemoryDevice::from_bytes(&[0; 10_000]));
        let held = Held::new(below.clone(), 5000);
        held.write_at(0, &[1; 4000]).unwrap();
        assert!(held.is_untouched());
        held.write_at(2000, &[2; 4000]).unwrap();
        assert!(!held.is_untouched());
        assert_eq!(
            (read(&*below, 1998), read(&held, 5998)),
            ([1, 1, 2, 2], [2, 2, 0, 0])
        );
    }
}
