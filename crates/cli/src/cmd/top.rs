//! `lanefs top`: what a mount does, once a second: operations with their latencies, commits and their causes, the log,
//! the caches.
//!
//! All of it follows from counters that the server keeps anyway; a look costs it three requests.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use sync::clock::{self, Instant};
use sync::thread;

use crate::cmd::tune::{attribute, counters};
use crate::context::Context;
use crate::failure::Failure;
use crate::format;
use crate::json::{self, JsonObject};
use crate::mount_state::{MountState, sync_of};

/// The longest interval in seconds: a day.
const LONGEST: f64 = 86_400.0;
/// Kinds of operations that wait for the disk.
const SYNCS: [&str; 3] = ["fsync", "fsyncdir", "syncfs"];
/// The kind of the request by which a look is made.
const OUR_OWN: &str = "getxattr";
/// Why a transaction is committed, and what the counter of that is called.
const CAUSES: [(&str, &str); 5] = [
    ("sync", "journal.commits_for_sync"),
    ("interval", "journal.commits_at_interval"),
    ("full", "journal.commits_when_full"),
    ("room", "journal.commits_for_room"),
    ("quiesce", "journal.commits_to_quiesce"),
];

/// Show what a mounted file system does, every second
///
/// It shows the kernel's requests by kind, with latencies and bytes; commits and their causes; how full the journal is;
/// the caches; and the fsyncs that wait for the disk. It ends when the image is unmounted.
#[derive(clap::Args)]
#[command(
    after_help = "Latencies are those of the server: from the request that it has read to its answer. p99 is a
power of two that 99 % of them do not exceed. Causes of commits: sync (a caller waits), interval
(the commit interval has passed), full (the transaction is as large as one may be), room (the
journal is full), quiesce (freezing, unmounting)."
)]
pub struct Args {
    /// The directory where an image is mounted
    #[arg(value_name = "MOUNTPOINT")]
    directory: PathBuf,
    /// Show one interval, and end
    #[arg(long)]
    once: bool,
    /// Print JSON, an object for each interval
    #[arg(long)]
    json: bool,
    /// Length of an interval
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| *seconds >= 0.01 && *seconds <= LONGEST);
    let seconds = seconds.ok_or("expected seconds from 0.01 to 86400")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// What was counted of one kind of operations.
#[derive(Clone, Default)]
struct OperationCounts {
    begun: u64,
    ended: u64,
    nanoseconds: u64,
    bytes: u64,
    /// Latencies: class n has those below 2^n microseconds that no earlier class has.
    classes: Vec<u64>,
}

/// All counts at one moment.
struct Sample {
    at: Instant,
    counters: BTreeMap<String, u64>,
    operations: BTreeMap<String, OperationCounts>,
}

impl Sample {
    fn of(directory: &Path) -> Result<Sample, Failure> {
        let operations = attribute(directory, "operations")?;
        let counters = counters(directory)?;
        Ok(Sample {
            at: clock::now(),
            counters: counters.into_iter().collect(),
            operations: operations.lines().filter_map(parsed).collect(),
        })
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// A line of the attribute `lanefs.operations`.
fn parsed(line: &str) -> Option<(String, OperationCounts)> {
    let mut words = line.split(' ');
    let name = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    let mut counts = OperationCounts {
        begun: number()?,
        ended: number()?,
        nanoseconds: number()?,
        bytes: number()?,
        classes: Vec::new(),
    };
    let classes = words.next()?.split(',').map(|word| word.parse().ok());
    counts.classes = classes.collect::<Option<Vec<u64>>>()?;
    Some((name, counts))
}

/// What one kind of operations did in an interval.
struct OperationRow {
    name: String,
    per_second: f64,
    waiting: u64,
    mean_us: f64,
    p99_us: u64,
    bytes_per_second: f64,
}

/// What happened between two samples.
struct Interval<'a> {
    before: &'a Sample,
    after: &'a Sample,
    seconds: f64,
}

impl<'a> Interval<'a> {
    fn new(before: &'a Sample, after: &'a Sample) -> Interval<'a> {
        Interval {
            before,
            after,
            seconds: (after.at - before.at).as_secs_f64().max(1e-9),
        }
    }

    fn rate(&self, before: u64, after: u64) -> f64 {
        after.saturating_sub(before) as f64 / self.seconds
    }

