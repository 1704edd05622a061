//! What part of a file system a byte of the device belongs to, and what its groups look like: read from the device with
//! `ondisk` alone.

use device::{BlockDevice, DeviceError};
use engine::{Ino, MountOptions};
use lanefs::Error;
use ondisk::group_desc::flags;
use ondisk::{Geometry, GroupDesc, Superblock, bitmap};
use sync::Arc;

/// The parts.
pub(crate) const REGIONS: [&str; 5] = ["inode table", "bitmap", "descriptors", "journal", "other"];
/// The journal's inode.
const JOURNAL: Ino = Ino(8);

/// Which blocks belong to which part.
pub(crate) struct Regions {
    block_bytes: u64,
    /// Where runs of blocks begin, in ascending order, with where they end and their part.
    runs: Vec<(u64, u64, usize)>,
}

impl Regions {
    /// The part of a byte.
    pub(crate) fn find(&self, offset: u64) -> usize {
        let block = offset / self.block_bytes;
        let place = self.runs.partition_point(|(start, _, _)| *start <= block);
        let run = place.checked_sub(1).map(|place| self.runs[place]);
        match run {
            Some((_, end, region)) if block < end => region,
            _ => REGIONS.len() - 1,
        }
    }
}

/// What lies on a device.
pub(crate) struct RegionSurvey {
    geometry: Geometry,
    descriptors: Vec<GroupDesc>,
    device: Arc<dyn BlockDevice>,
}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::Host {
        operation: "surveying",
        path: "the image".into(),
        source: std::io::Error::other(error.to_string()),
    }
}

fn failed(error: DeviceError) -> Error {
    broken(error)
}

impl RegionSurvey {
    /// Reads the superblock and the descriptors of a clean image.
    pub(crate) fn of(device: Arc<dyn BlockDevice>) -> Result<RegionSurvey, Error> {
        let fs = lanefs::Fs::open_with(Arc::clone(&device), &MountOptions::default())?;
        let superblock: Superblock = *fs.inodes().superblock();
        let geometry = Geometry::new(&superblock, device.size()).map_err(broken)?;
        let mut descriptors = Vec::new();
        let mut block = vec![0; geometry.block_size().bytes()];
        for index in 0..geometry.desc_blocks() {
            let place = geometry.desc_block(index).0 * geometry.block_size().bytes_u64();
            device.read_at(place, &mut block).map_err(failed)?;
            let left = geometry.groups() as usize - descriptors.len();
            let raws = block.chunks_exact(geometry.desc_size());
            descriptors.extend(raws.take(left).map(GroupDesc::load));
        }
        Ok(RegionSurvey {
            geometry,
            descriptors,
            device,
        })
    }

    /// Where its parts lie.
    pub(crate) fn regions(&self) -> Result<Regions, Error> {
        let mut runs = Vec::new();
        for desc in &self.descriptors {
            let table = desc.inode_table().0;
            let end = table + u64::from(self.geometry.inode_table_blocks());
            runs.push((table, end, 0));
            for bitmap in [desc.block_bitmap().0, desc.inode_bitmap().0] {
                runs.push((bitmap, bitmap + 1, 1));
            }
        }
        let first = self.geometry.desc_block(0).0;
        runs.push((first, first + u64::from(self.geometry.desc_blocks()), 2));
        let fs = lanefs::Fs::open_with(Arc::clone(&self.device), &MountOptions::default())?;
        let wrapped = |source| Error::Fs {
            path: b"the journal".to_vec(),
            source,
        };
        for run in fs.inodes().mappings(JOURNAL).map_err(wrapped)? {
            let run = run.map_err(wrapped)?;
            if let Some(physical) = run.physical {
                runs.push((physical.0, physical.0 + run.len, 3));
            }
        }
        runs.sort_unstable();
        Ok(Regions {
            block_bytes: self.geometry.block_size().bytes_u64(),
            runs,
        })
    }

    /// Groups whose inode bitmap is in use, and inodes in the part of their tables that e2fsck reads.
    pub(crate) fn initialised(&self) -> (u64, u64) {
        let used = self.descriptors.iter();
        let used = used.filter(|desc| !desc.has(flags::INODE_UNINIT));
        let per_group = self.geometry.inodes_per_group();
        used.fold((0, 0), |(groups, inodes), desc| {
            let read = per_group.saturating_sub(desc.itable_unused());
            (groups + 1, inodes + u64::from(read))
        })
    }

    /// How many runs of free blocks there are, how many blocks they have, and how many the longest has.
    pub(crate) fn free_runs(&self) -> Result<(u64, u64, u64), Error> {
        let (mut runs, mut free, mut longest) = (0, 0, 0);
        let mut add = |len: u64| {
            runs += 1;
            free += len;
            longest = longest.max(len);
        };
        let mut bits = vec![0; self.geometry.block_size().bytes()];
        for (group, desc) in self.geometry.all_groups().zip(&self.descriptors) {
            if desc.has(flags::BLOCK_UNINIT) {
                add(desc.free_clusters().into());
                continue;
            }
            let place = desc.block_bitmap().0 * self.geometry.block_size().bytes_u64();
            self.device.read_at(place, &mut bits).map_err(failed)?;
            for (run, is_used) in bitmap::runs(&bits, self.geometry.group_clusters(group)) {
                if !is_used {
                    add(run.len() as u64);
                }
            }
        }
        Ok((runs, free, longest))
    }
}
