//! The step that compiles the library for macOS and Windows. Nothing is linked or run.

use std::path::Path;
use std::process::{Command, Stdio};

/// The targets. Compiling the library compiles all crates that it depends on.
const TARGETS: [&str; 2] = ["x86_64-apple-darwin", "x86_64-pc-windows-gnu"];

/// Checks the library with all its features for each target. rustup installs missing targets; the note names those that
/// it can't install. The build shares the target directory of all other steps.
pub(super) fn check(root: &Path) -> Result<String, String> {
    let (present, missing): (Vec<&str>, Vec<&str>) = TARGETS
        .into_iter()
        .partition(|target| is_installed(root, target) || install(root, target));
    if !present.is_empty() {
        let mut arguments = vec!["check", "--package", "lanefs", "--locked", "--quiet"];
        arguments.extend(["--features", super::FEATURES]);
        arguments.extend(present.iter().flat_map(|target| ["--target", target]));
        super::cargo(root, &arguments, &[("RUSTFLAGS", "-D warnings")])?;
    }
    Ok(if missing.is_empty() {
        String::new()
    } else {
        format!("skipped: Rust lacks the target {}", missing.join(" and "))
    })
}

/// Whether Rust's standard library is installed for a target.
fn is_installed(root: &Path, target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let asked = Command::new(rustc)
        .current_dir(root)
        .args(["--print", "target-libdir", "--target", target])
        .output();
    asked.is_ok_and(|answer| {
        let folder = String::from_utf8_lossy(&answer.stdout);
        answer.status.success() && Path::new(folder.trim_end()).is_dir()
    })
}

/// Installs a target with rustup; returns whether that succeeded.
fn install(root: &Path, target: &str) -> bool {
    let added = Command::new("rustup")
        .current_dir(root)
        .args(["target", "add", target])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    added.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_features_that_are_checked_are_all_that_users_can_ask_for() {
        let metadata = crate::cargo()
            .current_dir(crate::root())
            .args(["metadata", "--no-deps", "--format-version=1", "--locked"])
            .output()
            .unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let library = packages.iter().find(|one| one["name"] == "lanefs").unwrap();
        let declared = library["features"].as_object().unwrap().keys();
        // What is left out only tests ask for.
        let declared: Vec<&str> = declared
            .map(String::as_str)
            .filter(|name| *name != "canaries")
            .collect();
        assert_eq!(declared.join(" "), super::super::FEATURES);
    }

    #[test]
    fn asking_for_the_features_brings_the_crates_behind_them() {
        let tree = |features: &[&str]| {
            let output = crate::cargo()
                .current_dir(crate::root())
                .args(["tree", "--package", "lanefs", "--locked", "--edges=normal"])
                .args(["--depth=1", "--prefix=none"])
                .args(features)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let with = tree(&["--features", super::super::FEATURES]);
        let without = tree(&[]);
        for name in ["lanefs-image", "lanefs-check", "tracing"] {
            let has = |tree: &str| tree.lines().any(|line| line.starts_with(name));
            assert!(has(&with) && !has(&without), "{name}: {with}");
        }
    }
}
