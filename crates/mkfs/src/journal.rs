//! How large a journal is, and its superblock.

use ondisk::jbd2::JournalSuperblock;
use ondisk::{BlockSize, Feature};

use crate::shape::Shape;
use crate::{Error, Options, features, tables};

/// The size of a journal in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct JournalSize {
    /// With the superblock and the fast-commit area.
    pub total: u64,
    /// The fast-commit area; 0 without the feature.
    pub fast_commit: u64,
}

impl JournalSize {
    /// The size for an image of this shape; `None` when it is too small for a journal and no option asks for one.
    ///
    /// # Errors
    /// If an option asks for a journal and the image has no room for it; if jbd2 does not support the size; if the size
    /// leaves no room for anything else.
    pub(crate) fn of(shape: &Shape, options: &Options) -> Result<Option<JournalSize>, Error> {
        let log = match options.journal.size_mib {
            Some(mib) => blocks_of_mib(mib, shape.block_size)?,
            None => match tables::journal_blocks(shape.blocks) {
                Some(blocks) => blocks,
                None => {
                    return match features::asks_for_journal(options) {
                        None => Ok(None),
                        Some(option) => Err(Error::NoRoomForJournal {
                            option,
                            size: shape.blocks << shape.block_size.bits(),
                            least: tables::JOURNAL_FROM << shape.block_size.bits(),
                        }),
                    };
                }
            },
        };
        let fast_commit = if shape.has(Feature::FAST_COMMIT) {
            fast_commit_blocks(log, shape.block_size, options)?
        } else if options.journal.fast_commit_kib.is_some() {
            return Err(Error::option("-J fast_commit_size", "needs -O fast_commit"));
        } else {
            0
        };
        let size = JournalSize {
            total: log + fast_commit,
            fast_commit,
        };
        if size.total > shape.blocks / 2 && options.journal.size_mib.is_some() {
            let what = format!(
                "-J size: {} blocks are more than half of the file system ({})",
                size.total, shape.blocks
            );
            return Err(shape.too_small(&what, shape.blocks << shape.block_size.bits()));
        }
        Ok(Some(size))
    }

    /// The journal's superblock: an empty log. `uuid` is that of the file system, or of the journal device.
    pub(crate) fn superblock(
        self,
        block_size: BlockSize,
        first: u32,
        uuid: [u8; 16],
    ) -> JournalSuperblock {
        // At most twice `tables::JOURNAL_MAX`.
        #[allow(clippy::cast_possible_truncation)]
        let (total, fast_commit) = (self.total as u32, self.fast_commit as u32);
        jbd2::empty_superblock(block_size, total, fast_commit, first, uuid)
    }
}

/// Blocks of a journal of `mib` MiB.
pub(crate) fn blocks_of_mib(mib: u64, block_size: BlockSize) -> Result<u64, Error> {
    let blocks = mib.saturating_mul(1 << 20) >> block_size.bits();
    if (tables::JOURNAL_MIN..=tables::JOURNAL_MAX).contains(&blocks) {
        return Ok(blocks);
    }
    let (least, most) = (tables::JOURNAL_MIN, tables::JOURNAL_MAX);
    let mib = |blocks: u64| (blocks << block_size.bits()).div_ceil(1 << 20);
    let reason = format!(
        "{blocks} blocks; it must be from {least} to {most} blocks ({} to {} MiB)",
        mib(least),
        mib(most)
    );
    Err(Error::option("-J size", reason))
}

fn fast_commit_blocks(log: u64, block_size: BlockSize, options: &Options) -> Result<u64, Error> {
    let Some(kib) = options.journal.fast_commit_kib else {
        return Ok(tables::fast_commit_blocks(log));
    };
    let blocks = kib.saturating_mul(1024) >> block_size.bits();
    if (1..=log).contains(&blocks) {
        return Ok(blocks);
    }
    let kib = |blocks: u64| blocks << block_size.bits() >> 10;
    let reason = format!(
        "must be from one block to the size of the journal ({} to {} KiB)",
        kib(1),
        kib(log)
    );
    Err(Error::option("-J fast_commit_size", reason))
}
