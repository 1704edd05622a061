//! What mounts were to reach, beside what they did in this run.

use super::CPU;
use crate::table::{Cell, Column, Table, TableShape};

/// Of the time of the server without an image.
const OF_NULL: f64 = 1.0 / 0.85;
/// Microseconds of processor time that a create and an unlink may take more than there.
const PAIR_CPU: f64 = 14.0;

/// The transports, each with and without permissions that the kernel checks.
const COLUMNS: [(&str, &str); 4] = [
    ("lanefs", "null"),
    ("lanefs, dp", "null, dp"),
    ("lanefs, uring", "null, uring"),
    ("lanefs, uring, dp", "null, uring, dp"),
];

/// Medians by row and column.
struct Figures<'t>(&'t [Table; 2]);

impl Figures<'_> {
    fn cell(&self, row: &str, column: &str) -> Option<&Cell> {
        self.0.iter().find_map(|table| {
            let row = table.rows.iter().position(|name| name == row)?;
            let column = (table.columns.iter()).position(|known| known.label == column)?;
            table.cells[row].get(column)
        })
    }

    fn value(&self, row: &str, column: &str) -> Option<f64> {
        Some(self.cell(row, column)?.spread()?.median)
    }

    fn cpu(&self, row: &str, column: &str) -> Option<f64> {
        Some(self.cell(row, column)?.detail(CPU)?.median)
    }
}

/// What is compared, at most how much it may be, and how much it is.
type Goal = (String, f64, f64);

fn of_transport(figures: &Figures<'_>, ours: &str, null: &str) -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut add = |what: &str, most: f64, is: Option<f64>| {
        if let Some(is) = is {
            goals.push((format!("{ours}: {what}"), most, is));
        }
    };
    let ratio = |row: &str, to: &str| Some(figures.value(row, ours)? / figures.value(row, to)?);
    for row in [
        "rename",
        "stat cold",
        "read 4 KiB",
        "write 4 KiB",
        "append 4 bytes",
    ] {
        add(&format!("{row}, by null"), OF_NULL, ratio(row, null));
    }
    let pair = "create + unlink, 2 clients";
    let more = figures.cpu(pair, ours).zip(figures.cpu(pair, null));
    let what = "create + unlink, CPU us more than null";
    add(what, PAIR_CPU, more.map(|(ours, null)| ours - null));
    for row in ["untar", "cp -a"] {
        let least = figures.value(row, null).zip(figures.value(row, "kernel"));
        let is = figures.value(row, ours).zip(least);
        let what = format!("{row}, by null + kernel");
        add(
            &what,
            1.0,
            is.map(|(ours, (null, kernel))| ours / (null + kernel)),
        );
        add(&format!("{row}, by kernel"), 5.0, ratio(row, "kernel"));
    }
    for (row, most) in [
        ("rm -rf", 2.5),
        ("git clone", 1.5),
        ("find", 1.5),
        ("find, with stat", 1.5),
        ("du", 1.5),
        ("read a stream", 1.25),
        ("write a stream, fsync", 1.25),
    ] {
        add(&format!("{row}, by kernel"), most, ratio(row, "kernel"));
    }
    // How many times as fast as fuse2fs, or 80 % of what the server without an image is.
    let times = match ours {
        "lanefs" => 3.9,
        "lanefs, dp" => 2.6,
        _ => 5.0,
    };
    for (row, times) in [
        ("create, 2 clients", times),
        ("create, of 50,000 names", 20.0),
        ("stat cold, of 50,000 names", 3.0),
    ] {
        let most = figures.value(row, "fuse2fs").zip(figures.value(row, null));
        let most = most.map(|(other, null)| (other / times).max(null / 0.8));
        let is = figures
            .value(row, ours)
            .zip(most)
            .map(|(is, most)| is / most);
        add(
            &format!("{row}, by fuse2fs / {times} or null / 0.8"),
            1.0,
            is,
        );
    }
    goals
}

/// The table.
pub(super) fn table(tables: &[Table; 2]) -> Table {
    let figures = Figures(tables);
    let goals = COLUMNS
        .iter()
        .flat_map(|(ours, null)| of_transport(&figures, ours, null));
    let mut goals: Vec<Goal> = goals.collect();
    if let Some(seconds) = figures.value(super::LARGE, "lanefs") {
        goals.push((format!("lanefs: {}, s", super::LARGE), 1.0, seconds));
    }
    let columns = ["at most", "measured", "met"].map(|label| Column {
        label: label.into(),
        way: "of the same run".into(),
    });
    let rows = goals.iter().map(|(what, ..)| what.clone()).collect();
    let mut table = Table::new(
        "mounts-goals",
        "Mounts: what was to be reached",
        "Ratios of medians of time; met is 1 for a goal that was reached. dp: with default_permissions.",
        rows,
        columns.to_vec(),
    );
    (table.unit, table.rows_are, table.shape) = ("as each goal says", "goal", TableShape::Figures);
    for ((_, most, is), row) in goals.iter().zip(&mut table.cells) {
        let met = f64::from(u8::from(is <= most));
        *row = [*most, *is, met].map(Cell::of).to_vec();
    }
    table
}
