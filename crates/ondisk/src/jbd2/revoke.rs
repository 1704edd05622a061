//! Revoke blocks: a header, the bytes used, and the numbers of blocks whose copies in this and older transactions must
//! not be replayed.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BlockHeader, BlockKind, LogFormat};
use crate::numbers::{FsBlock, Tid};
use crate::site::{Corrupt, Site};

/// What a revoke block begins with (`jbd2_journal_revoke_header_t`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RevokeHeader {
    pub(crate) r_header: BlockHeader,
    pub(crate) r_count: U32,
}

impl RevokeHeader {
    /// Bytes the header takes.
    pub const SIZE: usize = size_of::<RevokeHeader>();

    accessors! {
        /// Bytes of the block in use, this header included.
        used_bytes, set_used_bytes: u32 = r_count;
    }
}

/// The block numbers of a revoke block.
#[derive(Clone, Debug)]
pub struct Revoked<'a> {
    records: &'a [u8],
    record_bytes: usize,
}

/// The block numbers of a revoke block, which is one whole block of the log.
///
/// # Errors
/// When it says that it uses more bytes than a block has.
pub fn revoked<'a>(format: &LogFormat, block: &'a [u8]) -> Result<Revoked<'a>, Corrupt> {
    let wrong = || Corrupt::at(Site::RevokeLength);
    let (header, _) = RevokeHeader::read_from_prefix(block).map_err(|_| wrong())?;
    let used = usize::try_from(header.used_bytes()).map_err(|_| wrong())?;
    if used > format.body_bytes().min(block.len()) {
        return Err(wrong());
    }
    Ok(Revoked {
        records: block.get(RevokeHeader::SIZE..used).unwrap_or(&[]),
        record_bytes: format.revoke_bytes(),
    })
}

impl Iterator for Revoked<'_> {
    type Item = FsBlock;

    fn next(&mut self) -> Option<FsBlock> {
        let (record, rest) = self.records.split_at_checked(self.record_bytes)?;
        self.records = rest;
        let number = record
            .iter()
            .fold(0, |number, byte| (number << 8) | u64::from(*byte));
        Some(FsBlock(number))
    }
}

/// Fills a revoke block number by number.
#[derive(Debug)]
pub struct RevokeWriter<'a> {
    format: LogFormat,
    block: &'a mut [u8],
    next: usize,
}

impl<'a> RevokeWriter<'a> {
    /// Begins a revoke block of transaction `tid` over `block`, which is one whole block and is zeroed first.
    #[must_use]
    pub fn new(format: &LogFormat, tid: Tid, block: &'a mut [u8]) -> RevokeWriter<'a> {
        block.fill(0);
        let header = BlockHeader::new(BlockKind::Revoke, tid);
        block[..BlockHeader::SIZE].copy_from_slice(header.as_bytes());
        RevokeWriter {
            format: *format,
            block,
            next: RevokeHeader::SIZE,
        }
    }

    /// Appends a block's number. Returns whether there was room.
    #[must_use]
    pub fn push(&mut self, block: FsBlock) -> bool {
        let bytes = block.0.to_be_bytes();
        let record = &bytes[bytes.len() - self.format.revoke_bytes()..];
        let end = self.next + record.len();
        if end > self.format.body_bytes().min(self.block.len()) {
            return false;
        }
        self.block[self.next..end].copy_from_slice(record);
        self.next = end;
        true
    }

    /// Writes the bytes used and the block's checksum.
    pub fn finish(self) {
        // Within a block, so 64 KiB at most.
        #[allow(clippy::cast_possible_truncation)]
        let used = (self.next as u32).to_be_bytes();
        self.block[BlockHeader::SIZE..RevokeHeader::SIZE].copy_from_slice(&used);
        self.format.seal_tail(self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jbd2::JournalChecksum;
    use crate::numbers::BlockSize;

    #[test]
    fn revoked_numbers_read_back_and_too_long_blocks_are_refused() {
        for is_64bit in [false, true] {
            let format = LogFormat {
                block_size: BlockSize::K1,
                is_64bit,
                checksum: JournalChecksum::V3,
                csum_seed: 1,
            };
            let mut block = vec![1; 1024];
            let mut writer = RevokeWriter::new(&format, Tid(9), &mut block);
            let mut written = Vec::new();
            while writer.push(FsBlock(written.len() as u64 * 70_000)) {
                written.push(FsBlock(written.len() as u64 * 70_000));
            }
            writer.finish();
            assert_eq!(written.len(), 1004 / format.revoke_bytes());
            assert!(format.verify_tail(&block));
            assert!(revoked(&format, &block).unwrap().eq(written));
            block[12..16].copy_from_slice(&1021_u32.to_be_bytes());
            let corrupt = revoked(&format, &block).unwrap_err();
            assert_eq!(corrupt.site(), Site::RevokeLength);
            block[12..16].copy_from_slice(&3_u32.to_be_bytes());
            assert_eq!(revoked(&format, &block).unwrap().count(), 0);
        }
    }
}
