//! Inode tables that mke2fs did not initialize (`lazy_itable_init`), so that they hold what the device held before. A
//! table's watermark (`itable_unused`) separates the records that were ever used from the others. Before a number
//! above it is given out, all records up to that number are filled with zeros, because the watermark then moves over
//! all of them, used or not.
//!
//! Under [`Rank::InodeLookup`], held across that I/O, with no handle open. Zeros are durable before a number is given
//! out, and so before a commit that moves the watermark. What a crash leaves: zeros beyond the watermark, which say as
//! little as what was there. Blocks with records below the watermark are not touched: Linux and mke2fs fill such a
//! block with zeros when they first use it, and so do we.

use ondisk::group_desc::flags;
use ondisk::{Feature, Group, GroupDesc};

use super::{Groups, InodeBits};
use crate::blocks::OpenVolume;
use crate::core::Error;

/// Blocks of a table that are made readable at once, if the table has that number left.
const AHEAD: u32 = 32;

/// Up to which index numbers were ever in use, and up to which records can be read.
pub(super) fn watermarks(volume: &OpenVolume, desc: &GroupDesc) -> (u32, u32) {
    let geometry = volume.geometry();
    let len = geometry.inodes_per_group();
    if !geometry.has_metadata_csum() && !geometry.has(Feature::UNINIT_BG) {
        return (0, len);
    }
    let used_end = if desc.has(flags::INODE_UNINIT) {
        0
    } else {
        len - desc.itable_unused().min(len)
    };
    if desc.has(flags::INODE_ZEROED) {
        (used_end, len)
    } else {
        (
            used_end,
            used_end.next_multiple_of(geometry.inodes_per_block()),
        )
    }
}

impl Groups {
    /// A group's numbers, of which `ahead` more than were ever used can be given out, or all. Not with a handle open.
    ///
    /// # Errors
    /// As [`Groups::inode_bits`]; `Io` from the inode table.
    pub(crate) fn ready_inodes(
        &self,
        volume: &OpenVolume,
        group: Group,
        ahead: u32,
    ) -> Result<&InodeBits, Error> {
        let bits = self.inode_bits(volume, group)?;
        self.make_readable(volume, group, bits, bits.used_end().saturating_add(ahead))?;
        Ok(bits)
    }

    /// A group's numbers, of which the one with this index can be given out. Not with a handle open.
    ///
    /// # Errors
    /// As [`Groups::ready_inodes`].
    pub(crate) fn ready_inode(
        &self,
        volume: &OpenVolume,
        group: Group,
        index: u32,
    ) -> Result<&InodeBits, Error> {
        let bits = self.inode_bits(volume, group)?;
        self.make_readable(volume, group, bits, index.saturating_add(1))?;
        Ok(bits)
    }

    fn make_readable(
        &self,
        volume: &OpenVolume,
        group: Group,
        bits: &InodeBits,
        wanted: u32,
    ) -> Result<(), Error> {
        let wanted = wanted.min(bits.len());
        if bits.written() >= wanted {
            return Ok(());
        }
        let _alone = self.inodes.tables.lock();
        let written = bits.written();
        if written >= wanted {
            return Ok(());
        }
        let geometry = volume.geometry();
        let per_block = geometry.inodes_per_block();
        let (first, all) = (written.div_ceil(per_block), geometry.inode_table_blocks());
        let end = wanted.div_ceil(per_block).max(first + AHEAD).min(all);
        let table = self.inode_table(volume, group)?.0;
        let blocks = table + u64::from(first)..table + u64::from(end);
        let block_bytes = geometry.block_size().bytes();
        let zeros = vec![0; block_bytes * (end - first) as usize];
        let device = volume.cache().device();
        device.write_at(blocks.start * block_bytes as u64, &zeros)?;
        // It makes other threads' data durable too; what a failed flush has lost is not known.
        device.flush().inspect_err(|error| {
            if let Ok(writing) = volume.writing() {
                writing.journal.abort(&error.to_string());
            }
        })?;
        blocks.for_each(|block| volume.cache().remove(block));
        self.inodes
            .counters
            .table_blocks_zeroed
            .add((end - first).into());
        bits.set_written(end * per_block);
        Ok(())
    }
}
