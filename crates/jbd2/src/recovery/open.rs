//! Finds the journal: the device of an external one, or the blocks of the journal's inode, with the copy of the inode's
//! block map in the superblock as the fallback when the inode is damaged.
//!
//! The home copies of the group descriptor and the inode may be older than the journal's; the journal's own inode never
//! changes while it is in use, and its place in the inode table never does.

use std::collections::HashSet;

use device::BlockDevice;
use ondisk::extent;
use ondisk::inode::{checksum_seed, verify_checksum};
use ondisk::jbd2::{JournalSuperblock, LogFormat};
use ondisk::map::{MapKind, MapReader, MapStep, Run};
use ondisk::{
    Corrupt, Feature, FileType, Flags, FsBlock, Geometry, GroupDesc, Ino, Inode, Site, Superblock,
};
use sync::Arc;

use crate::recovery::error::{Error, UnsupportedLog};
use crate::recovery::limits::{JOURNAL_BLOCKS_MAX, NODES_MAX};
use crate::recovery::map::{JournalMap, JournalRuns};

/// A journal that was found and whose superblock is right.
pub(crate) struct SoundJournal {
    pub(crate) map: JournalMap,
    pub(crate) sb: JournalSuperblock,
    pub(crate) format: LogFormat,
    pub(crate) is_external: bool,
    pub(crate) used_backup_map: bool,
}

/// Finds the journal of a file system that has one.
pub(crate) fn open(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
) -> Result<SoundJournal, Error> {
    let Some(ino) = sb.journal_ino() else {
        return open_external(sb, geometry, external);
    };
    let from_inode = find_inode(device, geometry, ino).and_then(|(inode, seed)| {
        let map = map_inode(device, geometry, &inode, seed)?;
        verified(map, false)
    });
    match from_inode {
        Ok(opened) => Ok(opened),
        Err(error) => match backup_inode(sb) {
            Some(inode) => map_inode(device, geometry, &inode, None)
                .and_then(|map| verified(map, false))
                .map(|opened| SoundJournal {
                    used_backup_map: true,
                    ..opened
                })
                .map_err(|_| error),
            None => Err(error),
        },
    }
}

/// Reads and checks the journal's superblock.
fn verified(map: JournalMap, is_external: bool) -> Result<SoundJournal, Error> {
    let mut bytes = [0; JournalSuperblock::SIZE];
    map.read_part(map.superblock_at(), 0, &mut bytes)?;
    let sb = JournalSuperblock::from_bytes(bytes);
    if let Some((incompat, ro_compat)) = sb.features().unknown() {
        return Err(UnsupportedLog::Features {
            incompat,
            ro_compat,
        }
        .into());
    }
    let format = sb.verify(map.block_size(), map.blocks().into())?;
    Ok(SoundJournal {
        map,
        sb,
        format,
        is_external,
        used_backup_map: false,
    })
}

/// An external journal: an ext4 superblock with the journal's UUID, then the journal's own superblock, then its log.
/// Blocks of the journal are blocks of the device.
fn open_external(
    sb: &Superblock,
    geometry: &Geometry,
    external: Option<Arc<dyn BlockDevice>>,
) -> Result<SoundJournal, Error> {
    let expected = sb.journal_uuid();
    let device = external.ok_or(Error::ExternalJournalMissing(expected))?;
    let wrong = |found| Error::ExternalJournalWrong { expected, found };
    let mut bytes = [0; Superblock::SIZE];
    if device.size() < Superblock::OFFSET + Superblock::SIZE as u64 {
        return Err(wrong(None));
    }
    device.read_at(Superblock::OFFSET, &mut bytes)?;
    let header = Superblock::view(&bytes);
    if header.verify().is_err() || !header.features().has(Feature::JOURNAL_DEV) {
        return Err(wrong(None));
    }
    if header.uuid() != expected {
        return Err(wrong(Some(header.uuid())));
    }
    let block_size = geometry.block_size();
    if header.log_block_size() != block_size.log() {
        return Err(Corrupt::at(Site::JournalDeviceBlockSize).into());
    }
    let blocks = header
        .blocks_count()
        .min(device.size() >> block_size.bits())
        .min(JOURNAL_BLOCKS_MAX.into());
    // Not above JOURNAL_BLOCKS_MAX, which has 32 bits.
    let blocks = u32::try_from(blocks).unwrap_or(JOURNAL_BLOCKS_MAX);
    // The block after the one that holds the ext4 superblock.
    let superblock_at = if block_size.bytes() == 1024 { 2 } else { 1 };
    let map = JournalMap::external(device, block_size, blocks, superblock_at);
    let opened = verified(map, true)?;
    match opened.sb.users_count() {
        0 | 1 => Ok(opened),
        users => Err(UnsupportedLog::SharedJournal(users).into()),
    }
}

