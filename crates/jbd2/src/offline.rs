//! Writes one transaction into the journal of a file system that nothing else uses: all of its blocks reach their
//! homes, or none does.
//!
//! An [`OfflineLog`] is an internal journal whose log is empty. The caller writes a transaction in four calls, with the
//! superblock's `needs_recovery` set before the first and cleared after the last:
//!
//! ```text
//! begin     the journal's superblock marks the log in use                 flush
//! commit    descriptors and copies; flush; the commit block               flush
//! write_home  the copies to their homes                                   flush
//! finish    the journal's superblock marks the log empty                  flush
//! ```
//!
//! CRASH: until the commit block is durable, a replay finds no transaction and the homes are as they were. From then on
//! a replay by Linux, e2fsck or lanefs writes all homes. Blocks are written in the order of the log; no locks are
//! taken.

use std::collections::BTreeMap;

use device::{BlockDevice, DeviceError};
use ondisk::jbd2::{
    CommitBlock, DescriptorWriter, JournalChecksum, JournalSuperblock, LogFormat,
    TransactionChecksum,
};
use ondisk::{BlockRun, BlockSize, Corrupt, FsBlock, Tid};

use crate::log::escape;

/// Why a journal can't take a transaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The journal's superblock is wrong.
    #[error("the journal can't be used: {0}")]
    Corrupt(#[from] Corrupt),
    /// The journal has unknown features.
    #[error("the journal has unknown features")]
    UnknownFeatures,
    /// The log holds transactions that were not replayed.
    #[error("the journal must be replayed first")]
    NotEmpty,
    /// The transaction is larger than the log.
    #[error("the transaction needs {needed} blocks, the log has {room}")]
    TooLarge {
        /// Blocks of the transaction, with descriptors and commit block.
        needed: u64,
        /// Blocks of the log.
        room: u64,
    },
}

/// The contents of a transaction's blocks, each by the number of the block where it belongs.
pub type Blocks = BTreeMap<u64, Box<[u8]>>;

/// A journal with an empty log, for one transaction.
pub struct OfflineLog<'a> {
    device: &'a dyn BlockDevice,
    runs: Vec<BlockRun>,
    superblock: JournalSuperblock,
    format: LogFormat,
}

