//! The third pass, which finds the newest copy of each block in the journal; and [`run`], which does all three passes.

use device::BlockDevice;
use ondisk::jbd2::{BlockKind, JournalSuperblock, Tags};
use ondisk::{Corrupt, Feature, FsBlock, Geometry, Site, Superblock, Tid};
use sync::Arc;

use crate::recovery::error::{Error, UnsupportedLog};
use crate::recovery::fast;
use crate::recovery::limits::RECORDS_MAX;
use crate::recovery::log::{LogRing, LogWalk};
use crate::recovery::map::JournalMap;
use crate::recovery::open::{self, SoundJournal};
use crate::recovery::report::{JournalState, ReplayReport};
use crate::recovery::revokes::{self, Revokes};
use crate::recovery::scan;

/// The newest copy of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NewestCopy {
    /// Where it belongs.
    pub(crate) block: u64,
    /// Its number among all copies in the log.
    order: u32,
    /// Where it is in the journal; the highest bit is set if it is escaped.
    place: u32,
}

const ESCAPED: u32 = 1 << 31;

impl NewestCopy {
    /// The block of the journal that holds the copy.
    pub(crate) fn position(self) -> u32 {
        self.place & !ESCAPED
    }

    /// Whether its first four bytes are the journal's magic number, and zeros in the journal.
    pub(crate) fn is_escaped(self) -> bool {
        self.place & ESCAPED != 0
    }
}

/// A journal that was read.
pub(crate) struct ReadLog {
    pub(crate) map: JournalMap,
    pub(crate) sb: JournalSuperblock,
    /// Ascending by block, one for each.
    pub(crate) copies: Vec<NewestCopy>,
    /// Where the next transaction would begin.
    pub(crate) head: u32,
}

/// A journal that was read, and the report about it.
pub(crate) struct Replayed {
    /// `None` where nothing can need replay.
    pub(crate) log: Option<ReadLog>,
    pub(crate) report: ReplayReport,
    /// Blocks of complete fast commits, which are newer than the log.
    pub(crate) fast_commits: Vec<u8>,
}

impl Replayed {
    fn nothing(report: ReplayReport) -> Replayed {
        Replayed {
            log: None,
            report,
            fast_commits: Vec::new(),
        }
    }
}

/// What becomes of copies of blocks in the log whose checksums are wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DamagedCopies {
    /// The log is not replayed.
    Refuse,
    /// They are left out, as by jbd2.
    LeaveOut,
}

/// Reads the journal of a file system.
pub(crate) fn run(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
    damaged: DamagedCopies,
) -> Result<Replayed, Error> {
    if !geometry.has(Feature::HAS_JOURNAL) {
        return Ok(Replayed::nothing(ReplayReport::default()));
    }
    if !geometry.has(Feature::NEEDS_RECOVERY) {
        // It is opened for the report only: damage to a journal that needs no replay is not an error.
        let report = open::open(device, sb, geometry, external).map_or_else(
            |_| ReplayReport {
                journal: JournalState::Clean,
                ..ReplayReport::default()
            },
            |opened| first_report(&opened, JournalState::Ignored),
        );
        return Ok(Replayed::nothing(report));
    }
    let opened = open::open(device, sb, geometry, external)?;
    let mut report = first_report(&opened, JournalState::Replayed);
    let mut fast_commits = Vec::new();
    let mut read = ReadLog {
        map: opened.map,
        sb: opened.sb,
        copies: Vec::new(),
        head: opened.sb.head(),
    };
    if report.journal == JournalState::Replayed {
        let mut log = LogRing::new(&read.map, &read.sb, opened.format);
        let end = scan::find_end(&mut log, &read.sb)?;
        let revokes = revokes::collect(&mut log, &read.sb, end.tid)?;
        let device_blocks = device.size() >> geometry.block_size().bits();
        let mut replay = Replay {
            revokes: &revokes,
            damaged,
            map: &read.map,
            device_blocks,
            copies: Vec::new(),
            count: 0,
            revoked: 0,
        };
        replay.pass(&mut log, &read.sb, end.tid)?;
        replay.compact();
        report.end = end.tid;
        report.transactions = end.tid.0.wrapping_sub(read.sb.sequence().0);
        report.bad_transaction = end.bad;
        report.copies = replay.count.into();
        report.revoked = replay.revoked;
        report.blocks = replay.copies.len() as u64;
        read.copies = replay.copies;
        read.head = end.head;
        if end.bad.is_none() {
            let inode_size = geometry.inode_size();
            (report.fast_commits, fast_commits) =
                fast::scan(&mut log, &read.sb, end.tid, inode_size)?;
            report.fast_commits_pending = report.fast_commits.changes;
        }
    }
    Ok(Replayed {
        log: Some(read),
        report,
        fast_commits,
    })
}

