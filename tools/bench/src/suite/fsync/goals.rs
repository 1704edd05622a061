//! What fsyncs were to reach, beside what they did in this run.

use std::time::Duration;

use lanefs::Error;

use super::{Flush, IMAGE_FILE, WORKLOADS, in_memory};
use crate::measure::{FSYNC_P99, FSYNCS};
use crate::suite::Setup;
use crate::table::{Cell, Column, Table, TableShape};
use crate::target::{Counters, Target};
use crate::workload::Workload;

/// Of the best peer's fsyncs a second.
const RATE: f64 = 1.25;
/// Jobs that are compared with peers, and those at which flushes are counted.
const RATED_JOBS: [&str; 3] = ["1", "2", "8"];
const COUNTED_JOBS: &str = "16";
/// Log commits of one block.
const ONE_BLOCK: f64 = 0.8;
/// What is to be reached where a flush takes this long: flushes a sync of all, and of one alone how long it takes, in
/// flush times; for overwrites and for new mappings.
const SLOW: Duration = Duration::from_millis(1);
const FLUSHES: (f64, f64) = (0.15, 0.3);
const ALONE: (f64, f64) = (1.2, 2.2);

/// Fsyncs that are counted in one transaction, and files.
const COUNTED: usize = 100;
const FILES: usize = 8;
/// Bytes of the file system in which they are.
const SIZE: u64 = 1 << 30;

/// One goal.
struct Goal {
    what: String,
    is_at_most: bool,
    goal: f64,
    measured: f64,
}

impl Goal {
    fn is_met(&self) -> bool {
        if self.is_at_most {
            self.measured <= self.goal
        } else {
            self.measured >= self.goal
        }
    }
}

/// The table; `None` without an engine that is measured. `lone` are the tables of one job with many fsyncs, `peers` is
/// the first column that is none of ours.
pub(super) fn table(
    tables: &[Table],
    lone: &[Table],
    flush: Flush,
    setup: &Setup,
    peers: usize,
) -> Result<Option<Table>, Error> {
    if !setup.engine {
        return Ok(None);
    }
    let mut goals = in_place(setup)?;
    // One table for each workload, the mixes last.
    let (writes, mixes) = tables.split_at(WORKLOADS.len().min(tables.len()));
    goals.extend(blocks(writes, "of all writes"));
    goals.extend(blocks(mixes, "of all mixes"));
    for workload in [
        Workload::FsyncOverwrite,
        Workload::Fsync,
        Workload::FsyncSparse,
    ] {
        let name = workload.name();
        let key = format!("{name}-{}", flush.key());
        let Some(table) = tables.iter().find(|table| table.key == key) else {
            continue;
        };
        goals.extend(rates(table, name, peers));
        if matches!(flush, Flush::Takes(SLOW)) {
            let is_over = workload == Workload::FsyncOverwrite;
            let alone = lone
                .iter()
                .find(|table| table.key == format!("{key}-alone"));
            goals.extend(waits(table, alone, name, is_over));
        }
    }
    let columns = ["goal", "measured", "met"].map(|label| Column {
        label: label.into(),
        way: "of the same run".into(),
    });
    let rows = goals.iter().map(|goal| goal.what.clone()).collect();
    let mut table = Table::new(
        &format!("fsync-goals-{}", flush.key()),
        &format!("fsync: what was to be reached; {}", flush.said()),
        "Measured is the first column of the tables above; met is 1 for a goal that was reached.",
        rows,
        columns.to_vec(),
    );
    (table.unit, table.rows_are, table.shape) = ("as each goal says", "goal", TableShape::Figures);
    for (goal, row) in goals.iter().zip(&mut table.cells) {
        let met = f64::from(u8::from(goal.is_met()));
        *row = [goal.goal, goal.measured, met].map(Cell::of).to_vec();
    }
    let missed: Vec<_> = (goals.iter().filter(|goal| !goal.is_met()))
        .map(|goal| goal.what.as_str())
        .collect();
    table.notes.push(if missed.is_empty() {
        "All met.".into()
    } else {
        format!("Missed: {}.", missed.join("; "))
    });
    Ok(Some(table))
}

fn count(counters: &Counters, name: &str) -> u64 {
    let found = counters.iter().find(|(known, _)| *known == name);
    found.map_or(0, |(_, count)| *count)
}