    fn counted(&self, name: &str) -> f64 {
        self.rate(self.before.counter(name), self.after.counter(name))
    }

    /// The share of finds among finds and failures; none if nothing was looked for.
    fn share(&self, found: &str, failed: &str) -> Option<f64> {
        let (found, failed) = (self.counted(found), self.counted(failed));
        (found + failed > 0.0).then(|| found / (found + failed))
    }

    /// Kinds that were asked for or are under way, the most frequent first.
    fn operations(&self) -> Vec<OperationRow> {
        let none = OperationCounts::default();
        let mut rows: Vec<OperationRow> = (self.after.operations.iter())
            .map(|(name, after)| {
                let before = self.before.operations.get(name).unwrap_or(&none);
                let ended = after.ended.saturating_sub(before.ended);
                let time = after.nanoseconds.saturating_sub(before.nanoseconds);
                // The request that asks is under way when it looks.
                let own = u64::from(name == OUR_OWN);
                OperationRow {
                    name: name.clone(),
                    per_second: self.rate(before.ended, after.ended),
                    waiting: after.begun.saturating_sub(after.ended + own),
                    mean_us: time as f64 / 1000.0 / ended.max(1) as f64,
                    p99_us: p99(&before.classes, &after.classes),
                    bytes_per_second: self.rate(before.bytes, after.bytes),
                }
            })
            .filter(|row| row.per_second > 0.0 || row.waiting > 0)
            .collect();
        rows.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
        rows
    }

    fn waiting_fsyncs(&self) -> u64 {
        let operations = SYNCS
            .iter()
            .filter_map(|kind| self.after.operations.get(*kind));
        operations
            .map(|counts| counts.begun.saturating_sub(counts.ended))
            .sum()
    }
}

/// The end of the class in which the 99th of a hundred latencies is, in microseconds.
fn p99(before: &[u64], after: &[u64]) -> u64 {
    let new = |(class, count): (usize, &u64)| {
        count.saturating_sub(before.get(class).copied().unwrap_or(0))
    };
    let classes: Vec<u64> = after.iter().enumerate().map(new).collect();
    let all: u64 = classes.iter().sum();
    let wanted = all - all / 100;
    let mut seen = 0;
    let class = classes.iter().position(|count| {
        seen += count;
        all > 0 && seen >= wanted
    });
    class.map_or(0, |class| 1 << class.min(63))
}

