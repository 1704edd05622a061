//! Block groups: where their tables lie, and on a volume that is written to their bitmaps in memory.
//!
//! A group's bitmaps in memory ([`Bits`] of blocks, under the group's lock, [`Rank::Group`]; [`InodeBits`] of inodes,
//! atomic words under no lock) hold what is not *available*: what is in use, what a thread took and has not applied,
//! and what was freed by an epoch that is not durable yet. The bitmaps on disk belong to the committer alone
//! ([`fold`]): it applies what handles put on the epoch's lists, all sets, then all clears. A run or number freed by an
//! epoch becomes available in [`Groups::committed`]. The journal calls it when the epoch is durable; the blocks are
//! discarded on the device before that (`blocks/discard.rs`). If the commit fails, the journal is aborted and never
//! calls it, so what the epoch freed is not given out again in this mount. A thread that frees announces that while
//! preparing ([`Bits::leave`], [`crate::space::ialloc::claim`]): what is free already, or being freed by another, is
//! refused there.
//!
//! No I/O under a group's lock: bitmaps are read before it is taken. What a crash leaves: bitmaps, descriptors and
//! superblock as they were at the end of a committed epoch, in one transaction with what uses the blocks.

use std::ops::Range;

use journal::canary::{self, Canary};
use journal::{Epoch, EpochLists};
use ondisk::group_desc::flags;
use ondisk::{Corrupt, FsBlock, Geometry, Group, GroupDesc, Ino, bitmap};
use sync::{Arc, CachePadded, Hint, Mutex, Rank};

use crate::blocks::{Kind, OpenVolume};
use crate::core::Error;
use crate::core::limits;
use crate::core::variants::{Chosen, GroupScan, Variants};

mod bits;
mod buddy;
mod fold;
mod inodes;
mod kept;
mod linear_scan;
mod lock;
mod ordered_scan;
mod scan;
mod searches;
mod space;
mod survey;
mod tables;

pub(crate) use bits::Bits;
pub(crate) use buddy::order_holding;
pub(crate) use inodes::{Chunk, DescriptorInodes, InodeBits, InodeNumbers};
use kept::{Kept, Loaded};
use linear_scan::Linear;
use lock::Locks;
use ordered_scan::{Ordered, Orders};
use scan::Scan;
pub(crate) use scan::ScanPurpose;
pub(crate) use searches::Criterion;
use searches::Searches;
use space::ExactSum;
pub(crate) use survey::DescriptorSurvey;

/// Consecutive blocks of one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GroupRun {
    /// The first one.
    pub(crate) start: FsBlock,
    /// How many; not 0.
    pub(crate) len: u32,
}

impl GroupRun {
    /// Cuts off the first `len` blocks; `len` is neither 0 nor all of them.
    pub(crate) fn split(&mut self, len: u32) -> GroupRun {
        debug_assert!(0 < len && len < self.len);
        let first = GroupRun { len, ..*self };
        self.start.0 += u64::from(len);
        self.len -= len;
        first
    }
}

/// A change of block bitmaps.
#[derive(Clone, Copy)]
pub(crate) struct BlockChange {
    pub(crate) run: GroupRun,
    pub(crate) is_set: bool,
}

/// A change of inode bitmaps.
#[derive(Clone, Copy)]
pub(crate) struct InodeChange {
    pub(crate) ino: Ino,
    pub(crate) is_set: bool,
    pub(crate) is_directory: bool,
    /// A directory that its group's count in memory has already.
    pub(crate) is_counted: bool,
}

