//! The committer's part: what a sealed epoch took and freed, into the images of bitmaps, descriptors and superblock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use journal::canary::{self, Canary};
use journal::{Epoch, Folded, JournalError};
use ondisk::group_desc::flags;
use ondisk::{Feature, FsBlock, Geometry, Group, GroupDesc, Ino, bitmap};

use super::{Groups, initial_block_bitmap};
use crate::blocks::OpenVolume;
use crate::core::sb::change_superblock;

/// What the epoch being committed gives free when it is durable.
#[derive(Default)]
pub(super) struct Folding {
    pub(super) groups: Vec<Ended>,
    pub(super) freed_inodes: Vec<Ino>,
    /// Descriptor blocks that changed: the cache's copies are old.
    pub(super) descriptors: BTreeSet<FsBlock>,
}

/// Blocks of a group that an epoch took and freed.
pub(super) struct Ended {
    pub(super) group: Group,
    /// How many it took.
    pub(super) taken: u32,
    /// The bits of those that it freed.
    pub(super) freed: Vec<Range<u32>>,
}

impl Ended {
    /// The blocks that it freed.
    pub(super) fn freed_blocks(&self, geometry: &Geometry) -> impl Iterator<Item = Range<u64>> {
        let first = geometry.group_first_block(self.group).0;
        let blocks =
            move |run: &Range<u32>| first + u64::from(run.start)..first + u64::from(run.end);
        self.freed.iter().map(blocks)
    }
}

/// One group's share of an epoch.
#[derive(Default)]
struct Share {
    /// First bit and length of runs.
    sets: Vec<(u32, u32)>,
    clears: Vec<(u32, u32)>,
    inode_sets: Vec<u32>,
    inode_clears: Vec<u32>,
    directories: i64,
    /// Those of them that a group's count in memory does not have yet.
    uncounted: i32,
}

/// How the epoch changes the superblock's counts.
#[derive(Default)]
struct Totals {
    free_blocks: i64,
    free_inodes: i64,
}

impl Groups {
    /// Folds what a sealed epoch took and freed into the images of its blocks.
    pub(crate) fn fold(
        &self,
        volume: &OpenVolume,
        sealed: Epoch,
        folded: &mut Folded<'_>,
    ) -> Result<(), JournalError> {
        let geometry = volume.geometry();
        let mut folding = Folding::default();
        let shares = self.shares(geometry, sealed, &mut folding);
        let mut totals = Totals::default();
        for (group, share) in shares {
            self.inodes.count_directories(group, share.uncounted);
            if let Some(bits) = self.inodes.loaded(group) {
                bits.fold(&share.inode_sets, &share.inode_clears);
            }
            let is_first = fold_group(geometry, group, &share, folded, &mut totals)?;
            self.inodes.counters.groups_initialised.add(is_first.into());
            folding.descriptors.insert(geometry.desc_place(group).0);
            let run = |(first, len): (u32, u32)| first..first + len;
            folding.groups.push(Ended {
                group,
                taken: share.sets.iter().map(|(_, len)| len).sum(),
                freed: share.clears.into_iter().map(run).collect(),
            });
        }
        if totals.free_blocks != 0 || totals.free_inodes != 0 {
            fold_superblock(geometry, &totals, folded)?;
        }
        *self.folded.lock() = folding;
        Ok(())
    }

    fn shares(
        &self,
        geometry: &Geometry,
        sealed: Epoch,
        folding: &mut Folding,
    ) -> BTreeMap<Group, Share> {
        let mut shares: BTreeMap<Group, Share> = BTreeMap::new();
        for change in self.block_changes.take(sealed) {
            // Runs come from the allocator or from verified maps, within one group.
            let Some((group, first)) = geometry.bit_of_block(change.run.start) else {
                continue;
            };
            let share = shares.entry(group).or_default();
            if change.is_set {
                share.sets.push((first, change.run.len));
            } else {
                share.clears.push((first, change.run.len));
            }
        }
        for change in self.inode_changes.take(sealed) {
            let Some((group, index)) = geometry.group_of_ino(change.ino) else {
                continue;
            };
            let share = shares.entry(group).or_default();
            if change.is_set {
                share.inode_sets.push(index);
            } else {
                share.inode_clears.push(index);
                folding.freed_inodes.push(change.ino);
            }
            if change.is_directory {
                let more = if change.is_set { 1 } else { -1 };
                share.directories += i64::from(more);
                share.uncounted += if change.is_counted { 0 } else { more };
            }
        }
        shares
    }
}

