//! `cargo xtask walks`: how many walks along a path and how many handles a command of `lanefs` takes.
//!
//! callgrind counts the calls of the functions that begin a walk or a handle. The program is built without
//! optimisation, so that none of these functions is inlined. Nothing depends on time, so the counts are the same in
//! each run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::instructions::callgrind::{commit, output, version};

/// The functions that walk a path. The last one is what commit c228d19 has.
const WALKS: [&str; 3] = [
    "lanefs_engine::names::walk::walk",
    "lanefs_engine::names::walk::resolve",
    "lanefs_engine::namei::resolve",
];
/// The end of the name of the function that begins a handle, of which commit c228d19 has the second.
const HANDLES: [&str; 2] = [
    "<impl lanefs_journal::journal::Journal>::begin",
    "<impl lanefs_journal::commit::Journal>::begin",
];
/// Each row: what it is, the command that makes what it needs, and the command that is counted. `@` is the image, `%` a
/// small file.
const ROWS: [(&str, &str, &str); 8] = [
    ("touch of a new file", "", "touch @:/new"),
    ("touch of a file", "touch @:/old", "touch @:/old"),
    ("cp of a new file", "", "cp % @:/new"),
    ("cp over a file", "touch @:/old", "cp % @:/old"),
    ("mkdir", "", "mkdir @:/new"),
    ("ln -s", "", "ln -s target @:/new"),
    ("mv", "touch @:/old", "mv @:/old @:/new"),
    ("rm (unlink)", "touch @:/old", "rm @:/old"),
];

const USAGE: &str =
    "usage: cargo xtask walks [PROGRAM]   counts with this `lanefs`, built without optimisation";

/// Prints the table of this checkout's `lanefs`, or of the given one.
pub fn run(root: &Path, words: &[&str]) -> Result<String, String> {
    if version().is_none() {
        return Ok("skipped: walks are not counted: valgrind is not installed".to_owned());
    }
    let (program, name) = match words {
        [] => (build(root)?, commit(root)?),
        [program] if !program.starts_with('-') => (PathBuf::from(program), (*program).to_owned()),
        _ => return Err(USAGE.to_owned()),
    };
    let folder = crate::built(root).join("walks");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    println!("Counted at {name}.\n\n| command | walks | handles |\n|---|--:|--:|");
    for (row, before, counted) in ROWS {
        let calls = count(&program, &folder, before, counted)?;
        let (walks, handles) = sums(&calls).map_err(|why| format!("{name}: {why}"))?;
        println!("| {row} | {walks} | {handles} |");
    }
    Ok(String::new())
}

/// The numbers of walks and of handles among these calls.
///
/// # Errors
/// If there are none: each counted command takes at least one of both, so the program does not show them.
fn sums(calls: &[(String, u64)]) -> Result<(u64, u64), String> {
    let sum = |is_counted: &dyn Fn(&str) -> bool| -> u64 {
        let counted = calls.iter().filter(|(name, _)| is_counted(name));
        counted.map(|(_, calls)| calls).sum()
    };
    let walks = sum(&|name| WALKS.contains(&name));
    let handles = sum(&|name| HANDLES.iter().any(|end| name.ends_with(end)));
    let missing = match (walks, handles) {
        (0, _) => "a walk",
        (_, 0) => "a handle",
        _ => return Ok((walks, handles)),
    };
    Err(format!(
        "no call of a function that begins {missing}: build `lanefs` without optimisation, with its symbols"
    ))
}

/// Builds `lanefs` without optimisation, in a profile directory of its own.
fn build(root: &Path) -> Result<PathBuf, String> {
    let target = crate::built(root).join("walks");
    let mut build = crate::cargo();
    build.args([
        "build",
        "--quiet",
        "--package",
        "lanefs-cli",
        "--target-dir",
    ]);
    build.arg(&target).current_dir(root);
    build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    done(build.stderr(Stdio::inherit()))?;
    Ok(target.join("debug/lanefs"))
}

/// The functions that the command calls, with the number of calls.
fn count(
    program: &Path,
    folder: &Path,
    before: &str,
    counted: &str,
) -> Result<Vec<(String, u64)>, String> {
    let (image, file, calls) = (
        folder.join("a.img"),
        folder.join("file"),
        folder.join("calls"),
    );
    std::fs::write(&file, "bytes").map_err(|error| error.to_string())?;
    let words = |line: &str| -> Vec<String> {
        let place = |word: &str| {
            let word = word.replace('@', &image.to_string_lossy());
            word.replace('%', &file.to_string_lossy())
        };
        line.split_whitespace().map(place).collect()
    };
    done(Command::new(program).args(words("mkfs -q -F @ 16M")))?;
    if !before.is_empty() {
        done(Command::new(program).args(words(before)))?;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]);
    valgrind.arg(format!("--callgrind-out-file={}", calls.display()));
    done(valgrind.arg(program).args(words(counted)))?;
    let text = std::fs::read(&calls).map_err(|error| format!("{}: {error}", calls.display()))?;
    Ok(calls_in(&String::from_utf8_lossy(&text)))
}

/// Runs a command.
fn done(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

/// The called functions in callgrind's file, with the number of calls. A function's name is written where its number
/// first occurs.
fn calls_in(text: &str) -> Vec<(String, u64)> {
    let mut names = std::collections::HashMap::new();
    let mut called = None;
    let mut calls = Vec::new();
    for line in text.lines() {
        let callee = line.strip_prefix("cfn=");
        if let Some(function) = callee.or_else(|| line.strip_prefix("fn=")) {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if callee.is_some() {
                called = Some(number);
            }
        } else if let Some(count) = line.strip_prefix("calls=")
            && let Some(number) = called
        {
            let count = count.split_whitespace().next().unwrap_or_default();
            calls.push((number, count.parse().unwrap_or(0)));
        }
    }
    let named = calls.into_iter();
    named
        .filter_map(|(number, count)| Some(((*names.get(number)?).to_owned(), count)))
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn calls_are_counted_by_name() {
        let text = "fn=(1) main\n1 2\ncfn=(2) a::walk\ncalls=3 5\n1 9\ncfn=(2)\ncalls=4 5\ncfn=(3) b\ncalls=1 0\n";
        let calls = super::calls_in(text);
        let walks = calls.iter().filter(|(name, _)| name == "a::walk");
        assert_eq!(walks.map(|(_, calls)| calls).sum::<u64>(), 7);
        assert_eq!(calls.len(), 3);
    }

    #[test]
    fn a_program_that_shows_no_walks_or_no_handles_is_refused() {
        let walk = ("lanefs_engine::names::walk::walk".to_owned(), 2);
        let handle = (
            "lanefs_journal::x::<impl lanefs_journal::journal::Journal>::begin".to_owned(),
            3,
        );
        let sums = |calls: &[(String, u64)]| super::sums(calls);
        assert_eq!(sums(&[walk.clone(), handle.clone()]), Ok((2, 3)));
        assert!(sums(&[]).is_err_and(|why| why.contains("a walk")));
        assert!(sums(&[handle]).is_err_and(|why| why.contains("a walk")));
        assert!(sums(&[walk]).is_err_and(|why| why.contains("a handle")));
    }
}
