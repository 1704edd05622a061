//! Bars: a group a row, a bar a column, with its value and the range of its samples. Where rows are of very different
//! sizes, each has a scale of its own.

use bench::Table;

use super::frame::{Frame, LEFT, WIDTH, color, short};
use crate::cmd::bench::figures::figure;

const BARS_LEFT: f64 = 190.0;
const BARS: f64 = WIDTH - BARS_LEFT - 110.0;
const BAR: f64 = 13.0;
const STEP: f64 = 15.0;
const GROUP: f64 = 12.0;
/// Characters of a legend's line.
const LEGEND: f64 = WIDTH - 2.0 * LEFT;

/// Draws it.
pub fn draw(table: &Table) -> String {
    let most_of = |row: usize| {
        let spreads = table.cells[row].iter().filter_map(bench::Cell::spread);
        spreads.map(|spread| spread.greatest).fold(0.0, f64::max)
    };
    let mosts: Vec<f64> = (0..table.rows.len()).map(most_of).collect();
    let most = mosts.iter().copied().fold(0.0, f64::max);
    let least = mosts
        .iter()
        .copied()
        .filter(|most| *most > 0.0)
        .fold(f64::INFINITY, f64::min);
    let is_apart = most > 15.0 * least;
    let remark = match is_apart {
        true => "Each row has a scale of its own.",
        false => "",
    };
    let mut frame = Frame::new(table, remark);
    legend(&mut frame, table);
    for (row, name) in table.rows.iter().enumerate() {
        let shown = table.cells[row]
            .iter()
            .filter(|cell| !cell.samples.is_empty());
        let height = shown.count() as f64 * STEP;
        let middle = frame.y + height / 2.0 + 4.0;
        frame.text(BARS_LEFT - 12.0, middle, name, "text-anchor=\"end\"");
        let full = if is_apart { mosts[row] } else { most };
        for (column, cell) in table.cells[row].iter().enumerate() {
            let Some(spread) = cell.spread() else {
                continue;
            };
            let x = |value: f64| BARS_LEFT + BARS * value / full.max(f64::MIN_POSITIVE);
            let y = frame.y;
            frame.put(&format!(
                "<rect x=\"{BARS_LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{}\"{}/>",
                (x(spread.median) - BARS_LEFT).max(1.0),
                color(column),
                if column >= 7 { " fill-opacity=\"0.5\"" } else { "" }
            ));
            let middle = y + BAR / 2.0;
            frame.line(
                (x(spread.least), middle),
                (x(spread.greatest), middle),
                "stroke=\"#212529\" stroke-width=\"1.5\"",
            );
            let label = figure(spread.median);
            frame.text(
                x(spread.greatest) + 7.0,
                y + 11.0,
                &label,
                "font-size=\"12\"",
            );
            frame.y += STEP;
        }
        frame.y += GROUP;
    }
    let words = format!(
        "By {}. Bars are medians; lines from the least sample to the greatest.",
        table.rows_are
    );
    frame.text(
        LEFT,
        frame.y + 8.0,
        &words,
        "font-size=\"12\" fill=\"#495057\"",
    );
    frame.y += 24.0;
    frame.finish(table)
}

/// A line or more of colors with their columns.
fn legend(frame: &mut Frame, table: &Table) {
    let mut x = LEFT;
    frame.y += 8.0;
    for (column, named) in table.columns.iter().enumerate() {
        let label = short(&named.label);
        let width = 34.0 + 7.6 * label.chars().count() as f64;
        if x > LEFT && x + width > LEGEND {
            x = LEFT;
            frame.y += 20.0;
        }
        frame.put(&format!(
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"13\" height=\"13\" fill=\"{}\"{}/>",
            frame.y,
            color(column),
            if column >= 7 {
                " fill-opacity=\"0.5\""
            } else {
                ""
            }
        ));
        frame.text(x + 19.0, frame.y + 11.0, &label, "");
        x += width;
    }
    frame.y += 30.0;
}
