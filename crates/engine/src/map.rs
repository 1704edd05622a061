//! Where a file's blocks are: an iterator over runs, from an extent tree or from a block map.
//!
//! Both kinds of maps answer one question, "the next run that ends after this logical block" ([`ondisk::map`]).
//! [`Mappings`] puts holes between the answers, joins runs that continue each other, and cuts at the range asked for.

use std::ops::Range;

use ondisk::map::Run;
use ondisk::{FileType, Flags, FsBlock, LBlock};

use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::inode::LoadedInode;

mod draft;
mod walk;

pub(crate) use draft::{ExtentDraft, MapChange, home_group};

use walk::MapWalk;

/// A run of a file's blocks that are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first block, counted from the file's start.
    pub logical: u64,
    /// Blocks in the run; not 0.
    pub len: u64,
    /// The first block on the device; `None` for a hole.
    pub physical: Option<FsBlock>,
    /// Whether the run is allocated but reads as zeros.
    pub unwritten: bool,
}

impl Mapping {
    /// The block after the run.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.logical + self.len
    }

    /// Whether the run's bytes are on the device (neither hole nor unwritten).
    #[must_use]
    pub fn is_data(&self) -> bool {
        self.physical.is_some() && !self.unwritten
    }

    /// No blocks for a range.
    pub(crate) fn hole(range: Range<u64>) -> Mapping {
        Mapping {
            logical: range.start,
            len: range.end - range.start,
            physical: None,
            unwritten: false,
        }
    }

    /// The part of the run in `range`, which must overlap it.
    pub(crate) fn cut(self, range: &Range<u64>) -> Mapping {
        let logical = self.logical.max(range.start);
        let skipped = logical - self.logical;
        Mapping {
            logical,
            len: self.end().min(range.end) - logical,
            physical: self.physical.map(|first| FsBlock(first.0 + skipped)),
            ..self
        }
    }

    /// Whether `next` continues this run, on the device too.
    fn continues(&self, next: &Mapping) -> bool {
        let follows = match (self.physical, next.physical) {
            (Some(a), Some(b)) => a.0 + self.len == b.0,
            (None, None) => true,
            _ => false,
        };
        follows && self.end() == next.logical && self.unwritten == next.unwritten
    }
}

impl From<Run> for Mapping {
    fn from(run: Run) -> Mapping {
        Mapping {
            logical: run.logical,
            len: run.len,
            physical: Some(run.start),
            unwritten: run.unwritten,
        }
    }
}

/// A walk through the map of a file; `None` for one without blocks.
fn walk_of(volume: &OpenVolume, inode: &LoadedInode) -> Result<Option<MapWalk>, Error> {
    if is_mapped(inode) {
        MapWalk::new(volume, inode).map(Some)
    } else {
        Ok(None)
    }
}

/// Whether the inode's block area is a map.
pub(crate) fn is_mapped(inode: &LoadedInode) -> bool {
    match inode.file_type() {
        Some(FileType::Regular | FileType::Directory) => !inode.is_inline(),
        Some(FileType::Symlink) => !inode.is_inline() && !is_short_link(inode),
        _ => false,
    }
}

/// Whether a symbolic link's target lies in the block area.
pub(crate) fn is_short_link(inode: &LoadedInode) -> bool {
    // The target fits with a zero byte after it.
    let fits = inode.size(false) < ondisk::inode::BLOCK_AREA as u64;
    fits && !inode.is_inline() && !inode.flags().contains(Flags::EXTENTS)
}

/// The runs of a file in ascending order, holes included. Ends after an error.
pub struct Mappings<'a> {
    volume: &'a OpenVolume,
    /// `None` for a file without blocks.
    walk: Option<MapWalk>,
    /// What is still to be answered. An open end is `u64::MAX`; then holes end where the file does.
    range: Range<u64>,
    file_blocks: u64,
    /// The run found after a hole that was answered first, or that the one before did not join.
    found: Option<Mapping>,
}

