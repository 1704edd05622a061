//! Superblock and descriptors under repair: what every other pass stands on.
//!
//! If a descriptor names an impossible place, the place is taken from a copy of the descriptor whose checksum is right.
//! Without such a copy, a bitmap is placed near the end of its group, in a block that is known to be free if there is
//! one, and `table_search` looks for the table.

use ondisk::{Feature, FsBlock, Group, GroupDesc, Ino, bitmap, group_desc};

use crate::metadata::{self, MetadataRuns};
use crate::problem::Code;
use crate::repair::descriptor_copies::{DescriptorCopies, fits};
use crate::repair::edit::Edit;
use crate::repair::table_search::{best_table, plausibility};
use crate::report::Problem;
use crate::run::Facts;
use crate::{limits, runs};

/// Sets superblock and descriptors right.
pub fn run(edit: &mut Edit<'_, '_>, facts: Option<&Facts>, problems: &[Problem]) {
    let has = |code| problems.iter().any(|it| it.code == code);
    if has(Code::MetadataOverlap) {
        overlap(edit, facts.is_some());
    }
    let mut places = None;
    for problem in problems {
        match (problem.code, problem.group.map(Group)) {
            (Code::SuperblockFromBackup, _) => {
                edit.sb.set_block_group_number(0);
                let features = edit.sb.features().without(Feature::NEEDS_RECOVERY);
                edit.sb.set_features(features);
                edit.set_superblock();
            }
            (
                Code::BlockBitmapPlace | Code::InodeBitmapPlace | Code::InodeTablePlace,
                Some(group),
            ) => {
                let places = places.get_or_insert_with(|| Places::of(edit));
                places.mend(edit, group);
            }
            (Code::InodesCount | Code::InodesPerGroup | Code::FirstMetaGroup, _) => {
                edit.set_superblock();
            }
            (Code::DescriptorUnreadable, _) => {
                if let Some(block) = problem.block {
                    unreadable(edit, block);
                }
            }
            (
                Code::DescriptorChecksum
                | Code::DescriptorCounts
                | Code::DescriptorFlags
                | Code::LastGroupUninit,
                Some(group),
            ) => {
                initialize(edit, group);
            }
            (Code::ReservedBlocks, _) => {
                let blocks = edit.geometry.blocks_count();
                edit.sb.set_reserved_blocks_count(blocks / 20);
                edit.set_superblock();
            }
            (Code::ClusterSize, _) => {
                let (blocks, size) = (edit.sb.blocks_per_group(), edit.sb.log_block_size());
                edit.sb.set_clusters_per_group(blocks);
                edit.sb.set_log_cluster_size(size);
                edit.set_superblock();
            }
            (Code::ResizeWithout, _) => {
                edit.sb.set_reserved_gdt_blocks(0);
                edit.set_superblock();
            }
            (Code::NoUuid, _) => uuid(edit),
            (Code::FutureMount, _) => {
                edit.sb.set_mount_time(edit.now.into());
                edit.set_superblock();
            }
            (Code::FutureWrite, _) => {
                edit.sb.set_write_time(edit.now.into());
                edit.set_superblock();
            }
            _ => {}
        }
    }
}

/// The flags that say that a part of the group was never written go, so that all of it is read.
pub fn initialize(edit: &mut Edit<'_, '_>, group: Group) -> Option<()> {
    let mut desc = edit.desc(group)?;
    let uninit = group_desc::flags::INODE_UNINIT | group_desc::flags::BLOCK_UNINIT;
    desc.set_flags(desc.flags() & !uninit);
    desc.set_itable_unused(0);
    edit.set_desc(group, &desc)
}

/// A descriptor that counts the root among the unused inodes is wrong: the group is read in full.
pub fn read_root(edit: &mut Edit<'_, '_>) -> Option<()> {
    let desc = edit.desc(Group(0))?;
    let used = edit
        .geometry
        .inodes_per_group()
        .checked_sub(desc.itable_unused());
    let is_read = used.is_some_and(|used| used >= Ino::ROOT.0);
    if !is_read || desc.has(group_desc::flags::INODE_UNINIT) {
        initialize(edit, Group(0))?;
    }
    Some(())
}

/// Groups behind one whose table may lie among them.
const NEIGHBOURS: usize = 16;
/// Where bitmaps and tables can be whose descriptors name places that can't be.
struct Places {
    copies: DescriptorCopies,
    /// What all descriptors name, whether it can be or not.
    metadata: MetadataRuns,
    /// Blocks of empty tables that may still be made.
    new_blocks: u64,
}

impl Places {
    fn of(edit: &Edit<'_, '_>) -> Places {
        let mmp = metadata::mmp_block(&edit.sb, &edit.geometry);
        Places {
            copies: DescriptorCopies::of(&edit.geometry),
            metadata: MetadataRuns::of(&edit.geometry, edit.descs(), mmp),
            new_blocks: limits::NEW_TABLE_BLOCKS,
        }
    }

