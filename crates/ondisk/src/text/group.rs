//! A group in words: its descriptor, and what lies at its start.

use core::fmt::{self, Display, Formatter};

use super::Lines;
use crate::features::Feature;
use crate::geometry::Geometry;
use crate::group_desc::{GroupDesc, computed_checksum, flags};
use crate::numbers::Group;

/// Prints the descriptor of one group from its bytes on disk, checked or not.
#[derive(Clone, Copy)]
pub struct GroupText<'a> {
    /// The descriptor's bytes.
    pub raw: &'a [u8],
    /// The file system's geometry.
    pub geometry: &'a Geometry,
    /// Which group.
    pub group: Group,
}

/// The words of a descriptor's flags.
pub(super) struct FlagWords(pub u16);

impl Display for FlagWords {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)?;
        for (bit, word) in [
            (flags::INODE_UNINIT, "INODE_UNINIT"),
            (flags::BLOCK_UNINIT, "BLOCK_UNINIT"),
            (flags::INODE_ZEROED, "INODE_ZEROED"),
        ] {
            if self.0 & bit != 0 {
                write!(f, " {word}")?;
            }
        }
        Ok(())
    }
}

impl Display for GroupText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (geometry, group) = (self.geometry, self.group);
        let desc = GroupDesc::load(self.raw);
        let mut lines = Lines::new(f);
        let first = geometry.group_first_block(group).0;
        let last = first + u64::from(geometry.group_blocks(group)).saturating_sub(1);
        lines.field("group", group)?;
        lines.field("blocks", format_args!("{first}..={last}"))?;
        let start = geometry.group_start(group);
        lines.maybe("superblock", start.superblock)?;
        if !start.descriptors.is_empty() {
            lines.field(
                "descriptors",
                Inclusive(start.descriptors.start, start.descriptors.end),
            )?;
        }
        if !start.reserved.is_empty() {
            lines.field(
                "reserved descriptors",
                Inclusive(start.reserved.start, start.reserved.end),
            )?;
        }
        lines.field("block bitmap", desc.block_bitmap())?;
        lines.field("inode bitmap", desc.inode_bitmap())?;
        let table = desc.inode_table().0;
        let table_end = table.saturating_add(geometry.inode_table_blocks().into());
        lines.field("inode table", Inclusive(table, table_end))?;
        let unit = if geometry.has(Feature::BIGALLOC) {
            "free clusters"
        } else {
            "free blocks"
        };
        lines.field(unit, desc.free_clusters())?;
        lines.field("free inodes", desc.free_inodes())?;
        lines.field("directories", desc.used_dirs())?;
        lines.field("inodes never used", desc.itable_unused())?;
        lines.field("flags", FlagWords(desc.flags()))?;
        if geometry.has_metadata_csum() {
            lines.field(
                "block bitmap checksum",
                format_args!("{:#x}", desc.block_bitmap_csum()),
            )?;
            lines.field(
                "inode bitmap checksum",
                format_args!("{:#x}", desc.inode_bitmap_csum()),
            )?;
        }
        if let Some(sum) = computed_checksum(self.raw, geometry, group) {
            let state = if sum == desc.checksum() {
                "right"
            } else {
                "WRONG"
            };
            lines.field(
                "checksum",
                format_args!("{:#06x} ({state})", desc.checksum()),
            )?;
        }
        Ok(())
    }
}

/// A range of blocks, its end excluded when made and included when printed.
struct Inclusive(u64, u64);

impl Display for Inclusive {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let last = self.1.saturating_sub(1);
        if last <= self.0 {
            self.0.fmt(f)
        } else {
            write!(f, "{}..={last}", self.0)
        }
    }
}
