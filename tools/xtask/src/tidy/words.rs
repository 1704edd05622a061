//! Rules for prose: turns of phrase that make a reader stop. Pages, messages and comments have none of them.
//!
//! A turn is looked for in whole paragraphs, so a line break hides none. Code spans and code blocks are left out.

use super::Violation;
use super::docs::{CLI_PAGE, Page};
use super::source::RustFile;

/// Words before a bare \"who\", which then stands for a person that the sentence does not name.
const BEFORE_WHO: [&str; 25] = [
    "and", "or", "but", "so", "for", "by", "to", "of", "than", "where", "if", "when", "while",
    "because", "then", "with", "from", "as", "in", "on", "at", "that", "until", "before", "after",
];

/// Phrases that are refused wherever they stand, with what to write.
const PHRASES: [(&str, &str); 7] = [
    ("so many", "name the number"),
    ("is no", "write `is not a`, or what does exist"),
    ("there is none", "write `does not exist`, or `has none`"),
    (
        "be had",
        "write `is available`, `is supported` or `is free`",
    ),
    ("as above", "say it here"),
    ("likewise", "say it here"),
    ("whoever", "name the actor: the caller, a thread that ..."),
];

/// Words that make a phrase harmless where they follow it.
const HARMLESS: [(&str, &str); 1] = [("is no", "longer")];

/// Checks a page without its code blocks and code spans. The blocks of the page of the command line are help texts,
/// which are checked too.
pub fn check_page(page: &Page, violations: &mut Vec<Violation>) {
    let (path, text) = page;
    let helps = (path == CLI_PAGE).then(|| text.replace("```", ""));
    for (line, paragraph) in paragraphs(helps.as_ref().unwrap_or(text), helps.is_some()) {
        for (turn, advice) in turns(&paragraph) {
            violations.push(violation(path, line, &turn, advice));
        }
    }
}

/// Checks the strings of a file that belong to no test: what a user reads.
pub fn check_messages(source: &RustFile, violations: &mut Vec<Violation>) {
    for (line, text) in &source.strings {
        let is_test = source.lines.get(*line).is_some_and(|line| line.test);
        if is_test || source.path == "tools/xtask/src/tidy/words.rs" || !text.contains(' ') {
            continue;
        }
        for (turn, advice) in turns(&without_spans(text)) {
            violations.push(violation(&source.path, line + 1, &turn, advice));
        }
    }
}

/// Checks the comments of a file, those of tests too.
pub fn check_comments(source: &RustFile, violations: &mut Vec<Violation>) {
    for (line, comment) in comments(source) {
        for (turn, advice) in turns(&comment) {
            violations.push(violation(&source.path, line, &turn, advice));
        }
    }
}

fn violation(path: &str, line: usize, turn: &str, advice: &str) -> Violation {
    Violation {
        path: path.to_owned(),
        line,
        rule: "words",
        message: format!("`{turn}`: {advice}"),
    }
}

/// The comments of a file, lines that follow each other as one text, without code spans.
fn comments(source: &RustFile) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (number, line) in (1..).zip(&source.lines) {
        match &line.comment {
            Some(comment) if !comment.is_empty() => {
                let alone = line.code.trim().is_empty();
                match found.last_mut().filter(|_| open && alone) {
                    Some((_, text)) => {
                        text.push(' ');
                        text.push_str(comment);
                    }
                    None => found.push((number, comment.clone())),
                }
                open = alone;
            }
            _ => open = false,
        }
    }
    for (_, text) in &mut found {
        *text = without_spans(text);
    }
    found
}

/// The paragraphs, headings, items and rows of a page, with the line at which each begins, without code.
fn paragraphs(text: &str, helps: bool) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut open) = (false, false);
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let fence = trimmed.starts_with("```");
        in_code ^= fence;
        let indented = line.starts_with("    ") && !open && !helps;
        let skipped = in_code || fence || trimmed.is_empty() || indented;
        if skipped {
            open = false;
            continue;
        }
        let begins = trimmed.starts_with(['#', '|', '-', '*', '>'])
            || trimmed
                .split_once(". ")
                .is_some_and(|(first, _)| first.parse::<u32>().is_ok());
        let words = trimmed.trim_start_matches(['#', '|', '-', '*', '>', ' ']);
        match found.last_mut().filter(|_| open && !begins) {
            Some((_, text)) => {
                text.push(' ');
                text.push_str(words);
            }
            None => found.push((number, words.to_owned())),
        }
        open = !trimmed.starts_with(['#', '|']);
    }
    for (_, text) in &mut found {
        *text = without_spans(text);
    }
    found
}

/// The text with what is between backquotes blanked.
fn without_spans(text: &str) -> String {
    let mut parts = text.split('`');
    let mut kept = parts.next().unwrap_or_default().to_owned();
    let mut code = true;
    for part in parts {
        kept.push_str(if code { "`" } else { part });
        code = !code;
    }
    kept
}

