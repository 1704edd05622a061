//! Quota files under repair: the usage of each user, group and project is set to what the inodes add up to.
//!
//! Where every id in use has a record, the records are changed in place. A file in which a record is missing, or that
//! can't be read as a quota file, is written anew, with the limits of all records that could be read.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::quota::{self, QuotaHeader, QuotaKind, QuotaRecord};
use ondisk::{Feature, FileType, Flags, Ino, Inode};

use crate::map::MapRun;
use crate::problem::Code;
use crate::repair::edit::Edit;
use crate::repair::map::{self, FileMap};
use crate::repair::special::{has_names, is_in_use};
use crate::report::Problem;
use crate::run::Facts;
use crate::{limits, runs};

/// Where a data block's records begin.
const HEADER: usize = quota::QuotaDataHeader::SIZE;

/// Inodes and bytes in use.
type Usage = BTreeMap<u32, (u64, u64)>;

/// Sets the usage in all quota files right. `shared` are the runs of blocks with several owners.
pub fn run(edit: &mut Edit<'_, '_>, facts: &Facts, shared: &[(u64, u64)]) {
    for (kind, ino, usage) in files(edit, facts) {
        if update_file(edit, facts, ino, &usage, kind).is_none() {
            rebuild(edit, facts, ino, &usage, kind, shared);
        }
    }
}

/// Sets the usage in the records that exist right.
pub fn update(edit: &mut Edit<'_, '_>, facts: &Facts) {
    for (kind, ino, usage) in files(edit, facts) {
        // A file that lacks a record stays as it is.
        let _ = update_file(edit, facts, ino, &usage, kind);
    }
}

/// The inode that is reserved for a quota file.
fn reserved(kind: QuotaKind) -> Option<Ino> {
    [Some(Ino(3)), Some(Ino(4)), None][kind as usize]
}

/// The kind of a quota file that several kinds name: the one for which the inode is reserved, or else the first.
fn owner(files: &[(QuotaKind, Ino, Usage)], ino: Ino) -> Option<QuotaKind> {
    let is_reserved = |kind: &QuotaKind| reserved(*kind) == Some(ino);
    let mut named = files.iter().filter(|it| it.1 == ino).map(|it| it.0);
    QuotaKind::ALL
        .into_iter()
        .find(is_reserved)
        .or_else(|| named.next())
}

/// Mends a quota file that can't be read as one. A file that a directory names belongs to a user, and a reserved inode,
/// the orphan file or another kind's quota file stays that, whatever the superblock says: it names the kind's reserved
/// inode instead, or none. `shared` are the runs of blocks with several owners.
pub fn mend_file(edit: &mut Edit<'_, '_>, facts: &Facts, shared: &[(u64, u64)], ino: Ino) {
    let files = files(edit, facts);
    let owner = owner(&files, ino);
    for (kind, named, usage) in files {
        if named != ino {
            continue;
        }
        let is_orphan_file =
            edit.has(Feature::ORPHAN_FILE) && edit.sb.orphan_file_ino() == Some(ino);
        let is_other = owner != Some(kind)
            || is_orphan_file
            || if ino < edit.geometry.first_ino() {
                reserved(kind) != Some(ino)
            } else {
                has_names(edit, facts, ino)
            };
        if !is_other && rebuild(edit, facts, ino, &usage, kind, shared).is_some() {
            continue;
        }
        let reserved = reserved(kind);
        let named = reserved.filter(|reserved| *reserved != ino);
        match kind {
            QuotaKind::User => edit.sb.set_user_quota_ino(named),
            QuotaKind::Group => edit.sb.set_group_quota_ino(named),
            QuotaKind::Project => edit.sb.set_project_quota_ino(named),
        }
        edit.set_superblock();
        if !is_other {
            edit.clear_inode(ino);
        }
    }
}

/// Has the superblock name the reserved inode, which is mended later, where it names a file without a name as the quota
/// file of users or groups.
pub fn leave_unnamed(edit: &mut Edit<'_, '_>, problems: &[Problem]) {
    let unnamed = problems.iter().filter(|it| it.code == Code::Unattached);
    let unnamed: Vec<Option<Ino>> = unnamed.map(|it| it.ino.map(Ino)).collect();
    let is_unnamed = |ino: Option<Ino>| ino.is_some() && unnamed.contains(&ino);
    let (user, group) = (edit.sb.user_quota_ino(), edit.sb.group_quota_ino());
    if is_unnamed(user) {
        edit.sb.set_user_quota_ino(reserved(QuotaKind::User));
    }
    if is_unnamed(group) {
        edit.sb.set_group_quota_ino(reserved(QuotaKind::Group));
    }
    if is_unnamed(user) || is_unnamed(group) {
        edit.set_superblock();
    }
}

