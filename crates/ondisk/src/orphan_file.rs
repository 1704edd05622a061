//! Blocks of the orphan file: inode numbers in slots, 0 for a free one, and a tail with magic number and checksum.
//! Pure functions over one block.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum;
use crate::numbers::{BlockSize, FsBlock, Ino};
use crate::site::{Corrupt, Site};

/// What the tail of every block of the orphan file begins with.
pub const MAGIC: u32 = 0x0B10_CA04;

/// Blocks that Linux accepts in an orphan file at most.
pub const BLOCKS_MAX: u64 = 512;

/// The last bytes of a block (`struct ext4_orphan_block_tail`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct OrphanTail {
    pub(crate) ob_magic: U32,
    pub(crate) ob_checksum: U32,
}

impl OrphanTail {
    /// Bytes the tail takes.
    pub const SIZE: usize = size_of::<OrphanTail>();

    accessors! {
        /// The stored checksum.
        checksum, set_checksum: u32 = ob_checksum;
    }
}

/// Slots in a block.
#[must_use]
pub fn slots_per_block(size: BlockSize) -> usize {
    (size.bytes() - OrphanTail::SIZE) / size_of::<U32>()
}

/// The checksum of a block: over its own place on the device and its slots, from the seed of the orphan file's inode.
fn computed_checksum(inode_seed: u32, place: FsBlock, slots: &[u8]) -> u32 {
    csum::crc32c(csum::crc32c(inode_seed, &place.0.to_le_bytes()), slots)
}

/// Checks the tail of the block at `place`. `inode_seed` is the checksum seed of the orphan file's inode; `None` where
/// the file system has no metadata checksums.
///
/// # Errors
/// When the magic number is missing or the checksum is wrong.
pub fn verify(block: &[u8], place: FsBlock, inode_seed: Option<u32>) -> Result<(), Corrupt> {
    let magic = || Corrupt::at(Site::OrphanMagic).block(place);
    let (slots, tail) = OrphanTail::read_from_suffix(block).map_err(|_| magic())?;
    if tail.ob_magic.get() != MAGIC {
        return Err(magic());
    }
    match inode_seed {
        Some(seed) if computed_checksum(seed, place, slots) != tail.checksum() => {
            Err(Corrupt::at(Site::OrphanChecksum).block(place))
        }
        _ => Ok(()),
    }
}

/// Writes the tail of the block at `place`, with the checksum where the file system has metadata checksums and 0
/// where not.
pub fn seal(block: &mut [u8], place: FsBlock, inode_seed: Option<u32>) {
    if let Some((slots, tail)) = block.split_last_chunk_mut::<{ OrphanTail::SIZE }>() {
        let checksum = inode_seed.map_or(0, |seed| computed_checksum(seed, place, slots));
        let new = OrphanTail {
            ob_magic: MAGIC.into(),
            ob_checksum: checksum.into(),
        };
        tail.copy_from_slice(new.as_bytes());
    }
}

/// An empty, sealed block for `place`.
#[must_use]
pub fn empty_block(size: BlockSize, place: FsBlock, inode_seed: Option<u32>) -> Vec<u8> {
    let mut block = vec![0; size.bytes()];
    seal(&mut block, place, inode_seed);
    block
}

/// The slots of a block in order: `None` for a free one.
pub fn slots(block: &[u8]) -> impl Iterator<Item = Option<Ino>> + '_ {
    let bytes = &block[..block.len().saturating_sub(OrphanTail::SIZE)];
    bytes.chunks_exact(size_of::<U32>()).map(|slot| {
        let number = slot
            .first_chunk::<4>()
            .map_or(0, |s| u32::from_le_bytes(*s));
        (number != 0).then_some(Ino(number))
    })
}

/// Puts an inode into a slot, or frees it. The caller seals the block afterwards.
///
/// # Panics
/// When the block has no such slot.
pub fn set_slot(block: &mut [u8], slot: usize, ino: Option<Ino>) {
    let len = block.len().saturating_sub(OrphanTail::SIZE);
    let number = ino.map_or(0, |ino| ino.0);
    block[..len][4 * slot..4 * slot + 4].copy_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_good_at_its_own_place_only() {
        let mut block = empty_block(BlockSize::K1, FsBlock(77), Some(5));
        assert_eq!(verify(&block, FsBlock(77), Some(5)), Ok(()));
        let elsewhere = verify(&block, FsBlock(78), Some(5)).unwrap_err();
        assert_eq!(elsewhere.site(), Site::OrphanChecksum);
        assert_eq!(verify(&block, FsBlock(78), None), Ok(()));
        set_slot(&mut block, 3, Some(Ino(900)));
        assert!(verify(&block, FsBlock(77), Some(5)).is_err());
        seal(&mut block, FsBlock(77), Some(5));
        assert_eq!(verify(&block, FsBlock(77), Some(5)), Ok(()));
        assert_eq!(slots(&block).count(), slots_per_block(BlockSize::K1));
        assert_eq!(slots(&block).nth(3), Some(Some(Ino(900))));
        assert_eq!(slots(&block).flatten().count(), 1);
        block[1017] = 0;
        let magic = verify(&block, FsBlock(77), None).unwrap_err();
        assert_eq!(magic.site(), Site::OrphanMagic);
    }
}
