//! Lines: numbers of workers across, values up, a line a column with the range of its samples. Where there are more
//! columns than colors, the first one, which is the default form, is thick and lies above the others, which are pale.

use lanefs_bench::{Spread, Table};

use super::frame::{APART, Frame, LEFT, Scale, WIDTH, color, dash, short, tick};

const PLOT_LEFT: f64 = 92.0;
const PLOT_RIGHT: f64 = WIDTH - 270.0;
const PLOT_HEIGHT: f64 = 340.0;
const LEGEND: f64 = 20.0;

/// Draws it.
pub fn draw(table: &Table) -> String {
    let spreads = || {
        table
            .cells
            .iter()
            .flatten()
            .filter_map(lanefs_bench::Cell::spread)
    };
    let least = spreads()
        .map(|spread| {
            if spread.least < 0.0 {
                spread.least
            } else {
                spread.median
            }
        })
        .fold(f64::INFINITY, f64::min);
    let most = spreads().map(|spread| spread.greatest).fold(0.0, f64::max);
    let scale = Scale::new(least, most);
    let mut frame = Frame::new(table, scale.remark());
    let top = frame.y + 12.0;
    let bottom = top + PLOT_HEIGHT;
    let x = |row: usize| {
        let steps = table.rows.len().max(2) - 1;
        let inset = 24.0;
        let width = PLOT_RIGHT - PLOT_LEFT - 2.0 * inset;
        PLOT_LEFT + inset + width * row as f64 / steps as f64
    };
    let y = |value: f64| bottom - PLOT_HEIGHT * scale.at(value);
    for value in &scale.ticks {
        let at = y(*value);
        frame.line((PLOT_LEFT, at), (PLOT_RIGHT, at), "stroke=\"#dee2e6\"");
        frame.text(
            PLOT_LEFT - 8.0,
            at + 4.5,
            &tick(*value),
            "text-anchor=\"end\"",
        );
    }
    let zero = bottom - PLOT_HEIGHT * scale.zero();
    frame.line((PLOT_LEFT, zero), (PLOT_RIGHT, zero), "stroke=\"#495057\"");
    for (row, name) in table.rows.iter().enumerate() {
        frame.text(x(row), bottom + 20.0, name, "text-anchor=\"middle\"");
    }
    let middle = f64::midpoint(PLOT_LEFT, PLOT_RIGHT);
    frame.text(
        middle,
        bottom + 42.0,
        table.rows_are,
        "text-anchor=\"middle\" font-weight=\"600\"",
    );
    // The first one last, so that it lies above the others.
    for column in (0..table.columns.len()).rev() {
        let points: Vec<(f64, Spread)> = (0..table.rows.len())
            .filter_map(|row| Some((x(row), table.cells[row][column].spread()?)))
            .collect();
        trace(&mut frame, look(table, column), &points, &y);
    }
    let used = legend(&mut frame, table, top);
    frame.y = (bottom + 58.0).max(used);
    let words = if table.columns.len() > APART {
        "Medians; thin lines from the least sample to the greatest. The thick line is the first column."
    } else {
        "Medians; thin lines from the least sample to the greatest."
    };
    frame.text(LEFT, frame.y, words, "font-size=\"12\" fill=\"#495057\"");
    frame.y += 16.0;
    frame.finish(table)
}

/// How a column's line is drawn.
struct Look {
    stroke: String,
    color: &'static str,
    dot: f64,
    opacity: f64,
}

/// The first of many is thick and of full color, the others are thin and pale.
fn look(table: &Table, column: usize) -> Look {
    let (width, dot, opacity) = match (table.columns.len() > APART, column) {
        (false, _) => (2.2, 3.4, 1.0),
        (true, 0) => (4.5, 5.0, 1.0),
        (true, _) => (1.6, 2.4, 0.6),
    };
    let (color, dash) = (color(column), dash(column));
    Look {
        stroke: format!(
            "stroke=\"{color}\" stroke-width=\"{width}\" stroke-opacity=\"{opacity}\"{dash}"
        ),
        color,
        dot,
        opacity,
    }
}

/// A column's line through its points, and the ranges of their samples.
fn trace(frame: &mut Frame, look: Look, points: &[(f64, Spread)], y: &dyn Fn(f64) -> f64) {
    let Look {
        stroke,
        color,
        dot,
        opacity,
    } = look;
    for (x, spread) in points {
        let opacity = 0.45 * opacity;
        let how = format!("stroke=\"{color}\" stroke-opacity=\"{opacity}\" stroke-width=\"1.5\"");
        frame.line((*x, y(spread.least)), (*x, y(spread.greatest)), &how);
    }
    let path: Vec<String> = points
        .iter()
        .map(|(x, spread)| format!("{x:.1},{:.1}", y(spread.median)))
        .collect();
    frame.put(&format!(
        "<polyline points=\"{}\" fill=\"none\" {stroke}/>",
        path.join(" ")
    ));
    for (x, spread) in points {
        frame.put(&format!(
            "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"{dot}\" fill=\"{color}\" fill-opacity=\"{opacity}\"/>",
            y(spread.median)
        ));
    }
}

/// The columns, in the order of their last values; says where it ends.
fn legend(frame: &mut Frame, table: &Table, top: f64) -> f64 {
    let last = |column: usize| {
        let cells = table
            .cells
            .iter()
            .rev()
            .filter_map(|cells| cells[column].spread());
        cells.map(|spread| spread.median).next().unwrap_or(0.0)
    };
    let mut order: Vec<usize> = (0..table.columns.len()).collect();
    order.sort_by(|one, other| last(*other).total_cmp(&last(*one)));
    let mut y = top + 6.0;
    for column in order {
        let (from, to) = ((PLOT_RIGHT + 18.0, y), (PLOT_RIGHT + 44.0, y));
        frame.line(from, to, &look(table, column).stroke);
        let label = short(&table.columns[column].label);
        let how = match (table.columns.len() > APART, column) {
            (true, 0) => "font-weight=\"700\"",
            _ => "",
        };
        frame.text(PLOT_RIGHT + 52.0, y + 4.5, &label, how);
        y += LEGEND;
    }
    y
}
