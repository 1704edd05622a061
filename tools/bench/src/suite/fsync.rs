//! Small writes and fsyncs, by the fsync log and by full commits, on devices with slow flushes; and the goals
//! ([`goals`]).

mod goals;

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use device::{FileDevice, MemoryDevice};
use engine::{MountOptions, Variants};
use lanefs::Error;
use sync::Arc;

use super::running::Running;
use super::{ProgressHook, Setup};
use crate::in_process::InProcess;
use crate::measure::{Contender, FSYNC_P50, FSYNC_P99};
use crate::slow_flush::SlowFlushDevice;
use crate::table::{Cell, Sample, Table, TableShape};
use crate::workload::Workload;

/// The numbers of jobs in the table of the source document, and more.
const JOBS: [usize; 4] = [1, 2, 8, 16];
/// Operations of a round that times the fsyncs of one job: an event with a chance of one in a hundred must occur
/// several times.
const ALONE: usize = 1000;
/// How long a flush takes, in microseconds.
const FLUSHES: [u64; 3] = [0, 20, 1000];

const WORKLOADS: [(Workload, &str); 5] = [
    (Workload::FsyncOverwrite, "overwrites, each synced"),
    (Workload::FsyncFourth, "overwrites, every fourth synced"),
    (Workload::Fsync, "appends, each synced"),
    (Workload::FsyncSparse, "writes into holes, each synced"),
    (
        Workload::FsyncSparseFourth,
        "writes into holes, every fourth synced",
    ),
];

const MIXES: [(Workload, &str); 4] = [
    (Workload::Varmail, "like varmail"),
    (
        Workload::SqliteRollback,
        "like SQLite with a rollback journal",
    ),
    (Workload::SqliteWal, "like SQLite with a write-ahead log"),
    (Workload::MailSpool, "like a mail spool"),
];

/// The log on an image that is a file, if the other images are on block devices.
const IMAGE_FILE: &str = "log, image file";

/// What is known about the flushes of the measured devices.
#[derive(Clone, Copy)]
enum Flush {
    /// A flush takes this time. Devices in memory are measured, and others if they are said to be the same.
    Takes(Duration),
    /// The time of a flush is unknown.
    Unknown,
}

impl Flush {
    fn said(self) -> String {
        match self {
            Flush::Takes(Duration::ZERO) => "flushes take no time".into(),
            Flush::Takes(time) => format!("a flush takes {} microseconds", time.as_micros()),
            Flush::Unknown => "flushes take the device's time".into(),
        }
    }

    fn key(self) -> String {
        match self {
            Flush::Takes(time) => format!("{}us", time.as_micros()),
            Flush::Unknown => "device".into(),
        }
    }
}

/// All tables.
pub(super) fn tables(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let is_outside = setup.image.is_some() || !setup.on.is_empty();
    let flushes = match (setup.flush, is_outside) {
        (Some(time), _) => vec![Flush::Takes(time)],
        (None, true) => vec![Flush::Unknown],
        (None, false) => FLUSHES
            .map(Duration::from_micros)
            .map(Flush::Takes)
            .to_vec(),
    };
    let mut tables = Vec::new();
    for flush in flushes {
        tables.extend(compared(setup, flush, progress)?);
    }
    Ok(tables)
}

fn compared(
    setup: &Setup,
    flush: Flush,
    progress: &mut ProgressHook<'_>,
) -> Result<Vec<Table>, Error> {
    let contenders = contenders(setup, flush)?;
    let mut tables = Vec::new();
    let all = (WORKLOADS.iter().map(|of| (of, &JOBS[..])))
        .chain(MIXES.iter().map(|of| (of, &[1, 8][..])));
    for ((workload, what), jobs) in all {
        let running = Running {
            key: &format!("{}-{}", workload.name(), flush.key()),
            title: &format!("fsync: {what}; {}", flush.said()),
            workload: *workload,
            workers: jobs,
            operations: None,
        };
        forget(&contenders);
        let mut table = running.table(setup, &contenders, progress)?;
        table.rows_are = "jobs";
        tables.push(table);
    }
    let mut lone = lone(setup, flush, &contenders, progress)?;
    let peers = contenders.len() - setup.on.len();
    let goals = goals::table(&tables, &lone, flush, setup, peers)?;
    lone.extend_from_slice(&tables[WORKLOADS.len()..]);
    tables.push(alone(&lone, flush));
    tables.extend(goals);
    Ok(tables)
}

