//! Archives whose data arrive in their own order: each is written to its place as it passes, through one buffer.
//!
//! An archive that can be read again is planned first, and its data are written where the plan puts them ([`fill`]). A
//! pipe is read once ([`Pipe`]): files get their blocks as they arrive, outside the places that a file system of any
//! size needs, and the rest is planned around them at the end. Data of entries that a later entry replaces are in
//! blocks that become free at the end.

use std::ops::Range;

use device::{BlockDevice, FileDevice, Resize};
use hashbrown::HashMap;
use mkfs::{Options, StreamGeometry};
use ondisk::FsBlock;
use ondisk::map::Run;

use crate::error::{BuildError, too_small};
use crate::plan::error::{PlanError, Shortage};
use crate::plan::place::{ArchiveKey, BlockOwner, RangePlacer, StreamTable, Streamed, archive_key};
use crate::plan::shape::ImageFormat;
use crate::plan::space::{ClusterRun, FreeClusters};
use crate::plan::{EarlyBlocks, ImagePlan};
use crate::source::{Data, DataSink, SinkError, SourceError, SourceId, SourceTree};
use crate::write::blocks::BlockWriter;
use crate::write::job::Job;

/// Bytes that are gathered before a write.
const BUFFER_BYTES: usize = 1 << 20;
/// An output file is extended by this number of bytes at a time.
const GROW_BYTES: u64 = 1 << 30;
/// The end of the places for a pipe's data: 16 TiB, the largest file on many hosts.
const PIPE_END_BYTES: u64 = 1 << 44;
/// Writes one file after another, each to its runs.
struct ItemWriter<'a> {
    writer: BlockWriter<'a>,
    bits: u32,
    /// The runs of the file that is being written.
    runs: Vec<Run>,
    /// The index of the run that was written last.
    at: usize,
    /// The byte of the file up to which its block is filled.
    filled: u64,
}

impl<'a> ItemWriter<'a> {
    fn new(device: &'a dyn BlockDevice, shape: &ImageFormat) -> ItemWriter<'a> {
        ItemWriter {
            writer: BlockWriter::new(device, BUFFER_BYTES.max(shape.block_size.bytes())),
            bits: shape.block_size.bits(),
            runs: Vec::new(),
            at: 0,
            filled: 0,
        }
    }

    fn begin(&mut self, runs: Vec<Run>) {
        (self.runs, self.at, self.filled) = (runs, 0, 0);
    }

    /// Writes bytes at `offset` of the file. Unfilled bytes of the same block before them become zeros.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuildError> {
        let block = 1u64 << self.bits;
        if offset != self.filled {
            let block_end = self.filled.next_multiple_of(block);
            self.zeros(self.filled, block_end.min(offset))?;
            if block_end <= offset {
                self.zeros(offset & !(block - 1), offset)?;
            }
        }
        self.put(offset, Ok(bytes))?;
        self.filled = offset + bytes.len() as u64;
        Ok(())
    }

    fn zeros(&mut self, from: u64, to: u64) -> Result<(), BuildError> {
        // Less than a block.
        self.put(from, Err((to - from) as usize))
    }

    /// Writes these bytes, or this number of zeros.
    fn put(&mut self, offset: u64, what: Result<&[u8], usize>) -> Result<(), BuildError> {
        let (mut offset, mut rest) = (offset, what);
        loop {
            let left = rest.map_or_else(|zeros| zeros, <[u8]>::len);
            if left == 0 {
                return Ok(());
            }
            let block = offset >> self.bits;
            let run = loop {
                match self.runs.get(self.at).copied() {
                    Some(run) if run.end() <= block => self.at += 1,
                    run => break run,
                }
            };
            let Some(run) = run.filter(|run| run.logical <= block) else {
                return Err(BuildError::Usage(
                    "an archive gave data where it announced a hole; please report this".into(),
                ));
            };
            let run_end = run.end() << self.bits;
            let room = (run_end - offset).min(self.writer.capacity() as u64);
            // At most the bytes of the buffer.
            let count = left.min(room as usize);
            let start = (run.start.0 << self.bits) + (offset - (run.logical << self.bits));
            let to = self.writer.range(start, count)?;
            match rest {
                Ok(bytes) => {
                    to.copy_from_slice(&bytes[..count]);
                    rest = Ok(&bytes[count..]);
                }
                Err(zeros) => {
                    to.fill(0);
                    rest = Err(zeros - count);
                }
            }
            offset += count as u64;
        }
    }

    fn end(&mut self) -> Result<(), BuildError> {
        self.zeros(self.filled, self.filled.next_multiple_of(1 << self.bits))
    }
}

