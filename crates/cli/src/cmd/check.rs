//! `lanefs check`: whether a file system is sound, what is wrong with it, and its repair (`-p`, `-y`). The exit status
//! is that of fsck(8), a sum: 0 clean, 1 repaired, 4 errors left, 8 no verdict or the image changed meanwhile, 16
//! usage, 32 interrupted.

use std::io::Write;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use clap::Args;
use device::BlockDevice;
use indicatif::{ProgressBar, ProgressStyle};
use lanefs::check::{Code, Error, Options, PassProgress, Preen, Problem, Report, Totals};
use serde_json::{Map, Value, json};
use sync::{Arc, Hint, Mutex};

use crate::advice;
use crate::args::{FsArgs, parse_size};
use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt;
use crate::json;
use crate::open::{cannot_open, location, open_for};

mod passes;
mod repair;

/// fsck(8): errors were repaired.
const REPAIRED: u8 = 1;
/// fsck(8): errors are left.
const LEFT: u8 = 4;
/// fsck(8): the check could not be carried out.
const OPERATIONAL: u8 = 8;
/// fsck(8): the command line is wrong.
const USAGE: u8 = 16;
/// fsck(8): interrupted.
const CANCELLED: u8 = 32;
/// How many problems are printed without -v.
const SHOWN: usize = 200;

/// Check a file system, report what is wrong with it, and repair it
#[derive(Args)]
#[command(version, disable_version_flag = false)]
pub struct CheckArgs {
    /// The image, a file or block device
    image: PathBuf,
    #[command(flatten)]
    place: FsArgs,
    /// Change nothing (the default)
    #[arg(short = 'n')]
    no: bool,
    /// Check in full even if it is marked clean (only -p looks at the mark)
    #[arg(short)]
    force: bool,
    /// Repair what needs no decision (replay, orphans, counts, padding of bitmaps); if anything else is wrong, repair
    /// nothing
    #[arg(short = 'p', short_alias = 'a', conflicts_with = "no")]
    preen: bool,
    /// Repair everything
    #[arg(short = 'y', conflicts_with_all = ["no", "preen"])]
    yes: bool,
    /// Save what the repair overwrites in this new file, so that --undo-apply can take the repair back
    #[arg(long, value_name = "FILE")]
    undo: Option<PathBuf>,
    /// Take a repair back, with the file that --undo made
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no", "preen", "yes", "undo"])]
    undo_apply: Option<PathBuf>,
    /// Use the superblock in this block, as e2fsck does
    #[arg(short = 'b', value_name = "BLOCK", conflicts_with = "superblock")]
    backup: Option<u64>,
    /// The block size for -b (default: every block size of ext4 is tried)
    #[arg(short = 'B', value_name = "BYTES", value_parser = parse_size, requires = "backup")]
    block_size: Option<u64>,
    /// The device of an external journal, as e2fsck's -j
    #[arg(short = 'j', value_name = "FILE", conflicts_with = "journal")]
    external: Option<PathBuf>,
    /// Write progress to this file descriptor, as e2fsck does (0: show it on standard error)
    #[arg(short = 'C', value_name = "FD")]
    progress: Option<RawFd>,
    /// Number of threads (0: one for each core)
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Use about this much memory for the record of blocks in use; if that is too little, the inodes are read several
    /// times
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Print JSON (version 1)
    #[arg(long)]
    json: bool,
    /// Draw which thread worked on which pass, and when, to an SVG file
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["preen", "yes"])]
    passes: Option<PathBuf>,
}

