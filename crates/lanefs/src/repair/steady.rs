//! Devices from which a replay reads the same bytes each time.
//!
//! A repair reads the log several times: to learn whether it is in use, and which features its superblock has; in the
//! passes of the replay; once more when it is written home. What it decided by one reading must hold for the next. So a
//! [`SteadyDevice`] remembers a checksum of what was read or written. If a later reading differs, it and all
//! requests after it fail.
//!
//! Memory: 4 bytes for each unit of a chunk in which anything was read, at most 64 MiB for each device. What is read
//! beyond that is not compared. One lock around the checksums, never held across I/O. Nothing survives the process.

use std::collections::BTreeMap;
use std::ops::Range;

use device::{BlockDevice, DeviceError};
use ondisk::csum;
use sync::atomic::{AtomicBool, Ordering};
use sync::{Arc, Mutex, Rank};

use super::{Devices, RepairError};

/// Bytes of a unit, which has one checksum. No block is smaller.
const UNIT: u64 = 1024;
/// Units of a chunk.
const CHUNK: u64 = 256;
/// The most chunks that are remembered: 16 GiB, twice what a replay reads of the longest log.
const CHUNKS_MAX: usize = 1 << 16;

/// The image, and the device of its journal if that has one.
pub(super) struct SteadyDevices {
    image: Arc<SteadyDevice>,
    journal: Option<Arc<SteadyDevice>>,
}

impl SteadyDevices {
    pub(super) fn new(devices: &Devices) -> SteadyDevices {
        SteadyDevices {
            image: Arc::new(SteadyDevice::new(&devices.image)),
            journal: (devices.journal.as_ref()).map(|it| Arc::new(SteadyDevice::new(it))),
        }
    }

    pub(super) fn as_devices(&self) -> Devices {
        Devices {
            image: Arc::clone(&self.image) as Arc<dyn BlockDevice>,
            journal: (self.journal.clone()).map(|it| it as Arc<dyn BlockDevice>),
        }
    }

    fn each(&self) -> impl Iterator<Item = &SteadyDevice> {
        std::iter::once(&*self.image).chain(self.journal.as_deref())
    }

    /// Fails if a device did not return the same bytes each time, whatever became of that error.
    ///
    /// # Errors
    /// [`RepairError::Changed`] if nothing was written by then, otherwise [`RepairError::Device`].
    pub(super) fn verify(&self) -> Result<(), RepairError> {
        let mut first = None;
        let mut has_written = false;
        for (device, is_journal) in self.each().zip([false, true]) {
            let record = device.record.lock();
            has_written |= record.has_written;
            first = first.or(record.unsteady_at.map(|offset| (is_journal, offset)));
        }
        match first {
            None => Ok(()),
            Some((_, offset)) if has_written => Err(unsteady("read", offset, UNIT).into()),
            Some((is_journal, offset)) => Err(RepairError::Changed { is_journal, offset }),
        }
    }

    /// Compares and remembers nothing while the image is checked.
    pub(super) fn pause(&self, is_paused: bool) {
        for device in self.each() {
            // Relaxed: the threads of the check begin after this and end before the next call.
            device.is_paused.store(is_paused, Ordering::Relaxed);
        }
    }
}

/// A device that fails if a byte is not the same each time it is read.
struct SteadyDevice {
    inner: Arc<dyn BlockDevice>,
    is_paused: AtomicBool,
    /// [device]
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    /// The checksums of a chunk's units by the chunk's number; zero for a unit that was not read.
    chunks: BTreeMap<u64, Box<[u32; CHUNK as usize]>>,
    has_written: bool,
    /// The first unit that differed.
    unsteady_at: Option<u64>,
}

impl Record {
    /// The place of a unit's checksum; made if `may_add` and there is room.
    fn sum_of(&mut self, unit: u64, may_add: bool) -> Option<&mut u32> {
        let number = unit / CHUNK;
        if may_add && self.chunks.len() < CHUNKS_MAX {
            self.chunks
                .entry(number)
                .or_insert_with(|| Box::new([0; CHUNK as usize]));
        }
        let chunk = self.chunks.get_mut(&number)?;
        Some(&mut chunk[(unit % CHUNK) as usize])
    }

