//! The last pass: bitmaps and counts of each group against what was found, then the superblock's.

use ondisk::{Group, Ino, bitmap, group_desc};
use sync::atomic::{AtomicU64, Ordering};

use crate::problem::Code;
use crate::report::{Problem, Totals};
use crate::volume::Volume;
use crate::work;

#[derive(Default)]
struct Sums {
    used_clusters: AtomicU64,
    free_clusters: AtomicU64,
    files: AtomicU64,
    directories: AtomicU64,
}

/// Runs the pass; `fragmented` only goes into the totals.
pub fn pass(volume: &Volume<'_>, fragmented: u64) -> Totals {
    let sums = Sums::default();
    let groups = volume.geometry.groups() as usize;
    work::share_out(volume.threads, groups, volume.cancelled, |unit| {
        let group = Group(unit as u32);
        blocks(volume, group, &sums);
        inodes(volume, group, &sums);
    });
    // Relaxed: the threads are joined.
    let load = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
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
        if found != expected {
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

fn has_padding(bits: &[u8], from: u32) -> bool {
    let end = u32::try_from(8 * bits.len()).unwrap_or(u32::MAX);
    bitmap::find(bits, from, end, false).is_none()
}

fn blocks(volume: &Volume<'_>, group: Group, sums: &Sums) {
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
    // Relaxed: sums that are read after the threads are joined.
    sums.used_clusters.fetch_add(used.into(), Ordering::Relaxed);
    // Relaxed: as for the sum before.
    sums.free_clusters.fetch_add(free.into(), Ordering::Relaxed);
    let is_uninit = volume.has_desc_checksums() && facts.desc.has(group_desc::flags::BLOCK_UNINIT);
    if facts.desc.free_clusters() != free {
        volume.found(
            problem(Code::GroupFreeBlocks)
                .found(facts.desc.free_clusters())
                .expected(free),
        );
    }
    if is_uninit && facts.is_sealed {
        return uninit_blocks(volume, group, &ours, clusters);
    }
    let place = facts.desc.block_bitmap();
    let Some(disk) = volume.block(place.0) else {
        return volume.found(problem(Code::BlockBitmapUnreadable).block(place.0));
    };
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
        if count > 0 {
            let block = first + (u64::from(at) << geometry.cluster_ratio_bits());
            volume.found(problem(code).found(count).block(block));
        }
    }
    if !has_padding(&disk, clusters) {
        volume.found(problem(Code::BlockPadding));
    }
}

/// In a group whose bitmap was never written nothing but its own metadata may be in use.
fn uninit_blocks(volume: &Volume<'_>, group: Group, ours: &[u8], clusters: u32) {
    let geometry = &volume.geometry;
    let start = geometry.group_first_block(group).0;
    let mut own = vec![0; ours.len()];
    let mut add = |first: u64, count: u64| {
        for block in first..first.saturating_add(count) {
            if let Some((at, bit)) = geometry.bit_of_block(ondisk::FsBlock(block))
                && at == group
            {
                bitmap::set(&mut own, bit);
            }
        }
    };
    let fixed = geometry.group_start(group);
    add(start, u64::from(fixed.superblock.is_some()));
    for range in [fixed.descriptors, fixed.reserved] {
        add(range.start, range.end - range.start);
    }
    let flex = geometry.flex_size().max(1);
    let peers = group.0 / flex * flex
        ..(group.0 / flex * flex)
            .saturating_add(flex)
            .min(geometry.groups());
    for peer in peers {
        let desc = &volume.desc(Group(peer)).desc;
        add(desc.block_bitmap().0, 1);
        add(desc.inode_bitmap().0, 1);
        add(desc.inode_table().0, geometry.inode_table_blocks().into());
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
    for index in 0..per_group {
        let ino = geometry.ino_of(group, index);
        let state = volume.inodes.state(ino);
        let is_reserved = ino < geometry.first_ino();
        if state.is_used() || is_reserved {
            bitmap::set(&mut ours, index);
        }
        let is_dir = state.file_type() == Some(ondisk::FileType::Directory);
        directories += u32::from(state.is_used() && is_dir);
    }
    let used = bitmap::count(&ours, per_group);
    // Relaxed: sums that are read after the threads are joined.
    sums.files.fetch_add(used.into(), Ordering::Relaxed);
    // Relaxed: as for the sum before.
    sums.directories
        .fetch_add(directories.into(), Ordering::Relaxed);
    let counts = [
        (
            Code::GroupFreeInodes,
            facts.desc.free_inodes(),
            per_group - used,
        ),
        (Code::GroupDirectories, facts.desc.used_dirs(), directories),
    ];
    for (code, found, expected) in counts {
        if found != expected {
            volume.found(problem(code).found(found).expected(expected));
        }
    }
    let is_uninit = volume.has_desc_checksums() && facts.desc.has(group_desc::flags::INODE_UNINIT);
    if is_uninit && facts.is_sealed {
        return;
    }
    let place = facts.desc.inode_bitmap();
    let Some(disk) = volume.block(place.0) else {
        return volume.found(problem(Code::BlockBitmapUnreadable).block(place.0));
    };
    if facts
        .desc
        .verify_inode_bitmap(&disk, geometry, group)
        .is_err()
    {
        volume.found(problem(Code::InodeBitmapChecksum));
    }
    let [missing, extra] = differences(&ours, &disk, per_group);
    for (code, (count, at)) in [(Code::InodeFreeUsed, missing), (Code::InodeUsedFree, extra)] {
        if count > 0 {
            let first: Ino = geometry.ino_of(group, at);
            volume.found(problem(code).found(count).expected(first.0));
        }
    }
    if !has_padding(&disk, per_group) {
        volume.found(problem(Code::InodePadding));
    }
}
