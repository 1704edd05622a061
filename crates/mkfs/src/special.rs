//! The files that belong to the layout: their inodes and contents.

use device::BlockDevice;
use ondisk::map::MapKind;
use ondisk::{
    Feature, FileType, Flags, FsBlock, Generation, Ino, Inode, Timestamp, indirect, inode, mmp,
    orphan_file,
};

use crate::layout::FilePlan;
use crate::place::fixed_groups;
use crate::{BlockRun, Error, Layout, file_map};

/// An inode that belongs to the layout, ready to be written to the inode table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecialInode {
    /// Its number: 1, 7, 8, or that of the orphan file.
    pub ino: Ino,
    /// Its whole record, `inode_size` bytes with the checksum set.
    pub bytes: Vec<u8>,
}

/// How much is written at once where much is cleared.
const CLEAR_BYTES: usize = 1 << 20;

impl Layout {
    /// The inodes of the layout itself, ascending, for the caller that writes the inode tables. The root (2) and
    /// lost+found (11) are not among them.
    #[must_use]
    pub fn special_inodes(&self) -> Vec<SpecialInode> {
        let mut list = vec![self.special(Ino::BAD, &self.bad_blocks_inode())];
        if let Some(map) = self.resize {
            list.push(self.special(Ino::RESIZE, &self.resize_inode(map)));
        }
        if let Some(plan) = &self.journal {
            list.push(self.special(Ino::JOURNAL, &self.file_inode(Ino::JOURNAL, plan).0));
        }
        if let Some((ino, plan)) = &self.orphan {
            list.push(self.special(*ino, &self.file_inode(*ino, plan).0));
        }
        list
    }

    /// The first thing to do with a device: clears what was there where the options ask for it (an old superblock,
    /// inode tables, the journal), and writes what lies in the special files: journal superblock, resize inode's
    /// block lists, orphan file, multi-mount block.
    ///
    /// # Errors
    /// When the device fails.
    pub fn write_special_files(&self, device: &dyn BlockDevice) -> Result<(), Error> {
        if !self.habits.device_is_zero {
            self.clear_leftovers(device)?;
        }
        if let Some(plan) = &self.journal {
            self.write_journal(device, plan)?;
        }
        if let Some((ino, plan)) = &self.orphan {
            self.write_map(device, *ino, plan)?;
            self.write_orphan_file(device, *ino, plan)?;
        }
        if let Some(map) = self.resize {
            self.write_resize_lists(device, map)?;
        }
        if let Some(block) = self.mmp {
            let mut structure = mmp::Mmp::clean(self.superblock.mmp_interval(), self.seed());
            structure.set_time(u64::try_from(self.habits.time).unwrap_or(0));
            structure.seal(self.seed());
            let mut bytes = vec![0; self.shape.block_size.bytes()];
            bytes[..mmp::Mmp::SIZE].copy_from_slice(structure.bytes());
            self.write_block(device, block, &bytes)?;
        }
        Ok(())
    }

    /// The seed of checksums, with metadata checksums.
    pub(crate) fn seed(&self) -> Option<u32> {
        let has = self.shape.has(Feature::METADATA_CSUM);
        has.then(|| self.superblock.csum_seed())
    }

    /// The checksum seed of an inode of generation 0, with metadata checksums.
    pub(crate) fn inode_seed(&self, ino: Ino) -> Option<u32> {
        let seed = self.seed()?;
        Some(inode::checksum_seed(seed, ino, Generation(0)))
    }

    /// The record of an inode in the inode table.
    pub(crate) fn special(&self, ino: Ino, fields: &Inode) -> SpecialInode {
        let mut bytes = vec![0; self.geometry.inode_size()];
        fields.write_to(&mut bytes);
        if let Some(seed) = self.seed() {
            inode::set_checksum(&mut bytes, seed, ino);
        }
        SpecialInode { ino, bytes }
    }

    pub(crate) fn write_block(
        &self,
        device: &dyn BlockDevice,
        block: FsBlock,
        bytes: &[u8],
    ) -> Result<(), Error> {
        Ok(device.write_at(block.offset(self.shape.block_size), bytes)?)
    }

