//! A device that drops what is written to it, except for the first superblock: a replay on it shows which superblock it
//! would leave.
//!
//! One lock around that superblock, never held across I/O. Nothing survives the process.

use std::ops::Range;

use device::{BlockDevice, DeviceError};
use ondisk::Superblock;
use sync::{Arc, Mutex, Rank};

const PLACE: Range<u64> = Superblock::OFFSET..Superblock::OFFSET + Superblock::SIZE as u64;

/// A device for a replay that is not to change anything.
pub(super) struct Rehearsal {
    inner: Arc<dyn BlockDevice>,
    /// [device]
    superblock: Mutex<[u8; Superblock::SIZE]>,
}

impl Rehearsal {
    /// `superblock` is the first one until another one is written.
    pub(super) fn new(inner: Arc<dyn BlockDevice>, superblock: &Superblock) -> Rehearsal {
        Rehearsal {
            inner,
            superblock: Mutex::new(Rank::Device, *superblock.bytes()),
        }
    }

    pub(super) fn superblock(&self) -> Superblock {
        *Superblock::view(&self.superblock.lock())
    }
}

impl BlockDevice for Rehearsal {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let end = offset.saturating_add(bytes.len() as u64);
        let (from, to) = (PLACE.start.max(offset), PLACE.end.min(end));
        if from < to {
            let source = &bytes[(from - offset) as usize..(to - offset) as usize];
            let place = (from - PLACE.start) as usize..(to - PLACE.start) as usize;
            self.superblock.lock()[place].copy_from_slice(source);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
