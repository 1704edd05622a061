//! Superblock and descriptors under repair: what every other pass stands on.
//!
//! A descriptor that names a place that can't be is taken from a copy whose checksum is right. Without one, a bitmap is
//! placed near the end of its group, in a block that is free if one is known to be, and the table where the root inode
//! is found.

use std::collections::BTreeSet;

use ondisk::{
    Feature, FileType, FsBlock, Geometry, Group, GroupDesc, Ino, Inode, bitmap, group_desc, inode,
};

use crate::problem::Code;
use crate::repair::edit::Edit;
use crate::report::Problem;
use crate::run::Facts;

/// Blocks of a table that are read to find out whether it is one.
const SAMPLE: u32 = 64;

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
            (Code::InodesCount, _) => {
                edit.set_superblock();
            }
            (Code::DescriptorUnreadable, _) => {
                if let Some(block) = problem.block {
                    unreadable(edit, block);
                }
            }
            (Code::MetadataOverlap, _) => overlap(edit, facts.is_some()),
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
        return first.0 != 0 && geometry.contains(first, blocks.into());
    }
    let start = geometry.group_first_block(group).0;
    let end = start + u64::from(geometry.group_blocks(group));
    first.0 >= start && first.0.saturating_add(blocks.into()) <= end
}

fn place(edit: &mut Edit<'_, '_>, group: Group) -> Option<()> {
    let geometry = edit.geometry;
    let mut desc = edit.desc(group)?;
    let copy = copy(edit, group);
    if !fits(
        &geometry,
        group,
        desc.inode_table(),
        geometry.inode_table_blocks(),
    ) {
        desc.set_inode_table(best_table(edit, group, copy.as_ref())?.1);
    }
    if !fits(&geometry, group, desc.block_bitmap(), 1) {
        let block = match copy {
            Some(copy) => copy.block_bitmap(),
            None => bitmap_place(edit, group, &desc)?,
        };
        desc.set_block_bitmap(block);
    }
    if !fits(&geometry, group, desc.inode_bitmap(), 1) {
        let block = match copy {
            Some(copy) => copy.inode_bitmap(),
            None => bitmap_place(edit, group, &desc)?,
        };
        desc.set_inode_bitmap(block);
    }
    edit.set_desc(group, &desc)
}

/// A block of a group for a lost bitmap: the last one that is not metadata and that the block bitmap on the disk has
/// free, so that a repair that ends here takes no block from a file. If that bitmap is lost, too, or has no free block,
/// the last one that is not metadata.
fn bitmap_place(edit: &Edit<'_, '_>, group: Group, desc: &GroupDesc) -> Option<FsBlock> {
    let geometry = &edit.geometry;
    let start = geometry.group_first_block(group).0;
    let end = start + u64::from(geometry.group_blocks(group));
    let first = geometry.group_start(group).reserved.end.max(start + 1);
    let is_named = fits(geometry, group, desc.block_bitmap(), 1);
    let used = is_named
        .then(|| edit.block(desc.block_bitmap().0))
        .flatten();
    let descs: Vec<GroupDesc> = geometry
        .all_groups()
        .filter_map(|group| edit.desc(group))
        .chain([*desc])
        .collect();
    let is_metadata = |block: u64| {
        descs.iter().any(|desc| {
            let table = desc.inode_table().0;
            let len = u64::from(geometry.inode_table_blocks());
            desc.block_bitmap().0 == block
                || desc.inode_bitmap().0 == block
                || (table..table.saturating_add(len)).contains(&block)
        })
    };
    let is_used = |block: &u64| {
        let bit = geometry.bit_of_block(FsBlock(*block));
        used.as_ref()
            .zip(bit)
            .is_some_and(|(used, (_, bit))| bitmap::test(used, bit))
    };
    let blocks = (first..end).rev().filter(|block| !is_metadata(*block));
    let free = blocks.clone().find(|block| !is_used(block));
    let mut blocks = blocks;
    free.or_else(|| blocks.next()).map(FsBlock)
}

/// The groups whose descriptors may name another place than that of the inode table.
pub fn doubtful_groups(geometry: &Geometry, problems: &[Problem]) -> BTreeSet<Group> {
    let mut groups = BTreeSet::new();
    for problem in problems {
        match problem.code {
            Code::MetadataOverlap | Code::BackupDescriptors => groups.extend(geometry.all_groups()),
            Code::DescriptorChecksum
            | Code::InodeTablePlace
            | Code::BlockBitmapPlace
            | Code::InodeBitmapPlace => {
                groups.extend(problem.group.map(Group));
            }
            Code::NoRoot | Code::RootNotDirectory | Code::ReservedMode => {
                groups.insert(Group(0));
            }
            // Garbage in place of inodes.
            Code::InodeMode | Code::InodeChecksum | Code::ExtraSize => {
                let place = problem.ino.and_then(|ino| geometry.group_of_ino(Ino(ino)));
                groups.extend(place.map(|(group, _)| group));
            }
            _ => {}
        }
    }
    groups
}

