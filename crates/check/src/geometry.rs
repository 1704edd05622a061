//! The first pass: superblock and descriptors, and the blocks that metadata takes.

use device::BlockDevice;
use ondisk::{
    Feature, Features, FsBlock, Geometry, GeometryError, Group, GroupDesc, Superblock, group_desc,
    superblock,
};

use crate::claims::Claims;
use crate::error::Error;
use crate::limits;
use crate::metadata::{self, MetadataRuns};
use crate::problem::Code;
use crate::report::{Findings, Problem};
use crate::volume::GroupFacts;

/// Block sizes and groups whose copies of the superblock are tried.
const BACKUPS: &[(u64, u64)] = &[
    (1024, 8193),
    (2048, 16384),
    (4096, 32768),
    (1024, 24577),
    (4096, 98304),
];

fn read_superblock(device: &dyn BlockDevice, offset: u64) -> Option<Superblock> {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(offset, &mut bytes).ok()?;
    Some(*Superblock::view(&bytes))
}

fn geometry_of(sb: &Superblock, device: &dyn BlockDevice) -> Result<Geometry, GeometryError> {
    sb.verify()?;
    Geometry::new(sb, device.size())
}

/// Block size and places of copies as a superblock that can't be used names them itself.
fn own_backups(sb: &Superblock) -> impl Iterator<Item = (u64, u64)> {
    let size = 1024_u64
        .checked_shl(sb.log_block_size().min(6))
        .unwrap_or(1024);
    let per_group = u64::from(sb.blocks_per_group());
    let firsts = [u64::from(sb.first_data_block()), u64::from(size == 1024)];
    firsts.into_iter().flat_map(move |first| {
        let groups = [1_u64, 3, 5, 7, 9].into_iter();
        groups.map(move |group| (size, first.saturating_add(group * per_group)))
    })
}

/// A copy of the superblock in one of these places (block size and block) that is sound.
fn backup(
    device: &dyn BlockDevice,
    mut places: impl Iterator<Item = (u64, u64)>,
) -> Option<(u64, Superblock, Geometry)> {
    places.find_map(|(size, block)| {
        let copy = read_superblock(device, size.saturating_mul(block))?;
        let geometry = geometry_of(&copy, device).ok()?;
        (geometry.block_size().bytes_u64() == size).then_some((block, copy, geometry))
    })
}

/// Looks for a copy of the superblock in the first part of the device. One that does not lie where its own numbers
/// place it belongs to another file system, such as an image in a file.
fn scan(device: &dyn BlockDevice) -> Option<(u64, Superblock, Geometry)> {
    let mut piece = vec![0; limits::TABLE_PIECE];
    let end = device.size().min(limits::SCANNED);
    let mut offset = 0;
    while offset < end {
        let len = (end - offset).min(piece.len() as u64) as usize;
        if device.read_at(offset, &mut piece[..len]).is_ok() {
            for (at, bytes) in (offset..)
                .step_by(1024)
                .zip(piece[..len].chunks_exact(1024))
            {
                let found = bytes.first_chunk().map(Superblock::view);
                if let Some(copy) = found.filter(|_| at > Superblock::OFFSET)
                    && let Ok(geometry) = geometry_of(copy, device)
                    && is_at_home(copy, &geometry, at)
                {
                    return Some((at >> geometry.block_size().bits(), *copy, geometry));
                }
            }
        }
        offset += len as u64;
    }
    None
}

fn is_at_home(copy: &Superblock, geometry: &Geometry, offset: u64) -> bool {
    let group = Group(u32::from(copy.block_group_number()));
    group.0 != 0
        && group.0 < geometry.groups()
        && geometry
            .group_first_block(group)
            .offset(geometry.block_size())
            == offset
}

/// The number of groups that follows from the numbers of blocks; `None` if these are impossible.
fn groups_of(sb: &Superblock) -> Option<u64> {
    let blocks = sb
        .blocks_count()
        .checked_sub(sb.first_data_block().into())?;
    let per_group = u64::from(sb.blocks_per_group());
    blocks
        .checked_add(per_group)?
        .checked_sub(1)?
        .checked_div(per_group)
}

