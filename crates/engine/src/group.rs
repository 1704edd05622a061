//! Block groups: where their tables lie, and on a volume that is written to their bitmaps in memory.
//!
//! A group's bitmaps in memory ([`Bits`], under the group's lock, [`Rank::Group`]) say what can't be had: what is in
//! use, what someone took and has not applied, and what was freed by an epoch that is not durable yet. The bitmaps on
//! disk belong to the committer alone ([`fold`]): it applies what handles put on the epoch's lists, all sets, then
//! all clears. A run or number freed by an epoch enters the memory again in [`Groups::committed`].
//!
//! No I/O under a group's lock: bitmaps are read before it is taken. What a crash leaves: bitmaps, descriptors and
//! superblock as they were at the end of a committed epoch, in one transaction with what uses the blocks.

use journal::{Epoch, EpochLists};
use ondisk::group_desc::flags;
use ondisk::{FsBlock, Geometry, Group, GroupDesc, Ino, bitmap};
use sync::atomic::{AtomicU64, Ordering};
use sync::{CachePadded, Mutex, Rank};

use crate::error::Error;
use crate::limits;
use crate::sb::{Kind, Volume};

mod fold;

/// Consecutive blocks of one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The first one.
    pub(crate) start: FsBlock,
    /// How many; not 0.
    pub(crate) len: u32,
}

/// A change of block bitmaps.
#[derive(Clone, Copy)]
pub(crate) struct BlockChange {
    pub(crate) run: Run,
    pub(crate) is_set: bool,
}

/// A change of inode bitmaps.
#[derive(Clone, Copy)]
pub(crate) struct InodeChange {
    pub(crate) ino: Ino,
    pub(crate) is_set: bool,
    pub(crate) is_directory: bool,
}

/// A group's bitmaps in memory.
pub(crate) struct Bits {
    /// A bit a block that can't be had.
    pub(crate) blocks: Vec<u8>,
    pub(crate) free_blocks: u32,
    /// A bit an inode that can't be had.
    pub(crate) inodes: Vec<u8>,
    pub(crate) free_inodes: u32,
}

/// The groups.
pub(crate) struct Groups {
    /// An inode table's first block; 0 while it was not read. [atomic: Relaxed, never changes once known]
    inode_tables: Box<[AtomicU64]>,
    /// Bitmaps, once they were needed; only on a volume that is written to. [group]
    bits: Box<[CachePadded<Mutex<Option<Bits>>>]>,
    pub(crate) block_changes: EpochLists<BlockChange>,
    pub(crate) inode_changes: EpochLists<InodeChange>,
    /// Blocks freed by epochs that are not durable. [atomic: Relaxed, a hint for when space is short]
    pub(crate) pending_blocks: AtomicU64,
    /// Inodes freed likewise. [atomic: Relaxed, hint]
    pub(crate) pending_inodes: AtomicU64,
    /// What the epoch being committed frees, and which descriptor blocks it changes. [epoch list]
    folded: Mutex<fold::Folding>,
}

impl Groups {
    /// Of the volume's groups; reads nothing.
    pub(crate) fn new(volume: &Volume) -> Groups {
        let groups = volume.geometry().groups();
        let kept = if groups <= limits::KEPT_GROUPS {
            groups
        } else {
            0
        };
        let written = if volume.is_writable() { groups } else { 0 };
        Groups {
            inode_tables: (0..kept).map(|_| AtomicU64::new(0)).collect(),
            bits: (0..written)
                .map(|_| CachePadded::new(Mutex::new(Rank::Group, None)))
                .collect(),
            block_changes: EpochLists::new(),
            inode_changes: EpochLists::new(),
            pending_blocks: AtomicU64::new(0),
            pending_inodes: AtomicU64::new(0),
            folded: Mutex::new(Rank::EpochList, fold::Folding::default()),
        }
    }

    /// The first block of a group's inode table. The group must exist.
    pub(crate) fn inode_table(&self, volume: &Volume, group: Group) -> Result<FsBlock, Error> {
        let kept = self.inode_tables.get(group.0 as usize);
        if let Some(kept) = kept {
            // Relaxed: the value is all there is; pairs with the store below, which stores the same always.
            let block = kept.load(Ordering::Relaxed);
            if block != 0 {
                return Ok(FsBlock(block));
            }
        }
        let table = descriptor(volume, group)?.inode_table();
        if let Some(kept) = kept {
            // Relaxed: pairs with the load above.
            kept.store(table.0, Ordering::Relaxed);
        }
        Ok(table)
    }

    /// Works on a group's bitmaps in memory, under its lock; reads them first if that was not done yet. Not under
    /// another group's lock, and not with a handle open unless they were read before.
    ///
    /// # Errors
    /// When the bitmaps can't be read or are broken.
    pub(crate) fn with_bits<R>(
        &self,
        volume: &Volume,
        group: Group,
        work: impl FnOnce(&mut Bits) -> R,
    ) -> Result<R, Error> {
        let cell = &self.bits[group.0 as usize];
        if cell.lock().is_none() {
            let loaded = load_bits(volume, group)?;
            cell.lock().get_or_insert(loaded);
        }
        let mut bits = cell.lock();
        // Once there, bitmaps stay: nothing takes them out.
        Ok(work(bits.as_mut().expect("bitmaps stay in memory")))
    }

    /// Blocks and inodes that can be had now, of a group whose bitmaps are in memory.
    pub(crate) fn free_in_memory(&self, group: Group) -> Option<(u32, u32)> {
        let bits = self.bits.get(group.0 as usize)?.lock();
        bits.as_ref()
            .map(|bits| (bits.free_blocks, bits.free_inodes))
    }

