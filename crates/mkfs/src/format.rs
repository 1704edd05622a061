//! An empty file system: the layout, a root directory, and lost+found.

use device::{BlockDevice, DeviceError};
use ondisk::dirent::{self, DirBlockWriter, DirForm};
use ondisk::{FileType, Flags, FsBlock, Group, Ino};

use crate::file_map::MapBlock;
use crate::layout::FilePlan;
use crate::{BlockRun, Error, FormatSummary, GroupUse, Layout, SpecialInode, Usage, tables};

const LOST_FOUND: Ino = Ino::FIRST_UNRESERVED;

/// Writes an empty file system to a device of at least [`Layout::size_bytes`].
///
/// # Errors
/// When the device is too short or fails, or no block is left for the root directory.
pub fn format(device: &dyn BlockDevice, layout: &Layout) -> Result<FormatSummary, Error> {
    if device.size() < layout.size_bytes() {
        return Err(Error::Device(DeviceError::OutOfRange {
            operation: "write",
            offset: 0,
            len: layout.size_bytes(),
            size: device.size(),
        }));
    }
    layout.write_special_files(device)?;
    let mut free = FreeBlocks::new(layout);
    let root = free.take(1)?;
    let lost_found = if layout.habits.lost_found {
        Some(free.take(tables::lost_found_blocks(layout.block_size()))?)
    } else {
        None
    };
    let mut inodes = layout.special_inodes();
    inodes.push(write_root(device, layout, &root)?);
    if let Some(plan) = &lost_found {
        inodes.push(write_lost_found(device, layout, plan)?);
    }
    write_inodes(device, layout, inodes)?;
    let directories: &[Ino] = match lost_found {
        Some(_) => &[Ino::ROOT, LOST_FOUND],
        None => &[Ino::ROOT],
    };
    let mut data = root.runs;
    data.extend(lost_found.into_iter().flat_map(|plan| plan.runs));
    data.sort_unstable_by_key(|run| run.start);
    layout.finish(device, &usage(layout, data, directories))
}

/// The special inodes and the directories, whose inodes may span several groups if these are tiny.
fn usage(layout: &Layout, data: Vec<BlockRun>, directories: &[Ino]) -> Usage {
    let geometry = layout.geometry();
    let per_group = geometry.inodes_per_group();
    let used = layout.first_free_ino().0 - 1;
    let mut groups = vec![GroupUse::default(); used.div_ceil(per_group) as usize];
    let mut left = used;
    for group in &mut groups {
        group.inodes = left.min(per_group);
        left -= group.inodes;
    }
    for ino in directories {
        let place = geometry.group_of_ino(*ino);
        if let Some(group) = place.and_then(|(group, _)| groups.get_mut(group.0 as usize)) {
            group.directories += 1;
        }
    }
    Usage {
        data,
        groups,
        kib_written: 0,
    }
}

/// Free blocks of a plan, from the first on.
struct FreeBlocks<'a> {
    layout: &'a Layout,
    at: u64,
    next_used: usize,
}

impl FreeBlocks<'_> {
    fn new(layout: &Layout) -> FreeBlocks<'_> {
        FreeBlocks {
            layout,
            at: 0,
            next_used: 0,
        }
    }

    /// Takes `blocks` blocks, in whole clusters.
    fn take(&mut self, blocks: u64) -> Result<FilePlan, Error> {
        let ratio = u64::from(self.layout.geometry().cluster_ratio());
        let end = self.layout.geometry().blocks_count();
        let mut left = blocks;
        let mut plan = FilePlan::default();
        while left > 0 {
            let used = self.layout.used().get(self.next_used);
            let limit = used.map_or(end, |run| run.start.0);
            if self.at >= limit {
                let Some(used) = used else {
                    return Err(Error::TooSmall {
                        what: "the root directory".into(),
                        size: self.layout.size_bytes(),
                        instead: "ask for fewer inodes (-N, -i)",
                    });
                };
                self.at = used.end().0;
                self.next_used += 1;
                continue;
            }
            let len = left.min(limit - self.at);
            plan.runs.push(BlockRun {
                start: FsBlock(self.at),
                len,
            });
            left -= len;
            self.at = (self.at + len).next_multiple_of(ratio);
        }
        Ok(plan)
    }
}