    /// Compares whole units with what was read before; remembers those that are new.
    fn compare(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        for (unit, bytes) in (offset / UNIT..).zip(bytes.chunks(UNIT as usize)) {
            let now = sum(bytes);
            let Some(before) = self.sum_of(unit, true) else {
                continue;
            };
            if *before == 0 {
                *before = now;
            } else if *before != now {
                self.unsteady_at = Some(unit * UNIT);
                return Err(unsteady("read", unit * UNIT, UNIT));
            }
        }
        Ok(())
    }

    /// Takes note of a write. A unit that was written in part is forgotten.
    fn replace(&mut self, offset: u64, bytes: &[u8]) {
        self.forget(&(offset..offset + bytes.len() as u64));
        let first = offset.div_ceil(UNIT);
        let skip = (first * UNIT - offset) as usize;
        let whole = bytes.get(skip..).unwrap_or_default();
        for (unit, bytes) in (first..).zip(whole.chunks_exact(UNIT as usize)) {
            if let Some(place) = self.sum_of(unit, false) {
                *place = sum(bytes);
            }
        }
    }

    fn forget(&mut self, range: &Range<u64>) {
        let units = range.start / UNIT..range.end.div_ceil(UNIT);
        let chunks = units.start / CHUNK..units.end.div_ceil(CHUNK);
        for (number, sums) in self.chunks.range_mut(chunks) {
            for (unit, sum) in (number * CHUNK..).zip(sums.iter_mut()) {
                if units.contains(&unit) {
                    *sum = 0;
                }
            }
        }
    }

    fn verify(&self, operation: &'static str, range: &Range<u64>) -> Result<(), DeviceError> {
        match self.unsteady_at {
            None => Ok(()),
            Some(_) => Err(unsteady(operation, range.start, range.end - range.start)),
        }
    }
}

/// Never zero.
fn sum(bytes: &[u8]) -> u32 {
    csum::crc32c(csum::INITIAL, bytes).max(1)
}

fn unsteady(operation: &'static str, offset: u64, len: u64) -> DeviceError {
    DeviceError::Io {
        operation,
        offset,
        len,
        source: std::io::Error::other("the device does not return the same bytes each time"),
    }
}

impl SteadyDevice {
    fn new(inner: &Arc<dyn BlockDevice>) -> SteadyDevice {
        SteadyDevice {
            inner: Arc::clone(inner),
            is_paused: AtomicBool::new(false),
            record: Mutex::new(Rank::Device, Record::default()),
        }
    }

    /// Begins a change of this range: fails if a reading has differed.
    fn begin_change(&self, operation: &'static str, range: &Range<u64>) -> Result<(), DeviceError> {
        let mut record = self.record.lock();
        record.verify(operation, range)?;
        record.has_written = true;
        Ok(())
    }
}

impl BlockDevice for SteadyDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn is_volatile(&self) -> bool {
        self.inner.is_volatile()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let end = offset.saturating_add(buf.len() as u64);
        // Relaxed: see `pause`.
        if self.is_paused.load(Ordering::Relaxed) || end > self.size() {
            return self.inner.read_at(offset, buf);
        }
        self.record.lock().verify("read", &(offset..end))?;
        let whole = offset / UNIT * UNIT..end.next_multiple_of(UNIT).min(self.size());
        if whole == (offset..end) {
            self.inner.read_at(offset, buf)?;
            return self.record.lock().compare(offset, buf);
        }
        // At most two units longer than `buf`.
        let mut units = vec![0; (whole.end - whole.start) as usize];
        if self.inner.read_at(whole.start, &mut units).is_err() {
            // Perhaps the failing sector is not one that was asked for.
            return self.inner.read_at(offset, buf);
        }
        self.record.lock().compare(whole.start, &units)?;
        let skip = (offset - whole.start) as usize;
        buf.copy_from_slice(&units[skip..skip + buf.len()]);
        Ok(())
    }

    fn will_read(&self, range: Range<u64>) {
        self.inner.will_read(range);
    }

    fn data_from(&self, offset: u64) -> Option<u64> {
        self.inner.data_from(offset)
    }

    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        self.inner.laid_over_from(offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        self.begin_change("write", &range)?;
        let written = self.inner.write_at(offset, bytes);
        let mut record = self.record.lock();
        match written {
            Ok(()) => record.replace(offset, bytes),
            Err(_) => record.forget(&range),
        }
        written
    }

    fn reserve(&self, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
        self.inner.reserve(ranges)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.record.lock().verify("flush", &(0..0))?;
        self.inner.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.begin_change("discard", &range)?;
        self.record.lock().forget(&range);
        self.inner.discard(range)
    }
}