    /// Puts blocks back that were taken and not applied.
    pub(crate) fn give_back_blocks(&self, geometry: &Geometry, run: Run) {
        let Some((group, first)) = geometry.bit_of_block(run.start) else {
            return;
        };
        if let Some(bits) = &mut *self.bits[group.0 as usize].lock() {
            clear_range(&mut bits.blocks, first, run.len);
            bits.free_blocks += run.len;
        }
    }

    /// Puts an inode's number back that was taken and not applied.
    pub(crate) fn give_back_inode(&self, geometry: &Geometry, ino: Ino) {
        let Some((group, index)) = geometry.group_of_ino(ino) else {
            return;
        };
        if let Some(bits) = &mut *self.bits[group.0 as usize].lock() {
            bitmap::clear(&mut bits.inodes, index);
            bits.free_inodes += 1;
        }
    }

    /// What the epoch freed may be used again: it is durable, and no home write of it is under way.
    pub(crate) fn committed(&self, volume: &Volume, _epoch: Epoch) {
        let done = std::mem::take(&mut *self.folded.lock());
        for run in done.freed {
            self.give_back_blocks(volume.geometry(), run);
            // Relaxed: a hint.
            self.pending_blocks
                .fetch_sub(run.len.into(), Ordering::Relaxed);
        }
        for ino in done.freed_inodes {
            self.give_back_inode(volume.geometry(), ino);
            // Relaxed: a hint.
            self.pending_inodes.fetch_sub(1, Ordering::Relaxed);
        }
        for block in done.descriptors {
            volume.cache().remove(block.0);
        }
    }
}

/// Clears a run of bits.
pub(crate) fn clear_range(bits: &mut [u8], first: u32, len: u32) {
    (first..first + len).for_each(|index| bitmap::clear(bits, index));
}

/// A group's descriptor, verified. The group must exist.
pub(crate) fn descriptor(volume: &Volume, group: Group) -> Result<GroupDesc, Error> {
    let geometry = volume.geometry();
    let per_block = geometry.descs_per_block();
    let at = volume.descriptor_block(group.0 / per_block);
    let block = volume.read_block(at, Kind::Descriptors, Ino(0), |_| Ok(()))?;
    let (_, byte) = geometry.desc_place(group);
    // A descriptor lies within its block, as its size divides the block's.
    let raw = block
        .get(byte..byte + geometry.desc_size())
        .unwrap_or_default();
    Ok(GroupDesc::verify(raw, geometry, group)?)
}

/// Reads a group's bitmaps, or computes those that were never written.
fn load_bits(volume: &Volume, group: Group) -> Result<Bits, Error> {
    let geometry = volume.geometry();
    let desc = descriptor(volume, group)?;
    let mut blocks = vec![0; geometry.block_size().bytes()];
    if desc.has(flags::BLOCK_UNINIT) {
        initial_block_bitmap(geometry, group, &desc, &mut blocks);
    } else {
        volume.load_newest(desc.block_bitmap(), &mut blocks)?;
        desc.verify_block_bitmap(&blocks, geometry, group)?;
        // Whatever the bits say, nobody gets the blocks that hold the file system's own tables.
        mark_own_blocks(geometry, group, &desc, &mut blocks);
    }
    let mut inodes = vec![0; geometry.block_size().bytes()];
    if !desc.has(flags::INODE_UNINIT) {
        volume.load_newest(desc.inode_bitmap(), &mut inodes)?;
        desc.verify_inode_bitmap(&inodes, geometry, group)?;
    }
    if group.0 == 0 {
        bitmap::set_range(&mut inodes, 0..geometry.first_ino().0.saturating_sub(1));
    }
    let free_blocks =
        geometry.group_clusters(group) - bitmap::count(&blocks, geometry.group_clusters(group));
    let free_inodes =
        geometry.inodes_per_group() - bitmap::count(&inodes, geometry.inodes_per_group());
    Ok(Bits {
        blocks,
        free_blocks,
        inodes,
        free_inodes,
    })
}

/// The block bitmap of a group that was never written to: its own metadata, and what lies beyond its end.
fn initial_block_bitmap(geometry: &Geometry, group: Group, desc: &GroupDesc, bits: &mut [u8]) {
    bits.fill(0);
    mark_own_blocks(geometry, group, desc, bits);
    let end = u32::try_from(bits.len() * 8).unwrap_or(u32::MAX);
    bitmap::set_range(bits, geometry.group_clusters(group)..end);
}

/// Marks what a group's descriptor and place say is metadata within the group.
fn mark_own_blocks(geometry: &Geometry, group: Group, desc: &GroupDesc, bits: &mut [u8]) {
    let start = geometry.group_start(group);
    let table = desc.inode_table().0;
    let ranges = [
        start.superblock.map_or(0..0, |block| block.0..block.0 + 1),
        start.descriptors.clone(),
        start.reserved.clone(),
        desc.block_bitmap().0..desc.block_bitmap().0 + 1,
        desc.inode_bitmap().0..desc.inode_bitmap().0 + 1,
        table..table + u64::from(geometry.inode_table_blocks()),
    ];
    let first = geometry.group_first_block(group).0;
    let end = first + u64::from(geometry.group_blocks(group));
    for range in ranges {
        let (from, to) = (range.start.max(first), range.end.min(end));
        if from < to {
            // Within a group, so both fit.
            bitmap::set_range(bits, (from - first) as u32..(to - first) as u32);
        }
    }
}