impl<'a> OfflineLog<'a> {
    /// Opens the journal whose blocks are `runs`, in the order of the journal's file. With `may_be_in_use` the
    /// superblock may mark the log in use, as after [`crate::recovery::empty_log`], as long as the log holds no
    /// complete transaction.
    ///
    /// # Errors
    /// When the journal's superblock is wrong or unknown, or the log is not empty.
    pub fn open(
        device: &'a dyn BlockDevice,
        block_size: BlockSize,
        runs: Vec<BlockRun>,
        may_be_in_use: bool,
    ) -> Result<OfflineLog<'a>, Error> {
        let mut bytes = [0; JournalSuperblock::SIZE];
        let first = runs.first().map_or(FsBlock(0), |run| run.start);
        device.read_at(first.offset(block_size), &mut bytes)?;
        let superblock = JournalSuperblock::from_bytes(bytes);
        if superblock.features().unknown().is_some() {
            return Err(Error::UnknownFeatures);
        }
        let available = runs.iter().map(|run| run.len).sum();
        let format = superblock.verify(block_size, available)?;
        if superblock.start() != 0 && !may_be_in_use {
            return Err(Error::NotEmpty);
        }
        Ok(OfflineLog {
            device,
            runs,
            superblock,
            format,
        })
    }

    /// Blocks of the log that a transaction of `blocks` blocks takes, descriptors and commit block included.
    #[must_use]
    pub fn needed(&self, blocks: usize) -> u64 {
        let tags = self.format.body_bytes() - 12 - 16;
        let per_descriptor = (tags / self.format.tag_bytes()).max(1);
        (blocks.div_ceil(per_descriptor) + blocks + 1) as u64
    }

    /// Whether a transaction of `blocks` blocks fits into the log.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when it does not.
    pub fn verify_room(&self, blocks: usize) -> Result<(), Error> {
        let room = u64::from(self.superblock.log_end() - self.superblock.first());
        let needed = self.needed(blocks);
        if needed <= room {
            Ok(())
        } else {
            Err(Error::TooLarge { needed, room })
        }
    }

    fn tid(&self) -> Tid {
        self.superblock.sequence()
    }

    /// The byte on the device of a block of the journal.
    fn offset(&self, position: u32) -> Result<u64, Error> {
        let mut rest = u64::from(position);
        for run in &self.runs {
            if rest < run.len {
                return Ok(FsBlock(run.start.0 + rest).offset(self.format.block_size));
            }
            rest -= run.len;
        }
        let room = self.runs.iter().map(|run| run.len).sum();
        Err(Error::TooLarge { needed: rest, room })
    }

    fn write_superblock(&mut self) -> Result<(), Error> {
        self.superblock.seal();
        let offset = self.offset(0)?;
        self.device.write_at(offset, self.superblock.bytes())?;
        Ok(self.device.flush()?)
    }

    /// Clears the first block of the area for fast commits, so that what is left in the area is never replayed.
    ///
    /// # Errors
    /// When the device fails.
    pub fn clear_fast_commits(&self) -> Result<(), Error> {
        if self.superblock.fast_commit_blocks() == 0 {
            return Ok(());
        }
        let offset = self.offset(self.superblock.fast_commit_first())?;
        let zeros = vec![0; self.format.block_size.bytes()];
        self.device.write_at(offset, &zeros)?;
        Ok(self.device.flush()?)
    }

    /// Marks the log in use.
    ///
    /// # Errors
    /// When the device fails.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.superblock.set_start(self.superblock.first());
        self.superblock.set_errno_raw(0);
        self.write_superblock()
    }

    /// Writes the transaction and commits it. `seconds` is the time in the commit block.
    ///
    /// # Errors
    /// When the transaction does not fit, or the device fails. The transaction is then not committed, except that it
    /// may be if only the last flush failed.
    pub fn commit(&mut self, blocks: &Blocks, seconds: u64) -> Result<(), Error> {
        self.verify_room(blocks.len())?;
        let tid = self.tid();
        let size = self.format.block_size.bytes();
        let uuid = self.superblock.uuid();
        let mut position = self.superblock.first();
        let mut sum = TransactionChecksum::new();
        let mut waiting: Vec<(u64, &[u8])> = blocks.iter().map(|(b, it)| (*b, &**it)).collect();
        waiting.reverse();
        while !waiting.is_empty() {
            let mut descriptor = vec![0; size];
            let mut writer = DescriptorWriter::new(&self.format, tid, &mut descriptor);
            let mut copies = Vec::new();
            while let Some((home, bytes)) = waiting.last() {
                let escaped = escape(bytes);
                let is_escaped = escaped.is_some();
                let copy = escaped.unwrap_or_else(|| bytes.to_vec());
                let checksum = self.format.data_checksum(tid, &copy);
                if !writer.push(FsBlock(*home), is_escaped, checksum, &uuid) {
                    break;
                }
                copies.push(copy);
                waiting.pop();
            }
            writer.finish();
            for block in std::iter::once(descriptor).chain(copies) {
                sum.add(&block);
                self.device.write_at(self.offset(position)?, &block)?;
                position += 1;
            }
        }
        self.device.flush()?;
        let mut commit = CommitBlock::new(tid, seconds, 0);
        if self.format.checksum == JournalChecksum::V1 {
            commit.set_transaction_checksum(sum.value());
        }
        let mut block = vec![0; size];
        commit.write(&self.format, &mut block);
        self.device.write_at(self.offset(position)?, &block)?;
        Ok(self.device.flush()?)
    }

    /// Writes blocks to their homes.
    ///
    /// # Errors
    /// When the device fails; a replay of the log writes the same.
    pub fn write_home(&self, blocks: &Blocks) -> Result<(), Error> {
        for (home, bytes) in blocks {
            let offset = FsBlock(*home).offset(self.format.block_size);
            self.device.write_at(offset, bytes)?;
        }
        Ok(self.device.flush()?)
    }

    /// Marks the log empty. The next transaction gets a number that no block of the log has.
    ///
    /// # Errors
    /// When the device fails; then the log may be replayed once more, which changes nothing.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.superblock.set_sequence(self.tid().next());
        self.superblock.set_start(0);
        self.write_superblock()
    }
}