/// The quota files that the superblock names, with what each must say.
fn files(edit: &Edit<'_, '_>, facts: &Facts) -> Vec<(QuotaKind, Ino, Usage)> {
    if !edit.has(Feature::QUOTA) {
        return Vec::new();
    }
    let inos = [
        edit.sb.user_quota_ino(),
        edit.sb.group_quota_ino(),
        edit.sb.project_quota_ino(),
    ];
    let usage = usage(edit, facts);
    let files = QuotaKind::ALL.into_iter().zip(inos).zip(usage);
    files
        .filter_map(|((kind, ino), usage)| Some((kind, ino?, usage)))
        .collect()
}

/// What the inodes of each user, group and project take.
fn usage(edit: &Edit<'_, '_>, facts: &Facts) -> [Usage; 3] {
    let mut sums = [Usage::new(), Usage::new(), Usage::new()];
    let geometry = edit.geometry;
    let special = [
        edit.sb.user_quota_ino(),
        edit.sb.group_quota_ino(),
        edit.sb.project_quota_ino(),
        edit.sb
            .orphan_file_ino()
            .filter(|_| edit.has(Feature::ORPHAN_FILE)),
    ];
    for group in geometry.all_groups() {
        for (index, state, _) in facts.inodes.in_group(group) {
            let ino = geometry.ino_of(group, index);
            // Files of the file system itself count for no user.
            let is_own = special.contains(&Some(ino));
            let counts = ino == Ino::ROOT || ino >= geometry.first_ino();
            if is_own || !counts || !state.is_used() {
                continue;
            }
            let Some(inode) = edit.inode(ino) else {
                continue;
            };
            let sectors = inode.sectors(edit.has(Feature::HUGE_FILE), geometry.block_size());
            let project = if edit.has(Feature::PROJECT) {
                inode.project()
            } else {
                0
            };
            for (sums, id) in sums.iter_mut().zip([inode.uid(), inode.gid(), project]) {
                let sum = sums.entry(id).or_default();
                sum.0 += 1;
                sum.1 += sectors * 512;
            }
        }
    }
    sums
}

/// The data blocks of a quota file that its tree leads to.
fn leaves(edit: &Edit<'_, '_>, map: &FileMap) -> Option<BTreeSet<u32>> {
    let mut leaves = BTreeSet::new();
    let mut met = BTreeSet::new();
    let mut waiting = vec![(quota::ROOT, quota::DEPTH)];
    while let Some((number, levels)) = waiting.pop() {
        if !met.insert((number, levels)) {
            continue;
        }
        let Some(bytes) = read(edit, map, number) else {
            continue;
        };
        edit.spend(1)?;
        for below in quota::references(&bytes).filter(|below| *below != 0) {
            if levels == 1 {
                leaves.insert(below);
            } else {
                waiting.push((below, levels - 1));
            }
        }
    }
    Some(leaves)
}

/// Changes the records in place. None, with nothing changed, where the file is not in use, can't be read or lacks the
/// record of an id.
fn update_file(
    edit: &mut Edit<'_, '_>,
    facts: &Facts,
    ino: Ino,
    usage: &Usage,
    kind: QuotaKind,
) -> Option<()> {
    let inode = edit.inode(ino).filter(|_| is_in_use(facts, ino))?;
    let map = map::read(edit, ino, &inode)?;
    let header = QuotaHeader::read(&read(edit, &map, 0)?)?;
    if header.fault(kind, inode.size(true)).is_some() {
        return None;
    }
    let mut missing: BTreeSet<u32> = usage.keys().copied().collect();
    let mut changed = Vec::new();
    for leaf in leaves(edit, &map)? {
        let old = read(edit, &map, leaf)?;
        let mut bytes = old.clone();
        for slot in bytes[HEADER..].chunks_exact_mut(QuotaRecord::SIZE) {
            let is_used = slot.iter().any(|byte| *byte != 0);
            if let Some(record) = quota::record_mut(slot).filter(|_| is_used) {
                missing.remove(&record.id());
                set_usage(record, usage.get(&record.id()).copied().unwrap_or_default());
            }
        }
        if bytes != old {
            changed.push((leaf, bytes));
        }
    }
    let is_counted = kind != QuotaKind::Project || edit.has(Feature::PROJECT);
    if is_counted && !missing.is_empty() {
        return None;
    }
    for (leaf, bytes) in changed {
        write(edit, &map, leaf, &bytes)?;
    }
    Some(())
}

fn set_usage(record: &mut QuotaRecord, (inodes, space): (u64, u64)) {
    record.set_inodes(inodes);
    record.set_space(space);
}

