//! The first pass: where the log ends. A transaction counts when its commit block is there and right; the log ends
//! before the first that does not (`do_one_pass`, `PASS_SCAN`).
//!
//! A wrong checksum has three meanings. In a descriptor or revoke block of a transaction whose commit block is newer
//! than the last one: a committed transaction is damaged, and nothing can be trusted. With an older commit block: bytes
//! of an earlier life of the journal, so the log ended before. In the commit block itself (v2, v3) or in the sum of a
//! transaction (v1): without async commit the transaction is damaged, and replay stops before it; with it the commit
//! block was on disk before the rest, and the transaction never happened.

use ondisk::jbd2::{
    BlockKind, CommitBlock, CommitChecksum, JournalChecksum, JournalFeatures, JournalSuperblock,
    Tags, TransactionChecksum,
};
use ondisk::{Corrupt, FsBlock, Site, Tid};

use crate::recovery::error::Error;
use crate::recovery::log::{LogRing, LogWalk};

/// Where the log ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// The first transaction that is not replayed.
    pub(crate) tid: Tid,
    /// Where it would begin.
    pub(crate) head: u32,
    /// A committed transaction whose checksum is wrong.
    pub(crate) bad: Option<Tid>,
}

struct Scan<'a, 'b> {
    log: &'a mut LogRing<'b>,
    walk: LogWalk,
    is_async: bool,
    /// A block of the current transaction had a wrong checksum.
    is_suspicious: bool,
    /// When the last good transaction was committed.
    last_commit: u64,
    /// After the last good commit block.
    head: u32,
    /// The sum over the current transaction (v1).
    sum: TransactionChecksum,
    /// Set when a transaction did not count; the scan may go on to learn why.
    end: Option<End>,
}

/// Finds the end of the log of a journal that is not clean.
pub(crate) fn find_end(log: &mut LogRing<'_>, sb: &JournalSuperblock) -> Result<End, Error> {
    let mut scan = Scan {
        log,
        walk: LogWalk::new(sb),
        is_async: sb
            .features()
            .has_incompat(JournalFeatures::INCOMPAT_ASYNC_COMMIT),
        is_suspicious: false,
        last_commit: 0,
        head: sb.start(),
        sum: TransactionChecksum::new(),
        end: None,
    };
    while let Some(kind) = scan.walk.next(scan.log)? {
        let go_on = match kind {
            BlockKind::Descriptor => scan.descriptor()?,
            BlockKind::Revoke => {
                scan.is_suspicious |= !scan.log.format.verify_tail(&scan.walk.block);
                true
            }
            BlockKind::Commit => scan.commit()?,
            BlockKind::SuperblockV1 | BlockKind::SuperblockV2 => false,
        };
        if !go_on {
            break;
        }
    }
    Ok(scan.end.unwrap_or(End {
        tid: scan.walk.tid,
        head: scan.head,
        bad: None,
    }))
}

impl Scan<'_, '_> {
    /// Passes over a descriptor block and the copies it names, summing them for checksums of version 1.
    fn descriptor(&mut self) -> Result<bool, Error> {
        let format = self.log.format;
        self.is_suspicious |= !format.verify_tail(&self.walk.block);
        let count = Tags::of(&format, &self.walk.block).count();
        if format.checksum == JournalChecksum::V1 && self.end.is_none() {
            self.sum.add(&self.walk.block);
            for _ in 0..count {
                self.sum.add(self.log.read(self.walk.position)?);
                self.walk.skip(self.log, 1);
            }
        } else {
            // A block has fewer tags than bytes.
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            self.walk.skip(self.log, count);
        }
        Ok(true)
    }

    /// Ends a transaction. Returns whether the scan goes on.
    fn commit(&mut self) -> Result<bool, Error> {
        let format = self.log.format;
        let Some(commit) = CommitBlock::read(&self.walk.block) else {
            return Ok(false);
        };
        let is_newer = commit.seconds() >= self.last_commit;
        if self.is_suspicious {
            if is_newer {
                let at = FsBlock(self.walk.position.into());
                return Err(Corrupt::at(Site::JournalBlockChecksum).block(at).into());
            }
            return Ok(false);
        }
        let is_good = match format.checksum {
            JournalChecksum::None => true,
            JournalChecksum::V1 => {
                if let Some(end) = &mut self.end {
                    // A transaction was committed after the one with the wrong sum: that one is damaged.
                    end.bad = Some(end.tid);
                    return Ok(false);
                }
                commit.has_transaction_checksum(self.sum.value())
            }
            JournalChecksum::V2 | JournalChecksum::V3 => {
                CommitBlock::verify(&format, &self.walk.block) != CommitChecksum::Bad
            }
        };
        self.sum = TransactionChecksum::new();
        if !is_good {
            if !is_newer {
                return Ok(false);
            }
            self.end.get_or_insert(End {
                tid: self.walk.tid,
                head: self.head,
                bad: (!self.is_async).then_some(self.walk.tid),
            });
            if !self.is_async {
                return Ok(false);
            }
        }
        self.last_commit = commit.seconds();
        self.head = self.walk.position;
        self.walk.tid = self.walk.tid.next();
        Ok(true)
    }
}
