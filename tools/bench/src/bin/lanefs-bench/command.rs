//! The command line: which benches are run, on the engine in this process (in each form of its mechanisms) and on
//! directories, in one run; and where their tables are written.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lanefs_bench::{Setup, Suite, TableShape, mechanisms};

use crate::failure::RunFailure;
use crate::interrupted::Interrupted;
use crate::measured::{Beneath, Measured};
use crate::size::parse_size;
use crate::verbosity::Verbosity;
use crate::{chart, figures, raw, report};

/// Measure a workload, in this process and on mounted directories
///
/// Without --on, the engine alone is measured: on a fresh file system in memory, called by inode
/// number; columns are the forms of the mechanisms that the bench is about. Each --on adds a
/// directory, which is used by system calls. All take turns in each round; tables show medians, and
/// half the range of the samples in percent. Above them is the speed of each device, measured before in half
/// a second: sequential writes and reads, and a flush. Memory, files and
/// directories are measured with new files or bytes, devices with what they hold.
///
/// Benches:
///   core            everyday operations, and their ratios to the first directory
///   orphan          files truncated byte by byte, and deleted while open
///   create-close    creat and close, then unlink
///   fallocate       8 KiB steps to 1 MiB; pieces of files on empty, fragmented, full images
///   lookup          trees walked with stat, cold, repeated and warm; inodes by handle
///   dir-reserve     many directories with few files, on a model of a disk
///   source-tree     a tree like the kernel's sources unpacked, looked at, removed
///   mix             loads like dbench's, postmark's and mongo's
///   fsync           4 KiB written and the file synced, in several ways
///   fxmark          the 19 workloads of FxMark: blocks and names, private and shared
///   create-unlink, write-truncate, stat, readdir, rename, append, overwrite, mkdir
///   mounts          lanefs, a FUSE server without a file system, fuse2fs and the kernel's ext4, mounted;
///                   mounts them itself, as root
///   all             those above, up to fxmark, into a report
///
/// `lanefs-bench null-server DIR` mounts a FUSE server that stores nothing, to be measured beside others.
/// `lanefs-bench check` measures `lanefs check` beside e2fsck.
#[derive(clap::Parser)]
#[command(
    name = "lanefs-bench",
    version,
    max_term_width = 100,
    verbatim_doc_comment,
    allow_negative_numbers = true,
    arg_required_else_help = true
)]
pub struct Args {
    #[command(flatten)]
    verbosity: Verbosity,
    /// The bench
    #[arg(value_name = "NAME", value_parser = choice, hide_possible_values = false)]
    bench: Choice,
    /// Numbers of workers, each measured by itself (default: the bench's own)
    #[arg(
        short,
        long,
        visible_alias = "workers",
        value_name = "N,...",
        value_delimiter = ','
    )]
    threads: Vec<u16>,
    /// Rounds that count, after one that does not (default: 5)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Seconds for each sample, where it is not limited by work (default: 0.2)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Pairs of samples with one worker that compare the forms; 0 for none (default: 30)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pairs: Option<u16>,
    /// How long a flush of the image's and the directories' devices takes, for the bench of fsync
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    flush: Option<u32>,
    /// How much work, where a sample is not limited by time: 0.1 is a tenth (default: 1)
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    scale: Option<f64>,
    /// Other defaults: 2 rounds of 0.03 seconds, 6 pairs, a tenth of the work
    #[arg(long)]
    quick: bool,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Mechanisms whose forms are columns, instead of the bench's own
    #[arg(long, value_name = "MECHANISM,...", value_delimiter = ',', value_parser = mechanism)]
    variants: Vec<String>,
    /// Also measure this directory; may be given more than once
    #[arg(long, value_name = "DIR")]
    on: Vec<PathBuf>,
    /// Unmount these directories and mount them again where a measurement begins with nothing in memory
    #[arg(long, requires = "on")]
    remount: bool,
    /// Measure the directories alone
    #[arg(long, requires = "on")]
    no_engine: bool,
    /// Put the engine's file system into a new file, not into memory; it is removed at the end
    #[arg(long, value_name = "FILE", conflicts_with = "no_engine")]
    image: Option<PathBuf>,
    /// The size of the engine's file system
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// All samples, as JSON
    #[arg(long)]
    json: bool,
    /// Tables as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Draw the tables into a file; more than one into FILE-TABLE.svg each
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with all tables and charts, and each by itself, into a directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// One bench, or those of a report.
#[derive(Clone)]
enum Choice {
    One(Suite),
    All,
}

fn choice(text: &str) -> Result<Choice, String> {
    if text == "all" {
        return Ok(Choice::All);
    }
    let names = || {
        Suite::ALL
            .iter()
            .map(|suite| suite.name)
            .collect::<Vec<_>>()
    };
    let found = Suite::named(text).map(Choice::One);
    found.ok_or_else(|| format!("there are {}, all", names().join(", ")))
}

fn mechanism(text: &str) -> Result<String, String> {
    let names: Vec<&str> = mechanisms().map(|(name, _)| name).collect();
    if names.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("there are {}", names.join(", ")))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    match seconds {
        0.001..=3600.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("from 0.001 to 3600 seconds".into()),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number")?;
    match factor {
        0.0001..=1000.0 => Ok(factor),
        _ => Err("from 0.0001 to 1000".into()),
    }
}

