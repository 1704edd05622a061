//! Benches in which workers do the same again and again: columns take turns, rows are numbers of workers.

use engine::{MountOptions, OrphanForm};
use lanefs::Error;

use super::{ProgressHook, Setup, Suite};
use crate::in_process::InProcess;
use crate::measure::{Contender, MeasurePlan, Stop, pairs, run};
use crate::statistics::ratio;
use crate::table::{Cell, Column, Spread, Table, TableShape};
use crate::workload::Workload;

/// Truncates of each worker where the work is fixed.
const TRUNCATES: usize = 2048;
/// Workers of the orphan file's table.
const ORPHAN_WORKERS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Clients of `creat_clo`'s table.
const CLIENTS: [usize; 16] = [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31];

/// What the engine does with the source's workload.
const NO_ENTRY: &str = "A truncation that one step can do is one transaction of ours and needs no entry, whatever the \
                        form; Linux makes one and deletes it. Files unlinked while open need one here too.";

/// What a table is to be.
pub(super) struct Running<'r> {
    pub(super) key: &'r str,
    pub(super) title: &'r str,
    pub(super) workload: Workload,
    pub(super) workers: &'r [usize],
    /// Operations of each worker; `None`: the workers run for the setup's time.
    pub(super) operations: Option<u64>,
}