    fn mend(&mut self, edit: &mut Edit<'_, '_>, group: Group) -> Option<()> {
        let geometry = edit.geometry;
        let mut desc = edit.desc(group)?;
        let copy = self.copies.desc(edit, group);
        let table_blocks = geometry.inode_table_blocks();
        if !fits(&geometry, group, desc.inode_table(), table_blocks) {
            let table = best_table(edit, group, copy.as_ref());
            let table = table.or_else(|| self.neighbouring_table(edit, group, &desc));
            let table = match table {
                Some(table) => table,
                None => self.new_table(edit, group)?,
            };
            desc.set_inode_table(table);
            self.metadata.add(table.0, table_blocks.into());
        }
        if !fits(&geometry, group, desc.block_bitmap(), 1) {
            let block = match copy {
                Some(copy) => copy.block_bitmap(),
                None => {
                    edit.placed.insert(group.0);
                    self.of_bitmap(edit, group, &desc)?
                }
            };
            desc.set_block_bitmap(block);
        }
        if !fits(&geometry, group, desc.inode_bitmap(), 1) {
            let block = match copy {
                Some(copy) => copy.inode_bitmap(),
                None => {
                    edit.placed.insert(group.0);
                    self.of_bitmap(edit, group, &desc)?
                }
            };
            desc.set_inode_bitmap(block);
        }
        edit.set_desc(group, &desc)
    }

    /// Where mke2fs would have put the table, if inodes of the group are there: behind the bitmaps, or beside the table
    /// of the group before or behind.
    fn neighbouring_table(
        &self,
        edit: &Edit<'_, '_>,
        group: Group,
        desc: &GroupDesc,
    ) -> Option<FsBlock> {
        let geometry = &edit.geometry;
        let blocks = geometry.inode_table_blocks();
        let table_of = |group: Option<u32>| {
            let group = group.filter(|group| *group < geometry.groups());
            Some(edit.desc(Group(group?))?.inode_table().0)
        };
        let before =
            table_of(group.0.checked_sub(1)).map(|table| table.saturating_add(blocks.into()));
        let behind =
            table_of(group.0.checked_add(1)).and_then(|table| table.checked_sub(blocks.into()));
        let bitmaps = [desc.block_bitmap().0, desc.inode_bitmap().0];
        let places = bitmaps.map(|block| block.checked_add(1));
        let places = places.into_iter().chain([before, behind]).flatten();
        let places = places.filter(|place| {
            fits(geometry, group, FsBlock(*place), blocks)
                && !self.metadata.overlaps(*place, blocks.into())
        });
        let scored = places.map(|place| (plausibility(edit, group, FsBlock(place)), place));
        let best = scored.max_by_key(|(score, place)| (*score, std::cmp::Reverse(*place)))?;
        (best.0 > 0).then_some(FsBlock(best.1))
    }

    /// An empty table in blocks of the group that are free by its bitmap, or, where it may be anywhere, of a group
    /// behind it.
    fn new_table(&mut self, edit: &mut Edit<'_, '_>, group: Group) -> Option<FsBlock> {
        let geometry = edit.geometry;
        let blocks = u64::from(geometry.inode_table_blocks());
        self.new_blocks = self.new_blocks.checked_sub(blocks)?;
        let others = (group.0 + 1..geometry.groups()).map(Group);
        let others = others.take(if geometry.has(Feature::FLEX_BG) {
            NEIGHBOURS
        } else {
            0
        });
        let first = std::iter::once(group).chain(others).find_map(|group| {
            let start = geometry.group_first_block(group).0;
            let end = start + u64::from(geometry.group_blocks(group));
            let bitmap = edit.desc(group)?.block_bitmap();
            let used = if fits(&geometry, group, bitmap, 1) {
                edit.block(bitmap.0)?
            } else {
                return None;
            };
            self.metadata.first_run(start..end, blocks, |block| {
                let bit = geometry.bit_of_block(FsBlock(block));
                bit.is_some_and(|(_, bit)| !bitmap::test(&used, bit))
            })
        })?;
        for block in first..first + blocks {
            edit.set_block(block, vec![0; edit.block_bytes()]);
        }
        Some(FsBlock(first))
    }

    /// A block of a group for a lost bitmap: the last one that is not metadata and that the block bitmap on the disk
    /// has free, so that a repair that ends here takes no block from a file. If that bitmap is lost, too, or has no
    /// free block, the last one that is not metadata.
    fn of_bitmap(
        &mut self,
        edit: &Edit<'_, '_>,
        group: Group,
        desc: &GroupDesc,
    ) -> Option<FsBlock> {
        let geometry = &edit.geometry;
        let start = geometry.group_first_block(group).0;
        let blocks = start + 1..start + u64::from(geometry.group_blocks(group));
        let is_named = fits(geometry, group, desc.block_bitmap(), 1);
        let used = is_named
            .then(|| edit.block(desc.block_bitmap().0))
            .flatten();
        let is_free = |block: u64| {
            let bit = geometry.bit_of_block(FsBlock(block));
            let is_used = used.as_ref().zip(bit);
            !is_used.is_some_and(|(used, (_, bit))| bitmap::test(used, bit))
        };
        let free = self.metadata.last_free(blocks.clone(), is_free);
        let block = free.or_else(|| self.metadata.last_free(blocks, |_| true))?;
        self.metadata.add(block, 1);
        Some(FsBlock(block))
    }
}