/// Wraps a build's error so that it can pass through the source.
fn sent(error: BuildError) -> SinkError {
    Box::new(error)
}

/// Unwraps a build's error that passed through the source.
pub(crate) fn received(error: SourceError) -> BuildError {
    match error {
        SourceError::Sink(sent) => match sent.downcast::<BuildError>() {
            Ok(error) => *error,
            Err(other) => BuildError::Source(SourceError::Sink(other)),
        },
        error => BuildError::Source(error),
    }
}

/// Writes the data of archives that can be read again into planned files, with one thread for each archive.
///
/// # Errors
/// The first error of any thread.
pub(crate) fn fill(
    tree: &SourceTree,
    plan: &ImagePlan,
    device: &dyn BlockDevice,
    job: &Job<'_>,
) -> Result<(), BuildError> {
    let sources = tree.streams();
    if sources.is_empty() {
        return Ok(());
    }
    let mut places: HashMap<(SourceId, u32), u32> = HashMap::new();
    for (at, file) in plan.placement.files.iter().enumerate() {
        if let BlockOwner::Node(id) = file.owner
            && let Data::Stream { source, index } = tree.data(id)
        {
            places.insert((source, index), at as u32);
        }
    }
    let next = sync::atomic::AtomicUsize::new(0);
    job.run(|_| {
        loop {
            // Relaxed: each number is given to one thread; nothing else is published by it.
            let at = next.fetch_add(1, sync::atomic::Ordering::Relaxed);
            let Some(source) = sources.get(at) else {
                return Ok(());
            };
            let mut sink = Fill {
                plan,
                places: &places,
                writer: ItemWriter::new(device, &plan.shape),
                job,
            };
            tree.stream(*source, &mut sink).map_err(received)?;
            sink.writer.writer.flush()?;
        }
    })
}

/// Writes data to their planned places.
struct Fill<'a> {
    plan: &'a ImagePlan,
    places: &'a HashMap<(SourceId, u32), u32>,
    writer: ItemWriter<'a>,
    job: &'a Job<'a>,
}

impl DataSink for Fill<'_> {
    fn begin(
        &mut self,
        source: SourceId,
        index: u32,
        _size: u64,
        _data_bytes: u64,
    ) -> Result<bool, SinkError> {
        self.job.check().map_err(sent)?;
        let Some(at) = self.places.get(&(source, index)) else {
            return Ok(false);
        };
        let file = &self.plan.placement.files[*at as usize];
        self.writer.begin(self.plan.placement.runs(file).to_vec());
        Ok(true)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), SinkError> {
        self.job.check().map_err(sent)?;
        self.job.advance(bytes.len() as u64);
        self.writer.data(offset, bytes).map_err(sent)
    }

    fn end(&mut self) -> Result<(), SinkError> {
        self.writer.end().map_err(sent)
    }
}

/// Where the blocks of a pipe's files come from.
pub(crate) struct Room {
    shape: ImageFormat,
    space: FreeClusters,
    /// Whether the size is decided last, and the output grows meanwhile.
    growing: bool,
    geometry: StreamGeometry,
    options: Options,
    /// How many files have begun.
    begun: u64,
}

impl Room {
    /// All blocks that data may get in an image of `given` bytes, or in one whose size is decided last. From here on
    /// the options hold the geometry of that image.
    ///
    /// # Errors
    /// If the options are not possible.
    pub(crate) fn new(options: &mut Options, given: Option<u64>) -> Result<Room, BuildError> {
        let geometry = match given {
            Some(bytes) => StreamGeometry::sized(bytes, options).map_err(|error| match error {
                mkfs::Error::TooSmall { .. } => too_small(bytes),
                error => error.into(),
            })?,
            None => StreamGeometry::growing(options)?,
        };
        let layout = geometry.layout(options)?;
        options.stream = Some(geometry.clone());
        let shape = ImageFormat::of(&layout, options.lost_found);
        let ranges = clear_ranges(&geometry, &shape);
        Ok(Room {
            space: FreeClusters::new(ranges.into_iter(), shape.cluster_bytes()),
            shape,
            growing: given.is_none(),
            geometry,
            options: options.clone(),
            begun: 0,
        })
    }

    /// Places blocks of a file after those in `runs`.
    ///
    /// # Errors
    /// When all blocks that the geometry allows are taken.
    fn place(
        &mut self,
        placer: &mut RangePlacer,
        range: (u64, u64),
        runs: &mut Vec<Run>,
    ) -> Result<(), PlanError> {
        // At most what was asked for: the placer takes fewer clusters, never more.
        let most = (range.1 - range.0).div_ceil(1 << self.shape.cluster_bits) + 1;
        while self.space.free() < most && self.grow() {}
        placer.place(&mut self.space, &self.shape, range, runs, 0)
    }