/// Parent locks and splits of fsyncs of files that were logged in the same transaction before, by fsync.
fn in_place(setup: &Setup) -> Result<Vec<Goal>, Error> {
    // So large that all fsyncs find room in the area, and with it in one transaction.
    let large = Setup {
        size: setup.size.max(SIZE),
        ..setup.clone()
    };
    let target = in_memory(&large, Duration::ZERO, true)?;
    let bytes = [1; 4096];
    let mut files = Vec::new();
    for number in 0..FILES {
        let name = format!("in-place-{number}");
        let file = target.create(target.root(), &name)?;
        target.write(&file, 0, &bytes)?;
        files.push((name, file));
    }
    target.settle()?;
    let round = |times: usize| -> Result<(), Error> {
        for _ in 0..times {
            for (name, file) in &files {
                // A write sets times anew once stat has read them, so that the fsync has something to log.
                target.stat(target.root(), name)?;
                target.write(file, 0, &bytes)?;
                target.fsync(file)?;
            }
        }
        Ok(())
    };
    // Rounds that are not counted, until a round finds every file in the log already. The first fsyncs are full
    // commits, which write the new files; the next add the files to the log. The number of rounds is bounded, because
    // every round may be of full commits.
    let in_place = |counters: &Counters| count(counters, "fsync.items_in_place");
    let mut before = target.counters();
    for _ in 0..FILES {
        round(1)?;
        let after = target.counters();
        let were_known = in_place(&after) - in_place(&before) == FILES as u64;
        before = after;
        if were_known {
            break;
        }
    }
    round(COUNTED / FILES)?;
    let after = target.counters();
    let fsyncs = (COUNTED / FILES * FILES) as f64;
    let counted = |name: &str| (count(&after, name) - count(&before, name)) as f64 / fsyncs;
    let goal = |name: &str, what: &str| Goal {
        what: format!("{what} by an fsync after a transaction's first, at most"),
        is_at_most: true,
        goal: 0.0,
        measured: counted(name),
    };
    let in_log = Goal {
        what: "items updated in place by such an fsync, at least".into(),
        is_at_most: false,
        goal: 1.0,
        measured: counted("fsync.items_in_place"),
    };
    Ok(vec![
        goal("fsync.parent_write_locks", "parents locked for writing"),
        goal("fsync.splits", "nodes split"),
        in_log,
    ])
}

/// Of the log commits of each table the share that took one block: the least.
fn blocks(tables: &[Table], what: &str) -> Option<Goal> {
    let shares = tables.iter().filter_map(|table| {
        let sum = |name| -> f64 {
            let ours = table.cells.iter().filter_map(|cells| cells.first());
            let samples = ours.flat_map(|cell| &cell.samples);
            let counted = samples.filter_map(|sample| {
                let by_operation = of(&sample.counters, name)?;
                Some(by_operation * of(&sample.details, "operations")?)
            });
            counted.sum()
        };
        let all = sum("fsync.log_commits");
        (all > 0.0).then(|| sum("fsync.log_commits_of_one_block") / all)
    });
    Some(Goal {
        what: format!("share of log commits that took one block, the least {what}, at least"),
        is_at_most: false,
        goal: ONE_BLOCK,
        measured: shares.min_by(f64::total_cmp)?,
    })
}

fn of(figures: &[(&'static str, f64)], name: &str) -> Option<f64> {
    let found = figures.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value)
}

/// Our rate by the best peer's: that of the first column, and that on an image file if there is one.
fn rates(table: &Table, name: &str, peers: usize) -> Vec<Goal> {
    let file = table.columns.iter().position(|it| it.label == IMAGE_FILE);
    let first = rates_of(table, 0, name, peers);
    let of_file = file.map(|column| {
        let name = format!("{name} on an image file");
        rates_of(table, column, &name, peers)
    });
    first
        .into_iter()
        .chain(of_file.into_iter().flatten())
        .collect()
}

fn rates_of(table: &Table, column: usize, name: &str, peers: usize) -> Vec<Goal> {
    let rows = table.rows.iter().zip(&table.cells);
    let rated = rows.filter(|(row, _)| RATED_JOBS.contains(&row.as_str()));
    let goals = rated.filter_map(|(row, cells)| {
        let ours = cells.get(column)?.spread()?.median;
        let theirs = cells.get(peers..)?.iter().filter_map(Cell::spread);
        let best = theirs.map(|spread| spread.median).max_by(f64::total_cmp)?;
        Some(Goal {
            what: format!("{name}, {row} jobs: times the best peer's rate, at least"),
            is_at_most: false,
            goal: RATE,
            measured: ours / best,
        })
    });
    goals.collect()
}

/// Flushes that an fsync of many shares, and how long one alone takes.
fn waits(table: &Table, lone: Option<&Table>, name: &str, is_over: bool) -> Vec<Goal> {
    let of = |goal: (f64, f64)| if is_over { goal.0 } else { goal.1 };
    let row = |table: &'_ Table, jobs: &str| {
        let number = table.rows.iter().position(|row| row == jobs)?;
        table.cells[number].first().cloned()
    };
    let flushes = row(table, COUNTED_JOBS).and_then(|cell| {
        let fsyncs = cell.detail(FSYNCS)?.median;
        Some(Goal {
            what: format!("{name}, {COUNTED_JOBS} jobs: flushes by fsync, at most"),
            is_at_most: true,
            goal: of(FLUSHES),
            measured: cell.counter("journal.flushes") / fsyncs,
        })
    });
    let alone = lone.and_then(|table| {
        let cell = row(table, "1")?;
        Some(Goal {
            what: format!("{name}, alone: p99 in flush times, at most"),
            is_at_most: true,
            goal: of(ALONE),
            measured: cell.detail(FSYNC_P99)?.median / (SLOW.as_secs_f64() * 1e6),
        })
    });
    flushes.into_iter().chain(alone).collect()
}
