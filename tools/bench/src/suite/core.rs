//! The everyday operations, beside directories: rates, ratios to the first directory, and from one worker to two.

use engine::Variants;
use lanefs::Error;
use sync::thread;

use super::{ProgressHook, Setup};
use crate::measure::{Contender, MeasurePlan, Stop, run};
use crate::table::{Cell, Column, Sample, Table, TableShape};
use crate::workload::Workload;

/// What is measured, and how many times the kernel's rate on one core it is to have.
const OPERATIONS: [(Workload, f64); 9] = [
    (Workload::Create, 3.0),
    (Workload::Unlink, 3.0),
    (Workload::Rename, 3.0),
    (Workload::Truncate, 3.0),
    (Workload::Fallocate, 3.0),
    (Workload::Stat, 2.0),
    (Workload::ReadDir, 2.0),
    (Workload::Append, 1.5),
    (Workload::Overwrite, 0.9),
];

/// Measures.
pub(super) fn tables(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let mut contenders = Vec::new();
    if setup.engine {
        let memory = setup.open(true, Variants::default())?;
        contenders.push(Contender::new("memory", setup.way(true), memory));
        if setup.image.is_some() {
            let file = setup.open(false, Variants::default())?;
            contenders.push(Contender::new("file", setup.way(false), file));
        }
    }
    let ours = contenders.len();
    contenders.extend(setup.directories()?);
    let directories = contenders.len() - ours;
    let workers = setup.workers(&[1, 2]);
    contenders.extend(apart(setup, &workers)?);
    let mut rows = Vec::new();
    let mut cells = Vec::new();
    for (workload, _) in OPERATIONS {
        let plan = MeasurePlan {
            workload,
            workers: workers.clone(),
            rounds: setup.rounds,
            stop: Stop::Time(setup.time),
            seed: setup.seed,
        };
        cells.extend(run(&plan, &contenders, progress)?);
        rows.extend(workers.iter().map(|workers| {
            let word = if *workers == 1 { "worker" } else { "workers" };
            format!("{}, {workers} {word}", workload.name())
        }));
    }
    let columns = contenders
        .iter()
        .map(|contender| contender.column.clone())
        .collect();
    let abouts =
        OPERATIONS.map(|(workload, _)| format!("{}: {}", workload.name(), workload.about()));
    let mut table = Table::new(
        "core",
        "Everyday operations on disjoint files",
        "Each worker has a directory of its own.",
        rows,
        columns,
    );
    table.notes = abouts.to_vec();
    (table.rows_are, table.shape, table.cells) = ("operation", TableShape::Bars, cells);
    let ratios = ratios(&table, &workers, ours, directories > 0);
    Ok(std::iter::once(table).chain(ratios).collect())
}

/// A file system in memory for each worker, if the machine has a core for each. Two such workers share nothing, so if
/// they do less than twice the work of one, the machine is the reason.
fn apart(setup: &Setup, workers: &[usize]) -> Result<Option<Contender<'static>>, Error> {
    let most = workers.iter().copied().max().unwrap_or(0);
    if !setup.engine || most < 2 || most > thread::available_parallelism() {
        return Ok(None);
    }
    let targets = (0..most).map(|_| setup.open(true, Variants::default()));
    let targets = targets.collect::<Result<Vec<_>, Error>>()?;
    let way = "functions in process, by inode number; memory, a file system for each worker";
    Ok(Some(Contender::apart("apart", way, targets)))
}

/// Values of a row in one column by those in another, or in another row, round by round.
fn by(above: &Cell, below: &Cell) -> Cell {
    let pairs = above.samples.iter().zip(&below.samples);
    let ratios = pairs.map(|(above, below)| Sample {
        value: above.value / below.value.max(f64::MIN_POSITIVE),
        ..Sample::default()
    });
    Cell {
        samples: ratios.collect(),
    }
}

/// Ratios to the first directory with the same number of workers, and of two workers to one, round by round.
fn ratios(table: &Table, workers: &[usize], ours: usize, has_peer: bool) -> Vec<Table> {
    let at = |count: usize| workers.iter().position(|known| *known == count);
    let (Some(one), Some(two)) = (at(1), at(2)) else {
        return Vec::new();
    };
    let cell = |row: usize, worker: usize, column: usize| {
        &table.cells[row * workers.len() + worker][column]
    };
    let column = |label: String, way: &str| Column {
        label,
        way: way.into(),
    };
    let scaling = table.columns.iter();
    let scaling = scaling.map(|named| column(named.label.clone(), &named.way));
    let mut tables = vec![empty(
        "core-scaling",
        "Everyday operations: two workers by one",
        "Rates with two workers by those with one, round by round.",
        scaling.collect(),
    )];
    for (row, cells) in tables[0].cells.iter_mut().enumerate() {
        for (column, ratio) in cells.iter_mut().enumerate() {
            *ratio = by(cell(row, two, column), cell(row, one, column));
        }
    }
    // The columns after the directories are not peers.
    let Some(other) = table.columns.get(ours).filter(|_| ours > 0 && has_peer) else {
        return tables;
    };
    let mut columns = Vec::new();
    for named in &table.columns[..ours] {
        for workers in ["1 worker", "2 workers"] {
            columns.push(column(format!("{}, {workers}", named.label), &named.way));
        }
    }
    columns.push(column("goal".into(), "by the kernel's ext4, per core"));
    let title = format!("Everyday operations: by {}", other.label);
    let about = format!(
        "Rates by those of {} with the same number of workers, round by round. Its way: {}.",
        other.label, other.way
    );
    let mut ratios = empty("core-ratios", &title, &about, columns);
    for (row, cells) in ratios.cells.iter_mut().enumerate() {
        for column in 0..ours {
            for (place, worker) in [one, two].into_iter().enumerate() {
                let ratio = by(cell(row, worker, column), cell(row, worker, ours));
                cells[2 * column + place] = ratio;
            }
        }
        cells[2 * ours] = Cell::of(OPERATIONS[row].1);
    }
    tables.insert(0, ratios);
    tables
}

/// A table of ratios, a row for each operation.
fn empty(key: &str, title: &str, about: &str, columns: Vec<Column>) -> Table {
    let rows = OPERATIONS.map(|(workload, _)| workload.name().to_owned());
    let mut table = Table::new(key, title, about, rows.to_vec(), columns);
    (table.unit, table.rows_are, table.shape) = ("ratio", "operation", TableShape::Bars);
    table
}
