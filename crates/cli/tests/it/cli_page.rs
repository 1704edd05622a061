//! docs/cli.md holds what `--help` prints for every command; `LANEFS_UPDATE=1` writes it anew.

use std::path::Path;

use crate::fixture::ok;

const HEAD: &str = "# The command line

What `lanefs COMMAND --help` says, for every command. This page is generated and tested: after a change, run
`LANEFS_UPDATE=1 cargo test -p lanefs-cli --test it cli_page`.
";

/// The commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    list.lines()
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("    "))
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect()
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut add = |mark: &str, words: &[&str]| {
        let help = ok([words, &["--help"]].concat());
        let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        let name = [&["lanefs"], words].concat().join(" ");
        page += &format!("\n{mark} {name}\n\n```text\n{}\n```\n", lines.join("\n"));
        commands(&help)
    };
    for command in add("##", &[]) {
        for part in add("##", &[&command]) {
            add("###", &[&command, &part]);
        }
    }
    page
}

#[test]
fn the_page_of_the_command_line_is_what_help_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = page();
    if std::env::var_os("LANEFS_UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = written
        .lines()
        .zip(page.lines())
        .find(|(old, new)| old != new);
    assert!(
        written == page,
        "docs/cli.md is out of date, first at {differs:?}; LANEFS_UPDATE=1 writes it anew"
    );
}

#[test]
fn every_command_has_a_line_that_says_what_it_does() {
    let commands = commands(&ok(["--help"]));
    for command in [
        "build", "mkfs", "ls", "tree", "cat", "stat", "find", "du", "df", "cp", "mv", "rm",
        "mkdir", "ln", "chmod", "chown", "touch", "truncate", "edit", "extract", "info", "map",
    ] {
        assert!(
            commands.iter().any(|known| known == command),
            "{command} is missing"
        );
    }
    let mut lines = std::collections::HashSet::new();
    for command in &commands {
        let help = ok([command, "--help"]);
        let line = help.lines().next().unwrap().to_owned();
        assert!(lines.insert(line), "{command} says what another says");
        assert!(
            help.lines().next().unwrap().len() > 10,
            "{command} does not say what it does"
        );
        assert!(
            help.contains(&format!("Usage: lanefs {command}")),
            "{command}"
        );
    }
}