/// The refused turns of a text, each with what to write instead.
fn turns(text: &str) -> Vec<(String, &'static str)> {
    let lower = text.to_lowercase();
    let mut found = Vec::new();
    for (phrase, advice) in PHRASES {
        for at in places(&lower, phrase) {
            let after = lower[at + phrase.len()..].trim_start();
            let harmless = HARMLESS
                .iter()
                .any(|(of, next)| *of == phrase && after.starts_with(next));
            if !harmless {
                found.push((phrase.to_owned(), advice));
            }
        }
    }
    for at in places(&lower, "as many") {
        // \"As many X as Y\" names its number; the sentence must say it.
        let rest = lower[at + "as many".len()..].split(['.', ';', ':']).next();
        if !rest.is_some_and(|rest| rest.contains(" as ")) {
            found.push(("as many".to_owned(), "name the number: `as many as ...`"));
        }
    }
    for word in ["who", "whom"] {
        for at in places(&lower, word) {
            let before = lower[..at].trim_end();
            let is_question = lower[at..]
                .split_inclusive(['.', '?', '|'])
                .next()
                .is_some_and(|sentence| sentence.ends_with('?'));
            let begins = before.is_empty() || before.ends_with(['.', ':', ';', '!', '(', '|']);
            let last = before.rsplit([' ', '(']).next().unwrap_or_default();
            let bare = word == "who" && BEFORE_WHO.contains(&last);
            if (begins || bare) && !is_question {
                let turn = format!("{last} {word}");
                found.push((
                    turn.trim_start().to_owned(),
                    "name the actor: the caller, a thread that ...",
                ));
            }
        }
    }
    found
}

/// Where a phrase stands in a text with no word characters around it.
fn places<'a>(text: &'a str, phrase: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(phrase)
        .map(|(at, _)| at)
        .filter(move |at| {
            let in_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            let before = text[..*at].chars().next_back();
            let after = text[at + phrase.len()..].chars().next();
            !before.is_some_and(in_word) && !after.is_some_and(in_word)
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn count_of(text: &str) -> usize {
        let mut violations = Vec::new();
        check_page(&("docs/a.md".to_owned(), text.to_owned()), &mut violations);
        violations.len()
    }

    #[test]
    fn a_clause_without_its_actor_is_caught() {
        assert_eq!(count_of("Who is alone waits for nobody.\n"), 1);
        assert_eq!(count_of("It ends. Whom a flush lets go comes back.\n"), 1);
        assert_eq!(count_of("It is refused, and\nwho asks gets an error.\n"), 1);
        assert_eq!(count_of("Whoever opens it finishes the rest.\n"), 1);
        assert_eq!(count_of("| a | who may ask: none |\n"), 1);
        assert_eq!(
            count_of("A user who mounted it may do everything. Who may mount?\n"),
            0
        );
        assert_eq!(count_of("The thread to whom it belongs.\n"), 0);
    }

    #[test]
    fn a_number_without_its_name_is_caught() {
        assert_eq!(count_of("Bytes a block; at least so many.\n"), 1);
        assert_eq!(count_of("Then as many again.\n"), 1);
        assert_eq!(count_of("As many blocks as the file has.\n"), 0);
    }

    #[test]
    fn a_turn_is_caught_across_lines_and_not_in_code() {
        assert_eq!(count_of("`x` is\nno size.\n"), 1);
        assert_eq!(count_of("It is no longer there.\n"), 0);
        assert_eq!(
            count_of("There is none. That can be had. As above. Likewise.\n"),
            4
        );
        assert_eq!(count_of("```\nthere is none\n```\nSee `is no`.\n"), 0);
    }

    #[test]
    fn messages_are_looked_at_and_tests_are_not() {
        let text = "//! A.\nfn a() { b(\"`x` is no size\"); }\n#[cfg(test)]\n\
                    mod t { const A: &str = \"it is no x\"; }\n";
        let source = RustFile::new(Path::new("crates/cli/src/a.rs"), text);
        let mut violations = Vec::new();
        check_messages(&source, &mut violations);
        assert_eq!(violations.len(), 1);
    }

    #[test]
    fn comments_are_looked_at_in_tests_too_and_across_lines() {
        let text = "//! A.\n\n// As above. Who\n// asks waits.\nfn a() {} // So many.\n\
                    #[cfg(test)]\nmod t {\n    // There is\n    // none.\n}\n// It waits `so many` times.\n";
        let source = RustFile::new(Path::new("crates/cli/src/a.rs"), text);
        let mut violations = Vec::new();
        check_comments(&source, &mut violations);
        let lines: Vec<usize> = violations.iter().map(|violation| violation.line).collect();
        assert_eq!(lines, [3, 3, 5, 8]);
    }
}
