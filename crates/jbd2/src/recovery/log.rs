//! The log as a ring of blocks, read through a window so that a scan costs few calls.

use ondisk::jbd2::{BlockHeader, BlockKind, JournalSuperblock, LogFormat};
use ondisk::{Corrupt, Site, Tid};

use crate::recovery::error::{Error, UnsupportedLog};
use crate::recovery::limits::LOG_BYTES_MAX;
use crate::recovery::map::JournalMap;

/// Bytes read at once, if they are contiguous.
const WINDOW_BYTES: u32 = 256 * 1024;

/// The ring of blocks between the journal's superblock and its fast-commit area.
pub(crate) struct LogRing<'a> {
    map: &'a JournalMap,
    pub(crate) format: LogFormat,
    first: u32,
    end: u32,
    /// The blocks in `window`, from the one at `window_at`.
    window: Vec<u8>,
    window_at: u32,
    window_blocks: u32,
}

impl<'a> LogRing<'a> {
    /// The log of a journal whose superblock was verified.
    pub(crate) fn new(
        map: &'a JournalMap,
        sb: &JournalSuperblock,
        format: LogFormat,
    ) -> LogRing<'a> {
        LogRing {
            map,
            format,
            first: sb.first(),
            end: sb.log_end(),
            window: Vec::new(),
            window_at: 0,
            window_blocks: 0,
        }
    }

    /// Blocks in the ring; at least one.
    pub(crate) fn len(&self) -> u32 {
        self.end - self.first
    }

    /// The position `blocks` after one of the ring.
    pub(crate) fn after(&self, position: u32, blocks: u32) -> u32 {
        let from_first = u64::from(position - self.first) + u64::from(blocks);
        // A remainder of the ring's length fits.
        #[allow(clippy::cast_possible_truncation)]
        let wrapped = (from_first % u64::from(self.len())) as u32;
        self.first + wrapped
    }

    /// A block of the journal.
    pub(crate) fn read(&mut self, position: u32) -> Result<&[u8], Error> {
        let bytes = self.format.block_size.bytes();
        let inside = position
            .checked_sub(self.window_at)
            .filter(|skip| *skip < self.window_blocks);
        let skip = match inside {
            Some(skip) => skip as usize,
            None => {
                self.fill(position)?;
                0
            }
        };
        Ok(&self.window[skip * bytes..(skip + 1) * bytes])
    }

    fn fill(&mut self, position: u32) -> Result<(), Error> {
        let bits = self.format.block_size.bits();
        let (offset, contiguous) = self.map.place(position)?;
        let count = contiguous.min((WINDOW_BYTES >> bits).max(1));
        self.window_blocks = 0;
        self.window.resize((count as usize) << bits, 0);
        self.map.device().read_at(offset, &mut self.window)?;
        self.window_at = position;
        self.window_blocks = count;
        Ok(())
    }
}

/// A walk along the log, block by block, for as long as blocks belong to the transaction expected.
pub(crate) struct LogWalk {
    /// The transaction expected.
    pub(crate) tid: Tid,
    /// Where the next block is.
    pub(crate) position: u32,
    /// How many blocks were passed.
    passed: u64,
    /// The block that [`LogWalk::next`] found, whole.
    pub(crate) block: Vec<u8>,
}

impl LogWalk {
    /// Begins at the journal's oldest transaction.
    pub(crate) fn new(sb: &JournalSuperblock) -> LogWalk {
        LogWalk {
            tid: sb.sequence(),
            position: sb.start(),
            passed: 0,
            block: Vec::new(),
        }
    }

    /// The next block of the expected transaction and what it is; `None` where the log ends. The walk is then after
    /// that block. Once round the ring is the end too: nothing complete can be longer.
    pub(crate) fn next(&mut self, log: &mut LogRing<'_>) -> Result<Option<BlockKind>, Error> {
        if self.passed >= u64::from(log.len()) {
            return Ok(None);
        }
        if self.passed << log.format.block_size.bits() > LOG_BYTES_MAX {
            return Err(UnsupportedLog::TooLarge("more than 8 GiB to replay").into());
        }
        let block = log.read(self.position)?;
        let header = BlockHeader::of(block).filter(|header| header.tid() == self.tid);
        let Some(kind) = header.and_then(|header| header.kind()) else {
            return Ok(None);
        };
        self.block.clear();
        self.block.extend_from_slice(block);
        self.skip(log, 1);
        Ok(Some(kind))
    }

    /// Passes over blocks.
    pub(crate) fn skip(&mut self, log: &LogRing<'_>, blocks: u32) {
        self.position = log.after(self.position, blocks);
        self.passed += u64::from(blocks);
    }

    /// Fails unless the walk got to the end that the scan had found.
    pub(crate) fn must_have_reached(&self, end: Tid) -> Result<(), Corrupt> {
        if self.tid == end {
            Ok(())
        } else {
            Err(Corrupt::at(Site::JournalUnstable))
        }
    }
}