impl<'a> Mappings<'a> {
    /// The runs of a file that overlap `range`, cut to it. With an open end (`u64::MAX`), the runs beyond the
    /// end of the file too.
    pub(crate) fn new(
        volume: &'a OpenVolume,
        inode: &LoadedInode,
        range: Range<u64>,
    ) -> Result<Mappings<'a>, Error> {
        let block_size = volume.geometry().block_size();
        Ok(Mappings {
            volume,
            walk: walk_of(volume, inode)?,
            range,
            file_blocks: if inode.is_inline() || is_linkish(inode) {
                0
            } else {
                block_size.blocks_for(inode.bytes(volume))
            },
            found: None,
        })
    }

    fn find(&mut self, from: u64) -> Result<Option<Mapping>, Error> {
        if let Some(found) = self.found.take() {
            return Ok(Some(found));
        }
        if from >= self.range.end {
            return Ok(None);
        }
        let Some(walk) = &mut self.walk else {
            return Ok(None);
        };
        let found = walk.next(self.volume, from)?;
        Ok(found
            .filter(|run| run.logical < self.range.end)
            .map(|run| run.cut(&(from..self.range.end))))
    }

    fn advance(&mut self) -> Result<Option<Mapping>, Error> {
        let from = self.range.start;
        let Some(mut run) = self.find(from)? else {
            let end = match self.range.end {
                u64::MAX => self.file_blocks,
                end => end,
            };
            self.range.start = self.range.end;
            return Ok((from < end).then(|| Mapping::hole(from..end)));
        };
        if run.logical > from {
            self.found = Some(run);
            return Ok(Some(Mapping::hole(from..run.logical)));
        }
        while let Some(next) = self.find(run.end())? {
            if !run.continues(&next) {
                self.found = Some(next);
                break;
            }
            run.len += next.len;
        }
        Ok(Some(run))
    }
}

/// Whether a size does not count blocks: short links, devices, pipes, sockets.
fn is_linkish(inode: &LoadedInode) -> bool {
    match inode.file_type() {
        Some(FileType::Regular | FileType::Directory) => false,
        Some(FileType::Symlink) => is_short_link(inode),
        _ => true,
    }
}

impl Iterator for Mappings<'_> {
    type Item = Result<Mapping, Error>;

    fn next(&mut self) -> Option<Result<Mapping, Error>> {
        if self.range.start >= self.range.end {
            return None;
        }
        match self.advance() {
            Ok(None) => None,
            Ok(Some(run)) => {
                self.range.start = run.end();
                Some(Ok(run))
            }
            Err(error) => {
                self.range.start = self.range.end;
                Some(Err(error))
            }
        }
    }
}

/// The run with the smallest logical block among those that end after `from`.
pub(crate) fn next_run(
    volume: &OpenVolume,
    inode: &LoadedInode,
    from: u64,
) -> Result<Option<Mapping>, Error> {
    // Most files; and it takes a third of a walk.
    let has_tree = is_mapped(inode) && inode.flags().contains(Flags::EXTENTS);
    if has_tree && walk::is_root_only(inode) {
        return walk::next_in_root(volume, inode, from);
    }
    match walk_of(volume, inode)? {
        Some(mut walk) => walk.next(volume, from),
        None => Ok(None),
    }
}

/// The run that holds a block, no longer than the map records it in one piece; `None` for holes.
pub(crate) fn find_run(
    volume: &OpenVolume,
    inode: &LoadedInode,
    block: u64,
) -> Result<Option<Mapping>, Error> {
    let found = next_run(volume, inode, block)?;
    Ok(found.filter(|run| run.logical <= block))
}

/// The block of the device that holds a file's block; `None` for holes and unwritten blocks.
pub(crate) fn find_block(
    volume: &OpenVolume,
    inode: &LoadedInode,
    block: LBlock,
) -> Result<Option<FsBlock>, Error> {
    let from = u64::from(block.0);
    let found = next_run(volume, inode, from)?;
    let found = found.filter(|run| run.logical <= from && !run.unwritten);
    Ok(found.and_then(|run| run.cut(&(from..from + 1)).physical))
}

/// Fills all of `buf` from a file's blocks, straight from the device: one read a run. Holes and unwritten blocks
/// are zeros. What lies beyond the mapped blocks is zeros too, so the caller compares with the file's size.
pub(crate) fn read_bytes(
    volume: &OpenVolume,
    inode: &LoadedInode,
    offset: u64,
    buf: &mut [u8],
) -> Result<(), Error> {
    let size = volume.geometry().block_size();
    let end = offset.saturating_add(buf.len() as u64);
    let range = offset >> size.bits()..size.blocks_for(end);
    let mut rest = buf;
    let mut at = offset;
    for run in Mappings::new(volume, inode, range)? {
        let run = run?;
        let run_end = run.end().saturating_mul(size.bytes_u64()).min(end);
        // Runs follow each other, so each begins at `at` or, the first one, in the block that holds it.
        let (part, after) = rest.split_at_mut((run_end - at) as usize);
        match run.physical.filter(|_| run.is_data()) {
            Some(first) => {
                let skipped = at - (run.logical << size.bits());
                volume.read_bytes(first.offset(size) + skipped, part)?;
            }
            None => part.fill(0),
        }
        rest = after;
        at = run_end;
    }
    Ok(())
}
