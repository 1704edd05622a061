//! A file's bytes, with what is a hole, what is allocated and unwritten, and what is data.
//!
//! Blocks are shared between clones, so that keeping every state of a history costs only what changed.

use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes a block of the model, whatever the image's block size: fallocate's collapse and insert take multiples of it.
pub const BLOCK: u64 = 4096;

/// The unit that a crash leaves whole.
pub const SECTOR: usize = 512;

/// The bytes of a regular file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileBytes {
    size: u64,
    /// Allocated blocks by index; `None` is unwritten. Bytes beyond the size are zero.
    blocks: BTreeMap<u64, Option<Rc<[u8]>>>,
}

impl FileBytes {
    /// A file that holds these bytes, all of them data.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> FileBytes {
        let mut content = FileBytes::default();
        content.write(0, bytes);
        content
    }

    /// Bytes in the file, holes included.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether this block holds data, not a hole and not unwritten space.
    #[must_use]
    pub fn is_data(&self, block: u64) -> bool {
        matches!(self.blocks.get(&block), Some(Some(_)))
    }

    /// Whether this block is allocated, written or not.
    #[must_use]
    pub fn is_allocated(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }

    /// The bytes of one block, zeros where there are none.
    #[must_use]
    pub fn block(&self, block: u64) -> Rc<[u8]> {
        match self.blocks.get(&block) {
            Some(Some(bytes)) => Rc::clone(bytes),
            _ => vec![0; BLOCK as usize].into(),
        }
    }

    /// The allocated blocks, and which of them are data.
    pub(crate) fn allocation(&self) -> Vec<(u64, bool)> {
        self.blocks
            .iter()
            .map(|(block, bytes)| (*block, bytes.is_some()))
            .collect()
    }

    /// The bytes of all blocks that are data.
    pub(crate) fn data_blocks(&self) -> impl Iterator<Item = Rc<[u8]>> {
        self.blocks.values().flatten().cloned()
    }

    /// Whether some block's bytes stand at another place in `after`, shared and not copied, as collapse and insert
    /// leave them.
    pub(crate) fn moved_into(&self, after: &FileBytes) -> bool {
        self.blocks.iter().any(|(block, bytes)| {
            let Some(bytes) = bytes else { return false };
            after.blocks.iter().any(|(other, moved)| {
                other != block && moved.as_ref().is_some_and(|moved| Rc::ptr_eq(moved, bytes))
            })
        })
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or(0)];
        for (index, block) in &self.blocks {
            let start = usize::try_from(index * BLOCK).unwrap_or(usize::MAX);
            let Some(block) = block else { continue };
            if start < bytes.len() {
                let len = block.len().min(bytes.len() - start);
                bytes[start..start + len].copy_from_slice(&block[..len]);
            }
        }
        bytes
    }

    /// Writes `bytes` at `offset` and grows the file to hold them.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.overlay(offset, bytes.len() as u64, |at| bytes[at as usize]);
        if !bytes.is_empty() {
            self.size = self.size.max(offset + bytes.len() as u64);
        }
    }

    /// Sets the size: cuts blocks off, or leaves a hole.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.blocks.split_off(&size.div_ceil(BLOCK));
            let end = size.next_multiple_of(BLOCK);
            self.zero_data(size, end);
        } else {
            // Blocks kept beyond the old end were allocated by fallocate and stay.
        }
        self.size = size;
    }

    /// Allocates the blocks of a range, unwritten where there were none.
    pub fn allocate(&mut self, offset: u64, len: u64) {
        for block in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            self.blocks.entry(block).or_insert(None);
        }
    }

    /// Sets the size without cutting anything.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Frees whole blocks of a range and zeroes the rest of it.
    pub fn punch(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        for block in first..last {
            self.blocks.remove(&block);
        }
        self.zero_data(offset, end);
    }

    /// Makes a range unwritten where it is whole blocks, and zeroes the rest of it.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let whole = block * BLOCK >= offset && (block + 1) * BLOCK <= end;
            let slot = self.blocks.entry(block).or_insert(None);
            if whole {
                *slot = None;
            }
        }
        self.zero_data(offset, end);
    }

    /// Cuts whole blocks out.
    pub fn collapse(&mut self, offset: u64, len: u64) {
        let (first, count) = (offset / BLOCK, len / BLOCK);
        let tail = self.blocks.split_off(&first);
        for (block, bytes) in tail {
            if block >= first + count {
                self.blocks.insert(block - count, bytes);
            }
        }
        self.size -= len;
    }

    /// Makes room for whole blocks, as a hole.
    pub fn insert(&mut self, offset: u64, len: u64) {
        let (first, count) = (offset / BLOCK, len / BLOCK);
        let tail = self.blocks.split_off(&first);
        for (block, bytes) in tail {
            self.blocks.insert(block + count, bytes);
        }
        self.size += len;
    }

    /// Writes zeros over what is data in a range; holes and unwritten blocks read as zeros already.
    fn zero_data(&mut self, start: u64, end: u64) {
        for block in start / BLOCK..end.div_ceil(BLOCK) {
            if let Some(Some(bytes)) = self.blocks.get_mut(&block) {
                let from = start.saturating_sub(block * BLOCK).min(BLOCK) as usize;
                let to = (end - block * BLOCK).min(BLOCK) as usize;
                let mut copy = bytes.to_vec();
                copy[from..to].fill(0);
                *bytes = copy.into();
            }
        }
    }

    fn overlay(&mut self, offset: u64, len: u64, byte: impl Fn(u64) -> u8) {
        if len == 0 {
            return;
        }
        for block in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            let mut copy = self.block(block).to_vec();
            let start = offset.max(block * BLOCK);
            let end = (offset + len).min((block + 1) * BLOCK);
            for at in start..end {
                copy[(at - block * BLOCK) as usize] = byte(at - offset);
            }
            self.blocks.insert(block, Some(copy.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_tail_reads_as_zeros_when_the_file_grows_again() {
        let mut content = FileBytes::default();
        content.write(0, &[7; 6000]);
        content.truncate(5000);
        content.truncate(6000);
        assert_eq!(content.bytes()[4999..5001], [7, 0]);
    }

    #[test]
    fn collapse_and_insert_move_what_follows() {
        let mut content = FileBytes::default();
        content.write(0, &[1; 4096]);
        content.write(4096, &[2; 4096]);
        content.write(8192, &[3; 100]);
        content.collapse(4096, 4096);
        assert_eq!(content.size(), 4196);
        assert_eq!(content.bytes()[4095..4097], [1, 3]);
        content.insert(0, 4096);
        assert_eq!(content.bytes()[..2], [0, 0]);
        assert_eq!(content.bytes()[8192], 3);
        assert!(!content.is_allocated(0));
    }

    #[test]
    fn zeroing_keeps_blocks_and_punching_frees_them() {
        let mut content = FileBytes::default();
        content.write(0, &[1; 12288]);
        content.zero(0, 5000);
        assert!(content.is_allocated(0) && !content.is_data(0) && content.is_data(1));
        content.punch(8000, 4288);
        assert!(!content.is_allocated(2));
        assert_eq!(content.bytes()[4999..5001], [0, 1]);
        assert_eq!(content.bytes()[7999..8001], [1, 0]);
    }
}
