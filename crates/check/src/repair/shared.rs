//! Blocks that several files claim, or a file and metadata: all but the first claimant get copies in free space.
//!
//! Metadata comes first, then the file system's own files, then inodes by number. A claimant that needs a copy gets it
//! for each cluster, and a new map; the old blocks of its map are given up.

use std::collections::{BTreeSet, HashMap, HashSet};

use ondisk::{Ino, Inode};

use crate::map::Run;
use crate::problem::Code;
use crate::repair::edit::Edit;
use crate::repair::{attributes, inodes, map};
use crate::report::Problem;
use crate::run::Facts;

/// What claims a cluster: an attribute block by its number, or a place in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Attributes(u64),
    File(u32, u64),
}

struct Claimants<'a> {
    /// Runs of blocks that are claimed more than once, sorted.
    shared: Vec<(u64, u64)>,
    owners: HashMap<u64, Owner>,
    facts: &'a Facts,
}

/// The runs of blocks that are claimed more than once, sorted.
pub fn runs(problems: &[Problem]) -> Vec<(u64, u64)> {
    let shared = problems.iter().filter(|it| it.code == Code::BlockSharedRun);
    let mut runs: Vec<(u64, u64)> = shared
        .filter_map(|it| Some((it.block?, it.found?)))
        .collect();
    runs.sort_unstable();
    runs
}

/// Whether an inode with this problem needs copies of some of its blocks.
pub fn needs_copies(code: Code) -> bool {
    matches!(code, Code::BlockShared | Code::MisalignedCluster)
}

/// The inodes that need copies of some of their blocks.
pub fn claimants(problems: &[Problem]) -> BTreeSet<u32> {
    let shared = problems.iter().filter(|it| needs_copies(it.code));
    shared.filter_map(|it| it.ino).collect()
}

/// Gives every claimant blocks of its own.
pub fn run(edit: &mut Edit<'_, '_>, facts: &Facts, problems: &[Problem]) {
    let mut all = Claimants {
        shared: runs(problems),
        owners: HashMap::new(),
        facts,
    };
    let inos = claimants(problems);
    let special = |ino: u32| facts.sb.journal_ino() != Some(Ino(ino)) && ino >= 11;
    let mut inos: Vec<u32> = inos.into_iter().collect();
    inos.sort_by_key(|ino| (special(*ino), *ino));
    for ino in inos.into_iter().map(Ino) {
        if ino != Ino::RESIZE && ino != Ino::BAD {
            all.one(edit, ino);
        }
    }
}

/// The blocks that metadata takes, sorted.
pub fn metadata(facts: &Facts) -> Vec<(u64, u64)> {
    let geometry = &facts.geometry;
    let mut runs = Vec::new();
    for group in geometry.all_groups() {
        let start = geometry.group_start(group);
        runs.extend(start.superblock.map(|block| (block.0, 1)));
        for range in [&start.descriptors, &start.reserved] {
            runs.push((range.start, range.end - range.start));
        }
        let desc = &facts.groups[group.0 as usize].desc;
        runs.push((desc.block_bitmap().0, 1));
        runs.push((desc.inode_bitmap().0, 1));
        runs.push((desc.inode_table().0, geometry.inode_table_blocks().into()));
    }
    let mmp = facts.sb.mmp_block().0;
    if geometry.has(ondisk::Feature::MMP) && mmp != 0 {
        runs.push((mmp, 1));
    }
    runs.retain(|(_, len)| *len > 0);
    // Where two pieces of metadata overlap, the ends must still ascend.
    runs.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (first, len) in runs {
        match merged.last_mut() {
            Some((start, known)) if first <= *start + *known => {
                *known = (*known).max(first + len - *start);
            }
            _ => merged.push((first, len)),
        }
    }
    merged
}

