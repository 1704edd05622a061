//! `lanefs check`: whether a file system is sound, and what is wrong with it. It never writes. Exit status as fsck(8)
//! has it: 0 clean, 4 errors left, 8 no verdict, 16 usage.

use std::io::Write;
use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;
use lanefs::check::{Options, Problem, Report, Stage, Totals};
use serde_json::{Map, Value, json};
use sync::Mutex;
use sync::atomic::AtomicBool;

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::json;
use crate::open::{cannot_open, open_for};

/// fsck(8): errors are left.
const LEFT: u8 = 4;
/// fsck(8): the check could not be carried out.
const OPERATIONAL: u8 = 8;
/// fsck(8): the command makes no sense as given.
const USAGE: u8 = 16;
/// Problems that are printed without -v.
const SHOWN: usize = 200;

/// Check a file system and report what is wrong with it (never writes)
#[derive(Args)]
pub struct CheckArgs {
    /// The image, a file or block device
    image: PathBuf,
    #[command(flatten)]
    place: FsArgs,
    /// Change nothing (always so)
    #[arg(short = 'n')]
    no: bool,
    /// Check in full even if it is marked clean (always so)
    #[arg(short)]
    force: bool,
    /// Repair what needs no decision: not available
    #[arg(short = 'p', short_alias = 'a', conflicts_with = "no")]
    preen: bool,
    /// Repair everything: not available
    #[arg(short = 'y', conflicts_with = "no")]
    yes: bool,
    /// Write progress to this file descriptor, as e2fsck does (0: a word for each pass to standard error)
    #[arg(short = 'C', value_name = "FD")]
    progress: Option<RawFd>,
    /// Number of threads (0: one for each core)
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Print JSON (version 1)
    #[arg(long)]
    json: bool,
}

impl CheckArgs {
    /// Runs the command.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        if self.preen || self.yes {
            let option = if self.preen { "-p" } else { "-y" };
            return Err(
                Failure::usage(format!("{option}: lanefs can't repair a file system yet"))
                    .hint("check with -n; e2fsck -p or e2fsck -y repairs, best on a copy")
                    .status(USAGE),
            );
        }
        let failed = |failure: Failure| failure.status(OPERATIONAL);
        let device = open_for(context, &self.image, &self.place).map_err(failed)?;
        let journal = self.journal_device().map_err(failed)?;
        // Nothing sets it: a signal ends the program at once, which leaves nothing behind, as a check never writes.
        let cancelled = AtomicBool::new(false);
        let progress = Progress::new(self.progress)?;
        let options = Options {
            threads: self.threads,
            superblock: self.place.superblock,
            is_replayed: false,
            cancelled: &cancelled,
            stage: &|stage| progress.begin(stage),
        };
        let report = lanefs::check::check(&device, journal, &options).map_err(|error| {
            Failure::new(error)
                .at(self.image.display())
                .status(OPERATIONAL)
        })?;
        self.print(context, &report)?;
        match report.is_clean() {
            true => Ok(()),
            false => Err(Failure::told().status(LEFT)),
        }
    }

    fn journal_device(&self) -> Result<Option<sync::Arc<dyn device::BlockDevice>>, Failure> {
        let Some(path) = &self.place.journal else {
            return Ok(None);
        };
        let device = device::FileDevice::open_read_only(path);
        let device = device.map_err(|error| cannot_open(path, &error))?;
        Ok(Some(sync::Arc::new(device)))
    }

    fn print(&self, context: &Context, report: &Report) -> Result<(), Failure> {
        let mut out = context.stdout();
        let image = self.image.display();
        if self.json {
            json::write(&mut out, "check", as_json(report))?;
            return Ok(out.flush()?);
        }
        let shown = match context.verbosity() {
            0 => SHOWN,
            _ => usize::MAX,
        };
        for problem in report.problems.iter().take(shown) {
            let number = problem.kind().number;
            match context.verbosity() {
                0 => writeln!(out, "{problem}")?,
                _ => writeln!(
                    out,
                    "{number:#08x} {}: {problem}",
                    problem.kind().class.name()
                )?,
            }
        }
        let all: u64 = report.counts.values().sum();
        let rest = all.saturating_sub(report.problems.len().min(shown) as u64);
        if rest > 0 {
            writeln!(out, "... and {rest} more (-v shows those that are kept)")?;
        }
        if !report.is_clean() {
            writeln!(out, "{image}: the file system has errors")?;
        }
        if let Some(totals) = &report.totals {
            writeln!(out, "{image}: {}", summary(totals))?;
        }
        Ok(out.flush()?)
    }
}

/// e2fsck's last line.
fn summary(totals: &Totals) -> String {
    let halves = 1000 * totals.fragmented + totals.files / 2;
    let tenths = halves.checked_div(totals.files).unwrap_or(0);
    format!(
        "{}/{} files ({}.{}% non-contiguous), {}/{} blocks",
        totals.files,
        totals.inodes,
        tenths / 10,
        tenths % 10,
        totals.used_blocks,
        totals.blocks
    )
}

fn as_json(report: &Report) -> Value {
    let problems: Vec<Value> = report.problems.iter().map(problem_json).collect();
    let total: u64 = report.counts.values().sum();
    let totals = report.totals.map(|totals| {
        json!({
            "files": totals.files, "inodes": totals.inodes, "directories": totals.directories,
            "fragmented": totals.fragmented, "used_blocks": totals.used_blocks, "blocks": totals.blocks,
        })
    });
    json!({
        "clean": report.is_clean(), "problems": problems, "problems_total": total, "totals": totals,
    })
}

fn problem_json(problem: &Problem) -> Value {
    let kind = problem.kind();
    let mut object = Map::new();
    object.insert("number".into(), format!("{:#08x}", kind.number).into());
    object.insert("class".into(), kind.class.name().into());
    object.insert("severity".into(), kind.severity.name().into());
    object.insert("preen".into(), kind.preen.into());
    object.insert("text".into(), problem.to_string().into());
    let numbers = [
        ("inode", problem.ino.map(u64::from)),
        ("group", problem.group.map(u64::from)),
        ("block", problem.block),
        ("logical_block", problem.lblk),
        ("found", problem.found),
        ("expected", problem.expected),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            object.insert(name.into(), number.into());
        }
    }
    if let Some(name) = &problem.name {
        json::put_bytes(&mut object, "name", name);
    }
    Value::Object(object)
}

/// Where progress goes: lines of pass, done and all, as e2fsck writes them for a program to read.
struct Progress(Option<Mutex<std::fs::File>>);

impl Progress {
    fn new(fd: Option<RawFd>) -> Result<Progress, Failure> {
        let Some(fd) = fd else {
            return Ok(Progress(None));
        };
        let fd = if fd == 0 { 2 } else { fd };
        let path = format!("/proc/self/fd/{fd}");
        let file = std::fs::OpenOptions::new().append(true).open(path);
        let file = file.map_err(|error| {
            Failure::usage(format!(
                "-C {fd}: can't write to file descriptor {fd}: {error}"
            ))
            .status(USAGE)
        })?;
        Ok(Progress(Some(Mutex::new(sync::Rank::Output, file))))
    }

    fn begin(&self, stage: Stage) {
        if let Some(file) = &self.0 {
            // Nobody is left to tell when the reader of the progress is gone.
            let _ = writeln!(file.lock(), "{} 0 1", stage as u32 + 1);
        }
    }
}
