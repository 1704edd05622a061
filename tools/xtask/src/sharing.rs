//! `cargo xtask sharing`: builds the engine so that each access to memory is recorded, and runs it; see
//! `docs/scaling/sharing.md`.
//!
//! The compiler's thread sanitizer puts a call before each access, and `tools/sharing` has the functions that are
//! called. Stable compilers have it behind a switch of unstable options, which this command turns on for this one
//! build, in a target folder of its own. Cargo starts this program in the compiler's place, which hands on the flags
//! to the crates that are looked at, and to no others.

use std::path::Path;
use std::process::Command;

use crate::compiler;

/// What makes the compiler put the calls in.
const INSTRUMENT: [&str; 2] = ["-Zsanitizer=thread", "-Zexternal-clangrt"];
/// Crates of others that are looked at, too: locks, tables, references.
const OTHERS: [&str; 7] = [
    "parking_lot",
    "parking_lot_core",
    "lock_api",
    "hashbrown",
    "foldhash",
    "crossbeam_utils",
    "scopeguard",
];
/// Crates of ours that are not: the device stands for a disk, and the image is made before anything is looked at.
const NOT: [&str; 2] = ["lanefs_device", "lanefs_mkfs"];

/// Builds and runs it with these words; the note says where it was skipped.
pub fn run(root: &Path, words: &[&str]) -> Result<String, String> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) || !cfg!(target_os = "linux") {
        return Ok("skipped: the sharing report needs Linux on x86-64 or ARM64".to_owned());
    }
    let flags = format!(
        "{} -Cunsafe-allow-abi-mismatch=sanitizer",
        INSTRUMENT.join(" ")
    );
    let mut cargo = crate::cargo();
    compiler::stand_in(&mut cargo, compiler::SHARING)?;
    let status = cargo
        .current_dir(root)
        .env("RUSTFLAGS", flags)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .args(["run", "--quiet", "--locked", "--profile", "sharing"])
        .args([
            "--target-dir",
            "target/sharing",
            "--package",
            "lanefs-sharing",
            "--bin",
            "sharing",
            "--",
        ])
        .args(words)
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if status.success() {
        Ok(String::new())
    } else {
        Err("sharing: FAILED".into())
    }
}

/// Hands on a compiler's words, with the flags that put the calls in only for crates that are looked at.
pub fn compile(compiler: &mut Command, mut words: Vec<String>) {
    if is_instrumented(&words) {
        // Only here, and only for the flags above.
        compiler.env("RUSTC_BOOTSTRAP", "1");
    } else {
        words.retain(|word| !INSTRUMENT.contains(&word.as_str()));
    }
    compiler.args(words);
}

fn is_instrumented(words: &[String]) -> bool {
    let name = compiler::crate_of(words);
    let is_ours = name.starts_with("lanefs_") && !NOT.contains(&name);
    is_ours || OTHERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_instrumented_and_what_looks_at_it_is_not() {
        let is = |name: &str| is_instrumented(&["--crate-name".to_owned(), name.to_owned()]);
        assert!(is("lanefs_engine") && is("lanefs_sharing") && is("parking_lot_core"));
        assert!(!is("sharing") && !is("lanefs_device") && !is("build_script_build") && !is("___"));
    }
}
