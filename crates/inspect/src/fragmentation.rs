//! How large the runs of free blocks are, as e2freefrag counts them, and in how many pieces the contents of files lie,
//! as filefrag does. Looks at every block bitmap and every file's map once and keeps sums by power of two, so that
//! memory does not depend on the image. Broken structures are counted and left out; they never end the survey.

use core::fmt::Display;
use core::ops::ControlFlow;

use ondisk::group_desc::flags;
use ondisk::inode::Inode;
use ondisk::{Corrupt, FileType, FsBlock, Geometry, Group, GroupDesc, Ino, bitmap};

use crate::error::InspectError;
use crate::image::RawImage;
use crate::walk::{Piece, walk};

/// Inodes looked at, at most: a hostile image may claim all of 2^32 in the space of one.
const INODES_MAX: u64 = 1 << 24;
/// Blocks of files' maps read, at most.
const NODES_MAX: u64 = 1 << 22;

/// Counts by power of two: how many, and the sum of what they hold.
pub struct SizeCounts([(u64, u64); 64]);

impl Default for SizeCounts {
    fn default() -> SizeCounts {
        SizeCounts([(0, 0); 64])
    }
}

impl SizeCounts {
    /// Counts one by `size`, which is not 0, and adds `amount` to what those of its size hold.
    fn add(&mut self, size: u64, amount: u64) {
        let (count, sum) = &mut self.0[size.max(1).ilog2() as usize];
        *count += 1;
        *sum += amount;
    }

    /// The smallest size, the count and the sum of each power that has any.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let rows = self.0.iter().enumerate();
        rows.filter(|(_, (count, _))| *count > 0)
            .map(|(power, (count, sum))| (1 << power, *count, *sum))
    }
}

/// Runs of free blocks.
#[derive(Default)]
pub struct FreeRuns {
    /// How many.
    pub runs: u64,
    /// Blocks of all.
    pub blocks: u64,
    /// Blocks of the shortest.
    pub shortest: u64,
    /// Blocks of the longest.
    pub longest: u64,
    /// How many there are of each size in blocks, and how many blocks those have.
    pub by_size: SizeCounts,
    /// Free blocks at the end of what was looked at: they may go on in the next group.
    open: u64,
}

impl FreeRuns {
    fn end_run(&mut self) {
        let len = std::mem::take(&mut self.open);
        if len == 0 {
            return;
        }
        self.shortest = match self.runs {
            0 => len,
            _ => self.shortest.min(len),
        };
        self.longest = self.longest.max(len);
        self.runs += 1;
        self.blocks += len;
        self.by_size.add(len, len);
    }
}

/// In how many pieces files of one kind lie. A piece is a run of blocks that follow each other in the file and on the
/// device; what has no blocks is not counted.
#[derive(Default)]
pub struct FilePieces {
    /// How many.
    pub files: u64,
    /// Pieces of all.
    pub extents: u64,
    /// Blocks of all.
    pub blocks: u64,
    /// The one with the most pieces, and their number.
    pub worst: Option<(Ino, u64)>,
    /// How many have each number of pieces, and how many blocks those have.
    pub by_extents: SizeCounts,
}

impl FilePieces {
    fn add(&mut self, ino: Ino, extents: u64, blocks: u64) {
        if extents == 0 {
            return;
        }
        self.files += 1;
        self.extents += extents;
        self.blocks += blocks;
        self.by_extents.add(extents, blocks);
        if self.worst.is_none_or(|(_, worst)| extents > worst) {
            self.worst = Some((ino, extents));
        }
    }
}

/// How scattered free space and files are.
#[derive(Default)]
pub struct Fragmentation {
    /// Runs of free blocks.
    pub free: FreeRuns,
    /// Regular files.
    pub files: FilePieces,
    /// Directories.
    pub directories: FilePieces,
    /// Groups and files that are broken and left out.
    pub broken: u64,
    inodes: u64,
    nodes: u64,
    first_error: Option<String>,
}

impl Fragmentation {
    /// Looks at the whole image, and calls `progress` with each group before it is read. What is broken is counted and
    /// left out.
    ///
    /// # Errors
    /// `Device` if the group descriptors can't be read.
    pub fn look(
        raw: &RawImage,
        mut progress: impl FnMut(Group),
    ) -> Result<Fragmentation, InspectError> {
        let mut frag = Fragmentation::default();
        let unvisited = raw.descs(|group, desc| {
            progress(group);
            frag.group(raw, group, desc);
        })?;
        if let Some(unvisited) = unvisited {
            frag.broken += unvisited.groups;
            frag.first_error.get_or_insert(unvisited.why);
        }
        frag.free.end_run();
        Ok(frag)
    }

