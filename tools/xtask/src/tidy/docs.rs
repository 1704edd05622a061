//! Rules for what is written beside the code: links lead somewhere, commands, options and tests exist, and no file
//! names a folder of the machine it was written on.
//!
//! What exists on the command line is read from docs/cli.md, which a test of `lanefs-cli` keeps equal to `--help`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Violation;
use crate::measured::{PAGES, TABLES, fill, unmeasured};

/// The page that lists every command and option.
pub const CLI_PAGE: &str = "docs/cli.md";

/// Pages that a command makes.
const GENERATED: [&str; 2] = [CLI_PAGE, "docs/check-problems.md"];

/// The most words of a page, and of all pages together, without generated ones, measured parts and decisions.
const MAX_PAGE_WORDS: usize = 2_500;
const MAX_WORDS: usize = 40_000;

/// A page of documentation: its path from the root, and its text.
pub type Page = (String, String);

/// Checks that the measured parts of pages are what the page of all tables has.
pub fn check_measured(pages: &[Page], violations: &mut Vec<Violation>) {
    let Some((_, tables)) = pages.iter().find(|(path, _)| path == TABLES) else {
        return;
    };
    for (path, text) in pages {
        if !path.starts_with(PAGES) {
            continue;
        }
        let wrong = match fill(text, tables) {
            Ok(filled) if filled == *text => continue,
            Ok(filled) => {
                let mut lines = text.lines().zip(filled.lines());
                let line = lines.position(|(is, should)| is != should);
                (
                    line.map_or(0, |line| line + 1),
                    format!("differs from {}: bench-scaling renews it", TABLES),
                )
            }
            Err(error) => (0, error),
        };
        violations.push(Violation {
            path: path.clone(),
            line: wrong.0,
            rule: "measured",
            message: wrong.1,
        });
    }
}

/// Checks that no page of `docs` is too long for one reading, nor all of them for a day.
pub fn check_sizes(pages: &[Page], violations: &mut Vec<Violation>) {
    let mut report = |path: &str, words: usize, most: usize| {
        violations.push(Violation {
            path: path.to_owned(),
            line: 0,
            rule: "page-size",
            message: format!("{words} words, more than {most}: cut, or move figures to results/"),
        });
    };
    let mut total = 0;
    for (path, text) in pages {
        let counts = path.starts_with("docs/") && !path.starts_with("docs/decisions/");
        if !counts || GENERATED.contains(&path.as_str()) {
            continue;
        }
        let words = unmeasured(text).split_whitespace().count();
        total += words;
        if words > MAX_PAGE_WORDS {
            report(path, words, MAX_PAGE_WORDS);
        }
    }
    if total > MAX_WORDS {
        report("docs", total, MAX_WORDS);
    }
}

/// Checks the links of a page. `exists` tells whether a path from the root exists.
pub fn check_links(
    page: &Page,
    pages: &[Page],
    exists: &dyn Fn(&Path) -> bool,
    violations: &mut Vec<Violation>,
) {
    let (path, text) = page;
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    for (number, line) in prose(text) {
        for target in links(line) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let full = if file.is_empty() {
                PathBuf::from(path)
            } else {
                normal(&folder.join(file))
            };
            let message = if !file.is_empty() && !exists(&full) {
                format!("link to `{target}`, which does not exist")
            } else if !anchor.is_empty() && !has_heading(pages, &full, anchor) {
                format!("link to `{target}`, but no heading makes `#{anchor}`")
            } else {
                continue;
            };
            violations.push(Violation {
                path: path.clone(),
                line: number,
                rule: "links",
                message,
            });
        }
    }
}

/// Checks that the commands a page shows exist, with their options.
pub fn check_commands(page: &Page, cli_page: &str, violations: &mut Vec<Violation>) {
    let (path, text) = page;
    let mut in_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        in_block ^= line.trim_start().starts_with("```");
        for words in shown_commands(line, in_block) {
            let mut report = |message: String| {
                violations.push(Violation {
                    path: path.clone(),
                    line: number,
                    rule: "commands",
                    message,
                });
            };
            let Some(command) = words
                .first()
                .filter(|word| word.chars().all(|c| c.is_ascii_lowercase()))
            else {
                continue;
            };
            let Some(section) = section(cli_page, command) else {
                report(format!("no command `lanefs {command}`"));
                continue;
            };
            for word in &words[1..] {
                let option = word
                    .split(['=', '[', ']'])
                    .find(|part| part.starts_with("--"));
                if let Some(option) = option
                    && option.len() > 2
                    && !options(section).contains(option)
                {
                    report(format!("`lanefs {command}` has no option `{option}`"));
                }
            }
        }
    }
}