/// The superblock with the number of inodes per group that follows from the number of all inodes, if that one is
/// right: a copy of the superblock has it too, or, in a file system of one group, the padding of the inode bitmap
/// begins there.
fn with_computed_inodes_per_group(
    sb: &Superblock,
    device: &dyn BlockDevice,
) -> Option<(Superblock, Geometry)> {
    sb.verify().ok()?;
    let (groups, inodes) = (groups_of(sb)?, u64::from(sb.inodes_count()));
    let per_group = inodes.checked_div(groups)?;
    if per_group * groups != inodes {
        return None;
    }
    let named = sb.inodes_per_group();
    let mut sb = *sb;
    sb.set_inodes_per_group(u32::try_from(per_group).ok()?);
    sb.seal();
    let geometry = geometry_of(&sb, device).ok()?;
    let is_right = match groups {
        1 => {
            let padding = inode_padding(device, &geometry)?;
            let other_may_be = padding <= named && named < sb.inodes_per_group();
            padding <= sb.inodes_per_group() && !other_may_be
        }
        _ => {
            let copy = backup(device, own_backups(&sb));
            copy.is_some_and(|(_, copy, _)| copy.inodes_per_group() == sb.inodes_per_group())
        }
    };
    is_right.then_some((sb, geometry))
}

/// The first bit of the padding of the first group's inode bitmap: all bits from there on are set. `None` if the bitmap
/// can't be read.
fn inode_padding(device: &dyn BlockDevice, geometry: &Geometry) -> Option<u32> {
    let size = geometry.block_size();
    let mut bytes = vec![0; size.bytes()];
    let (block, at) = geometry.desc_place(Group(0));
    device.read_at(block.offset(size), &mut bytes).ok()?;
    let desc = GroupDesc::load(bytes.get(at..at + geometry.desc_size())?);
    if !geometry.contains(desc.inode_bitmap(), 1) {
        return None;
    }
    let offset = desc.inode_bitmap().offset(size);
    device.read_at(offset, &mut bytes).ok()?;
    let set = bytes.iter().rev().take_while(|byte| **byte == 0xFF).count();
    let last = bytes.len() - set;
    let bits = match last.checked_sub(1).and_then(|last| bytes.get(last)) {
        Some(byte) => byte.leading_ones(),
        None => 0,
    };
    Some(8 * last as u32 - bits)
}

/// The superblock with the number of inodes that its groups have, if that is all that is wrong with it.
fn with_all_inodes(sb: &Superblock, device: &dyn BlockDevice) -> Option<(Superblock, Geometry)> {
    sb.verify().ok()?;
    let inodes = groups_of(sb)?.checked_mul(sb.inodes_per_group().into())?;
    let mut sb = *sb;
    sb.set_inodes_count(u32::try_from(inodes).ok()?);
    sb.seal();
    let geometry = geometry_of(&sb, device).ok()?;
    Some((sb, geometry))
}

/// The superblock without meta groups, if all that is wrong with it is that the first of them lies behind the last
/// descriptor.
fn without_meta_groups(
    sb: &Superblock,
    device: &dyn BlockDevice,
) -> Option<(Superblock, Geometry)> {
    sb.verify().ok()?;
    if !sb.features().has(Feature::META_BG) {
        return None;
    }
    let mut sb = *sb;
    sb.set_features(sb.features().without(Feature::META_BG));
    sb.set_first_meta_bg(0);
    sb.seal();
    let geometry = geometry_of(&sb, device).ok()?;
    Some((sb, geometry))
}

/// The superblock and its numbers: those in the copy at `asked` KiB, else the first, else the first copy that is sound.
pub fn superblock(
    device: &dyn BlockDevice,
    asked: Option<u64>,
    findings: &Findings,
) -> Result<Option<(Superblock, Geometry)>, Error> {
    let offset = asked.map_or(Superblock::OFFSET, |kib| kib.saturating_mul(1024));
    let first = read_superblock(device, offset);
    let error = match first.map(|first| (first, geometry_of(&first, device))) {
        Some((first, Ok(geometry))) => return Ok(Some((first, geometry))),
        Some((_, Err(GeometryError::Unsupported(unsupported)))) => {
            return Err(Error::Unsupported(unsupported));
        }
        Some((_, Err(error))) => Some(error),
        None if asked.is_some() => return Err(Error::Unreadable),
        None => None,
    };
    if let Some((sb, geometry)) = first
        .as_ref()
        .and_then(|sb| with_computed_inodes_per_group(sb, device))
    {
        let problem = Problem::new(Code::InodesPerGroup).expected(sb.inodes_per_group());
        findings.add(problem.found(first.map_or(0, |sb| sb.inodes_per_group())));
        return Ok(Some((sb, geometry)));
    }
    if let Some((sb, geometry)) = first.as_ref().and_then(|sb| with_all_inodes(sb, device)) {
        let problem = Problem::new(Code::InodesCount).expected(sb.inodes_count());
        findings.add(problem.found(first.map_or(0, |sb| sb.inodes_count())));
        return Ok(Some((sb, geometry)));
    }
    let found = match asked {
        Some(_) => None,
        None => {
            let own = first.iter().flat_map(own_backups);
            backup(device, BACKUPS.iter().copied().chain(own)).or_else(|| scan(device))
        }
    };
    if let Some((block, copy, geometry)) = found {
        let problem = Problem::new(Code::SuperblockFromBackup).block(block);
        let why = error.map_or("it can't be read".to_owned(), |error| error.to_string());
        findings.add(problem.name(why));
        return Ok(Some((copy, geometry)));
    }
    let mended = first
        .as_ref()
        .map(|sb| (sb, without_meta_groups(sb, device)));
    if let Some((sb, Some((mended, geometry)))) = mended {
        let problem = Problem::new(Code::FirstMetaGroup).expected(geometry.desc_blocks());
        findings.add(problem.found(sb.first_meta_bg()));
        return Ok(Some((mended, geometry)));
    }
    let Some(error) = error else {
        return Err(Error::Unreadable);
    };
    if let GeometryError::Truncated { needed, present } = error {
        let problem = Problem::new(Code::DeviceTooSmall);
        findings.add(problem.expected(needed).found(present));
        return Ok(None);
    }
    findings.add(Problem::new(Code::SuperblockBroken).name(error.to_string()));
    Ok(None)
}

