//! Where the inode table of a group is, if its descriptor names another place.

use std::collections::BTreeSet;

use ondisk::{FileType, FsBlock, Geometry, Group, GroupDesc, Ino, Inode, inode};

use crate::problem::Code;
use crate::repair::edit::Edit;
use crate::repair::layout::{Copies, fits};
use crate::report::Problem;

/// Blocks of a table that are read to find out whether it is one.
const SAMPLE: u32 = 64;

/// The groups whose descriptors may name another place than that of the inode table.
pub fn doubtful_groups(geometry: &Geometry, problems: &[Problem]) -> BTreeSet<Group> {
    let is_of_all =
        |it: &Problem| matches!(it.code, Code::MetadataOverlap | Code::BackupDescriptors);
    if problems.iter().any(is_of_all) {
        return geometry.all_groups().collect();
    }
    let mut groups = BTreeSet::new();
    for problem in problems {
        match problem.code {
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
pub fn find_table(edit: &mut Edit<'_, '_>, copies: &Copies, group: Group) -> Option<()> {
    let mut desc = edit.desc(group)?;
    let named = desc.inode_table();
    let copy = copies.desc(edit, group);
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
pub fn best_table(
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
pub fn plausibility(edit: &Edit<'_, '_>, group: Group, table: FsBlock) -> i64 {
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