/// Whether the group had no inode before.
fn fold_group(
    geometry: &Geometry,
    group: Group,
    share: &Share,
    folded: &mut Folded<'_>,
    totals: &mut Totals,
) -> Result<bool, JournalError> {
    let (desc_block, at) = geometry.desc_place(group);
    let place = at..at + geometry.desc_size();
    let mut desc = GroupDesc::load(&folded.image(desc_block)?[place.clone()]);
    fold_blocks(geometry, group, share, &mut desc, folded, totals)?;
    let had_none = desc.has(flags::INODE_UNINIT);
    if !share.inode_sets.is_empty() || !share.inode_clears.is_empty() {
        fold_inodes(geometry, share, &mut desc, folded, totals)?;
    }
    desc.store(&mut folded.image(desc_block)?[place], geometry, group);
    Ok(had_none && !desc.has(flags::INODE_UNINIT))
}

/// All sets, then all clears: a bit can't be set again in the epoch that cleared it.
fn fold_blocks(
    geometry: &Geometry,
    group: Group,
    share: &Share,
    desc: &mut GroupDesc,
    folded: &mut Folded<'_>,
    totals: &mut Totals,
) -> Result<(), JournalError> {
    let bits = if desc.has(flags::BLOCK_UNINIT) {
        // The first use of the group, be it of its inodes only, writes its bitmap, as Linux does.
        let bits = folded.new_image(desc.block_bitmap());
        initial_block_bitmap(geometry, group, desc, bits);
        desc.set_flags(desc.flags() & !flags::BLOCK_UNINIT);
        bits
    } else if share.sets.is_empty() && share.clears.is_empty() {
        return Ok(());
    } else {
        folded.image(desc.block_bitmap())?
    };
    for (first, len) in &share.sets {
        bitmap::set_range(bits, *first..first + len);
    }
    for (first, len) in &share.clears {
        bitmap::clear_range(bits, *first..first + len);
    }
    let sum = |runs: &[(u32, u32)]| -> i64 { runs.iter().map(|(_, len)| i64::from(*len)).sum() };
    let change = sum(&share.clears) - sum(&share.sets);
    let is_wrong = canary::makes(Canary::FreedUncounted);
    let counted = if is_wrong { change.min(0) } else { change };
    desc.set_free_clusters(moved(desc.free_clusters(), counted));
    desc.seal_block_bitmap(bits, geometry);
    totals.free_blocks += change;
    Ok(())
}

fn fold_inodes(
    geometry: &Geometry,
    share: &Share,
    desc: &mut GroupDesc,
    folded: &mut Folded<'_>,
    totals: &mut Totals,
) -> Result<(), JournalError> {
    let inodes = geometry.inodes_per_group();
    let bits = if desc.has(flags::INODE_UNINIT) {
        let bits = folded.new_image(desc.inode_bitmap());
        bits.fill(0);
        let end = u32::try_from(bits.len() * 8).unwrap_or(u32::MAX);
        bitmap::set_range(bits, inodes..end);
        desc.set_flags(desc.flags() & !flags::INODE_UNINIT);
        bits
    } else {
        folded.image(desc.inode_bitmap())?
    };
    share
        .inode_sets
        .iter()
        .for_each(|index| bitmap::set(bits, *index));
    share
        .inode_clears
        .iter()
        .for_each(|index| bitmap::clear(bits, *index));
    let change = share.inode_clears.len() as i64 - share.inode_sets.len() as i64;
    desc.set_free_inodes(moved(desc.free_inodes(), change));
    desc.set_used_dirs(moved(desc.used_dirs(), share.directories));
    if geometry.has_metadata_csum() || geometry.has(Feature::UNINIT_BG) {
        let beyond = share
            .inode_sets
            .iter()
            .map(|index| index + 1)
            .max()
            .filter(|_| !canary::makes(Canary::UnusedInodesKept))
            .unwrap_or(0);
        desc.set_itable_unused(desc.itable_unused().min(inodes.saturating_sub(beyond)));
    }
    desc.seal_inode_bitmap(bits, geometry);
    totals.free_inodes += change;
    Ok(())
}

/// A count after a change; a count that was wrong before stays within its bounds.
fn moved(count: u32, change: i64) -> u32 {
    u32::try_from((i64::from(count) + change).max(0)).unwrap_or(u32::MAX)
}

fn fold_superblock(
    geometry: &Geometry,
    totals: &Totals,
    folded: &mut Folded<'_>,
) -> Result<(), JournalError> {
    change_superblock(geometry, folded, |sb| {
        let blocks = sb.free_blocks_count();
        sb.set_free_blocks_count(blocks.saturating_add_signed(totals.free_blocks));
        sb.set_free_inodes_count(moved(sb.free_inodes_count(), totals.free_inodes));
    })
}
