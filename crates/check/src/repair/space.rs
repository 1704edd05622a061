//! Free space for what a repair adds: clusters that nothing claims before the repair, nor after any of its rounds.

use std::collections::HashSet;

use ondisk::{FsBlock, Geometry, Group, bitmap};

use crate::metadata::MetadataRuns;
use crate::run::Facts;

/// Which clusters may not be used, by group.
pub struct ClaimedClusters {
    geometry: Geometry,
    /// A bit for each cluster that is claimed in some round or was given out.
    taken: Vec<Vec<u8>>,
    /// A bit for each cluster that the last check found to be claimed, by group.
    claimed: Vec<Vec<u8>>,
    metadata: MetadataRuns,
    /// The group and bit where the next search begins: before it, nothing is free, and nothing ever becomes free.
    next: (u32, u32),
    /// Blocks that are given out before free ones.
    lent: Vec<u64>,
}

impl ClaimedClusters {
    /// Everything is free.
    pub fn new(geometry: &Geometry) -> ClaimedClusters {
        ClaimedClusters {
            geometry: *geometry,
            taken: geometry.all_groups().map(|_| Vec::new()).collect(),
            claimed: geometry.all_groups().map(|_| Vec::new()).collect(),
            metadata: MetadataRuns::default(),
            next: (0, 0),
            lent: Vec::new(),
        }
    }

    /// Has these blocks given out before free ones, until they are taken back.
    pub fn lend(&mut self, blocks: &[u64]) {
        self.lent.extend(blocks);
    }

    /// Has those of the lent blocks that nobody took no longer given out.
    pub fn take_back(&mut self, blocks: &[u64]) {
        let blocks: HashSet<u64> = blocks.iter().copied().collect();
        self.lent.retain(|block| !blocks.contains(block));
    }

    /// How many blocks are given out before free ones.
    pub fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Takes `count` free clusters and returns the first block of each; takes none where too few are free.
    pub fn allocate_all(&mut self, count: usize) -> Option<Vec<u64>> {
        let blocks: Vec<u64> = (0..count)
            .map_while(|_| self.allocate())
            .map(|it| it.0)
            .collect();
        if blocks.len() < count {
            self.lent.extend(blocks);
            return None;
        }
        Some(blocks)
    }

    /// Takes in what a check found to be claimed.
    pub fn add_claims(&mut self, facts: &Facts) {
        self.metadata = facts.metadata.clone();
        for group in self.geometry.all_groups() {
            self.claimed[group.0 as usize].clear();
            let Some(bits) = facts.claims.claimed_in(group) else {
                continue;
            };
            let taken = &mut self.taken[group.0 as usize];
            let bits = bits.to_bytes();
            taken.resize(taken.len().max(bits.len()), 0);
            for (to, from) in taken.iter_mut().zip(&bits) {
                *to |= from;
            }
            self.claimed[group.0 as usize] = bits;
        }
    }

    /// Whether the last check found a block of these, which exist, to be claimed that is not in `own`, which must be
    /// [`crate::runs::merged`].
    pub fn is_claimed_by_others(&self, first: u64, count: u64, own: &[(u64, u64)]) -> bool {
        let bits = self.geometry.cluster_ratio_bits();
        let mut at = first;
        while at < first + count {
            let Some((group, bit)) = self.geometry.bit_of_block(FsBlock(at)) else {
                return false;
            };
            let claimed = &self.claimed[group.0 as usize];
            let start = self.geometry.group_first_block(group).0;
            let end = (start + u64::from(self.geometry.blocks_per_group())).min(first + count);
            // Clusters of a group have 32 bits.
            let last = ((end - 1 - start) >> bits) as u32;
            let found = (!claimed.is_empty()).then(|| bitmap::find(claimed, bit, last + 1, true));
            at = match found.flatten() {
                Some(bit) => {
                    let block = at.max(start + (u64::from(bit) << bits));
                    let index = own.partition_point(|(own, len)| own + len <= block);
                    match own.get(index).filter(|(own, _)| *own <= block) {
                        Some((own, len)) => own + len,
                        None => return true,
                    }
                }
                None => end,
            };
        }
        false
    }

