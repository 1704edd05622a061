//! FxMark's workloads: rates of each with one worker and with more.

use lanefs::Error;

use super::{ProgressHook, Setup};
use crate::measure::{MeasurePlan, Stop, run};
use crate::table::{Table, TableShape};
use crate::workload::Workload;

/// Measures.
pub(super) fn tables(setup: &Setup, progress: &mut ProgressHook<'_>) -> Result<Vec<Table>, Error> {
    let contenders = setup.contenders(&[])?;
    let workers = setup.workers(&[1, 2]);
    let mut rows = Vec::new();
    let mut cells = Vec::new();
    for workload in Workload::FXMARK {
        let plan = MeasurePlan {
            workload,
            workers: workers.clone(),
            rounds: setup.rounds,
            stop: Stop::Time(setup.time),
            seed: setup.seed,
        };
        cells.extend(run(&plan, &contenders, progress)?);
        let name = workload.name().trim_start_matches("fxmark-").to_uppercase();
        rows.extend(workers.iter().map(|workers| {
            let word = if *workers == 1 { "worker" } else { "workers" };
            format!("{name}, {workers} {word}")
        }));
    }
    let columns = contenders.iter().map(|contender| contender.column.clone());
    let abouts = Workload::FXMARK.map(|workload| {
        let name = workload.name().trim_start_matches("fxmark-").to_uppercase();
        format!("{name}: {}", workload.about())
    });
    let about = format!(
        "The workloads of FxMark (USENIX ATC 2016). An operation: {}.",
        abouts.join("; ")
    );
    let mut table = Table::new("fxmark", "FxMark", &about, rows, columns.collect());
    table.cells = cells;
    (table.rows_are, table.shape) = ("workload", TableShape::Bars);
    Ok(vec![table])
}