    /// Gives data a part of the room for inode tables, or opens more groups; returns false when nothing is left.
    fn grow(&mut self) -> bool {
        let Some(roomier) = self.geometry.more_room(self.begun, &self.options) else {
            return false;
        };
        let before = clear_ranges(&self.geometry, &self.shape);
        let more = FreeClusters::new(
            clear_ranges(&roomier, &self.shape).into_iter(),
            self.shape.cluster_bytes(),
        );
        let more = more.without(&before, self.shape.cluster_bytes());
        self.space.extend(more);
        self.geometry = roomier;
        true
    }
}

/// Whether all files of the tree come from archives, so that a pipe could deliver all of it.
pub(crate) fn is_from_archives(tree: &SourceTree) -> bool {
    tree.nodes()
        .all(|id| !matches!(tree.data(id), Data::Path(_)))
}

/// Places files of archives that can be read again in the order in which a pipe would deliver them. Returns their
/// blocks, and the options with the geometry that the blocks fit; `None` if they do not fit.
pub(crate) fn placed_as_from_a_pipe(
    tree: &SourceTree,
    mut room: Room,
    mut options: Options,
) -> Option<(EarlyBlocks, Options)> {
    let mut order: Vec<_> = tree
        .nodes()
        .filter_map(|id| Some((archive_key(tree.data(id))?, id)))
        .collect();
    order.sort_unstable();
    let bits = room.shape.block_size.bits();
    let mut files = HashMap::with_capacity(order.len());
    for (key, id) in order {
        room.begun += 1;
        let mut placer = RangePlacer::default();
        let mut runs = Vec::new();
        for extent in tree.extents(id) {
            let end = room.shape.block_size.blocks_for(extent.offset + extent.len);
            let range = (extent.offset >> bits, end);
            room.place(&mut placer, range, &mut runs).ok()?;
        }
        let clusters = placer.clusters;
        files.insert(key, Streamed { runs, clusters });
    }
    options.stream = Some(room.geometry);
    Some((EarlyBlocks::of(files, room.shape.cluster_bits), options))
}

/// The clusters of data that a geometry allows, ascending.
fn clear_ranges(geometry: &StreamGeometry, shape: &ImageFormat) -> Vec<Range<u64>> {
    let bits = shape.cluster_bits;
    let most = PIPE_END_BYTES >> shape.block_size.bits();
    let runs = geometry.clear_runs().into_iter();
    let ranges = runs.map(|run| run.start.0.div_ceil(1 << bits)..run.end().0.min(most) >> bits);
    ranges.filter(|range| range.start < range.end).collect()
}

/// Takes a pipe's data as they arrive.
pub(crate) struct Pipe<'a> {
    output: &'a FileDevice,
    room: Room,
    writer: ItemWriter<'a>,
    job: &'a Job<'a>,
    files: StreamTable,
    current: Current,
}

/// The file that is being received.
#[derive(Default)]
struct Current {
    key: Option<ArchiveKey>,
    placer: RangePlacer,
    dense: bool,
}

