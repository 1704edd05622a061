//! The second pass: which blocks were revoked, and by which transaction last. A copy counts only if its transaction is
//! newer than that.

use ondisk::jbd2::{self, BlockKind, JournalSuperblock};
use ondisk::{FsBlock, Tid};

use crate::recovery::error::{Error, UnsupportedLog};
use crate::recovery::limits::RECORDS_MAX;
use crate::recovery::log::{LogRing, LogWalk};

/// Revoked blocks with the number of the last transaction that revoked each, counted from the journal's oldest.
#[derive(Default)]
pub(crate) struct Revokes {
    /// Ascending, one for each block, after [`Revokes::compact`].
    records: Vec<(u64, u32)>,
    /// Records read, repeated ones too.
    pub(crate) count: u64,
}

impl Revokes {
    fn add(&mut self, block: FsBlock, number: u32) -> Result<(), Error> {
        if self.records.len() >= RECORDS_MAX {
            self.compact();
            if self.records.len() > RECORDS_MAX / 4 * 3 {
                return Err(UnsupportedLog::TooLarge("too many revoked blocks").into());
            }
        }
        self.records.push((block.0, number));
        self.count += 1;
        Ok(())
    }

    /// Sorts the records and keeps the newest for each block.
    fn compact(&mut self) {
        self.records.sort_unstable();
        // Of two records for a block the later has the higher number: it takes the earlier one's place.
        self.records.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                kept.1 = later.1;
            }
            is_same
        });
    }

    /// Whether a copy of `block` in transaction `number` must not be replayed.
    pub(crate) fn covers(&self, block: FsBlock, number: u32) -> bool {
        self.records
            .binary_search_by_key(&block.0, |record| record.0)
            .is_ok_and(|at| number <= self.records[at].1)
    }
}

/// Collects the revokes of all transactions before `end`.
pub(crate) fn collect(
    log: &mut LogRing<'_>,
    sb: &JournalSuperblock,
    end: Tid,
) -> Result<Revokes, Error> {
    let mut revokes = Revokes::default();
    let mut walk = LogWalk::new(sb);
    while walk.tid != end {
        let Some(kind) = walk.next(log)? else { break };
        match kind {
            BlockKind::Descriptor => {
                let count = jbd2::Tags::of(&log.format, &walk.block).count();
                walk.skip(log, u32::try_from(count).unwrap_or(u32::MAX));
            }
            BlockKind::Revoke => {
                let number = walk.tid.0.wrapping_sub(sb.sequence().0);
                for block in jbd2::revoked(&log.format, &walk.block)? {
                    revokes.add(block, number)?;
                }
            }
            BlockKind::Commit => walk.tid = walk.tid.next(),
            BlockKind::SuperblockV1 | BlockKind::SuperblockV2 => break,
        }
    }
    walk.must_have_reached(end)?;
    revokes.compact();
    Ok(revokes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_revoke_of_a_block_covers_its_own_and_older_transactions() {
        let mut revokes = Revokes::default();
        for (block, number) in [(7, 2), (9, 1), (7, 4), (7, 3)] {
            revokes.add(FsBlock(block), number).unwrap();
        }
        revokes.compact();
        assert!(revokes.covers(FsBlock(7), 4));
        assert!(revokes.covers(FsBlock(7), 0));
        assert!(!revokes.covers(FsBlock(7), 5));
        assert!(!revokes.covers(FsBlock(9), 2));
        assert!(!revokes.covers(FsBlock(8), 0));
        assert_eq!(revokes.count, 4);
    }
}
