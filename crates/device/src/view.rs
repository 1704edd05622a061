//! Devices over another device: a part of it, a read-only one, one that counts requests and bytes. No locks of their
//! own.

use std::ops::Range;

use sync::{Arc, Counter};

use crate::block_device::{BlockDevice, DeviceError, check_range};

/// A part of a device, as a device: a partition, or an image at an offset.
#[derive(Clone)]
pub struct Slice {
    inner: Arc<dyn BlockDevice>,
    start: u64,
    len: u64,
}

impl Slice {
    /// The `len` bytes of `inner` from byte `offset`.
    ///
    /// # Errors
    /// When that range does not lie within `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, offset: u64, len: u64) -> Result<Slice, DeviceError> {
        check_range("slice", offset, len, inner.size())?;
        Ok(Slice {
            inner,
            start: offset,
            len,
        })
    }
}

impl BlockDevice for Slice {
    fn size(&self) -> u64 {
        self.len
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn is_volatile(&self) -> bool {
        self.inner.is_volatile()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range("read", offset, buf.len() as u64, self.len)?;
        self.inner.read_at(self.start + offset, buf)
    }

    fn will_read(&self, range: Range<u64>) {
        let end = range.end.min(self.len);
        if range.start < end {
            self.inner
                .will_read(self.start + range.start..self.start + end);
        }
    }

    fn data_from(&self, offset: u64) -> Option<u64> {
        let found = self.inner.data_from(self.start.checked_add(offset)?)?;
        found
            .checked_sub(self.start)
            .filter(|found| *found < self.len)
    }

    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        let range = self.inner.laid_over_from(self.start.checked_add(offset)?)?;
        let end = range.end.min(self.start + self.len);
        (range.start < end).then(|| range.start - self.start..end - self.start)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range("write", offset, bytes.len() as u64, self.len)?;
        self.inner.write_at(self.start + offset, bytes)
    }

    fn reserve(&self, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
        let shifted = ranges.iter().map(|range| {
            check_range("reserve", range.start, range.end - range.start, self.len)?;
            Ok(self.start + range.start..self.start + range.end)
        });
        self.inner.reserve(&shifted.collect::<Result<Vec<_>, _>>()?)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let len = range.end.saturating_sub(range.start);
        check_range("discard", range.start, len, self.len)?;
        let start = self.start + range.start;
        self.inner.discard(start..start + len)
    }
}

/// A device that refuses writes, whatever the one behind it allows.
#[derive(Clone)]
pub struct ReadOnly<D = Arc<dyn BlockDevice>>(D);

impl<D: BlockDevice> ReadOnly<D> {
    /// `inner`, for reading only.
    pub fn new(inner: D) -> ReadOnly<D> {
        ReadOnly(inner)
    }
}

impl<D: BlockDevice> BlockDevice for ReadOnly<D> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }

    fn will_read(&self, range: Range<u64>) {
        self.0.will_read(range);
    }

    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        self.0.laid_over_from(offset)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _: Range<u64>) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }
}

/// What went through a [`CountedDevice`] device so far; calls that failed count too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounts {
    /// Calls of `read_at`.
    pub reads: u64,
    /// Bytes they asked for.
    pub read_bytes: u64,
    /// Calls of `write_at`.
    pub writes: u64,
    /// Bytes they were given.
    pub written_bytes: u64,
    /// Calls of `flush`.
    pub flushes: u64,
    /// Calls of `discard`.
    pub discards: u64,
}

/// A device that counts its calls, without its callers sharing a cache line.
pub struct CountedDevice<D = Arc<dyn BlockDevice>> {
    inner: D,
    reads: Counter,
    read_bytes: Counter,
    writes: Counter,
    written_bytes: Counter,
    flushes: Counter,
    discards: Counter,
}

impl<D: BlockDevice> CountedDevice<D> {
    /// `inner`, with all counts at 0.
    pub fn new(inner: D) -> CountedDevice<D> {
        CountedDevice {
            inner,
            reads: Counter::new(),
            read_bytes: Counter::new(),
            writes: Counter::new(),
            written_bytes: Counter::new(),
            flushes: Counter::new(),
            discards: Counter::new(),
        }
    }

    /// The counts now; exact when no call is running.
    pub fn counts(&self) -> DeviceCounts {
        DeviceCounts {
            reads: self.reads.sum(),
            read_bytes: self.read_bytes.sum(),
            writes: self.writes.sum(),
            written_bytes: self.written_bytes.sum(),
            flushes: self.flushes.sum(),
            discards: self.discards.sum(),
        }
    }
}

impl<D: BlockDevice> BlockDevice for CountedDevice<D> {
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
        self.reads.add(1);
        self.read_bytes.add(buf.len() as u64);
        self.inner.read_at(offset, buf)
    }

    fn will_read(&self, range: Range<u64>) {
        self.inner.will_read(range);
    }

    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        self.inner.laid_over_from(offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.writes.add(1);
        self.written_bytes.add(bytes.len() as u64);
        self.inner.write_at(offset, bytes)
    }

    fn reserve(&self, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
        self.inner.reserve(ranges)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.flushes.add(1);
        self.inner.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.discards.add(1);
        self.inner.discard(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn a_slice_is_its_part_of_the_device_and_nothing_else() {
        let whole = Arc::new(MemoryDevice::from_bytes(b"0123456789"));
        let slice = Slice::new(whole.clone(), 3, 4).unwrap();
        let mut buf = [0; 4];
        slice.will_read(1..100);
        slice.read_at(0, &mut buf).unwrap();
        assert_eq!(&buf, b"3456");
        slice.write_at(3, b"x").unwrap();
        assert!(slice.write_at(3, b"xy").is_err());
        assert!(slice.read_at(u64::MAX, &mut buf).is_err());
        assert!(Slice::new(whole.clone(), 7, 4).is_err());
        assert_eq!((slice.data_from(3), slice.data_from(4)), (Some(3), None));
        whole.read_at(4, &mut buf).unwrap();
        assert_eq!(&buf, b"45x7");
    }

    #[test]
    fn a_read_only_view_refuses_writes_and_the_counts_add_up() {
        let counted = Arc::new(CountedDevice::new(MemoryDevice::from_bytes(b"abc")));
        let view = ReadOnly::new(counted.clone());
        assert!(view.is_read_only());
        assert!(matches!(view.write_at(0, b"x"), Err(DeviceError::ReadOnly)));
        assert!(matches!(view.discard(0..1), Err(DeviceError::ReadOnly)));
        let mut buf = [0; 2];
        view.read_at(1, &mut buf).unwrap();
        counted.write_at(0, b"xyz").unwrap();
        counted.flush().unwrap();
        let expected = DeviceCounts {
            reads: 1,
            read_bytes: 2,
            writes: 1,
            written_bytes: 3,
            flushes: 1,
            discards: 0,
        };
        assert_eq!(counted.counts(), expected);
    }
}
