//! Blocks that several files claim, or a file and metadata: all but the first claimant get copies in free space.
//!
//! Metadata comes first, then the file system's own files, then inodes by number, those whose map was sound before the
//! repair first: what a damaged map points to may be anything. A claimant that needs a copy gets it
//! for each cluster, and a new map; the old blocks of its map are given up.

use std::collections::{BTreeSet, HashMap, HashSet};

use ondisk::{FileType, FsBlock, Ino, Inode};

use crate::map::MapRun;
use crate::problem::{Class, Code};
use crate::repair::edit::Edit;
use crate::repair::map;
use crate::repair::{attributes, inodes};
use crate::report::Problem;
use crate::run::Facts;
use crate::runs;

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
    /// The inodes that use each attribute block with several claimants, once they are looked for.
    users: Option<HashMap<u64, Vec<Ino>>>,
    facts: &'a Facts,
}

/// The runs of blocks that are claimed more than once, sorted.
pub fn runs(problems: &[Problem]) -> Vec<(u64, u64)> {
    let shared = problems.iter().filter(|it| it.code == Code::BlockSharedRun);
    runs::merged(
        shared
            .filter_map(|it| Some((it.block?, it.found?)))
            .collect(),
    )
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

/// Whether a problem with this code is damage to the map of an inode.
pub fn is_of_map(code: Code) -> bool {
    code.kind().class == Class::Map && !needs_copies(code)
}

/// Gives every claimant blocks of its own.
pub fn run(edit: &mut Edit<'_, '_>, facts: &Facts, problems: &[Problem]) {
    let mut all = Claimants {
        shared: runs(problems),
        owners: HashMap::new(),
        users: None,
        facts,
    };
    let inos = claimants(problems);
    let special = |ino: u32| facts.sb.journal_ino() != Some(Ino(ino)) && ino >= 11;
    let mut inos: Vec<u32> = inos.into_iter().collect();
    let damaged = edit.damaged_maps;
    inos.sort_by_key(|ino| (special(*ino), damaged.contains(ino), *ino));
    all.bad_blocks(edit);
    for ino in inos.into_iter().map(Ino) {
        if ino != Ino::RESIZE && ino != Ino::BAD {
            all.one(edit, ino);
        }
    }
}

impl Claimants<'_> {
    fn is_shared(&self, first: u64, count: u64) -> bool {
        runs::overlap(&self.shared, first, count)
    }

    /// Whether a cluster is this owner's, from now on if it had no owner.
    fn may_keep(&mut self, edit: &Edit<'_, '_>, block: u64, owner: Owner) -> bool {
        let bits = edit.geometry.cluster_ratio_bits();
        let first_data = edit.geometry.first_data_block().0;
        let cluster = (block - first_data) >> bits;
        let start = (cluster << bits) + first_data;
        let ratio = u64::from(edit.geometry.cluster_ratio());
        if edit.space.metadata().overlaps(start, ratio) {
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
            self.move_attribute_block(edit, block, new);
        }
        let slot = edit.slot(ino)?;
        let mut inode = Inode::parse(&slot).ok()?;
        if !map::is_mapped(&inode) {
            return Some(());
        }
        let old = map::read(edit, ino, &inode)?;
        let moved = self.moved(edit, ino, &old.runs)?;
        let has_shared_nodes = old.nodes.iter().any(|node| self.is_shared(*node, 1));
        if moved.is_empty() && !has_shared_nodes && !old.is_damaged {
            return Some(());
        }
        let runs = copied(edit, ino, &old.runs, &moved)?;
        if runs.is_empty() && inode.file_type() != Some(FileType::Regular) {
            return edit.clear_inode(ino);
        }
        let map = map::rewrite(edit, ino, &mut inode, &old, &self.shared, runs, true)?;
        let sectors = attributes::sectors(edit, ino, &inode, &slot);
        map::settle(edit, &mut inode, &map, sectors);
        edit.set_inode(ino, &inode)
    }

    /// Takes blocks out of the list of bad blocks that metadata or the list itself has. Files must not have the others.
    fn bad_blocks(&mut self, edit: &mut Edit<'_, '_>) -> Option<()> {
        let mut inode = edit.inode(Ino::BAD)?;
        if (0..15).all(|word| inode.block_word(word) == 0) {
            return None;
        }
        let old = map::read(edit, Ino::BAD, &inode)?;
        let nodes: HashSet<u64> = old.nodes.iter().copied().collect();
        let mut shares = old.is_damaged || nodes.iter().any(|node| self.is_shared(*node, 1));
        let mut runs = Vec::new();
        for run in &old.runs {
            edit.spend(run.len)?;
            shares |= self.is_shared(run.pblk, run.len);
            for i in 0..run.len {
                let (lblk, pblk) = (run.lblk + i, run.pblk + i);
                if nodes.contains(&pblk) || edit.space.metadata().contains(pblk) {
                    continue;
                }
                let logical = lblk >> edit.geometry.cluster_ratio_bits();
                self.may_keep(edit, pblk, Owner::File(Ino::BAD.0, logical));
                runs.push(MapRun {
                    lblk,
                    pblk,
                    len: 1,
                    ..*run
                });
            }
        }
        if !shares {
            return Some(());
        }
        if runs.is_empty() {
            return edit.set_slot(Ino::BAD, vec![0; edit.geometry.inode_size()]);
        }
        let map = map::write(edit, Ino::BAD, &mut inode, runs)?;
        map::settle(edit, &mut inode, &map, 0);
        edit.set_inode(Ino::BAD, &inode)
    }

    /// Gives all inodes that use the attribute block at `old` the one at `new`.
    fn move_attribute_block(&mut self, edit: &mut Edit<'_, '_>, old: u64, new: u64) {
        let (facts, shared) = (self.facts, &self.shared);
        let users = self.users.get_or_insert_with(|| {
            let is_shared = |block: u64| runs::overlap(shared, block, 1);
            inodes::attribute_users(edit, facts, is_shared)
        });
        for ino in users.remove(&old).unwrap_or_default() {
            if let Some(mut inode) = edit.inode(ino) {
                inode.set_xattr_block(FsBlock(new));
                edit.set_inode(ino, &inode);
            }
        }
    }

    /// The logical clusters of a file that need clusters of their own: those with a block that is another's, one that
    /// is not in its place in its cluster, or blocks in two clusters. None once the round's budget is used up.
    fn moved(&mut self, edit: &Edit<'_, '_>, ino: Ino, runs: &[MapRun]) -> Option<HashSet<u64>> {
        let bits = edit.geometry.cluster_ratio_bits();
        let mask = (1 << bits) - 1;
        let first_data = edit.geometry.first_data_block().0;
        let mut moved = HashSet::new();
        let mut clusters: HashMap<u64, u64> = HashMap::new();
        for run in runs {
            if bits == 0 && !self.is_shared(run.pblk, run.len) {
                continue;
            }
            edit.spend(run.len)?;
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
        Some(moved)
    }
}

/// Runs of a file whose blocks in these logical clusters are replaced by copies in new clusters. Where no cluster is
/// free, a file of a user gets a hole, since its other blocks can be kept; None for one of the file system's own.
fn copied(
    edit: &mut Edit<'_, '_>,
    ino: Ino,
    runs: &[MapRun],
    moved: &HashSet<u64>,
) -> Option<Vec<MapRun>> {
    let may_lose = ino >= edit.geometry.first_ino();
    let bits = edit.geometry.cluster_ratio_bits();
    let mask = (1 << bits) - 1;
    let mut new = Vec::new();
    let mut clusters: HashMap<u64, Option<u64>> = HashMap::new();
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
                let start = clusters.entry(logical).or_insert_with(|| edit.new_block());
                let Some(start) = *start else {
                    if may_lose {
                        continue;
                    }
                    return None;
                };
                edit.image.copy(pblk, start + (lblk & mask));
                pblk = start + (lblk & mask);
            }
            new.push(MapRun {
                lblk,
                pblk,
                len: 1,
                ..*run
            });
        }
    }
    Some(new)
}
