//! The journal's blocks: superblock, descriptor with tags, revoke and commit blocks. All big-endian.
//!
//! ```text
//! 0            first                                              fc_first          blocks_count
//! | superblock | log: descriptor, data..., revoke, commit, ... wraps | gap | fast commits |
//! ```
//!
//! Every block of the log except the copies of data begins with a [`BlockHeader`]. A transaction is one or more
//! descriptor blocks, each followed by copies of the blocks it names, any number of revoke blocks, and one commit
//! block. The journal's features decide the form of a tag and which checksums exist: [`LogFormat`] holds that. Pure
//! functions over bytes; what is read from a block is not trusted until the crate jbd2 (`recovery`) has compared it
//! with the device and the file system.

mod commit;
mod descriptor;
mod revoke;
mod superblock;

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum;
use crate::numbers::{BlockSize, Tid};

pub use commit::{CommitBlock, CommitChecksum};
pub use descriptor::{BlockTag, DescriptorWriter, Tags};
pub use revoke::{RevokeHeader, RevokeWriter, Revoked, revoked};
pub use superblock::{JournalFeatures, JournalSuperblock};

/// What every block of the log but copies of data begins with.
pub const MAGIC: u32 = 0xC03B_3998;

/// The fast-commit area's length in blocks where the superblock says 0.
pub const FAST_COMMIT_BLOCKS_DEFAULT: u32 = 256;

/// The least number of blocks of a journal that the kernel accepts.
pub const BLOCKS_MIN: u32 = 1024;

/// What a log block is (`h_blocktype`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// Names the blocks whose copies follow it.
    Descriptor,
    /// Ends a transaction.
    Commit,
    /// The first journal format's superblock.
    SuperblockV1,
    /// The superblock in use today.
    SuperblockV2,
    /// Names blocks of which older copies must not be replayed.
    Revoke,
}

/// What every log block but copies of data begins with (`journal_header_t`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct BlockHeader {
    pub(crate) h_magic: U32,
    pub(crate) h_blocktype: U32,
    pub(crate) h_sequence: U32,
}

impl BlockHeader {
    /// Bytes a header takes.
    pub const SIZE: usize = size_of::<BlockHeader>();

    /// The header of a block of this kind in transaction `tid`.
    #[must_use]
    pub fn new(kind: BlockKind, tid: Tid) -> BlockHeader {
        let number: u32 = match kind {
            BlockKind::Descriptor => 1,
            BlockKind::Commit => 2,
            BlockKind::SuperblockV1 => 3,
            BlockKind::SuperblockV2 => 4,
            BlockKind::Revoke => 5,
        };
        BlockHeader {
            h_magic: MAGIC.into(),
            h_blocktype: number.into(),
            h_sequence: tid.0.into(),
        }
    }

    /// The header of a block, if it has the journal's magic number and is long enough.
    #[must_use]
    pub fn of(block: &[u8]) -> Option<BlockHeader> {
        let (header, _) = BlockHeader::read_from_prefix(block).ok()?;
        (header.h_magic.get() == MAGIC).then_some(header)
    }

    /// What the block is; `None` for numbers that mean nothing.
    #[must_use]
    pub fn kind(&self) -> Option<BlockKind> {
        match self.h_blocktype.get() {
            1 => Some(BlockKind::Descriptor),
            2 => Some(BlockKind::Commit),
            3 => Some(BlockKind::SuperblockV1),
            4 => Some(BlockKind::SuperblockV2),
            5 => Some(BlockKind::Revoke),
            _ => None,
        }
    }

    /// The transaction the block belongs to.
    #[must_use]
    pub fn tid(&self) -> Tid {
        Tid(self.h_sequence.get())
    }
}

/// Which checksums a journal has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalChecksum {
    /// None.
    None,
    /// One CRC-32 over a transaction's descriptor and data blocks, in its commit block.
    V1,
    /// CRC-32C of each block; 16 bits of a data block's stand in its tag.
    V2,
    /// CRC-32C of each block; all bits of a data block's stand in its tag.
    V3,
}

/// How the blocks of one journal's log are laid out and checked; comes from its superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogFormat {
    /// Bytes a block.
    pub block_size: BlockSize,
    /// Whether block numbers have 64 bits.
    pub is_64bit: bool,
    /// Which checksums there are.
    pub checksum: JournalChecksum,
    /// What checksums v2 and v3 start from: the CRC-32C of the journal's UUID.
    pub csum_seed: u32,
}

impl LogFormat {
    /// Whether descriptor, revoke and commit blocks have a CRC-32C of their own.
    #[must_use]
    pub fn has_block_checksums(&self) -> bool {
        matches!(self.checksum, JournalChecksum::V2 | JournalChecksum::V3)
    }