/// Checks that the tests that a page names exist: words in backquotes that are sentences, of five words or more.
pub fn check_tests(page: &Page, functions: &BTreeSet<&str>, violations: &mut Vec<Violation>) {
    let (path, text) = page;
    for (number, word) in spans(text) {
        let is_sentence = word.trim_start_matches('_').matches('_').count() >= 4
            && word
                .chars()
                .all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit());
        if is_sentence && !functions.contains(word) {
            violations.push(Violation {
                path: path.clone(),
                line: number,
                rule: "named-tests",
                message: format!("no test `{word}`"),
            });
        }
    }
}

/// Whether a page is about the past, and may name what no longer exists.
fn is_past(path: &str) -> bool {
    let past = ["CHANGELOG.md", "docs/decisions/", "results/"];
    past.iter().any(|past| path.starts_with(past))
}

/// Checks that the Rust files that a page names in backquotes exist. A name is a path, or its end.
pub fn check_files(page: &Page, files: &[&str], violations: &mut Vec<Violation>) {
    let (path, text) = page;
    let is_name = |word: &str| {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        word.ends_with(".rs") && word.chars().all(is_letter)
    };
    for (number, word) in spans(text).filter(|(_, word)| is_name(word) && !is_past(path)) {
        let ends_so = |file: &&str| {
            let start = file.strip_suffix(word);
            start.is_some_and(|start| start.is_empty() || start.ends_with('/'))
        };
        if !files.iter().any(ends_so) {
            violations.push(Violation {
                path: path.clone(),
                line: number,
                rule: "named-files",
                message: format!("no file `{word}`"),
            });
        }
    }
}

/// The library's types whose methods pages name, and where the methods are defined.
const METHODS: [(&str, &str); 2] = [
    ("Fs", "crates/lanefs/src/"),
    ("InodeFs", "crates/engine/src/fs"),
];

/// The type that has the method that begins on a line of code, and the method's name.
pub fn method<'a>(path: &str, code: &'a str) -> Option<(&'static str, &'a str)> {
    let name = function(code.trim_start().strip_prefix("pub ")?)?;
    let owner = METHODS.iter().find(|(_, place)| path.starts_with(place));
    owner.map(|(owner, _)| (*owner, name))
}

/// Checks that the methods that a page names as `TYPE::METHOD` exist. Pages about the past may name others.
pub fn check_methods(
    page: &Page,
    methods: &BTreeSet<(&str, &str)>,
    violations: &mut Vec<Violation>,
) {
    let (path, text) = page;
    for (number, word) in spans(text).filter(|_| !is_past(path)) {
        let Some((owner, method)) = word.split_once("::") else {
            continue;
        };
        let method = method.split('(').next().unwrap_or_default();
        let is_known = METHODS.iter().any(|(known, _)| *known == owner);
        if is_known && !methods.contains(&(owner, method)) {
            violations.push(Violation {
                path: path.clone(),
                line: number,
                rule: "named-methods",
                message: format!("no method `{owner}::{method}`"),
            });
        }
    }
}

/// The name of the function that begins on a line of code.
pub fn function(code: &str) -> Option<&str> {
    let (_, rest) = code.split_once("fn ")?;
    let (name, _) = rest.split_once(['(', '<'])?;
    Some(name.trim())
}

/// Checks that a file names no folder of the machine it was written on.
pub fn check_paths(path: &str, text: &str, folders: &[String], violations: &mut Vec<Violation>) {
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(folder) = folders.iter().find(|folder| line.contains(folder.as_str())) {
            let message = format!("names a folder of one machine ({folder})");
            violations.push(Violation {
                path: path.to_owned(),
                line: number,
                rule: "machine-path",
                message,
            });
        }
    }
}