/// The groups.
pub(crate) struct Groups {
    /// An inode table's first block; 0 while it was not read. [never changes once known]
    inode_tables: Box<[Hint<u64>]>,
    /// Only on a volume that is written to.
    kept: Box<[CachePadded<Kept>]>,
    /// The order of each group's largest free chunk.
    largest: Orders,
    /// The order of each group's average run of free blocks.
    average: Orders,
    loaded: Loaded,
    locks: Locks,
    /// In which form groups are looked through.
    scan: Chosen<GroupScan>,
    pub(crate) searches: Searches,
    pub(crate) block_changes: EpochLists<BlockChange>,
    pub(crate) inode_changes: EpochLists<InodeChange>,
    /// The sum of free blocks.
    pub(crate) blocks: ExactSum,
    /// The numbers of inodes.
    pub(crate) inodes: Arc<InodeNumbers>,
    /// What was wrong with bitmaps that could not be used, until it is put on record. [leaf]
    broken: Mutex<Vec<Corrupt>>,
    /// Whether `broken` may have any. [atomic: Relaxed, hint]
    has_broken: Hint<bool>,
    /// What the epoch being committed frees, and which descriptor blocks it changes. [epoch list]
    folded: Mutex<fold::Folding>,
}

impl Groups {
    /// The groups of a volume; reads nothing. `said`: what each descriptor records, on a volume that is written to.
    pub(crate) fn new(
        volume: &OpenVolume,
        said: &[DescriptorInodes],
        variants: &Variants,
    ) -> Groups {
        let geometry = volume.geometry();
        let groups = geometry.groups();
        let tables = if groups <= limits::KEPT_GROUPS {
            groups
        } else {
            0
        };
        let (bytes, floor) = volume.writing().map_or((0, 0), |writing| {
            (writing.group_bytes, writing.reserve.held_back())
        });
        // A bitmap, and twice as much for the orders.
        let each = geometry.clusters_per_group() as usize / 8 * 3;
        let most = u32::try_from(bytes / each.max(1)).unwrap_or(u32::MAX);
        let kept = |said: &DescriptorInodes| CachePadded::new(Kept::new(said));
        let order = |said: &DescriptorInodes| Kept::first_order(said.blocks);
        Groups {
            inode_tables: (0..tables).map(|_| Hint::new(0)).collect(),
            kept: said.iter().map(kept).collect(),
            largest: Orders::new(said.iter().map(order)),
            average: Orders::new(said.iter().map(order)),
            loaded: Loaded::new(most),
            locks: Locks::new(variants.group_lock),
            scan: Chosen::new(variants.group_scan),
            searches: Searches::default(),
            block_changes: EpochLists::new(),
            inode_changes: EpochLists::new(),
            blocks: ExactSum::new(said.iter().map(|said| u64::from(said.blocks)).sum(), floor),
            inodes: Arc::new(InodeNumbers::new(said, geometry.inodes_count())),
            broken: Mutex::new(Rank::Leaf, Vec::new()),
            has_broken: Hint::new(false),
            folded: Mutex::new(Rank::EpochList, fold::Folding::default()),
        }
    }

    /// From now on these forms are used.
    pub(crate) fn choose(&self, variants: &Variants) {
        self.locks.choose(variants.group_lock);
        self.scan.set(variants.group_scan);
    }

    /// The first group of a range that may have what is wanted, by the form that is used.
    pub(crate) fn next_group(&self, range: Range<u32>, wanted: ScanPurpose) -> Option<Group> {
        let form: &dyn Scan = match self.scan.get() {
            GroupScan::Ordered => &Ordered,
            GroupScan::Linear => &Linear,
        };
        form.next(self, range, wanted)
    }

    /// How often there was neither a block nor a number for the calling thread.
    pub(crate) fn refusals(&self) -> u64 {
        self.blocks.refusals() + self.inodes.refusals()
    }

