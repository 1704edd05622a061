//! Tables as text and as Markdown: medians with half the range of the samples in percent, then other figures of the
//! same runs, then what was counted where the columns differ.

use std::io::{self, Write};

use lanefs_bench::{Cell, Speed, Spread, Table, TableShape};

/// More lines of other figures than this are cut to the first row's and the last row's.
const LINES: usize = 48;

/// A number with three digits that count.
pub fn figure(value: f64) -> String {
    match value.abs() {
        9.995e8.. => format!("{:.2} G", value / 1e9),
        9.995e6.. => format!("{:.1} M", value / 1e6),
        9.995e5.. => format!("{:.2} M", value / 1e6),
        9.995e4.. => format!("{:.0} k", value / 1e3),
        9.995e3.. => format!("{:.1} k", value / 1e3),
        99.95.. => format!("{value:.0}"),
        9.995.. => format!("{value:.1}"),
        0.9995.. => format!("{value:.2}"),
        0.00995.. => format!("{value:.3}"),
        0.0 => "0".into(),
        _ => format!("{value:.5}"),
    }
}

/// A median, and how far the samples lie apart.
fn spread(spread: Option<Spread>) -> String {
    let Some(spread) = spread else {
        return String::new();
    };
    let half = (spread.greatest - spread.least) / 2.0;
    match (spread.median, half) {
        (median, half) if median == 0.0 || half == 0.0 => figure(median),
        (median, half) => format!("{} ±{:.0}%", figure(median), 100.0 * half / median.abs()),
    }
}

/// Lines of cells, the heading first.
pub type Lines = Vec<Vec<String>>;

/// The table itself.
pub fn main_lines(table: &Table) -> Lines {
    let mut lines = vec![heading(table, table.rows_are)];
    for (row, cells) in table.rows.iter().zip(&table.cells) {
        lines.push(line(row, cells, |cell| spread(cell.spread())));
    }
    lines
}

fn heading(table: &Table, first: &str) -> Vec<String> {
    let labels = table.columns.iter().map(|column| column.label.clone());
    std::iter::once(first.to_owned()).chain(labels).collect()
}

fn line(name: &str, cells: &[Cell], text: impl Fn(&Cell) -> String) -> Vec<String> {
    std::iter::once(name.to_owned())
        .chain(cells.iter().map(text))
        .collect()
}

/// The rows of which other figures are shown.
fn shown_rows(table: &Table, details: usize) -> Vec<usize> {
    let all = 0..table.rows.len();
    if details * table.rows.len() > LINES {
        all.filter(|row| *row == 0 || row + 1 == table.rows.len())
            .collect()
    } else {
        all.collect()
    }
}

/// Other figures of the same runs.
pub fn detail_lines(table: &Table) -> Lines {
    let names = table.detail_names();
    let names: Vec<_> = names
        .into_iter()
        .filter(|name| *name != "operations")
        .collect();
    let mut lines = vec![heading(
        table,
        &format!("{}: other figures", table.rows_are),
    )];
    for row in shown_rows(table, names.len()) {
        for name in &names {
            let label = format!("{}: {name}", table.rows[row]);
            let figures = line(&label, &table.cells[row], |cell| {
                cell.detail(name)
                    .map_or(String::new(), |spread| figure(spread.median))
            });
            if figures[1..].iter().any(|figure| !figure.is_empty()) {
                lines.push(figures);
            }
        }
    }
    lines
}

/// What was counted by operation in the last row, where it says something about the columns.
pub fn counter_lines(table: &Table) -> Lines {
    let last = table.rows.iter().zip(&table.cells).next_back();
    let Some((row, cells)) = last.filter(|_| table.shape == TableShape::Lines) else {
        return Vec::new();
    };
    let head = format!("counted by operation, {} {row}", table.rows_are);
    let mut lines = vec![heading(table, &head)];
    for name in table.counter_names() {
        let has = |cell: &&Cell| {
            cell.samples
                .iter()
                .any(|sample| !sample.counters.is_empty())
        };
        let values = cells.iter().filter(has).map(|cell| cell.counter(name));
        let Some(range) = Spread::of(values) else {
            continue;
        };
        let is_general = name.starts_with("buffer.") || name.starts_with("journal.");
        let differs = range.greatest - range.least > 0.02 * range.greatest;
        if range.greatest >= 5e-5 && (differs || !is_general) {
            lines.push(line(name, cells, |cell| {
                if has(&cell) {
                    figure(cell.counter(name))
                } else {
                    String::new()
                }
            }));
        }
    }
    lines
}