/// What stands between backquotes outside of code blocks, with the numbers of the lines.
pub fn spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let inside = line.split('`').skip(1).step_by(2);
        inside.map(move |span| (number, span))
    })
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The targets of the links in a line of Markdown.
fn links(line: &str) -> Vec<&str> {
    line.match_indices("](")
        .filter_map(|(at, _)| {
            let rest = &line[at + 2..];
            rest.find(')')
                .map(|end| rest[..end].split(' ').next().unwrap_or_default())
        })
        .collect()
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                normal.pop();
            }
            std::path::Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

fn has_heading(pages: &[Page], path: &Path, anchor: &str) -> bool {
    pages
        .iter()
        .filter(|(other, _)| Path::new(other) == path)
        .any(|(_, text)| {
            prose(text)
                .filter(|(_, line)| line.starts_with('#'))
                .any(|(_, line)| slug(line) == anchor)
        })
}

/// The anchor that a heading makes.
fn slug(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The words after `lanefs` of each command that a line shows: in a code span, or as the whole line in a code block.
fn shown_commands(line: &str, in_block: bool) -> Vec<Vec<&str>> {
    let mut commands = Vec::new();
    let spans = line.split('`').skip(1).step_by(2);
    let whole = (in_block || line.starts_with("    ")).then_some(line);
    for text in spans.chain(whole) {
        let text = text.trim_start().trim_start_matches("$ ");
        let text = text.trim_start_matches("sudo ");
        let text = text.split_once(" #").map_or(text, |(command, _)| command);
        for part in text.split(['|', ';']) {
            if let Some(rest) = part.trim_start().strip_prefix("lanefs ") {
                let words = rest.split_whitespace();
                commands.push(words.take_while(|word| *word != "&&").collect());
            }
        }
    }
    commands
}

/// The part of the page that describes a command.
fn section<'a>(cli_page: &'a str, command: &str) -> Option<&'a str> {
    let heading = format!("## lanefs {command}\n");
    let start = cli_page.find(&heading)? + heading.len();
    let rest = &cli_page[start..];
    Some(rest.find("\n## ").map_or(rest, |end| &rest[..end]))
}

