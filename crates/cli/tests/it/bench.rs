//! `lanefs bench` finds the program `lanefs-bench`, or names the command that builds it.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::fixture::{error, lanefs};

/// A copy of lanefs in its own folder.
fn alone() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    testkit::copy_program(lanefs().get_program(), &folder.path().join("lanefs"));
    folder
}

/// Makes a program that prints its name and its arguments, and exits with status 7.
fn stand_in(folder: &Path, name: &str) {
    let path = folder.join("lanefs-bench");
    let text = format!("#!/bin/sh\necho {name} \"$@\"\nexit 7\n");
    testkit::write_script(&path, &text);
}

fn bench(folder: &TempDir, path: &Path, words: &[&str]) -> Output {
    Command::new(folder.path().join("lanefs"))
        .args(words)
        .env("PATH", path)
        .output()
        .unwrap()
}

#[test]
fn the_program_beside_lanefs_gets_all_words_and_gives_its_exit_status() {
    let (folder, other) = (alone(), tempfile::tempdir().unwrap());
    stand_in(folder.path(), "beside");
    stand_in(other.path(), "in-path");
    for (words, passed) in [
        (
            &["bench", "stat", "-t", "1,2", "--json"][..],
            "stat -t 1,2 --json",
        ),
        (&["bench", "--json", "stat"], "--json stat"),
        (&["bench", "-t", "1", "stat"], "-t 1 stat"),
        (&["bench", "core", "--help"], "core --help"),
        (&["bench", "-vv", "stat"], "--verbose --verbose stat"),
        (&["-q", "bench", "stat", "-v"], "--quiet stat -v"),
        (&["bench"], ""),
    ] {
        let output = bench(&folder, other.path(), words);
        assert_eq!(
            output.status.code(),
            Some(7),
            "{words:?}: {}",
            error(&output)
        );
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.trim_end(), format!("beside {passed}").trim_end());
    }
}

#[test]
fn the_program_in_the_path_is_run_where_there_is_none_beside_lanefs() {
    let (folder, other) = (alone(), tempfile::tempdir().unwrap());
    stand_in(other.path(), "in-path");
    let output = bench(&folder, other.path(), &["bench", "stat"]);
    assert_eq!(output.status.code(), Some(7), "{}", error(&output));
    assert_eq!(output.stdout, b"in-path stat\n");
}

#[test]
fn without_the_program_the_command_says_how_to_get_it() {
    let (folder, empty) = (alone(), tempfile::tempdir().unwrap());
    let output = bench(&folder, empty.path(), &["bench", "stat"]);
    assert_eq!(output.status.code(), Some(2));
    let error = error(&output);
    assert!(
        error.contains("lanefs-bench is neither beside lanefs nor in PATH"),
        "{error}"
    );
    assert!(
        error.contains("cargo build --release -p lanefs-bench"),
        "{error}"
    );
}