/// The report as far as the journal's superblock makes it; `dirty` is the state when it holds transactions.
fn first_report(opened: &SoundJournal, dirty: JournalState) -> ReplayReport {
    ReplayReport {
        journal: match opened.sb.start() {
            0 => JournalState::Clean,
            _ => dirty,
        },
        is_external: opened.is_external,
        used_backup_map: opened.used_backup_map,
        end: opened.sb.sequence(),
        // Stored as a negative number.
        aborted_with: Some(opened.sb.errno_raw().cast_signed().unsigned_abs())
            .filter(|errno| *errno != 0),
        ..ReplayReport::default()
    }
}

struct Replay<'a> {
    revokes: &'a Revokes,
    damaged: DamagedCopies,
    map: &'a JournalMap,
    device_blocks: u64,
    copies: Vec<NewestCopy>,
    /// Copies seen, revoked ones too.
    count: u32,
    revoked: u64,
}

impl Replay<'_> {
    /// Goes through all transactions before `end`.
    fn pass(
        &mut self,
        log: &mut LogRing<'_>,
        sb: &JournalSuperblock,
        end: Tid,
    ) -> Result<(), Error> {
        let mut walk = LogWalk::new(sb);
        while walk.tid != end {
            let Some(kind) = walk.next(log)? else { break };
            match kind {
                BlockKind::Descriptor => self.descriptor(log, &mut walk, sb)?,
                BlockKind::Revoke => {}
                BlockKind::Commit => walk.tid = walk.tid.next(),
                BlockKind::SuperblockV1 | BlockKind::SuperblockV2 => break,
            }
        }
        Ok(walk.must_have_reached(end)?)
    }

    fn descriptor(
        &mut self,
        log: &mut LogRing<'_>,
        walk: &mut LogWalk,
        sb: &JournalSuperblock,
    ) -> Result<(), Error> {
        let format = log.format;
        let number = walk.tid.0.wrapping_sub(sb.sequence().0);
        let descriptor = std::mem::take(&mut walk.block);
        for tag in Tags::of(&format, &descriptor) {
            let position = walk.position;
            walk.skip(log, 1);
            self.count = self.count.wrapping_add(1);
            if self.revokes.covers(tag.block, number) {
                self.revoked += 1;
                continue;
            }
            self.check_target(tag.block)?;
            // So that no later read of the overlay meets a hole.
            self.map.place(position)?;
            if format.has_block_checksums()
                && format.data_checksum(walk.tid, log.read(position)?) != tag.checksum
            {
                if self.damaged == DamagedCopies::LeaveOut {
                    continue;
                }
                return Err(Corrupt::at(Site::JournalCopyChecksum)
                    .block(tag.block)
                    .into());
            }
            self.add(tag.block, position, tag.is_escaped)?;
        }
        walk.block = descriptor;
        Ok(())
    }

    fn check_target(&self, block: FsBlock) -> Result<(), Corrupt> {
        if block.0 >= self.device_blocks {
            return Err(Corrupt::at(Site::JournalTargetOutside).block(block));
        }
        if self.map.holds(block) {
            return Err(Corrupt::at(Site::JournalTargetInside).block(block));
        }
        Ok(())
    }

    fn add(&mut self, block: FsBlock, position: u32, is_escaped: bool) -> Result<(), Error> {
        if self.copies.len() >= RECORDS_MAX {
            self.compact();
            if self.copies.len() > RECORDS_MAX / 4 * 3 {
                return Err(UnsupportedLog::TooLarge("too many blocks to replay").into());
            }
        }
        self.copies.push(NewestCopy {
            block: block.0,
            order: self.count,
            place: position | if is_escaped { ESCAPED } else { 0 },
        });
        Ok(())
    }

    /// Sorts the copies and keeps the newest of each block.
    fn compact(&mut self) {
        self.copies.sort_unstable();
        self.copies.dedup_by(|later, kept| {
            let is_same = later.block == kept.block;
            if is_same {
                *kept = *later;
            }
            is_same
        });
    }
}
