//! What takes too long for `cargo xtask ci`: ignored tests, run one after the other with what they print. Those on a
//! mounted image are of `lanefs-cli`, those of threads and of memory of `lanefs-engine`.
//!
//! The first mount, so they need root and /dev/fuse; what is missing is said by the test. results/suites.md
//! holds what they found.

use std::path::Path;

/// Ignored tests that are run together.
struct Suite {
    name: &'static str,
    /// The package, and which of its tests.
    of: &'static [&'static str],
    /// What the tests' names contain.
    filters: &'static [&'static str],
}

/// Makes a build in which the server makes a mistake when a test asks for it.
const WITH_CANARIES: &[&str] = &[
    "-p",
    "lanefs-cli",
    "--features",
    "canaries",
    "--test",
    "mount",
];

const MOUNTED: &[&str] = &["-p", "lanefs-cli", "--test", "mount"];
const SUITES: &[Suite] = &[
    Suite {
        name: "posix",
        of: MOUNTED,
        filters: &["outside::posix"],
    },
    Suite {
        name: "fsx",
        of: MOUNTED,
        filters: &["outside::data"],
    },
    Suite {
        name: "trees",
        of: MOUNTED,
        filters: &["trees::"],
    },
    Suite {
        name: "kill",
        of: MOUNTED,
        filters: &["kill::", "sqlite::"],
    },
    Suite {
        name: "crash",
        of: MOUNTED,
        filters: &["crash::what_was_promised"],
    },
    Suite {
        name: "crash",
        of: WITH_CANARIES,
        filters: &["crash::a_server_that_leaves_out_a_flush"],
    },
    Suite {
        name: "package",
        of: &["-p", "lanefs-cli", "--test", "it"],
        filters: &["package::"],
    },
    Suite {
        name: "schedules",
        of: &["-p", "lanefs-engine", "--lib"],
        filters: &["more_schedules"],
    },
    Suite {
        name: "long",
        of: &["-p", "lanefs-engine", "--test", "writing"],
        filters: &["crowded", "many_"],
    },
    Suite {
        name: "measure",
        of: &["-p", "lanefs-engine", "--test", "measuring"],
        filters: &["two_million", "seal_pauses"],
    },
];

/// Runs the suites with these names, or all.
pub fn run(root: &Path, names: &[&str]) -> Result<(), String> {
    let known = |name: &&str| SUITES.iter().any(|suite| suite.name == *name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let mut all: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        all.dedup();
        return Err(format!("no suite `{name}`: {}", all.join(", ")));
    }
    for suite in SUITES {
        if !names.is_empty() && !names.contains(&suite.name) {
            continue;
        }
        println!("==> {}", suite.name);
        let status = crate::cargo()
            .current_dir(root)
            .args(["test", "--release", "--locked", "--quiet"])
            .args(suite.of)
            .args(["--", "--ignored", "--nocapture", "--test-threads=1"])
            .args(suite.filters)
            .status()
            .map_err(|error| format!("cargo does not start: {error}"))?;
        if !status.success() {
            return Err(format!("suites: FAILED at {}", suite.name));
        }
    }
    Ok(())
}
