//! Everything as JSON: every sample with all its figures.

use std::io::{self, Write};

use lanefs_bench::{Cell, Sample, Setup, Speed, Table};
use serde_json::{Map, Value};

use crate::measured::{Beneath, Measured};

fn object<const N: usize>(entries: [(&str, Value); N]) -> Value {
    let entries = entries.map(|(name, value)| (name.to_owned(), value));
    Value::Object(Map::from_iter(entries))
}

fn figures(figures: &[(&'static str, f64)]) -> Value {
    let entries = figures
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).into()));
    Value::Object(entries.collect())
}

fn sample(sample: &Sample) -> Value {
    object([
        ("value", sample.value.into()),
        ("details", figures(&sample.details)),
        ("counters", figures(&sample.counters)),
    ])
}

fn cell(cell: &Cell) -> Value {
    let spread = cell.spread();
    let of = |value: fn(lanefs_bench::Spread) -> f64| {
        spread.map_or(Value::Null, |spread| value(spread).into())
    };
    object([
        ("median", of(|spread| spread.median)),
        ("least", of(|spread| spread.least)),
        ("greatest", of(|spread| spread.greatest)),
        ("samples", cell.samples.iter().map(sample).collect()),
    ])
}

fn table(table: &Table) -> Value {
    let columns = table.columns.iter().map(|column| {
        object([
            ("label", column.label.clone().into()),
            ("way", column.way.clone().into()),
        ])
    });
    let rows = table.rows.iter().zip(&table.cells).map(|(name, cells)| {
        object([
            ("name", name.clone().into()),
            ("cells", cells.iter().map(cell).collect()),
        ])
    });
    object([
        ("key", table.key.clone().into()),
        ("title", table.title.clone().into()),
        ("about", table.about.clone().into()),
        ("unit", table.unit.into()),
        ("less_is_better", table.less_is_better.into()),
        ("rows_are", table.rows_are.into()),
        ("columns", columns.collect()),
        ("rows", rows.collect()),
        ("notes", table.notes.clone().into()),
    ])
}

fn device(speed: &Speed) -> Value {
    let found = speed.figures.as_ref();
    let of = |value: fn(&lanefs_bench::Figures) -> f64| {
        found.map_or(Value::Null, |found| value(found).into())
    };
    object([
        ("device", speed.of.clone().into()),
        ("how", speed.how.clone().into()),
        ("write_mib_per_second", of(|found| found.write)),
        ("read_mib_per_second", of(|found| found.read)),
        ("flush_microseconds", of(|found| found.flush)),
        ("flushes", of(|found| found.flushes as f64)),
        ("batch_bytes", of(|found| found.batch as f64)),
        (
            "error",
            found
                .err()
                .map_or(Value::Null, |error| error.clone().into()),
        ),
    ])
}

/// The version of the format. It is raised when an existing field changes or is removed.
const VERSION: u32 = 1;

/// Writes all samples, with the version of the format.
pub fn write(
    output: &mut dyn Write,
    setup: &Setup,
    beneath: &Beneath,
    measured: &[Measured],
) -> io::Result<()> {
    let all = json_of(setup, beneath, measured);
    let versioned = object([("version", VERSION.into()), ("bench", all)]);
    serde_json::to_writer_pretty(&mut *output, &versioned)?;
    writeln!(output)
}

fn json_of(setup: &Setup, beneath: &Beneath, measured: &[Measured]) -> Value {
    let machine = beneath
        .machine
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone().into()));
    let suites = measured.iter().map(|one| {
        object([
            ("name", one.suite.name.into()),
            ("tables", one.tables.iter().map(table).collect()),
        ])
    });
    object([
        ("machine", Value::Object(machine.collect())),
        ("devices", beneath.devices.iter().map(device).collect()),
        ("rounds", setup.rounds.into()),
        ("seconds", setup.time.as_secs_f64().into()),
        ("pairs", setup.pairs.into()),
        ("scale", setup.scale.into()),
        ("seed", setup.seed.into()),
        ("benches", suites.collect()),
    ])
}