/// All parts that have more than a heading.
pub fn parts(table: &Table) -> Vec<Lines> {
    let parts = [main_lines(table), detail_lines(table), counter_lines(table)];
    parts.into_iter().filter(|lines| lines.len() > 1).collect()
}

/// What a table's figures are.
pub fn unit(table: &Table) -> String {
    let better = if table.less_is_better {
        "; less is better"
    } else {
        ""
    };
    let unit = match table.unit {
        "s" => "seconds",
        unit => unit,
    };
    format!("{unit}{better}")
}

/// How fast a device is, and how that was measured.
pub fn speed(speed: &Speed) -> String {
    let (of, how) = (&speed.of, &speed.how);
    match &speed.figures {
        Ok(found) => format!(
            "{of}: writes {} MiB/s, reads {} MiB/s, a flush {} us ({how}; {} KiB one after the other and a flush; \
             median of {} flushes after 4 KiB each)",
            figure(found.write),
            figure(found.read),
            figure(found.flush),
            found.batch >> 10,
            found.flushes
        ),
        Err(error) => format!("{of}: not measured: {error} ({how})"),
    }
}

/// Which way calls take, a sentence for all columns that have the same.
pub fn ways(table: &Table) -> Vec<String> {
    let mut ways: Vec<(&str, Vec<&str>)> = Vec::new();
    for column in &table.columns {
        match ways.iter_mut().find(|(way, _)| *way == column.way) {
            Some((_, labels)) => labels.push(&column.label),
            None => ways.push((&column.way, vec![&column.label])),
        }
    }
    let text = |(way, labels): (&str, Vec<&str>)| format!("{}: {way}.", labels.join(", "));
    ways.into_iter().map(text).collect()
}

/// Writes a table with columns that stand in line.
pub fn text(output: &mut dyn Write, table: &Table) -> io::Result<()> {
    writeln!(output, "{} ({})", table.title, unit(table))?;
    writeln!(output, "{}", table.about)?;
    for lines in parts(table) {
        text_lines(output, &lines)?;
    }
    for note in table.notes.iter().chain(&ways(table)) {
        writeln!(output, "- {note}")?;
    }
    writeln!(output)
}

/// Writes a table as Markdown, with the chart in this file if there is one.
pub fn markdown(output: &mut dyn Write, table: &Table, chart: Option<&str>) -> io::Result<()> {
    writeln!(output, "### {} ({})\n", table.title, unit(table))?;
    if let Some(chart) = chart {
        writeln!(output, "![{}]({chart})\n", table.title)?;
    }
    writeln!(output, "{}\n", table.about)?;
    for lines in parts(table) {
        markdown_lines(output, &lines)?;
        writeln!(output)?;
    }
    for note in table.notes.iter().chain(&ways(table)) {
        writeln!(output, "- {note}")?;
    }
    writeln!(output)
}

/// Writes lines with columns that stand in line.
pub fn text_lines(output: &mut dyn Write, lines: &Lines) -> io::Result<()> {
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|cell| {
            let lens = lines.iter().map(|line| line[cell].chars().count());
            lens.max().unwrap_or_default()
        })
        .collect();
    for line in lines {
        let mut text = format!("{:<1$}", line[0], widths[0]);
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            text.push_str(&format!("  {cell:>width$}"));
        }
        writeln!(output, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Writes lines as a table of Markdown.
pub fn markdown_lines(output: &mut dyn Write, lines: &Lines) -> io::Result<()> {
    for (number, line) in lines.iter().enumerate() {
        writeln!(output, "| {} |", line.join(" | "))?;
        if number == 0 {
            writeln!(output, "|---{}|", "|--:".repeat(line.len() - 1))?;
        }
    }
    Ok(())
}
