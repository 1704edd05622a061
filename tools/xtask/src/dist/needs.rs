//! What `cargo xtask dist` needs on this machine, looked for before anything is built.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of cargo-deb that makes the package.
const CARGO_DEB: &str = "3.8.0";

/// The C compiler, which is also the linker, for a processor.
pub fn compiler(processor: &str) -> String {
    if processor == std::env::consts::ARCH {
        "gcc".to_owned()
    } else {
        format!("{processor}-linux-gnu-gcc")
    }
}

/// Where Debian puts musl's headers for a processor.
pub fn headers(processor: &str) -> PathBuf {
    PathBuf::from(format!("/usr/include/{processor}-linux-musl"))
}

/// What the parts of a run need.
pub struct Needs<'a> {
    parts: &'a [&'a str],
}

impl<'a> Needs<'a> {
    /// Of these parts.
    pub fn of(parts: &'a [&'a str]) -> Needs<'a> {
        Needs { parts }
    }

    /// Looks for everything, and names all that is missing with the command that installs it.
    pub fn check(&self) -> Result<(), String> {
        let mut missing = Vec::new();
        for part in self.parts {
            match *part {
                "deb" => missing.extend(cargo_deb()),
                processor => missing.extend(cross(processor)),
            }
        }
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("dist: install first:\n  {}", missing.join("\n  ")))
        }
    }
}

fn cargo_deb() -> Option<String> {
    let output = crate::cargo().args(["deb", "--version"]).output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let is_there = version.is_ok_and(|version| version.trim().ends_with(CARGO_DEB));
    (!is_there).then(install_cargo_deb)
}

fn install_cargo_deb() -> String {
    format!("cargo install --locked cargo-deb --version {CARGO_DEB}")
}

fn cross(processor: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let target = format!("{processor}-unknown-linux-musl");
    let library = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", &target])
        .output();
    let library = library.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if !library.is_ok_and(|path| Path::new(path.trim()).is_dir()) {
        missing.push(format!("rustup target add {target}"));
    }
    let found = Command::new(compiler(processor)).arg("--version").output();
    if found.is_err() {
        missing.push(if processor == std::env::consts::ARCH {
            "apt install gcc".to_owned()
        } else {
            format!("apt install gcc-{}-linux-gnu", processor.replace('_', "-"))
        });
    }
    if !headers(processor).join("stdlib.h").exists() {
        let architecture = match processor {
            "x86_64" => "amd64",
            _ => "arm64",
        };
        missing.push(format!(
            "dpkg --add-architecture {architecture} && apt update && apt install musl-dev:{architecture}"
        ));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_installs_the_version_that_makes_the_package() {
        let readme = include_str!("../../../../README.md");
        assert!(readme.contains(&install_cargo_deb()));
    }
}
