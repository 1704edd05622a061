//! The picture as an SVG: cells as stacks of what they hold, with title, scale and legend. One file without scripts,
//! fonts or links; the colors differ for the color-blind too.

use std::fmt::Write;

use inspect::{BlockSums, Kind, RawImage, Survey};
use ondisk::text::Bytes;

use super::terminal::{legend_entry, percent_used, scale, title};

/// Cells in a row.
pub const COLUMNS: u32 = 128;
/// Rows, about.
pub const ROWS: u32 = 48;

const LEFT: f64 = 76.0;
const TOP: f64 = 96.0;
const WIDTH: f64 = 896.0;
const GAP: f64 = 3.0;
/// The least height of a part that is there at all, and of scattered data, which one should not overlook.
const VISIBLE: f64 = 1.5;
const STRIKING: f64 = 3.0;

fn color(kind: Kind) -> &'static str {
    match kind {
        Kind::Metadata => "#0072b2",
        Kind::Journal => "#56b4e9",
        Kind::Whole => "#2ca25f",
        Kind::Few => "#f0b429",
        Kind::Many => "#d1495b",
        Kind::Unknown => "#8d99ae",
        Kind::Free => "#e9ecef",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Draws the picture.
pub fn draw(raw: &RawImage, name: &str, survey: &Survey) -> String {
    let rows = survey.cells.len().div_ceil(survey.grid.columns as usize);
    // Few rows are drawn tall, many low.
    let height = (560.0 / rows as f64 - GAP).clamp(9.0, 30.0);
    let bottom = TOP + rows as f64 * (height + GAP);
    let (all_width, all_height) = (LEFT + WIDTH + 64.0, bottom + 28.0 + 7.0 * 22.0);
    let mut svg = String::new();
    let name = escape(&title(raw, name));
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_width} {all_height:.0}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#212529\">\n\
         <title>{name}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"30\" font-size=\"19\" font-weight=\"600\">{name}</text>\n\
         <text x=\"{LEFT}\" y=\"52\" fill=\"#495057\">{}</text>\n",
        escape(&scale(raw, survey))
    );
    draw_scale(&mut svg, raw, survey);
    for (row, cells) in survey
        .cells
        .chunks(survey.grid.columns as usize)
        .enumerate()
    {
        let y = TOP + row as f64 * (height + GAP);
        draw_row(&mut svg, survey, row, cells, y, height);
    }
    draw_legend(&mut svg, raw, survey, bottom + 24.0);
    svg.push_str("</svg>\n");
    svg
}

/// Ticks above the cells: how many bytes into the row.
fn draw_scale(svg: &mut String, raw: &RawImage, survey: &Survey) {
    let bits = raw.geometry.block_size().bits();
    let cells = u64::from(survey.grid.columns);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#495057\">group</text>",
        LEFT - 8.0,
        TOP - 12.0
    );
    for part in 0..=4u64 {
        let x = LEFT + WIDTH * part as f64 / 4.0;
        let offset = cells * survey.grid.blocks_per_cell * part / 4;
        let anchor = if part == 0 { "start" } else { "middle" };
        let words = match part {
            0 => "start of the row".to_string(),
            _ => format!("+{}", Bytes(offset << bits)),
        };
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}v6\" stroke=\"#adb5bd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#495057\">{words}</text>",
            TOP - 8.0,
            TOP - 12.0
        );
    }
}

fn draw_row(
    svg: &mut String,
    survey: &Survey,
    row: usize,
    cells: &[BlockSums],
    y: f64,
    height: f64,
) {
    let step = WIDTH / f64::from(survey.grid.columns);
    let group = row as u64 * u64::from(survey.grid.groups_per_row);
    let percent = percent_used(cells);
    // The last group may be short: cells beyond its end stand for nothing.
    let real = cells
        .iter()
        .filter(|sums| sums.iter().any(|blocks| *blocks > 0))
        .count();
    let middle = y + height / 2.0 + 4.0;
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\" font-size=\"11\">{group}</text>\
         <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{height:.1}\" fill=\"{}\"/>\
         <text x=\"{:.1}\" y=\"{middle:.1}\" font-size=\"11\" fill=\"#495057\">{percent}%</text>",
        LEFT - 8.0,
        step * real as f64,
        color(Kind::Free),
        LEFT + WIDTH + 8.0
    );
    let mut start = 0;
    while start < cells.len() {
        let same = cells[start..]
            .iter()
            .take_while(|sums| shares(sums) == shares(&cells[start]));
        let len = same.count();
        let x = LEFT + step * start as f64;
        draw_stack(svg, &cells[start], x, step * len as f64, y, height);
        start += len;
    }
}

/// A cell's kinds in parts of a thousand: what is drawn of it.
fn shares(sums: &BlockSums) -> [u64; 7] {
    let all: u64 = sums.iter().sum();
    sums.map(|blocks| {
        if blocks == 0 {
            0
        } else {
            (blocks * 1000 / all).max(1)
        }
    })
}

fn draw_stack(svg: &mut String, sums: &BlockSums, x: f64, width: f64, y: f64, height: f64) {
    let all: u64 = sums.iter().sum();
    let mut bottom = y + height;
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Free) {
        let blocks = sums[kind as usize];
        if blocks == 0 {
            continue;
        }
        let least = match kind {
            Kind::Few | Kind::Many => STRIKING,
            _ => VISIBLE,
        };
        let part = (height * blocks as f64 / all as f64)
            .max(least)
            .min(bottom - y);
        bottom -= part;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{bottom:.2}\" width=\"{width:.2}\" height=\"{part:.2}\" fill=\"{}\"/>",
            color(kind)
        );
    }
}

fn draw_legend(svg: &mut String, raw: &RawImage, survey: &Survey, top: f64) {
    let mut y = top;
    for kind in Kind::ALL {
        if survey.totals[kind as usize] == 0 && matches!(kind, Kind::Journal | Kind::Unknown) {
            continue;
        }
        let [words, size, share, more] = legend_entry(raw, survey, kind);
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"16\" height=\"14\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{words}</text>\
             <text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{size}</text>\
             <text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{share}</text>\
             <text x=\"{:.1}\" y=\"{y:.1}\" fill=\"#495057\">{more}</text>",
            y - 12.0,
            color(kind),
            LEFT + 26.0,
            LEFT + 320.0,
            LEFT + 390.0,
            LEFT + 410.0
        );
        y += 22.0;
    }
}