/// Features that a file system can be read without and that are known; e2fsck refuses the others, too.
const OPTIONAL: &[Feature] = &[
    Feature::DIR_PREALLOC,
    Feature::IMAGIC_INODES,
    Feature::HAS_JOURNAL,
    Feature::EXT_ATTR,
    Feature::RESIZE_INODE,
    Feature::DIR_INDEX,
    Feature::SPARSE_SUPER2,
    Feature::FAST_COMMIT,
    Feature::STABLE_INODES,
    Feature::ORPHAN_FILE,
    Feature::SPARSE_SUPER,
    Feature::LARGE_FILE,
    Feature::HUGE_FILE,
    Feature::UNINIT_BG,
    Feature::DIR_NLINK,
    Feature::EXTRA_ISIZE,
    Feature::QUOTA,
    Feature::BIGALLOC,
    Feature::METADATA_CSUM,
    Feature::READ_ONLY,
    Feature::PROJECT,
    Feature::SHARED_BLOCKS,
    Feature::VERITY,
    Feature::ORPHAN_PRESENT,
];

/// The features of a file system that can be read without them and that a check does not know.
#[must_use]
pub fn unknown_features(sb: &Superblock) -> Features {
    let mut unknown = sb.features().minus(Features::of(OPTIONAL));
    // A geometry exists only if those that reading needs are known.
    unknown.incompat = 0;
    unknown
}

/// Checks the superblock's fields that no place follows from.
pub fn fields(sb: &Superblock, geometry: &Geometry, findings: &Findings) {
    let unknown = unknown_features(sb);
    if !unknown.is_empty() {
        findings.add(Problem::new(Code::FeatureUnknown).name(unknown.to_string()));
    }
    let reserved = sb.reserved_blocks_count();
    if reserved > geometry.blocks_count() / 2 {
        let problem = Problem::new(Code::ReservedBlocks).found(reserved);
        findings.add(problem.expected(geometry.blocks_count() / 2));
    }
    for count in [geometry.inodes_per_group(), geometry.clusters_per_group()] {
        if !count.is_multiple_of(8) {
            findings.add(Problem::new(Code::GroupSizeOdd).found(count));
        }
    }
    let is_clustered = sb.clusters_per_group() != sb.blocks_per_group()
        || sb.log_cluster_size() != sb.log_block_size();
    if is_clustered && !geometry.has(Feature::BIGALLOC) {
        let problem = Problem::new(Code::ClusterSize).found(sb.clusters_per_group());
        findings.add(problem.expected(sb.blocks_per_group()));
    }
    if sb.uuid() == [0; 16] {
        findings.add(Problem::new(Code::NoUuid));
    }
    if sb.state() & superblock::state::ERROR != 0 {
        findings.add(Problem::new(Code::ErrorsRecorded).found(sb.state()));
    }
    if !geometry.has(Feature::RESIZE_INODE)
        && geometry.reserved_gdt_blocks() != 0
        && !geometry.has(Feature::META_BG)
    {
        let problem = Problem::new(Code::ResizeWithout);
        findings.add(problem.found(geometry.reserved_gdt_blocks()));
    }
    let needs = [
        (Feature::CASEFOLD, sb.encoding() == 0, "an encoding"),
        (Feature::BIGALLOC, !geometry.has(Feature::EXTENT), "extent"),
        (Feature::BIT64, !geometry.has(Feature::EXTENT), "extent"),
    ];
    for (feature, is_missing, name) in needs {
        if geometry.has(feature) && is_missing && feature != Feature::BIT64 {
            findings.add(Problem::new(Code::FeatureMissing).name(name));
        }
    }
}

