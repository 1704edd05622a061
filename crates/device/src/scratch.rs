//! A device with changes that are kept in memory only: to try changes out, or to show the device as if it had them.
//!
//! One lock ([`Rank::Device`]) around the changed chunks, held for a copy, never across a request to the device below.
//! A bound limits how much may change. Nothing survives the process, and the device below is only read.

use std::collections::BTreeMap;
use std::ops::Range;

use sync::{Arc, Rank, RwLock};

use crate::block_device::{BlockDevice, DeviceError, check_range};

const CHUNK: usize = 4096;

/// A device with changes in memory.
pub struct Scratch {
    base: Arc<dyn BlockDevice>,
    /// Chunk number to its bytes. [device]
    changed: RwLock<BTreeMap<u64, Box<[u8]>>>,
    /// Chunks that may change. [const]
    most: usize,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Scratch {
    /// Over `base`; about `most` bytes may change.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>, most: usize) -> Scratch {
        Scratch {
            base,
            changed: RwLock::new(Rank::Device, BTreeMap::new()),
            most: most.div_ceil(CHUNK),
        }
    }

    /// The numbers of the blocks of `block_bytes` (a power of two) in which something was written, ascending.
    #[must_use]
    pub fn written(&self, block_bytes: usize) -> Vec<u64> {
        let changed = self.changed.read();
        let (chunk, block) = (CHUNK as u64, block_bytes as u64);
        let blocks = changed.keys().flat_map(|number| {
            let start = number * chunk;
            start / block..(start + chunk).div_ceil(block)
        });
        let mut blocks: Vec<u64> = blocks.collect();
        blocks.dedup();
        blocks
    }

    /// Puts the parts of a request that changed in place of those of the device below.
    fn lay_over(&self, offset: u64, buf: &mut [u8]) {
        let changed = self.changed.read();
        let chunks = chunks(offset, buf.len());
        for (number, bytes) in changed.range(chunks) {
            let (in_chunk, in_buf) = overlap(*number, offset, buf.len());
            // The last chunk may be cut where the device ends, and no request reaches beyond.
            buf[in_buf].copy_from_slice(&bytes[in_chunk]);
        }
    }
}

/// The chunks that a request touches.
fn chunks(offset: u64, len: usize) -> Range<u64> {
    let end = offset + len as u64;
    offset / CHUNK as u64..end.div_ceil(CHUNK as u64)
}

/// The bytes of a chunk and of a request that belong together.
fn overlap(chunk: u64, offset: u64, len: usize) -> (Range<usize>, Range<usize>) {
    let start = chunk * CHUNK as u64;
    let from = start.max(offset);
    let to = (start + CHUNK as u64).min(offset + len as u64);
    // Within a chunk, and within the request.
    (
        (from - start) as usize..(to - start) as usize,
        (from - offset) as usize..(to - offset) as usize,
    )
}

impl BlockDevice for Scratch {
    fn size(&self) -> u64 {
        self.base.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.base.read_at(offset, buf)?;
        self.lay_over(offset, buf);
        Ok(())
    }

    fn will_read(&self, range: Range<u64>) {
        self.base.will_read(range);
    }

    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        let own = {
            let changed = self.changed.read();
            let first = changed.range(offset / CHUNK as u64..).next();
            first.map(|(number, bytes)| {
                let start = number * CHUNK as u64;
                start.max(offset)..start + bytes.len() as u64
            })
        };
        let below = self.base.laid_over_from(offset);
        own.into_iter().chain(below).min_by_key(|range| range.start)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range("write", offset, bytes.len() as u64, self.size())?;
        for number in chunks(offset, bytes.len()) {
            let start = number * CHUNK as u64;
            let len = (self.size() - start).min(CHUNK as u64) as usize;
            let (in_chunk, in_buf) = overlap(number, offset, bytes.len());
            let mut below = vec![0; len].into_boxed_slice();
            if in_chunk.len() < len {
                self.base.read_at(start, &mut below)?;
            }
            let mut changed = self.changed.write();
            if !changed.contains_key(&number) && changed.len() >= self.most {
                return Err(DeviceError::Io {
                    operation: "write",
                    offset,
                    len: bytes.len() as u64,
                    source: std::io::ErrorKind::OutOfMemory.into(),
                });
            }
            let chunk = changed.entry(number).or_insert(below);
            chunk[in_chunk].copy_from_slice(&bytes[in_buf]);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let len = range.end.saturating_sub(range.start);
        check_range("discard", range.start, len, self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, ReadOnly, Slice};

    #[test]
    fn what_is_written_is_read_and_the_device_below_stays() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| at as u8).collect();
        let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&bytes));
        let scratch = Scratch::new(Arc::clone(&base), 2 * CHUNK);
        scratch.write_at(4090, &[7; 10]).unwrap();
        let mut expected = bytes.clone();
        expected[4090..4100].fill(7);
        let mut seen = vec![0; 10_000];
        scratch.read_at(0, &mut seen).unwrap();
        assert_eq!(seen, expected);
        scratch.read_at(4095, &mut seen[..20]).unwrap();
        assert_eq!(seen[..20], expected[4095..4115]);
        base.read_at(0, &mut seen).unwrap();
        assert_eq!(seen, bytes);
        assert_eq!(scratch.written(4096), [0, 1]);
        assert_eq!(scratch.written(16_384), [0]);
        assert_eq!(scratch.written(2048), [0, 1, 2, 3]);
        assert_eq!(scratch.laid_over_from(0), Some(0..4096));
        assert_eq!(scratch.laid_over_from(4095), Some(4095..4096));
        assert_eq!(scratch.laid_over_from(4096), Some(4096..8192));
        assert_eq!(scratch.laid_over_from(8192), None);
        // A third chunk is beyond the bound, the device's end beyond everything.
        assert!(scratch.write_at(9_000, &[1]).is_err());
        assert!(scratch.write_at(9_999, &[1, 2]).is_err());
        scratch.write_at(5_000, &[1]).unwrap();
    }

    #[test]
    fn what_is_laid_over_is_known_through_all_views_and_the_unknown_counts() {
        struct Unknown(MemoryDevice);
        impl BlockDevice for Unknown {
            fn size(&self) -> u64 {
                self.0.size()
            }
            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
                self.0.read_at(offset, buf)
            }
        }
        let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(40_000));
        assert_eq!(base.laid_over_from(0), None);
        let lower = Scratch::new(base, 2 * CHUNK);
        lower.write_at(20_000, &[1]).unwrap();
        let upper = Scratch::new(Arc::new(ReadOnly::new(lower)), 2 * CHUNK);
        upper.write_at(39_999, &[1]).unwrap();
        assert_eq!(upper.laid_over_from(0), Some(16_384..20_480));
        assert_eq!(upper.laid_over_from(20_480), Some(36_864..40_000));
        let slice = Slice::new(Arc::new(upper), 18_000, 1_000).unwrap();
        assert_eq!(slice.laid_over_from(0), Some(0..1_000));
        assert_eq!(slice.laid_over_from(1_000), None);
        let unknown = Unknown(MemoryDevice::new(40_000));
        assert_eq!(unknown.laid_over_from(10_000), Some(10_000..40_000));
    }
}
