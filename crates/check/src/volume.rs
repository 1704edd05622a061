//! The file system under check: its device, its numbers, and what all passes share.

use device::BlockDevice;
use ondisk::{Feature, FsBlock, Geometry, Group, GroupDesc, Ino, Superblock};
use sync::Guarded;

use crate::claims::Claims;
use crate::metadata::MetadataRuns;
use crate::problem::Code;
use crate::report::{Findings, Problem};
use crate::shared::Shared;
use crate::table::InodeTable;
use crate::work::Crew;

/// A group's descriptor, and whether its checksum is right (true without checksums).
#[derive(Clone, Copy)]
pub struct GroupFacts {
    pub desc: GroupDesc,
    pub is_sealed: bool,
}

/// What could not be read, so that sums over it say nothing.
#[derive(Default)]
pub struct Unread {
    /// [read by later passes]
    maps: Guarded<bool>,
    /// [read by later passes]
    names: Guarded<bool>,
}

impl Unread {
    /// Part of the inodes or of a map: there may be blocks in use that are not known.
    pub fn add_map(&self) {
        self.maps.set(true);
    }

    /// Part of a directory: there may be names that are not known.
    pub fn add_names(&self) {
        self.names.set(true);
    }

    pub fn maps(&self) -> bool {
        self.maps.get()
    }

    pub fn names(&self) -> bool {
        self.names.get()
    }
}

/// What all passes share.
pub struct Volume<'a> {
    pub device: &'a dyn BlockDevice,
    pub sb: Superblock,
    pub geometry: Geometry,
    pub groups: Vec<GroupFacts>,
    pub metadata: MetadataRuns,
    pub claims: Claims,
    pub inodes: InodeTable,
    pub shared: Shared,
    pub findings: &'a Findings,
    pub crew: Crew<'a>,
    /// Inodes that wait to be removed. Sorted.
    pub orphans: Vec<u32>,
    pub unread: Unread,
}

impl Volume<'_> {
    pub fn has(&self, feature: Feature) -> bool {
        self.geometry.has(feature)
    }

    pub fn found(&self, problem: Problem) {
        self.findings.add(problem);
    }

    /// Reports a problem of an inode without further particulars.
    pub fn inode_has(&self, ino: Ino, code: Code) {
        self.found(Problem::new(code).ino(ino));
    }

    /// Whether this block may be pointed to.
    pub fn contains(&self, block: u64, count: u64) -> bool {
        self.geometry.contains(FsBlock(block), count)
    }

    /// Reads blocks from `first` on; false when the device fails.
    pub fn read(&self, first: u64, bytes: &mut [u8]) -> bool {
        let offset = FsBlock(first).offset(self.geometry.block_size());
        self.device.read_at(offset, bytes).is_ok()
    }

    /// Reads one block.
    pub fn block(&self, block: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.geometry.block_size().bytes()];
        self.read(block, &mut bytes).then_some(bytes)
    }

    /// The descriptor of a group that exists.
    pub fn desc(&self, group: Group) -> &GroupFacts {
        &self.groups[group.0 as usize]
    }

    /// Whether descriptors have checksums, so that the uninit flags count.
    pub fn has_desc_checksums(&self) -> bool {
        self.has(Feature::UNINIT_BG) || self.has(Feature::METADATA_CSUM)
    }

    /// How many inodes of the group's table are read.
    pub fn inodes_in_use(&self, group: Group) -> u32 {
        let facts = self.desc(group);
        let all = self.geometry.inodes_per_group();
        if !self.has_desc_checksums() || !facts.is_sealed {
            return all;
        }
        if facts.desc.has(ondisk::group_desc::flags::INODE_UNINIT) {
            return 0;
        }
        all.saturating_sub(facts.desc.itable_unused())
    }

    /// Whether the descriptor's words say that the inode is in the unused part of its table, whether they count or not.
    pub fn is_unused_by_descriptor(&self, ino: Ino) -> bool {
        let Some((group, _)) = self.geometry.group_of_ino(ino) else {
            return false;
        };
        let desc = &self.desc(group).desc;
        // e2fsck's arithmetic: a count that is larger than the group can wrap around to a number beyond all inodes.
        let end = (group.0 + 1).wrapping_mul(self.geometry.inodes_per_group());
        let first_unused = end.wrapping_sub(desc.itable_unused()).wrapping_add(1);
        desc.has(ondisk::group_desc::flags::INODE_UNINIT) || ino.0 >= first_unused
    }

    /// An inode's bytes in its table.
    pub fn slot(&self, ino: Ino) -> Option<Vec<u8>> {
        let (group, index) = self.geometry.group_of_ino(ino)?;
        let (block, byte) = self
            .geometry
            .inode_place(self.desc(group).desc.inode_table(), index);
        let mut bytes = vec![0; self.geometry.inode_size()];
        let offset = block.offset(self.geometry.block_size()) + byte as u64;
        self.device.read_at(offset, &mut bytes).ok()?;
        Some(bytes)
    }

    /// The checksum seed of what belongs to an inode.
    pub fn seed(&self, ino: Ino, inode: &ondisk::Inode) -> u32 {
        ondisk::inode::checksum_seed(self.geometry.csum_seed(), ino, inode.generation())
    }
}
