//! The last pass: bitmaps and counts of each group against what was found, then the superblock's.

use ondisk::{Group, Ino, bitmap, group_desc};
use sync::Statistic;

use crate::metadata::MetadataRuns;
use crate::problem::Code;
use crate::report::{Problem, Totals};
use crate::table::State;
use crate::volume::Volume;
use crate::work::Stage;

/// Sums over all groups.
#[derive(Default)]
pub struct Sums {
    used_clusters: Statistic,
    free_clusters: Statistic,
    files: Statistic,
    directories: Statistic,
}

/// Compares the block bitmaps of the groups in the claims' window.
pub fn blocks_of(volume: &Volume<'_>, sums: &Sums) {
    let window = volume.claims.window();
    let geometry = &volume.geometry;
    let groups = geometry
        .all_groups()
        .filter(|group| is_uninit(volume, *group));
    let descs = groups.map(|group| (group, volume.desc(group).desc));
    let uninit = MetadataRuns::of(geometry, descs, None);
    volume.crew.share_out(window.len(), |unit| {
        blocks(volume, Group(window.start + unit as u32), &uninit, sums);
    });
}

/// Runs the rest of the pass; `fragmented` only goes into the totals.
pub fn pass(volume: &Volume<'_>, sums: &Sums, fragmented: u64) -> Totals {
    let groups = volume.geometry.groups() as usize;
    volume.crew.begin(Stage::Counts, groups as u64);
    volume.crew.share_out(groups, |unit| {
        volume.crew.add(1);
        let group = Group(unit as u32);
        inodes(volume, group, sums);
    });
    let load = |sum: &Statistic| sum.get();
    let geometry = &volume.geometry;
    let free_blocks = load(&sums.free_clusters) << geometry.cluster_ratio_bits();
    let files = load(&sums.files);
    let free_inodes = u64::from(geometry.inodes_count()) - files;
    let totals = [
        (Code::FreeBlocks, volume.sb.free_blocks_count(), free_blocks),
        (
            Code::FreeInodes,
            volume.sb.free_inodes_count().into(),
            free_inodes,
        ),
    ];
    for (code, found, expected) in totals {
        if found != expected && !volume.unread.maps() {
            volume.found(Problem::new(code).found(found).expected(expected));
        }
    }
    Totals {
        files,
        inodes: geometry.inodes_count().into(),
        fragmented,
        used_blocks: geometry.blocks_count().saturating_sub(free_blocks),
        blocks: geometry.blocks_count(),
        directories: load(&sums.directories),
    }
}

/// The bits of `ours` and of the disk that differ: those only found, and those only on disk, each with the first.
fn differences(ours: &[u8], disk: &[u8], len: u32) -> [(u64, u32); 2] {
    let mut sums = [(0, 0); 2];
    if ours == disk {
        return sums;
    }
    for (at, (a, b)) in ours.iter().zip(disk).enumerate() {
        for (sum, bits) in sums.iter_mut().zip([a & !b, b & !a]) {
            let first = 8 * at as u32;
            let within = (0..8).filter(|bit| bits >> bit & 1 != 0 && first + bit < len);
            for bit in within {
                if sum.0 == 0 {
                    sum.1 = first + bit;
                }
                sum.0 += 1;
            }
        }
    }
    sums
}

/// Whether the group's block bitmap was never written.
fn is_uninit(volume: &Volume<'_>, group: Group) -> bool {
    let facts = volume.desc(group);
    let is_flagged = facts.desc.has(group_desc::flags::BLOCK_UNINIT);
    volume.has_desc_checksums() && facts.is_sealed && is_flagged
}

fn has_padding(bits: &[u8], from: u32) -> bool {
    let end = u32::try_from(8 * bits.len()).unwrap_or(u32::MAX);
    bitmap::find(bits, from, end, false).is_none()
}