impl Claimants<'_> {
    fn is_shared(&self, first: u64, count: u64) -> bool {
        let at = self
            .shared
            .partition_point(|(start, len)| start + len <= first);
        self.shared
            .get(at)
            .is_some_and(|(start, _)| *start < first + count)
    }

    /// Whether a cluster is this owner's, from now on if it was nobody's.
    fn may_keep(&mut self, edit: &Edit<'_, '_>, block: u64, owner: Owner) -> bool {
        let bits = edit.geometry.cluster_ratio_bits();
        let first_data = edit.geometry.first_data_block().0;
        let cluster = (block - first_data) >> bits;
        let start = (cluster << bits) + first_data;
        let ratio = u64::from(edit.geometry.cluster_ratio());
        if (start..start + ratio).any(|block| edit.space.is_metadata(block)) {
            return false;
        }
        *self.owners.entry(cluster).or_insert(owner) == owner
    }

    fn one(&mut self, edit: &mut Edit<'_, '_>, ino: Ino) -> Option<()> {
        let slot = edit.slot(ino)?;
        let inode = Inode::parse(&slot).ok()?;
        if let Some(block) = attributes::block_of(edit, &inode)
            && self.is_shared(block, 1)
            && !self.may_keep(edit, block, Owner::Attributes(block))
        {
            let bytes = edit.block(block)?;
            let new = edit.new_block()?;
            attributes::reseal(edit, new, bytes);
            inodes::move_attribute_block(edit, self.facts, block, new);
        }
        let slot = edit.slot(ino)?;
        let mut inode = Inode::parse(&slot).ok()?;
        if !map::is_mapped(&inode) {
            return Some(());
        }
        let old = map::read(edit, ino, &inode)?;
        let moved = self.moved(edit, ino, &old.runs);
        if moved.is_empty() && !old.nodes.iter().any(|node| self.is_shared(*node, 1)) {
            return Some(());
        }
        let runs = copied(edit, &old.runs, &moved)?;
        let map = map::write(edit, ino, &mut inode, runs)?;
        let sectors = attributes::sectors(edit, ino, &inode, &slot);
        map::settle(edit, &mut inode, &map, sectors);
        edit.set_inode(ino, &inode)
    }

    /// The logical clusters of a file that need clusters of their own: those with a block that is another's, one that
    /// is not in its place in its cluster, or blocks in two clusters.
    fn moved(&mut self, edit: &Edit<'_, '_>, ino: Ino, runs: &[Run]) -> HashSet<u64> {
        let bits = edit.geometry.cluster_ratio_bits();
        let mask = (1 << bits) - 1;
        let first_data = edit.geometry.first_data_block().0;
        let mut moved = HashSet::new();
        let mut clusters: HashMap<u64, u64> = HashMap::new();
        for run in runs {
            if bits == 0 && !self.is_shared(run.pblk, run.len) {
                continue;
            }
            for i in 0..run.len {
                let (lblk, pblk) = (run.lblk + i, run.pblk + i);
                let (logical, place) = (lblk >> bits, pblk - first_data);
                let is_own = !self.is_shared(pblk, 1)
                    || self.may_keep(edit, pblk, Owner::File(ino.0, logical));
                let is_in_place = bits == 0
                    || place & mask == lblk & mask
                        && *clusters.entry(logical).or_insert(place >> bits) == place >> bits;
                if !is_own || !is_in_place {
                    moved.insert(logical);
                }
            }
        }
        moved
    }
}

/// Runs of a file whose blocks in these logical clusters are replaced by copies in new clusters.
fn copied(edit: &mut Edit<'_, '_>, runs: &[Run], moved: &HashSet<u64>) -> Option<Vec<Run>> {
    let bits = edit.geometry.cluster_ratio_bits();
    let mask = (1 << bits) - 1;
    let mut new = Vec::new();
    let mut clusters: HashMap<u64, u64> = HashMap::new();
    for run in runs {
        let logical = run.lblk >> bits..=(run.lblk + run.len - 1) >> bits;
        if !logical.clone().any(|cluster| moved.contains(&cluster)) {
            new.push(*run);
            continue;
        }
        for i in 0..run.len {
            let (lblk, mut pblk) = (run.lblk + i, run.pblk + i);
            let logical = lblk >> bits;
            if moved.contains(&logical) {
                let start = match clusters.get(&logical) {
                    Some(start) => *start,
                    None => edit.new_block()?,
                };
                clusters.insert(logical, start);
                edit.image.copy(pblk, start + (lblk & mask));
                pblk = start + (lblk & mask);
            }
            new.push(Run {
                lblk,
                pblk,
                len: 1,
                ..*run
            });
        }
    }
    Some(new)
}