/// Reads the journal's inode, and the seed of its extent blocks' checksums if the file system has checksums.
fn find_inode(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    ino: Ino,
) -> Result<(Inode, Option<u32>), Error> {
    let wrong = || Corrupt::at(Site::JournalInode).ino(ino);
    let (group, index) = geometry.group_of_ino(ino).ok_or_else(wrong)?;
    let (desc_block, desc_at) = geometry.desc_place(group);
    let mut raw = vec![0; geometry.desc_size()];
    let offset = desc_block.offset(geometry.block_size()) + desc_at as u64;
    device.read_at(offset, &mut raw)?;
    // Without its checksum: a checkpoint may have been cut short, and the journal's copy is not at hand yet.
    let table = GroupDesc::load(&raw).inode_table();
    if !geometry.contains(table, geometry.inode_table_blocks().into()) {
        return Err(wrong().into());
    }
    let (block, at) = geometry.inode_place(table, index);
    let mut slot = vec![0; geometry.inode_size()];
    device.read_at(block.offset(geometry.block_size()) + at as u64, &mut slot)?;
    let inode = Inode::parse(&slot)?;
    let mut seed = None;
    if geometry.has_metadata_csum() {
        verify_checksum(&slot, geometry.csum_seed(), ino)?;
        seed = Some(checksum_seed(geometry.csum_seed(), ino, inode.generation()));
    }
    let is_file = inode.file_type() == Some(FileType::Regular);
    if !is_file || inode.links_count() == 0 || inode.flags().contains(Flags::INLINE_DATA) {
        return Err(wrong().into());
    }
    Ok((inode, seed))
}

/// The journal's inode as far as its copy in the superblock has it.
fn backup_inode(sb: &Superblock) -> Option<Inode> {
    if sb.journal_backup_type() != 1 {
        return None;
    }
    let words = sb.journal_backup();
    let mut inode = Inode::zeroed();
    for (index, word) in words.iter().take(15).enumerate() {
        inode.set_block_word(index, *word);
    }
    inode.set_mode(FileType::Regular.mode_bits());
    inode.set_size((u64::from(words[15]) << 32) | u64::from(words[16]));
    // The flags were not copied; a root of an extent tree shows itself.
    if inode.block_area().starts_with(&extent::MAGIC.to_le_bytes()) {
        inode.set_flags(Flags::EXTENTS);
    }
    Some(inode)
}

/// Maps the blocks of the journal's inode.
fn map_inode(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    inode: &Inode,
    seed: Option<u32>,
) -> Result<JournalMap, Error> {
    let block_size = geometry.block_size();
    let blocks = inode.size_both_words() >> block_size.bits();
    if blocks > geometry.blocks_count() {
        return Err(Corrupt::at(Site::JournalInodeSize).into());
    }
    let blocks = u32::try_from(blocks)
        .ok()
        .filter(|blocks| *blocks <= JOURNAL_BLOCKS_MAX)
        .ok_or(UnsupportedLog::TooLarge("more than 16 Mi blocks"))?;
    let mut mapper = Mapper {
        device,
        geometry,
        blocks: blocks.into(),
        runs: JournalRuns::default(),
        nodes: HashSet::new(),
    };
    if inode.flags().contains(Flags::EXTENTS) {
        mapper.map_extents(inode, seed)?
    } else {
        mapper.map_pointers(inode)?
    }
    JournalMap::internal(device.clone(), block_size, mapper.runs, blocks)
}

