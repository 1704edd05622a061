//! The journal of the file system: its superblock, then the log as long as transactions follow each other, then the
//! fast commits of the next transaction.

use core::ops::ControlFlow;

use ondisk::fast_commit::{FcRecord, records};
use ondisk::jbd2::{BlockHeader, BlockKind, JournalSuperblock, LogFormat, Tags};
use ondisk::map::Run;
use ondisk::{Corrupt, Ino, Tid};

use crate::error::InspectError;
use crate::image::RawImage;
use crate::walk::{BUDGET, Piece, walk};

/// The most runs of a journal.
const RUNS_MAX: usize = 1 << 16;

/// The journal as a list of blocks.
pub struct JournalFile<'a> {
    raw: &'a RawImage,
    ino: Ino,
    runs: Vec<Run>,
    /// The number of blocks in all runs.
    blocks: u64,
    /// The journal's superblock.
    pub superblock: JournalSuperblock,
}

/// Where the log ends.
pub struct Transactions {
    /// The block after the last one of the log.
    pub end: u64,
    /// The number of the transaction that would come next.
    pub next: Tid,
}

impl<'a> JournalFile<'a> {
    /// Finds the journal and reads its superblock, which is not verified.
    ///
    /// # Errors
    /// `NoJournal`, `JournalHole`, `ShortBlock`, and the errors of reading its inode and map.
    pub fn open(raw: &'a RawImage) -> Result<JournalFile<'a>, InspectError> {
        let ino = raw.superblock.journal_ino();
        let ino = ino.ok_or(InspectError::NoJournal)?;
        let inode = raw.inode(ino)?;
        let (mut budget, mut blocks, mut runs) = (BUDGET, 0, Vec::new());
        walk::<InspectError>(raw, ino, &inode, &mut budget, &mut |piece| {
            if let Piece::Run(run) = piece {
                runs.push(run);
                blocks += run.len;
            }
            Ok(if runs.len() < RUNS_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        let first = block(raw, &runs, 0)?;
        let superblock = JournalSuperblock::read(&first).ok_or(InspectError::ShortBlock)?;
        Ok(JournalFile {
            raw,
            ino,
            runs,
            blocks,
            superblock,
        })
    }

    /// The format of the log's blocks.
    ///
    /// # Errors
    /// `Corrupt` if the journal's superblock is invalid.
    pub fn format(&self) -> Result<LogFormat, InspectError> {
        let size = self.raw.geometry.block_size();
        let verified = self.superblock.verify(size, self.blocks);
        verified.map_err(|corrupt| corrupt.ino(self.ino).into())
    }

    /// Whether no transaction needs a replay.
    #[must_use]
    pub fn is_log_empty(&self) -> bool {
        self.superblock.start() == 0
    }

    /// Calls `visit` with the number and bytes of each block of the log that describes the blocks after it:
    /// descriptors, revoke blocks and commit blocks.
    ///
    /// # Errors
    /// `JournalHole`, the errors of the device, and those of `visit`.
    pub fn transactions<E: From<InspectError>>(
        &self,
        format: &LogFormat,
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Transactions, E> {
        let sb = &self.superblock;
        let mut tid = sb.sequence();
        let (first, end) = (u64::from(sb.first()), u64::from(sb.log_end()));
        let mut at = u64::from(sb.start());
        let mut left = if self.is_log_empty() { 0 } else { end - first };
        // Each pass uses at least one block of the log, whose length in the superblock was checked.
        while left > 0 {
            let block = block(self.raw, &self.runs, at)?;
            let Some(header) = BlockHeader::of(&block).filter(|header| header.tid() == tid) else {
                break;
            };
            visit(at, &block)?;
            let mut used = 1;
            match header.kind() {
                Some(BlockKind::Descriptor) => {
                    let copies = Tags::of(format, &block).filter(|tag| !tag.is_deleted);
                    used += copies.count() as u64;
                }
                Some(BlockKind::Commit) => tid = tid.next(),
                Some(BlockKind::Revoke) => {}
                _ => break,
            }
            left = left.saturating_sub(used);
            at += used;
            while at >= end {
                at -= end - first;
            }
        }
        Ok(Transactions { end: at, next: tid })
    }

    /// Whether the journal has blocks for fast commits.
    #[must_use]
    pub fn has_fast_commits(&self) -> bool {
        let sb = &self.superblock;
        sb.fast_commit_blocks() != 0 && sb.fast_commit_first() < sb.blocks_count()
    }

    /// Calls `visit` with each record of fast commits and the number of its block, up to the first block of zeros or
    /// the first broken record.
    ///
    /// # Errors
    /// `JournalHole`, the errors of the device, and those of `visit`.
    pub fn fast_commits<E: From<InspectError>>(
        &self,
        mut visit: impl FnMut(u32, Result<&FcRecord<'_>, Corrupt>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.has_fast_commits() {
            return Ok(());
        }
        for number in self.superblock.fast_commit_first()..self.superblock.blocks_count() {
            let block = block(self.raw, &self.runs, number.into())?;
            if block.iter().all(|byte| *byte == 0) {
                break;
            }
            for record in records(&block, self.raw.geometry.inode_size()) {
                match record {
                    Ok(record) => visit(number, Ok(&record))?,
                    Err(corrupt) => return visit(number, Err(corrupt)),
                }
            }
        }
        Ok(())
    }
}

/// Reads a block of the journal.
fn block(raw: &RawImage, runs: &[Run], number: u64) -> Result<Vec<u8>, InspectError> {
    let run = runs
        .iter()
        .find(|run| (run.logical..run.end()).contains(&number));
    let run = run.ok_or(InspectError::JournalHole(number))?;
    raw.block(run.cut(&(number..run.end())).start)
}
