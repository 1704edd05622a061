//! The image as it is after a repair: changed blocks, and copies of blocks, over the device. The device is not written.

use std::collections::BTreeMap;
use std::ops::Range;

use device::{BlockDevice, DeviceError};
use ondisk::BlockSize;

/// Changed blocks over a device. A repair changes it between two checks; a check only reads it.
pub struct Overlay<'a> {
    base: &'a dyn BlockDevice,
    size: BlockSize,
    blocks: BTreeMap<u64, Box<[u8]>>,
    /// New blocks that get the contents that another block has on the device: target to source.
    copies: BTreeMap<u64, u64>,
}

impl<'a> Overlay<'a> {
    /// The device unchanged.
    pub fn new(base: &'a dyn BlockDevice, size: BlockSize) -> Overlay<'a> {
        Overlay {
            base,
            size,
            blocks: BTreeMap::new(),
            copies: BTreeMap::new(),
        }
    }

    /// Reads a block; none where the device can't.
    pub fn block(&self, block: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.size.bytes()];
        self.fill(block, 0, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Replaces a block.
    pub fn set_block(&mut self, block: u64, bytes: Vec<u8>) {
        self.copies.remove(&block);
        self.blocks.insert(block, bytes.into());
    }

    /// Gives `target`, a new block, the contents of `source`.
    pub fn copy(&mut self, source: u64, target: u64) {
        if let Some(bytes) = self.blocks.get(&source) {
            self.blocks.insert(target, bytes.clone());
        } else {
            let source = self.copies.get(&source).copied().unwrap_or(source);
            self.blocks.remove(&target);
            self.copies.insert(target, source);
        }
    }

    /// The changed blocks that differ from the device's.
    pub fn changes(&self) -> BTreeMap<u64, Box<[u8]>> {
        let mut old = vec![0; self.size.bytes()];
        let differs = |block: u64, bytes: &[u8], old: &mut [u8]| {
            let offset = block << self.size.bits();
            self.base.read_at(offset, old).is_err() || old != bytes
        };
        let mut changes = BTreeMap::new();
        for (block, bytes) in &self.blocks {
            if differs(*block, bytes, &mut old) {
                changes.insert(*block, bytes.clone());
            }
        }
        changes
    }

    /// Targets and sources of copies.
    pub fn copies(&self) -> BTreeMap<u64, u64> {
        self.copies.clone()
    }

    /// Fills `buf` from byte `at` of a block, which `buf` does not go beyond.
    fn fill(&self, block: u64, at: usize, buf: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(bytes) = self.blocks.get(&block) {
            buf.copy_from_slice(&bytes[at..at + buf.len()]);
            return Ok(());
        }
        let block = self.copies.get(&block).copied().unwrap_or(block);
        let offset = (block << self.size.bits()) + at as u64;
        self.base.read_at(offset, buf)
    }
}

impl BlockDevice for Overlay<'_> {
    fn size(&self) -> u64 {
        self.base.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let bits = self.size.bits();
        let Some(last) = (buf.len() as u64).checked_sub(1) else {
            return Ok(());
        };
        let range = offset >> bits..=offset.saturating_add(last) >> bits;
        let is_changed = self.blocks.range(range.clone()).next().is_some()
            || self.copies.range(range).next().is_some();
        if !is_changed {
            return self.base.read_at(offset, buf);
        }
        let mut rest = buf;
        let mut offset = offset;
        while !rest.is_empty() {
            // A remainder within a block.
            let at = (offset & ((1 << bits) - 1)) as usize;
            let len = rest.len().min(self.size.bytes() - at);
            let (now, behind) = rest.split_at_mut(len);
            self.fill(offset >> bits, at, now)?;
            rest = behind;
            offset += len as u64;
        }
        Ok(())
    }

    fn will_read(&self, range: Range<u64>) {
        self.base.will_read(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::MemoryDevice;

    #[test]
    fn reads_cross_changed_copied_and_plain_blocks() {
        let bytes: Vec<u8> = (0..4096_u32).map(|at| (at / 1024) as u8).collect();
        let base = MemoryDevice::from_bytes(&bytes);
        let mut overlay = Overlay::new(&base, BlockSize::K1);
        overlay.set_block(1, vec![9; 1024]);
        // A new block is cleared before it becomes a copy.
        overlay.set_block(2, vec![0; 1024]);
        overlay.copy(3, 2);
        let mut buf = vec![0; 2050];
        overlay.read_at(1023, &mut buf).unwrap();
        assert_eq!((buf[0], buf[1], buf[1024]), (0, 9, 9));
        assert_eq!((buf[1025], buf[2048], buf[2049]), (3, 3, 3));
        assert_eq!(overlay.changes().len(), 1);
        overlay.set_block(1, vec![1; 1024]);
        assert!(overlay.changes().is_empty());
    }
}