/// Corrects the place of a group's inode table, where another place holds more inodes that belong to the group.
pub fn find_table(edit: &mut Edit<'_, '_>, group: Group) -> Option<()> {
    let mut desc = edit.desc(group)?;
    let named = desc.inode_table();
    let copy = copy(edit, group);
    let (score, table) = best_table(edit, group, copy.as_ref())?;
    let blocks = edit.geometry.inode_table_blocks();
    let is_better =
        !fits(&edit.geometry, group, named, blocks) || score > plausibility(edit, group, named);
    if table != named && is_better {
        desc.set_inode_table(table);
        edit.set_desc(group, &desc)?;
    }
    Some(())
}

/// The place with the most plausible inodes among those where a group's table may be apart from what its descriptor
/// says: the one in the copy of the descriptor, and in the first group all places where the root would be in its place.
fn best_table(
    edit: &Edit<'_, '_>,
    group: Group,
    copy: Option<&GroupDesc>,
) -> Option<(i64, FsBlock)> {
    let geometry = &edit.geometry;
    let blocks = geometry.inode_table_blocks();
    let mut places: Vec<FsBlock> = copy.iter().map(|copy| copy.inode_table()).collect();
    let is_root_named = edit
        .desc(group)
        .is_some_and(|desc| has_root(edit, desc.inode_table()));
    if group == Group(0) && !is_root_named {
        let start = geometry.group_start(group).reserved.end;
        let end = geometry.group_first_block(group).0 + u64::from(geometry.group_blocks(group));
        let blocks = (start..end).map(FsBlock);
        places.extend(blocks.filter(|block| has_root(edit, *block)));
    }
    let places = places
        .into_iter()
        .filter(|place| fits(geometry, group, *place, blocks));
    let scored = places.map(|place| (plausibility(edit, group, place), place));
    // Of equals the first one.
    scored.max_by_key(|(score, place)| (*score, std::cmp::Reverse(place.0)))
}

/// How many inodes of the group a table in this place would hold, less those that it would hold garbage for. Blocks
/// beyond the first [`SAMPLE`] are not read.
fn plausibility(edit: &Edit<'_, '_>, group: Group, table: FsBlock) -> i64 {
    let geometry = &edit.geometry;
    let size = geometry.inode_size();
    let per_block = edit.block_bytes() / size;
    let mut score = 0;
    for block in 0..geometry.inode_table_blocks().min(SAMPLE) {
        let Some(bytes) = edit.block(table.0 + u64::from(block)) else {
            score -= per_block as i64;
            continue;
        };
        for (index, slot) in bytes.chunks_exact(size).enumerate() {
            let index = block * per_block as u32 + index as u32;
            if slot.iter().any(|byte| *byte != 0) && index < geometry.inodes_per_group() {
                let ino = geometry.ino_of(group, index);
                score += if is_plausible(geometry, ino, slot) {
                    1
                } else {
                    -1
                };
            }
        }
    }
    score
}

fn is_plausible(geometry: &Geometry, ino: Ino, slot: &[u8]) -> bool {
    if geometry.has_metadata_csum() {
        return inode::verify_checksum(slot, geometry.csum_seed(), ino).is_ok();
    }
    Inode::parse(slot).is_ok_and(|inode| match inode.links_count() {
        0 => inode.mode() == 0 || inode.dtime() != 0,
        _ => inode.file_type().is_some() && inode.dtime() == 0,
    })
}

/// Whether a table in this place has the root where it must be.
fn has_root(edit: &Edit<'_, '_>, table: FsBlock) -> bool {
    let geometry = &edit.geometry;
    let (at, byte) = geometry.inode_place(table, Ino::ROOT.0 - 1);
    let bytes = edit.contains(at.0, 1).then(|| edit.block(at.0)).flatten();
    let slot = bytes
        .as_ref()
        .and_then(|it| it.get(byte..byte + geometry.inode_size()));
    slot.is_some_and(|slot| {
        let is_directory = Inode::parse(slot).is_ok_and(|inode| {
            inode.file_type() == Some(FileType::Directory) && inode.links_count() >= 2
        });
        is_directory && is_plausible(geometry, Ino::ROOT, slot)
    })
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
