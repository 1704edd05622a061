//! The copies of the superblock and of the descriptors: whether a repair could start from them.
//!
//! Counts, times and flags in a copy are as old as the last change of the file system's shape, so only what says where
//! things are is compared. e2fsck does not look at copies; what is found here is a note.

use ondisk::{Feature, FsBlock, Group, GroupDesc, Superblock};

use crate::limits;
use crate::problem::Code;
use crate::report::Problem;
use crate::volume::Volume;

/// Checks the copies.
pub fn check(volume: &Volume<'_>) {
    let geometry = &volume.geometry;
    let copies = geometry.all_groups().filter(|group| group.0 != 0);
    let copies = copies.filter_map(|group| Some((group, geometry.group_start(group).superblock?)));
    let copies: Vec<(Group, FsBlock)> = copies.take(limits::BACKUPS).collect();
    volume.crew.share_out(copies.len(), |unit| {
        let (group, block) = copies[unit];
        match superblock(volume, group, block) {
            Ok(()) => descriptors(volume, block),
            Err(why) => {
                let problem = Problem::new(Code::BackupSuperblock).block(block.0);
                volume.found(problem.name(why));
            }
        }
    });
}

fn superblock(volume: &Volume<'_>, group: Group, block: FsBlock) -> Result<(), String> {
    let mut bytes = [0; Superblock::SIZE];
    let offset = block.offset(volume.geometry.block_size());
    let read = volume.device.read_at(offset, &mut bytes);
    read.map_err(|_| "it can't be read".to_owned())?;
    match superblock_fault(Superblock::view(&bytes), &volume.sb, group) {
        Some(fault) => Err(fault),
        None => Ok(()),
    }
}

/// Why the copy of the superblock in this group can't serve; none where it can.
pub fn superblock_fault(copy: &Superblock, first: &Superblock, group: Group) -> Option<String> {
    if let Err(corrupt) = copy.verify() {
        return Some(corrupt.to_string());
    }
    let fields = [
        (
            "number of blocks",
            copy.blocks_count(),
            first.blocks_count(),
        ),
        (
            "number of inodes",
            copy.inodes_count().into(),
            first.inodes_count().into(),
        ),
        (
            "block size",
            copy.log_block_size().into(),
            first.log_block_size().into(),
        ),
        (
            "size of groups",
            copy.blocks_per_group().into(),
            first.blocks_per_group().into(),
        ),
        (
            "number of inodes in a group",
            copy.inodes_per_group().into(),
            first.inodes_per_group().into(),
        ),
    ];
    if let Some((name, _, _)) = fields.iter().find(|(_, copy, first)| copy != first) {
        return Some(format!("its {name} is not the first superblock's"));
    }
    if copy.uuid() != first.uuid() {
        return Some("its UUID is not the first superblock's".to_owned());
    }
    // Features that decide where things are.
    let layout = [
        Feature::META_BG,
        Feature::BIT64,
        Feature::FLEX_BG,
        Feature::SPARSE_SUPER,
        Feature::SPARSE_SUPER2,
        Feature::BIGALLOC,
        Feature::METADATA_CSUM,
    ];
    let differs = |it: &Feature| copy.features().has(*it) != first.features().has(*it);
    if layout.iter().any(differs) {
        return Some("its features are not the first superblock's".to_owned());
    }
    match copy.block_group_number() {
        number if may_name(number, group) => None,
        number => Some(format!("it says that it lies in group {number}")),
    }
}

/// Whether a copy in this group may store this number. The field has 16 bits: beyond group 65,535 mke2fs stores 65,535,
/// and Linux the low bits.
fn may_name(number: u16, group: Group) -> bool {
    number == group_number(group) || u32::from(number) == group.0 & 0xFFFF
}

/// The number of the group as mke2fs stores it in a copy of the superblock.
pub fn group_number(group: Group) -> u16 {
    u16::try_from(group.0).unwrap_or(u16::MAX)
}

/// Compares the places in the descriptors that belong to the copy of the superblock at this block.
fn descriptors(volume: &Volume<'_>, copy: FsBlock) {
    let geometry = &volume.geometry;
    let mut groups = geometry.all_groups();
    for index in 0..geometry.desc_blocks() {
        let block = geometry.desc_block_of_copy(copy, index);
        if block == geometry.desc_block(index) {
            // A meta group's first copy is the one that was read already.
            groups
                .by_ref()
                .take(geometry.descs_per_block() as usize)
                .for_each(drop);
            continue;
        }
        let bytes = volume.block(block.0).unwrap_or_default();
        for at in 0..geometry.descs_per_block() as usize {
            let Some(group) = groups.next() else { return };
            let size = geometry.desc_size();
            let raw = bytes.get(at * size..(at + 1) * size);
            let first = &volume.desc(group).desc;
            let is_same = raw.map(GroupDesc::load).is_some_and(|copy| {
                copy.block_bitmap() == first.block_bitmap()
                    && copy.inode_bitmap() == first.inode_bitmap()
                    && copy.inode_table() == first.inode_table()
            });
            if !is_same {
                let problem = Problem::new(Code::BackupDescriptors).group(group.0);
                return volume.found(problem.block(copy.0));
            }
        }
    }
}
