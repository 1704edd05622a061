//! Intervals: a dot a row at the ratio, a line over its interval, beside the line of "as fast".

use lanefs_bench::Table;

use super::frame::{Frame, LEFT, WIDTH};

const PLOT_LEFT: f64 = 250.0;
const PLOT_RIGHT: f64 = WIDTH - 190.0;
const STEP: f64 = 34.0;

/// Draws it: columns are the ratio and the ends of its interval.
pub fn draw(table: &Table) -> String {
    let figures: Vec<Vec<f64>> = table
        .cells
        .iter()
        .map(|cells| {
            let spreads = cells.iter().filter_map(lanefs_bench::Cell::spread);
            spreads.map(|spread| spread.median).collect()
        })
        .collect();
    // Half the axis, around 1 and by logarithms; at least 5% to each side.
    let away = figures.iter().flat_map(|row| row.iter().take(3));
    let away = away
        .filter(|value| **value > 0.0)
        .map(|value| value.ln().abs());
    let reach = away.fold(0.05, f64::max) * 1.1;
    let mut frame = Frame::new(table, "Right of the line: the first form is faster.");
    let x = |value: f64| {
        let part = (value.max(f64::MIN_POSITIVE).ln() + reach) / (2.0 * reach);
        PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * part.clamp(0.0, 1.0)
    };
    let top = frame.y + 10.0;
    let bottom = top + STEP * figures.len() as f64;
    for part in [-1.0_f64, -0.5, 0.0, 0.5, 1.0] {
        let value = (part * reach).exp();
        let color = if part == 0.0 { "#495057" } else { "#dee2e6" };
        let how = format!("stroke=\"{color}\"");
        frame.line((x(value), top), (x(value), bottom), &how);
        let label = format!("{value:.2}");
        frame.text(x(value), bottom + 20.0, &label, "text-anchor=\"middle\"");
    }
    for (row, (name, values)) in table.rows.iter().zip(&figures).enumerate() {
        let y = top + STEP * (row as f64 + 0.5);
        frame.text(PLOT_LEFT - 14.0, y + 4.5, name, "text-anchor=\"end\"");
        let [ratio, low, high, ..] = values[..] else {
            continue;
        };
        let how = "stroke=\"#0072b2\" stroke-width=\"3\" stroke-linecap=\"round\"";
        frame.line((x(low), y), (x(high), y), how);
        frame.put(&format!(
            "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"6\" fill=\"#0072b2\"/>",
            x(ratio)
        ));
        let text = format!("{ratio:.3} ({low:.3} to {high:.3})");
        frame.text(PLOT_RIGHT + 14.0, y + 4.5, &text, "");
    }
    frame.y = bottom + 46.0;
    let words = "Dots are geometric means of pairs; lines are 95% intervals.";
    frame.text(LEFT, frame.y, words, "font-size=\"12\" fill=\"#495057\"");
    frame.y += 16.0;
    frame.finish(table)
}