    /// An inode with all times set and no blocks.
    pub(crate) fn new_inode(&self, mode: u16, links: u16) -> Inode {
        let mut inode = Inode::zeroed();
        if self.geometry.inode_size() > inode::BASE_SIZE {
            inode.set_extra_size(inode::EXTRA_SIZE);
        }
        inode.set_mode(mode);
        inode.set_links_count(links);
        let now = Timestamp {
            seconds: self.habits.time,
            nanoseconds: 0,
        };
        inode.set_atime(now);
        inode.set_ctime(now);
        inode.set_mtime(now);
        inode.set_crtime(now);
        inode
    }

    /// Makes `runs` the contents of an inode: size, sectors, map. Returns the map's blocks.
    pub(crate) fn fill(
        &self,
        inode: &mut Inode,
        ino: Ino,
        plan: &FilePlan,
    ) -> Vec<file_map::MapBlock> {
        let block_size = self.shape.block_size;
        let kind = self.shape.map_kind();
        if kind == MapKind::Extents {
            inode.set_flags(inode.flags().with(Flags::EXTENTS));
        }
        inode.set_size(plan.blocks() << block_size.bits());
        // With bigalloc every map block, and the last of the contents, takes a whole cluster.
        let bits = self.shape.cluster_bits;
        let clusters = plan.blocks().div_ceil(1 << bits) + plan.map.len() as u64;
        self.set_blocks(inode, clusters << bits);
        let seed = self.inode_seed(ino);
        file_map::write(inode, &plan.runs, &plan.map, block_size, kind, seed)
    }

    fn set_blocks(&self, inode: &mut Inode, blocks: u64) {
        let sectors = blocks << (self.shape.block_size.bits() - 9);
        // A few GiB at most: without huge_file sectors have 32 bits, enough for 2 TiB.
        let fits = inode.set_sectors(
            sectors,
            self.shape.has(Feature::HUGE_FILE),
            self.shape.block_size,
        );
        debug_assert!(fits);
    }

    fn bad_blocks_inode(&self) -> Inode {
        let mut inode = self.new_inode(0, 0);
        inode.set_extra_size(0);
        inode
    }

    fn file_inode(&self, ino: Ino, plan: &FilePlan) -> (Inode, Vec<file_map::MapBlock>) {
        let mut inode = self.new_inode(FileType::Regular.mode_bits() | 0o600, 1);
        let map = self.fill(&mut inode, ino, plan);
        (inode, map)
    }

    /// The journal inode's map, for the superblock.
    pub(crate) fn journal_inode(&self) -> Option<Inode> {
        let plan = self.journal.as_ref()?;
        Some(self.file_inode(Ino::JOURNAL, plan).0)
    }

    fn resize_inode(&self, map: FsBlock) -> Inode {
        let mut inode = self.new_inode(FileType::Regular.mode_bits() | 0o600, 1);
        let pointers = self.shape.block_size.bytes_u64() / 4;
        let blocks = u64::from(indirect::DIRECT) + pointers + pointers * pointers;
        inode.set_size(blocks << self.shape.block_size.bits());
        let backups = self.geometry.all_groups().skip(1);
        let copies = 1 + backups
            .filter(|group| self.geometry.has_super(*group))
            .count() as u64;
        let owned = 1 + self.shape.reserved_gdt * copies;
        self.set_blocks(&mut inode, owned << self.shape.cluster_bits);
        // The resize inode exists only where block numbers have 32 bits.
        #[allow(clippy::cast_possible_truncation)]
        inode.set_block_word(indirect::DIRECT as usize + 1, map.0 as u32);
        inode
    }

    fn write_resize_lists(&self, device: &dyn BlockDevice, map: FsBlock) -> Result<(), Error> {
        let block = self.shape.block_size.bytes();
        let pointers = self.shape.block_size.bytes_u64() / 4;
        let reserved = self.geometry.group_start(ondisk::Group(0)).reserved;
        let backups = self.backup_groups();
        let backups: Vec<u64> = backups
            .map(|group| u64::from(group.0) * self.shape.blocks_per_group)
            .collect();
        let mut top = vec![0; block];
        // Two primary copies never share a word: there are at most as many as pointers.
        let mut lists = vec![0; block * (reserved.end - reserved.start) as usize];
        let descriptors = self.shape.desc_blocks();
        for ((number, list), index) in reserved
            .clone()
            .zip(lists.chunks_exact_mut(block))
            .zip(descriptors..)
        {
            // Block numbers have 32 bits where there is a resize inode.
            #[allow(clippy::cast_possible_truncation)]
            {
                indirect::set_pointer(&mut top, (index % pointers) as u32, number as u32);
                for (slot, backup) in (0..).zip(&backups) {
                    indirect::set_pointer(list, slot, (number + backup) as u32);
                }
            }
        }
        self.write_block(device, map, &top)?;
        if !lists.is_empty() {
            self.write_block(device, FsBlock(reserved.start), &lists)?;
        }
        Ok(())
    }