struct Mapper<'a> {
    device: &'a Arc<dyn BlockDevice>,
    geometry: &'a Geometry,
    /// Blocks of the journal by its size; what is mapped beyond is passed over.
    blocks: u64,
    runs: JournalRuns,
    /// Blocks read so far that map others. One that comes twice would map blocks twice.
    nodes: HashSet<FsBlock>,
}

impl Mapper<'_> {
    fn read_node(&mut self, block: FsBlock) -> Result<Vec<u8>, Error> {
        if self.nodes.len() >= NODES_MAX {
            return Err(UnsupportedLog::TooLarge("too many blocks that map it").into());
        }
        self.check_pointer(block)?;
        if !self.nodes.insert(block) {
            return Err(Corrupt::at(Site::JournalMapTwice).block(block).into());
        }
        let block_size = self.geometry.block_size();
        let mut bytes = vec![0; block_size.bytes()];
        self.device.read_at(block.offset(block_size), &mut bytes)?;
        Ok(bytes)
    }

    fn check_pointer(&self, block: FsBlock) -> Result<(), Corrupt> {
        if self.geometry.contains(block, 1) {
            Ok(())
        } else {
            Err(Corrupt::at(Site::JournalPointer).block(block))
        }
    }

    /// The part of a run that lies within the journal's size.
    fn within_size(&self, run: Run) -> Option<Run> {
        (run.logical < self.blocks && !run.unwritten).then(|| run.cut(&(0..self.blocks)))
    }

    /// Reads the extent tree to its end. `NODES_MAX` bounds the loop.
    fn map_extents(&mut self, inode: &Inode, seed: Option<u32>) -> Result<(), Error> {
        let size = self.geometry.block_size();
        let blocks = 0..self.geometry.blocks_count();
        let mut reader = MapReader::new(inode.block_area(), MapKind::Extents, size, blocks)?;
        let mut from = 0;
        loop {
            match reader.next(from)? {
                MapStep::Node(node) => {
                    let bytes = self.read_node(node.block)?;
                    if let Some(seed) = seed {
                        extent::verify_tail(&bytes, seed)
                            .map_err(|corrupt| corrupt.block(node.block))?;
                    }
                    reader.supply(bytes)?;
                }
                MapStep::Run(run) => {
                    from = run.end();
                    if let Some(run) = self.within_size(run) {
                        self.runs.add(run)?;
                    }
                }
                MapStep::End => return Ok(()),
            }
        }
    }

    /// Reads the block map of ext2 and ext3 up to the journal's size. Pointers are checked here, as those of a journal.
    /// `NODES_MAX` bounds the loop.
    fn map_pointers(&mut self, inode: &Inode) -> Result<(), Error> {
        let size = self.geometry.block_size();
        let any = 0..1 << 32;
        let mut reader = MapReader::new(inode.block_area(), MapKind::Pointers, size, any)?;
        let mut from = 0;
        while from < self.blocks {
            match reader.next(from)? {
                MapStep::Node(node) if node.logical < self.blocks => {
                    reader.supply(self.read_node(node.block)?)?;
                }
                MapStep::Run(run) => {
                    from = run.end();
                    if let Some(run) = self.within_size(run) {
                        self.add_checked(run)?;
                    }
                }
                MapStep::Node(_) | MapStep::End => return Ok(()),
            }
        }
        Ok(())
    }

    /// Adds a run up to the first of its blocks that does not exist, which is an error.
    fn add_checked(&mut self, run: Run) -> Result<(), Error> {
        self.check_pointer(run.start)?;
        let len = run.len.min(self.geometry.blocks_count() - run.start.0);
        self.runs.add(Run { len, ..run })?;
        if len < run.len {
            self.check_pointer(FsBlock(run.start.0 + len))?;
        }
        Ok(())
    }
}
