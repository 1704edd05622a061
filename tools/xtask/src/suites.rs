//! What takes too long for `cargo xtask ci`: ignored tests, run one after the other with what they print. Those on a
//! mounted image are of `lanefs-cli`, those of threads and of memory of `lanefs-engine`.
//!
//! The first mount, so they need root and /dev/fuse; what is missing is said by the test. results/suites.md
//! holds what they found.

use std::fs::{self, File};
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
        name: "long",
        of: &["-p", "lanefs-cli", "--test", "it"],
        filters: &["many_"],
    },
    Suite {
        name: "measure",
        of: &["-p", "lanefs-engine", "--test", "measuring"],
        filters: &["two_million", "seal_pauses"],
    },
];

/// The suite of all tests of mounts, with each mount over io_uring.
const URING: &str = "uring";
/// The suite of `crate::xfstests`.
const XFSTESTS: &str = "xfstests";
/// Whether the kernel offers FUSE over io_uring, to be read and set.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Runs the suites with these names, or all.
pub fn run(root: &Path, names: &[&str]) -> Result<(), String> {
    let is_apart = |name: &str| [URING, XFSTESTS].contains(&name);
    let known = |name: &&str| is_apart(name) || SUITES.iter().any(|suite| suite.name == *name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let mut all: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        all.dedup();
        all.extend([URING, XFSTESTS]);
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
    let is_wanted = |name: &str| names.is_empty() || names.contains(&name);
    if is_wanted(URING) {
        over_io_uring(root)?;
    }
    if is_wanted(XFSTESTS) {
        println!("==> {XFSTESTS}");
        crate::xfstests::run(root)?;
    }
    Ok(())
}

/// Runs the tests of mounts, those apart that choose the transport themselves, while the kernel offers FUSE over
/// io_uring.
fn over_io_uring(root: &Path) -> Result<(), String> {
    println!("==> {URING}");
    let failed = |error: std::io::Error| format!("{PARAMETER}: {error}");
    if !Path::new(PARAMETER).exists() {
        println!("skipped: needs FUSE over io_uring (Linux 6.14)");
        return Ok(());
    }
    // Other programs' tests lock it while they set it.
    let parameter = File::open(PARAMETER).map_err(failed)?;
    parameter.lock().map_err(failed)?;
    let before = fs::read_to_string(PARAMETER).map_err(failed)?;
    fs::write(PARAMETER, "Y").map_err(failed)?;
    let status = crate::cargo()
        .current_dir(root)
        .env("LANEFS_MOUNT_OPTIONS", "io_uring=on")
        .args(["test", "--release", "--locked", "--quiet"])
        .args(MOUNTED)
        .args(["--", "--skip", "rings::"])
        .status();
    fs::write(PARAMETER, before.trim()).map_err(failed)?;
    match status.map_err(|error| format!("cargo does not start: {error}"))? {
        status if status.success() => Ok(()),
        _ => Err(format!("suites: FAILED at {URING}")),
    }
}