    /// The blocks that metadata takes, as the last check found them.
    pub fn metadata(&self) -> &MetadataRuns {
        &self.metadata
    }

    /// Takes the clusters of these blocks, which exist.
    pub fn take(&mut self, first: u64, count: u64) {
        let bytes = self.geometry.clusters_per_group().div_ceil(8) as usize;
        let mut at = first;
        while at < first + count {
            let Some((group, bit)) = self.geometry.bit_of_block(FsBlock(at)) else {
                return;
            };
            let start = self.geometry.group_first_block(group).0;
            let end = (start + u64::from(self.geometry.blocks_per_group())).min(first + count);
            let clusters = (end - 1 - start) >> self.geometry.cluster_ratio_bits();
            let taken = &mut self.taken[group.0 as usize];
            taken.resize(taken.len().max(bytes), 0);
            // Clusters of a group have 32 bits.
            bitmap::set_range(taken, bit..clusters as u32 + 1);
            at = end;
        }
    }

    /// Takes in a group's bitmap from the disk, for a file system whose inodes could not all be read. Without a bitmap
    /// nothing of the group is free.
    pub fn add_bitmap(&mut self, group: Group, bitmap: Option<&[u8]>) {
        let taken = &mut self.taken[group.0 as usize];
        let bytes = self.geometry.clusters_per_group().div_ceil(8) as usize;
        taken.resize(taken.len().max(bytes), 0);
        for (at, to) in taken.iter_mut().enumerate() {
            *to |= bitmap.map_or(0xFF, |bits| bits.get(at).copied().unwrap_or(0xFF));
        }
    }

    /// The first block of a free cluster, which is taken from now on.
    pub fn allocate(&mut self) -> Option<FsBlock> {
        if let Some(block) = self.lent.pop() {
            return Some(FsBlock(block));
        }
        while self.next.0 < self.geometry.groups() {
            if let Some((block, bit)) = self.find_in(Group(self.next.0), self.next.1) {
                self.next.1 = bit;
                return Some(block);
            }
            self.next = (self.next.0 + 1, 0);
        }
        None
    }

    /// The same within a group.
    pub fn allocate_in(&mut self, group: Group) -> Option<FsBlock> {
        self.find_in(group, 0).map(|(block, _)| block)
    }

    fn find_in(&mut self, group: Group, from: u32) -> Option<(FsBlock, u32)> {
        let clusters = self.geometry.group_clusters(group);
        let taken = &mut self.taken[group.0 as usize];
        let bytes = self.geometry.clusters_per_group().div_ceil(8) as usize;
        taken.resize(taken.len().max(bytes), 0);
        let bit = bitmap::find(taken, from, clusters, false)?;
        bitmap::set(taken, bit);
        let first = self.geometry.group_first_block(group).0;
        let block = first + (u64::from(bit) << self.geometry.cluster_ratio_bits());
        Some((FsBlock(block), bit))
    }

    /// The first block of `count` free blocks side by side within a group, which are taken from now on.
    pub fn allocate_run(&mut self, count: u32) -> Option<FsBlock> {
        let wanted = count.div_ceil(self.geometry.cluster_ratio());
        for group in self.geometry.all_groups() {
            let clusters = self.geometry.group_clusters(group);
            let taken = &mut self.taken[group.0 as usize];
            let bytes = self.geometry.clusters_per_group().div_ceil(8) as usize;
            taken.resize(taken.len().max(bytes), 0);
            let run = bitmap::find_clear_run(taken, 0, clusters, wanted);
            if let Some(run) = run.filter(|run| run.end - run.start >= wanted) {
                bitmap::set_range(taken, run.start..run.start + wanted);
                let first = self.geometry.group_first_block(group).0;
                let block = first + (u64::from(run.start) << self.geometry.cluster_ratio_bits());
                return Some(FsBlock(block));
            }
        }
        None
    }
}
