//! `cargo xtask bench-check`: `lanefs check` beside `e2fsck -fn` on images that are made for it. The e2fsck is the one
//! that `LANEFS_E2FSCK` names, else the installed one. The table goes to results/check-speed.md, the chart beside it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Measures; the arguments go to `lanefs-bench check`.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    crate::build_bench(root)?;
    // Before the chart is written, which is a change.
    let mut git = Command::new("git");
    git.current_dir(root)
        .args(["describe", "--always", "--abbrev=7", "--dirty=-changed"]);
    let commit = said(&mut git)?;
    let results = root.join("results");
    let mut bench = Command::new(crate::built(root).join("release/lanefs-bench"));
    bench.args(["check", "-v", "--markdown", "--svg"]);
    bench.arg(results.join("check-speed.svg")).args(arguments);
    bench.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = bench.output();
    let output = output.map_err(|error| format!("{bench:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{bench:?}: {}", output.status));
    }
    let date = said(Command::new("date").arg("+%Y-%m-%d"))?;
    let table = String::from_utf8_lossy(&output.stdout);
    let page = results.join("check-speed.md");
    fs::write(&page, text(&commit, &date, &table))
        .map_err(|error| format!("{}: {error}", page.display()))?;
    println!("{table}");
    eprintln!("written to {} and check-speed.svg", page.display());
    Ok(())
}

/// What a program prints.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!("{command:?}: {}", output.status))
    }
}

/// The page.
fn text(commit: &str, date: &str, table: &str) -> String {
    format!(
        "# Checks beside e2fsck's\n\nMade by `cargo xtask bench-check`; [checking and repairing: runs](check.md) has \
         other measurements.\n\n![lanefs check beside e2fsck -fn](check-speed.svg)\n\n- commit: {commit}\n- date: \
         {date}\n{table}"
    )
}