/// Makes `log_use=auto` forget what it learned from the previous load.
fn forget(contenders: &[Contender<'_>]) {
    for contender in contenders {
        // Directories have no forms.
        let _ = contender.select("log_use=always") && contender.select("log_use=auto");
    }
}

/// The writing loads with one job and enough fsyncs to find the time that one in a hundred takes. Not shown.
fn lone(
    setup: &Setup,
    flush: Flush,
    contenders: &[Contender<'_>],
    progress: &mut ProgressHook<'_>,
) -> Result<Vec<Table>, Error> {
    let setup = Setup {
        rounds: 1,
        workers: None,
        ..setup.clone()
    };
    let of = |(workload, what): &(Workload, &str)| {
        let running = Running {
            key: &format!("{}-{}-alone", workload.name(), flush.key()),
            title: &format!("fsync: {what}; {}", flush.said()),
            workload: *workload,
            workers: &[1],
            operations: Some(setup.scaled(ALONE, 40) as u64),
        };
        forget(contenders);
        running.table(&setup, contenders, progress)
    };
    WORKLOADS.iter().map(of).collect()
}

/// How long one fsync takes while no other runs, in flush times if these are known.
fn alone(tables: &[Table], flush: Flush) -> Table {
    let (unit, by) = match flush {
        Flush::Takes(time) if !time.is_zero() => ("flush times", time.as_secs_f64() * 1e6),
        _ => ("microseconds", 1.0),
    };
    let of: Vec<_> = (tables.iter())
        .zip(WORKLOADS.iter().chain(&MIXES))
        .filter(|(table, _)| table.rows[0] == "1")
        .collect();
    let rows = of
        .iter()
        .flat_map(|(_, (_, what))| [format!("{what}: p50"), format!("{what}: p99")]);
    let columns = tables[0].columns.clone();
    let key = format!("fsync-alone-{}", flush.key());
    let title = format!("fsync: how long one takes alone; {}", flush.said());
    let about = "From the call to its return, one job: of the writing loads one long round, of the mixes medians of \
                 the rounds' percentiles.";
    let mut table = Table::new(&key, &title, about, rows.collect(), columns);
    (table.unit, table.less_is_better) = (unit, true);
    (table.rows_are, table.shape) = ("fsync", TableShape::Bars);
    for (number, (from, _)) in of.into_iter().enumerate() {
        for (row, name) in [(2 * number, FSYNC_P50), (2 * number + 1, FSYNC_P99)] {
            for (cell, from) in table.cells[row].iter_mut().zip(&from.cells[0]) {
                *cell = divided(from, name, by);
            }
        }
    }
    table
}

/// A detail of a cell's samples as a cell of its own.
fn divided(from: &Cell, name: &str, by: f64) -> Cell {
    let values = from.samples.iter().filter_map(|sample| {
        let found = sample.details.iter().find(|(known, _)| *known == name)?;
        Some(Sample {
            value: found.1 / by,
            ..Sample::default()
        })
    });
    Cell {
        samples: values.collect(),
    }
}

/// The contenders: the forms of the log on an image that has an area for it, and full commits on another image, on the
/// measured device; the log in memory, if flushes take the same time there; and directories.
fn contenders(setup: &Setup, flush: Flush) -> Result<Vec<Contender<'static>>, Error> {
    let mut contenders = Vec::new();
    if setup.engine {
        let target = open(setup, flush, true)?;
        let log = Contender::new("log", setup.way(false), target);
        for form in setup.forms(&["log_update"]) {
            let label = super::label(&form);
            contenders.push(log.with(format!("log {label}").trim().to_owned(), form));
        }
        let full = open(setup, flush, false)?;
        contenders.push(Contender::new("full commits", setup.way(false), full));
        if let Some(path) = image_file(setup) {
            let target = open_at(&path, true)?;
            contenders.push(Contender::new(IMAGE_FILE, setup.way(false), target));
        }
        if let (Flush::Takes(time), Some(_)) = (flush, &setup.image) {
            let target = in_memory(setup, time, true)?;
            contenders.push(Contender::new("log, memory", setup.way(true), target));
        }
    }
    contenders.extend(setup.directories()?);
    Ok(contenders)
}

fn options(fast_commits: bool) -> MountOptions {
    MountOptions {
        variants: Variants::default(),
        fast_commits,
        ..MountOptions::default()
    }
}

fn in_memory(setup: &Setup, flush: Duration, fast_commits: bool) -> Result<InProcess, Error> {
    let device = SlowFlushDevice::new(MemoryDevice::new(setup.size), flush);
    InProcess::on_with(
        Arc::new(device),
        None,
        "fast_commit",
        &options(fast_commits),
    )
}

/// A file system with an area for fast commits, which it uses or not: in memory, or in a file or on a block device with
/// the image's name and another ending.
fn open(setup: &Setup, flush: Flush, fast_commits: bool) -> Result<InProcess, Error> {
    let Some(path) = &setup.image else {
        let time = match flush {
            Flush::Takes(time) => time,
            Flush::Unknown => Duration::ZERO,
        };
        return in_memory(setup, time, fast_commits);
    };
    let path = path.with_extension(ending(fast_commits));
    if is_block_device(&path) {
        return open_at(&path, fast_commits);
    }
    let options = options(fast_commits);
    let made = InProcess::in_file_with(&path, setup.size, "fast_commit", &options);
    // It stays open until the end, and other programs do not see it.
    let _ = std::fs::remove_file(&path);
    made
}

/// A file system on an existing block device or file, which it fills.
fn open_at(path: &Path, fast_commits: bool) -> Result<InProcess, Error> {
    let device = FileDevice::open(path);
    let device = device.map_err(lanefs::make::MakeError::from)?;
    InProcess::on_used(Arc::new(device), "fast_commit", &options(fast_commits))
}

/// If block devices are measured, a file with the image's name and this ending is an image without the kernel's block
/// layer; `None` if it does not exist.
fn image_file(setup: &Setup) -> Option<PathBuf> {
    let path = setup.image.as_ref()?.with_extension("file");
    path.exists().then_some(path)
}

/// The ending of the image with the log, and of the one with full commits.
fn ending(fast_commits: bool) -> &'static str {
    if fast_commits { "log" } else { "full" }
}

/// Existing block devices and files that become images.
pub(super) fn used_as_it_is(setup: &Setup) -> Vec<PathBuf> {
    let paths = setup.image.iter().flat_map(|path| {
        let of = |fast_commits| path.with_extension(ending(fast_commits));
        [true, false].map(of)
    });
    let devices = paths.filter(|path| is_block_device(path));
    devices.chain(image_file(setup)).collect()
}

/// Whether an image becomes a new file.
pub(super) fn makes_image(setup: &Setup) -> bool {
    let is_made = |path: &PathBuf, log| !is_block_device(&path.with_extension(ending(log)));
    let image = setup.image.as_ref();
    image.is_some_and(|path| is_made(path, true) || is_made(path, false))
}

fn is_block_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.file_type().is_block_device())
}
