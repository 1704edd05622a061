//! Rules that are checked on one Rust file at a time: its opening comment, sizes, reasons in comments, words, and what
//! only certain crates may name.

use super::Violation;
use super::source::{Line, RustFile};

/// The most lines of code of a file, without tests and comments.
const MAX_FILE_LINES: usize = 600;
/// The most lines of code of a function.
const MAX_FUNCTION_LINES: usize = 70;
/// The most characters of a line.
const MAX_WIDTH: usize = 120;
/// How many lines above the line in question its statement's comment is searched for.
const COMMENT_REACH: usize = 8;

/// Runs all rules of this file.
pub fn check(source: &RustFile, violations: &mut Vec<Violation>) {
    let mut report = |line: usize, rule: &'static str, message: String| {
        violations.push(Violation {
            path: source.path.clone(),
            line,
            rule,
            message,
        });
    };
    opening(source, &mut report);
    sizes(source, &mut report);
    functions(source, &mut report);
    orderings(source, &mut report);
    reasons(source, &mut report);
    places(source, &mut report);
    words(source, &mut report);
}

fn opening(source: &RustFile, report: &mut impl FnMut(usize, &'static str, String)) {
    let opens = source
        .lines
        .first()
        .is_some_and(|line| line.text.starts_with("//!"));
    if !opens {
        report(
            1,
            "opening",
            "a file opens with `//!`: what it holds and guarantees".into(),
        );
    }
}

fn sizes(source: &RustFile, report: &mut impl FnMut(usize, &'static str, String)) {
    let inside_tests = source.lines.first().is_some_and(|line| line.test);
    let counts = |line: &&Line| (inside_tests || !line.test) && !line.code.trim().is_empty();
    let lines = source.lines.iter().filter(counts).count();
    if lines > MAX_FILE_LINES {
        report(
            1,
            "file-size",
            format!("{lines} lines of code, more than {MAX_FILE_LINES}: make it a folder"),
        );
    }
    for (number, line) in (1..).zip(&source.lines) {
        let width = line.text.chars().count();
        if width > MAX_WIDTH {
            report(
                number,
                "width",
                format!("{width} characters, more than {MAX_WIDTH}"),
            );
        }
    }
}

fn functions(source: &RustFile, report: &mut impl FnMut(usize, &'static str, String)) {
    for (index, line) in source.lines.iter().enumerate() {
        let Some(name) = name_after(&line.code, "fn") else {
            continue;
        };
        let end = source.end_of_item(index);
        let body = &source.lines[index..=end];
        let lines = body
            .iter()
            .filter(|line| !line.code.trim().is_empty())
            .count();
        if lines > MAX_FUNCTION_LINES {
            let message =
                format!("`{name}` has {lines} lines of code, more than {MAX_FUNCTION_LINES}");
            report(index + 1, "function-size", message);
        }
    }
}

const ORDERINGS: [&str; 5] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];

fn orderings(source: &RustFile, report: &mut impl FnMut(usize, &'static str, String)) {
    for (index, line) in source
        .lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !line.test)
    {
        for name in ORDERINGS {
            if !has_word(&line.code, &format!("Ordering::{name}")) {
                continue;
            }
            let comments = comments_of_statement(source, index);
            let explained = comments.iter().any(|comment| {
                ORDERINGS.iter().any(|first| comment.starts_with(first)) && comment.contains(name)
            });
            if !explained {
                report(
                    index + 1,
                    "ordering",
                    format!("say why: `// {name}: ...; pairs with ...`"),
                );
            } else if name != "Relaxed" && !comments.join(" ").contains("pairs with") {
                report(
                    index + 1,
                    "ordering",
                    format!("say what this {name} `pairs with`"),
                );
            }
        }
    }
}

fn reasons(source: &RustFile, report: &mut impl FnMut(usize, &'static str, String)) {
    for (index, line) in source
        .lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !line.test)
    {
        let stops = line.code.contains(".unwrap()") || line.code.contains(".expect(");
        if stops && comments_of_statement(source, index).is_empty() {
            report(
                index + 1,
                "unwrap",
                "say in a comment above why this can't fail, or handle it".into(),
            );
        }
    }
}

/// The comment at the end of this line, and the one above its statement. Whole-line comments that follow one another
/// are joined to one.
fn comments_of_statement(source: &RustFile, index: usize) -> Vec<String> {
    let mut comments: Vec<String> = source.lines[index].comment.iter().cloned().collect();
    let mut block: Vec<&str> = Vec::new();
    for above in source.lines[..index].iter().rev().take(COMMENT_REACH) {
        let code = above.code.trim();
        match &above.comment {
            Some(comment) if code.is_empty() => {
                if above.text.trim_start().starts_with("//!") {
                    break;
                }
                block.push(comment);
            }
            _ if !block.is_empty() || code.is_empty() => break,
            // An earlier statement ends here, so a comment above it belongs to that one.
            _ if code.ends_with([';', '{', '}']) => break,
            _ => {}
        }
    }
    if !block.is_empty() {
        block.reverse();
        comments.push(block.join(" "));
    }
    comments
}

/// The crates that may contain `unsafe`.
const MAY_BE_UNSAFE: [&str; 6] = [
    "sync",
    "device",
    "fuse",
    "sharing",
    "instructions",
    "testkit",
];

/// Reports what only certain crates may name: `unsafe`, std's locks, threads and clocks, files, and the standard
/// output.
fn places(source: &RustFile, report: &mut impl FnMut(usize, &'static str, String)) {
    let Some(name) = source.crate_name() else {
        return;
    };
    let below_engine = matches!(
        name,
        "ondisk" | "sync" | "buffer" | "jbd2" | "journal" | "engine" | "check" | "inspect" | "mkfs"
    );
    if !MAY_BE_UNSAFE.contains(&name) {
        for (number, line) in (1..).zip(&source.lines) {
            if has_word(&line.code, "unsafe") {
                let crates = MAY_BE_UNSAFE.join(", ");
                let what = format!("only these crates may contain unsafe: {crates}");
                report(number, "unsafe", what);
            }
        }
    }
    for (number, code) in source.code() {
        let scheduling = [
            "std::sync",
            "std::thread",
            "std::time::Instant",
            "Instant::now",
            "SystemTime::now",
        ];
        let listed = has_word(code, "std::time") && has_word(code, "Instant");
        if let Some(word) = scheduling
            .iter()
            .find(|word| has_word(code, word) || listed)
            && !matches!(name, "sync" | "xtask")
        {
            report(
                number,
                "sync",
                format!("`{word}` is named by `sync` only: take it from there"),
            );
        }
        let opening = ["std::fs", "rustix::fs::open", "rustix::fs::openat"];
        if below_engine && let Some(word) = opening.iter().find(|word| has_word(code, word)) {
            report(
                number,
                "files",
                format!("`{word}`: from the engine down, only `device` opens files"),
            );
        }
        let printing = ["println!", "print!", "eprintln!", "eprint!"];
        if let Some(word) = printing.iter().find(|word| has_word(code, word))
            && !matches!(name, "cli" | "xtask")
        {
            report(
                number,
                "print",
                format!("`{word}`: only the command line prints"),
            );
        }
        unseen(name, number, code, report);
        if has_word(code, "dbg!") {
            report(number, "leftover", "`dbg!` is for the moment only".into());
        }
    }
}

/// Reports atomic operations that the sharing report can't see (decision 15), in the crates that it watches.
fn unseen(
    crate_name: &str,
    number: usize,
    code: &str,
    report: &mut impl FnMut(usize, &'static str, String),
) {
    let is_watched = matches!(crate_name, "sync" | "buffer" | "journal" | "engine");
    let calls = [".fetch_max(", ".fetch_min("];
    if is_watched && let Some(call) = calls.iter().find(|call| code.contains(*call)) {
        let message = format!("`{call}`: the sharing report does not see it; `fetch_update`");
        report(number, "sharing", message);
    }
}

const BANNED: [&str; 8] = [
    "util", "utils", "common", "misc", "helper", "helpers", "manager", "managers",
];

fn words(source: &RustFile, report: &mut impl FnMut(usize, &'static str, String)) {
    let stem = source
        .path
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .trim_end_matches(".rs");
    if let Some(word) = banned(stem) {
        report(
            1,
            "name",
            format!("`{word}` says nothing: name the file by what it holds"),
        );
    }
    for (number, line) in (1..).zip(&source.lines) {
        for keyword in ["mod", "struct", "enum", "trait", "type", "fn"] {
            let Some(name) = name_after(&line.code, keyword) else {
                continue;
            };
            if let Some(word) = banned(name) {
                report(number, "name", format!("`{word}` in `{name}` says nothing"));
            }
            if keyword == "fn"
                && !line.test
                && (name.starts_with("do_") || name.starts_with("process_"))
            {
                report(number, "name", format!("`{name}`: say what it does"));
            }
        }
        let left = ["TODO", "FIXME", "XXX"];
        if let Some(comment) = &line.comment
            && let Some(word) = left.iter().find(|word| has_word(comment, word))
        {
            report(
                number,
                "leftover",
                format!("{word}: do it, or open an issue"),
            );
        }
    }
}

/// The banned word that a name in snake or camel case contains, if any.
fn banned(name: &str) -> Option<&'static str> {
    let mut snake = String::new();
    for character in name.chars() {
        if character.is_uppercase() {
            snake.push('_');
        }
        snake.extend(character.to_lowercase());
    }
    BANNED
        .into_iter()
        .find(|word| snake.split('_').any(|part| part == *word))
}

/// The identifier that follows a keyword in a line of code, if there is one.
fn name_after<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let at = find_word(code, keyword)?;
    let rest = code[at + keyword.len()..].strip_prefix(' ')?.trim_start();
    let end = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

fn has_word(text: &str, word: &str) -> bool {
    find_word(text, word).is_some()
}

/// The index of the first occurrence of `word` in `text` that is not part of a longer word.
pub fn find_word(text: &str, word: &str) -> Option<usize> {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(at, _)| at).find(|at| {
        let before = text[..*at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(in_word) && (!after.is_some_and(in_word) || word.ends_with('!'))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let mut violations = Vec::new();
        check(&RustFile::new(Path::new(path), text), &mut violations);
        violations
            .into_iter()
            .map(|violation| violation.rule)
            .collect()
    }

    fn body(text: &str) -> Vec<&'static str> {
        rules(
            "crates/engine/src/dir.rs",
            &format!("//! A file.\n{text}\n"),
        )
    }

    #[test]
    fn a_clean_file_breaks_no_rule() {
        assert!(body("fn a() -> u32 {\n    1\n}").is_empty());
    }

    #[test]
    fn a_file_without_its_opening_line_is_caught() {
        assert_eq!(rules("crates/x/src/a.rs", "fn a() {}\n"), ["opening"]);
    }

    #[test]
    fn long_files_functions_and_lines_are_caught() {
        assert_eq!(body(&"const A: u8 = 1;\n".repeat(601)), ["file-size"]);
        assert!(body(&"// a comment\n".repeat(601)).is_empty());
        let long = format!("fn a() {{\n{}}}", "    b();\n".repeat(69));
        assert_eq!(body(&long), ["function-size"]);
        assert_eq!(body(&format!("// {}", "a".repeat(118))), ["width"]);
    }

    #[test]
    fn orderings_without_a_comment_or_a_partner_are_caught() {
        assert_eq!(body("fn a() { b.load(Ordering::Relaxed); }"), ["ordering"]);
        assert!(
            body("fn a() {\n    // Relaxed: a hint.\n    b.load(Ordering::Relaxed);\n}").is_empty()
        );
        assert_eq!(
            body("fn a() {\n    // Acquire: a lock.\n    b.load(Ordering::Acquire);\n}"),
            ["ordering"]
        );
        let paired = "fn a() {\n    // Acquire: sees what came before; pairs with\n    // Release in b.\n\
                      c\n        .load(Ordering::Acquire);\n}";
        assert!(body(paired).is_empty());
        assert!(body("fn a() { b.cmp(c) == Ordering::Less; }").is_empty());
    }

    #[test]
    fn unwrap_without_its_reason_is_caught_outside_tests() {
        assert_eq!(body("fn a() {\n    b.unwrap();\n}"), ["unwrap"]);
        assert_eq!(
            body("fn a() {\n    // For c.\n    c();\n    b.expect(\"x\");\n}"),
            ["unwrap"]
        );
        assert!(body("fn a() {\n    // b is never empty.\n    b.unwrap();\n}").is_empty());
        assert!(body("#[cfg(test)]\nmod tests {\n    fn a() { b.unwrap(); }\n}").is_empty());
    }

    #[test]
    fn what_belongs_to_other_crates_is_caught() {
        assert_eq!(body("fn a() { unsafe { b() } }"), ["unsafe"]);
        assert_eq!(body("use std::sync::Mutex;"), ["sync"]);
        assert_eq!(body("use std::thread;"), ["sync"]);
        assert_eq!(body("fn a() { Instant::now(); }"), ["sync"]);
        assert_eq!(body("fn a() { SystemTime::now(); }"), ["sync"]);
        assert!(body("fn a(time: SystemTime) { b(time); }").is_empty());
        assert_eq!(body("use std::fs::File;"), ["files"]);
        assert_eq!(body("fn a() { println!(\"a\"); }"), ["print"]);
        assert_eq!(body("fn a() { dbg!(b); }"), ["leftover"]);
        assert_eq!(body("fn a() { b.fetch_max(1, c); }"), ["sharing"]);
        assert!(
            rules(
                "tools/bench/src/a.rs",
                "//! A.\nfn a() { b.fetch_min(1, c); }\n"
            )
            .is_empty()
        );
        assert!(
            rules(
                "crates/device/src/file.rs",
                "//! A.\nuse std::fs::File;\nunsafe fn a() {}\n"
            )
            .is_empty()
        );
        assert!(
            rules(
                "crates/cli/src/a.rs",
                "//! A.\nfn a() { println!(\"a\"); }\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn names_that_say_nothing_and_leftovers_are_caught() {
        assert_eq!(rules("crates/x/src/util.rs", "//! A.\n"), ["name"]);
        assert_eq!(body("mod helpers;"), ["name"]);
        assert_eq!(body("struct LockManager;"), ["name"]);
        assert_eq!(body("fn do_it() {}"), ["name"]);
        assert_eq!(body("// TODO: more"), ["leftover"]);
        assert!(body("struct Utility;\nfn commonly() {}").is_empty());
    }
}
