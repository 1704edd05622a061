//! The measured tables in the pages of mechanisms. What lies between `<!-- measured: KEY KEY -->` and
//! `<!-- end of measured -->` is taken from results/scaling/tables.md: of each key the chart, what it shows, the first
//! table and its notes. `bench-scaling` and `measured` renew it, `tidy` finds where it differs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The page of all tables; its charts are beside it.
pub const TABLES: &str = "results/scaling/tables.md";
/// The directory of the pages on mechanisms.
pub const PAGES: &str = "docs/scaling/";
/// The directory of the charts, relative to these pages.
const CHARTS: &str = "../../results/scaling/";
const BEGIN: &str = "<!-- measured: ";
const END: &str = "<!-- end of measured -->";
const ABOUT: &str = "Of the last run, with what else was counted, in [all tables](../../results/scaling/tables.md), \
                     whose head says what it was measured on.";

/// The page with its measured parts as these tables have them.
pub fn fill(page: &str, tables: &str) -> Result<String, String> {
    let sections = sections(tables);
    let mut filled = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (keys, after) = after.split_once(" -->\n").ok_or("a mark without an end")?;
        let (_, after) = after
            .split_once(END)
            .ok_or(format!("nothing ends the mark of {keys}"))?;
        filled.push_str(&format!("{before}{BEGIN}{keys} -->\n{ABOUT}\n\n"));
        for key in keys.split_whitespace() {
            let section = sections.get(key).ok_or(format!("no table {key}"))?;
            let shown = first_table(section);
            filled.push_str(
                &shown.replace(&format!("]({key}.svg)"), &format!("]({CHARTS}{key}.svg)")),
            );
        }
        filled.push_str(END);
        rest = after;
    }
    Ok(filled + rest)
}

/// The page without its measured parts.
pub fn unmeasured(page: &str) -> String {
    let mut rest = page;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once(BEGIN) {
        kept.push_str(before);
        rest = after.split_once(END).map_or("", |(_, rest)| rest);
    }
    kept + rest
}

/// Updates the measured parts of all pages on mechanisms.
pub fn update(root: &Path) -> Result<(), String> {
    let (tables, folder) = (root.join(TABLES), root.join(PAGES));
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    let tables =
        fs::read_to_string(&tables).map_err(|error| format!("{}: {error}", tables.display()))?;
    for entry in fs::read_dir(&folder).map_err(said)? {
        let path = entry.map_err(said)?.path();
        if path.extension().is_some_and(|end| end == "md") {
            let page = fs::read_to_string(&path).map_err(said)?;
            let filled =
                fill(&page, &tables).map_err(|error| format!("{}: {error}", path.display()))?;
            if filled != page {
                fs::write(&path, filled).map_err(said)?;
            }
        }
    }
    Ok(())
}

/// Each table with its heading, by the name of its chart.
fn sections(tables: &str) -> BTreeMap<&str, &str> {
    let starts: Vec<usize> = tables
        .match_indices("\n### ")
        .map(|(at, _)| at + 1)
        .collect();
    let ends = starts.iter().skip(1).copied().chain([tables.len()]);
    let sections = starts.iter().zip(ends);
    let sections = sections.map(|(start, end)| &tables[*start..end]);
    let named = sections.filter_map(|section| {
        let (_, chart) = section.split_once("](")?;
        let (key, _) = chart.split_once(".svg)")?;
        Some((key, section))
    });
    named.collect()
}

/// A section without the tables behind its first.
fn first_table(section: &str) -> String {
    let mut kept = String::new();
    let mut tables = 0;
    for part in section.split("\n\n").map(str::trim) {
        tables += usize::from(part.starts_with('|'));
        if !part.is_empty() && (tables <= 1 || !part.starts_with('|')) {
            kept.push_str(part);
            kept.push_str("\n\n");
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "\
# All

- head

### One (s)

![One](one.svg)

About one.

| a |
|---|
| 1 |

| more |
|---|
| 2 |

- a note

### Two (s)

![Two](two.svg)

| b |
|---|
| 3 |
";

    #[test]
    fn what_is_between_the_marks_is_what_the_tables_have() {
        let page =
            "Before.\n\n<!-- measured: two one -->\nstale\n<!-- end of measured -->\n\nBehind.\n";
        let filled = fill(page, TABLES).unwrap();
        let two = "### Two (s)\n\n![Two](../../results/scaling/two.svg)\n\n| b |\n|---|\n| 3 |\n\n";
        let chart = "![One](../../results/scaling/one.svg)";
        let table = "| a |\n|---|\n| 1 |";
        let one = format!("### One (s)\n\n{chart}\n\nAbout one.\n\n{table}\n\n- a note\n\n");
        let begin = "Before.\n\n<!-- measured: two one -->\n";
        let end = "<!-- end of measured -->\n\nBehind.\n";
        assert_eq!(filled, format!("{begin}{ABOUT}\n\n{two}{one}{end}"));
        assert_eq!(fill(&filled, TABLES).unwrap(), filled);
        assert_eq!(fill("No mark.\n", TABLES).unwrap(), "No mark.\n");
    }

    #[test]
    fn a_mark_of_no_table_or_without_an_end_is_an_error() {
        let marked = |keys: &str, end: &str| fill(&format!("{BEGIN}{keys} -->\n{end}"), TABLES);
        assert!(marked("one", END).is_ok());
        assert!(marked("three", END).unwrap_err().contains("three"));
        assert!(marked("one", "").unwrap_err().contains("one"));
    }
}
