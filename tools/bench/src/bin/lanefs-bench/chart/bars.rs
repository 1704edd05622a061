//! Bars: a group a row, a bar a column, with its value and the range of its samples; what is negative goes to the left
//! of a line at zero. Where rows are of very different sizes, each has a scale of its own. Where there are more columns
//! than colors, each bar has its column's name instead of a color, and the first one's, the default form's, stands out.

use lanefs_bench::{Cell, Spread, Table};

use super::frame::{APART, Frame, LEFT, WIDTH, color, short};
use crate::figures::figure;

const BARS_LEFT: f64 = 190.0;
/// Where bars end: beside them stands a value, or a value and a name.
const BARS_RIGHT: f64 = WIDTH - 110.0;
const BARS_RIGHT_OF_MANY: f64 = WIDTH - 340.0;
const BAR: f64 = 13.0;
const STEP: f64 = 15.0;
const GROUP: f64 = 12.0;
/// Characters of a legend's line.
const LEGEND: f64 = WIDTH - 2.0 * LEFT;
/// One of many columns, but the first.
const PALE: &str = "#adb5bd";

/// From the least to the greatest value of a row, or of all, zero among them.
#[derive(Clone, Copy)]
struct Reach {
    low: f64,
    high: f64,
    right: f64,
}

impl Reach {
    fn of<'a>(cells: impl Iterator<Item = &'a Cell>, right: f64) -> Reach {
        let spreads = cells.filter_map(Cell::spread);
        let (low, high) = spreads.fold((0.0_f64, 0.0_f64), |(low, high), spread| {
            (low.min(spread.least), high.max(spread.greatest))
        });
        Reach { low, high, right }
    }

    fn size(self) -> f64 {
        self.high - self.low
    }

    /// Where a value is.
    fn x(self, value: f64) -> f64 {
        let part = (value - self.low) / self.size().max(f64::MIN_POSITIVE);
        BARS_LEFT + (self.right - BARS_LEFT) * part
    }
}

/// Draws it.
pub fn draw(table: &Table) -> String {
    let is_many = table.columns.len() > APART;
    let right = if is_many {
        BARS_RIGHT_OF_MANY
    } else {
        BARS_RIGHT
    };
    let whole = Reach::of(table.cells.iter().flatten(), right);
    let of_rows: Vec<Reach> = (table.cells.iter())
        .map(|cells| Reach::of(cells.iter(), right))
        .collect();
    let sizes = of_rows.iter().map(|reach| reach.size());
    let least = sizes
        .filter(|size| *size > 0.0)
        .fold(f64::INFINITY, f64::min);
    let is_apart = whole.size() > 15.0 * least;
    let remark = if is_apart {
        "Each row has a scale of its own."
    } else {
        ""
    };
    let mut frame = Frame::new(table, remark);
    if !is_many {
        legend(&mut frame, table);
    }
    for ((name, cells), own) in table.rows.iter().zip(&table.cells).zip(of_rows) {
        let shown = cells.iter().filter(|cell| !cell.samples.is_empty());
        let height = shown.count() as f64 * STEP;
        let middle = frame.y + height / 2.0 + 4.0;
        frame.text(BARS_LEFT - 12.0, middle, name, "text-anchor=\"end\"");
        let reach = if is_apart { own } else { whole };
        let top = frame.y;
        for (column, cell) in cells.iter().enumerate() {
            let Some(spread) = cell.spread() else {
                continue;
            };
            bar(&mut frame, table, column, &spread, reach);
        }
        if reach.low < 0.0 {
            let (from, to) = ((reach.x(0.0), top - 3.0), (reach.x(0.0), frame.y + 1.0));
            frame.line(from, to, "stroke=\"#495057\"");
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

/// One bar, with its value and, if there are many, its column's name.
fn bar(frame: &mut Frame, table: &Table, column: usize, spread: &Spread, reach: Reach) {
    let is_many = table.columns.len() > APART;
    let (zero, median) = (reach.x(0.0), reach.x(spread.median));
    let y = frame.y;
    let fill = match (is_many, column) {
        (true, 1..) => PALE,
        _ => color(column),
    };
    frame.put(&format!(
        "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>",
        zero.min(median),
        (median - zero).abs().max(1.0),
    ));
    let middle = y + BAR / 2.0;
    frame.line(
        (reach.x(spread.least), middle),
        (reach.x(spread.greatest), middle),
        "stroke=\"#212529\" stroke-width=\"1.5\"",
    );
    let mut label = figure(spread.median);
    if is_many {
        label = format!("{label}   {}", short(&table.columns[column].label));
    }
    let how = match (is_many, column) {
        (true, 0) => "font-size=\"12\" font-weight=\"700\"",
        _ => "font-size=\"12\"",
    };
    let beside = reach.x(spread.greatest).max(zero) + 7.0;
    frame.text(beside, y + 11.0, &label, how);
    frame.y += STEP;
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
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"13\" height=\"13\" fill=\"{}\"/>",
            frame.y,
            color(column),
        ));
        frame.text(x + 19.0, frame.y + 11.0, &label, "");
        x += width;
    }
    frame.y += 30.0;
}
