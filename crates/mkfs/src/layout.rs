//! Where everything goes: the plan of an image, made without any I/O.
//!
//! [`Layout::used`] covers what belongs to the layout itself: superblocks and their backups, group descriptors and
//! those reserved for growth, bitmaps, inode tables, and the contents of journal, resize inode, orphan file and
//! multi-mount protection. The root directory and lost+found are not in it: whoever fills the image places them.

use device::BlockDevice;
use ondisk::{BlockSize, FsBlock, Group, Ino};

use crate::{Error, Options, Summary, Usage};

/// Consecutive blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first one.
    pub start: FsBlock,
    /// How many.
    pub len: u64,
}

impl Run {
    /// The block after the last one.
    #[must_use]
    pub fn end(self) -> FsBlock {
        FsBlock(self.start.0 + self.len)
    }
}

/// Where a group's own metadata lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupPlace {
    /// The block bitmap.
    pub block_bitmap: FsBlock,
    /// The inode bitmap.
    pub inode_bitmap: FsBlock,
    /// The first block of the inode table.
    pub inode_table: FsBlock,
}

/// An inode that belongs to the layout, ready to be written to the inode table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecialInode {
    /// Its number: 1, 7, 8, or that of the orphan file.
    pub ino: Ino,
    /// Its whole record, `inode_size` bytes with the checksum set.
    pub bytes: Vec<u8>,
}

/// The plan of an image.
#[derive(Clone, Debug)]
pub struct Layout {
    size_bytes: u64,
    block_size: BlockSize,
    places: Vec<GroupPlace>,
    used: Vec<Run>,
    first_free_ino: Ino,
}

impl Layout {
    /// Plans an image of `size_bytes` (rounded down to blocks), metadata placed as mke2fs does.
    ///
    /// # Errors
    /// Options that don't exist, contradict each other or can't be made, by name; a size too small for them.
    pub fn plan(size_bytes: u64, options: &Options) -> Result<Layout, Error> {
        Layout::plan_around(size_bytes, options, &[])
    }

    /// As [`Layout::plan`], with blocks that are taken already (ascending, outside [`FixedRegions`]): bitmaps, inode
    /// tables, journal and the other special files go into the gaps and behind.
    ///
    /// # Errors
    /// As `plan`; also when what is left is too small or too scattered.
    pub fn plan_around(
        size_bytes: u64,
        _options: &Options,
        _taken: &[Run],
    ) -> Result<Layout, Error> {
        Err(Error::TooSmall {
            what: "nothing can be planned yet".into(),
            size: size_bytes,
            instead: "wait",
        })
    }

    /// Bytes of the image: whole blocks.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes a block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Where a group's bitmaps and inode table lie. Panics when there is no such group.
    #[must_use]
    pub fn place(&self, group: Group) -> GroupPlace {
        self.places[group.0 as usize]
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> u32 {
        // A layout has at most 2^32 - 1 groups.
        self.places.len() as u32
    }

    /// Every block the layout itself uses: ascending, not overlapping, not touching.
    #[must_use]
    pub fn used(&self) -> &[Run] {
        &self.used
    }

    /// The first inode number that is neither reserved nor special: 13 with lost+found (11) and an orphan file (12).
    #[must_use]
    pub fn first_free_ino(&self) -> Ino {
        self.first_free_ino
    }

    /// The inodes of the layout itself, ascending, for whoever writes the inode tables. The root (2) and lost+found
    /// (11) are not among them.
    #[must_use]
    pub fn special_inodes(&self) -> Vec<SpecialInode> {
        Vec::new()
    }

    /// Writes what lies in the special files: journal superblock (and zeros where wanted), resize inode's block
    /// lists, orphan file, multi-mount block.
    ///
    /// # Errors
    /// When the device fails.
    pub fn write_special_files(&self, _device: &dyn BlockDevice) -> Result<(), Error> {
        Ok(())
    }

    /// Writes bitmaps, group descriptors and superblocks with their backups, the primary superblock last, and
    /// flushes before and after that. Inode tables and data are the caller's, written before.
    ///
    /// # Errors
    /// When the device fails, or `usage` overlaps the layout.
    pub fn finish(&self, _device: &dyn BlockDevice, _usage: &Usage) -> Result<Summary, Error> {
        Err(Error::Usage("nothing can be finished yet".into()))
    }
}

/// The blocks that no size of the image leaves free: superblocks and group descriptors at their groups' starts.
///
/// For writing data before the size is known: blocks outside these regions stay free of fixed metadata, provided
/// that [`Layout::plan_around`] gets the same options (with `descriptor_region` and `block_size` set).
#[derive(Clone, Debug)]
pub struct FixedRegions {
    blocks_per_group: u64,
    first_data_block: u64,
    region: u64,
}

impl FixedRegions {
    /// The fixed regions under these options.
    ///
    /// # Errors
    /// When `descriptor_region` or `block_size` is not set, or the features move descriptors with the size (`meta_bg`,
    /// `sparse_super2`).
    pub fn new(options: &Options) -> Result<FixedRegions, Error> {
        let (Some(region), Some(block_size)) = (options.descriptor_region, options.block_size)
        else {
            return Err(Error::option(
                "descriptor region",
                "must be set, as must the block size",
            ));
        };
        Ok(FixedRegions {
            blocks_per_group: (8 * block_size.bytes_u64()).min(65528),
            first_data_block: u64::from(block_size == BlockSize::K1),
            region: u64::from(region) + 1,
        })
    }

    /// The next blocks from `from` on that are clear of fixed regions, up to the next region.
    #[must_use]
    pub fn next_clear(&self, from: FsBlock) -> Run {
        let block = from.0.max(self.first_data_block) - self.first_data_block;
        let mut group = block / self.blocks_per_group;
        let mut start = block;
        if has_super(group) {
            start = start.max(group * self.blocks_per_group + self.region);
        }
        group += 1;
        while !has_super(group) {
            group += 1;
        }
        let end = group * self.blocks_per_group;
        Run {
            start: FsBlock(start + self.first_data_block),
            len: end - start,
        }
    }
}

/// Whether this group holds a superblock under sparse_super: 0, 1 and the powers of 3, 5 and 7.
fn has_super(group: u64) -> bool {
    let power_of = |base: u64| {
        let mut power = base;
        while power < group {
            power *= base;
        }
        power == group
    };
    group <= 1 || power_of(3) || power_of(5) || power_of(7)
}