#[cfg(test)]
mod tests {
    use device::MemoryDevice;

    use super::*;

    fn with_inner(size: u64) -> (Arc<MemoryDevice>, SteadyDevices) {
        let inner = Arc::new(MemoryDevice::new(size));
        let steady = SteadyDevices::new(&Devices {
            image: Arc::clone(&inner) as Arc<dyn BlockDevice>,
            journal: None,
        });
        (inner, steady)
    }

    #[test]
    fn once_a_part_of_a_unit_differs_all_requests_fail() {
        let (inner, steady) = with_inner(1 << 20);
        let device = steady.as_devices().image;
        device.read_at(5000, &mut [0; 100]).unwrap();
        inner.write_at(4096, &[1]).unwrap();
        device.read_at(0, &mut [0; 4096]).unwrap();
        steady.verify().unwrap();
        device.read_at(4100, &mut [0; 4]).unwrap_err();
        device.read_at(0, &mut [0; 4096]).unwrap_err();
        device.write_at(0, &[1]).unwrap_err();
        device.flush().unwrap_err();
        device.discard(0..4096).unwrap_err();
        let mut found = [0; 1];
        inner.read_at(0, &mut found).unwrap();
        assert_eq!(found, [0]);
        let error = steady.verify().unwrap_err();
        assert!(
            error.to_string().contains("at byte 4096 of the image"),
            "{error}"
        );
    }

    #[test]
    fn a_change_of_the_journal_is_not_called_one_of_the_image() {
        let [image, journal] = [(); 2].map(|()| Arc::new(MemoryDevice::new(1 << 20)));
        let steady = SteadyDevices::new(&Devices {
            image,
            journal: Some(Arc::clone(&journal) as Arc<dyn BlockDevice>),
        });
        let device = steady.as_devices().journal.unwrap();
        device.read_at(0, &mut [0; 1024]).unwrap();
        journal.write_at(0, &[1]).unwrap();
        device.read_at(0, &mut [0; 1024]).unwrap_err();
        let error = steady.verify().unwrap_err();
        assert!(
            error.to_string().contains("at byte 0 of the journal's"),
            "{error}"
        );
    }

    #[test]
    fn what_was_written_is_what_the_next_reading_must_find() {
        // The last unit is short.
        let (inner, steady) = with_inner((1 << 20) + 100);
        let device = steady.as_devices().image;
        let size = device.size();
        let mut bytes = vec![0; size as usize];
        device.read_at(0, &mut bytes).unwrap();
        for (offset, len) in [(1024, 2048), (10, 5000), (size - 50, 50)] {
            device.write_at(offset, &vec![7; len]).unwrap();
            device.read_at(0, &mut bytes).unwrap();
            device.read_at(size - 1, &mut [0]).unwrap();
        }
        device.discard(100..3000).unwrap();
        inner.write_at(100, &[8; 2900]).unwrap();
        device.read_at(0, &mut bytes).unwrap();
        device.write_at(4096, &[9; 1024]).unwrap();
        inner.write_at(4096, &[7; 1024]).unwrap();
        device.read_at(4096, &mut bytes[..1024]).unwrap_err();
        let error = steady.verify().unwrap_err();
        assert!(matches!(error, RepairError::Device(_)), "{error}");
    }

    #[test]
    fn a_pause_neither_compares_nor_remembers() {
        let (inner, steady) = with_inner(1 << 20);
        let device = steady.as_devices().image;
        device.read_at(0, &mut [0; 1024]).unwrap();
        steady.pause(true);
        inner.write_at(0, &[1]).unwrap();
        device.read_at(0, &mut [0; 4096]).unwrap();
        inner.write_at(2048, &[1]).unwrap();
        steady.pause(false);
        device.read_at(2048, &mut [0; 1024]).unwrap();
        device.read_at(0, &mut [0; 1024]).unwrap_err();
    }
}