fn blocks(volume: &Volume<'_>, group: Group, uninit: &MetadataRuns, sums: &Sums) {
    let geometry = &volume.geometry;
    let facts = volume.desc(group);
    let problem = |code| Problem::new(code).group(group.0);
    let clusters = geometry.group_clusters(group);
    let mut ours = volume
        .claims
        .claimed_in(group)
        .map_or_else(Vec::new, crate::bits::AtomicBits::to_bytes);
    ours.resize(geometry.block_size().bytes(), 0);
    let used = bitmap::count(&ours, clusters);
    let free = clusters - used;
    sums.used_clusters.add(used.into());
    sums.free_clusters.add(free.into());
    // A block that can't be read may hold what names more blocks.
    let is_known = !volume.unread.maps();
    // A count that follows a bitmap that is wrong is a consequence of that, as for e2fsck -n.
    let count = |free_on_disk: Option<u32>| {
        let found = facts.desc.free_clusters();
        if found != free && Some(found) != free_on_disk && is_known {
            let problem = problem(Code::GroupFreeBlocks);
            volume.found(problem.found(found).expected(free));
        }
    };
    if is_uninit(volume, group) {
        count(None);
        return uninit_blocks(volume, group, uninit, &ours, clusters);
    }
    let place = facts.desc.block_bitmap();
    let Some(disk) = volume.block(place.0) else {
        count(None);
        return volume.found(problem(Code::BlockBitmapUnreadable).block(place.0));
    };
    count(Some(clusters - bitmap::count(&disk, clusters)));
    if facts
        .desc
        .verify_block_bitmap(&disk, geometry, group)
        .is_err()
    {
        volume.found(problem(Code::BlockBitmapChecksum));
    }
    let first = geometry.group_first_block(group).0;
    let [missing, extra] = differences(&ours, &disk, clusters);
    for (code, (count, at)) in [(Code::BlockFreeUsed, missing), (Code::BlockUsedFree, extra)] {
        if count > 0 && (is_known || code == Code::BlockFreeUsed) {
            let block = first + (u64::from(at) << geometry.cluster_ratio_bits());
            volume.found(problem(code).found(count).block(block));
        }
    }
    if !has_padding(&disk, clusters) {
        volume.found(problem(Code::BlockPadding));
    }
}

/// In a group whose bitmap was never written nothing but metadata of such groups may be in use.
fn uninit_blocks(
    volume: &Volume<'_>,
    group: Group,
    uninit: &MetadataRuns,
    ours: &[u8],
    clusters: u32,
) {
    let geometry = &volume.geometry;
    let start = geometry.group_first_block(group).0;
    let mut own = vec![0; ours.len()];
    let end = start + u64::from(geometry.group_blocks(group));
    for part in uninit.within(start..end) {
        // Clusters of a group have 32 bits.
        let bit = |block: u64| ((block - start) >> geometry.cluster_ratio_bits()) as u32;
        bitmap::set_range(&mut own, bit(part.start)..bit(part.end - 1) + 1);
    }
    let [missing, _] = differences(ours, &own, clusters);
    if missing.0 > 0 {
        let block = start + (u64::from(missing.1) << geometry.cluster_ratio_bits());
        let problem = Problem::new(Code::BlockFreeUsed).group(group.0);
        volume.found(problem.found(missing.0).block(block));
    }
}

fn inodes(volume: &Volume<'_>, group: Group, sums: &Sums) {
    let geometry = &volume.geometry;
    let facts = volume.desc(group);
    let problem = |code| Problem::new(code).group(group.0);
    let per_group = geometry.inodes_per_group();
    let mut ours = vec![0; geometry.block_size().bytes()];
    let mut directories = 0_u32;
    let mut is_known = true;
    let reserved = geometry
        .first_ino()
        .0
        .saturating_sub(geometry.ino_of(group, 0).0);
    for index in 0..reserved.min(per_group) {
        bitmap::set(&mut ours, index);
    }
    for (index, state, _) in volume.inodes.in_group(group) {
        is_known &= state != State::UNREAD;
        if state.is_used() {
            bitmap::set(&mut ours, index);
        }
        let is_dir = state.file_type() == Some(ondisk::FileType::Directory);
        directories += u32::from(state.is_used() && is_dir);
    }
    let used = bitmap::count(&ours, per_group);
    sums.files.add(used.into());
    sums.directories.add(directories.into());
    let count = |code, found, expected: u32, on_disk: Option<u32>| {
        if found != expected && Some(found) != on_disk && is_known {
            volume.found(problem(code).found(found).expected(expected));
        }
    };
    count(
        Code::GroupDirectories,
        facts.desc.used_dirs(),
        directories,
        None,
    );
    let free_count = |on_disk| {
        let (found, expected) = (facts.desc.free_inodes(), per_group - used);
        count(Code::GroupFreeInodes, found, expected, on_disk);
    };
    let is_uninit = volume.has_desc_checksums() && facts.desc.has(group_desc::flags::INODE_UNINIT);
    if is_uninit && facts.is_sealed {
        return free_count(None);
    }
    let place = facts.desc.inode_bitmap();
    let Some(disk) = volume.block(place.0) else {
        free_count(None);
        return volume.found(problem(Code::BlockBitmapUnreadable).block(place.0));
    };
    free_count(Some(per_group - bitmap::count(&disk, per_group)));
    if facts
        .desc
        .verify_inode_bitmap(&disk, geometry, group)
        .is_err()
    {
        volume.found(problem(Code::InodeBitmapChecksum));
    }
    let [missing, extra] = differences(&ours, &disk, per_group);
    for (code, (count, at)) in [(Code::InodeFreeUsed, missing), (Code::InodeUsedFree, extra)] {
        if count > 0 && (is_known || code == Code::InodeFreeUsed) {
            let first: Ino = geometry.ino_of(group, at);
            volume.found(problem(code).found(count).expected(first.0));
        }
    }
    if !has_padding(&disk, per_group) {
        volume.found(problem(Code::InodePadding));
    }
}
