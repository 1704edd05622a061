//! Descriptor blocks: a header, then one tag for each block whose copy follows in the log.
//!
//! A tag has 8 to 16 bytes, see [`LogFormat::tag_bytes`]. 16 bytes of UUID follow it unless its flag "same UUID" is set
//! (Linux writes the UUID once in a block, and never reads it). The last tag has the flag "last tag".

use super::{BlockHeader, BlockKind, JournalChecksum, LogFormat};
use crate::numbers::{FsBlock, Tid};

const FLAG_ESCAPED: u32 = 0x1;
const FLAG_SAME_UUID: u32 = 0x2;
const FLAG_DELETED: u32 = 0x4;
const FLAG_LAST: u32 = 0x8;
const UUID_BYTES: usize = 16;

/// One block of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockTag {
    /// The number of the block that was copied.
    pub block: FsBlock,
    /// Whether the copy's first four bytes, which were the journal's magic number, are replaced by zeros in the log.
    pub is_escaped: bool,
    /// Whether no UUID follows the tag.
    pub has_same_uuid: bool,
    /// Whether the block was deleted by its transaction (never written).
    pub is_deleted: bool,
    /// Whether it is the descriptor block's last.
    pub is_last: bool,
    /// The checksum of the copy ([`LogFormat::data_checksum`]); 0 in a log without checksums.
    pub checksum: u32,
}

impl BlockTag {
    /// Reads a tag from exactly as many bytes as the format's tags have.
    fn read(format: &LogFormat, bytes: &[u8]) -> BlockTag {
        let low = u64::from(be32(bytes, 0));
        let high = |at| {
            if format.is_64bit {
                u64::from(be32(bytes, at)) << 32
            } else {
                0
            }
        };
        let (flags, checksum) = match format.checksum {
            JournalChecksum::V3 => (be32(bytes, 4), be32(bytes, 12)),
            JournalChecksum::V2 => (be32(bytes, 4) & 0xFFFF, be32(bytes, 4) >> 16),
            JournalChecksum::None | JournalChecksum::V1 => (be32(bytes, 4) & 0xFFFF, 0),
        };
        BlockTag {
            block: FsBlock(low | high(8)),
            is_escaped: flags & FLAG_ESCAPED != 0,
            has_same_uuid: flags & FLAG_SAME_UUID != 0,
            is_deleted: flags & FLAG_DELETED != 0,
            is_last: flags & FLAG_LAST != 0,
            checksum,
        }
    }

    fn flags(&self) -> u32 {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        flag(self.is_escaped, FLAG_ESCAPED)
            | flag(self.has_same_uuid, FLAG_SAME_UUID)
            | flag(self.is_deleted, FLAG_DELETED)
            | flag(self.is_last, FLAG_LAST)
    }

    /// Writes the tag over exactly as many bytes as the format's tags have.
    fn write(&self, format: &LogFormat, bytes: &mut [u8]) {
        let [high, low] = [self.block.0 >> 32, self.block.0 & 0xFFFF_FFFF];
        put32(bytes, 0, low);
        match format.checksum {
            JournalChecksum::V3 => {
                put32(bytes, 4, u64::from(self.flags()));
                put32(bytes, 12, u64::from(self.checksum));
            }
            JournalChecksum::V2 => {
                let word = ((self.checksum & 0xFFFF) << 16) | self.flags();
                put32(bytes, 4, u64::from(word));
            }
            JournalChecksum::None | JournalChecksum::V1 => {
                put32(bytes, 4, u64::from(self.flags()));
            }
        }
        if format.is_64bit {
            put32(bytes, 8, high);
        }
    }
}

/// The big-endian word at byte `at` of a tag. The caller has checked the tag's length.
fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk::<4>()
        .map_or(0, |word| u32::from_be_bytes(*word))
}

/// Writes the low 32 bits of `value` at a byte of a tag.
fn put32(bytes: &mut [u8], at: usize, value: u64) {
    let [_, _, _, _, word @ ..] = value.to_be_bytes();
    bytes[at..at + 4].copy_from_slice(&word);
}

/// The tags of a descriptor block in order, up to the last tag or to the block's end.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    format: LogFormat,
    rest: &'a [u8],
}

impl<'a> Tags<'a> {
    /// The tags of `block`, which is one whole block of the log.
    #[must_use]
    pub fn of(format: &LogFormat, block: &'a [u8]) -> Tags<'a> {
        let body = &block[..block.len().min(format.body_bytes())];
        Tags {
            format: *format,
            rest: body.get(BlockHeader::SIZE..).unwrap_or(&[]),
        }
    }
}

impl Iterator for Tags<'_> {
    type Item = BlockTag;

