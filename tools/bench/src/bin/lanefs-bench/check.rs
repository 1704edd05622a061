//! `lanefs-bench check`: checks beside e2fsck's, in a table and a chart.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use lanefs_bench::{Cell, CheckPlan, Spread, Table, check_speed, e2fsck_version};

use crate::chart;
use crate::failure::RunFailure;
use crate::figures::{self, Lines, figure};
use crate::interrupted::Interrupted;
use crate::verbosity::Verbosity;

/// The word that runs this in place of a bench.
pub const NAME: &str = "check";

/// What is told of the machine.
const TOLD: [&str; 5] = ["processor", "cores", "memory", "kernel", "load before"];

/// Measure `lanefs check -f -n` beside `e2fsck -fn`
///
/// Makes three images with `lanefs build`: empty files; files of 1,500 bytes; eight files of many extents. On each,
/// e2fsck (the one that LANEFS_E2FSCK names, else the installed one) and `lanefs check` with one thread and one for
/// each core take turns. The table has medians and ranges in seconds, and how many times faster than e2fsck the
/// median is.
#[derive(clap::Parser)]
#[command(name = "lanefs-bench check", max_term_width = 100)]
pub struct Args {
    #[command(flatten)]
    verbosity: Verbosity,
    /// Empty files of the first image; a fifth of it in the second, extents of the third in proportion
    #[arg(long, value_name = "N", default_value_t = 500_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    files: u32,
    /// Where images are made [default: /dev/shm, else the folder of temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Rounds that count, after one that does not
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Seed of the order in which the programs take turns
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The table as Markdown
    #[arg(long)]
    markdown: bool,
    /// Draw the table into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Args {
    /// Measures, prints the table and draws the chart.
    ///
    /// # Errors
    /// If an image can't be made, a check fails, or the chart can't be written.
    pub fn run(self) -> Result<(), RunFailure> {
        let plan = CheckPlan {
            files: self.files as usize,
            folder: self.folder.clone().unwrap_or_else(lanefs_bench::scratch),
            rounds: self.rounds.into(),
            seed: self.seed,
        };
        // Before, for the load.
        let machine = lanefs_bench::describe_machine();
        let interrupted = Interrupted::watch(vec![plan.folder.clone()], None)?;
        let measured = check_speed(&plan, &mut |line| {
            interrupted.stay_if_so();
            self.verbosity.detail(line);
        });
        // The same signal may have ended a program; then the run was interrupted and did not fail.
        interrupted.stay_if_so();
        let table = measured.map_err(RunFailure::new)?;
        let mut output = BufWriter::new(std::io::stdout().lock());
        let told = machine.iter().filter(|(name, _)| TOLD.contains(name));
        for (name, value) in told {
            writeln!(output, "- {name}: {value}")?;
        }
        writeln!(output, "- e2fsck: {}\n", e2fsck_version())?;
        writeln!(
            output,
            "{} Times: how many times faster than e2fsck.\n",
            table.about
        )?;
        if self.markdown {
            figures::markdown_lines(&mut output, &lines(&table))?;
        } else {
            figures::text_lines(&mut output, &lines(&table))?;
        }
        output.flush()?;
        if let Some(path) = &self.svg {
            std::fs::write(path, chart::draw(&table))
                .map_err(|error| RunFailure::new(error).at(path.display()))?;
        }
        Ok(())
    }
}

/// The table with ratios to its first column.
fn lines(table: &Table) -> Lines {
    let mut head = vec![table.rows_are.to_owned()];
    for (number, column) in table.columns.iter().enumerate() {
        head.push(format!("{}, s", column.label));
        head.extend((number > 0).then(|| "times".to_owned()));
    }
    let mut lines = vec![head];
    for (row, cells) in table.rows.iter().zip(&table.cells) {
        let mut line = vec![row.clone()];
        let first = cells.first().and_then(Cell::spread);
        for (number, cell) in cells.iter().enumerate() {
            let spread = cell.spread();
            line.push(spread.map_or(String::new(), range));
            if number > 0 {
                let ratio = first.zip(spread);
                let ratio = ratio.map(|(first, own)| figure(first.median / own.median));
                line.push(ratio.unwrap_or_default());
            }
        }
        lines.push(line);
    }
    lines
}

/// The median of the runs, with the shortest and the longest in parentheses.
fn range(spread: Spread) -> String {
    let [median, least, greatest] = [spread.median, spread.least, spread.greatest].map(figure);
    format!("{median} ({least} to {greatest})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_bench::Column;

    #[test]
    fn each_column_but_the_first_has_its_ratio_to_the_first() {
        let column = |label: &str| Column {
            label: label.into(),
            way: String::new(),
        };
        let columns = ["e2fsck", "1 thread", "2 threads"].map(column).to_vec();
        let table = Table::new("key", "Title", "About.", vec!["a".into()], columns);
        let mut table = table.in_seconds("image");
        table.cells[0] = [3.0, 1.5, 0.5].map(Cell::of).to_vec();
        let [head, line] = &lines(&table)[..] else {
            panic!("two lines");
        };
        assert_eq!(
            head.join("|"),
            "image|e2fsck, s|1 thread, s|times|2 threads, s|times"
        );
        assert_eq!(
            line.join("|"),
            "a|3.00 (3.00 to 3.00)|1.50 (1.50 to 1.50)|2.00|0.500 (0.500 to 0.500)|6.00"
        );
    }
}
