//! The copies of the group descriptors, and which places a descriptor may name.

use ondisk::{Feature, FsBlock, Geometry, Group, GroupDesc};

use crate::repair::edit::Edit;

/// The most copies that are read.
const COPIES: usize = 4;

/// The copies of the descriptors that belong to backups of the superblock.
pub struct DescriptorCopies {
    /// Blocks of the backups.
    superblocks: Vec<FsBlock>,
}

impl DescriptorCopies {
    /// The first copies, at most `COPIES` of them.
    pub fn of(geometry: &Geometry) -> DescriptorCopies {
        let groups = geometry.all_groups().skip(1);
        let holders = groups.filter(|group| geometry.has_super(*group));
        let superblocks = holders.map(|group| geometry.group_first_block(group));
        DescriptorCopies {
            superblocks: superblocks.take(COPIES).collect(),
        }
    }

    /// A group's descriptor in the first copy in which its checksum is right.
    pub fn desc(&self, edit: &Edit<'_, '_>, group: Group) -> Option<GroupDesc> {
        let geometry = &edit.geometry;
        let index = group.0 / geometry.descs_per_block();
        let at = (group.0 % geometry.descs_per_block()) as usize * geometry.desc_size();
        self.superblocks.iter().find_map(|superblock| {
            let block = geometry.desc_block_of_copy(*superblock, index).0;
            let bytes = edit.contains(block, 1).then(|| edit.block(block))??;
            let raw = bytes.get(at..at + geometry.desc_size())?;
            let desc = GroupDesc::verify(raw, geometry, group).ok()?;
            let least = superblock.0.min(geometry.first_data_block().0);
            (desc.inode_table().0 > least).then_some(desc)
        })
    }
}

/// Whether these blocks may hold a bitmap or the table of this group.
pub fn fits(geometry: &Geometry, group: Group, first: FsBlock, blocks: u32) -> bool {
    if geometry.has(Feature::FLEX_BG) {
        return first.0 != 0 && geometry.contains(first, blocks.into());
    }
    let start = geometry.group_first_block(group).0;
    let end = start + u64::from(geometry.group_blocks(group));
    first.0 >= start && first.0.saturating_add(blocks.into()) <= end
}