    /// Bytes a tag takes, without the UUID that may follow it (`journal_tag_bytes`).
    #[must_use]
    pub fn tag_bytes(&self) -> usize {
        let high = if self.is_64bit { 4 } else { 0 };
        match self.checksum {
            JournalChecksum::V3 => 16,
            // Two bytes too many, since the kernel's first version of it; they are never used.
            JournalChecksum::V2 => 8 + high + 2,
            JournalChecksum::None | JournalChecksum::V1 => 8 + high,
        }
    }

    /// Bytes a record of a revoke block takes.
    #[must_use]
    pub fn revoke_bytes(&self) -> usize {
        if self.is_64bit { 8 } else { 4 }
    }

    /// Bytes of a descriptor or revoke block before its tail.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        let tail = if self.has_block_checksums() { 4 } else { 0 };
        self.block_size.bytes() - tail
    }

    /// Whether a descriptor or revoke block has the checksum that its tail records; `true` for a journal without tails.
    /// Also `false` for a slice that is not one block.
    #[must_use]
    pub fn verify_tail(&self, block: &[u8]) -> bool {
        if !self.has_block_checksums() {
            return true;
        }
        let Some((body, tail)) = block.split_last_chunk::<4>() else {
            return false;
        };
        body.len() == self.body_bytes() && u32::from_be_bytes(*tail) == self.tail_checksum(body)
    }

    /// Writes the checksum into the tail of a descriptor or revoke block, where there is one.
    pub fn seal_tail(&self, block: &mut [u8]) {
        if self.has_block_checksums()
            && let Some((body, tail)) = block.split_last_chunk_mut::<4>()
        {
            *tail = self.tail_checksum(body).to_be_bytes();
        }
    }

    fn tail_checksum(&self, body: &[u8]) -> u32 {
        csum::crc32c(csum::crc32c(self.csum_seed, body), &[0; 4])
    }

    /// The checksum of a data block's copy in the log, as its tag holds it; 0 in a journal without such checksums.
    #[must_use]
    pub fn data_checksum(&self, tid: Tid, copy: &[u8]) -> u32 {
        let whole = || csum::crc32c(csum::crc32c(self.csum_seed, &tid.0.to_be_bytes()), copy);
        match self.checksum {
            JournalChecksum::V3 => whole(),
            JournalChecksum::V2 => whole() & 0xFFFF,
            JournalChecksum::None | JournalChecksum::V1 => 0,
        }
    }
}

/// The checksum of version 1: CRC-32 with its bits in descending order, over all descriptor blocks of a
/// transaction and the copies after each, in the order of the log (`crc32_be`).
#[derive(Clone, Debug)]
pub struct TransactionChecksum(crc_fast::Digest);

impl Default for TransactionChecksum {
    fn default() -> TransactionChecksum {
        TransactionChecksum::new()
    }
}

impl TransactionChecksum {
    /// Nothing was summed yet.
    #[must_use]
    pub fn new() -> TransactionChecksum {
        // The same polynomial, bit order and start; only the last inversion differs.
        TransactionChecksum(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Bzip2))
    }

    /// Adds a block.
    pub fn add(&mut self, block: &[u8]) {
        self.0.update(block);
    }

    /// The sum so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        let [a, b, c, d, ..] = self.0.finalize().to_le_bytes();
        !u32::from_le_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transaction_checksum_is_the_kernels_crc32_be() {
        // Bit by bit, as the polynomial is defined.
        let bytes: Vec<u8> = (0..3000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let mut expected = !0_u32;
        for byte in &bytes {
            expected ^= u32::from(*byte) << 24;
            for _ in 0..8 {
                let carry = expected >> 31;
                expected = (expected << 1) ^ (carry * 0x04C1_1DB7);
            }
        }
        let mut sum = TransactionChecksum::new();
        assert_eq!(sum.value(), !0);
        sum.add(&bytes[..1000]);
        sum.add(&bytes[1000..]);
        assert_eq!(sum.value(), expected);
    }

    #[test]
    fn tags_have_the_sizes_that_the_kernel_gives_them() {
        let size = |is_64bit, checksum| {
            LogFormat {
                block_size: BlockSize::K4,
                is_64bit,
                checksum,
                csum_seed: 0,
            }
            .tag_bytes()
        };
        assert_eq!(size(false, JournalChecksum::None), 8);
        assert_eq!(size(true, JournalChecksum::V1), 12);
        assert_eq!(size(false, JournalChecksum::V2), 10);
        assert_eq!(size(true, JournalChecksum::V2), 14);
        assert_eq!(size(false, JournalChecksum::V3), 16);
        assert_eq!(size(true, JournalChecksum::V3), 16);
    }
}
