//! What all charts have: title, a line on what is shown, legend, colors, and axes with round numbers.

use std::fmt::Write;

use lanefs_bench::Table;

use crate::figures::{figure, unit};

/// All charts are as wide.
pub const WIDTH: f64 = 960.0;
/// Where text begins.
pub const LEFT: f64 = 28.0;
/// Characters of small text that fit the width.
const LINE: usize = 136;
/// Characters of a title that fit in large letters.
const TITLE: usize = 68;
/// Characters of a label in a legend.
const LABEL: usize = 30;
/// The Okabe-Ito colors, but the yellow, which is weak on white.
const COLORS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#212529",
];

/// Lines of one color: whole, then ever more broken.
const DASHES: [&str; 6] = ["", "7 4", "2 3", "12 4 2 4", "14 6", "7 3 2 3 2 3"];
/// The number of columns that can be told apart when each has its own color.
pub const APART: usize = COLORS.len();

/// A column's color. No other has both the same color and the same [`dash`], up to 42 columns.
pub fn color(column: usize) -> &'static str {
    COLORS[column % COLORS.len()]
}

/// What tells apart columns of one color.
pub fn dash(column: usize) -> String {
    match DASHES[column / COLORS.len() % DASHES.len()] {
        "" => String::new(),
        dashes => format!(" stroke-dasharray=\"{dashes}\""),
    }
}

/// Text for SVG and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A label that fits; of a path its end.
pub fn short(text: &str) -> String {
    let len = text.chars().count();
    if len > LABEL {
        format!(
            "…{}",
            text.chars().skip(len - LABEL + 1).collect::<String>()
        )
    } else {
        text.to_owned()
    }
}

/// Words in lines.
fn wrap(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        // There is always a last line.
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > LINE {
                lines.push(word.to_owned());
            } else {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
        }
    }
    lines
}

/// A picture that grows.
pub struct Frame {
    svg: String,
    /// Where the next thing may stand.
    pub y: f64,
}

impl Frame {
    /// Title and what is shown.
    pub fn new(table: &Table, remark: &str) -> Frame {
        let mut frame = Frame {
            svg: String::new(),
            y: 38.0,
        };
        let size = match table.title.chars().count() {
            ..TITLE => 21,
            _ => 16,
        };
        let how = format!("font-size=\"{size}\" font-weight=\"600\"");
        frame.text(LEFT, frame.y, &table.title, &how);
        let about = format!("{} {remark}", table.about);
        let lines = wrap(about.trim());
        for line in &lines {
            frame.y += 18.0;
            frame.text(LEFT, frame.y, line, "font-size=\"13\" fill=\"#495057\"");
        }
        frame.y += 26.0;
        let unit = unit(table);
        frame.text(LEFT, frame.y, &unit, "font-weight=\"600\"");
        frame.y += 10.0;
        frame
    }

    /// Anything.
    pub fn put(&mut self, element: &str) {
        self.svg.push_str(element);
        self.svg.push('\n');
    }

    /// Text at a place.
    pub fn text(&mut self, x: f64, y: f64, text: &str, how: &str) {
        let text = escape(text);
        // Writing to a string does not fail.
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" {how}>{text}</text>"
        );
    }

    /// A line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), how: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(
            self.svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {how}/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// The file.
    pub fn finish(self, table: &Table) -> String {
        let height = self.y.ceil();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" \
             font-size=\"13\" fill=\"#212529\">\n<title>{}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            escape(&table.title),
            self.svg
        )
    }
}

/// An axis with round numbers.
pub struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
    /// Where lines are drawn.
    pub ticks: Vec<f64>,
}

impl Scale {
    /// From 0, or a round number below the least if that is negative, to a round number that holds `most`; by powers of
    /// ten where the least is far below.
    pub fn new(least: f64, most: f64) -> Scale {
        let most = if most > 0.0 || least < 0.0 {
            most.max(0.0)
        } else {
            1.0
        };
        if least > 0.0 && least.is_finite() && most / least > 40.0 {
            let (low, high) = (least.log10().floor(), most.log10().ceil());
            let powers = (0..=(high - low) as i32).map(|power| 10_f64.powi(low as i32 + power));
            return Scale {
                from: low,
                to: high,
                is_log: true,
                ticks: powers.collect(),
            };
        }
        let least = least.min(0.0);
        let step = round_step((most - least) / 5.0);
        let (low, high) = ((least / step).floor(), (most / step).ceil());
        Scale {
            from: low * step,
            to: high * step,
            is_log: false,
            ticks: (low as i32..=high as i32)
                .map(|number| f64::from(number) * step)
                .collect(),
        }
    }

    /// Where the line of nothing is on the axis: at its beginning, if nothing is negative.
    pub fn zero(&self) -> f64 {
        if self.is_log { 0.0 } else { self.at(0.0) }
    }

    /// Where on the axis a value is: from 0 to 1.
    pub fn at(&self, value: f64) -> f64 {
        let value = if self.is_log {
            value.max(f64::MIN_POSITIVE).log10()
        } else {
            value
        };
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    /// What a reader must know of it.
    pub fn remark(&self) -> &'static str {
        if self.is_log { "Logarithmic axis." } else { "" }
    }
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|digit| digit * power >= step * 0.999);
    digit.unwrap_or(10.0) * power
}

/// A number on an axis: without digits that say nothing.
pub fn tick(value: f64) -> String {
    let text = figure(value);
    let (number, suffix) = match text.split_once(' ') {
        Some((number, suffix)) => (number, format!(" {suffix}")),
        None => (text.as_str(), String::new()),
    };
    let number = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    };
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_reaches_below_its_zero_for_what_is_negative_and_begins_with_it_else() {
        let scale = Scale::new(-12.0, 230.0);
        assert!(scale.at(-12.0) < scale.at(-9.0) && scale.at(-9.0) < scale.zero());
        assert!(scale.at(-12.0) > 0.0 && scale.at(230.0) <= 1.0);
        assert!(scale.ticks.contains(&0.0) && scale.ticks[0] < -11.0);
        let below = Scale::new(-12.0, -3.0);
        assert!((below.zero() - 1.0).abs() < 1e-9 && below.at(-12.0) < below.at(-3.0));
        for (least, most) in [(3.0, 40.0), (0.0, 0.0), (f64::INFINITY, 0.0), (1.0, 1e6)] {
            let scale = Scale::new(least, most);
            assert!(scale.zero().abs() < 1e-9 && scale.ticks.len() > 1);
        }
    }

    #[test]
    fn no_two_columns_have_the_same_color_and_dashes() {
        let looks: std::collections::BTreeSet<_> = (0..42)
            .map(|column| (color(column), dash(column)))
            .collect();
        assert_eq!(looks.len(), 42);
    }
}
