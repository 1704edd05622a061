//! The journal: its superblock, then the log from its start on as long as transactions follow each other, then the
//! fast commits of the transaction after them.

use std::io::Write;

use ondisk::fast_commit::records;
use ondisk::inode::Inode;
use ondisk::jbd2::{BlockHeader, BlockKind, JournalSuperblock, LogFormat, Tags};
use ondisk::text::{JournalText, LogBlockText, RecordText};
use ondisk::{FsBlock, Tid};

use super::heading;
use crate::failure::Failure;
use crate::raw::Raw;
use crate::raw::walk::{BUDGET, Go, Piece, walk};

/// Pieces of a journal, at most.
const PIECES_MAX: usize = 1 << 16;

/// The journal as a run of blocks of its own.
struct Log<'a> {
    raw: &'a Raw,
    /// First logical block, first block, blocks.
    pieces: Vec<(u64, u64, u64)>,
}

impl Log<'_> {
    fn block(&self, number: u64) -> Result<Vec<u8>, Failure> {
        let piece = self
            .pieces
            .iter()
            .find(|(lblk, _, len)| (*lblk..lblk + len).contains(&number));
        let (lblk, start, _) = piece
            .ok_or_else(|| Failure::new(format!("block {number} of the journal is a hole")))?;
        self.raw.block(FsBlock(start + number - lblk))
    }
}

/// Prints the journal.
pub fn dump(out: &mut impl Write, raw: &Raw) -> Result<(), Failure> {
    let Some(ino) = raw.superblock.journal_ino() else {
        return Err(Failure::new("the file system has no journal of its own"));
    };
    let slot = raw.slot(ino)?;
    let inode = Inode::parse(&slot).map_err(|corrupt| Failure::new(corrupt.ino(ino)))?;
    let mut log = Log {
        raw,
        pieces: Vec::new(),
    };
    let (mut budget, mut blocks) = (BUDGET, 0);
    walk(raw, ino, &inode, &mut budget, &mut |piece| {
        if let Piece::Run {
            lblk, start, len, ..
        } = piece
        {
            log.pieces.push((lblk, start.0, len));
            blocks += len;
        }
        Ok(if log.pieces.len() < PIECES_MAX {
            Go::On
        } else {
            Go::Stop
        })
    })?;
    let first = log.block(0)?;
    let sb =
        JournalSuperblock::read(&first).ok_or_else(|| Failure::new("the block is too short"))?;
    writeln!(out, "{}", JournalText(&sb))?;
    let format = sb
        .verify(raw.geometry.block_size(), blocks)
        .map_err(|corrupt| Failure::new(corrupt.ino(ino)))?;
    let next = transactions(out, &log, &sb, &format)?;
    fast_commits(out, &log, &sb, next)
}

/// Prints the log's blocks and returns the transaction that would come next.
fn transactions(
    out: &mut impl Write,
    log: &Log<'_>,
    sb: &JournalSuperblock,
    format: &LogFormat,
) -> Result<Tid, Failure> {
    let mut tid = sb.sequence();
    if sb.start() == 0 {
        return Ok(tid);
    }
    heading(out, "log")?;
    let (first, end) = (u64::from(sb.first()), u64::from(sb.log_end()));
    let mut at = u64::from(sb.start());
    let mut left = end - first;
    // Each turn takes a block or more of the log, which is as long as the superblock was checked to be.
    while left > 0 {
        let block = log.block(at)?;
        let Some(header) = BlockHeader::of(&block).filter(|header| header.tid() == tid) else {
            break;
        };
        let text = LogBlockText {
            format,
            block: &block,
        };
        writeln!(out, "{at:>8} {text}")?;
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
    writeln!(
        out,
        "{at:>8} end of the log, transaction {tid} would follow"
    )?;
    Ok(tid)
}

fn fast_commits(
    out: &mut impl Write,
    log: &Log<'_>,
    sb: &JournalSuperblock,
    tid: Tid,
) -> Result<(), Failure> {
    let (first, end) = (sb.fast_commit_first(), sb.blocks_count());
    if sb.fast_commit_blocks() == 0 || first >= end {
        return Ok(());
    }
    heading(
        out,
        &format!("fast commits (transaction {tid} if they are new)"),
    )?;
    for number in first..end {
        let block = log.block(number.into())?;
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        for record in records(&block, log.raw.geometry.inode_size()) {
            match record {
                Ok(record) => writeln!(out, "{number:>8} {}", RecordText(&record))?,
                Err(corrupt) => {
                    writeln!(out, "{number:>8} {corrupt}")?;
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}
