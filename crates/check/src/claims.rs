//! Which clusters are in use, as found: one bit for each, in groups that are allocated at first use.
//!
//! A cluster that is claimed a second time is put on a list; only for that list are all owners looked for, by a second
//! scan. Nothing is merged and nothing is sorted while files are read.
//!
//! Where memory is bounded, the record covers a window of groups at a time: what lies outside counts as free and is not
//! recorded, and the inodes are read once for each window.

use std::ops::Range;

use ondisk::{FsBlock, Geometry, Group};
use sync::{Mutex, OnceLock, Rank, Statistic};

use crate::bits::AtomicBits;
use crate::{limits, runs};

/// Groups whose slots are allocated together.
const CHUNK: usize = 1024;
/// Bytes that a group's record takes beside its bits.
const SLOT_BYTES: u64 = 64;

type Slots = Box<[OnceLock<AtomicBits>]>;

/// The clusters in use.
pub struct Claims {
    geometry: Geometry,
    /// The groups that are recorded.
    window: Range<u32>,
    chunks: Box<[OnceLock<Slots>]>,
    /// First block and number of blocks of what was claimed more than once. [job]
    shared: Mutex<Vec<(u64, u64)>>,
    /// Blocks claimed by files so far.
    claimed: Statistic,
}

impl Claims {
    /// The windows of groups for which the record takes at most `memory` bytes each, or one group.
    pub fn windows(geometry: &Geometry, memory: Option<u64>) -> Vec<Range<u32>> {
        let groups = geometry.groups();
        let group_bytes = Claims::group_bytes(geometry);
        let most = memory.map_or(u64::from(groups), |memory| (memory / group_bytes).max(1));
        let most = u32::try_from(most).unwrap_or(groups).min(groups);
        let starts = (0..groups).step_by(most as usize);
        starts
            .map(|start| start..groups.min(start.saturating_add(most)))
            .collect()
    }

    /// Bytes of the record of all groups.
    pub fn bytes(geometry: &Geometry) -> u64 {
        u64::from(geometry.groups()) * Claims::group_bytes(geometry)
    }

    fn group_bytes(geometry: &Geometry) -> u64 {
        u64::from(geometry.clusters_per_group()) / 8 + SLOT_BYTES
    }

    /// Nothing is claimed in a window of groups.
    pub fn new(geometry: &Geometry, window: Range<u32>) -> Claims {
        let chunks = (geometry.groups() as usize).div_ceil(CHUNK);
        Claims {
            geometry: *geometry,
            window,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            shared: Mutex::new(Rank::Job, Vec::new()),
            claimed: Statistic::new(0),
        }
    }

    /// The groups that are recorded.
    pub fn window(&self) -> Range<u32> {
        self.window.clone()
    }

    fn group(&self, group: Group) -> Option<&AtomicBits> {
        let index = group.0 as usize;
        let slots = self.chunks.get(index / CHUNK)?;
        let slots = slots.get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        let bits = || AtomicBits::new(self.geometry.clusters_per_group());
        Some(slots[index % CHUNK].get_or_init(bits))
    }

    /// The bits of a group; none where nothing is claimed.
    pub fn claimed_in(&self, group: Group) -> Option<&AtomicBits> {
        let index = group.0 as usize;
        self.chunks.get(index / CHUNK)?.get()?[index % CHUNK].get()
    }

    /// Claims the clusters of `count` blocks from `first` on, which must exist, and calls `met` with runs of blocks
    /// that were claimed before.
    pub fn set(&self, first: FsBlock, count: u64, mut met: impl FnMut(u64, u64)) {
        let ratio_bits = self.geometry.cluster_ratio_bits();
        let mut at = first.0;
        let end = first.0.saturating_add(count);
        while at < end {
            let Some(group) = self.geometry.group_of_block(FsBlock(at)) else {
                break;
            };
            let start = self.geometry.group_first_block(group).0;
            let group_end = start + u64::from(self.geometry.blocks_per_group());
            let last = end.min(group_end) - 1;
            // Both are below the clusters of a group, which have 32 bits.
            let (from, to) = ((at - start) >> ratio_bits, (last - start) >> ratio_bits);
            if self.window.contains(&group.0)
                && let Some(bits) = self.group(group)
            {
                bits.set(from as u32, (to - from + 1) as u32, |bit, len| {
                    met(
                        start + (u64::from(bit) << ratio_bits),
                        u64::from(len) << ratio_bits,
                    );
                });
            }
            at = last + 1;
        }
    }

    /// As [`Claims::set`], and what was claimed before is put on the list of shared runs. Returns whether all of it was
    /// free.
    pub fn claim(&self, first: FsBlock, count: u64) -> bool {
        let mut is_free = true;
        self.set(first, count, |block, len| {
            is_free = false;
            let mut shared = self.shared.lock();
            if shared.len() < limits::SHARED_RUNS {
                shared.push((block, len));
            }
        });
        is_free
    }

    /// Takes `blocks` out of what files may claim in all; false once that is used up.
    pub fn may_claim(&self, blocks: u64) -> bool {
        let before = self.claimed.add(blocks);
        before
            < self
                .geometry
                .blocks_count()
                .saturating_mul(limits::CLAIM_FACTOR)
    }

    /// The runs that were claimed more than once, sorted and merged.
    pub fn shared(&self) -> Vec<(u64, u64)> {
        runs::merged(std::mem::take(&mut *self.shared.lock()))
    }
}
