//! Fills the data blocks: files' bytes, directories, long symlink targets; in order of their places, on all threads.
//!
//! A batch is a stretch of about [`BATCH_BYTES`] in the plan's order, so that small files that lie together are read
//! into one buffer and written at once, and big ones are shared by the threads. A thread takes a batch under a lock,
//! reads its files without one, and writes in its turn. What no batch touches is never written: holes stay holes.

use device::BlockDevice;
use sync::{Mutex, Rank};

use super::blocks::{BlockWriter, Turn};
use super::job::Job;
use crate::error::BuildError;
use crate::plan::place::{BlockOwner, FilePlace};
use crate::plan::{ImagePlan, directories};
use crate::source::{Data, FileReader, Kind, Nearby, NodeId, SourceTree};

/// Bytes a thread takes at once.
pub(crate) const BATCH_BYTES: u64 = 2 << 20;
/// Bytes a thread gathers before it writes: few enough to be in the processor's cache still when they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// A part of one run of a file.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Index of the file in the plan.
    file: u32,
    /// Index of the run in the file.
    run: u32,
    /// Blocks of the run before the piece.
    skip: u64,
    /// Blocks.
    len: u64,
}

/// Where the next batch begins.
#[derive(Default)]
struct Cursor {
    file: usize,
    run: usize,
    skip: u64,
}

impl Cursor {
    /// Moves a batch's pieces into `pieces`; none at the end.
    fn take(&mut self, plan: &ImagePlan, limit: u64, pieces: &mut Vec<Piece>) {
        pieces.clear();
        let mut blocks = 0;
        while blocks < limit {
            let Some(file) = plan.placement.files.get(self.file) else {
                return;
            };
            let runs = plan.placement.runs(file);
            let whole = plan.is_directory(file);
            // Values are written with their inodes.
            let is_copied = file.owner != BlockOwner::Value;
            let Some(run) = runs.get(self.run).filter(|_| is_copied) else {
                *self = Cursor {
                    file: self.file + 1,
                    ..Cursor::default()
                };
                continue;
            };
            let left = run.len - self.skip;
            let len = if whole {
                left
            } else {
                left.min(limit - blocks)
            };
            pieces.push(Piece {
                file: self.file as u32,
                run: self.run as u32,
                skip: self.skip,
                len,
            });
            blocks += len;
            self.skip += len;
            // A directory is made in one go, all its runs at once.
            if whole {
                *self = Cursor {
                    file: self.file + 1,
                    ..Cursor::default()
                };
            } else if self.skip == run.len {
                *self = Cursor {
                    file: self.file,
                    run: self.run + 1,
                    skip: 0,
                };
            }
        }
    }
}

/// Copies everything that the plan has a place for, but what streams fill.
///
/// # Errors
/// The first that any thread met; the device then holds any part.
pub(crate) fn copy(
    tree: &SourceTree,
    plan: &ImagePlan,
    device: &dyn BlockDevice,
    job: &Job<'_>,
) -> Result<(), BuildError> {
    let cursor = Mutex::new(Rank::Queue, Cursor::default());
    let limit = (BATCH_BYTES >> plan.shape.block_size.bits()).max(1);
    let turn = Turn::new();
    job.run(|_| {
        let buffer = BUFFER_BYTES.max(plan.shape.block_size.bytes());
        let mut worker = Worker {
            tree,
            plan,
            writer: BlockWriter::shared(device, buffer, &turn),
            nearby: Nearby::default(),
        };
        let mut pieces = Vec::new();
        loop {
            job.check()?;
            cursor.lock().take(plan, limit, &mut pieces);
            if pieces.is_empty() {
                worker.writer.flush()?;
                return Ok(());
            }
            worker.batch(&pieces, job)?;
        }
    })
}

/// What one thread works with.
struct Worker<'a> {
    tree: &'a SourceTree,
    plan: &'a ImagePlan,
    writer: BlockWriter<'a>,
    nearby: Nearby,
}

