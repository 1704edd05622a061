//! Finds the journal: the device of an external one, or the blocks of the journal's inode, with the copy of the inode's
//! block map in the superblock as the fallback when the inode is damaged.
//!
//! The home copies of the group descriptor and the inode may be older than the journal's; the journal's own inode never
//! changes while it is in use, and its place in the inode table never does.

use std::collections::HashSet;

use device::BlockDevice;
use ondisk::extent::{self, Expect, ExtentEntries, ExtentNode};
use ondisk::indirect::{self, PointerPath};
use ondisk::inode::{checksum_seed, verify_checksum};
use ondisk::jbd2::{JournalSuperblock, LogFormat};
use ondisk::{
    Corrupt, Feature, FileType, Flags, FsBlock, Geometry, GroupDesc, Ino, Inode, LBlock, Site,
    Superblock,
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
        blocks,
        runs: JournalRuns::default(),
        nodes: HashSet::new(),
    };
    if inode.flags().contains(Flags::EXTENTS) {
        mapper.map_extents(inode, seed)?;
    } else {
        mapper.map_pointers(inode)?;
    }
    JournalMap::internal(device.clone(), block_size, mapper.runs, blocks)
}

struct Mapper<'a> {
    device: &'a Arc<dyn BlockDevice>,
    geometry: &'a Geometry,
    /// Blocks of the journal by its size; what is mapped beyond is passed over.
    blocks: u32,
    runs: JournalRuns,
    /// Blocks read so far that map others. One that comes twice would map blocks twice.
    nodes: HashSet<FsBlock>,
}

/// A block of pointers, kept because the next pointer is most often next to the last.
#[derive(Default)]
struct PointerBlock {
    at: u64,
    /// The first block of the journal that it maps.
    first: u32,
    bytes: Vec<u8>,
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

    /// Adds a run, cut to the journal's size.
    fn add(&mut self, logical: u32, blocks: u32, place: u64) -> Result<(), Error> {
        let blocks = blocks.min(self.blocks.saturating_sub(logical));
        if blocks == 0 {
            return Ok(());
        }
        self.runs.add(logical, blocks, place)
    }

    /// Walks the extent tree in order. Depth falls at each step, so at most five levels of nodes wait.
    fn map_extents(&mut self, inode: &Inode, seed: Option<u32>) -> Result<(), Error> {
        let mut expect = Expect::root(0..self.geometry.blocks_count());
        let mut bytes = inode.block_area().to_vec();
        let mut waiting: Vec<(FsBlock, Expect)> = Vec::new();
        loop {
            let node = ExtentNode::verify(&bytes, &expect)?;
            match node.entries() {
                ExtentEntries::Extents(extents) => {
                    for extent in extents.iter().filter(|extent| !extent.is_unwritten()) {
                        self.add(extent.block(), extent.len().into(), extent.start().0)?;
                    }
                }
                ExtentEntries::Indices(indices) => {
                    let mut end = expect.covers.end;
                    for index in indices.iter().rev() {
                        let start = u64::from(index.block());
                        let below = Expect {
                            depth: Some(node.depth() - 1),
                            covers: start..end,
                            blocks: expect.blocks.clone(),
                        };
                        waiting.push((index.leaf(), below));
                        end = start;
                    }
                }
            }
            let Some((block, below)) = waiting.pop() else {
                return Ok(());
            };
            bytes = self.read_node(block)?;
            if let Some(seed) = seed {
                extent::verify_tail(&bytes, seed).map_err(|corrupt| corrupt.block(block))?;
            }
            expect = below;
        }
    }

    /// Follows the block map of ext2 and ext3, passing over what a missing block of pointers would have covered.
    fn map_pointers(&mut self, inode: &Inode) -> Result<(), Error> {
        let size = self.geometry.block_size();
        let mut kept: [PointerBlock; 3] = Default::default();
        let mut logical = 0_u32;
        while logical < self.blocks {
            let Some(path) = PointerPath::to(LBlock(logical), size) else {
                return Ok(());
            };
            let mut place = u64::from(inode.block_word(path.word()));
            let mut covered = indirect::span(path.levels(), size);
            for (level, index) in path.indices().iter().enumerate() {
                if place == 0 {
                    break;
                }
                let pointers = &mut kept[level];
                let is_same_part = u64::from(logical - pointers.first) < covered;
                if pointers.at != place || !is_same_part || pointers.bytes.is_empty() {
                    pointers.bytes = self.read_node(FsBlock(place))?;
                    pointers.at = place;
                    pointers.first = logical;
                }
                place = indirect::pointer(&pointers.bytes, *index)
                    .unwrap_or(0)
                    .into();
                covered >>= size.bits() - 2;
            }
            if place != 0 {
                self.check_pointer(FsBlock(place))?;
                self.add(logical, 1, place)?;
                logical += 1;
            } else {
                // Blocks are visited in order, so this one is the first that the missing pointer covers.
                let skip = u32::try_from(covered).unwrap_or(u32::MAX);
                logical = logical.saturating_add(skip);
            }
        }
        Ok(())
    }
}
