//! Gives up a damaged log on another device: the journal gets a new superblock, whose log is empty.
//!
//! CRASH: the superblock is one write. Until it is whole, the log is damaged as before, and given up again.

use device::BlockDevice;
use ondisk::jbd2::{BlockHeader, JournalSuperblock};
use ondisk::{Feature, Geometry, Superblock, Tid};

use super::RepairError;
use crate::substitute::first;

/// The most blocks of a journal: e2fsck makes no larger one.
const BLOCKS_MAX: u64 = 10_240_000;

/// The superblock of an empty log, for the place of a damaged one.
pub(super) struct EmptyLog {
    /// The byte of the journal's device at which it belongs.
    offset: u64,
    superblock: JournalSuperblock,
}

impl EmptyLog {
    /// Makes the superblock; only reads. `None` if the device is not the journal of this file system, or its journal's
    /// superblock names another one as its user.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn of(
        journal: &dyn BlockDevice,
        sb: &Superblock,
        geometry: &Geometry,
    ) -> Result<Option<EmptyLog>, RepairError> {
        let header = first(journal)?;
        let size = geometry.block_size();
        let is_its_journal = header.verify().is_ok()
            && header.features().has(Feature::JOURNAL_DEV)
            && header.uuid() == sb.journal_uuid()
            && header.log_block_size() == size.log();
        let blocks = header.blocks_count().min(journal.size() >> size.bits());
        let Ok(count) = u32::try_from(blocks.min(BLOCKS_MAX)) else {
            return Ok(None);
        };
        // The block behind that of the ext4 superblock.
        let at = if size.bytes() == 1024 { 2 } else { 1 };
        if !is_its_journal || count <= at + 1 {
            return Ok(None);
        }
        let offset = u64::from(at) << size.bits();
        let mut bytes = [0; JournalSuperblock::SIZE];
        journal.read_at(offset, &mut bytes)?;
        let old = JournalSuperblock::from_bytes(bytes);
        let serves_others = old.users_count() > 1 || old.users().any(|user| user != sb.uuid());
        if old.kind().is_some() && serves_others {
            return Ok(None);
        }
        let mut superblock = jbd2::empty_superblock(size, count, 0, at + 1, header.uuid());
        superblock.set_users(&[sb.uuid()]);
        superblock.set_sequence(next_tid(journal, size.bits(), at + 1..count)?);
        superblock.seal();
        Ok(Some(EmptyLog { offset, superblock }))
    }

    /// Empties the log.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn write(&self, journal: &dyn BlockDevice) -> Result<(), RepairError> {
        journal.write_at(self.offset, self.superblock.bytes())?;
        Ok(journal.flush()?)
    }
}

/// The number of a transaction that is later than what any of these blocks holds.
fn next_tid(
    journal: &dyn BlockDevice,
    bits: u32,
    blocks: std::ops::Range<u32>,
) -> Result<Tid, RepairError> {
    let mut tid = Tid(1);
    for block in blocks {
        let mut header = [0; BlockHeader::SIZE];
        journal.read_at(u64::from(block) << bits, &mut header)?;
        if let Some(header) = BlockHeader::of(&header)
            && header.tid().is_at_or_after(tid)
        {
            tid = header.tid().next();
        }
    }
    Ok(tid)
}
