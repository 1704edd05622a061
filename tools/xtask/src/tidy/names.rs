//! Names of types: no two types that other files see (`pub`, `pub(crate)`) share one, so that a name is enough to find
//! what it stands for; and every name of code in the glossary exists.
//!
//! Types in tests don't count, nor do the twins that are compiled in place of others: those of files `elsewhere` (other
//! systems than Linux) and of modules under `#[cfg(not(...))]`.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::docs::{Page, spans};
use super::source::RustFile;

/// Names that many crates have by custom.
const BY_CUSTOM: [&str; 6] = ["Error", "Options", "Args", "Iter", "Builder", "Kind"];

/// The page of words.
const GLOSSARY: &str = "docs/glossary.md";

/// Reports each type whose name another one has already.
pub fn check_types(sources: &[RustFile], violations: &mut Vec<Violation>) {
    let mut first: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for source in sources.iter().filter(|source| !is_twin(&source.path)) {
        let left_out = alternatives(source);
        for (number, code) in source.code() {
            let Some(name) = declared(code).filter(|name| !BY_CUSTOM.contains(name)) else {
                continue;
            };
            if left_out.contains(&number) {
                continue;
            }
            let (path, line) = *first.entry(name).or_insert((&source.path, number));
            if (path, line) != (&source.path, number) {
                violations.push(Violation {
                    path: source.path.clone(),
                    line: number,
                    rule: "type-name",
                    message: format!("`{name}` is already a type at {path}:{line}: name one of them by what it is"),
                });
            }
        }
    }
}

/// Reports each name of code in the glossary that the code does not have.
pub fn check_glossary(pages: &[Page], sources: &[RustFile], violations: &mut Vec<Violation>) {
    let Some((path, text)) = pages.iter().find(|(path, _)| path == GLOSSARY) else {
        return;
    };
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| source.code())
        .flat_map(|(_, code)| code.split(|c| !in_word(c)))
        .collect();
    for (line, span) in spans(text) {
        let is_name = !span.is_empty() && span.chars().all(in_word);
        if is_name && !words.contains(span) {
            violations.push(Violation {
                path: path.clone(),
                line,
                rule: "glossary",
                message: format!("the code has no `{span}`"),
            });
        }
    }
}

/// Whether a file stands for another one on other systems.
fn is_twin(path: &str) -> bool {
    path.split('/')
        .any(|part| part.trim_end_matches(".rs") == "elsewhere")
}

/// The lines of modules that are compiled in place of others.
fn alternatives(source: &RustFile) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for (index, line) in source.lines.iter().enumerate() {
        let next = source.lines.get(index + 1);
        let is_module = next.is_some_and(|next| {
            let code = next.code.trim_start();
            code.starts_with("mod ") || code.starts_with("pub mod ")
        });
        if line.code.trim_start().starts_with("#[cfg(not(") && is_module {
            found.extend(index + 2..=source.end_of_item(index + 1) + 1);
        }
    }
    found
}

/// The name of the type that a line declares to be seen elsewhere.
fn declared(code: &str) -> Option<&str> {
    let rest = code.trim_start();
    let rest = rest
        .strip_prefix("pub ")
        .or_else(|| rest.strip_prefix("pub(crate) "))?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let rest = ["struct ", "enum ", "trait ", "type ", "union "]
        .iter()
        .find_map(|keyword| rest.strip_prefix(keyword))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = &rest[..end.unwrap_or(rest.len())];
    // In a macro a parameter stands there.
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn twice(files: &[(&str, &str)]) -> usize {
        let sources: Vec<RustFile> = files
            .iter()
            .map(|(path, text)| RustFile::new(Path::new(path), text))
            .collect();
        let mut violations = Vec::new();
        check_types(&sources, &mut violations);
        violations.len()
    }

    #[test]
    fn two_types_of_one_name_are_caught() {
        let a = ("crates/x/src/a.rs", "pub struct Place;\n");
        let b = ("crates/y/src/b.rs", "pub(crate) enum Place<'a> {}\n");
        assert_eq!(twice(&[a]), 0);
        assert_eq!(twice(&[a, b]), 1);
        let own = (
            "crates/y/src/b.rs",
            "struct Place;\npub(super) type Place = u8;\n",
        );
        assert_eq!(twice(&[a, own]), 0);
        let error = ("crates/x/src/a.rs", "pub enum Error {}\n");
        assert_eq!(twice(&[error, ("crates/y/src/b.rs", error.1)]), 0);
    }

    #[test]
    fn what_is_compiled_in_place_of_another_and_tests_do_not_count() {
        let a = ("crates/x/src/linux.rs", "pub struct Place;\n");
        assert_eq!(twice(&[a, ("crates/x/src/elsewhere.rs", a.1)]), 0);
        let text = "#[cfg(not(feature = \"f\"))]\nmod off {\n    pub struct Place;\n}\n";
        assert_eq!(twice(&[a, ("crates/x/src/b.rs", text)]), 0);
        assert_eq!(twice(&[a, ("crates/x/tests/b.rs", a.1)]), 0);
    }

    #[test]
    fn a_name_in_the_glossary_that_the_code_lacks_is_caught() {
        let sources = [RustFile::new(
            Path::new("crates/x/src/a.rs"),
            "struct Tid(u32);\n",
        )];
        let page = (
            GLOSSARY.to_owned(),
            "| `Tid` | a |\n| `Gone` | b |\n".to_owned(),
        );
        let mut violations = Vec::new();
        check_glossary(&[page], &sources, &mut violations);
        assert_eq!(violations.len(), 1);
    }
}
