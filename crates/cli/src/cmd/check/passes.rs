//! `lanefs check --passes FILE`: draws which thread worked on which pass, and when. The picture is a single SVG file
//! without scripts, fonts or links.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use lanefs::check::{PassSpan, Stage};
use sync::clock::{Duration, Instant};
use sync::{Mutex, Rank};

use super::OPERATIONAL;
use crate::failure::Failure;

const LEFT: f64 = 80.0;
const TOP: f64 = 84.0;
const WIDTH: f64 = 860.0;
const ROW: f64 = 30.0;
const GAP: f64 = 6.0;
/// The smallest width of a span in the picture.
const VISIBLE: f64 = 0.5;
/// The most spans that are kept. An image can cause more: each directory of many blocks adds one for each thread.
const SPANS: usize = 10_000;

fn color(stage: Stage) -> &'static str {
    match stage {
        Stage::Inodes => "#0072b2",
        Stage::Directories => "#2ca25f",
        Stage::Connectivity => "#d1495b",
        Stage::Links => "#f0b429",
        Stage::Counts => "#56b4e9",
    }
}

/// Collects the spans of a check as its threads end them.
pub struct Passes {
    /// The file for the picture.
    path: PathBuf,
    begin: Instant,
    spans: Mutex<Vec<PassSpan>>,
}

impl Passes {
    /// Begins to record a check whose picture will be written to `path`.
    pub fn begin(path: &Path) -> Passes {
        Passes {
            path: path.to_path_buf(),
            begin: sync::clock::now(),
            spans: Mutex::new(Rank::Output, Vec::new()),
        }
    }

    /// Records a span, unless [`SPANS`] spans are recorded.
    pub fn add(&self, span: PassSpan) {
        let mut spans = self.spans.lock();
        if spans.len() < SPANS {
            spans.push(span);
        }
    }

    /// Ends the recording of a check of `image`, and writes the picture.
    pub fn save(self, image: &Path) -> Result<(), Failure> {
        let whole = sync::clock::now().saturating_duration_since(self.begin);
        let name = image.file_name().unwrap_or(image.as_os_str());
        let name = name.to_string_lossy();
        let picture = draw(&name, self.begin, whole, &self.spans.into_inner());
        let failed = |error| {
            let failure = Failure::new(error).at(self.path.display());
            failure.status(OPERATIONAL)
        };
        std::fs::write(&self.path, picture).map_err(failed)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn draw(image: &str, begin: Instant, whole: Duration, spans: &[PassSpan]) -> String {
    let threads = spans.iter().map(|span| span.thread + 1).max().unwrap_or(1);
    let bottom = TOP + threads as f64 * (ROW + GAP);
    let height = bottom + 44.0 + 22.0 * Stage::ALL.len() as f64;
    let title = escape(&format!("The passes of a check of {image}"));
    let mut svg = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height:.0}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#212529\">\n\
         <title>{title}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"30\" font-size=\"19\" font-weight=\"600\">{title}</text>\n\
         <text x=\"{LEFT}\" y=\"52\" fill=\"#495057\">{:.1} ms in all; where a row is grey, its thread waits or one \
         thread works alone</text>\n",
        LEFT + WIDTH + 60.0,
        milliseconds(whole)
    );
    let scale = WIDTH / whole.as_secs_f64().max(1e-9);
    for thread in 0..threads {
        let y = TOP + thread as f64 * (ROW + GAP);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">thread {thread}</text>\
             <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{WIDTH}\" height=\"{ROW}\" fill=\"#e9ecef\"/>",
            LEFT - 8.0,
            y + ROW / 2.0 + 4.0
        );
        for span in spans.iter().filter(|span| span.thread == thread) {
            let from = span.begin.saturating_duration_since(begin).as_secs_f64();
            let len = span.end.saturating_duration_since(span.begin).as_secs_f64();
            let _ = writeln!(
                svg,
                "<rect x=\"{:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{ROW}\" fill=\"{}\"/>",
                LEFT + from * scale,
                (len * scale).max(VISIBLE),
                color(span.stage)
            );
        }
    }
    legend(&mut svg, threads, spans, bottom + 28.0);
    svg.push_str("</svg>\n");
    svg
}

/// Adds the legend: the color of each pass, and how long each thread worked on it.
fn legend(svg: &mut String, threads: usize, spans: &[PassSpan], top: f64) {
    for (row, stage) in Stage::ALL.into_iter().enumerate() {
        let y = top + 22.0 * row as f64;
        let times = (0..threads).map(|thread| {
            let of_thread = spans
                .iter()
                .filter(|span| span.stage == stage && span.thread == thread);
            let time: Duration = of_thread
                .map(|span| span.end.saturating_duration_since(span.begin))
                .sum();
            format!("{:.1}", milliseconds(time))
        });
        let times: Vec<String> = times.collect();
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"14\" height=\"14\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{y:.1}\">{}: {} ms</text>",
            y - 11.0,
            color(stage),
            LEFT + 22.0,
            stage.name(),
            times.join(" and ")
        );
    }
}
