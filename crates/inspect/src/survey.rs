//! A look at all of an image: which blocks are in use, and for what. It goes group by group: bitmaps first, then the
//! files whose inodes are in the group. Broken structures are counted and left out; they never end the survey.

use core::fmt::Display;
use core::ops::ControlFlow;

use ondisk::features::Feature;
use ondisk::group_desc::flags;
use ondisk::inode::Inode;
use ondisk::map::{MapNode, Run};
use ondisk::{Corrupt, FileType, FsBlock, Geometry, Group, GroupDesc, Ino, bitmap};

use crate::error::InspectError;
use crate::grid::{BlockSums, Grid, Kind};
use crate::image::{RawImage, Unvisited};
use crate::walk::{Piece, walk};

/// Inodes looked at, at most: a hostile image may claim all of 2^32 in the space of one.
const INODES_MAX: u64 = 1 << 24;
/// Blocks of files' maps read, at most.
const NODES_MAX: u64 = 1 << 22;
/// Runs of a file remembered until it is known how scattered it is, at most; of larger files the first ones decide.
const RUNS_MAX: usize = 1 << 16;

/// What the image holds, for each cell and in all.
pub struct Survey {
    /// Which blocks a cell stands for.
    pub grid: Grid,
    /// Blocks of each kind, a cell each.
    pub cells: Vec<BlockSums>,
    /// Blocks of each kind.
    pub totals: BlockSums,
    /// Regular files whose data is in one piece, in few and in many.
    pub files: [u64; 3],
    /// Runs of free blocks.
    pub free_runs: u64,
    /// Blocks of the longest.
    pub free_longest: u64,
    /// What the picture leaves out.
    pub remarks: Vec<String>,
    /// Blocks of a cluster.
    cluster: u64,
    /// Free blocks at the end of the group before.
    open_run: u64,
    inodes_left: u64,
    nodes_left: u64,
    broken_files: u64,
    broken_groups: u64,
    first_error: Option<String>,
}

impl Survey {
    /// Looks at the whole image, and calls `progress` with each group before it is read. What is broken is counted and
    /// left out.
    ///
    /// # Errors
    /// `Device` if the group descriptors can't be read.
    pub fn take(
        raw: &RawImage,
        grid: Grid,
        mut progress: impl FnMut(Group),
    ) -> Result<Survey, InspectError> {
        let mut survey = Survey {
            grid,
            cells: vec![[0; 7]; grid.cells()],
            totals: [0; 7],
            files: [0; 3],
            free_runs: 0,
            free_longest: 0,
            remarks: Vec::new(),
            cluster: raw.geometry.cluster_ratio().into(),
            open_run: 0,
            inodes_left: INODES_MAX,
            nodes_left: NODES_MAX,
            broken_files: 0,
            broken_groups: 0,
            first_error: None,
        };
        let unvisited = raw.descs(|group, desc| {
            progress(group);
            survey.group(raw, group, desc);
        })?;
        if let Some(unvisited) = unvisited {
            survey.unvisited(&raw.geometry, unvisited);
        }
        if raw.geometry.has(Feature::MMP) {
            survey.add(Kind::Metadata, raw.superblock.mmp_block(), 1);
        }
        survey.finish(&raw.geometry);
        Ok(survey)
    }

    fn add(&mut self, kind: Kind, start: FsBlock, len: u64) {
        let cells = &mut self.cells;
        // What is in use at all takes its cluster whole.
        let end = start.0.saturating_add(len).saturating_add(self.cluster - 1);
        let start = start.0 - start.0 % self.cluster;
        self.grid
            .split(start..end - end % self.cluster, |cell, blocks| {
                cells[cell][kind as usize] += blocks;
            });
    }

    fn broken(&mut self, what: impl Display) {
        self.first_error.get_or_insert_with(|| what.to_string());
    }

    /// Counts the last groups, whose descriptors are missing.
    fn unvisited(&mut self, geometry: &Geometry, unvisited: Unvisited) {
        self.broken_groups += unvisited.groups;
        self.broken(unvisited.why);
        let first = u64::from(geometry.groups()) - unvisited.groups;
        // A number of groups has 32 bits.
        let start = geometry.group_first_block(Group(first as u32));
        self.add(Kind::Unknown, start, geometry.blocks_count() - start.0);
    }

