//! Block groups: where their tables lie, and on a volume that is written to their bitmaps in memory.
//!
//! A group's bitmaps in memory ([`Bits`], under the group's lock, [`Rank::Group`]) say what can't be had: what is in
//! use, what someone took and has not applied, and what was freed by an epoch that is not durable yet. The bitmaps on
//! disk belong to the committer alone ([`fold`]): it applies what handles put on the epoch's lists, all sets, then
//! all clears. A run or number freed by an epoch enters the memory again in [`Groups::committed`]. Who frees says so
//! while preparing ([`Bits::leave`]): what is free already, or being freed by another, is refused there.
//!
//! No I/O under a group's lock: bitmaps are read before it is taken. What a crash leaves: bitmaps, descriptors and
//! superblock as they were at the end of a committed epoch, in one transaction with what uses the blocks.

use journal::canary::{self, Canary};
use journal::{Epoch, EpochLists};
use ondisk::group_desc::flags;
use ondisk::{Corrupt, FsBlock, Geometry, Group, GroupDesc, Ino, bitmap};
use sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sync::{CachePadded, Mutex, Rank};

use crate::error::Error;
use crate::limits;
use crate::sb::{Kind, Volume};

mod bits;
mod fold;
mod space;
mod survey;

pub(crate) use bits::Bits;
use space::Space;
pub(crate) use survey::Survey;

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

/// What is kept of one group.
struct Kept {
    /// Blocks that can be had: as the descriptor says until the bitmaps were read. [atomic: Relaxed, hint; group]
    free_blocks: AtomicU32,
    /// A bound on runs of them. [atomic: Relaxed, hint; group]
    longest: AtomicU32,
    /// Inodes that can be had. [atomic: Relaxed, hint; group]
    free_inodes: AtomicU32,
    /// Bitmaps, once they were needed. [group]
    bits: Mutex<Option<Box<Bits>>>,
}

/// The groups.
pub(crate) struct Groups {
    /// An inode table's first block; 0 while it was not read. [atomic: Relaxed, never changes once known]
    inode_tables: Box<[AtomicU64]>,
    /// Only on a volume that is written to.
    kept: Box<[CachePadded<Kept>]>,
    pub(crate) block_changes: EpochLists<BlockChange>,
    pub(crate) inode_changes: EpochLists<InodeChange>,
    /// The sum of free blocks.
    pub(crate) blocks: Space,
    /// The sum of free inodes.
    pub(crate) inodes: Space,
    /// What was wrong with bitmaps that could not be used, until it is put on record. [leaf]
    broken: Mutex<Vec<Corrupt>>,
    /// There may be some. [atomic: Relaxed, hint]
    has_broken: AtomicBool,
    /// What the epoch being committed frees, and which descriptor blocks it changes. [epoch list]
    folded: Mutex<fold::Folding>,
}

impl Groups {
    /// Of the volume's groups; reads nothing. `free`: what each has free, on a volume that is written to.
    pub(crate) fn new(volume: &Volume, free: &[(u32, u32)]) -> Groups {
        let groups = volume.geometry().groups();
        let tables = if groups <= limits::KEPT_GROUPS {
            groups
        } else {
            0
        };
        let kept = |(blocks, inodes): &(u32, u32)| {
            CachePadded::new(Kept {
                free_blocks: AtomicU32::new(*blocks),
                longest: AtomicU32::new(*blocks),
                free_inodes: AtomicU32::new(*inodes),
                bits: Mutex::new(Rank::Group, None),
            })
        };
        Groups {
            inode_tables: (0..tables).map(|_| AtomicU64::new(0)).collect(),
            kept: free.iter().map(kept).collect(),
            block_changes: EpochLists::new(),
            inode_changes: EpochLists::new(),
            blocks: Space::new(free.iter().map(|(blocks, _)| u64::from(*blocks)).sum()),
            inodes: Space::new(free.iter().map(|(_, inodes)| u64::from(*inodes)).sum()),
            broken: Mutex::new(Rank::Leaf, Vec::new()),
            has_broken: AtomicBool::new(false),
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
        let kept = &self.kept[group.0 as usize];
        if kept.bits.lock().is_none() {
            let loaded = load_bits(volume, group)?;
            let mut bits = kept.bits.lock();
            if bits.is_none() {
                self.correct(kept, &loaded);
                *bits = Some(Box::new(loaded));
            }
        }
        let mut bits = kept.bits.lock();
        // Once there, bitmaps stay: nothing takes them out.
        let bits = bits.as_mut().expect("bitmaps stay in memory");
        let result = work(bits);
        kept.say(bits);
        Ok(result)
    }

    /// The bitmaps count, whatever the descriptor said.
    fn correct(&self, kept: &Kept, bits: &Bits) {
        // Relaxed: nobody changes the hints before the bitmaps are there.
        let said = kept.free_blocks.load(Ordering::Relaxed);
        self.blocks
            .add(i64::from(bits.free_blocks()) - i64::from(said));
        // Relaxed: as above.
        let said = kept.free_inodes.load(Ordering::Relaxed);
        self.inodes
            .add(i64::from(bits.free_inodes()) - i64::from(said));
        kept.say(bits);
    }

    /// A group's bitmaps are broken: nothing is taken from it any more, and the sums go without it.
    pub(crate) fn exclude(&self, group: Group, corrupt: Corrupt) {
        let kept = &self.kept[group.0 as usize];
        // Relaxed: whoever swaps the count out takes it off the sum; here and below.
        let blocks = kept.free_blocks.swap(0, Ordering::Relaxed);
        // Relaxed: as above.
        let inodes = kept.free_inodes.swap(0, Ordering::Relaxed);
        // Relaxed: a hint.
        kept.longest.store(0, Ordering::Relaxed);
        self.blocks.add(-i64::from(blocks));
        self.inodes.add(-i64::from(inodes));
        if blocks > 0 || inodes > 0 {
            self.broken.lock().push(corrupt);
            // Relaxed: a hint; who misses it leaves them to the next one.
            self.has_broken.store(true, Ordering::Relaxed);
        }
    }

    /// What was wrong with bitmaps since this was asked last.
    pub(crate) fn take_broken(&self) -> Vec<Corrupt> {
        // Relaxed: a hint, so that nobody locks for nothing.
        if !self.has_broken.load(Ordering::Relaxed) {
            return Vec::new();
        }
        // Relaxed: as above.
        self.has_broken.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.broken.lock())
    }