impl<'a> Worker<'a> {
    fn batch(&mut self, pieces: &[Piece], job: &Job<'_>) -> Result<(), BuildError> {
        let mut open: Option<(u32, FileReader<'a>)> = None;
        let mut bytes = 0;
        for piece in pieces {
            let file = &self.plan.placement.files[piece.file as usize];
            bytes += piece.len << self.plan.shape.block_size.bits();
            if self.plan.is_directory(file) {
                self.directory(file)?;
                continue;
            }
            let BlockOwner::Node(id) = file.owner else {
                continue;
            };
            if let Kind::Symlink(target) = self.tree.kind(id) {
                let start = self.plan.placement.runs(file)[0].start;
                let size = self.plan.shape.block_size;
                let block = self.writer.range(start.offset(size), size.bytes())?;
                block[..target.len()].copy_from_slice(target);
                block[target.len()..].fill(0);
                continue;
            }
            if matches!(self.tree.data(id), Data::Stream { .. }) {
                continue;
            }
            if open.as_ref().is_none_or(|(at, _)| *at != piece.file) {
                let reader = self.tree.open(id, &mut self.nearby)?;
                // A file in one piece is looked at when it is read, which is a moment later.
                if !self.is_whole(file, piece) {
                    reader.check()?;
                }
                open = Some((piece.file, reader));
            }
            let Some((_, reader)) = &open else { continue };
            self.file_piece(file, piece, id, reader)?;
        }
        job.advance(bytes);
        Ok(())
    }

    /// Whether a piece is all of a file that is read in one go.
    fn is_whole(&self, file: &FilePlace, piece: &Piece) -> bool {
        let [run] = self.plan.placement.runs(file) else {
            return false;
        };
        let bytes = piece.len << self.plan.shape.block_size.bits();
        piece.len == run.len && bytes <= self.writer.capacity() as u64
    }

    /// Copies a piece of a file; what of its blocks is not data is zeros.
    fn file_piece(
        &mut self,
        file: &FilePlace,
        piece: &Piece,
        id: NodeId,
        reader: &FileReader<'_>,
    ) -> Result<(), BuildError> {
        let bits = self.plan.shape.block_size.bits();
        let runs = self.plan.placement.runs(file);
        let run = runs[piece.run as usize];
        let mut at = (run.start.0 + piece.skip) << bits;
        let mut offset = (run.logical + piece.skip) << bits;
        let end = offset + (piece.len << bits);
        let sparse = self.tree.is_sparse(id);
        let size = match self.tree.kind(id) {
            Kind::File { size } => size,
            _ => 0,
        };
        while offset < end {
            let len = (end - offset).min(self.writer.capacity() as u64);
            // At most the buffer's capacity.
            let buffer = self.writer.range(at, len as usize)?;
            if sparse {
                let extents = self.tree.extents(id).map(|e| (e.offset, e.offset + e.len));
                fill_sparse(reader, extents, offset, buffer)?;
            } else {
                fill(reader, offset, offset, size, buffer)?
            }
            at += len;
            offset += len;
        }
        if piece.run as usize + 1 == runs.len() && piece.skip + piece.len == run.len {
            reader.check()?;
        }
        Ok(())
    }

    fn directory(&mut self, file: &FilePlace) -> Result<(), BuildError> {
        let bits = self.plan.shape.block_size.bits();
        let runs = self.plan.placement.runs(file);
        let mut places = runs
            .iter()
            .flat_map(|run| run.start.0..run.start.0 + run.len);
        let bytes = self.plan.shape.block_size.bytes();
        let writer = &mut self.writer;
        let emit = |make: &mut dyn FnMut(&mut [u8])| -> Result<(), BuildError> {
            let Some(place) = places.next() else {
                return Err(BuildError::Usage(
                    "a directory has more blocks than were planned; please report this".into(),
                ));
            };
            make(writer.range(place << bits, bytes)?);
            Ok(())
        };
        match file.owner {
            BlockOwner::Node(id) => directories::write(self.tree, self.plan, id, emit),
            BlockOwner::Value => Ok(()),
        }
    }
}

/// Fills `buffer`, which holds the file from `offset` on, with its data from `from` to `to`, and zeros elsewhere.
fn fill(
    reader: &FileReader<'_>,
    offset: u64,
    from: u64,
    to: u64,
    buffer: &mut [u8],
) -> Result<(), BuildError> {
    let end = offset + buffer.len() as u64;
    let to = to.min(end);
    // Both lie within the buffer.
    let data = (from.max(offset) - offset) as usize..(to.max(offset) - offset) as usize;
    if data.start < data.end {
        reader.read_at(from.max(offset), &mut buffer[data.clone()])?;
    }
    buffer[..data.start].fill(0);
    buffer[data.end.max(data.start)..].fill(0);
    Ok(())
}

/// As [`fill`], for a file with holes: zeros everywhere but in the extents.
fn fill_sparse(
    reader: &FileReader<'_>,
    extents: impl Iterator<Item = (u64, u64)>,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), BuildError> {
    let end = offset + buffer.len() as u64;
    let mut done = offset;
    for (from, to) in extents {
        if to <= done {
            continue;
        }
        if from >= end {
            break;
        }
        let (from, to) = (from.max(done), to.min(end));
        buffer[(done - offset) as usize..(from - offset) as usize].fill(0);
        reader.read_at(
            from,
            &mut buffer[(from - offset) as usize..(to - offset) as usize],
        )?;
        done = to;
    }
    buffer[(done - offset) as usize..].fill(0);
    Ok(())
}
