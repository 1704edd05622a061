//! A whole build: scan, plan, copy, metadata, rename.
//!
//! Sources that can be read twice are scanned and planned before the image's file exists, so an error about what does
//! not fit or can't be read is reported before anything is written.

use std::path::Path;

use device::Resize;
use mkfs::Layout;
use sync::atomic::AtomicBool;

use crate::error::{BuildError, too_small};
use crate::options::{BuildOptions, BuildReport};
use crate::output::Output;
use crate::plan::error::PlanError;
use crate::plan::{self, ImagePlan, Size};
use crate::progress::{Phase, Progress};
use crate::reproducible;
use crate::source::{self, LostFoundTime, SourceTree, Time};
use crate::stream::{self, Pipe, Room};
use crate::write::job::Job;
use crate::write::{self, copy};

/// The most threads: more gain nothing, and some hosts can't start them.
const THREADS_MAX: usize = 256;

/// How many sizes are tried to find one that a refusal can name.
const NAMED_SIZE_TRIES: u32 = 8;

/// Builds an image from the sources, at `output`: a file, replaced only when all is done, or a block device, written
/// in place. `cancel` may be set at any time, from anywhere.
///
/// # Errors
/// Why not; nothing is then left under the output's name but what was there before. A block device is left with any
/// part of the image, but without a superblock.
pub fn build(
    options: &BuildOptions,
    output: &Path,
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<BuildReport, BuildError> {
    let threads = match options.threads {
        0 => sync::thread::available_parallelism(),
        threads => threads.min(THREADS_MAX),
    };
    let job = Job::new(cancel, progress, threads);
    let mut source = options.source.clone();
    source.threads = threads;
    source.outputs.push(output.into());
    let mkfs = settle(options, output);
    let time = mkfs.time.map_or(LostFoundTime::Newest, LostFoundTime::At);
    source.lost_found = mkfs.lost_found.then_some(time);
    if mkfs.offset != 0 {
        return Err(BuildError::Usage(
            "an image begins at its first byte: no -E offset".into(),
        ));
    }
    if mkfs.journal.device_path.is_some() {
        return Err(BuildError::Usage(
            "-J device: an image is built with its journal inside; leave it out, or attach one later with `tune2fs -J \
             device=`"
                .into(),
        ));
    }
    check_options(options.size, &mkfs)?;
    if source::reads_once(&source) {
        build_from_pipe(options, &source, mkfs, output, &job)
    } else {
        build_planned(options, &source, mkfs, output, &job)
    }
}

/// Builds from sources that can be read again.
fn build_planned(
    options: &BuildOptions,
    source: &source::Options,
    mut mkfs: mkfs::Options,
    output: &Path,
    job: &Job<'_>,
) -> Result<BuildReport, BuildError> {
    job.phase(Phase::Scan);
    let tree = source::scan(source)?;
    job.check()?;
    job.phase(Phase::Plan);
    let clamp = reproducible::clamp(options, &tree, &mut mkfs);
    let plan = planned(&tree, &mkfs, options.size)?;
    job.check()?;
    let output = Output::create(output, plan.layout.size_bytes())?;
    let total = copied_bytes(&plan);
    job.phase(Phase::Copy { total });
    finish(options, &tree, &plan, &mkfs, clamp, output, job)
}

/// Plans a tree. A tree from archives is built, or refused with the same reason, as if it came through a pipe:
///
/// - If the plan's own order does not fit in the given size, the archives' order is tried. It splits files in other
///   places, and fewer of them may need blocks for their maps.
/// - If the options alone are why a pipe is refused, before it is read, that reason is given.
fn planned(tree: &SourceTree, mkfs: &mkfs::Options, size: Size) -> Result<ImagePlan, BuildError> {
    let refused = match plan::plan(tree, mkfs, size) {
        Ok(plan) => return Ok(plan),
        Err(refused) => refused,
    };
    let refusal = |refused: PlanError| match refused {
        PlanError::TooSmall { given, needed } => named_size(tree, mkfs, given, needed),
        refused => refused.into(),
    };
    if mkfs.packed_meta_blocks || !stream::is_from_archives(tree) {
        return Err(refusal(refused));
    }
    let mut streamed = mkfs.clone();
    let room = match Room::new(&mut streamed, given(size)) {
        Ok(room) => room,
        Err(error @ BuildError::Mkfs(_)) => return Err(error),
        Err(_) => return Err(refusal(refused)),
    };
    let placed = match (&refused, size) {
        (PlanError::TooSmall { .. }, Size::Fixed(_)) => {
            stream::placed_as_from_a_pipe(tree, room, streamed)
        }
        _ => None,
    };
    let planned =
        placed.and_then(|(taken, mkfs)| plan::plan_around(tree, &mkfs, size, &taken).ok());
    planned.ok_or_else(|| refusal(refused))
}

/// The refusal of the size `given`. It names a size at which the tree surely fits, if one is found from `needed` bytes
/// on: that number was computed without placing the tree, and the maps of fragmented files may need more.
fn named_size(tree: &SourceTree, mkfs: &mkfs::Options, given: u64, needed: u64) -> BuildError {
    let mut size = needed;
    for _ in 0..NAMED_SIZE_TRIES {
        size = match plan::plan(tree, mkfs, Size::Fixed(size)) {
            Ok(_) => {
                return BuildError::TooSmall {
                    given,
                    needed: size,
                };
            }
            Err(PlanError::TooSmall { needed, .. }) if needed > size => needed,
            Err(_) => break,
        };
    }
    too_small(given)
}

/// The size in bytes, if one is given.
fn given(size: Size) -> Option<u64> {
    match size {
        Size::Fixed(bytes) => Some(bytes),
        Size::Auto(_) => None,
    }
}

/// Refuses options that no image can have, or none of a given size, whatever comes into it: before a source is read, so
/// that the reason does not depend on how. That a tree does not fit is known only when the tree is.
fn check_options(size: Size, mkfs: &mkfs::Options) -> Result<(), BuildError> {
    Layout::check(mkfs)?;
    let Size::Fixed(bytes) = size else {
        return Ok(());
    };
    match Layout::plan(bytes, mkfs) {
        Ok(_) | Err(mkfs::Error::TooSmall { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Builds while a pipe is read: its data goes to the output at once, all else is planned around it.
fn build_from_pipe(
    options: &BuildOptions,
    source: &source::Options,
    mut mkfs: mkfs::Options,
    output: &Path,
    job: &Job<'_>,
) -> Result<BuildReport, BuildError> {
    let given = given(options.size);
    if mkfs.packed_meta_blocks {
        return Err(BuildError::Usage(
            "-E packed_meta_blocks: what comes through a pipe is placed before the metadata; build from a file".into(),
        ));
    }
    let room = Room::new(&mut mkfs, given)?;
    let output = Output::create(output, given.unwrap_or(0))?;
    job.phase(Phase::Copy { total: 0 });
    let mut pipe = Pipe::new(output.device(), room, job);
    let scanned = source::scan_streaming(source, job.cancel(), &mut pipe);
    // The interrupt often ends the pipe's writer too. The error of a pipe that is cut off then is not reported.
    let tree = job
        .check()
        .and_then(|()| scanned.map_err(stream::received))?;
    let (taken, geometry) = pipe.finish(&tree)?;
    mkfs.stream = Some(geometry);
    job.check()?;
    job.phase(Phase::Plan);
    let clamp = reproducible::clamp(options, &tree, &mut mkfs);
    let plan =
        plan::plan_around(&tree, &mkfs, options.size, &taken).map_err(|error| match error {
            // A larger image would have had other places for the data, so only a lower bound is known.
            PlanError::TooSmall { given, .. } => too_small(given),
            error => error.into(),
        })?;
    output.device().set_size(plan.layout.size_bytes())?;
    job.phase(Phase::Copy {
        total: copied_bytes(&plan),
    });
    finish(options, &tree, &plan, &mkfs, clamp, output, job)
}

/// Writes what is planned, and puts the image in place.
fn finish(
    options: &BuildOptions,
    tree: &SourceTree,
    plan: &ImagePlan,
    mkfs: &mkfs::Options,
    clamp: reproducible::Clamp,
    output: Output,
    job: &Job<'_>,
) -> Result<BuildReport, BuildError> {
    let device = output.device();
    // First, as it clears what a block device held before.
    plan.layout.write_special_files(device)?;
    copy::copy(tree, plan, device, job)?;
    stream::fill(tree, plan, device, job)?;
    let time = Time::new(mkfs.time.unwrap_or_default(), 0);
    let summary = write::metadata(tree, plan, write::Times { time, clamp }, device, job)?;
    job.check()?;
    let report = BuildReport {
        inodes: (tree.len() - tree.made) as u64,
        data_bytes: tree.nodes().map(|id| tree.data_bytes(id)).sum(),
        image_bytes: plan.layout.size_bytes(),
        file_system: summary,
        warnings: tree.warnings().to_vec(),
    };
    output.commit(options.sync)?;
    Ok(report)
}

/// mkfs's options with what a build decides otherwise: blocks of 4 KiB and one inode for 16 KiB, whatever the size,
/// as the size is not known before; and one time for all that no source has, unless [`reproducible::clamp`] takes it
/// from the tree.
fn settle(options: &BuildOptions, output: &Path) -> mkfs::Options {
    let mut mkfs = options.mkfs.clone();
    if mkfs.usage_types.is_empty() {
        mkfs.usage_types.push(mkfs::UsageType::Default);
        mkfs.block_size = Some(mkfs.block_size_or(ondisk::BlockSize::K4));
    }
    mkfs.time = mkfs.time.or(options.newest_time);
    if !options.reproducible {
        mkfs.time.get_or_insert_with(|| sync::clock::wall().0);
    }
    mkfs.device_is_zero = !std::fs::metadata(output)
        .is_ok_and(|found| device::host::is_block_device(found.file_type()));
    mkfs
}

/// Bytes of the blocks that the copy fills.
fn copied_bytes(plan: &ImagePlan) -> u64 {
    let clusters: u64 = plan.placement.files.iter().map(|file| file.clusters).sum();
    clusters * plan.shape.cluster_bytes()
}

impl BuildOptions {
    /// An ordinary image of one directory, with some room beside it.
    #[must_use]
    pub fn from_directory(path: impl AsRef<Path>) -> BuildOptions {
        let input = source::Input {
            place: source::SourcePlace::Path(path.as_ref().into()),
            at: Vec::new(),
        };
        BuildOptions {
            source: source::Options {
                inputs: vec![input],
                ..source::Options::default()
            },
            mkfs: mkfs::Options::default(),
            size: Size::Auto(plan::Extra::Usable),
            threads: 0,
            reproducible: false,
            newest_time: None,
            sync: false,
        }
    }
}