    /// What was counted so far.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let (refills, returns) = self.blocks.counts();
        let mut counters = vec![
            ("mballoc.lock_skips", self.locks.counts.skips.sum()),
            ("mballoc.lock_waits", self.locks.counts.waits.sum()),
            ("mballoc.groups_loaded", self.loaded.loads.sum()),
            ("mballoc.groups_evicted", self.loaded.evictions.sum()),
            ("mballoc.groups_in_memory", self.loaded.count().into()),
            ("mballoc.lease_refills", refills),
            ("mballoc.lease_returns", returns),
        ];
        counters.extend(self.searches.counters());
        counters
    }

    /// The first block of a group's inode table. The group must exist.
    pub(crate) fn inode_table(&self, volume: &OpenVolume, group: Group) -> Result<FsBlock, Error> {
        let kept = self.inode_tables.get(group.0 as usize);
        if let Some(kept) = kept {
            let block = kept.get();
            if block != 0 {
                return Ok(FsBlock(block));
            }
        }
        let table = descriptor(volume, group)?.inode_table();
        self.keep_inode_table(group, table);
        Ok(table)
    }

    fn keep_inode_table(&self, group: Group, table: FsBlock) {
        if let Some(kept) = self.inode_tables.get(group.0 as usize) {
            kept.set(table.0);
        }
    }

    /// A group's inode numbers; reads their bitmap first if that was not done yet. Not with a handle open unless it was
    /// read before. The group must exist.
    ///
    /// # Errors
    /// When the bitmap can't be read or is broken, and no other thread has read it.
    pub(crate) fn inode_bits(
        &self,
        volume: &OpenVolume,
        group: Group,
    ) -> Result<&InodeBits, Error> {
        match self.inodes.loaded(group) {
            Some(bits) => Ok(bits),
            None => {
                let read = self.load_inode_bits(volume, group);
                self.inodes.insert(group, read)
            }
        }
    }

    /// Reads a group's bitmap of inodes; one that was never written has none in use. The result, an error too, must not
    /// be used once another thread's bitmap is in memory: a commit may lie between the two reads.
    fn load_inode_bits(&self, volume: &OpenVolume, group: Group) -> Result<InodeBits, Error> {
        let geometry = volume.geometry();
        let desc = newest_descriptor(volume, group)?;
        let mut inodes = vec![0; geometry.block_size().bytes()];
        if !desc.has(flags::INODE_UNINIT) {
            volume.load_newest(desc.inode_bitmap(), &mut inodes)?;
            desc.verify_inode_bitmap(&inodes, geometry, group)?;
        }
        bitmap::set_range(&mut inodes, 0..reserved_inodes(geometry, group));
        self.keep_inode_table(group, desc.inode_table());
        let (used_end, written) = tables::watermarks(volume, &desc);
        Ok(InodeBits::new(
            &inodes,
            geometry.inodes_per_group(),
            used_end,
            written,
        ))
    }

    /// Excludes a group whose bitmap of inodes is broken: no number is taken from it, and the sum does not count it.
    /// Nothing is done if another thread has read the bitmap without an error.
    pub(crate) fn exclude_inodes(&self, group: Group, corrupt: Corrupt) {
        if self.inodes.exclude(group) {
            self.note_broken(corrupt);
        }
    }

    fn note_broken(&self, corrupt: Corrupt) {
        self.broken.lock().push(corrupt);
        // A caller that misses it leaves them to the next one.
        self.has_broken.set(true);
    }

    /// What was wrong with bitmaps since this was asked last.
    pub(crate) fn take_broken(&self) -> Vec<Corrupt> {
        if !self.has_broken.get() {
            return Vec::new();
        }
        self.has_broken.set(false);
        std::mem::take(&mut *self.broken.lock())
    }

    /// Puts blocks back that were taken and not applied.
    pub(crate) fn give_back_blocks(&self, geometry: &Geometry, run: GroupRun) {
        if let Some((group, first)) = geometry.bit_of_block(run.start) {
            self.with_loaded(group, |bits| bits.give_back(first..first + run.len));
            self.blocks.give_back(run.len);
        }
    }

    /// Makes a freed run available again.
    pub(crate) fn leave(&self, geometry: &Geometry, run: GroupRun) {
        if let Some((group, first)) = geometry.bit_of_block(run.start) {
            let freed = first..first + run.len;
            self.with_loaded(group, |bits| bits.left(vec![freed]));
            self.blocks.durable(run.len.into());
        }
    }

    /// What the epoch freed may be used again: it is durable, and no home write of it is under way. Takes the lock of
    /// each group that it changed once.
    pub(crate) fn committed(&self, volume: &OpenVolume, _epoch: Epoch) {
        let geometry = volume.geometry();
        let done = std::mem::take(&mut *self.folded.lock());
        if let Ok(writing) = volume.writing() {
            let blocks = done
                .groups
                .iter()
                .flat_map(|ended| ended.freed_blocks(geometry));
            let (device, size) = (volume.cache().device(), geometry.block_size());
            writing.discard.tell(&**device, size, blocks);
        }
        let mut freed = 0;
        for ended in done.groups {
            let lens = ended.freed.iter().map(|run| u64::from(run.end - run.start));
            let is_early = canary::makes(Canary::ReusedBeforeCommit);
            freed += if is_early { 0 } else { lens.sum() };
            self.with_loaded(ended.group, |bits| {
                bits.applied(ended.taken);
                if !is_early {
                    bits.left(ended.freed);
                }
            });
        }
        // After the bits are clear.
        self.blocks.durable(freed);
        self.inodes.committed(geometry, &done.freed_inodes);
        for block in done.descriptors {
            volume.cache().remove(block.0);
        }
        self.keep_bound();
    }
}

