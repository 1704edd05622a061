//! What takes too long for `cargo xtask ci`, run one after the other with what it prints: ignored tests, and tests of
//! `ci` that do more if a variable asks for it. Those on a mounted image are of `lanefs-cli`, those of threads and of
//! memory of `lanefs-engine`.
//!
//! The first mount, so they need root and /dev/fuse; what is missing is said by the test. results/suites.md
//! holds what they found.

use std::fs::{self, File};
use std::path::Path;

/// Tests that are run together.
struct Suite {
    name: &'static str,
    /// The package, and which of its tests.
    of: &'static [&'static str],
    /// What the tests' names contain; all tests if empty.
    filters: &'static [&'static str],
    /// The variables that make tests of `ci` do more. A suite without any runs ignored tests.
    env: &'static [(&'static str, &'static str)],
}

/// A suite of ignored tests.
const fn ignored(
    name: &'static str,
    of: &'static [&'static str],
    filters: &'static [&'static str],
) -> Suite {
    more(name, of, filters, &[])
}

/// A suite of tests of `ci` that do more if these variables say so.
const fn more(
    name: &'static str,
    of: &'static [&'static str],
    filters: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
) -> Suite {
    Suite {
        name,
        of,
        filters,
        env,
    }
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
    ignored("posix", MOUNTED, &["outside::posix"]),
    ignored("fsx", MOUNTED, &["outside::data"]),
    ignored("trees", MOUNTED, &["trees::"]),
    ignored("kill", MOUNTED, &["kill::", "sqlite::"]),
    ignored("crash", MOUNTED, &["crash::what_was_promised"]),
    ignored(
        "crash",
        WITH_CANARIES,
        &["crash::a_server_that_leaves_out_a_flush"],
    ),
    ignored(
        "package",
        &["-p", "lanefs-cli", "--test", "it"],
        &["package::"],
    ),
    ignored(
        "schedules",
        &["-p", "lanefs-engine", "--lib"],
        &["more_schedules"],
    ),
    ignored(
        "long",
        &["-p", "lanefs-engine", "--test", "writing"],
        &["crowded", "many_"],
    ),
    ignored("long", &["-p", "lanefs-cli", "--test", "it"], &["many_"]),
    more(
        "long",
        &["-p", "lanefs-engine", "--test", "reading"],
        &["damaged_metadata"],
        &[("LANEFS_HOSTILE_ROUNDS", "3000")],
    ),
    more(
        "long",
        &["-p", "lanefs-engine", "--test", "writing"],
        &["interop::in_turns"],
        &[("LANEFS_ROUNDS", "50")],
    ),
    more(
        "long",
        &["-p", "lanefs-engine", "--test", "writing"],
        &["log_turns::"],
        &[("LANEFS_NEAR_TURNS", "2")],
    ),
    more(
        "long",
        &["-p", "lanefs-engine", "--test", "writing"],
        &["under_schedules"],
        &[("LANEFS_SCHEDULES", "400")],
    ),
    more(
        "long",
        &["-p", "lanefs-journal", "--test", "it"],
        &["under_schedules"],
        &[("LANEFS_SCHEDULES", "1000")],
    ),
    more(
        "long",
        &["-p", "lanefs-fuse", "--lib"],
        &["requests_that_no_kernel_sends"],
        &[("LANEFS_HOSTILE_REQUESTS", "300000")],
    ),
    more(
        "long",
        &["-p", "lanefs-cli", "--test", "mount"],
        &["storms::"],
        &[("LANEFS_STORM", "20000")],
    ),
    more(
        "long",
        &["-p", "lanefs-corpus", "--test", "mutants"],
        &["mutants_neither"],
        &[("LANEFS_MUTANTS", "500")],
    ),
    more(
        "long",
        &["-p", "lanefs-corpus", "--test", "targets"],
        &["mutated_inputs"],
        &[("LANEFS_FUZZ_SECONDS", "300")],
    ),
    more(
        "check",
        &["-p", "lanefs-check", "--test", "judged"],
        &["mutants_are_", "images_with_parts", "half_", "made::"],
        &[
            ("LANEFS_CHECK_MUTANTS", "100"),
            ("LANEFS_REPAIR_MUTANTS", "20"),
            ("LANEFS_CHECK_NAMES", "20000"),
        ],
    ),
    more(
        "check",
        &["-p", "lanefs", "--test", "repair", "--test", "repair_dirty"],
        &[],
        &[("LANEFS_REPAIR_CUTS", "1")],
    ),
    more(
        "check",
        &["-p", "lanefs", "--test", "repair_bulk"],
        &[],
        &[("LANEFS_REPAIR_DIRTY", "50")],
    ),
    ignored("measure", &["-p", "lanefs-mkfs", "--test", "times"], &[]),
    ignored("long", &["-p", "lanefs-mkfs", "--test", "matrix"], &[]),
    ignored(
        "measure",
        &["-p", "lanefs-engine", "--test", "measuring"],
        &["two_million", "seal_pauses"],
    ),
];

/// The suite of all tests of mounts, with each mount over io_uring.
const URING: &str = "uring";
/// The suite of `crate::xfstests`.
const XFSTESTS: &str = "xfstests";
/// Whether the kernel offers FUSE over io_uring, to be read and set.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