/// Reads all descriptors. None when one names a place that can't be: then nothing behind it can be judged.
pub fn descriptors(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    findings: &Findings,
) -> Option<Vec<GroupFacts>> {
    let mut groups = Vec::new();
    let mut bytes = vec![0; geometry.block_size().bytes()];
    let mut numbers = geometry.all_groups();
    for index in 0..geometry.desc_blocks() {
        let block = geometry.desc_block(index);
        if device
            .read_at(block.offset(geometry.block_size()), &mut bytes)
            .is_err()
        {
            findings.add(Problem::new(Code::DescriptorUnreadable).block(block.0));
            return None;
        }
        let raws = bytes.chunks_exact(geometry.desc_size());
        let numbers = numbers.by_ref().take(geometry.descs_per_block() as usize);
        for (raw, group) in raws.zip(numbers) {
            groups.extend(descriptor(raw, geometry, group, findings));
        }
    }
    // All are read first, so that one repair mends all.
    (groups.len() == geometry.groups() as usize).then_some(groups)
}

/// Reads a descriptor. None when it names a place that can't be.
fn descriptor(
    raw: &[u8],
    geometry: &Geometry,
    group: Group,
    findings: &Findings,
) -> Option<GroupFacts> {
    let desc = GroupDesc::load(raw);
    let problem = |code| Problem::new(code).group(group.0);
    let sum = group_desc::computed_checksum(raw, geometry, group);
    let is_sealed = sum.is_none_or(|sum| sum == desc.checksum());
    if let Some(sum) = sum
        && !is_sealed
    {
        findings.add(
            problem(Code::DescriptorChecksum)
                .found(desc.checksum())
                .expected(sum),
        );
    }
    let fits = |first: FsBlock, blocks: u32| {
        if geometry.has(Feature::FLEX_BG) {
            return first.0 != 0 && geometry.contains(first, blocks.into());
        }
        let start = geometry.group_first_block(group).0;
        let end = start + u64::from(geometry.group_blocks(group));
        first.0 >= start && first.0.saturating_add(blocks.into()) <= end
    };
    let places = [
        (Code::BlockBitmapPlace, desc.block_bitmap(), 1),
        (Code::InodeBitmapPlace, desc.inode_bitmap(), 1),
        (
            Code::InodeTablePlace,
            desc.inode_table(),
            geometry.inode_table_blocks(),
        ),
    ];
    let mut is_placed = true;
    for (code, first, blocks) in places {
        if !fits(first, blocks) {
            findings.add(problem(code).found(first.0));
            is_placed = false;
        }
    }
    let free = desc.free_inodes().min(geometry.inodes_per_group());
    if sum.is_some() && desc.itable_unused() > free {
        findings.add(problem(Code::DescriptorCounts));
    }
    // Its bits behind the file system's end must be set, so it must have been written.
    let is_last = group.0 + 1 == geometry.groups();
    if sum.is_some() && is_last && desc.has(group_desc::flags::BLOCK_UNINIT) {
        findings.add(problem(Code::LastGroupUninit));
    }
    let uninit = group_desc::flags::INODE_UNINIT | group_desc::flags::BLOCK_UNINIT;
    if sum.is_none() && (desc.has(uninit) || desc.itable_unused() != 0) {
        findings.add(problem(Code::DescriptorFlags));
    }
    is_placed.then_some(GroupFacts { desc, is_sealed })
}

/// Where metadata lies. Reports pieces that overlap.
pub fn metadata(
    sb: &Superblock,
    geometry: &Geometry,
    groups: &[GroupFacts],
    findings: &Findings,
) -> MetadataRuns {
    let descs = groups.iter().map(|facts| facts.desc);
    let mmp = metadata::mmp_block(sb, geometry);
    let metadata = MetadataRuns::of(geometry, geometry.all_groups().zip(descs), mmp);
    for block in metadata.overlapping() {
        findings.add(Problem::new(Code::MetadataOverlap).block(*block));
    }
    metadata
}

/// Claims the blocks of metadata: of all groups per block, so that pieces that share a cluster are no overlap.
pub fn claim_metadata(geometry: &Geometry, metadata: &MetadataRuns, claims: &Claims) {
    for (first, len) in metadata.iter() {
        claims.set(FsBlock(first), len, |_, _| {});
    }
    // With bigalloc the boot block's cluster is in use even where the superblock lies behind it.
    claims.set(geometry.first_data_block(), 1, |_, _| {});
}