impl CheckArgs {
    /// Runs the command.
    pub fn run(mut self, context: &Context) -> Result<(), Failure> {
        if let Some(undo) = &self.undo_apply {
            return self.apply_undo(context, undo);
        }
        if self.preen || self.yes {
            self.place.journal = self.place.journal.take().or(self.external.take());
            return self.repair(context);
        }
        if self.undo.is_some() {
            let failure = Failure::usage("--undo is for a repair, and none was asked for");
            return Err(failure.hint("add -p or -y").status(USAGE));
        }
        let failed = |failure: Failure| failure.status(OPERATIONAL);
        let (device, is_in_use) = self.open(context).map_err(failed)?;
        self.place.journal = self.place.journal.take().or(self.external.take());
        let journal = self.journal_device().map_err(failed)?;
        let cancelled = interrupt::flag()?;
        let progress = Shown::new(context, self.progress, &self.image)?;
        let superblock = match self.backup {
            Some(block) => Some(self.superblock_in(&*device, block)?),
            None => self.place.superblock,
        };
        let passes = self.passes.as_deref().map(passes::Passes::begin);
        let add = |span| passes.iter().for_each(|passes| passes.add(span));
        let options = Options {
            threads: self.threads,
            memory: self.memory,
            superblock,
            is_replayed: false,
            cancelled: &cancelled,
            progress: &|it| progress.show(it),
            trace: passes.is_some().then_some(&add),
        };
        let checked = lanefs::check::check(&device, journal, &options);
        progress.finish();
        let report = checked.map_err(|error| {
            let status = match error {
                Error::Cancelled => CANCELLED,
                _ => OPERATIONAL,
            };
            let failure = Failure::new(error).at(self.image.display());
            failure.status(status)
        })?;
        if let Some(passes) = passes {
            passes.save(&self.image)?;
        }
        self.print(context, &report, is_in_use)?;
        self.name_copies(context, &report, &device);
        let left = if report.is_clean() { 0 } else { LEFT };
        let is_elsewhere = report.counts.contains_key(&Code::JournalExternal);
        let has_no_journal = is_elsewhere && self.place.journal.is_none();
        if has_no_journal {
            context.warn(format_args!(
                "{}: the journal is on another device: --journal FILE names it, so that what it holds is judged too",
                self.image.display()
            ));
        }
        let changing = if is_in_use || has_no_journal {
            OPERATIONAL
        } else {
            0
        };
        match left | changing {
            0 => Ok(()),
            status => Err(Failure::told().status(status)),
        }
    }

    /// Opens the image. The second value is whether another program may change it meanwhile.
    fn open(&mut self, context: &Context) -> Result<(Arc<dyn BlockDevice>, bool), Failure> {
        match lanefs::in_use::open_unchanging(&self.image) {
            Err(lanefs::Error::InUse { .. }) => {
                // Opens the image as `--in-use` does, with a warning.
                self.place.in_use = true;
                let device = open_for(context, &self.image, &self.place)?;
                Ok((device, true))
            }
            // The next line takes the lock again, and reports whatever else fails.
            _ => Ok((open_for(context, &self.image, &self.place)?, false)),
        }
    }

    /// The position of the superblock for -b, in KiB.
    fn superblock_in(&self, device: &dyn BlockDevice, block: u64) -> Result<u64, Failure> {
        let sizes = match self.block_size {
            Some(size) => vec![size],
            None => (10..=16).map(|bits| 1 << bits).collect(),
        };
        let offsets = sizes.iter().filter_map(|size| block.checked_mul(*size));
        let found = offsets
            .filter(|offset| offset.is_multiple_of(1024))
            .find(|offset| {
                let mut bytes = [0; ondisk::Superblock::SIZE];
                device.read_at(*offset, &mut bytes).is_ok()
                    && ondisk::Superblock::view(&bytes).verify().is_ok()
            });
        found.map(|offset| offset / 1024).ok_or_else(|| {
            Failure::new(format!("-b {block}: that block does not hold a superblock"))
                .at(self.image.display())
                .hint("`lanefs info` names the blocks of the copies; -B says the block size")
                .status(OPERATIONAL)
        })
    }

    /// Names the superblocks that are left if the one that was to be used can't be.
    fn name_copies(&self, context: &Context, report: &Report, device: &Arc<dyn BlockDevice>) {
        if report.counts.contains_key(&Code::SuperblockBroken)
            && let Some(copies) =
                advice::copies_left(&self.image, device, location(&self.place.image))
        {
            context.hint(copies);
        }
    }

    fn journal_device(&self) -> Result<Option<Arc<dyn BlockDevice>>, Failure> {
        let Some(path) = &self.place.journal else {
            return Ok(None);
        };
        let device = device::FileDevice::open_read_only(path);
        let device = device.map_err(|error| cannot_open(path, &error))?;
        Ok(Some(Arc::new(device)))
    }

    fn print(&self, context: &Context, report: &Report, is_in_use: bool) -> Result<(), Failure> {
        let mut out = context.stdout();
        let image = self.image.display();
        if self.json {
            json::write(&mut out, "check", as_json(report, is_in_use))?;
            return Ok(out.flush()?);
        }
        list(&mut out, context, report, |_| Fate::Found)?;
        if !report.is_clean() {
            writeln!(out, "{image}: the file system has errors")?;
        }
        if let Some(totals) = &report.totals {
            writeln!(out, "{image}: {}", summary(totals))?;
        }
        Ok(out.flush()?)
    }
}

/// What became of a problem, for the end of its line.
#[derive(Clone, Copy)]
enum Fate {
    /// Nothing yet: a repair would mend it.
    Found,
    Repaired,
    /// The repair left it.
    Left,
}

/// A problem's sentence, with what a repair does or did about it.
fn line(problem: &Problem, fate: Fate) -> String {
    match (problem.repair(), fate) {
        (Some(repair), Fate::Found) => format!("{problem} [repair: {repair}]"),
        (Some(repair), Fate::Repaired) => format!("{problem} [repaired: {repair}]"),
        (None, Fate::Repaired) => format!("{problem} [repaired]"),
        (_, Fate::Left) => format!("{problem} [left]"),
        (None, Fate::Found) => problem.to_string(),
    }
}

