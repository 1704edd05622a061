//! Which crate may depend on which, and in which order the modules of `engine` stand.

use super::Violation;
use super::source::RustFile;

/// What each crate may depend on among ours. `sync` may be used by all.
const ARROWS: &[(&str, &[&str])] = &[
    ("ondisk", &[]),
    ("model", &[]),
    ("sync", &[]),
    ("device", &["sync"]),
    ("buffer", &["device", "sync"]),
    ("jbd2", &["ondisk", "device", "sync"]),
    ("journal", &["jbd2", "buffer", "ondisk", "device", "sync"]),
    (
        "engine",
        &["journal", "jbd2", "buffer", "ondisk", "device", "sync"],
    ),
    ("check", &["ondisk", "device", "sync"]),
    ("inspect", &["ondisk", "device", "sync"]),
    ("mkfs", &["jbd2", "ondisk", "device", "sync"]),
    ("image", &["mkfs", "jbd2", "ondisk", "device", "sync"]),
    (
        "lanefs",
        &[
            "engine", "check", "jbd2", "mkfs", "image", "ondisk", "device", "sync",
        ],
    ),
    ("fuse", &["lanefs", "sync"]),
    (
        "bench",
        &[
            "model", "lanefs", "fuse", "engine", "ondisk", "device", "sync",
        ],
    ),
    (
        "simulate",
        &[
            "testkit", "model", "lanefs", "engine", "check", "ondisk", "device", "sync",
        ],
    ),
    ("sharing", &["engine", "mkfs", "ondisk", "device", "sync"]),
    ("instructions", &["engine", "mkfs", "device", "sync"]),
    (
        "cli",
        &["lanefs", "fuse", "inspect", "ondisk", "device", "sync"],
    ),
    ("pages", &["cli"]),
    ("xtask", &[]),
    ("testkit", &["model"]),
    (
        "corpus",
        &[
            "model", "lanefs", "fuse", "engine", "check", "image", "ondisk", "device", "sync",
        ],
    ),
];

/// The chapters of `engine`, in steps: each may import only from steps before its own. A part of a chapter that stands
/// lower than the rest has a step of its own.
const ENGINE: &[&[&str]] = &[
    &["core"],
    &["blocks"],
    &["space::group"],
    &["space::mballoc", "space::ialloc", "space::orphan"],
    &["space"],
    &["inode"],
    &["fsync::log"],
    &["token"],
    &["map"],
    &["xattr", "dir", "data"],
    &["attr"],
    &["reap"],
    &["names"],
    &["fsync"],
    &["mount"],
    &["fs"],
];

/// Checks a crate's manifest. `name` is its folder.
pub fn check_manifest(path: &str, name: &str, manifest: &str, violations: &mut Vec<Violation>) {
    let mut report = |line: usize, message: String| {
        violations.push(Violation {
            path: path.to_owned(),
            line,
            rule: "arrows",
            message,
        });
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(crate_name, _)| *crate_name == name) else {
        report(
            1,
            format!("crate `{name}` has no arrows in tools/xtask/src/tidy/layers.rs"),
        );
        return;
    };
    let mut applies = false;
    for (number, line) in (1..).zip(manifest.lines().map(str::trim)) {
        if line.starts_with('[') {
            let section = line.trim_matches(['[', ']']);
            let last = section.rsplit('.').next().unwrap_or_default();
            applies = matches!(last, "dependencies" | "build-dependencies");
            continue;
        }
        let key = line
            .split(['=', '.'])
            .next()
            .unwrap_or_default()
            .trim()
            .trim_matches('"');
        let ours = key.strip_prefix("lanefs-").unwrap_or(key);
        let is_ours = ARROWS.iter().any(|(crate_name, _)| *crate_name == ours);
        if applies && is_ours && !allowed.contains(&ours) {
            report(
                number,
                format!("`{name}` may not depend on `{ours}`: move the code"),
            );
        }
    }
}