/// Writes the file anew, with the limits of the records that can be read.
fn rebuild(
    edit: &mut Edit<'_, '_>,
    facts: &Facts,
    ino: Ino,
    usage: &Usage,
    kind: QuotaKind,
    shared: &[(u64, u64)],
) -> Option<()> {
    let old = edit.inode(ino).filter(map::is_mapped);
    let map = match &old {
        Some(inode) => map::read(edit, ino, inode)?,
        None => FileMap::default(),
    };
    let header = read(edit, &map, 0).and_then(|bytes| QuotaHeader::read(&bytes));
    let header = header.filter(|header| header.magic() == kind.magic());
    let mut records: BTreeMap<u32, QuotaRecord> = BTreeMap::new();
    if header.is_some() {
        for leaf in leaves(edit, &map)? {
            let bytes = read(edit, &map, leaf).unwrap_or_default();
            records.extend(quota::records(&bytes).map(|record| (record.id(), record)));
        }
    }
    for record in records.values_mut() {
        set_usage(record, (0, 0));
    }
    for (id, used) in usage {
        let record = records.entry(*id).or_insert_with(|| {
            let mut record = QuotaRecord::zeroed();
            record.set_id(*id);
            record
        });
        set_usage(record, *used);
    }
    let records: Vec<QuotaRecord> = records.into_values().collect();
    let bytes = quota::file(kind, header, &records);
    let places = if is_in_use(facts, ino) && edit.geometry.cluster_ratio() == 1 {
        let count = bytes.len().div_ceil(edit.block_bytes());
        own_blocks(&map.runs, shared, count)
    } else {
        Vec::new()
    };
    write_file(edit, ino, places, &bytes)
}

/// The first `count` blocks of a file that nothing else claims.
fn own_blocks(runs: &[MapRun], shared: &[(u64, u64)], count: usize) -> Vec<u64> {
    let blocks = runs.iter().flat_map(|run| run.pblk..run.pblk + run.len);
    // Also a map of shared blocks alone may be as long as the device.
    let blocks = blocks.take(limits::OWN_FILE_BLOCKS as usize);
    let is_own = |block: &u64| !runs::overlap(shared, *block, 1);
    blocks.filter(is_own).take(count).collect()
}

/// Gives the inode these contents, in `places` as far as they suffice.
fn write_file(edit: &mut Edit<'_, '_>, ino: Ino, mut places: Vec<u64>, bytes: &[u8]) -> Option<()> {
    let size = edit.geometry.block_size();
    let ratio = u64::from(edit.geometry.cluster_ratio());
    let mut runs = Vec::new();
    for (lblk, chunk) in bytes.chunks(size.bytes()).enumerate() {
        while places.len() <= lblk {
            let first = edit.new_block()?;
            places.extend(first..first + ratio);
        }
        let mut block = chunk.to_vec();
        block.resize(size.bytes(), 0);
        edit.set_block(places[lblk], block);
        runs.push(MapRun {
            lblk: lblk as u64,
            pblk: places[lblk],
            len: 1,
            unwritten: false,
        });
    }
    let mut inode = Inode::zeroed();
    inode.set_mode(FileType::Regular.mode_bits() | 0o600);
    inode.set_links_count(1);
    inode.set_size(bytes.len() as u64);
    let time = ondisk::Timestamp::decode(edit.now, 0);
    inode.set_atime(time);
    inode.set_ctime(time);
    inode.set_mtime(time);
    inode.set_flags(if edit.has(Feature::EXTENT) {
        Flags::IMMUTABLE.with(Flags::EXTENTS)
    } else {
        Flags::IMMUTABLE
    });
    let map = map::write(edit, ino, &mut inode, runs)?;
    map::settle(edit, &mut inode, &map, 0);
    let mut slot = vec![0; edit.geometry.inode_size()];
    inode.write_to(&mut slot);
    edit.set_slot(ino, slot)
}

/// The block of the device and the byte in it of a block of the tree.
fn place(edit: &Edit<'_, '_>, map: &FileMap, number: u32) -> Option<(u64, usize)> {
    let offset = u64::from(number) * quota::BLOCK as u64;
    let bits = edit.geometry.block_size().bits();
    let block = map.place(offset >> bits)?;
    Some((block, (offset & ((1 << bits) - 1)) as usize))
}

fn read(edit: &Edit<'_, '_>, map: &FileMap, number: u32) -> Option<Vec<u8>> {
    let (block, at) = place(edit, map, number)?;
    let bytes = edit.block(block)?;
    Some(bytes.get(at..at + quota::BLOCK)?.to_vec())
}

fn write(edit: &mut Edit<'_, '_>, map: &FileMap, number: u32, new: &[u8]) -> Option<()> {
    let (block, at) = place(edit, map, number)?;
    let mut bytes = edit.block(block)?;
    bytes.get_mut(at..at + new.len())?.copy_from_slice(new);
    edit.set_block(block, bytes);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::own_blocks;
    use crate::map::MapRun;

    #[test]
    fn no_more_blocks_are_kept_than_are_written() {
        let run = MapRun {
            lblk: 0,
            pblk: 100,
            len: 1 << 47,
            unwritten: false,
        };
        assert_eq!(own_blocks(&[run], &[(101, 2)], 3), [100, 103, 104]);
        assert_eq!(own_blocks(&[run], &[(0, 1 << 48)], 3), []);
    }
}
