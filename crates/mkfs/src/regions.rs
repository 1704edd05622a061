//! The blocks that no size of an image leaves free: what whoever streams data must write around.

use ondisk::{BlockSize, Feature, FsBlock};

use crate::{Error, Options, Run, features};

/// The blocks that no size of the image leaves free: superblocks and group descriptors at their groups' starts.
///
/// For writing data before the size is known: blocks outside these regions stay free of fixed metadata, provided
/// that [`crate::Layout::plan_around`] gets the same options (with `descriptor_region` and `block_size` set).
#[derive(Clone, Debug)]
pub struct FixedRegions {
    blocks_per_group: u64,
    first_data_block: u64,
    /// Superblock, descriptors and those reserved.
    region: u64,
    is_sparse: bool,
    /// Groups whose descriptors, of the usual size at most, fit in the region.
    most_groups: u64,
}

impl FixedRegions {
    /// The fixed regions under these options.
    ///
    /// # Errors
    /// When `descriptor_region` or `block_size` is not set, or the features move descriptors with the size (`meta_bg`,
    /// `sparse_super2`) or allocate in clusters (`bigalloc`).
    pub fn new(options: &Options) -> Result<FixedRegions, Error> {
        let (Some(region), Some(block_size)) = (options.descriptor_region, options.block_size)
        else {
            return Err(Error::option(
                "descriptor region",
                "must be set, as must the block size",
            ));
        };
        let features = features::resolve(options)?;
        for feature in [Feature::META_BG, Feature::SPARSE_SUPER2, Feature::BIGALLOC] {
            if features.has(feature) {
                let reason = "can't be used for an image whose size is decided last; give the size";
                return Err(Error::option(format!("-O {feature}"), reason));
            }
        }
        let descriptor = options.desc_size.map_or(64, u64::from).max(32);
        let most = (8 * block_size.bytes_u64()).min(65528);
        Ok(FixedRegions {
            blocks_per_group: options.blocks_per_group.unwrap_or(most),
            first_data_block: u64::from(block_size == BlockSize::K1),
            region: u64::from(region) + 1,
            is_sparse: features.has(Feature::SPARSE_SUPER),
            most_groups: (u64::from(region) << block_size.bits()) / descriptor,
        })
    }

    /// Blocks of the largest file system whose descriptors have room in the region.
    #[must_use]
    pub fn most_blocks(&self) -> u64 {
        self.first_data_block + self.most_groups * self.blocks_per_group
    }

    /// The next blocks from `from` on that are clear of fixed regions, up to the next region.
    #[must_use]
    pub fn next_clear(&self, from: FsBlock) -> Run {
        let mut start = from.0.saturating_sub(self.first_data_block);
        let mut group = start / self.blocks_per_group;
        if self.has_super(group) {
            start = start.max(group * self.blocks_per_group + self.region);
        }
        group += 1;
        while !self.has_super(group) {
            group += 1;
        }
        Run {
            start: FsBlock(start + self.first_data_block),
            len: group * self.blocks_per_group - start,
        }
    }

    fn has_super(&self, group: u64) -> bool {
        !self.is_sparse || is_sparse_backup(group)
    }
}

/// Whether this group holds a superblock under sparse_super: 0, 1 and the powers of 3, 5 and 7.
pub(crate) fn is_sparse_backup(group: u64) -> bool {
    let is_power_of = |base: u64| {
        let mut power = base;
        while power < group {
            power *= base;
        }
        power == group
    };
    group <= 1 || [3, 5, 7].into_iter().any(is_power_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_streamed_around_the_backups() {
        let options = Options {
            block_size: Some(BlockSize::K4),
            descriptor_region: Some(99),
            ..Options::default()
        };
        let regions = FixedRegions::new(&options).unwrap();
        let clear = |from| {
            let run = regions.next_clear(FsBlock(from));
            (run.start.0, run.end().0)
        };
        assert_eq!(clear(0), (100, 32768));
        assert_eq!(clear(32767), (32767, 32768));
        assert_eq!(clear(32768), (32868, 98304));
        assert_eq!(clear(65536), (65536, 98304));
        // 64 descriptors of 64 bytes a block.
        assert_eq!(regions.most_blocks(), 99 * 64 * 32768);
    }
}