/// Checks the imports of a file of `engine`.
pub fn check_engine(source: &RustFile, violations: &mut Vec<Violation>) {
    if source.crate_name() != Some("engine") {
        return;
    }
    let Some(module) = source.module().filter(|module| *module != "lib") else {
        return;
    };
    let part = source.part().filter(|part| step(part).is_some());
    let module = part.as_deref().unwrap_or(module);
    let mut report = |line: usize, message: String| {
        violations.push(Violation {
            path: source.path.clone(),
            line,
            rule: "layers",
            message,
        });
    };
    let Some(own) = step(module) else {
        report(
            1,
            format!(
                "module `{module}` has no place in the order of tools/xtask/src/tidy/layers.rs"
            ),
        );
        return;
    };
    let code: Vec<(usize, &str)> = source.code().collect();
    for (index, (number, line)) in code.iter().enumerate() {
        for (at, _) in line.match_indices("crate::") {
            if line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
                continue;
            }
            let rest: String = code[index..].iter().take(20).enumerate().fold(
                String::new(),
                |text, (ahead, (_, line))| {
                    text + if ahead == 0 { &line[at + 7..] } else { line } + "\n"
                },
            );
            for imported in first_names(&rest) {
                let allowed = imported == module || step(&imported).is_none_or(|other| other < own);
                if !allowed {
                    report(
                        *number,
                        format!(
                            "`{module}` may not import `{imported}`, which stands to its right"
                        ),
                    );
                }
            }
        }
    }
}

fn step(module: &str) -> Option<usize> {
    ENGINE.iter().position(|modules| modules.contains(&module))
}

/// The first path segments after `crate::`: one, or those of a braced list; two where a part has a step of its own.
fn first_names(rest: &str) -> Vec<String> {
    let segment = |text: &str| -> String {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let word = |text: &str| -> String {
        let first = segment(text);
        let part = text[first.len()..]
            .strip_prefix("::")
            .map(|rest| format!("{first}::{}", segment(rest)));
        part.filter(|part| step(part).is_some()).unwrap_or(first)
    };
    let Some(list) = rest.strip_prefix('{') else {
        return vec![word(rest)];
    };
    let mut names = Vec::new();
    let mut depth = 0;
    let mut fresh = true;
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && !c.is_whitespace() => {
                names.push(word(&list[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn an_arrow_that_points_up_is_caught() {
        let mut violations = Vec::new();
        check_manifest(
            "m",
            "mkfs",
            "[dependencies]\nondisk.workspace = true\n",
            &mut violations,
        );
        check_manifest(
            "m",
            "mkfs",
            "[dev-dependencies]\nengine.workspace = true\n",
            &mut violations,
        );
        assert!(violations.is_empty());
        check_manifest(
            "m",
            "mkfs",
            "[dependencies]\nengine.workspace = true\n",
            &mut violations,
        );
        check_manifest(
            "m",
            "ondisk",
            "[dependencies]\nlanefs-sync = \"1\"\n",
            &mut violations,
        );
        check_manifest("m", "unheard", "", &mut violations);
        assert_eq!(violations.len(), 3);
    }

    fn engine(path: &str, text: &str) -> usize {
        let mut violations = Vec::new();
        check_engine(&RustFile::new(Path::new(path), text), &mut violations);
        violations.len()
    }

    #[test]
    fn an_import_from_the_right_is_caught() {
        assert_eq!(
            engine("crates/engine/src/dir.rs", "use crate::map::Map;\n"),
            0
        );
        assert_eq!(
            engine("crates/engine/src/map.rs", "use crate::dir::Entry;\n"),
            1
        );
        assert_eq!(
            engine("crates/engine/src/dir/htree.rs", "use crate::xattr::Get;\n"),
            1
        );
        assert_eq!(
            engine(
                "crates/engine/src/space/group.rs",
                "use crate::{\n    core::Error,\n    data::{a, b},\n};\n"
            ),
            1
        );
        assert_eq!(engine("crates/engine/src/unheard.rs", ""), 1);
    }

    #[test]
    fn a_part_of_a_chapter_has_its_own_place() {
        let group = "crates/engine/src/space/group/fold.rs";
        assert_eq!(engine(group, "use crate::core::sb::Zones;\n"), 0);
        assert_eq!(engine(group, "use crate::space::ialloc::Ialloc;\n"), 1);
        assert_eq!(engine(group, "use crate::space::group::Groups;\n"), 0);
        let ialloc = "crates/engine/src/space/ialloc.rs";
        assert_eq!(engine(ialloc, "use crate::space::group::Groups;\n"), 0);
        assert_eq!(engine(ialloc, "use crate::space::mballoc::Goals;\n"), 1);
        let inode = "crates/engine/src/inode.rs";
        assert_eq!(
            engine(inode, "use crate::{space::mballoc::Goals, core::Error};\n"),
            0
        );
        assert_eq!(engine(inode, "use crate::token::LiveFs;\n"), 1);
    }
}
