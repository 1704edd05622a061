//! Blocks that several files claim, or a file and metadata: all but the first claimant get copies in free space.
//!
//! Metadata comes first, then the file system's own files, then inodes by number. A claimant that needs a copy gets it
//! for each cluster, and a new map; the old blocks of its map are given up.

use std::collections::{BTreeSet, HashMap};

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
    /// Metadata's blocks, sorted.
    metadata: Vec<(u64, u64)>,
    owners: HashMap<u64, Owner>,
    facts: &'a Facts,
}

fn contains(runs: &[(u64, u64)], block: u64) -> bool {
    let at = runs.partition_point(|(first, len)| first + len <= block);
    runs.get(at).is_some_and(|(first, _)| *first <= block)
}

/// Gives every claimant blocks of its own.
pub fn run(edit: &mut Edit<'_, '_>, facts: &Facts, problems: &[Problem]) {
    let mut shared: Vec<(u64, u64)> = problems
        .iter()
        .filter(|it| it.code == Code::BlockSharedRun)
        .filter_map(|it| Some((it.block?, it.found?)))
        .collect();
    shared.sort_unstable();
    let mut claimants = Claimants {
        shared,
        metadata: metadata(facts),
        owners: HashMap::new(),
        facts,
    };
    let inos: BTreeSet<u32> = problems
        .iter()
        .filter(|it| it.code == Code::BlockShared)
        .filter_map(|it| it.ino)
        .collect();
    let special = |ino: u32| facts.sb.journal_ino() != Some(Ino(ino)) && ino >= 11;
    let mut inos: Vec<u32> = inos.into_iter().collect();
    inos.sort_by_key(|ino| (special(*ino), *ino));
    for ino in inos.into_iter().map(Ino) {
        if ino != Ino::RESIZE && ino != Ino::BAD {
            claimants.one(edit, ino);
        }
    }
}

/// The blocks that metadata takes.
fn metadata(facts: &Facts) -> Vec<(u64, u64)> {
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
        if (start..start + ratio).any(|block| contains(&self.metadata, block)) {
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
        let mut is_changed = old.nodes.iter().any(|node| self.is_shared(*node, 1));
        let mut runs = Vec::new();
        for run in &old.runs {
            if self.is_shared(run.pblk, run.len) {
                is_changed |= self.split(edit, ino, *run, &mut runs)?;
            } else {
                runs.push(*run);
            }
        }
        if !is_changed {
            return Some(());
        }
        let map = map::write(edit, ino, &mut inode, runs)?;
        let sectors = attributes::sectors(edit, &inode, &slot);
        map::settle(edit, &mut inode, &map, sectors);
        edit.set_inode(ino, &inode)
    }

    /// Replaces what of a run is another's by copies; whether anything is.
    fn split(
        &mut self,
        edit: &mut Edit<'_, '_>,
        ino: Ino,
        run: Run,
        runs: &mut Vec<Run>,
    ) -> Option<bool> {
        let bits = edit.geometry.cluster_ratio_bits();
        let mask = (1 << bits) - 1;
        let first_data = edit.geometry.first_data_block().0;
        let mut is_changed = false;
        // A new cluster serves all blocks of the file that lie in the same logical cluster.
        let mut copy: Option<(u64, u64)> = None;
        for i in 0..run.len {
            let (lblk, pblk) = (run.lblk + i, run.pblk + i);
            let logical = lblk >> bits;
            let kept = !self.is_shared(pblk, 1)
                || self.may_keep(edit, pblk, Owner::File(ino.0, logical))
                    && (pblk - first_data) & mask == lblk & mask;
            let pblk = match (kept, copy) {
                (true, _) => pblk,
                (false, Some((cluster, start))) if cluster == logical => {
                    edit.image.copy(pblk, start + (lblk & mask));
                    start + (lblk & mask)
                }
                (false, _) => {
                    let start = edit.new_block()?;
                    copy = Some((logical, start));
                    edit.image.copy(pblk, start + (lblk & mask));
                    start + (lblk & mask)
                }
            };
            is_changed |= !kept;
            runs.push(Run {
                lblk,
                pblk,
                len: 1,
                ..run
            });
        }
        Some(is_changed)
    }
}
