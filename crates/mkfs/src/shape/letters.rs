//! Numbers of a shape that one option decides alone, each checked against the features and the block size. No I/O, no
//! locks, nothing on disk.

use ondisk::{BlockSize, Feature, Features};

use super::MAX_CLUSTERS_PER_GROUP;
use crate::{Error, Options};

/// The power of two that the blocks of a cluster are (`-C`).
pub(super) fn cluster_bits(
    options: &Options,
    features: Features,
    block: BlockSize,
) -> Result<u32, Error> {
    if !features.has(Feature::BIGALLOC) {
        return match options.cluster_size {
            Some(_) => Err(Error::option("-C", "needs -O bigalloc")),
            None => Ok(0),
        };
    }
    let size = options.cluster_size.unwrap_or(16 * block.bytes_u64());
    let fits = size.is_power_of_two() && size > block.bytes_u64() && size <= 512 << 20;
    if !fits {
        return Err(Error::option(
            "-C",
            "must be a power of two above the block size, up to 512 MiB",
        ));
    }
    Ok(size.trailing_zeros() - block.bits())
}

/// Bytes an inode (`-I`).
pub(super) fn inode_size(
    options: &Options,
    features: Features,
    block: BlockSize,
) -> Result<u64, Error> {
    let size = u64::from(options.inode_size.unwrap_or(256));
    if !size.is_power_of_two() || size < 128 || size > block.bytes_u64() {
        return Err(Error::option(
            "-I",
            format!(
                "must be a power of two from 128 to the block size ({})",
                block.bytes()
            ),
        ));
    }
    if size == 128 {
        for feature in [Feature::INLINE_DATA, Feature::PROJECT] {
            if features.has(feature) {
                return Err(Error::option(
                    format!("-O {feature}"),
                    "needs inodes of 256 bytes or more (-I)",
                ));
            }
        }
    }
    Ok(size)
}

/// Bytes a group descriptor (`-E desc_size`).
pub(super) fn desc_size(
    options: &Options,
    features: Features,
    block: BlockSize,
) -> Result<u64, Error> {
    let wide = features.has(Feature::BIT64);
    match options.desc_size.map(u64::from) {
        None => Ok(if wide { 64 } else { 32 }),
        Some(_) if !wide => Err(Error::option("-E desc_size", "needs -O 64bit")),
        Some(size)
            if size.is_power_of_two()
                && (64..=1024).contains(&size)
                && size <= block.bytes_u64() =>
        {
            Ok(size)
        }
        Some(_) => Err(Error::option(
            "-E desc_size",
            "must be a power of two from 64 to 1024",
        )),
    }
}

/// Blocks a group (`-g`). By default one bitmap block describes all clusters of a group.
pub(super) fn blocks_per_group(
    options: &Options,
    features: Features,
    block: BlockSize,
    cluster_bits: u32,
) -> Result<u64, Error> {
    let most = (8 * block.bytes_u64()).min(MAX_CLUSTERS_PER_GROUP);
    match options.blocks_per_group {
        None => Ok(most << cluster_bits),
        Some(_) if features.has(Feature::BIGALLOC) => {
            Err(Error::option("-g", "can't be chosen with bigalloc"))
        }
        Some(given) if given % 8 == 0 && (256..=most).contains(&given) => Ok(given),
        Some(_) => Err(Error::option(
            "-g",
            format!("must be a multiple of 8 from 256 to {most}"),
        )),
    }
}

/// The power of two that the groups of a flex group are (`-G`).
pub(super) fn flex_bits(options: &Options, features: Features) -> Result<u32, Error> {
    let flex = features.has(Feature::FLEX_BG);
    match options.groups_per_flex {
        None => Ok(if flex { 4 } else { 0 }),
        Some(_) if !flex => Err(Error::option("-G", "needs -O flex_bg")),
        Some(groups) if groups.is_power_of_two() && groups <= 1 << 30 => {
            Ok(groups.trailing_zeros())
        }
        Some(_) => Err(Error::option("-G", "must be a power of two")),
    }
}