impl Running<'_> {
    fn plan(&self, setup: &Setup) -> MeasurePlan {
        MeasurePlan {
            workload: self.workload,
            workers: setup.workers(self.workers),
            rounds: setup.rounds,
            stop: match self.operations {
                Some(operations) => Stop::Operations(operations),
                None => Stop::Time(setup.time),
            },
            seed: setup.seed,
        }
    }

    /// Runs it.
    pub(super) fn table(
        &self,
        setup: &Setup,
        contenders: &[Contender<'_>],
        progress: &mut ProgressHook<'_>,
    ) -> Result<Table, Error> {
        let plan = self.plan(setup);
        let rows = plan.workers.iter().map(ToString::to_string).collect();
        let columns = contenders.iter().map(|contender| contender.column.clone());
        let mut about = format!("An operation: {}.", self.workload.about());
        if let Some(names) = setup.named(contenders) {
            about.push_str(&format!(" Columns of ours: {names}."));
        }
        let mut table = Table::new(self.key, self.title, &about, rows, columns.collect());
        table.cells = run(&plan, contenders, progress)?;
        if let Some(operations) = self.operations {
            table.unit = "s";
            table.less_is_better = true;
            table.about =
                format!("{about} Each worker does {operations}; seconds until the last is done.");
        }
        let cores = sync::thread::available_parallelism();
        if plan.workers.iter().any(|workers| *workers > cores) {
            table.notes.push(format!(
                "Of {cores} cores: rows with more workers show how well they wait, not how the work scales."
            ));
        }
        Ok(table)
    }

    /// Pairs at one worker: how far the first contender is from each of these.
    pub(super) fn pairs(
        &self,
        setup: &Setup,
        first: &Contender<'_>,
        others: &[Contender<'_>],
        progress: &mut ProgressHook<'_>,
    ) -> Result<Option<Table>, Error> {
        if setup.pairs == 0 || others.is_empty() {
            return Ok(None);
        }
        let mut plan = self.plan(setup);
        plan.stop = Stop::Time(setup.time / 2);
        let about = format!(
            "Operations a second of {} by those of each other form, one worker, in pairs that take turns; geometric \
             mean, and the interval that a bootstrap gives. An operation: {}.",
            first.column.label,
            self.workload.about()
        );
        let key = format!("{}-pairs", self.key);
        let title = format!(
            "{}: {} by others, one worker",
            self.title, first.column.label
        );
        let mut rows = Vec::new();
        for other in others {
            progress(&format!("{key}: {}", other.column.label));
            let pairs = pairs(&plan, first, other, setup.pairs)?;
            rows.push((other.column.label.clone(), pairs));
        }
        let table = ratios([&key, &title, &about], &rows, setup.seed);
        Ok(Some(table))
    }
}

/// The table with this key, title and text of what each row's pairs say.
pub(super) fn ratios(
    [key, title, about]: [&str; 3],
    rows: &[(String, Vec<(f64, f64)>)],
    seed: u64,
) -> Table {
    let columns = ["ratio", "95% from", "to", "pairs"].map(|label| Column {
        label: label.into(),
        way: "of the same run".into(),
    });
    let names = rows.iter().map(|(name, _)| name.clone());
    let mut table = Table::new(key, title, about, names.collect(), columns.to_vec());
    (table.unit, table.rows_are) = ("ratio", "form");
    table.shape = TableShape::Intervals;
    for ((_, pairs), row) in rows.iter().zip(&mut table.cells) {
        if let Some(found) = ratio(pairs, seed) {
            let figures = [found.mean, found.low, found.high, found.pairs as f64];
            *row = figures.map(Cell::of).to_vec();
        }
    }
    table
}

/// The contenders that are forms of ours, but the first.
pub(super) fn forms<'c>(setup: &Setup, contenders: &'c [Contender<'c>]) -> &'c [Contender<'c>] {
    let end = contenders.len() - setup.on.len();
    contenders.get(1..end).unwrap_or_default()
}

/// One workload.
pub(super) fn single(
    suite: Suite,
    workload: Workload,
    setup: &Setup,
    progress: &mut ProgressHook<'_>,
) -> Result<Vec<Table>, Error> {
    let contenders = setup.contenders(&[])?;
    let running = Running {
        key: suite.name,
        title: suite.about,
        workload,
        workers: &[1, 2],
        operations: None,
    };
    let mut tables = vec![running.table(setup, &contenders, progress)?];
    if let Some(first) = contenders.first() {
        let others = forms(setup, &contenders);
        tables.extend(running.pairs(setup, first, others, progress)?);
    }
    Ok(tables)
}

/// The orphan file's tables.
pub(super) fn orphan(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let contenders = with_none(setup)?;
    let fixed = Running {
        key: "orphan",
        title: "Orphans: files truncated byte by byte, fixed work",
        workload: Workload::ByteTruncate,
        workers: &ORPHAN_WORKERS,
        operations: Some(setup.scaled(TRUNCATES, 256) as u64),
    };
    let rate = Running {
        key: "orphan-rate",
        title: "Orphans: files truncated byte by byte, fixed time",
        operations: None,
        ..fixed
    };
    let open = Running {
        key: "orphan-open-unlink",
        title: "Orphans: files unlinked while open",
        workload: Workload::OpenUnlink,
        ..rate
    };
    let mut tables = vec![fixed.table(setup, &contenders, progress)?];
    if setup.engine {
        tables[0].notes.push(NO_ENTRY.into());
    }
    tables.extend(distance_to_none(&tables[0]));
    for running in [rate, open] {
        let rates = running.table(setup, &contenders, progress)?;
        // Of the truncates the fixed work has it.
        let distance =
            distance_to_none(&rates).filter(|_| running.workload == Workload::OpenUnlink);
        tables.push(rates);
        tables.extend(distance);
        let own: Vec<_> = forms(setup, &contenders).to_vec();
        if let Some(first) = contenders.first() {
            tables.extend(running.pairs(setup, first, &own, progress)?);
        }
    }
    Ok(tables)
}

/// All forms of the orphan record, and none. Recording no orphans can be chosen only when a file system in memory is
/// opened, so that form has a file system of its own, and the others are in memory as well.
fn with_none(setup: &Setup) -> Result<Vec<Contender<'static>>, Error> {
    let mut contenders = setup.contenders_in(true, &["orphan"])?;
    if setup.engine && setup.mechanisms.is_none() {
        let mut options = MountOptions {
            is_measurement: true,
            ..MountOptions::default()
        };
        options.variants.orphan = OrphanForm::Nothing;
        let target = InProcess::in_memory(setup.size, &options)?;
        let none = Contender::new("none", setup.way(true), target);
        contenders.insert(contenders.len() - setup.on.len(), none);
    }
    Ok(contenders)
}

/// How much longer each form takes than the one that notes nothing down.
fn distance_to_none(table: &Table) -> Option<Table> {
    let none = table
        .columns
        .iter()
        .position(|column| column.label == "none")?;
    let about = if table.less_is_better {
        "Median time of the fixed work by that of `orphan=none`, less one, in percent."
    } else {
        "Median time of an operation by that of `orphan=none`, less one, in percent."
    };
    let mut distance = Table::new(
        &format!("{}-distance", table.key),
        &format!(
            "{}: how much longer than without noting them down",
            table.title
        ),
        about,
        table.rows.clone(),
        table.columns.clone(),
    );
    (distance.unit, distance.less_is_better) = ("%", true);
    for (row, cells) in distance.cells.iter_mut().zip(&table.cells) {
        let base = cells[none].spread()?.median;
        for (cell, from) in row.iter_mut().zip(cells) {
            let percent = |spread: Spread| {
                if table.less_is_better {
                    100.0 * (spread.median / base - 1.0)
                } else {
                    100.0 * (base / spread.median - 1.0)
                }
            };
            *cell = from.spread().map(percent).map(Cell::of).unwrap_or_default();
        }
    }
    distance.notes.clone_from(&table.notes);
    Some(distance)
}

/// `creat_clo`'s tables.
pub(super) fn create_close(
    setup: &Setup,
    progress: &mut ProgressHook<'_>,
) -> Result<Vec<Table>, Error> {
    let contenders = with_none(setup)?;
    let removing = Running {
        key: "create-close",
        title: "creat and close, then unlink",
        workload: Workload::CreateClose,
        workers: &CLIENTS,
        operations: None,
    };
    let recreating = Running {
        key: "create-close-again",
        title: "creat and close of a name that is there",
        workload: Workload::Recreate,
        workers: &[1, 7, 15, 31],
        ..removing
    };
    let mut tables = vec![removing.table(setup, &contenders, progress)?];
    if let Some(first) = contenders.first() {
        let others = forms(setup, &contenders);
        tables.extend(removing.pairs(setup, first, others, progress)?);
    }
    tables.push(recreating.table(setup, &contenders, progress)?);
    for table in &mut tables {
        if table.rows_are == "workers" {
            table.rows_are = "clients";
        }
    }
    Ok(tables)
}

/// Mixed loads: as it is by default, and all in plain forms.
pub(super) fn mix(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let mut contenders = setup.contenders(&[])?;
    if setup.engine && setup.mechanisms.is_none() {
        let (first, plain) = (contenders[0].clone(), plain());
        contenders[0] = first.with("default forms", defaults());
        contenders.insert(1, first.with("plain forms", plain));
    }
    let mut tables = Vec::new();
    for (key, title, workload) in [
        ("mix-dbench", "Like dbench", Workload::Dbench),
        ("mix-postmark", "Like postmark", Workload::Postmark),
        ("mix-mongo", "Like mongo", Workload::Mongo),
    ] {
        let running = Running {
            key,
            title,
            workload,
            workers: &[1, 2, 4, 8],
            operations: None,
        };
        tables.push(running.table(setup, &contenders, progress)?);
        let others = forms(setup, &contenders);
        if let Some(first) = contenders.first() {
            tables.extend(running.pairs(setup, first, others, progress)?);
        }
    }
    Ok(tables)
}

/// The default form of every mechanism.
pub(super) fn defaults() -> Vec<String> {
    let first = super::mechanisms().filter_map(|(name, values)| Some((name, *values.first()?)));
    first
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// The second form of every mechanism: the plain twin; the only one where there is one.
pub(super) fn plain() -> Vec<String> {
    let second = super::mechanisms().filter_map(|(name, values)| {
        let value = values.get(1).or(values.first())?;
        Some(format!("{name}={value}"))
    });
    second.collect()
}
