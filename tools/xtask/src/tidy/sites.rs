//! Each `Site` is constructed in exactly one place outside tests, so that a message identifies its origin.

use std::collections::BTreeMap;

use super::Violation;
use super::source::RustFile;

/// Where sites are declared.
const DECLARED: &str = "crates/ondisk/src/site.rs";

/// Counts the constructions of every declared site.
pub fn check(sources: &[RustFile], violations: &mut Vec<Violation>) {
    let Some(declaration) = sources.iter().find(|source| source.path == DECLARED) else {
        return;
    };
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, code) in declaration.code() {
        if let Some((name, rest)) = code.trim().split_once(" = ")
            && rest.starts_with(|c: char| c.is_ascii_digit())
        {
            places.insert(name, Vec::new());
            lines.insert(name, number);
        }
    }
    for source in sources.iter().filter(|source| source.path != DECLARED) {
        for (number, code) in source.code() {
            for name in constructed(code) {
                if let Some(places) = places.get_mut(name) {
                    places.push((&source.path, number));
                }
            }
        }
    }
    for (name, places) in places {
        let mut report = |path: &str, line: usize, message: String| {
            violations.push(Violation {
                path: path.to_owned(),
                line,
                rule: "sites",
                message,
            });
        };
        match places.as_slice() {
            [] => report(
                DECLARED,
                lines[name],
                format!("`Site::{name}` is constructed nowhere"),
            ),
            [_] => {}
            [(first, first_line), more @ ..] => {
                for (path, line) in more {
                    let message =
                        format!("`Site::{name}` is already constructed at {first}:{first_line}");
                    report(path, *line, message);
                }
            }
        }
    }
}

/// The sites that a line constructs, which excludes comparisons and matches.
fn constructed(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("Site::").filter_map(|(at, _)| {
        let rest = &code[at + "Site::".len()..];
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let matched = after.trim_start().starts_with("=>") || after.trim_start().starts_with('|');
        let compared =
            code[..at].trim_end().ends_with("==") || code[..at].trim_end().ends_with("!=");
        (!matched && !compared).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_site_made_twice_or_never_is_caught() {
        let source = |path: &str, text: &str| RustFile::new(Path::new(path), text);
        let sources = [
            source(
                DECLARED,
                "sites! {\n    A = 100, \"a\";\n    B = 101, \"b\";\n    C = 102, \"c\";\n}\n",
            ),
            source(
                "crates/x/src/a.rs",
                "Corrupt::at(Site::A);\nCorrupt::at(Site::B);\nif site == Site::A {}\n",
            ),
            source(
                "crates/x/src/b.rs",
                "Corrupt::at(Site::B);\n#[cfg(test)]\nmod tests { fn a() { Site::A; } }\n",
            ),
        ];
        let mut violations = Vec::new();
        check(&sources, &mut violations);
        let found: Vec<(&str, usize)> = violations
            .iter()
            .map(|violation| (violation.path.as_str(), violation.line))
            .collect();
        assert_eq!(found, [("crates/x/src/b.rs", 1), (DECLARED, 4)]);
    }
}
