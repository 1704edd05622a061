//! What a step of a repair reads and changes: inodes, descriptors and blocks of the image, in the overlay.

use std::cell::Cell;
use std::collections::BTreeSet;

use ondisk::{Feature, FsBlock, Geometry, Group, GroupDesc, Ino, Inode, Superblock, inode};

use crate::repair::overlay::Overlay;
use crate::repair::space::ClaimedClusters;

/// The image under repair.
pub struct Edit<'a, 'd> {
    pub image: &'a mut Overlay<'d>,
    pub space: &'a mut ClaimedClusters,
    pub sb: Superblock,
    pub geometry: Geometry,
    /// Groups with a bitmap whose block was chosen before it was known what is in use.
    pub placed: &'a mut BTreeSet<u32>,
    /// Inodes whose map was damaged in this round or one before.
    pub damaged_maps: &'a BTreeSet<u32>,
    /// The time that is stamped on what is deleted or made.
    pub now: u32,
    /// Something was changed in this round.
    pub is_changed: bool,
    /// A map was mended over its own blocks, in any round; none where that need not be one transaction. A cut may then
    /// lose the map, so only one that has blocks of others is mended so.
    pub has_overwritten: Option<&'a mut bool>,
    /// Entries of maps that may still be read in this round: a bound for maps that share their blocks.
    pub budget: Cell<u64>,
}

impl Edit<'_, '_> {
    pub fn has(&self, feature: Feature) -> bool {
        self.geometry.has(feature)
    }

    pub fn block_bytes(&self) -> usize {
        self.geometry.block_size().bytes()
    }

    pub fn contains(&self, block: u64, count: u64) -> bool {
        self.geometry.contains(FsBlock(block), count)
    }

    pub fn block(&self, block: u64) -> Option<Vec<u8>> {
        self.image.block(block)
    }

    pub fn set_block(&mut self, block: u64, bytes: Vec<u8>) {
        self.is_changed = true;
        self.image.set_block(block, bytes);
    }

    /// The descriptor of a group that exists.
    pub fn desc(&self, group: Group) -> Option<GroupDesc> {
        let (block, at) = self.geometry.desc_place(group);
        let bytes = self.block(block.0)?;
        let raw = bytes.get(at..at + self.geometry.desc_size())?;
        Some(GroupDesc::load(raw))
    }

    /// The descriptors of all groups, as far as they can be read.
    pub fn descs(&self) -> impl Iterator<Item = (Group, GroupDesc)> + '_ {
        let geometry = &self.geometry;
        let (size, per_block) = (geometry.desc_size(), geometry.descs_per_block());
        (0..geometry.desc_blocks()).flat_map(move |index| {
            let bytes = self.block(geometry.desc_block(index).0).unwrap_or_default();
            let groups = (index * per_block..geometry.groups()).map(Group);
            let raws = bytes.chunks_exact(size).map(GroupDesc::load);
            groups.zip(raws).collect::<Vec<_>>()
        })
    }

    /// Writes a group's descriptor, with its checksum.
    pub fn set_desc(&mut self, group: Group, desc: &GroupDesc) -> Option<()> {
        let (block, at) = self.geometry.desc_place(group);
        let mut bytes = self.block(block.0)?;
        let raw = bytes.get_mut(at..at + self.geometry.desc_size())?;
        desc.store(raw, &self.geometry, group);
        self.set_block(block.0, bytes);
        Some(())
    }

    fn inode_place(&self, ino: Ino) -> Option<(u64, usize)> {
        let (group, index) = self.geometry.group_of_ino(ino)?;
        let table = self.desc(group)?.inode_table();
        let (block, at) = self.geometry.inode_place(table, index);
        Some((block.0, at))
    }

    /// An inode's bytes in its table.
    pub fn slot(&self, ino: Ino) -> Option<Vec<u8>> {
        let (block, at) = self.inode_place(ino)?;
        let bytes = self.block(block)?;
        Some(bytes.get(at..at + self.geometry.inode_size())?.to_vec())
    }

    /// An inode in use or not, as far as its slot can be read as one.
    pub fn inode(&self, ino: Ino) -> Option<Inode> {
        let slot = self.slot(ino)?;
        Inode::parse(&slot)
            .or_else(|_| Inode::parse(&slot[..inode::BASE_SIZE]))
            .ok()
    }

    /// Writes an inode's slot, with its checksum.
    pub fn set_slot(&mut self, ino: Ino, mut slot: Vec<u8>) -> Option<()> {
        let (block, at) = self.inode_place(ino)?;
        let mut bytes = self.block(block)?;
        if self.geometry.has_metadata_csum() && slot.iter().any(|byte| *byte != 0) {
            inode::set_checksum(&mut slot, self.geometry.csum_seed(), ino);
        }
        bytes.get_mut(at..at + slot.len())?.copy_from_slice(&slot);
        self.set_block(block, bytes);
        Some(())
    }

    /// Writes the fields of an inode into its slot.
    pub fn set_inode(&mut self, ino: Ino, inode: &Inode) -> Option<()> {
        let mut slot = self.slot(ino)?;
        inode.write_to(&mut slot);
        self.set_slot(ino, slot)
    }

    /// Frees an inode: it has no links, no type and no blocks.
    pub fn clear_inode(&mut self, ino: Ino) -> Option<()> {
        let generation = self.inode(ino)?.generation();
        let mut inode = Inode::zeroed();
        inode.set_generation(generation);
        inode.set_dtime(self.now);
        let mut slot = vec![0; self.geometry.inode_size()];
        inode.write_to(&mut slot);
        self.set_slot(ino, slot)
    }

    /// The checksum seed of what belongs to an inode.
    pub fn seed(&self, ino: Ino, inode: &Inode) -> u32 {
        inode::checksum_seed(self.geometry.csum_seed(), ino, inode.generation())
    }

    /// Writes the superblock, with its checksum.
    pub fn set_superblock(&mut self) -> Option<()> {
        self.sb.seal();
        let size = self.geometry.block_size();
        let block = Superblock::OFFSET >> size.bits();
        let at = (Superblock::OFFSET & (size.bytes_u64() - 1)) as usize;
        // A block that can't be read is made anew: the superblock is known from a copy.
        let mut bytes = self.block(block).unwrap_or_else(|| vec![0; size.bytes()]);
        bytes
            .get_mut(at..at + Superblock::SIZE)?
            .copy_from_slice(self.sb.bytes());
        self.set_block(block, bytes);
        Some(())
    }

    /// A new block of zeros.
    pub fn new_block(&mut self) -> Option<u64> {
        let block = self.space.allocate()?.0;
        self.clear_cluster(block);
        Some(block)
    }

    /// Clears the blocks of a new cluster, the first of which is `block`.
    pub fn clear_cluster(&mut self, block: u64) {
        for i in 0..u64::from(self.geometry.cluster_ratio()) {
            if self.contains(block + i, 1) {
                self.image.set_block(block + i, vec![0; self.block_bytes()]);
            }
        }
    }

    /// Takes from the budget; none once it is used up.
    pub fn spend(&self, entries: u64) -> Option<()> {
        self.budget.set(self.budget.get().checked_sub(entries)?);
        Some(())
    }
}
