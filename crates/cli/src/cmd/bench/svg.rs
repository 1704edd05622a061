//! The medians as an SVG: a bar a row with the range of its samples, grouped by the number of threads. One file without
//! scripts, fonts or links.

use std::fmt::Write;

use bench::{Row, Workload};

use super::rate;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 250.0;
const BARS: f64 = 480.0;
const BAR: f64 = 20.0;
const GAP: f64 = 8.0;
const TOP: f64 = 84.0;
/// The Okabe-Ito colors: different for the color-blind too.
const COLORS: [&str; 6] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00",
];

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Draws the rows.
pub fn draw(workload: Workload, rows: &[Row]) -> String {
    let mut threads: Vec<usize> = rows.iter().map(|row| row.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    let mut labels: Vec<&str> = Vec::new();
    for row in rows {
        if !labels.contains(&row.label.as_str()) {
            labels.push(&row.label);
        }
    }
    let most = rows.iter().map(|row| row.rates().2).fold(1.0, f64::max);
    let height = TOP + threads.len() as f64 * (24.0 + labels.len() as f64 * (BAR + GAP)) + 40.0;
    let title = format!("lanefs bench {}", workload.name());
    let mut svg = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#212529\">\n\
         <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"24\" y=\"32\" font-size=\"19\" font-weight=\"600\">{title}</text>\n\
         <text x=\"24\" y=\"54\" fill=\"#495057\">{}; operations a second, median, line from least to \
         greatest</text>\n",
        escape(workload.about())
    );
    let mut y = TOP;
    for count in threads {
        let word = if count == 1 { "thread" } else { "threads" };
        let _ = writeln!(
            svg,
            "<text x=\"24\" y=\"{:.0}\" font-weight=\"600\">{count} {word}</text>",
            y + 14.0
        );
        y += 24.0;
        for row in rows.iter().filter(|row| row.threads == count) {
            let color = labels.iter().position(|label| *label == row.label);
            bar(
                &mut svg,
                row,
                y,
                most,
                COLORS[color.unwrap_or(0) % COLORS.len()],
            );
            y += BAR + GAP;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// One row's bar at height `y`, where `most` has the full width.
fn bar(svg: &mut String, row: &Row, y: f64, most: f64, color: &str) {
    let (median, least, greatest) = row.rates();
    let at = |value: f64| LEFT + BARS * value / most;
    let middle = y + BAR / 2.0;
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\n\
         <rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{color}\"/>\n\
         <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.0}\" y2=\"{middle:.0}\" stroke=\"#212529\" \
         stroke-width=\"2\"/>\n<text x=\"{:.1}\" y=\"{:.0}\">{}</text>\n",
        LEFT - 8.0,
        y + 15.0,
        escape(&row.label),
        at(median) - LEFT,
        at(least),
        at(greatest),
        at(greatest) + 8.0,
        y + 15.0,
        rate(median)
    );
}