    /// What the numbers leave out, as a sentence.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        if self.inodes >= INODES_MAX || self.nodes >= NODES_MAX {
            return Some(format!(
                "there are more files than lanefs looks at ({INODES_MAX}, with {NODES_MAX} blocks of maps)"
            ));
        }
        let first = self.first_error.as_ref()?;
        Some(format!(
            "{} broken groups and files are left out of the pieces; the first: {first}",
            self.broken
        ))
    }

    fn broken(&mut self, what: impl Display) {
        self.broken += 1;
        self.first_error.get_or_insert_with(|| what.to_string());
    }

    fn group(&mut self, raw: &RawImage, group: Group, desc: Result<GroupDesc, Corrupt>) {
        let desc = match desc {
            Ok(desc) => desc,
            Err(corrupt) => {
                self.free.end_run();
                return self.broken(corrupt.group(group));
            }
        };
        if let Err(error) = self.bitmap(raw, group, &desc) {
            self.free.end_run();
            self.broken(error);
        }
        if self.inodes >= INODES_MAX {
            return;
        }
        let looked = raw.used_inodes(group, &desc, |ino, slot| {
            self.inodes += 1;
            self.inode(raw, ino, slot);
            if self.inodes < INODES_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        if let Err(error) = looked
            && self.inodes < INODES_MAX
        {
            self.broken(error);
        }
    }

    fn bitmap(
        &mut self,
        raw: &RawImage,
        group: Group,
        desc: &GroupDesc,
    ) -> Result<(), InspectError> {
        let geometry = &raw.geometry;
        let (ratio, blocks) = (
            u64::from(geometry.cluster_ratio()),
            u64::from(geometry.group_blocks(group)),
        );
        let bits = if desc.has(flags::BLOCK_UNINIT) {
            own_blocks(geometry, group, desc)
        } else {
            let bits = raw.block(desc.block_bitmap())?;
            desc.verify_block_bitmap(&bits, geometry, group)?;
            bits
        };
        for (run, is_set) in bitmap::runs(&bits, geometry.group_clusters(group)) {
            if is_set {
                self.free.end_run()
            } else {
                // The last cluster may reach beyond the end.
                let (start, end) = (u64::from(run.start) * ratio, u64::from(run.end) * ratio);
                self.free.open += end.min(blocks).saturating_sub(start);
            }
        }
        Ok(())
    }

    fn inode(&mut self, raw: &RawImage, ino: Ino, slot: &[u8]) {
        let is_hidden = ino < raw.geometry.first_ino() && ino != Ino::ROOT;
        if is_hidden || raw.superblock.orphan_file_ino() == Some(ino) {
            return;
        }
        let inode = match Inode::parse(slot) {
            Ok(inode) => inode,
            Err(corrupt) => return self.broken(corrupt.ino(ino)),
        };
        let file_type = inode.file_type();
        if !matches!(file_type, Some(FileType::Regular | FileType::Directory)) {
            return;
        }
        let mut left = NODES_MAX.saturating_sub(self.nodes);
        let (mut extents, mut blocks, mut next) = (0, 0, None);
        let walked = walk::<InspectError>(raw, ino, &inode, &mut left, &mut |piece| {
            if let Piece::Run(run) = piece {
                extents += u64::from(next != Some((run.logical, run.start.0)));
                blocks += run.len;
                next = Some((run.end(), run.start.0 + run.len));
            }
            Ok(ControlFlow::Continue(()))
        });
        self.nodes = NODES_MAX - left;
        if let Err(error) = walked {
            return self.broken(error);
        }
        match file_type {
            Some(FileType::Directory) => self.directories.add(ino, extents, blocks),
            _ => self.files.add(ino, extents, blocks),
        }
    }
}

/// The bitmap of a group that was never written to: the metadata that lies in it.
fn own_blocks(geometry: &Geometry, group: Group, desc: &GroupDesc) -> Vec<u8> {
    let mut bits = vec![0; geometry.block_size().bytes()];
    let clusters = geometry.group_clusters(group);
    let ratio = geometry.cluster_ratio();
    let taken = geometry.group_start(group).blocks();
    // No more than the group has.
    let taken = taken.div_ceil(u64::from(ratio)).min(u64::from(clusters)) as u32;
    bitmap::set_range(&mut bits, 0..taken);
    for (start, len) in [
        (desc.block_bitmap(), 1),
        (desc.inode_bitmap(), 1),
        (desc.inode_table(), geometry.inode_table_blocks()),
    ] {
        let Some((_, first)) = geometry.bit_of_block(start).filter(|(at, _)| *at == group) else {
            continue;
        };
        let last = geometry
            .bit_of_block(FsBlock(start.0 + u64::from(len) - 1))
            .filter(|(at, _)| *at == group)
            .map_or(clusters, |(_, bit)| bit + 1);
        bitmap::set_range(&mut bits, first..last);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_put_sizes_between_powers_of_two() {
        let mut sizes = SizeCounts::default();
        for size in [1, 2, 3, 4, 7, 8, u64::MAX] {
            sizes.add(size, 10);
        }
        let rows: Vec<_> = sizes.rows().collect();
        assert_eq!(rows[..3], [(1, 1, 10), (2, 2, 20), (4, 2, 20)]);
        assert_eq!(rows[3..], [(8, 1, 10), (1 << 63, 1, 10)]);
    }
}