impl Suite {
    fn run(&self, root: &Path) -> Result<(), String> {
        let env: Vec<String> = (self.env.iter())
            .map(|(variable, value)| format!(" {variable}={value}"))
            .collect();
        println!("==> {}{}", self.name, env.concat());
        let mut test = crate::cargo();
        test.current_dir(root)
            .args(["test", "--release", "--locked", "--quiet"])
            .args(self.of)
            .args(["--", "--nocapture", "--test-threads=1"])
            .args(self.env.is_empty().then_some("--ignored"))
            .args(self.filters)
            .envs(
                self.env
                    .iter()
                    .copied()
                    .filter(|(variable, _)| !is_set(variable)),
            );
        let status = crate::apart::apart(&test)
            .status()
            .map_err(|error| format!("cargo does not start: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("suites: FAILED at {}", self.name))
        }
    }
}

/// Whether the caller chose a value, which then counts.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

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
        suite.run(root)?;
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
    let mut test = crate::cargo();
    test.current_dir(root)
        .env("LANEFS_MOUNT_OPTIONS", "io_uring=on")
        .args(["test", "--release", "--locked", "--quiet"])
        .args(MOUNTED)
        .args(["--", "--skip", "rings::"]);
    let status = crate::apart::apart(&test).status();
    fs::write(PARAMETER, before.trim()).map_err(failed)?;
    match status.map_err(|error| format!("cargo does not start: {error}"))? {
        status if status.success() => Ok(()),
        _ => Err(format!("suites: FAILED at {URING}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Variables that a program or a test sets for its own child.
    const INTERNAL: &[&str] = &[
        "LANEFS_CANARY",
        "LANEFS_CRASH_CLIENT_NUMBERS",
        "LANEFS_CRASH_CLIENT_ROOT",
        "LANEFS_CRASH_CLIENT_SOCKET",
        "LANEFS_MEASURED_IMAGE",
        "LANEFS_COMPILES_FOR",
        "LANEFS_TEST_CLOCK",
        "LANEFS_TEST_IGNORES_SIGNALS",
    ];
    /// Variables of users that make no test longer: places, programs, where to begin, what to keep, what to write.
    const CHOICES: &[&str] = &[
        "LANEFS_BENCH",
        "LANEFS_BENCH_OUT",
        "LANEFS_BIN",
        "LANEFS_CHECK_FIRST",
        "LANEFS_CHECK_SAVE",
        "LANEFS_CHECK_SEED",
        "LANEFS_CRASH_SEED",
        "LANEFS_DIST",
        "LANEFS_E2FSCK",
        "LANEFS_E2FSPROGS",
        "LANEFS_EVERY",
        "LANEFS_FIRST",
        "LANEFS_FUZZ_CORPUS",
        "LANEFS_FUZZ_FIRST",
        "LANEFS_KEEP",
        "LANEFS_MOUNT_OPTIONS",
        "LANEFS_PIPE_RUNS",
        "LANEFS_PIPE_SEED",
        "LANEFS_REPAIR_DUMP",
        "LANEFS_REPAIR_FIRST",
        "LANEFS_REPAIR_SAVE",
        "LANEFS_REPAIR_SEED",
        "LANEFS_SUITE_TREE",
        "LANEFS_TIMES",
        "LANEFS_UPDATE",
        "LANEFS_XFSTESTS",
        "LANEFS_XFSTESTS_ONLY",
    ];

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    /// Calls this with the path and the text of each source in a folder.
    fn each_source(folder: &Path, with: &mut dyn FnMut(&Path, &str)) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                each_source(&path, with);
            } else if path.extension().is_some_and(|it| it == "rs") {
                with(&path, &fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// Adds the variables that a source names.
    fn gather(text: &str, found: &mut BTreeSet<String>) {
        for (at, _) in text.match_indices("LANEFS_") {
            let is_inside = |c: char| c == '_' || c.is_ascii_uppercase() || c.is_ascii_digit();
            let rest = &text[at..];
            let end = rest.find(|c| !is_inside(c)).unwrap_or(rest.len());
            if end > "LANEFS_".len() {
                found.insert(rest[..end].to_owned());
            }
        }
    }

    #[test]
    fn every_ignored_test_that_names_a_suite_is_run_by_it() {
        let mut seen = 0;
        let mut judge = |path: &Path, text: &str| {
            // In two parts: else the test would find this line.
            for (at, _) in text.match_indices(concat!("#[ig", "nore = \"")) {
                let (reason, rest) = text[at..].split_once("\"]").unwrap();
                let Some((_, suite)) = reason.split_once("cargo xtask suites ") else {
                    continue;
                };
                let name = rest.split_once("fn ").unwrap().1;
                let name = name.split_once('(').unwrap().0.trim();
                let module = path.file_stem().unwrap().to_string_lossy();
                let whole = format!("{module}::{name}");
                let is_run = SUITES.iter().any(|it| {
                    let is_named = it.filters.iter().any(|filter| whole.contains(filter));
                    it.name == suite && it.env.is_empty() && (is_named || it.filters.is_empty())
                });
                assert!(is_run, "the suite {suite} does not run {whole}");
                seen += 1;
            }
        };
        for folder in ["crates", "tools"] {
            each_source(&root().join(folder), &mut judge);
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn every_variable_that_makes_tests_longer_is_set_by_a_suite_and_every_variable_of_users_is_in_the_docs()
     {
        let mut found = BTreeSet::new();
        for folder in ["crates", "tools"] {
            each_source(&root().join(folder), &mut |_, text| {
                gather(text, &mut found)
            });
        }
        let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
        let set: BTreeSet<&str> = SUITES
            .iter()
            .flat_map(|suite| suite.env)
            .map(|(name, _)| *name)
            .collect();
        let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
        for name in found.iter().filter(|name| !INTERNAL.contains(*name)) {
            assert!(
                set.contains(name) || CHOICES.contains(name),
                "no suite sets {name}"
            );
            assert!(
                page.contains(&format!("`{name}`")),
                "CONTRIBUTING.md lacks {name}"
            );
        }
        let named = set.iter().chain(INTERNAL).chain(CHOICES);
        for name in named {
            assert!(found.contains(name), "nothing reads {name}");
        }
    }
}
