//! The project's own commands: `cargo xtask tidy`, `cargo xtask ci`, `cargo xtask demo`, `cargo xtask bench-build`,
//! `cargo xtask bench-engine`, `cargo xtask bench-scaling`, `cargo xtask bench-fsync`, `cargo xtask bench-mount`,
//! `cargo xtask bench-check`, `cargo xtask measured`, `cargo xtask suites`, `cargo xtask instructions`, `cargo xtask
//! walks`, `cargo xtask dist`.

mod apart;
mod bench_build;
mod bench_check;
mod bench_engine;
mod bench_fsync;
mod bench_mount;
mod bench_scaling;
mod ci;
mod compiler;
mod crash;
mod demo;
mod dist;
mod instructions;
mod measured;
mod sharing;
#[cfg(test)]
mod shipped;
mod suites;
mod tidy;
mod walks;
mod xfstests;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

const USAGE: &str = "\
usage: cargo xtask demo   build an image of a tree of this machine, check it, read it back
       cargo xtask ci [STEP ...]
                          all that must hold, or these steps of it: format, tidy, clippy, elsewhere, build, tests,
                          crash, sharing, instructions, documentation
       cargo xtask tidy   the house rules alone
       cargo xtask suites [NAME ...]
                          outside suites and long runs (posix, fsx, trees, kill, crash, uring, schedules, long, measure,
                          xfstests)
       cargo xtask crash  power cuts, faults and random work in memory; `cargo xtask crash --help`
       cargo xtask instructions [--update]
                          the instructions of each operation, counted by callgrind, against results/instructions.md
       cargo xtask walks [PROGRAM]
                          the walks along paths and the handles of each command, counted by callgrind
       cargo xtask sharing
                          the cache lines that operations on different objects share; `cargo xtask sharing --help`
       cargo xtask bench-build [--rounds N] [INPUT ...]
                          time `lanefs build` beside mke2fs -d and mkext4, `lanefs extract` beside cp -a
                          (flat-20000, flat-120000, kernel-like, usr, debian); table in target/bench-build.md
       cargo xtask bench-engine [OPTION of lanefs-bench ...]
                          the engine's workloads in process, beside the kernel's ext4, `lanefs mount` and fuse2fs;
                          tables in target/bench-engine.md
       cargo xtask bench-scaling [--quick] [OPTION of lanefs-bench ...]
                          every mechanism beside its plain twins and the kernel's ext4 (as root): tables to standard
                          output, with charts to results/scaling, a page in target/bench-scaling; 25 minutes, --quick 3
       cargo xtask dist [deb|x86_64|aarch64 ...]
                          what users install, in target/dist: a Debian package, static programs; docs/dist.md
       cargo xtask measured
                          the measured parts of the mechanisms' pages once more from results/scaling/tables.md
       cargo xtask bench-fsync [MICROSECONDS,...] [OPTION of lanefs-bench ...]
                          fsyncs beside the kernel's ext4 and btrfs on disks with slow flushes, and fio (as root):
                          tables and charts to results/scaling/fsync.md; flushes of 0, 20 and 1000: 10 minutes
       cargo xtask bench-mount [OPTION of lanefs-bench ...]
                          mounts over both transports beside a FUSE server without a file system, fuse2fs and the
                          kernel's ext4 (as root): tables and charts to results/mount-tables.md
       cargo xtask bench-check [OPTION of lanefs-bench ...]
                          `lanefs check` beside e2fsck -fn: table to results/check-speed.md, chart beside it";

fn main() -> ExitCode {
    if let Some(code) = compiler::as_compiler() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["tidy"] => tidy::run(&root()).map(|summary| println!("tidy: {summary}, no rule broken")),
        ["ci", steps @ ..] => ci::run(&root(), steps),
        ["demo"] => demo::run(&root()),
        ["suites", names @ ..] => suites::run(&root(), names),
        ["crash", words @ ..] => crash::run(&root(), words).map(drop),
        ["instructions", words @ ..] => instructions::run(&root(), words).map(show),
        ["walks", words @ ..] => walks::run(&root(), words).map(show),
        ["dist", parts @ ..] => dist::run(&root(), parts),
        ["sharing", words @ ..] => sharing::run(&root(), words).map(show),
        ["bench-build", only @ ..] => bench_build::run(&root(), only),
        ["bench-engine", options @ ..] => bench_engine::run(&root(), options),
        ["bench-scaling", options @ ..] => bench_scaling::run(&root(), options),
        ["measured"] => measured::update(&root()),
        ["bench-fsync", options @ ..] => bench_fsync::run(&root(), options),
        ["bench-check", options @ ..] => bench_check::run(&root(), options),
        ["bench-mount", options @ ..] => bench_mount::run(&root(), options),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the note of a command that has one.
fn show(note: String) {
    if !note.is_empty() {
        println!("{note}");
    }
}

/// The root of the workspace: two directories above this crate.
fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path.pop();
    path
}

/// Where cargo puts what it builds, wherever the user lets it: two folders above this program.
fn built(root: &Path) -> PathBuf {
    let this = std::env::current_exe().ok();
    let folder = this.as_deref().and_then(|path| path.parent()?.parent());
    folder.map_or_else(|| root.join("target"), Path::to_path_buf)
}

/// Builds `lanefs` and `lanefs-bench` as they are measured.
fn build_bench(root: &Path) -> Result<(), String> {
    let mut build = cargo();
    build.args(["build", "--release", "--package", "lanefs-cli"]);
    build.args(["--package", "lanefs-bench", "--bins"]);
    let built = build.current_dir(root).stderr(Stdio::inherit()).status();
    let built = built.map_err(|error| format!("{build:?}: {error}"))?;
    if built.success() {
        Ok(())
    } else {
        Err(format!("{build:?}: {built}"))
    }
}

/// What makes a first build shorter and a second one longer: nothing is kept for the second one, each crate of ours is
/// optimised as a whole, and nothing is written that only a debugger or a backtrace reads. Without these the tests take
/// half as much processor time again to build.
const ONCE: [(&str, &str); 3] = [
    ("CARGO_INCREMENTAL", "0"),
    ("CARGO_PROFILE_DEV_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_DEV_DEBUG", "0"),
];

/// The cargo that runs us. A first build is for one use ([`ONCE`]).
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if is_first_build() {
        command.envs(ONCE);
    }
    command
}

/// Whether only this program had been built in this checkout when it was started.
fn is_first_build() -> bool {
    static IS_FIRST_BUILD: OnceLock<bool> = OnceLock::new();
    let kept = || std::fs::read_dir(root().join("target/debug/incremental"));
    let is_ours =
        |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("xtask");
    *IS_FIRST_BUILD.get_or_init(|| kept().is_ok_and(|kept| kept.flatten().all(is_ours)))
}
