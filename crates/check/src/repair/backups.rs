//! The copies of superblock and descriptors under repair: a copy from which a repair could not start is written anew.

use ondisk::{FsBlock, Geometry, Group, GroupDesc, Superblock};

use crate::backups::{group_number, superblock_fault};
use crate::limits;
use crate::repair::edit::Edit;

/// The groups with a copy, and where it begins.
fn copies(geometry: &Geometry) -> impl Iterator<Item = (Group, FsBlock)> + '_ {
    let groups = geometry.all_groups().filter(|group| group.0 != 0);
    let copies = groups.filter_map(|group| Some((group, geometry.group_start(group).superblock?)));
    copies.take(limits::BACKUPS)
}

/// The blocks of all copies.
pub fn blocks(geometry: &Geometry) -> Vec<u64> {
    let mut blocks = Vec::new();
    for (_, superblock) in copies(geometry) {
        blocks.push(superblock.0);
        blocks.extend(descriptors(geometry, superblock).map(|(copy, _)| copy.0));
    }
    blocks
}

/// The blocks of descriptors that belong to the copy of the superblock, with the blocks that they are copies of.
fn descriptors(
    geometry: &Geometry,
    superblock: FsBlock,
) -> impl Iterator<Item = (FsBlock, FsBlock)> + '_ {
    let pairs = (0..geometry.desc_blocks()).map(move |index| {
        let copy = geometry.desc_block_of_copy(superblock, index);
        (copy, geometry.desc_block(index))
    });
    pairs.filter(move |(copy, first)| copy != first && holds_descriptors(geometry, *copy))
}

/// Whether descriptors lie in this block by the file system's numbers: nothing else is ever overwritten.
fn holds_descriptors(geometry: &Geometry, block: FsBlock) -> bool {
    let group = geometry.group_of_block(block);
    group.is_some_and(|group| geometry.group_start(group).descriptors.contains(&block.0))
}

/// Writes the copies anew that differ from superblock and descriptors in what says where things are.
pub fn run(edit: &mut Edit<'_, '_>) {
    let geometry = edit.geometry;
    for (group, superblock) in copies(&geometry) {
        let is_right = is_superblock_right(edit, group, superblock);
        let wrong: Vec<(FsBlock, FsBlock)> = descriptors(&geometry, superblock)
            .filter(|(copy, first)| !are_places_equal(edit, copy.0, first.0))
            .collect();
        if !is_right {
            write_superblock(edit, group, superblock);
        }
        for (copy, first) in wrong {
            if let Some(bytes) = edit.block(first.0) {
                edit.set_block(copy.0, bytes);
            }
        }
    }
}

fn is_superblock_right(edit: &Edit<'_, '_>, group: Group, block: FsBlock) -> bool {
    let bytes = edit.block(block.0);
    let copy = bytes.as_ref().and_then(|bytes| bytes.first_chunk());
    copy.is_some_and(|copy| superblock_fault(Superblock::view(copy), &edit.sb, group).is_none())
}

fn are_places_equal(edit: &Edit<'_, '_>, copy: u64, first: u64) -> bool {
    let (Some(copy), Some(first)) = (edit.block(copy), edit.block(first)) else {
        return false;
    };
    let size = edit.geometry.desc_size();
    let mut pairs = copy.chunks_exact(size).zip(first.chunks_exact(size));
    pairs.all(|(copy, first)| {
        let (copy, first) = (GroupDesc::load(copy), GroupDesc::load(first));
        copy.block_bitmap() == first.block_bitmap()
            && copy.inode_bitmap() == first.inode_bitmap()
            && copy.inode_table() == first.inode_table()
    })
}

fn write_superblock(edit: &mut Edit<'_, '_>, group: Group, block: FsBlock) {
    let mut sb = edit.sb;
    sb.set_block_group_number(group_number(group));
    sb.seal();
    let mut bytes = vec![0; edit.block_bytes()];
    bytes[..Superblock::SIZE].copy_from_slice(sb.bytes());
    edit.set_block(block.0, bytes);
}