    /// Blocks that can be had now in a group, and a bound on how many of them lie in a row. A hint.
    pub(crate) fn free_blocks(&self, group: Group) -> (u32, u32) {
        self.kept.get(group.0 as usize).map_or((0, 0), |kept| {
            // Relaxed: hints; who acts on them looks again under the lock.
            let free = kept.free_blocks.load(Ordering::Relaxed);
            // Relaxed: as above.
            (free, kept.longest.load(Ordering::Relaxed))
        })
    }

    /// Inodes that can be had now in a group. A hint.
    pub(crate) fn free_inodes(&self, group: Group) -> u32 {
        let kept = self.kept.get(group.0 as usize);
        // Relaxed: a hint; who acts on it looks again under the lock.
        kept.map_or(0, |kept| kept.free_inodes.load(Ordering::Relaxed))
    }

    /// Works on bitmaps that are in memory; nothing is done to others.
    pub(crate) fn with_loaded(&self, group: Group, work: impl FnOnce(&mut Bits)) {
        let kept = &self.kept[group.0 as usize];
        if let Some(bits) = kept.bits.lock().as_mut() {
            work(bits);
            kept.say(bits);
        }
    }

    /// Puts blocks back that were taken and not applied.
    pub(crate) fn give_back_blocks(&self, geometry: &Geometry, run: Run) {
        if let Some((group, first)) = geometry.bit_of_block(run.start) {
            self.with_loaded(group, |bits| bits.give_back(first, run.len));
            self.blocks.add(run.len.into());
        }
    }

    /// Puts an inode's number back that was taken and not applied.
    pub(crate) fn give_back_inode(&self, geometry: &Geometry, ino: Ino) {
        if let Some((group, index)) = geometry.group_of_ino(ino) {
            self.with_loaded(group, |bits| bits.give_back_inode(index));
            self.inodes.add(1);
        }
    }

    /// A freed run can be had again.
    pub(crate) fn leave(&self, geometry: &Geometry, run: Run) {
        if let Some((group, first)) = geometry.bit_of_block(run.start) {
            self.with_loaded(group, |bits| bits.left(first, run.len));
            self.blocks.durable(run.len);
        }
    }

    /// What the epoch freed may be used again: it is durable, and no home write of it is under way.
    pub(crate) fn committed(&self, volume: &Volume, _epoch: Epoch) {
        let geometry = volume.geometry();
        let done = std::mem::take(&mut *self.folded.lock());
        if let Ok(writing) = volume.writing() {
            let blocks = |run: &Run| run.start.0..run.start.0 + u64::from(run.len);
            writing.discard.tell(volume, done.freed.iter().map(blocks));
        }
        for run in done.freed {
            if !canary::makes(Canary::ReusedBeforeCommit) {
                self.leave(geometry, run);
            }
        }
        for ino in done.freed_inodes {
            if let Some((group, index)) = geometry.group_of_ino(ino) {
                self.with_loaded(group, |bits| bits.left_inode(index));
                self.inodes.durable(1);
            }
        }
        for block in done.descriptors {
            volume.cache().remove(block.0);
        }
    }
}

impl Kept {
    /// Says what the bitmaps have, under their lock.
    fn say(&self, bits: &Bits) {
        // Relaxed: hints; here and below.
        self.free_blocks
            .store(bits.free_blocks(), Ordering::Relaxed);
        // Relaxed: as above.
        self.longest.store(bits.longest(), Ordering::Relaxed);
        // Relaxed: as above.
        self.free_inodes
            .store(bits.free_inodes(), Ordering::Relaxed);
    }
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
    }
    // Whatever the bits say, nobody gets the blocks that hold the file system's own tables.
    let first = geometry.group_first_block(group).0;
    let end = first + u64::from(geometry.group_blocks(group));
    for zone in volume.zones().within(first..end) {
        // Within a group, so both fit.
        bitmap::set_range(
            &mut blocks,
            (zone.start - first) as u32..(zone.end - first) as u32,
        );
    }
    let mut inodes = vec![0; geometry.block_size().bytes()];
    if !desc.has(flags::INODE_UNINIT) {
        volume.load_newest(desc.inode_bitmap(), &mut inodes)?;
        desc.verify_inode_bitmap(&inodes, geometry, group)?;
    }
    if group.0 == 0 {
        bitmap::set_range(&mut inodes, 0..geometry.first_ino().0.saturating_sub(1));
    }
    Ok(Bits::new(
        blocks,
        geometry.group_clusters(group),
        inodes,
        geometry.inodes_per_group(),
    ))
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