impl<'a> Pipe<'a> {
    /// Writes the data to `output`.
    pub(crate) fn new(output: &'a FileDevice, room: Room, job: &'a Job<'a>) -> Pipe<'a> {
        Pipe {
            output,
            writer: ItemWriter::new(output, &room.shape),
            room,
            job,
            files: HashMap::new(),
            current: Current::default(),
        }
    }

    /// Places blocks of the current file, and makes room for them in the output.
    fn place(&mut self, range: (u64, u64)) -> Result<(), BuildError> {
        let growing = self.room.growing;
        let (placer, runs) = (&mut self.current.placer, &mut self.writer.runs);
        self.room
            .place(placer, range, runs)
            .map_err(|error| match error {
                PlanError::Short(Shortage::Clusters(_)) if growing => PlanError::NoSize.into(),
                PlanError::Short(Shortage::Clusters(_)) => too_small(self.output.size()),
                error => error.into(),
            })?;
        let end = self
            .writer
            .runs
            .iter()
            .map(|run| run.start.0 + run.len)
            .max();
        let end = end.unwrap_or(0) << self.room.shape.block_size.bits();
        if self.room.growing && end > self.output.size() {
            self.output.set_size(end.next_multiple_of(GROW_BYTES))?;
        }
        Ok(())
    }

    fn start(&mut self, key: ArchiveKey, size: u64, data_bytes: u64) -> Result<(), BuildError> {
        self.job.check()?;
        self.room.begun += 1;
        self.current = Current {
            key: Some(key),
            placer: RangePlacer::default(),
            dense: size == data_bytes,
        };
        self.writer.begin(Vec::new());
        let blocks = self.room.shape.block_size.blocks_for(size);
        if blocks > self.room.shape.map.max_blocks(self.room.shape.block_size) {
            return Err(BuildError::Usage(format!(
                "a file of {size} bytes is larger than a file can be in this file system"
            )));
        }
        if self.current.dense {
            self.place((0, blocks))?;
        }
        Ok(())
    }

    fn take(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuildError> {
        self.job.check()?;
        self.job.advance(bytes.len() as u64);
        if !self.current.dense {
            let bits = self.room.shape.block_size.bits();
            let end = self
                .room
                .shape
                .block_size
                .blocks_for(offset + bytes.len() as u64);
            self.place((offset >> bits, end))?;
        }
        self.writer.data(offset, bytes)
    }

    fn finish_file(&mut self) -> Result<(), BuildError> {
        self.writer.end()?;
        if let Some(key) = self.current.key.take() {
            let runs = std::mem::take(&mut self.writer.runs);
            let clusters = self.current.placer.clusters;
            self.files.insert(key, Streamed { runs, clusters });
        }
        Ok(())
    }

    /// Ends a pipe: returns the blocks of the tree's files, and the geometry that they fit. Blocks of entries that were
    /// replaced become free and are cleared, because metadata may get them.
    ///
    /// # Errors
    /// When the output can't be written.
    pub(crate) fn finish(
        mut self,
        tree: &SourceTree,
    ) -> Result<(EarlyBlocks, StreamGeometry), BuildError> {
        self.writer.writer.flush()?;
        let mut files = HashMap::with_capacity(self.files.len());
        for id in tree.nodes() {
            if let Some(key) = archive_key(tree.data(id))
                && let Some(streamed) = self.files.remove(&key)
            {
                files.insert(key, streamed);
            }
        }
        let bits = self.room.shape.cluster_bits;
        let mut replaced: Vec<_> = self
            .files
            .values()
            .flat_map(|file| clusters_of(file, bits))
            .collect();
        replaced.sort_unstable_by_key(|run| run.start);
        for run in replaced {
            self.clear(run)?;
        }
        Ok((EarlyBlocks::of(files, bits), self.room.geometry))
    }

    /// Writes zeros over clusters.
    fn clear(&self, run: ClusterRun) -> Result<(), BuildError> {
        let zeros = vec![0; BUFFER_BYTES];
        let mut at = run.start * self.room.shape.cluster_bytes();
        let end = at + run.len * self.room.shape.cluster_bytes();
        while at < end {
            let len = (end - at).min(zeros.len() as u64);
            // At most the bytes of the buffer.
            self.output.write_at(at, &zeros[..len as usize])?;
            at += len;
        }
        Ok(())
    }
}

impl EarlyBlocks {
    /// The blocks that these files take.
    fn of(files: StreamTable, bits: u32) -> EarlyBlocks {
        let mut clusters: Vec<_> = files
            .values()
            .flat_map(|file| clusters_of(file, bits))
            .collect();
        clusters.sort_unstable_by_key(|run| run.start);
        let mut runs: Vec<mkfs::BlockRun> = Vec::new();
        for run in clusters {
            let next = mkfs::BlockRun {
                start: FsBlock(run.start << bits),
                len: run.len << bits,
            };
            match runs.last_mut() {
                Some(last) if last.end() == next.start => last.len += next.len,
                _ => runs.push(next),
            }
        }
        EarlyBlocks { runs, files }
    }
}

/// The clusters of a file, each once: runs of one cluster follow one another.
fn clusters_of(file: &Streamed, bits: u32) -> impl Iterator<Item = ClusterRun> + '_ {
    let mut last = None;
    file.runs.iter().filter_map(move |run| {
        let mut start = run.start.0 >> bits;
        let end = ((run.start.0 + run.len - 1) >> bits) + 1;
        if last == Some(start) {
            start += 1;
        }
        last = Some(end - 1);
        (start < end).then(|| ClusterRun {
            start,
            len: end - start,
        })
    })
}

impl DataSink for Pipe<'_> {
    fn begin(
        &mut self,
        source: SourceId,
        index: u32,
        size: u64,
        data_bytes: u64,
    ) -> Result<bool, SinkError> {
        self.start((source, index.into()), size, data_bytes)
            .map_err(sent)?;
        Ok(true)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), SinkError> {
        self.take(offset, bytes).map_err(sent)
    }

    fn end(&mut self) -> Result<(), SinkError> {
        self.finish_file().map_err(sent)
    }
}
