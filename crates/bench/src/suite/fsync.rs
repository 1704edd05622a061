//! Small writes and fsyncs, by the fsync log and by full commits, on devices whose flushes take their time.

use std::time::Duration;

use device::MemoryDevice;
use engine::{OpenOptions, Variants};
use lanefs::Error;
use sync::Arc;

use super::running::Running;
use super::{Progress, Setup};
use crate::in_process::InProcess;
use crate::measure::Contender;
use crate::slow_flush::SlowFlush;
use crate::table::Table;
use crate::workload::Workload;

/// Jobs of the source's table and more.
const JOBS: [usize; 4] = [1, 2, 8, 16];
/// How long a flush takes, in microseconds.
const FLUSHES: [u64; 3] = [0, 20, 1000];

const WORKLOADS: [(Workload, &str); 3] = [
    (Workload::FsyncOverwrite, "overwrites, each synced"),
    (Workload::FsyncFourth, "overwrites, every fourth synced"),
    (Workload::Fsync, "appends, each synced"),
];

/// All tables.
pub(super) fn tables(setup: &Setup, progress: &mut Progress<'_>) -> Result<Vec<Table>, Error> {
    let mut tables = Vec::new();
    let is_own = setup.engine && setup.image.is_none();
    for micros in FLUSHES.into_iter().filter(|micros| is_own || *micros == 0) {
        let contenders = contenders(setup, Duration::from_micros(micros))?;
        for (workload, what) in WORKLOADS {
            let flush = match (is_own, micros) {
                (true, 0) => "flushes in memory take no time".to_owned(),
                (true, micros) => format!("a flush takes {micros} microseconds"),
                (false, _) => "flushes take the device's time".to_owned(),
            };
            let running = Running {
                key: &format!("{}-{micros}us", workload.name()),
                title: &format!("fsync: {what}; {flush}"),
                workload,
                workers: &JOBS,
                operations: None,
            };
            tables.push(running.table(setup, &contenders, progress)?);
        }
    }
    Ok(tables)
}

/// The forms of the log on an image that has an area for it, full commits on another such image, and directories where
/// flushes are what they are.
fn contenders(setup: &Setup, flush: Duration) -> Result<Vec<Contender<'static>>, Error> {
    let mut contenders = Vec::new();
    if setup.engine {
        let log = Contender::new("log", setup.way(false), open(setup, flush, true)?);
        for form in setup.forms(&["log_update"]) {
            let label = super::label(&form);
            contenders.push(log.with(format!("log {label}").trim().to_owned(), form));
        }
        let full = open(setup, flush, false)?;
        contenders.push(Contender::new("full commits", setup.way(false), full));
    }
    if flush.is_zero() {
        contenders.extend(setup.directories()?);
    }
    Ok(contenders)
}

/// A file system with an area for fast commits, which are made or not.
fn open(setup: &Setup, flush: Duration, fast_commits: bool) -> Result<InProcess, Error> {
    let options = OpenOptions {
        variants: Variants::default(),
        fast_commits,
        ..OpenOptions::default()
    };
    match &setup.image {
        Some(path) => {
            let name = if fast_commits { "log" } else { "full" };
            let path = path.with_extension(name);
            let made = InProcess::in_file_with(&path, setup.size, "fast_commit", &options);
            // Open until the end, and nobody else's.
            let _ = std::fs::remove_file(&path);
            made
        }
        None => {
            let device = SlowFlush::new(MemoryDevice::new(setup.size), flush);
            InProcess::on_with(Arc::new(device), None, "fast_commit", &options)
        }
    }
}
