//! A whole build: scan, plan, copy, metadata, rename.
//!
//! Sources that can be read twice are scanned and planned before the image's file exists, so what does not fit or can't
//! be read is said before anything is written.

use std::path::Path;

use device::{BlockDevice, DeviceError};
use mkfs::Summary;
use sync::atomic::AtomicBool;

use crate::error::BuildError;
use crate::output::Output;
use crate::plan::{self, Plan, Size};
use crate::progress::{Phase, Progress};
use crate::reproducible;
use crate::source::{self, Data, NodeId, Time, Tree};
use crate::write::job::Job;
use crate::write::{self, copy};

/// What to build, and how.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// What goes in.
    pub source: source::Options,
    /// The file system around it.
    pub mkfs: mkfs::Options,
    /// How large it is to be.
    pub size: Size,
    /// Threads; 0 for as many as the machine has.
    pub threads: usize,
    /// Whether the same input is to give the same bytes, on any host and at any time.
    pub reproducible: bool,
    /// Seconds since 1970 that no time stamp may be after; implies `reproducible` (`SOURCE_DATE_EPOCH`).
    pub newest_time: Option<i64>,
    /// Whether to return only when the image is on the medium.
    pub sync: bool,
}

/// What was built.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Inodes of the tree, the root included.
    pub inodes: u64,
    /// Bytes of files' data, holes not counted.
    pub data_bytes: u64,
    /// Bytes of the image.
    pub image_bytes: u64,
    /// The file system.
    pub file_system: Summary,
}

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
) -> Result<Report, BuildError> {
    let threads = match options.threads {
        0 => sync::thread::available_parallelism(),
        threads => threads,
    };
    let job = Job::new(cancel, progress, threads);
    job.phase(Phase::Scan);
    let mut source = options.source.clone();
    source.threads = threads;
    source.outputs.push(output.into());
    let tree = source::scan(&source)?;
    job.check()?;
    job.phase(Phase::Plan);
    let mut mkfs = settle(options);
    let clamp = reproducible::clamp(options, &tree, &mut mkfs);
    let plan = plan::plan(&tree, &mkfs, options.size)?;
    job.check()?;
    let output = Output::create(output, plan.layout.size_bytes())?;
    let device = Unflushed {
        device: output.device(),
        flushes: options.sync,
    };
    let total = copied_bytes(&plan);
    job.phase(Phase::Copy { total });
    copy::copy(&tree, &plan, &device, &job)?;
    let time = Time::new(mkfs.time.unwrap_or_default(), 0);
    let summary = write::metadata(&tree, &plan, write::Times { time, clamp }, &device, &job)?;
    job.check()?;
    let report = Report {
        inodes: tree.len() as u64,
        data_bytes: tree.nodes().map(|id| tree.data_bytes(id)).sum(),
        image_bytes: plan.layout.size_bytes(),
        file_system: summary,
    };
    output.commit(options.sync)?;
    Ok(report)
}

/// mkfs's options with what a build decides otherwise: blocks of 4 KiB and one inode for 16 KiB, whatever the size,
/// as the size is not known before; and one time for all that no source has.
fn settle(options: &BuildOptions) -> mkfs::Options {
    let mut mkfs = options.mkfs.clone();
    if mkfs.usage_types.is_empty() {
        mkfs.usage_types.push(mkfs::UsageType::Default);
        mkfs.block_size.get_or_insert(ondisk::BlockSize::K4);
    }
    mkfs.time.get_or_insert_with(|| sync::clock::wall().0);
    mkfs.device_is_zero = true;
    mkfs
}

/// Bytes of the blocks that the copy fills.
fn copied_bytes(plan: &Plan) -> u64 {
    let clusters: u64 = plan.placement.files.iter().map(|file| file.clusters).sum();
    clusters * plan.shape.cluster_bytes()
}

/// A device whose flushes happen only where the user asked for them: a file under a temporary name needs none.
struct Unflushed<'a> {
    device: &'a dyn BlockDevice,
    flushes: bool,
}

impl BlockDevice for Unflushed<'_> {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.flushes {
            self.device.flush()
        } else {
            Ok(())
        }
    }

    fn discard(&self, range: std::ops::Range<u64>) -> Result<(), DeviceError> {
        self.device.discard(range)
    }
}

#[allow(dead_code)]
fn streams(tree: &Tree) -> impl Iterator<Item = NodeId> + '_ {
    tree.nodes()
        .filter(|id| matches!(tree.data(*id), Data::Stream { .. }))
}

impl BuildOptions {
    /// An ordinary image of one directory, as small as it fits.
    #[must_use]
    pub fn from_directory(path: impl AsRef<Path>) -> BuildOptions {
        let input = source::Input {
            place: source::Place::Path(path.as_ref().into()),
            at: Vec::new(),
        };
        BuildOptions {
            source: source::Options {
                inputs: vec![input],
                ..source::Options::default()
            },
            mkfs: mkfs::Options::default(),
            size: Size::Auto(plan::Extra::None),
            threads: 0,
            reproducible: false,
            newest_time: None,
            sync: false,
        }
    }
}
