//! Writes a planned image: data first, then inodes and attributes, then what makes it a file system.
//!
//! The superblock comes last, so a crash before the end leaves nothing that is taken for ext4.

pub(crate) mod blocks;
pub(crate) mod copy;
pub(crate) mod job;
mod table;

use device::BlockDevice;
use mkfs::{BlockRun, FormatSummary, GroupUse, Usage};
use ondisk::FsBlock;
use ondisk::xattr::{self, Value, XattrBlockHeader, XattrEntry};
use zerocopy::FromBytes;

use self::job::Job;
use self::table::Tables;
use crate::error::BuildError;
use crate::plan::ImagePlan;
use crate::plan::place::{NONE, XattrBlock};
use crate::plan::xattrs::Home;
use crate::progress::Phase;
use crate::reproducible::Clamp;
use crate::source::{NodeId, SourceTree, Time};

/// How times go into the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The time of what no source has.
    pub time: Time,
    /// What becomes of the sources' times.
    pub clamp: Clamp,
}

/// Writes inodes, maps, attributes, bitmaps, descriptors, superblocks; data and special files were written before.
///
/// # Errors
/// The first that any thread met.
pub(crate) fn metadata(
    tree: &SourceTree,
    plan: &ImagePlan,
    times: Times,
    device: &dyn BlockDevice,
    job: &Job<'_>,
) -> Result<FormatSummary, BuildError> {
    job.phase(Phase::Metadata);
    let special = plan.layout.special_inodes();
    let tables = Tables {
        tree,
        plan,
        special: &special,
        times,
    };
    tables.write(device, job)?;
    xattr_blocks(&tables, device, job)?;
    job.check()?;
    job.phase(Phase::Finish);
    Ok(plan.layout.finish(device, &usage(plan))?)
}

/// What the image uses beyond its layout.
fn usage(plan: &ImagePlan) -> Usage {
    let shape = &plan.shape;
    let bits = shape.cluster_bits;
    let free = plan.placement.space.clone().into_free_ranges();
    let mut data = Vec::new();
    let all = shape.free_space(&plan.layout).into_free_ranges();
    let mut holes = free.into_iter().peekable();
    for range in all {
        let mut next = range.start;
        while let Some(hole) = holes.next_if(|hole| hole.start < range.end) {
            data.push(next..hole.start);
            next = hole.end;
        }
        data.push(next..range.end);
    }
    let groups = plan
        .placement
        .inodes
        .used()
        .iter()
        .zip(&plan.placement.directories)
        .map(|(inodes, directories)| GroupUse {
            inodes: *inodes,
            directories: *directories,
        })
        .collect();
    // Of whole blocks: the grain of the holes that the source's file system reports does not show.
    let clusters: u64 = plan.placement.files.iter().map(|file| file.clusters).sum();
    Usage {
        data: data
            .into_iter()
            .filter(|range| range.start < range.end)
            .map(|range| BlockRun {
                start: FsBlock(range.start << bits),
                len: (range.end - range.start) << bits,
            })
            .collect(),
        groups,
        kib_written: (clusters * plan.shape.cluster_bytes()) >> 10,
    }
}

/// Writes the blocks of attributes that nodes share.
fn xattr_blocks(
    tables: &Tables<'_>,
    device: &dyn BlockDevice,
    job: &Job<'_>,
) -> Result<(), BuildError> {
    let placement = &tables.plan.placement;
    if placement.xattr_blocks.is_empty() {
        return Ok(());
    }
    // Any node that refers to a block can say what is in it.
    let mut owners = vec![None; placement.xattr_blocks.len()];
    for (node, place) in placement.nodes.iter().enumerate() {
        if place.xattr_block != NONE {
            owners[place.xattr_block as usize].get_or_insert(NodeId(node as u32));
        }
    }
    for (block, owner) in placement.xattr_blocks.iter().zip(owners) {
        job.check()?;
        if let Some(owner) = owner {
            xattr_block(tables, block, owner, device)?;
        }
    }
    Ok(())
}

fn xattr_block(
    tables: &Tables<'_>,
    block: &XattrBlock,
    owner: NodeId,
    device: &dyn BlockDevice,
) -> Result<(), BuildError> {
    let shape = &tables.plan.shape;
    let placement = &tables.plan.placement;
    let attributes = tables.split(owner)?;
    let first_value = placement.first_value[block.set as usize] as usize;
    let mut values = placement
        .values
        .get(first_value..)
        .unwrap_or_default()
        .iter();
    let mut entries = Vec::new();
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.home != Home::Inode)
    {
        let (value, hash) = match (attribute.home, values.as_slice().first()) {
            (Home::ValueInode, Some(value)) => {
                values.next();
                let hash = xattr::value_hash(shape.fs_seed, &attribute.value);
                let size = attribute.value.len() as u32;
                let hash = xattr::inode_entry_hash(attribute.name, hash);
                (
                    Value::Inode {
                        ino: value.ino,
                        size,
                    },
                    hash,
                )
            }
            _ => {
                let hash = xattr::entry_hash(attribute.name, &attribute.value);
                (Value::Here(&attribute.value), hash)
            }
        };
        entries.push(XattrEntry {
            index: attribute.index,
            name: attribute.name,
            value,
            hash,
        });
    }
    let mut bytes = vec![0; shape.block_size.bytes()];
    if !xattr::encode_block(&mut bytes, &mut entries) {
        return Err(tables.node_error(owner, "its attributes do not fit where they were planned"));
    }
    if let Ok((header, _)) = XattrBlockHeader::mut_from_prefix(&mut bytes) {
        header.set_references(block.references);
    }
    if let Some(seed) = shape.checksum_seed {
        xattr::set_block_checksum(&mut bytes, seed, FsBlock(block.block));
    }
    device.write_at(block.block << shape.block_size.bits(), &bytes)?;
    Ok(())
}
