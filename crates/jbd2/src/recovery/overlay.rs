//! A device as it is after replay, without writing: blocks that have a copy in the journal are read from there.
//!
//! The table of copies is sorted and never changes, so readers share it without a lock. A crash leaves nothing.

use std::ops::Range;

use device::{BlockDevice, DeviceError};
use ondisk::jbd2;
use sync::Arc;

use crate::recovery::error::Error;
use crate::recovery::map::JournalMap;
use crate::recovery::replay::NewestCopy;

/// A device seen through its journal; refuses writes.
pub struct JournalOverlay {
    home: Arc<dyn BlockDevice>,
    map: JournalMap,
    /// Ascending by block.
    copies: Vec<NewestCopy>,
}

impl JournalOverlay {
    pub(crate) fn new(
        home: Arc<dyn BlockDevice>,
        map: JournalMap,
        copies: Vec<NewestCopy>,
    ) -> JournalOverlay {
        JournalOverlay { home, map, copies }
    }

    /// How many blocks are read from the journal.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.copies.len()
    }

    /// Reads the part of a block from its byte `skip` as the copy has it.
    fn read_copy(&self, copy: NewestCopy, skip: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        read_copy(&self.map, copy, skip, buf).map_err(|error| match error {
            Error::Io(error) => error,
            // Its place was found before, when the copy was checked.
            other => DeviceError::Io {
                operation: "read",
                offset: copy.block << self.map.block_size().bits(),
                len: buf.len() as u64,
                source: std::io::Error::other(other.to_string()),
            },
        })
    }
}

/// Reads part of a copy from the block's byte `skip`, undoing its escape.
pub(crate) fn read_copy(
    map: &JournalMap,
    copy: NewestCopy,
    skip: u64,
    buf: &mut [u8],
) -> Result<(), Error> {
    map.read_part(copy.position(), skip, buf)?;
    if copy.is_escaped() {
        let magic = jbd2::MAGIC.to_be_bytes();
        let cut = usize::try_from(skip).unwrap_or(usize::MAX).min(magic.len());
        for (byte, original) in buf.iter_mut().zip(&magic[cut..]) {
            *byte = *original;
        }
    }
    Ok(())
}

impl BlockDevice for JournalOverlay {
    fn size(&self) -> u64 {
        self.home.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let size = self.map.block_size();
        let len = buf.len() as u64;
        let end = match offset.checked_add(len) {
            Some(end) if end <= self.size() && len > 0 => end,
            // Nothing to do, or refused there.
            _ => return self.home.read_at(offset, buf),
        };
        let blocks = offset >> size.bits()..((end - 1) >> size.bits()) + 1;
        let from = self
            .copies
            .partition_point(|copy| copy.block < blocks.start);
        let copies = &self.copies[from..];
        let copies = &copies[..copies.partition_point(|copy| copy.block < blocks.end)];
        if (copies.len() as u64) < blocks.end - blocks.start {
            self.home.read_at(offset, buf)?;
        }
        for copy in copies {
            let start = copy.block << size.bits();
            let part = start.max(offset)..(start + size.bytes_u64()).min(end);
            // Both lie within `buf`.
            #[allow(clippy::cast_possible_truncation)]
            let in_buf = (part.start - offset) as usize..(part.end - offset) as usize;
            self.read_copy(*copy, part.start - start, &mut buf[in_buf])?;
        }
        Ok(())
    }

    fn will_read(&self, range: Range<u64>) {
        self.home.will_read(range);
    }

    fn laid_over_from(&self, offset: u64) -> Option<Range<u64>> {
        let size = self.map.block_size();
        let first = offset >> size.bits();
        let at = self.copies.partition_point(|copy| copy.block < first);
        let own = self.copies.get(at).map(|copy| {
            let start = copy.block << size.bits();
            start.max(offset)..start + size.bytes_u64()
        });
        let below = self.home.laid_over_from(offset);
        own.into_iter().chain(below).min_by_key(|range| range.start)
    }
}