/// A group's descriptor, verified. The group must exist.
pub(crate) fn descriptor(volume: &OpenVolume, group: Group) -> Result<GroupDesc, Error> {
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

/// A group's descriptor as the newest image has it: the cache may hold one from before the group was changed and
/// evicted.
fn newest_descriptor(volume: &OpenVolume, group: Group) -> Result<GroupDesc, Error> {
    let geometry = volume.geometry();
    let (_, byte) = geometry.desc_place(group);
    let at = volume.descriptor_block(group.0 / geometry.descs_per_block());
    let mut block = vec![0; geometry.block_size().bytes()];
    volume.load_newest(at, &mut block)?;
    let raw = block.get(byte..byte + geometry.desc_size());
    Ok(GroupDesc::verify(raw.unwrap_or_default(), geometry, group)?)
}

/// Reads a group's bitmap of blocks, or computes one that was never written; or may have been, but `is_initial`.
fn load_bits(volume: &OpenVolume, group: Group, is_initial: bool) -> Result<Bits, Error> {
    let geometry = volume.geometry();
    let desc = newest_descriptor(volume, group)?;
    let mut blocks = vec![0; geometry.block_size().bytes()];
    if is_initial || desc.has(flags::BLOCK_UNINIT) {
        initial_block_bitmap(geometry, group, &desc, &mut blocks);
    } else {
        volume.load_newest(desc.block_bitmap(), &mut blocks)?;
        desc.verify_block_bitmap(&blocks, geometry, group)?;
    }
    // Whatever the bits say, the blocks of the file system's own tables are never given out.
    let first = geometry.group_first_block(group).0;
    let end = first + u64::from(geometry.group_blocks(group));
    for zone in volume.zones().within(first..end) {
        // Within a group, so both fit.
        bitmap::set_range(
            &mut blocks,
            (zone.start - first) as u32..(zone.end - first) as u32,
        );
    }
    Ok(Bits::new(&blocks, geometry.group_clusters(group)))
}

/// How many of a group's first numbers are the file system's own. Groups may be so small that not all of these are in
/// the first one: mke2fs makes groups of 8 inodes.
fn reserved_inodes(geometry: &Geometry, group: Group) -> u32 {
    let len = geometry.inodes_per_group();
    let before = group.0.saturating_mul(len);
    let reserved = geometry.first_ino().0.saturating_sub(1);
    reserved.saturating_sub(before).min(len)
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
