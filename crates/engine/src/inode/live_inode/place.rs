//! Where an inode lies in its group's table, and how its bytes are written there.

use ondisk::inode;
use ondisk::{FsBlock, Ino};

/// An inode's place. [const]
pub(super) struct TablePlace {
    pub(super) ino: Ino,
    pub(super) block: FsBlock,
    /// The record's first byte in the block.
    pub(super) at: usize,
    /// Bytes of the slot.
    pub(super) slot_bytes: usize,
    /// The file system's checksum seed, where inodes have checksums.
    pub(super) csum_seed: u32,
    pub(super) has_checksum: bool,
}

impl TablePlace {
    /// Writes the slot into the block's image, with its checksum.
    pub(super) fn encode(&self, slot: &[u8], image: &mut [u8]) {
        let place = &mut image[self.at..self.at + slot.len()];
        place.copy_from_slice(slot);
        if self.has_checksum {
            inode::set_checksum(place, self.csum_seed, self.ino);
        }
    }
}