    fn next(&mut self) -> Option<BlockTag> {
        let (bytes, rest) = self.rest.split_at_checked(self.format.tag_bytes())?;
        let tag = BlockTag::read(&self.format, bytes);
        let skip = if tag.has_same_uuid { 0 } else { UUID_BYTES };
        self.rest = if tag.is_last {
            &[]
        } else {
            rest.get(skip..).unwrap_or(&[])
        };
        Some(tag)
    }
}

/// Fills a descriptor block tag by tag.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    format: LogFormat,
    block: &'a mut [u8],
    /// The offset of the next tag.
    next: usize,
    /// The newest tag and its offset.
    newest: Option<(usize, BlockTag)>,
}

impl<'a> DescriptorWriter<'a> {
    /// Begins a descriptor block of transaction `tid` in `block`, which is one whole block of the log and is zeroed
    /// first.
    #[must_use]
    pub fn new(format: &LogFormat, tid: Tid, block: &'a mut [u8]) -> DescriptorWriter<'a> {
        use zerocopy::IntoBytes;
        block.fill(0);
        let header = BlockHeader::new(BlockKind::Descriptor, tid);
        block[..BlockHeader::SIZE].copy_from_slice(header.as_bytes());
        DescriptorWriter {
            format: *format,
            block,
            next: BlockHeader::SIZE,
            newest: None,
        }
    }

    /// Appends a tag for `block`, whose copy in the log has the given checksum. `uuid` is written after the first tag.
    /// Returns whether the tag fitted.
    #[must_use]
    pub fn push(
        &mut self,
        block: FsBlock,
        is_escaped: bool,
        checksum: u32,
        uuid: &[u8; 16],
    ) -> bool {
        let is_first = self.newest.is_none();
        let end = self.next + self.format.tag_bytes();
        let end_with_uuid = if is_first { end + UUID_BYTES } else { end };
        if end_with_uuid > self.format.body_bytes().min(self.block.len()) {
            return false;
        }
        let tag = BlockTag {
            block,
            is_escaped,
            has_same_uuid: !is_first,
            is_deleted: false,
            is_last: false,
            checksum,
        };
        tag.write(&self.format, &mut self.block[self.next..end]);
        if is_first {
            self.block[end..end_with_uuid].copy_from_slice(uuid);
        }
        self.newest = Some((self.next, tag));
        self.next = end_with_uuid;
        true
    }

    /// Marks the newest tag as the last and writes the block's checksum. If there are no tags, none is marked.
    pub fn finish(self) {
        if let Some((at, tag)) = self.newest {
            let tag = BlockTag {
                is_last: true,
                ..tag
            };
            let end = at + self.format.tag_bytes();
            tag.write(&self.format, &mut self.block[at..end]);
        }
        self.format.seal_tail(self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::BlockSize;

    fn formats() -> impl Iterator<Item = LogFormat> {
        let checksums = [
            JournalChecksum::None,
            JournalChecksum::V1,
            JournalChecksum::V2,
            JournalChecksum::V3,
        ];
        checksums.into_iter().flat_map(|checksum| {
            [false, true].map(|is_64bit| LogFormat {
                block_size: BlockSize::K1,
                is_64bit,
                checksum,
                csum_seed: 77,
            })
        })
    }

    #[test]
    fn a_full_descriptor_block_reads_back_in_every_format() {
        for format in formats() {
            let mut block = vec![9; 1024];
            let mut writer = DescriptorWriter::new(&format, Tid(5), &mut block);
            let mut count = 0_u64;
            while writer.push(
                FsBlock(count * 3),
                count % 2 == 1,
                0xABCD,
                b"0123456789abcdef",
            ) {
                count += 1;
            }
            writer.finish();
            let room = format.body_bytes() - 12 - 16;
            assert_eq!(count, (room / format.tag_bytes()) as u64);
            assert!(format.verify_tail(&block));
            let tags: Vec<BlockTag> = Tags::of(&format, &block).collect();
            assert_eq!(tags.len() as u64, count);
            for (tag, number) in tags.iter().zip(0..) {
                assert_eq!(tag.block, FsBlock(number * 3));
                assert_eq!(tag.is_escaped, number % 2 == 1);
                assert_eq!(tag.is_last, number + 1 == count);
                let has_checksum = format.has_block_checksums();
                assert_eq!(tag.checksum, if has_checksum { 0xABCD } else { 0 });
            }
        }
    }

    #[test]
    fn any_bytes_give_a_bounded_number_of_tags() {
        for format in formats() {
            for byte in 0..=255 {
                let block = vec![byte; 1024];
                assert!(Tags::of(&format, &block).count() <= 1024 / 8);
                assert_eq!(Tags::of(&format, &block[..7]).count(), 0);
            }
        }
    }
}