impl Args {
    /// Shows intervals until the mount is gone.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let mut before = Sample::of(&self.directory)?;
        loop {
            thread::sleep(self.interval);
            let after = Sample::of(&self.directory)?;
            let interval = Interval::new(&before, &after);
            let mut output = context.stdout();
            if self.json {
                json::write(&mut output, "top", self.object(&interval))?
            } else {
                if context.terminal() && !self.once {
                    // From the upper left corner of an empty screen.
                    write!(output, "\x1b[H\x1b[2J")?;
                }
                self.show(&mut output, &interval)?;
            }
            output.flush()?;
            if self.once {
                return Ok(());
            }
            before = after;
        }
    }

    fn heading(&self) -> String {
        let state =
            MountState::of(&self.directory).map_or_else(String::new, |state| state.to_string());
        let sync = sync_of(&self.directory).unwrap_or_default();
        format!("{}: {state}; sync: {sync}", self.directory.display())
    }

    fn show(&self, output: &mut dyn Write, interval: &Interval<'_>) -> std::io::Result<()> {
        writeln!(output, "{}\n", self.heading())?;
        writeln!(
            output,
            "{:<14} {:>10} {:>8} {:>10} {:>10} {:>10}",
            "operation", "per s", "waiting", "mean us", "p99 us", "bytes/s"
        )?;
        for row in interval.operations() {
            let OperationRow {
                name,
                per_second,
                waiting,
                mean_us,
                p99_us,
                bytes_per_second,
            } = row;
            // Of a rate, whole bytes say enough.
            let bytes = match bytes_per_second as u64 {
                0 => String::new(),
                bytes => format::human(bytes),
            };
            let line = format!(
                "{name:<14} {per_second:>10.1} {waiting:>8} {mean_us:>10.1} {p99_us:>10} {bytes:>10}"
            );
            writeln!(output, "{}", line.trim_end())?;
        }
        writeln!(output, "\n{}", journal_lines(interval))
    }

    fn object(&self, interval: &Interval<'_>) -> Value {
        let mut operations = JsonObject::new();
        for row in interval.operations() {
            let mut one = JsonObject::new();
            one.insert("per_second".into(), row.per_second.into());
            one.insert("waiting".into(), row.waiting.into());
            one.insert("mean_us".into(), row.mean_us.into());
            one.insert("p99_us".into(), row.p99_us.into());
            one.insert("bytes_per_second".into(), row.bytes_per_second.into());
            operations.insert(row.name, one.into());
        }
        let mut causes = JsonObject::new();
        for (name, counter) in CAUSES {
            causes.insert(name.into(), interval.counted(counter).into());
        }
        let counter = |name: &str| Value::from(interval.after.counter(name));
        let rate = |name: &str| Value::from(interval.counted(name));
        let share = |found: &str, failed: &str| Value::from(interval.share(found, failed));
        let state = MountState::of(&self.directory).map(|state| state.to_string());
        let entries: [(&str, Value); 14] = [
            ("directory", self.directory.to_string_lossy().into()),
            ("state", state.into()),
            ("sync", sync_of(&self.directory).into()),
            ("seconds", interval.seconds.into()),
            ("operations", operations.into()),
            ("waiting_fsyncs", interval.waiting_fsyncs().into()),
            ("commits_per_second", rate("journal.commits")),
            ("commits_per_second_by_cause", causes.into()),
            ("log_commits_per_second", rate("fsync.log_commits")),
            ("flushes_per_second", rate("journal.flushes")),
            ("log_blocks_used", counter("journal.log_blocks_used")),
            ("log_blocks", counter("journal.log_blocks")),
            ("inodes_cached", counter("icache.inodes")),
            (
                "metadata_found_share",
                share("buffer.hits", "buffer.misses"),
            ),
        ];
        let object: JsonObject = entries
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        object.into()
    }
}

/// Commits, the log, the caches.
fn journal_lines(interval: &Interval<'_>) -> String {
    let causes: Vec<String> = CAUSES
        .iter()
        .map(|(name, counter)| (name, interval.counted(counter)))
        .filter(|(_, rate)| *rate > 0.0)
        .map(|(name, rate)| format!("{name} {rate:.1}"))
        .collect();
    let causes = if causes.is_empty() {
        String::new()
    } else {
        format!(" ({})", causes.join(", "))
    };
    let found = interval.share("buffer.hits", "buffer.misses");
    let found = found.map_or_else(
        || "not asked for".to_owned(),
        |share| format!("{:.1} % found", 100.0 * share),
    );
    format!(
        "commits  {:.1}/s{causes}, in the fsync log {:.1}/s, flushes {:.1}/s\n\
         fsyncs   {} waiting\n\
         journal  {} of {} blocks in use\n\
         caches   {} inodes, metadata {found}",
        interval.counted("journal.commits"),
        interval.counted("fsync.log_commits"),
        interval.counted("journal.flushes"),
        interval.waiting_fsyncs(),
        interval.after.counter("journal.log_blocks_used"),
        interval.after.counter("journal.log_blocks"),
        interval.after.counter("icache.inodes"),
    )
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn a_line_of_counts_is_read_and_a_broken_one_left_out() {
        let (name, counts) = parsed("write 5 4 9000 4096 0,1,3").unwrap();
        assert_eq!((&*name, counts.begun, counts.ended), ("write", 5, 4));
        assert_eq!((counts.nanoseconds, counts.bytes), (9000, 4096));
        assert_eq!(counts.classes, [0, 1, 3]);
        assert!(parsed("write 5 4 9000").is_none() && parsed("").is_none());
    }

    #[test]
    fn the_99th_of_a_hundred_is_found_among_the_new_ones() {
        assert_eq!(p99(&[], &[]), 0);
        assert_eq!(p99(&[5, 0, 0], &[5, 0, 0]), 0);
        assert_eq!(p99(&[], &[98, 1, 1]), 2);
        assert_eq!(p99(&[], &[97, 1, 2]), 4);
        assert_eq!(p99(&[100, 0, 0, 0], &[100, 0, 0, 1]), 8);
    }
}
