//! `cargo xtask crash`: builds the simulation with all assertions and runs it; see `docs/crash.md`.

use std::path::Path;
use std::process::Command;

/// Builds and runs it with these words.
pub fn run(root: &Path, words: &[&str]) -> Result<String, String> {
    let status = Command::new(crate::cargo())
        .current_dir(root)
        .args(["run", "--quiet", "--locked", "--profile", "simulation"])
        .args(["--package", "lanefs-simulate", "--bin", "crash", "--"])
        .args(words)
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    match status.success() {
        true => Ok(String::new()),
        false => Err("crash: FAILED".into()),
    }
}
