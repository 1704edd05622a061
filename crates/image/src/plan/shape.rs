//! The numbers of an image that the planner and the writer compute with, taken from its layout once.

use mkfs::Layout;
use ondisk::features::Feature;
use ondisk::inode::{BASE_SIZE, EXTRA_SIZE};
use ondisk::map::MapKind;
use ondisk::{BlockSize, Geometry, Group, Ino};

use super::space::FreeClusters;

/// How many inodes may share one block of attributes: the kernel's own limit.
const XATTR_REFERENCES_MAX: u32 = 1024;
/// How large a lost+found is made, and how many blocks it has at most: mke2fs's numbers.
const LOST_FOUND_BYTES: u64 = 16 << 10;
const LOST_FOUND_BLOCKS_MAX: u64 = 12;
/// The most names a directory's link count can hold; above it stands for "more than fit".
pub(crate) const LINKS_MAX: u32 = 65_000;

/// Sizes and features of an image.
#[derive(Clone, Debug)]
pub(crate) struct ImageFormat {
    /// Bytes a block.
    pub block_size: BlockSize,
    /// The power of two of blocks a cluster.
    pub cluster_bits: u32,
    /// The kind of block map new files get.
    pub map: MapKind,
    /// Bytes an inode.
    pub inode_size: usize,
    /// Bytes of extra fields in an inode.
    pub extra_size: u16,
    /// Inodes a group.
    pub inodes_per_group: u32,
    /// Groups.
    pub groups: u32,
    /// The first inode that neither the layout nor lost+found uses.
    pub first_free_ino: Ino,
    /// The inode of lost+found.
    pub lost_found_ino: Ino,
    /// Whether there is to be a lost+found.
    pub lost_found: bool,
    /// How many inodes may share one block of attributes.
    pub xattr_references_max: u32,
    /// Whether inodes may have extended attributes.
    pub ext_attr: bool,
    /// Whether large values may have inodes of their own.
    pub ea_inode: bool,
    /// Whether metadata has checksums, and their seed.
    pub checksum_seed: Option<u32>,
    /// The seed of checksums and hashes, with or without checksums in metadata.
    pub fs_seed: u32,
    /// Whether files may take more than 2^32 sectors.
    pub huge_file: bool,
    /// Whether directories may have more subdirectories than a link count holds.
    pub dir_nlink: bool,
    /// The layout's own numbers.
    pub geometry: Geometry,
}

impl ImageFormat {
    /// The shape of an image with this layout.
    pub(crate) fn of(layout: &Layout, lost_found: bool) -> ImageFormat {
        let geometry = *layout.geometry();
        let inode_size = geometry.inode_size();
        let map = if geometry.has(Feature::EXTENT) {
            MapKind::Extents
        } else {
            MapKind::Pointers
        };
        ImageFormat {
            block_size: geometry.block_size(),
            cluster_bits: geometry.cluster_ratio_bits(),
            map,
            inode_size,
            extra_size: (inode_size - BASE_SIZE).min(usize::from(EXTRA_SIZE)) as u16,
            inodes_per_group: geometry.inodes_per_group(),
            groups: geometry.groups(),
            first_free_ino: layout.first_free_ino(),
            lost_found_ino: geometry.first_ino(),
            lost_found,
            xattr_references_max: XATTR_REFERENCES_MAX,
            ext_attr: geometry.has(Feature::EXT_ATTR),
            ea_inode: geometry.has(Feature::EA_INODE),
            checksum_seed: geometry.has_metadata_csum().then(|| geometry.csum_seed()),
            fs_seed: geometry.csum_seed(),
            huge_file: geometry.has(Feature::HUGE_FILE),
            dir_nlink: geometry.has(Feature::DIR_NLINK),
            geometry,
        }
    }

    /// Bytes for attributes in an inode, their header included.
    pub(crate) fn attribute_area(&self) -> usize {
        self.inode_size - BASE_SIZE - usize::from(self.extra_size)
    }

    /// Bytes a cluster.
    pub(crate) fn cluster_bytes(&self) -> u64 {
        self.block_size.bytes_u64() << self.cluster_bits
    }

    /// The group that a cluster lies in.
    pub(crate) fn group_of_cluster(&self, cluster: u64) -> Group {
        let block = cluster << self.cluster_bits;
        let from_first = block.saturating_sub(self.geometry.first_data_block().0);
        // Blocks of one image lie in at most 2^32 groups.
        Group((from_first / u64::from(self.geometry.blocks_per_group())) as u32)
    }

    /// Blocks of a lost+found whose names fit one of them: e2fsck need not allocate the others.
    pub(crate) fn lost_found_blocks(&self) -> u32 {
        let blocks = self.block_size.blocks_for(LOST_FOUND_BYTES);
        // At most `LOST_FOUND_BLOCKS_MAX`.
        blocks.clamp(2, LOST_FOUND_BLOCKS_MAX) as u32
    }

    /// The clusters that a layout leaves free.
    pub(crate) fn free_space(&self, layout: &Layout) -> FreeClusters {
        let bits = self.cluster_bits;
        let mut next = self.geometry.first_data_block().0.div_ceil(1 << bits);
        let end = self.geometry.blocks_count() >> bits;
        let mut free = Vec::new();
        for run in layout.used() {
            free.push(next..(run.start.0 >> bits).min(end));
            next = next.max(run.end().0.div_ceil(1 << bits));
        }
        free.push(next..end);
        FreeClusters::new(free.into_iter(), self.cluster_bytes())
    }
}
