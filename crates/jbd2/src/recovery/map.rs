//! Where each block of the journal is. An internal journal's runs come from its inode (or the inode's copy in the
//! superblock), an external one is its device. Holes are found when they are read, overlaps when the map is made.

use device::BlockDevice;
use ondisk::map::Run;
use ondisk::{BlockSize, Corrupt, FsBlock, Site};
use sync::Arc;

use crate::recovery::error::{Error, UnsupportedLog};
use crate::recovery::limits::RUNS_MAX;

/// Where each block of the journal is.
pub(crate) struct JournalMap {
    device: Arc<dyn BlockDevice>,
    block_size: BlockSize,
    /// Ascending by logical block.
    runs: Vec<Run>,
    /// An internal journal's runs as block numbers of the device, ascending; empty for an external one.
    own_blocks: Vec<(u64, u64)>,
    /// The block that holds the journal's superblock.
    superblock_at: u32,
    /// Blocks of the journal.
    blocks: u32,
}

/// Collects runs in ascending logical order.
#[derive(Default)]
pub(crate) struct JournalRuns(Vec<Run>);

impl JournalRuns {
    /// Adds a run that follows all added before.
    pub(crate) fn add(&mut self, run: Run) -> Result<(), Error> {
        if let Some(last) = self.0.last_mut()
            && last.is_continued_by(&run)
        {
            last.len += run.len;
            return Ok(());
        }
        if self.0.len() >= RUNS_MAX {
            return Err(UnsupportedLog::TooLarge("too many fragments").into());
        }
        self.0.push(run);
        Ok(())
    }
}

impl JournalMap {
    /// A journal of `blocks` blocks in these runs of `device`.
    pub(crate) fn internal(
        device: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        runs: JournalRuns,
        blocks: u32,
    ) -> Result<JournalMap, Error> {
        let mut own_blocks: Vec<(u64, u64)> = runs
            .0
            .iter()
            .map(|run| (run.start.0, run.start.0 + run.len))
            .collect();
        own_blocks.sort_unstable();
        if let Some(pair) = own_blocks.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            let overlap = Corrupt::at(Site::JournalOverlap).block(FsBlock(pair[1].0));
            return Err(overlap.into());
        }
        Ok(JournalMap {
            device,
            block_size,
            runs: runs.0,
            own_blocks,
            superblock_at: 0,
            blocks,
        })
    }

    /// A journal of `blocks` blocks that is the whole of `device`, with its superblock at block `superblock_at`.
    pub(crate) fn external(
        device: Arc<dyn BlockDevice>,
        block_size: BlockSize,
        blocks: u32,
        superblock_at: u32,
    ) -> JournalMap {
        JournalMap {
            device,
            block_size,
            runs: vec![Run {
                logical: 0,
                start: FsBlock(0),
                len: blocks.into(),
                unwritten: false,
            }],
            own_blocks: Vec::new(),
            superblock_at,
            blocks,
        }
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Blocks that the journal has room for, by its inode or device.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    pub(crate) fn superblock_at(&self) -> u32 {
        self.superblock_at
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Whether a block of the file system belongs to the journal.
    pub(crate) fn holds(&self, block: FsBlock) -> bool {
        let after = self.own_blocks.partition_point(|run| run.0 <= block.0);
        after > 0 && block.0 < self.own_blocks[after - 1].1
    }

    /// The byte of the device at which a block of the journal begins, and how many blocks from there on are contiguous.
    pub(crate) fn place(&self, position: u32) -> Result<(u64, u32), Corrupt> {
        let hole = || Corrupt::at(Site::JournalHole).block(FsBlock(position.into()));
        let position = u64::from(position);
        let after = self.runs.partition_point(|run| run.end() <= position);
        let run = self.runs.get(after).filter(|run| run.logical <= position);
        let rest = run.ok_or_else(hole)?.cut(&(position..u64::MAX));
        // A journal has at most JOURNAL_BLOCKS_MAX blocks.
        Ok((rest.start.offset(self.block_size), rest.len as u32))
    }

    /// Reads part of one block of the journal from its byte `skip`.
    pub(crate) fn read_part(&self, position: u32, skip: u64, buf: &mut [u8]) -> Result<(), Error> {
        let (offset, _) = self.place(position)?;
        Ok(self.device.read_at(offset + skip, buf)?)
    }
}
