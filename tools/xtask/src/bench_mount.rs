//! `cargo xtask bench-mount`: lanefs mounted over both transports, beside the server without an image, fuse2fs and the
//! kernel's ext4, in one run. Needs root. The tables go to results/mount-tables.md, the charts beside it; the whole
//! report to target/bench-mount.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The charts, the first for docs/mount.md.
const CHARTS: [&str; 2] = ["mounts.svg", "mounts-trees.svg"];

/// Measures; the arguments go to `lanefs-bench mounts`.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    crate::build_bench(root)?;
    let report = root.join("target/bench-mount");
    let mut bench = Command::new(crate::built(root).join("release/lanefs-bench"));
    bench.args(["mounts", "-v", "--report"]).arg(&report);
    bench.args(arguments).stdin(Stdio::null());
    // The tables are in the report.
    let status = bench.stdout(Stdio::null()).status();
    let status = status.map_err(|error| format!("{bench:?}: {error}"))?;
    if !status.success() {
        return Err(format!("{bench:?}: {status}"));
    }
    keep(&report, &root.join("results"))
        .map_err(|error| format!("{}: {error}", report.display()))?;
    eprintln!(
        "tables in results/mount-tables.md, all of it in {}",
        report.display()
    );
    Ok(())
}

/// Puts tables and chart among the results.
fn keep(from: &Path, to: &Path) -> std::io::Result<()> {
    let tables = fs::read_to_string(from.join("tables.md"))?;
    let head = "# Mounts: all tables\n\nMade by `cargo xtask bench-mount`; [mounts, measured](mount.md) says what it \
                means.\n\n";
    fs::write(to.join("mount-tables.md"), format!("{head}{tables}"))?;
    for chart in CHARTS {
        fs::copy(from.join(chart), to.join(chart))?;
    }
    Ok(())
}
