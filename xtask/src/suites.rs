//! The long suites on a mounted image: ignored tests of `lanefs-cli`, run one after the other with what they print.
//!
//! They mount, so they need root and /dev/fuse; what is missing is said by the test. docs/suites.md holds what they
//! found.

use std::path::Path;
use std::process::Command;

/// A suite's name here, and what the names of its tests contain.
const SUITES: &[(&str, &str)] = &[
    ("posix", "outside::posix"),
    ("fsx", "outside::data"),
    ("trees", "trees::"),
    ("kill", "kill::"),
];

/// Runs the suites with these names, or all.
pub fn run(root: &Path, names: &[&str]) -> Result<(), String> {
    let known = |name: &&str| SUITES.iter().any(|(known, _)| known == name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let all: Vec<&str> = SUITES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no suite `{name}`: {}", all.join(", ")));
    }
    for (name, filter) in SUITES {
        if !names.is_empty() && !names.contains(name) {
            continue;
        }
        println!("==> {name}");
        let status = Command::new(crate::cargo())
            .current_dir(root)
            .args(["test", "--release", "--locked", "--quiet"])
            .args(["-p", "lanefs-cli", "--test", "mount", "--"])
            .args(["--ignored", "--nocapture", "--test-threads=1", filter])
            .status()
            .map_err(|error| format!("cargo does not start: {error}"))?;
        if !status.success() {
            return Err(format!("suites: FAILED at {name}"));
        }
    }
    Ok(())
}
