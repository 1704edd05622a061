//! Searches for the inode table of a group whose descriptor may name a wrong place.
//!
//! The table may be in the place that a copy of the descriptor names. The first group's table may also be at any block
//! of the group where the root's slot would hold a directory, or the journal's slot the map that the superblock backs
//! up.
//!
//! The log contains copies of table blocks. Without checksums of inodes, a place in the log can look more like the
//! table than the table itself. So a place that overlaps the log or the metadata of other groups is chosen only if no
//! other place is left.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ondisk::jbd2::BlockHeader;
use ondisk::{FileType, FsBlock, Geometry, Group, GroupDesc, Ino, Inode, inode};

use crate::metadata::{self, MetadataRuns};
use crate::problem::Code;
use crate::repair::descriptor_copies::{DescriptorCopies, fits};
use crate::repair::edit::Edit;
use crate::repair::{map, special};
use crate::report::Problem;
use crate::runs;

/// The most blocks that are read to judge whether a place holds a table.
const SAMPLE: u32 = 64;
/// The most places that the search compares.
const PLACES: usize = 1024;
/// The most places whose journal inode is read to find the log.
const LOGS: usize = 64;

/// The groups whose descriptors may name a wrong place for the inode table.
pub fn doubtful_groups(geometry: &Geometry, problems: &[Problem]) -> BTreeSet<Group> {
    let is_of_all =
        |it: &Problem| matches!(it.code, Code::MetadataOverlap | Code::BackupDescriptors);
    if problems.iter().any(is_of_all) {
        return geometry.all_groups().collect();
    }
    let mut groups = BTreeSet::new();
    for problem in problems {
        match problem.code {
            Code::DescriptorChecksum
            | Code::InodeTablePlace
            | Code::BlockBitmapPlace
            | Code::InodeBitmapPlace => {
                groups.extend(problem.group.map(Group));
            }
            Code::NoRoot | Code::RootNotDirectory | Code::ReservedMode => {
                groups.insert(Group(0));
            }
            // Garbage in place of inodes.
            Code::InodeMode | Code::InodeChecksum | Code::ExtraSize => {
                let place = problem.ino.and_then(|ino| geometry.group_of_ino(Ino(ino)));
                groups.extend(place.map(|(group, _)| group));
            }
            _ => {}
        }
    }
    groups
}

/// Blocks that are used by something else, so an inode table does not overlap them.
#[derive(Default)]
struct Others {
    /// Bitmaps and tables of other groups, copies of the superblock and of the descriptors, and the block of the
    /// multi-mount protection.
    metadata: MetadataRuns,
    /// The runs of the log, merged.
    log: Vec<(u64, u64)>,
}

impl Others {
    /// The blocks that the first group's table does not overlap. The log's blocks are taken from the map that the
    /// superblock backs up, or else from the journal's inodes in the tables that may be at `places`.
    fn of_first(edit: &Edit<'_, '_>, places: &[FsBlock]) -> Others {
        let mmp = metadata::mmp_block(&edit.sb, &edit.geometry);
        let behind = edit.descs().filter(|(group, _)| *group != Group(0));
        let backup = special::backed_up_journal(&edit.sb, Inode::zeroed());
        let log = backup.and_then(|inode| log_runs(edit, &inode));
        let of_tables = || {
            let tables = places.iter().take(LOGS).copied();
            tables
                .filter_map(|table| log_of_table(edit, table))
                .flatten()
                .collect()
        };
        Others {
            metadata: MetadataRuns::of(&edit.geometry, behind, mmp),
            log: runs::merged(log.unwrap_or_else(of_tables)),
        }
    }

    /// The blocks that the table of `group` does not overlap. Empty for groups other than the first: their places come
    /// from descriptors only, not from a search of blocks.
    fn of(edit: &Edit<'_, '_>, group: Group, places: &[FsBlock]) -> Others {
        match group {
            Group(0) => Others::of_first(edit, places),
            _ => Others::default(),
        }
    }

    /// Whether any of these blocks is used by something else.
    fn overlap(&self, first: u64, count: u64) -> bool {
        runs::overlap(&self.log, first, count) || self.metadata.overlaps(first, count)
    }
}

/// The runs that this inode of the journal maps; `None` if its first block does not begin like a journal.
fn log_runs(edit: &Edit<'_, '_>, inode: &Inode) -> Option<Vec<(u64, u64)>> {
    let map = map::read(edit, Ino::JOURNAL, inode)?;
    BlockHeader::of(&edit.block(map.place(0)?)?)?;
    Some(map.runs.iter().map(|run| (run.pblk, run.len)).collect())
}

/// The runs of the log, as the journal's inode maps them if the first group's table begins at `table`.
fn log_of_table(edit: &Edit<'_, '_>, table: FsBlock) -> Option<Vec<(u64, u64)>> {
    let inode = Inode::parse(&slot_in(edit, table, Ino::JOURNAL)?).ok()?;
    let is_file = inode.file_type() == Some(FileType::Regular) && map::is_mapped(&inode);
    is_file.then(|| log_runs(edit, &inode)).flatten()
}

/// Corrects a group's descriptor if the inode table is more likely to be in another place than in the one that the
/// descriptor names.
pub fn find_table(edit: &mut Edit<'_, '_>, copies: &DescriptorCopies, group: Group) -> Option<()> {
    let mut desc = edit.desc(group)?;
    let named = desc.inode_table();
    let copy = copies.desc(edit, group);
    let mut places = places_of_table(edit, group, copy.as_ref());
    if places.iter().all(|place| *place == named) {
        return None;
    }
    let is_possible = fits(
        &edit.geometry,
        group,
        named,
        edit.geometry.inode_table_blocks(),
    );
    places.extend(is_possible.then_some(named));
    let best = likeliest(edit, group, &places)?;
    if best != named {
        desc.set_inode_table(best);
        edit.set_desc(group, &desc)?;
    }
    Some(())
}