/// Prints the problems of a report, each with what became of it.
fn list(
    out: &mut impl Write,
    context: &Context,
    report: &Report,
    fate: impl Fn(&Problem) -> Fate,
) -> std::io::Result<()> {
    let shown = match context.verbosity() {
        0 => SHOWN,
        _ => usize::MAX,
    };
    for problem in report.problems.iter().take(shown) {
        let kind = problem.kind();
        let line = line(problem, fate(problem));
        match context.verbosity() {
            0 => writeln!(out, "{line}")?,
            _ => writeln!(out, "{:#08x} {}: {line}", kind.number, kind.class.name())?,
        }
    }
    let all: u64 = report.counts.values().sum();
    let rest = all.saturating_sub(report.problems.len().min(shown) as u64);
    if rest > 0 {
        writeln!(out, "... and {rest} more (-v shows what is kept)")?;
    }
    Ok(())
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

fn as_json(report: &Report, is_in_use: bool) -> Value {
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
        "in_use": is_in_use,
    })
}

fn problem_json(problem: &Problem) -> Value {
    let kind = problem.kind();
    let mut object = Map::new();
    object.insert("number".into(), format!("{:#08x}", kind.number).into());
    object.insert("class".into(), kind.class.name().into());
    object.insert("severity".into(), kind.severity.name().into());
    let is_preened = kind.preen == Preen::Mends;
    object.insert("preen".into(), is_preened.into());
    let is_beyond = problem.code.is_beyond_e2fsck();
    object.insert("beyond_e2fsck".into(), is_beyond.into());
    object.insert("text".into(), problem.to_string().into());
    object.insert("repair".into(), problem.repair().into());
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
    for (key, bytes) in [("name", &problem.name), ("path", &problem.path)] {
        if let Some(bytes) = bytes {
            json::put_bytes(&mut object, key, bytes);
        }
    }
    Value::Object(object)
}

/// Shows progress: on a file descriptor, as lines of pass, done, all and image, which e2fsck writes for other programs;
/// or as a bar on standard error.
struct Shown {
    lines: Option<Mutex<std::fs::File>>,
    bar: Option<ProgressBar>,
    image: String,
    /// The pass that was shown last, and its progress in thousandths.
    last: Hint<u64>,
}

/// Rate and remaining time are those of the pass.
const BAR: &str = "{msg} [{bar:30}] {percent}% {per_sec} {eta} left";

impl Shown {
    fn new(context: &Context, fd: Option<RawFd>, image: &Path) -> Result<Shown, Failure> {
        let lines = match fd.filter(|fd| *fd != 0) {
            Some(fd) => Some(Mutex::new(sync::Rank::Output, descriptor(fd)?)),
            None => None,
        };
        let wants_bar = lines.is_none() && (context.progress() || fd == Some(0));
        let bar = wants_bar.then(|| {
            let target = indicatif::ProgressDrawTarget::stderr_with_hz(10);
            let bar = ProgressBar::with_draw_target(Some(0), target);
            let style = ProgressStyle::with_template(BAR);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Ok(Shown {
            lines,
            bar,
            image: image.display().to_string(),
            last: Hint::new(u64::MAX),
        })
    }

    fn show(&self, it: PassProgress) {
        let (done, total) = (it.done.min(it.total), it.total.max(1));
        let pass = it.stage as u64 + 1;
        let step = (pass << 32) | (done * 1000 / total);
        // If two threads reach a step, only one shows it.
        if self.last.swap(step) == step {
            return;
        }
        if let Some(lines) = &self.lines {
            // If the reader of the progress has ended, the check continues.
            let _ = writeln!(lines.lock(), "{pass} {done} {} {}", it.total, self.image);
        }
        if let Some(bar) = &self.bar {
            if it.done == 0 {
                bar.set_length(it.total);
                bar.set_message(it.stage.name());
                bar.reset_eta();
            }
            bar.set_position(done);
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// An open file descriptor of this process, to write lines to.
fn descriptor(fd: RawFd) -> Result<std::fs::File, Failure> {
    // With a negative number e2fsck shows no progress until a signal asks for it.
    let path = match fd {
        ..0 => "/dev/null".to_owned(),
        fd => format!("/proc/self/fd/{fd}"),
    };
    let file = std::fs::OpenOptions::new().append(true).open(path);
    file.map_err(|error| {
        let message = format!("-C {fd}: can't write to file descriptor {fd}: {error}");
        Failure::usage(message).status(USAGE)
    })
}
