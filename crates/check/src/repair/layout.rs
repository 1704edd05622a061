//! Superblock and descriptors under repair: what every other pass stands on.
//!
//! A descriptor that names a place that can't be is taken from a copy whose checksum is right. Without one, a bitmap is
//! placed at the end of its group, and the table where the root inode is found.

use ondisk::{
    Feature, FileType, FsBlock, Geometry, Group, GroupDesc, Ino, Inode, group_desc, inode,
};

use crate::problem::Code;
use crate::repair::edit::Edit;
use crate::report::Problem;
use crate::run::Facts;

/// Sets superblock and descriptors right.
pub fn run(edit: &mut Edit<'_, '_>, facts: Option<&Facts>, problems: &[Problem]) {
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
                place(edit, group);
            }
            (Code::MetadataOverlap, _) => overlap(edit, facts.is_some()),
            (
                Code::DescriptorChecksum | Code::DescriptorCounts | Code::DescriptorFlags,
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

/// The descriptor of a group in the copies that backups of the superblock have, where its checksum is right.
fn copy(edit: &Edit<'_, '_>, group: Group) -> Option<GroupDesc> {
    let geometry = &edit.geometry;
    let index = group.0 / geometry.descs_per_block();
    let at = (group.0 % geometry.descs_per_block()) as usize * geometry.desc_size();
    let holders = geometry
        .all_groups()
        .skip(1)
        .filter(|it| geometry.has_super(*it));
    for holder in holders.take(4) {
        let superblock = geometry.group_first_block(holder);
        let block = geometry.desc_block_of_copy(superblock, index);
        let Some(bytes) = edit
            .contains(block.0, 1)
            .then(|| edit.block(block.0))
            .flatten()
        else {
            continue;
        };
        let raw = bytes.get(at..at + geometry.desc_size())?;
        if let Ok(desc) = GroupDesc::verify(raw, geometry, group)
            && desc.inode_table().0 > superblock.0.min(geometry.first_data_block().0)
        {
            return Some(desc);
        }
    }
    None
}

fn fits(geometry: &Geometry, group: Group, first: FsBlock, blocks: u32) -> bool {
    if geometry.has(Feature::FLEX_BG) {
        return geometry.contains(first, blocks.into());
    }
    let start = geometry.group_first_block(group).0;
    let end = start + u64::from(geometry.group_blocks(group));
    first.0 >= start && first.0.saturating_add(blocks.into()) <= end
}

fn place(edit: &mut Edit<'_, '_>, group: Group) -> Option<()> {
    let geometry = edit.geometry;
    let mut desc = edit.desc(group)?;
    let copy = copy(edit, group);
    let start = geometry.group_first_block(group).0;
    let last = start + u64::from(geometry.group_blocks(group)) - 1;
    if !fits(
        &geometry,
        group,
        desc.inode_table(),
        geometry.inode_table_blocks(),
    ) {
        let table = match copy {
            Some(copy) => copy.inode_table(),
            None => find_table(edit, group)?,
        };
        desc.set_inode_table(table);
    }
    if !fits(&geometry, group, desc.block_bitmap(), 1) {
        let block = copy.map_or(FsBlock(last), |copy| copy.block_bitmap());
        desc.set_block_bitmap(block);
    }
    if !fits(&geometry, group, desc.inode_bitmap(), 1) {
        let block = copy.map_or(FsBlock(last - 1), |copy| copy.inode_bitmap());
        desc.set_inode_bitmap(block);
    }
    edit.set_desc(group, &desc)
}

/// Where the table lies that holds the root, in the first group.
fn find_table(edit: &Edit<'_, '_>, group: Group) -> Option<FsBlock> {
    let geometry = &edit.geometry;
    if group != Group(0) {
        return None;
    }
    let start = geometry.group_start(group).reserved.end;
    let end = geometry.group_first_block(group).0 + u64::from(geometry.group_blocks(group));
    (start..end).map(FsBlock).find(|block| {
        let (at, byte) = geometry.inode_place(*block, Ino::ROOT.0 - 1);
        let bytes = edit.contains(at.0, 1).then(|| edit.block(at.0)).flatten();
        let slot = bytes
            .as_ref()
            .and_then(|it| it.get(byte..byte + geometry.inode_size()));
        slot.is_some_and(|slot| is_root(geometry, slot))
    })
}

fn is_root(geometry: &Geometry, slot: &[u8]) -> bool {
    let Ok(inode) = Inode::parse(slot) else {
        return false;
    };
    let is_sealed = !geometry.has_metadata_csum()
        || inode::verify_checksum(slot, geometry.csum_seed(), Ino::ROOT).is_ok();
    inode.file_type() == Some(FileType::Directory) && inode.links_count() >= 2 && is_sealed
}

/// Gives bitmaps that lie in other metadata new blocks. Their contents are made anew from what is in use.
fn move_bitmaps(edit: &mut Edit<'_, '_>) -> Option<()> {
    let geometry = edit.geometry;
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    for group in geometry.all_groups() {
        let start = geometry.group_start(group);
        pieces.extend(start.superblock.map(|block| (block.0, block.0 + 1)));
        pieces.push((start.descriptors.start, start.reserved.end));
        let desc = edit.desc(group)?;
        let table = desc.inode_table().0;
        pieces.push((table, table + u64::from(geometry.inode_table_blocks())));
        for bitmap in [desc.block_bitmap().0, desc.inode_bitmap().0] {
            pieces.push((bitmap, bitmap + 1));
        }
    }
    pieces.sort_unstable();
    let mut overlapping = Vec::new();
    let mut end = 0;
    for (first, last) in pieces {
        if first < end {
            overlapping.push(first);
        }
        end = end.max(last);
    }
    for group in geometry.all_groups() {
        let mut desc = edit.desc(group)?;
        let old = (desc.block_bitmap().0, desc.inode_bitmap().0);
        if overlapping.contains(&old.0) {
            desc.set_block_bitmap(new_place(edit, group)?);
        }
        if overlapping.contains(&old.1) && old.0 != old.1 {
            desc.set_inode_bitmap(new_place(edit, group)?);
        }
        if (desc.block_bitmap().0, desc.inode_bitmap().0) != old {
            edit.set_desc(group, &desc)?;
        }
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
    for group in edit.geometry.all_groups() {
        let (Some(mut desc), Some(copy)) = (edit.desc(group), copy(edit, group)) else {
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
