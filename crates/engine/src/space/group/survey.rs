//! What all descriptors say, read once when a volume is opened for writing: where the groups' tables lie, and how much
//! each group has free. Nothing is written or locked; broken descriptors refuse the mount, as in Linux.

use ondisk::group_desc::flags;
use ondisk::{Group, Ino};

use super::{DescriptorInodes, descriptor};
use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::sb::Zones;

/// What the descriptors say.
#[derive(Default)]
pub(crate) struct DescriptorSurvey {
    /// The groups' own blocks; others of the file system's are added before it is finished.
    pub(crate) zones: Zones,
    /// What each group has.
    pub(crate) said: Vec<DescriptorInodes>,
}

impl DescriptorSurvey {
    /// Reads all descriptors.
    ///
    /// # Errors
    /// `Corrupt`, `Io`; `Unsupported` for tables in more places than are kept.
    pub(crate) fn read(volume: &OpenVolume) -> Result<DescriptorSurvey, Error> {
        let geometry = volume.geometry();
        let mut survey = DescriptorSurvey::default();
        for group in geometry.all_groups() {
            let desc = descriptor(volume, group)?;
            survey.add_start(volume, group)?;
            let table = desc.inode_table().0;
            let single = |block: u64| block..block + 1;
            let ranges = [
                single(desc.block_bitmap().0),
                single(desc.inode_bitmap().0),
                table..table + u64::from(geometry.inode_table_blocks()),
            ];
            for range in ranges {
                survey.zones.add(range, Ino(0))?;
            }
            survey.said.push(DescriptorInodes {
                blocks: desc.free_clusters().min(geometry.group_clusters(group)),
                inodes: desc.free_inodes().min(geometry.inodes_per_group()),
                directories: desc.used_dirs().min(geometry.inodes_per_group()),
                is_initial: desc.has(flags::BLOCK_UNINIT),
            });
        }
        Ok(survey)
    }

    fn add_start(&mut self, volume: &OpenVolume, group: Group) -> Result<(), Error> {
        let end = volume.blocks().end;
        let start = volume.geometry().group_start(group);
        if let Some(block) = start.superblock {
            self.zones.add(block.0..block.0 + 1, Ino(0))?;
        }
        // In a last group without room for them there are fewer.
        let cut = |range: std::ops::Range<u64>| range.start.min(end)..range.end.min(end);
        self.zones.add(cut(start.descriptors), Ino(0))?;
        self.zones.add(cut(start.reserved), Ino::RESIZE)
    }
}