/// The most likely place of a group's table, except the one that the descriptor names.
pub fn best_table(edit: &Edit<'_, '_>, group: Group, copy: Option<&GroupDesc>) -> Option<FsBlock> {
    likeliest(edit, group, &places_of_table(edit, group, copy))
}

/// The most likely of these places. A place that nothing else uses comes before one that something does, then the
/// higher [`plausibility`] counts, then the smaller block number.
fn likeliest(edit: &Edit<'_, '_>, group: Group, places: &[FsBlock]) -> Option<FsBlock> {
    let blocks = u64::from(edit.geometry.inode_table_blocks());
    let others = match places.len() {
        0 | 1 => Others::default(),
        _ => Others::of(edit, group, places),
    };
    places.iter().copied().max_by_key(|place| {
        let is_apart = !others.overlap(place.0, blocks);
        (
            is_apart,
            plausibility(edit, group, *place),
            Reverse(place.0),
        )
    })
}

/// The places where a group's table may be, except the one that its descriptor names.
fn places_of_table(edit: &Edit<'_, '_>, group: Group, copy: Option<&GroupDesc>) -> Vec<FsBlock> {
    let geometry = &edit.geometry;
    let blocks = geometry.inode_table_blocks();
    let mut places: Vec<FsBlock> = copy.iter().map(|copy| copy.inode_table()).collect();
    let is_root_named = edit
        .desc(group)
        .is_some_and(|desc| has_root(edit, desc.inode_table()));
    if group == Group(0) && !is_root_named {
        let start = geometry.group_start(group).reserved.end;
        let end = geometry.group_first_block(group).0 + u64::from(geometry.group_blocks(group));
        let backup = special::backed_up_journal(&edit.sb, Inode::zeroed());
        let is_one = |block: &FsBlock| {
            looks_like_root(edit, *block)
                || backup.as_ref().is_some_and(|it| has_map(edit, *block, it))
        };
        places.extend((start..end).map(FsBlock).filter(is_one).take(PLACES));
    }
    places.retain(|place| fits(geometry, group, *place, blocks));
    places
}

/// How likely it is that the group's table begins at `table`: the number of slots that hold a plausible inode, minus
/// those that hold garbage or can't be read. Only the first [`SAMPLE`] blocks are read.
pub fn plausibility(edit: &Edit<'_, '_>, group: Group, table: FsBlock) -> i64 {
    let geometry = &edit.geometry;
    let size = geometry.inode_size();
    let per_block = edit.block_bytes() / size;
    let mut score = 0;
    for block in 0..geometry.inode_table_blocks().min(SAMPLE) {
        let Some(bytes) = edit.block(table.0 + u64::from(block)) else {
            score -= per_block as i64;
            continue;
        };
        for (index, slot) in bytes.chunks_exact(size).enumerate() {
            let index = block * per_block as u32 + index as u32;
            if slot.iter().any(|byte| *byte != 0) && index < geometry.inodes_per_group() {
                let ino = geometry.ino_of(group, index);
                score += if is_plausible(geometry, ino, slot) {
                    1
                } else {
                    -1
                };
            }
        }
    }
    score
}

fn is_plausible(geometry: &Geometry, ino: Ino, slot: &[u8]) -> bool {
    if geometry.has_metadata_csum() {
        return inode::verify_checksum(slot, geometry.csum_seed(), ino).is_ok();
    }
    Inode::parse(slot).is_ok_and(|inode| match inode.links_count() {
        0 => inode.mode() == 0 || inode.dtime() != 0,
        _ => inode.file_type().is_some() && inode.dtime() == 0,
    })
}

/// The slot of one of the first group's inodes, if its table begins at this block.
fn slot_in(edit: &Edit<'_, '_>, table: FsBlock, ino: Ino) -> Option<Vec<u8>> {
    let geometry = &edit.geometry;
    let (block, byte) = geometry.inode_place(table, ino.0 - 1);
    let bytes = edit
        .contains(block.0, 1)
        .then(|| edit.block(block.0))
        .flatten()?;
    let slot = bytes.get(byte..byte + geometry.inode_size())?;
    Some(slot.to_vec())
}

/// Whether a table at this block has a directory in the root's slot. The checksum is not verified.
fn looks_like_root(edit: &Edit<'_, '_>, table: FsBlock) -> bool {
    let inode = slot_in(edit, table, Ino::ROOT).and_then(|slot| Inode::parse(&slot).ok());
    inode.is_some_and(|inode| {
        inode.file_type() == Some(FileType::Directory) && inode.links_count() >= 2
    })
}

/// Whether a table at this block has a plausible root directory in the root's slot.
fn has_root(edit: &Edit<'_, '_>, table: FsBlock) -> bool {
    looks_like_root(edit, table)
        && slot_in(edit, table, Ino::ROOT)
            .is_some_and(|slot| is_plausible(&edit.geometry, Ino::ROOT, &slot))
}

/// Whether a table at this block has an inode with the map of `journal` in the journal's slot.
fn has_map(edit: &Edit<'_, '_>, table: FsBlock, journal: &Inode) -> bool {
    let inode = slot_in(edit, table, Ino::JOURNAL).and_then(|slot| Inode::parse(&slot).ok());
    inode.is_some_and(|inode| inode.block_area() == journal.block_area())
}
