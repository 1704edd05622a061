//! A report: a page with every table and chart and a description of the machine. Each chart, the tables as Markdown and
//! all samples are files next to it. The page needs no scripts, fonts or links.

use std::fmt::Write;
use std::path::Path;

use lanefs_bench::{Setup, Table, TableShape};

use crate::chart::{draw, escape};
use crate::failure::RunFailure;
use crate::figures::{markdown, parts, speed, unit, ways};
use crate::measured::{Beneath, Measured};
use crate::raw;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;color:#212529;max-width:1000px;margin:2rem auto;\
                     padding:0 1rem}table{border-collapse:collapse;margin:.8rem 0;font-variant-numeric:tabular-nums;\
                     display:block;overflow-x:auto}th,td{padding:.15rem .6rem;border-bottom:1px solid #dee2e6;\
                     text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}\
                     th{border-bottom:2px solid #adb5bd}svg{max-width:100%;height:auto}h2{margin-top:3rem;\
                     border-top:1px solid #dee2e6;padding-top:1rem}.unit,li{color:#495057}";

/// Writes the report to a directory, which is created if necessary.
pub fn write(
    directory: &Path,
    setup: &Setup,
    beneath: &Beneath,
    measured: &[Measured],
) -> Result<(), RunFailure> {
    let put = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).map_err(|error| RunFailure::new(error).at(path.display()))
    };
    std::fs::create_dir_all(directory)
        .map_err(|error| RunFailure::new(error).at(directory.display()))?;
    put("index.html", page(setup, beneath, measured).as_bytes())?;
    let mut text = Vec::new();
    for (name, value) in lines(beneath) {
        text.extend_from_slice(format!("- {name}: {value}\n").as_bytes());
    }
    text.extend_from_slice(format!("- {}\n\n", how(setup)).as_bytes());
    for table in measured.iter().flat_map(|one| &one.tables) {
        let chart = format!("{}.svg", table.key);
        let is_drawn = table.shape != TableShape::Figures;
        markdown(&mut text, table, is_drawn.then_some(&*chart))?;
        if is_drawn {
            put(&chart, draw(table).as_bytes())?;
        }
    }
    put("tables.md", &text)?;
    let mut samples = Vec::new();
    raw::write(&mut samples, setup, beneath, measured)?;
    put("samples.json", &samples)
}

/// What a report says about the machine and the devices, by name.
fn lines(beneath: &Beneath) -> impl Iterator<Item = (&'static str, String)> {
    let machine = beneath.machine.iter().cloned();
    machine.chain(
        beneath
            .devices
            .iter()
            .map(|device| ("device", speed(device))),
    )
}

/// How the figures were measured.
fn how(setup: &Setup) -> String {
    format!(
        "medians of {} rounds in which all take turns, after one that does not count; {} s a sample where time limits \
         it; {} pairs; work scaled by {}; seed {}",
        setup.rounds,
        setup.time.as_secs_f64(),
        setup.pairs,
        setup.scale,
        setup.seed
    )
}

fn page(setup: &Setup, beneath: &Beneath, measured: &[Measured]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>lanefs, measured</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
         <h1>lanefs, measured</h1>\n<table>"
    );
    // Writing to a string does not fail, here and below.
    for (name, value) in lines(beneath) {
        let _ = write!(page, "<tr><td>{name}</td><td>{}</td></tr>", escape(&value));
    }
    let _ = write!(page, "</table>\n<p>{}.</p>\n<ul>", escape(&how(setup)));
    for one in measured {
        let (name, about) = (one.suite.name, escape(one.suite.about));
        let _ = write!(page, "<li><a href=\"#{name}\">{name}</a>: {about}</li>");
    }
    page.push_str("</ul>\n");
    for one in measured {
        let (name, about) = (one.suite.name, escape(one.suite.about));
        let _ = writeln!(page, "<h2 id=\"{name}\">{name}: {about}</h2>");
        for table in &one.tables {
            section(&mut page, table);
        }
    }
    page.push_str("</body></html>\n");
    page
}

fn section(page: &mut String, table: &Table) {
    let _ = write!(
        page,
        "<h3>{} <span class=\"unit\">({})</span></h3>\n<p>{}</p>\n{}",
        escape(&table.title),
        escape(&unit(table)),
        escape(&table.about),
        draw(table)
    );
    for lines in parts(table) {
        page.push_str("<table>");
        for (number, line) in lines.iter().enumerate() {
            let tag = if number == 0 { "th" } else { "td" };
            let cells = line
                .iter()
                .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
            let _ = write!(page, "<tr>{}</tr>", cells.collect::<String>());
        }
        page.push_str("</table>\n");
    }
    page.push_str("<ul>");
    for note in table.notes.iter().chain(&ways(table)) {
        let _ = write!(page, "<li>{}</li>", escape(note));
    }
    page.push_str("</ul>\n");
}
