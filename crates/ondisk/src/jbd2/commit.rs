//! Commit blocks: the last block of a transaction, which says when it was written and holds, depending on the version
//! of the journal's checksums, the sum of the transaction (v1) or of itself (v2, v3).

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BlockHeader, BlockKind, LogFormat};
use crate::csum;
use crate::numbers::Tid;

/// What a commit block begins with (`struct commit_header`); the rest of the block is zero.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct CommitBlock {
    pub(crate) h_header: BlockHeader,
    pub(crate) h_chksum_type: u8,
    pub(crate) h_chksum_size: u8,
    pub(crate) h_padding: [u8; 2],
    pub(crate) h_chksum: [U32; 8],
    pub(crate) h_commit_sec: U64,
    pub(crate) h_commit_nsec: U32,
}

/// What a commit block's own checksum (v2, v3) says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitChecksum {
    /// It fits the whole block, or the record has none.
    Good,
    /// It fits the structure followed by zeros: only the block's first sectors reached the disk, and they are enough.
    GoodWithoutRest,
    /// It does not fit.
    Bad,
}

impl CommitBlock {
    /// Bytes the structure takes.
    pub const SIZE: usize = size_of::<CommitBlock>();
    const TYPE_CRC32: u8 = 1;
    const SIZE_CRC32: u8 = 4;

    /// The end of transaction `tid` at a time since 1970; without checksums.
    #[must_use]
    pub fn new(tid: Tid, seconds: u64, nanoseconds: u32) -> CommitBlock {
        let mut commit = CommitBlock::new_zeroed();
        commit.h_header = BlockHeader::new(BlockKind::Commit, tid);
        commit.h_commit_sec.set(seconds);
        commit.h_commit_nsec.set(nanoseconds);
        commit
    }

    /// The structure at the beginning of a block; `None` when the block is too short.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<CommitBlock> {
        CommitBlock::read_from_prefix(block)
            .ok()
            .map(|(commit, _)| commit)
    }

    accessors! {
        /// When the transaction was committed: seconds since 1970.
        seconds, set_seconds: u64 = h_commit_sec;
        /// When the transaction was committed: nanoseconds of the second.
        nanoseconds, set_nanoseconds: u32 = h_commit_nsec;
    }

    /// The first word of the stored checksum, the only one in use.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        self.h_chksum[0].get()
    }

    /// Stores the sum of a transaction in a journal with checksums of version 1.
    pub fn set_transaction_checksum(&mut self, sum: u32) {
        self.h_chksum_type = Self::TYPE_CRC32;
        self.h_chksum_size = Self::SIZE_CRC32;
        self.h_chksum[0].set(sum);
    }

    /// Whether the stored checksum of version 1 is `sum`, or none was stored.
    #[must_use]
    pub fn has_transaction_checksum(&self, sum: u32) -> bool {
        match (self.h_chksum_type, self.h_chksum_size) {
            (Self::TYPE_CRC32, Self::SIZE_CRC32) => self.checksum() == sum,
            (0, 0) => self.checksum() == 0,
            _ => false,
        }
    }

    /// The CRC-32C of a whole commit block with zeros for the checksum (v2, v3).
    fn block_checksum(format: &LogFormat, commit: &CommitBlock, rest: &[u8]) -> u32 {
        let mut copy = *commit;
        copy.h_chksum[0].set(0);
        csum::crc32c(csum::crc32c(format.csum_seed, copy.as_bytes()), rest)
    }

    /// Checks the checksum of a commit block, which is one whole block of the log.
    #[must_use]
    pub fn verify(format: &LogFormat, block: &[u8]) -> CommitChecksum {
        if !format.has_block_checksums() {
            return CommitChecksum::Good;
        }
        let Ok((commit, rest)) = CommitBlock::read_from_prefix(block) else {
            return CommitChecksum::Bad;
        };
        if Self::block_checksum(format, &commit, rest) == commit.checksum() {
            return CommitChecksum::Good;
        }
        let zeros = vec![0; format.block_size.bytes() - Self::SIZE];
        if Self::block_checksum(format, &commit, &zeros) == commit.checksum() {
            return CommitChecksum::GoodWithoutRest;
        }
        CommitChecksum::Bad
    }

    /// Writes the commit block over `block`, which is one whole block, with its own checksum if the format has one.
    pub fn write(mut self, format: &LogFormat, block: &mut [u8]) {
        if format.has_block_checksums() {
            let zeros = vec![0; block.len().saturating_sub(Self::SIZE)];
            self.h_chksum[0].set(Self::block_checksum(format, &self, &zeros));
        }
        block.fill(0);
        block[..Self::SIZE].copy_from_slice(self.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jbd2::JournalChecksum;
    use crate::numbers::BlockSize;

    #[test]
    fn a_commit_block_whose_later_sectors_are_old_still_counts() {
        let format = LogFormat {
            block_size: BlockSize::K4,
            is_64bit: true,
            checksum: JournalChecksum::V3,
            csum_seed: 1234,
        };
        let mut block = vec![7; 4096];
        CommitBlock::new(Tid(3), 1_700_000_000, 5).write(&format, &mut block);
        assert_eq!(CommitBlock::verify(&format, &block), CommitChecksum::Good);
        block[2000] = 1;
        let partial = CommitBlock::verify(&format, &block);
        assert_eq!(partial, CommitChecksum::GoodWithoutRest);
        block[50] = 1;
        assert_eq!(CommitBlock::verify(&format, &block), CommitChecksum::Bad);
    }

    #[test]
    fn a_missing_transaction_checksum_is_accepted_and_a_wrong_one_is_not() {
        let mut commit = CommitBlock::new(Tid(3), 0, 0);
        assert!(commit.has_transaction_checksum(99));
        commit.set_transaction_checksum(98);
        assert!(commit.has_transaction_checksum(98));
        assert!(!commit.has_transaction_checksum(99));
    }
}