/// Takes a block of descriptors that can't be read from a copy in which all checksums are right.
fn unreadable(edit: &mut Edit<'_, '_>, block: u64) -> Option<()> {
    let geometry = edit.geometry;
    let index = (0..geometry.desc_blocks()).find(|index| geometry.desc_block(*index).0 == block)?;
    let first = index * geometry.descs_per_block();
    let holders = geometry
        .all_groups()
        .skip(1)
        .filter(|it| geometry.has_super(*it));
    for holder in holders {
        let superblock = geometry.group_first_block(holder);
        let copy = geometry.desc_block_of_copy(superblock, index);
        let Some(bytes) = edit.block(copy.0).filter(|_| copy.0 != block) else {
            continue;
        };
        let descs = bytes.chunks_exact(geometry.desc_size());
        let mut groups = (first..geometry.groups()).map(Group).zip(descs);
        if groups.all(|(group, raw)| GroupDesc::verify(raw, &geometry, group).is_ok()) {
            edit.set_block(block, bytes);
            return Some(());
        }
    }
    None
}

/// Gives bitmaps that lie in other metadata new blocks. Their contents are made anew from what is in use.
fn move_bitmaps(edit: &mut Edit<'_, '_>) -> Option<()> {
    let geometry = edit.geometry;
    let mmp = metadata::mmp_block(&edit.sb, &geometry);
    let metadata = MetadataRuns::of(&geometry, edit.descs(), mmp);
    let overlaps = |block: u64| metadata.overlapping().binary_search(&block).is_ok();
    for group in geometry.all_groups() {
        let mut desc = edit.desc(group)?;
        let old = (desc.block_bitmap().0, desc.inode_bitmap().0);
        if overlaps(old.0) {
            desc.set_block_bitmap(new_place(edit, group)?);
        }
        if overlaps(old.1) && old.0 != old.1 {
            desc.set_inode_bitmap(new_place(edit, group)?);
        }
        if (desc.block_bitmap().0, desc.inode_bitmap().0) != old {
            edit.set_desc(group, &desc)?;
        }
    }
    Some(())
}

/// Gives a group's bitmaps new blocks where theirs are claimed by others.
pub fn leave_files(edit: &mut Edit<'_, '_>, shared: &[(u64, u64)], group: Group) -> Option<()> {
    let mut desc = edit.desc(group)?;
    let old = (desc.block_bitmap().0, desc.inode_bitmap().0);
    if runs::overlap(shared, old.0, 1) {
        desc.set_block_bitmap(new_place(edit, group)?);
    }
    if runs::overlap(shared, old.1, 1) {
        desc.set_inode_bitmap(new_place(edit, group)?);
    }
    if (desc.block_bitmap().0, desc.inode_bitmap().0) != old {
        edit.set_desc(group, &desc)?;
    }
    Some(())
}

/// A new block for a bitmap: within its group, else, where that may be, anywhere.
fn new_place(edit: &mut Edit<'_, '_>, group: Group) -> Option<FsBlock> {
    if let Some(block) = edit.space.allocate_in(group) {
        return Some(block);
    }
    if !edit.has(Feature::FLEX_BG) {
        return None;
    }
    edit.space.allocate()
}

/// Where two pieces of metadata overlap, the descriptors that differ from their copies are taken from these. Where none
/// differs, bitmaps move, if it is known what is in use.
fn overlap(edit: &mut Edit<'_, '_>, knows_use: bool) {
    let mut is_changed = false;
    let copies = DescriptorCopies::of(&edit.geometry);
    for group in edit.geometry.all_groups() {
        let (Some(mut desc), Some(copy)) = (edit.desc(group), copies.desc(edit, group)) else {
            continue;
        };
        let differs = desc.block_bitmap() != copy.block_bitmap()
            || desc.inode_bitmap() != copy.inode_bitmap()
            || desc.inode_table() != copy.inode_table();
        if differs {
            desc.set_block_bitmap(copy.block_bitmap());
            desc.set_inode_bitmap(copy.inode_bitmap());
            desc.set_inode_table(copy.inode_table());
            is_changed |= edit.set_desc(group, &desc).is_some();
        }
    }
    if !is_changed && knows_use {
        move_bitmaps(edit);
    }
}

/// The UUID of a copy of the superblock: all checksums depend on it.
fn uuid(edit: &mut Edit<'_, '_>) {
    let geometry = edit.geometry;
    let holders = geometry
        .all_groups()
        .skip(1)
        .filter(|it| geometry.has_super(*it));
    for holder in holders {
        let bytes = edit.block(geometry.group_first_block(holder).0);
        let copy = bytes.as_ref().and_then(|bytes| bytes.first_chunk());
        if let Some(copy) = copy.map(ondisk::Superblock::view)
            && copy.uuid() != [0; 16]
            && copy.verify().is_ok()
        {
            edit.sb.set_uuid(copy.uuid());
            edit.set_superblock();
            return;
        }
    }
}
