//! `lanefs bench`: a workload on the engine in this process, and on directories beside it, in one run.

mod svg;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::{Contender, Directory, InProcess, Plan, Row, Workload};
use lanefs::MountOptions;
use serde_json::{Map, Value};

use crate::args::parse_size;
use crate::context::Context;
use crate::failure::Failure;
use crate::json;

/// Measure a workload, in this process and on mounted directories
///
/// Without --on, the engine alone is measured: on a fresh file system in memory, called by inode number. Each --on adds
/// a directory, which is used by system calls. All take turns in each round; the table shows medians.
#[derive(clap::Args)]
pub struct Args {
    /// The workload
    #[arg(value_name = "NAME", value_parser = workload, hide_possible_values = false)]
    workload: Workload,
    /// Numbers of threads, each measured by itself
    #[arg(
        short,
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2"
    )]
    threads: Vec<u16>,
    /// Rounds that count, after one that does not
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Seconds a round, for each number of threads and each file system
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    time: Duration,
    /// Also measure this directory; may be given more than once
    #[arg(long, value_name = "DIR")]
    on: Vec<PathBuf>,
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
    /// Draw the medians into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn workload(text: &str) -> Result<Workload, String> {
    let known = Workload::ALL.into_iter();
    let names: Vec<&str> = known.clone().map(Workload::name).collect();
    known
        .clone()
        .find(|workload| workload.name() == text)
        .ok_or_else(|| format!("there are {}", names.join(", ")))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    match seconds {
        0.001..=3600.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("from 0.001 to 3600 seconds".into()),
    }
}

/// A file that goes when this does.
struct Scratch<'p>(&'p Path);

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // A file that can't be removed is no reason to hide the figures.
        let _ = std::fs::remove_file(self.0);
    }
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        if self.threads.iter().any(|count| !(1..=1024).contains(count)) {
            return Err(Failure::usage("--threads: from 1 to 1024"));
        }
        let mut scratch = None;
        let mut contenders = Vec::new();
        if !self.no_engine {
            contenders.push(self.engine(&mut scratch)?);
        }
        for path in &self.on {
            let directory = Directory::open(path).map_err(Failure::new)?;
            contenders.push(Contender::new(path.display().to_string(), directory));
        }
        let plan = Plan {
            workload: self.workload,
            threads: self.threads.iter().copied().map(usize::from).collect(),
            rounds: self.rounds.into(),
            time: self.time,
        };
        let rows = bench::run(&plan, &contenders, |round, label, threads, sample| {
            context.detail(format_args!(
                "round {round}: {label}, {threads} threads: {:.0} a second",
                sample.rate
            ));
        });
        let rows = rows.map_err(Failure::new)?;
        drop(contenders);
        drop(scratch);
        if let Some(path) = &self.svg {
            let picture = svg::draw(self.workload, &rows);
            std::fs::write(path, picture)
                .map_err(|error| Failure::new(error).at(path.display()))?;
        }
        let mut output = context.stdout();
        if self.json {
            json::write(&mut output, "bench", json_of(&plan, &rows))?;
        } else {
            table(&mut output, self.workload, &rows)?;
        }
        Ok(output.flush()?)
    }

    fn engine<'p>(&'p self, scratch: &mut Option<Scratch<'p>>) -> Result<Contender<'p>, Failure> {
        let options = MountOptions::default();
        let (label, target) = match &self.image {
            None => (
                "in process, memory",
                InProcess::in_memory(self.size, &options),
            ),
            Some(path) if path.exists() => {
                let failure = Failure::new("there is a file already; --image makes a new one");
                return Err(failure.at(path.display()));
            }
            Some(path) => {
                *scratch = Some(Scratch(path));
                (
                    "in process, file",
                    InProcess::in_file(path, self.size, &options),
                )
            }
        };
        Ok(Contender::new(label, target.map_err(Failure::new)?))
    }
}

/// A rate with three digits that count.
fn rate(value: f64) -> String {
    match value {
        1e6.. => format!("{:.2} M", value / 1e6),
        1e5.. => format!("{:.0} k", value / 1e3),
        1e4.. => format!("{:.1} k", value / 1e3),
        1e3.. => format!("{:.2} k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

fn table(output: &mut dyn Write, workload: Workload, rows: &[Row]) -> std::io::Result<()> {
    writeln!(output, "{}: {}", workload.name(), workload.about())?;
    let heading = [
        "file system",
        "threads",
        "operations/s",
        "least",
        "greatest",
        "CPU us/operation",
        "to the first",
    ];
    let mut lines = vec![heading.map(str::to_owned)];
    for row in rows {
        let (median, least, greatest) = row.rates();
        let first = rows.iter().find(|first| first.threads == row.threads);
        let ratio = first.map_or(0.0, |first| median / first.rates().0);
        lines.push([
            row.label.clone(),
            row.threads.to_string(),
            rate(median),
            rate(least),
            rate(greatest),
            format!("{:.2}", row.cpu_micros()),
            format!("{ratio:.2}"),
        ]);
    }
    let widths: Vec<usize> = (0..heading.len())
        .map(|cell| {
            let lens = lines.iter().map(|line| line[cell].chars().count());
            lens.max().unwrap_or_default()
        })
        .collect();
    for line in &lines {
        let mut text = format!("{:<1$}", line[0], widths[0]);
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            text.push_str(&format!("  {cell:>width$}"));
        }
        writeln!(output, "{}", text.trim_end())?;
    }
    Ok(())
}

fn json_of(plan: &Plan, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let (median, least, greatest) = row.rates();
        let samples = row.samples.iter();
        let samples: Vec<Value> = samples
            .map(|sample| {
                let mut object = Map::new();
                object.insert("rate".into(), sample.rate.into());
                object.insert("cpu_us".into(), sample.cpu_micros.into());
                object.into()
            })
            .collect();
        let mut object = Map::new();
        object.insert("filesystem".into(), row.label.clone().into());
        object.insert("threads".into(), row.threads.into());
        object.insert("median".into(), median.into());
        object.insert("least".into(), least.into());
        object.insert("greatest".into(), greatest.into());
        object.insert("samples".into(), samples.into());
        Value::from(object)
    };
    let mut object = Map::new();
    object.insert("workload".into(), plan.workload.name().into());
    object.insert("seconds".into(), plan.time.as_secs_f64().into());
    object.insert(
        "rows".into(),
        rows.iter().map(row).collect::<Vec<_>>().into(),
    );
    object.into()
}
