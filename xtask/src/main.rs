//! The project's own commands: `cargo xtask tidy`, `cargo xtask ci`, `cargo xtask demo`, `cargo xtask bench-build`,
//! `cargo xtask bench-engine`, `cargo xtask suites`.

mod bench_build;
mod bench_engine;
mod ci;
mod crash;
mod demo;
mod suites;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask demo   build an image of a tree of this machine, check it, read it back
       cargo xtask ci     format, tidy, clippy, tests, documentation
       cargo xtask tidy   the house rules alone
       cargo xtask suites [NAME ...]
                          outside suites and long runs on a mounted image (posix, fsx, trees, kill)
       cargo xtask crash  power cuts, faults and random work in memory; `cargo xtask crash --help`
       cargo xtask bench-build [--rounds N] [INPUT ...]
                          time `lanefs build` beside mke2fs -d and mkext4, `lanefs extract` beside cp -a
                          (flat-20000, flat-120000, kernel-like, usr, debian); table in target/bench-build.md
       cargo xtask bench-engine [OPTION of lanefs bench ...]
                          the engine's workloads in process, beside the kernel's ext4, `lanefs mount` and fuse2fs;
                          tables in target/bench-engine.md";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["tidy"] => tidy::run(&root()).map(|summary| println!("tidy: {summary}, no rule broken")),
        ["ci"] => ci::run(&root()),
        ["demo"] => demo::run(&root()),
        ["suites", names @ ..] => suites::run(&root(), names),
        ["crash", words @ ..] => crash::run(&root(), words).map(drop),
        ["bench-build", only @ ..] => bench_build::run(&root(), only),
        ["bench-engine", options @ ..] => bench_engine::run(&root(), options),
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

/// The workspace's folder: above this crate's.
fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// The cargo that runs us.
fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