fn write_root(
    device: &dyn BlockDevice,
    layout: &Layout,
    plan: &FilePlan,
) -> Result<SpecialInode, Error> {
    let lost_found = layout.habits.lost_found.then_some(LOST_FOUND);
    write_directory(device, layout, Ino::ROOT, plan, lost_found)?;
    let links = 2 + u16::from(lost_found.is_some());
    let mut inode = layout.new_inode(FileType::Directory.mode_bits() | 0o755, links);
    let (uid, gid) = layout.habits.root_owner;
    inode.set_uid(uid);
    inode.set_gid(gid);
    write_map(device, layout, layout.fill(&mut inode, Ino::ROOT, plan))?;
    Ok(layout.special(Ino::ROOT, &inode))
}

fn write_lost_found(
    device: &dyn BlockDevice,
    layout: &Layout,
    plan: &FilePlan,
) -> Result<SpecialInode, Error> {
    write_directory(device, layout, LOST_FOUND, plan, None)?;
    let mut inode = layout.new_inode(FileType::Directory.mode_bits() | 0o700, 2);
    write_map(device, layout, layout.fill(&mut inode, LOST_FOUND, plan))?;
    Ok(layout.special(LOST_FOUND, &inode))
}

fn write_map(device: &dyn BlockDevice, layout: &Layout, map: Vec<MapBlock>) -> Result<(), Error> {
    map.iter()
        .try_for_each(|block| layout.write_block(device, block.place, &block.bytes))
}

/// Writes the blocks of a directory that is in the root, or is it: the dots and lost+found, if it is there, into the
/// first, the others empty.
fn write_directory(
    device: &dyn BlockDevice,
    layout: &Layout,
    ino: Ino,
    plan: &FilePlan,
    lost_found: Option<Ino>,
) -> Result<(), Error> {
    let form = DirForm::of(layout.geometry(), Flags::default());
    let mut is_first = true;
    for run in &plan.runs {
        for block in run.start.0..run.end().0 {
            let mut bytes = vec![0; form.block_size.bytes()];
            let mut writer = DirBlockWriter::new(&mut bytes, form);
            if std::mem::take(&mut is_first) {
                writer.push_dots(ino, Ino::ROOT);
                if let Some(target) = lost_found {
                    let file_type = Some(FileType::Directory);
                    let fits = writer.push(target, b"lost+found", file_type, None);
                    debug_assert!(fits);
                }
            }
            writer.finish();
            if let Some(seed) = layout.inode_seed(ino) {
                dirent::seal(&mut bytes, seed);
            }
            layout.write_block(device, FsBlock(block), &bytes)?;
        }
    }
    Ok(())
}

/// Writes the blocks of inode tables that hold these inodes; the rest of these blocks is zero.
fn write_inodes(
    device: &dyn BlockDevice,
    layout: &Layout,
    mut inodes: Vec<SpecialInode>,
) -> Result<(), Error> {
    inodes.sort_unstable_by_key(|inode| inode.ino);
    let geometry = layout.geometry();
    let last = inodes
        .last()
        .and_then(|inode| geometry.group_of_ino(inode.ino));
    let groups = last.map_or(0, |(group, _)| group.0 + 1);
    for group in (0..groups).map(Group) {
        let first = u64::from(group.0) * u64::from(geometry.inodes_per_group());
        let used = (u64::from(layout.first_free_ino().0) - 1 - first)
            .min(geometry.inodes_per_group().into());
        let bytes = used * geometry.inode_size() as u64;
        let blocks = geometry.block_size().blocks_for(bytes);
        // Fewer than 20 inodes.
        let mut table = vec![0; blocks as usize * geometry.block_size().bytes()];
        for inode in &inodes {
            let Some((_, index)) = geometry
                .group_of_ino(inode.ino)
                .filter(|(at, _)| *at == group)
            else {
                continue;
            };
            let at = index as usize * geometry.inode_size();
            table[at..at + inode.bytes.len()].copy_from_slice(&inode.bytes);
        }
        layout.write_block(device, layout.place(group).inode_table, &table)?;
    }
    Ok(())
}