    fn write_map(&self, device: &dyn BlockDevice, ino: Ino, plan: &FilePlan) -> Result<(), Error> {
        for block in self.file_inode(ino, plan).1 {
            self.write_block(device, block.place, &block.bytes)?;
        }
        Ok(())
    }

    fn write_journal(&self, device: &dyn BlockDevice, plan: &FilePlan) -> Result<(), Error> {
        self.write_map(device, Ino::JOURNAL, plan)?;
        if !self.habits.device_is_zero && !self.habits.lazy_journal {
            for run in &plan.runs {
                self.clear(device, *run)?;
            }
        }
        let block_size = self.shape.block_size;
        let sb = self
            .journal_size
            .superblock(block_size, 1, self.superblock.uuid());
        let mut bytes = vec![0; block_size.bytes()];
        bytes[..sb.bytes().len()].copy_from_slice(sb.bytes());
        match plan.runs.first() {
            Some(run) => self.write_block(device, run.start, &bytes),
            None => Ok(()),
        }
    }

    fn write_orphan_file(
        &self,
        device: &dyn BlockDevice,
        ino: Ino,
        plan: &FilePlan,
    ) -> Result<(), Error> {
        let seed = self.inode_seed(ino);
        for run in &plan.runs {
            let places = (run.start.0..run.end().0).map(FsBlock);
            let blocks =
                places.map(|place| orphan_file::empty_block(self.shape.block_size, place, seed));
            let bytes: Vec<u8> = blocks.flatten().collect();
            self.write_block(device, run.start, &bytes)?;
        }
        Ok(())
    }

    /// Clears what an earlier use of the device may have left where it would be taken for ours.
    fn clear_leftovers(&self, device: &dyn BlockDevice) -> Result<(), Error> {
        // The boot block and the primary superblock, so that a crash leaves no mixture that mounts.
        device.write_at(0, &[0; 2048])?;
        device.flush()?;
        if self.tables_are_cleared() {
            let blocks = self.shape.table_blocks;
            for place in &self.places {
                let start = place.inode_table;
                self.clear(device, BlockRun { start, len: blocks })?;
            }
        }
        for group in fixed_groups(&self.shape) {
            // Growing takes these as they are.
            let reserved = self.geometry.group_start(group).reserved;
            let len = reserved.end - reserved.start;
            let start = FsBlock(reserved.start);
            self.clear(device, BlockRun { start, len })?;
        }
        Ok(())
    }

    /// Whether all of the inode tables, used or not, are cleared by us on a device that isn't zero.
    fn tables_are_cleared(&self) -> bool {
        !self.habits.lazy_tables || !self.has_group_checksums()
    }

    /// Whether inode tables are zero wherever no inode is.
    pub(crate) fn tables_are_zero(&self) -> bool {
        self.habits.device_is_zero || self.tables_are_cleared()
    }

    /// Whether groups may be uninitialised.
    pub(crate) fn has_group_checksums(&self) -> bool {
        self.shape.has(Feature::METADATA_CSUM) || self.shape.has(Feature::UNINIT_BG)
    }

    fn clear(&self, device: &dyn BlockDevice, run: BlockRun) -> Result<(), Error> {
        let mut at = run.start.offset(self.shape.block_size);
        let end = run.end().offset(self.shape.block_size);
        let zeros = vec![0; CLEAR_BYTES];
        while at < end {
            // At most CLEAR_BYTES.
            let len = (end - at).min(CLEAR_BYTES as u64) as usize;
            device.write_at(at, &zeros[..len])?;
            at += len as u64;
        }
        Ok(())
    }
}