impl Args {
    /// Measures, and writes the tables.
    ///
    /// # Errors
    /// If a bench fails or a file can't be written.
    pub fn run(self) -> Result<(), RunFailure> {
        if self.threads.iter().any(|count| !(1..=1024).contains(count)) {
            return Err(RunFailure::usage("--threads: from 1 to 1024"));
        }
        let setup = self.setup();
        self.check_places()?;
        let mut beneath = Beneath {
            machine: lanefs_bench::describe_machine(),
            devices: Vec::new(),
        };
        let interrupted = Interrupted::watch(setup.on.clone(), setup.image.clone())?;
        let mut failed = None;
        let mut measured = Vec::new();
        let suites: Vec<Suite> = match self.bench {
            Choice::One(suite) => vec![suite],
            Choice::All => Suite::of_report().collect(),
        };
        beneath.devices = lanefs_bench::speeds(&suites, &setup, |speed| {
            interrupted.stay_if_so();
            self.verbosity.detail(figures::speed(speed));
        });
        for suite in suites {
            let begin = sync::clock::now();
            let outcome = suite.measure(&setup, &mut |line| {
                interrupted.stay_if_so();
                self.verbosity.detail(line);
            });
            interrupted.stay_if_so();
            match outcome {
                Ok(tables) => measured.push(Measured { suite, tables }),
                // One that fails does not hide what the others found.
                Err(error) if matches!(self.bench, Choice::All) => {
                    self.verbosity.warn(format_args!("{}: {error}", suite.name));
                    failed = Some(RunFailure::told());
                }
                Err(error) => return Err(RunFailure::new(error)),
            }
            let time = begin.elapsed().as_secs_f64();
            self.verbosity
                .detail(format_args!("{} took {time:.1} s", suite.name));
        }
        // The results are printed first, so that they are not lost if a file can't be written.
        self.tell(&setup, &beneath, &measured)?;
        if let Some(path) = &self.svg {
            draw(path, &measured)?;
        }
        if let Some(path) = &self.report {
            report::write(path, &setup, &beneath, &measured)?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether charts and report can be written, before anything is measured for them.
    fn check_places(&self) -> Result<(), RunFailure> {
        if let Some(path) = &self.report {
            std::fs::create_dir_all(path)
                .map_err(|error| RunFailure::new(error).at(path.display()))?;
        }
        if let Some(path) = &self.svg {
            let mut options = std::fs::OpenOptions::new();
            options
                .create(true)
                .append(true)
                .open(path)
                .map_err(|error| RunFailure::new(error).at(path.display()))?;
        }
        Ok(())
    }

    /// Writes the tables to standard output.
    fn tell(
        &self,
        setup: &Setup,
        beneath: &Beneath,
        measured: &[Measured],
    ) -> Result<(), RunFailure> {
        let mut output = BufWriter::new(std::io::stdout().lock());
        if self.json {
            raw::write(&mut output, setup, beneath, measured)?;
        } else {
            for device in &beneath.devices {
                let mark = if self.markdown { "- " } else { "" };
                writeln!(output, "{mark}device {}", figures::speed(device))?;
            }
            writeln!(output)?;
            for table in measured.iter().flat_map(|one| &one.tables) {
                if self.markdown {
                    figures::markdown(&mut output, table, None)?
                } else {
                    figures::text(&mut output, table)?
                }
            }
        }
        output.flush()?;
        Ok(())
    }

    fn setup(&self) -> Setup {
        let usual = if self.quick {
            (2, 0.03, 6, 0.1)
        } else {
            (5, 0.2, 30, 1.0)
        };
        Setup {
            engine: !self.no_engine,
            image: self.image.clone(),
            size: self.size,
            on: self.on.clone(),
            remount: self.remount,
            workers: if self.threads.is_empty() {
                None
            } else {
                Some(self.threads.iter().copied().map(usize::from).collect())
            },
            rounds: self.rounds.unwrap_or(usual.0).into(),
            time: self.time.unwrap_or(Duration::from_secs_f64(usual.1)),
            pairs: self.pairs.unwrap_or(usual.2).into(),
            flush: self
                .flush
                .map(|micros| Duration::from_micros(micros.into())),
            scale: self.scale.unwrap_or(usual.3),
            seed: self.seed,
            mechanisms: if self.variants.is_empty() {
                None
            } else {
                Some(self.variants.clone())
            },
        }
    }
}

/// One file a table: the first has the name that was given.
fn draw(path: &Path, measured: &[Measured]) -> Result<(), RunFailure> {
    let tables = measured.iter().flat_map(|one| &one.tables);
    let drawn = tables.filter(|table| table.shape != TableShape::Figures);
    for (number, table) in drawn.enumerate() {
        let path = match number {
            0 => path.to_owned(),
            _ => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                path.with_file_name(format!("{stem}-{}.svg", table.key))
            }
        };
        std::fs::write(&path, chart::draw(table))
            .map_err(|error| RunFailure::new(error).at(path.display()))?;
    }
    Ok(())
}