fn options(section: &str) -> BTreeSet<&str> {
    section
        .split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '=' | '`'))
        .filter(|word| word.starts_with("--"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        (path.to_owned(), text.to_owned())
    }

    fn broken_links(text: &str) -> usize {
        let pages = [
            page("docs/a.md", text),
            page("docs/b.md", "# The *big* one\n"),
        ];
        let mut violations = Vec::new();
        check_links(
            &pages[0],
            &pages,
            &|path| path == Path::new("docs/b.md"),
            &mut violations,
        );
        violations.len()
    }

    #[test]
    fn a_link_that_leads_nowhere_is_caught() {
        assert_eq!(
            broken_links("[b](b.md) [c](../docs/b.md) [d](https://example.org/x)"),
            0
        );
        assert_eq!(broken_links("[b](b.md#the-big-one)"), 0);
        assert_eq!(broken_links("[b](c.md)"), 1);
        assert_eq!(broken_links("[b](b.md#small)"), 1);
        assert_eq!(broken_links("```\n[b](c.md)\n```"), 0);
    }

    #[test]
    fn a_measured_part_that_is_not_the_tables_is_caught() {
        let tables = page(TABLES, "\n### One\n\n![One](one.svg)\n\n| 1 |\n");
        let broken = |text: &str| {
            let mut violations = Vec::new();
            let pages = [tables.clone(), page("docs/scaling/one.md", text)];
            check_measured(&pages, &mut violations);
            violations
                .iter()
                .filter(|found| found.rule == "measured")
                .count()
        };
        let marked = |key: &str| format!("<!-- measured: {key} -->\n<!-- end of measured -->\n");
        assert_eq!(broken(&fill(&marked("one"), &tables.1).unwrap()), 0);
        assert_eq!(broken("No mark.\n"), 0);
        assert_eq!(broken(&marked("one")), 1);
        assert_eq!(broken(&marked("two")), 1);
    }

    #[test]
    fn a_page_that_is_too_long_is_caught() {
        let broken = |path: &str, text: String| {
            let mut violations = Vec::new();
            check_sizes(&[page(path, &text)], &mut violations);
            violations.len()
        };
        assert_eq!(broken("docs/a.md", "word ".repeat(MAX_PAGE_WORDS)), 0);
        assert_eq!(broken("docs/a.md", "word ".repeat(MAX_PAGE_WORDS + 1)), 1);
        assert_eq!(broken("docs/a.md", "word ".repeat(40_001)), 2);
        assert_eq!(broken("results/a.md", "word ".repeat(9_000)), 0);
        let table = format!(
            "<!-- measured: a -->\n{}\n<!-- end of measured -->\n",
            "1 ".repeat(9_000)
        );
        assert_eq!(broken("docs/scaling/a.md", table), 0);
    }

    #[test]
    fn a_command_or_option_that_does_not_exist_is_caught() {
        let cli = "## lanefs ls\n\nOptions:\n  -l, --long\n      --json\n\n## lanefs cat\n";
        let count = |text: &str| {
            let mut violations = Vec::new();
            check_commands(&page("README.md", text), cli, &mut violations);
            violations.len()
        };
        assert_eq!(
            count("    lanefs ls --json a.img | head\nUse `lanefs cat a.img:/x`."),
            0
        );
        assert_eq!(count("Then `lanefs mount a.img`."), 1);
        assert_eq!(count("```\n$ lanefs cat --json a.img\n```"), 1);
        assert_eq!(count("lanefs reads images,\nlanefs also makes them."), 0);
        assert_eq!(count("With `lanefs` you read images."), 0);
    }

    #[test]
    fn a_test_that_does_not_exist_is_caught() {
        let code = [
            "    fn what_is_there_is_found() {",
            "pub fn short(a: u32) {",
            "}",
        ];
        let functions: BTreeSet<&str> = code.iter().filter_map(|line| function(line)).collect();
        assert_eq!(functions.len(), 2);
        let count = |text: &str| {
            let mut violations = Vec::new();
            check_tests(&page("docs/a.md", text), &functions, &mut violations);
            violations.len()
        };
        assert_eq!(count("| `what_is_there_is_found` | `s_num_fc_blks` |"), 0);
        assert_eq!(count("| F1 | `what_is_gone_is_found` |"), 1);
        assert_eq!(count("```\n`what_is_gone_is_found`\n```"), 0);
    }

    #[test]
    fn a_method_that_its_type_does_not_have_is_caught() {
        let lines = [
            ("crates/lanefs/src/fs.rs", "    pub fn sync(&self) {"),
            (
                "crates/engine/src/fs/names.rs",
                "    pub fn closed(&self) {",
            ),
            ("crates/engine/src/fs.rs", "    fn hidden(&self) {"),
            (
                "crates/journal/src/journal.rs",
                "    pub fn commit(&self) {",
            ),
        ];
        let methods: BTreeSet<_> = lines
            .iter()
            .filter_map(|(path, code)| method(path, code))
            .collect();
        assert_eq!(methods.len(), 2);
        let count = |path: &str, text: &str| {
            let mut violations = Vec::new();
            check_methods(&page(path, text), &methods, &mut violations);
            violations.len()
        };
        let right = "`Fs::sync` [`InodeFs::closed()`](x) `Journal::commit` `InodeFs`";
        assert_eq!(count("docs/a.md", right), 0);
        assert_eq!(count("docs/a.md", "`Fs::closed` and `InodeFs::hidden`"), 2);
        assert_eq!(count("CHANGELOG.md", "`Fs::closed`"), 0);
    }

    #[test]
    fn a_file_that_does_not_exist_is_caught() {
        let files = ["crates/engine/src/inode/table.rs", "crates/cli/build.rs"];
        let count = |path: &str, text: &str| {
            let mut violations = Vec::new();
            check_files(&page(path, text), &files, &mut violations);
            violations.len()
        };
        let right = "`crates/cli/build.rs` `inode/table.rs` `table.rs` `<structure>.rs`";
        assert_eq!(count("docs/a.md", right), 0);
        assert_eq!(count("docs/a.md", "`icache/table.rs` `able.rs`"), 2);
        assert_eq!(count("docs/decisions/1.md", "`icache/table.rs`"), 0);
    }

    #[test]
    fn a_folder_of_the_machine_is_caught() {
        let mut violations = Vec::new();
        let folders = ["/home/me/lanefs".to_owned()];
        check_paths(
            "a.rs",
            "let a = \"/home/me/lanefs/x\";\n",
            &folders,
            &mut violations,
        );
        assert_eq!(violations.len(), 1);
    }
}