    fn group(&mut self, raw: &RawImage, group: Group, desc: Result<GroupDesc, Corrupt>) {
        let geometry = &raw.geometry;
        let start = geometry.group_start(group);
        let first = geometry.group_first_block(group);
        let desc = match desc {
            Ok(desc) => desc,
            Err(corrupt) => {
                self.broken_groups += 1;
                self.broken(corrupt);
                self.add(Kind::Unknown, first, geometry.group_blocks(group).into());
                return;
            }
        };
        if let Some(block) = start.superblock {
            self.add(Kind::Metadata, block, 1);
        }
        let tables = start.reserved.end - start.descriptors.start;
        self.add(Kind::Metadata, FsBlock(start.descriptors.start), tables);
        self.add(Kind::Metadata, desc.block_bitmap(), 1);
        self.add(Kind::Metadata, desc.inode_bitmap(), 1);
        self.add(
            Kind::Metadata,
            desc.inode_table(),
            geometry.inode_table_blocks().into(),
        );
        if let Err(error) = self.bitmap(raw, group, &desc) {
            self.broken_groups += 1;
            self.broken(error);
        }
        let looked = raw.used_inodes(group, &desc, |ino, slot| {
            self.inode(raw, ino, slot);
            if self.inodes_left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if let Err(error) = looked
            && self.inodes_left > 0
        {
            self.broken_groups += 1;
            self.broken(error);
        }
    }

    /// Counts what is in use for now as unknown; what is found later is taken away from that.
    fn bitmap(
        &mut self,
        raw: &RawImage,
        group: Group,
        desc: &GroupDesc,
    ) -> Result<(), InspectError> {
        let geometry = &raw.geometry;
        let clusters = geometry.group_clusters(group);
        let ratio = u64::from(geometry.cluster_ratio());
        let first = geometry.group_first_block(group).0;
        let blocks = u64::from(geometry.group_blocks(group));
        if desc.has(flags::BLOCK_UNINIT) {
            // Only the group's own metadata is in use: at its start, and what the descriptor places in it.
            let start = geometry.group_start(group).blocks().min(blocks);
            if start > 0 {
                self.end_run();
                self.add(Kind::Unknown, FsBlock(first), start);
            }
            self.open_run += blocks - start;
            for (block, len) in [
                (desc.block_bitmap(), 1),
                (desc.inode_bitmap(), 1),
                (desc.inode_table(), geometry.inode_table_blocks().into()),
            ] {
                if geometry.group_of_block(block) == Some(group) {
                    self.add(Kind::Unknown, block, len);
                    self.open_run = self.open_run.saturating_sub(len);
                }
            }
            return Ok(());
        }
        let bits = raw.block(desc.block_bitmap())?;
        desc.verify_block_bitmap(&bits, geometry, group)?;
        for (run, is_set) in bitmap::runs(&bits, clusters) {
            let len = u64::from(run.end - run.start) * ratio;
            if is_set {
                self.end_run();
                let start = first + u64::from(run.start) * ratio;
                let len = len.min(first + blocks - start);
                self.add(Kind::Unknown, FsBlock(start), len);
            } else {
                self.open_run += len;
            }
        }
        Ok(())
    }

    fn end_run(&mut self) {
        if self.open_run > 0 {
            self.free_runs += 1;
            self.free_longest = self.free_longest.max(self.open_run);
            self.open_run = 0;
        }
    }

    fn inode(&mut self, raw: &RawImage, ino: Ino, slot: &[u8]) {
        self.inodes_left = self.inodes_left.saturating_sub(1);
        let Ok(inode) = Inode::parse(slot) else {
            self.broken_files += 1;
            return;
        };
        if inode.xattr_block().0 != 0 {
            self.add(Kind::Metadata, inode.xattr_block(), 1);
        }
        match ino {
            // Its pointers name the reserved descriptor blocks, which are counted by their place.
            Ino::RESIZE => self.add(Kind::Metadata, FsBlock(inode.block_word(13).into()), 1),
            Ino::BAD => {}
            _ => {
                if let Err(error) = self.file(raw, ino, &inode) {
                    self.broken_files += 1;
                    self.broken(error);
                }
            }
        }
    }

    /// Walks a file's map, then adds its pieces as what they are. A block of the map between two blocks of data does
    /// not break a piece: block pointers can't be laid out otherwise.
    fn file(&mut self, raw: &RawImage, ino: Ino, inode: &Inode) -> Result<(), InspectError> {
        let fixed = fixed_kind(raw, ino, inode);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut nodes: Vec<FsBlock> = Vec::new();
        let mut budget = self.nodes_left;
        let (mut blocks, mut pieces, mut end) = (0u64, 0u64, None);
        let walked = walk::<InspectError>(raw, ino, inode, &mut budget, &mut |piece| {
            match piece {
                Piece::Node(MapNode { block, .. }) => {
                    nodes.push(block);
                    if end == Some(block.0) {
                        end = block.0.checked_add(1);
                    }
                }
                Piece::Run(Run { start, len, .. }) => {
                    blocks = blocks.saturating_add(len);
                    pieces += u64::from(end != Some(start.0));
                    end = start.0.checked_add(len);
                    runs.push((start.0, len));
                }
            }
            if runs.len() + nodes.len() >= RUNS_MAX {
                let kind = fixed.unwrap_or_else(|| scatter(raw, pieces, blocks));
                self.flush(&mut runs, &mut nodes, kind);
            }
            Ok(ControlFlow::Continue(()))
        });
        self.nodes_left = budget;
        let kind = scatter(raw, pieces, blocks);
        if fixed.is_none() && blocks > 0 {
            self.files[kind as usize - Kind::Whole as usize] += 1;
        }
        self.flush(&mut runs, &mut nodes, fixed.unwrap_or(kind));
        walked
    }

    fn flush(&mut self, runs: &mut Vec<(u64, u64)>, nodes: &mut Vec<FsBlock>, kind: Kind) {
        for (start, len) in runs.drain(..) {
            self.add(kind, FsBlock(start), len);
        }
        for block in nodes.drain(..) {
            self.add(Kind::Metadata, block, 1);
        }
    }

    /// Turns "in use" into "in use by nothing found", and the rest into free.
    fn finish(&mut self, geometry: &Geometry) {
        self.end_run();
        let mut sizes = vec![0; self.cells.len()];
        let all = geometry.first_data_block().0..geometry.blocks_count();
        self.grid.split(all, |cell, blocks| sizes[cell] += blocks);
        for (sums, size) in self.cells.iter_mut().zip(sizes) {
            // The bitmaps say how much is in use; blocks claimed twice must not make it more.
            let used = sums[Kind::Unknown as usize].min(size);
            let mut left = used;
            for kind in [
                Kind::Many,
                Kind::Few,
                Kind::Whole,
                Kind::Journal,
                Kind::Metadata,
            ] {
                let claimed = &mut sums[kind as usize];
                *claimed = (*claimed).min(left);
                left -= *claimed;
            }
            sums[Kind::Unknown as usize] = left;
            sums[Kind::Free as usize] = size - used;
            for (total, blocks) in self.totals.iter_mut().zip(sums.iter()) {
                *total += blocks;
            }
        }
        self.remark();
    }

    fn remark(&mut self) {
        let first = self.first_error.take().unwrap_or_default();
        let mut remark = |text: String| self.remarks.push(text);
        if self.broken_groups + self.broken_files > 0 {
            remark(format!(
                "{} broken groups and {} broken files are left out; the first: {first}",
                self.broken_groups, self.broken_files
            ));
        }
        if self.inodes_left == 0 || self.nodes_left == 0 {
            remark(format!(
                "there are more files than lanefs looks at ({INODES_MAX}, with {NODES_MAX} blocks of maps)"
            ));
        }
    }
}

/// The kind of data that does not belong to a user's file.
fn fixed_kind(raw: &RawImage, ino: Ino, inode: &Inode) -> Option<Kind> {
    let sb = &raw.superblock;
    if sb.journal_ino() == Some(ino) {
        return Some(Kind::Journal);
    }
    let is_hidden = ino < raw.geometry.first_ino() && ino != Ino::ROOT;
    if is_hidden || sb.orphan_file_ino() == Some(ino) {
        return Some(Kind::Metadata);
    }
    (inode.file_type() == Some(FileType::Directory)).then_some(Kind::Metadata)
}

/// How scattered a file is. Metadata at the start of groups breaks the longest files: one more piece for each half
/// group of data does not count as scattered.
fn scatter(raw: &RawImage, pieces: u64, blocks: u64) -> Kind {
    let inevitable = 2 * blocks / u64::from(raw.geometry.blocks_per_group());
    match pieces.saturating_sub(inevitable) {
        0..=1 => Kind::Whole,
        2..=4 => Kind::Few,
        _ => Kind::Many,
    }
}
