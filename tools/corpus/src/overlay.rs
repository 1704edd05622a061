//! A device made of shared bytes and changes to them. Read only; no locks.

use std::collections::BTreeMap;

use device::{BlockDevice, DeviceError};
use sync::Arc;

/// Shared bytes with changes laid over them.
#[derive(Clone, Debug)]
pub struct PatchedBytes {
    base: Arc<[u8]>,
    /// Changed bytes by their offset; a later change at the same offset replaces the earlier one.
    changes: BTreeMap<usize, Vec<u8>>,
}

impl PatchedBytes {
    /// The bytes without changes.
    #[must_use]
    pub fn new(base: Arc<[u8]>) -> PatchedBytes {
        PatchedBytes {
            base,
            changes: BTreeMap::new(),
        }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.base.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.base.is_empty()
    }

    /// Copies `len` bytes at `offset`, which must exist.
    ///
    /// # Panics
    /// When they do not exist.
    #[must_use]
    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = self.base[offset..offset + len].to_vec();
        self.patch(offset, &mut bytes);
        bytes
    }

    /// Changes bytes, which must exist.
    ///
    /// # Panics
    /// When they do not exist.
    pub fn set(&mut self, offset: usize, bytes: Vec<u8>) {
        assert!(offset + bytes.len() <= self.base.len());
        // Changes that overlap have the same bytes in the overlap, so their order does not matter.
        let whole = bytes;
        for (at, old) in &mut self.changes {
            let (start, end) = (offset.max(*at), (offset + whole.len()).min(at + old.len()));
            if start < end {
                old[start - at..end - at].copy_from_slice(&whole[start - offset..end - offset]);
            }
        }
        // If an earlier change at the same offset is longer, only it has the bytes after the new one, so it is kept.
        let here = self.changes.entry(offset).or_default();
        if here.len() < whole.len() {
            *here = whole;
        }
    }

    /// All bytes as one run.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.get(0, self.len())
    }

    fn patch(&self, offset: usize, bytes: &mut [u8]) {
        for (at, change) in &self.changes {
            let (start, end) = (
                offset.max(*at),
                (offset + bytes.len()).min(at + change.len()),
            );
            if start < end {
                bytes[start - offset..end - offset].copy_from_slice(&change[start - at..end - at]);
            }
        }
    }
}

impl BlockDevice for PatchedBytes {
    fn size(&self) -> u64 {
        self.base.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.size()) {
            return Err(DeviceError::OutOfRange {
                operation: "read",
                offset,
                len: buf.len() as u64,
                size: self.size(),
            });
        }
        // The range was checked to be within the bytes.
        let offset = offset as usize;
        buf.copy_from_slice(&self.base[offset..offset + buf.len()]);
        self.patch(offset, buf);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Random;

    #[test]
    fn a_longer_change_in_the_place_of_a_shorter_one_is_whole() {
        let mut overlay = PatchedBytes::new(vec![0; 8].into());
        overlay.set(2, vec![1]);
        overlay.set(2, vec![2; 4]);
        assert_eq!(overlay.to_vec(), [0, 0, 2, 2, 2, 2, 0, 0]);
        overlay.set(2, vec![3]);
        assert_eq!(overlay.to_vec(), [0, 0, 3, 2, 2, 2, 0, 0]);
    }

    #[test]
    fn overlapping_changes_read_as_if_made_in_place() {
        let mut plain = vec![0_u8; 100];
        let mut overlay = PatchedBytes::new(plain.clone().into());
        let mut random = Random::new(1);
        for round in 1..200_u8 {
            let at = random.index(100);
            let len = random.index(100 - at) + 1;
            plain[at..at + len].fill(round);
            overlay.set(at, vec![round; len]);
            assert_eq!(overlay.to_vec(), plain);
        }
    }
}
