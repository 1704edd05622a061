//! `cargo xtask bench-fsync`: fsyncs by the log compared with the kernel's file systems, on disks with slow flushes, in
//! one run; and the fio job of the source document, on mounts.
//!
//! A disk is a loop device over a file in /dev/shm. A disk whose flushes take time has `slow-disk`
//! (crates/fuse/examples) between the loop device and the file, which delays fsyncs that long, and reads and writes not
//! at all. Each file system has a disk of its own, ours too; ours is also measured on such a file itself. A file
//! system that the machine can't mount is left out, and the page names it. A flush time that fails does not affect the
//! others: the page has theirs, and the run fails at its end. Needs root. Tables and charts are written to
//! results/scaling/fsync.md and the files next to it.

mod disks;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use self::disks::{Disks, PEERS};

/// How long flushes take, in microseconds, and for which of these fio runs.
const FLUSHES: [u32; 3] = [0, 20, 1000];
const FIO_FLUSHES: [u32; 2] = [0, 1000];
/// The options of `lanefs-bench`, unless others are given.
const USUAL: [&str; 4] = ["--rounds", "2", "--time", "0.1"];

/// The arguments of a run.
#[derive(PartialEq, Eq, Debug)]
struct Request<'a> {
    /// The flush times, each once, in the order of the command line.
    flushes: Vec<u32>,
    /// Options for `lanefs-bench fsync`.
    options: &'a [&'a str],
}

impl<'a> Request<'a> {
    /// The first argument is a list of flush times unless it is an option.
    fn of(arguments: &'a [&'a str]) -> Result<Request<'a>, String> {
        let (list, options) = match arguments.split_first() {
            Some((list, options)) if !list.starts_with('-') => (*list, options),
            _ => {
                return Ok(Request {
                    flushes: FLUSHES.to_vec(),
                    options: if arguments.is_empty() {
                        &USUAL
                    } else {
                        arguments
                    },
                });
            }
        };
        let mut flushes = Vec::new();
        for text in list.split(',') {
            let micros = text.parse();
            let micros = micros.map_err(|_| format!("{text}: not a number of microseconds"))?;
            if !flushes.contains(&micros) {
                flushes.push(micros);
            }
        }
        Ok(Request {
            flushes,
            options: if options.is_empty() { &USUAL } else { options },
        })
    }
}

/// The results of a run, in the order of the arguments.
#[derive(Default)]
struct Findings {
    measured: Vec<u32>,
    tables: String,
    fio: String,
    /// Why parts were not measured at some flush times.
    left_out: Vec<String>,
    /// Flush times that were not measured, each with the reason.
    failed: Vec<String>,
}

impl Findings {
    fn page(&self) -> String {
        let mut page = String::from("# fsync, measured\n\nMade by `cargo xtask bench-fsync`; ");
        page.push_str("[logtree.md](../../docs/logtree.md) says what it means.\n\n");
        page.push_str(&format!(
            "Flush times on this page, in microseconds: {}.",
            list(&self.measured)
        ));
        let is_absent = |micros: &u32| !self.measured.contains(micros);
        let absent: Vec<u32> = FLUSHES.into_iter().filter(is_absent).collect();
        if !absent.is_empty() {
            page.push_str(&format!(" Not in this run: {}.", list(&absent)));
        }
        page.push_str("\n\n");
        for line in self.told() {
            page.push_str(&format!("- {line}\n"));
        }
        page.push_str(&format!(
            "\n## The source's fio job\n\n{FIO_ABOUT}\n\n{}{}",
            self.fio, self.tables
        ));
        page.replace("\n\n\n", "\n\n")
    }

    /// The notes about figures that are missing.
    fn told(&self) -> impl Iterator<Item = String> {
        let left_out = self.left_out.iter().map(|line| format!("left out: {line}"));
        let failed = self.failed.iter().map(|line| format!("failed: {line}"));
        left_out.chain(failed)
    }
}

fn list(times: &[u32]) -> String {
    let times: Vec<String> = times.iter().map(u32::to_string).collect();
    times.join(", ")
}

/// Runs a program; returns its output, or what it printed as errors.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

fn build(root: &Path, what: &[&str]) -> Result<(), String> {
    let mut build = crate::cargo();
    build.args(["build", "--release"]).args(what);
    let built = build.current_dir(root).stderr(Stdio::inherit()).status();
    match built.map_err(|error| format!("{build:?}: {error}"))? {
        status if status.success() => Ok(()),
        status => Err(format!("{build:?}: {status}")),
    }
}

/// Measures; the first argument may be flush times, and the others are passed to `lanefs-bench fsync`.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let request = Request::of(arguments)?;
    // Built together, so that nothing is built twice.
    let packages = ["lanefs-cli", "lanefs-bench", "lanefs-fuse"].map(|name| ["--package", name]);
    let targets = ["--bins", "--example", "slow-disk"];
    build(root, &[&packages.concat()[..], &targets].concat())?;
    let mut findings = Findings::default();
    for &micros in &request.flushes {
        match measure(root, micros, request.options, &mut findings) {
            Ok(()) => findings.measured.push(micros),
            Err(error) => {
                let line = format!("a flush of {micros} microseconds: {error}");
                findings.failed.push(line);
            }
        }
    }
    for line in findings.told() {
        eprintln!("{line}");
    }
    // An empty page must not replace the existing one.
    if !findings.measured.is_empty() {
        let page = findings.page();
        let path = root.join("results/scaling/fsync.md");
        fs::write(&path, &page).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{page}");
        eprintln!("written to {}", path.display());
    }
    match findings.failed.len() {
        0 => Ok(()),
        failed => Err(format!(
            "{failed} of {} flush times failed",
            request.flushes.len()
        )),
    }
}

/// Measures one flush time, and undoes afterwards everything that was made for it, even after an error.
fn measure(
    root: &Path,
    micros: u32,
    options: &[&str],
    findings: &mut Findings,
) -> Result<(), String> {
    let programs = crate::built(root).join("release");
    let (lanefs, slow_disk) = (programs.join("lanefs"), programs.join("examples/slow-disk"));
    let mut disks = Disks::new(&lanefs, &slow_disk, micros)?;
    let mut left_out = |what: &str, error| {
        let line = format!("{what} with a flush of {micros} microseconds: {error}");
        findings.left_out.push(line);
    };
    for peer in &PEERS {
        if let Err(error) = disks.mount(peer) {
            left_out(peer.name, error);
        }
    }
    let report = root.join(format!("target/bench-fsync/{micros}us"));
    bench(&disks, micros, &report, options)?;
    let text = fs::read_to_string(report.join("tables.md"));
    let text = text.map_err(|error| format!("{}: {error}", report.display()))?;
    copy_charts(&report, &root.join("results/scaling"))?;
    let title = format!("A flush takes {micros} microseconds");
    findings.tables.push_str(&format!("## {title}\n\n{text}\n"));
    if FIO_FLUSHES.contains(&micros) {
        if let Err(error) = disks.mount_ours() {
            left_out("lanefs mount", error);
        }
        match seeds_job(&disks) {
            Ok(table) => {
                let table = format!("### {title} (MiB/s)\n\n{table}\n");
                findings.fio.push_str(&table);
            }
            Err(error) => left_out("fio", error),
        }
    }
    Ok(())
}

/// Measures one flush time in process and on the mounts.
fn bench(disks: &Disks, micros: u32, report: &Path, options: &[&str]) -> Result<(), String> {
    let mut bench = Command::new(disks.lanefs.with_file_name("lanefs-bench"));
    bench.current_dir(&disks.place);
    bench.args(["fsync", "-v", "--size", "1G", "--image", "engine"]);
    bench.arg("--flush").arg(micros.to_string());
    bench.arg("--report").arg(report);
    for at in &disks.mounted {
        bench.arg("--on").arg(at.file_name().unwrap_or_default());
    }
    let status = bench.args(options).stdin(Stdio::null());
    // The report has the tables.
    let status = status.stdout(Stdio::null()).status();
    match status.map_err(|error| format!("{bench:?}: {error}"))? {
        status if status.success() => Ok(()),
        status => Err(format!("{bench:?}: {status}")),
    }
}

const FIO_ABOUT: &str = "rw=randwrite bs=4k direct=0 ioengine=sync fallocate=none size=256M group_reporting, each job \
                         stopped after 2 seconds; system calls, to the kernel's file systems and through FUSE to ours.";

/// The fio job on all mounts: a table of MiB/s.
fn seeds_job(disks: &Disks) -> Result<String, String> {
    let forms = [(8, 1), (8, 4), (16, 1), (16, 4)];
    let mut table = String::from(
        "| file system | 8 jobs, fsync=1 | 8, fsync=4 | 16, fsync=1 | 16, fsync=4 |\n",
    );
    table.push_str("|---|--:|--:|--:|--:|\n");
    for at in &disks.mounted {
        let name = at.file_name().unwrap_or_default().to_string_lossy();
        table.push_str(&format!("| {name} |"));
        for (jobs, fsync) in forms {
            let rate = fio(at, jobs, fsync)?;
            table.push_str(&format!(" {rate:.1} |"));
        }
        table.push('\n');
    }
    Ok(table)
}

fn fio(at: &Path, jobs: u32, fsync: u32) -> Result<f64, String> {
    let mut fio = Command::new("fio");
    fio.args(["--name=writers", "--rw=randwrite", "--bs=4k", "--direct=0"]);
    fio.args(["--ioengine=sync", "--fallocate=none", "--size=256M"]);
    fio.args(["--group_reporting", "--runtime=2", "--unlink=1"]);
    fio.args(["--output-format=terse", "--terse-version=3"]);
    fio.arg(format!("--numjobs={jobs}"));
    fio.arg(format!("--fsync={fsync}"));
    fio.arg(format!("--directory={}", at.display()));
    let text = output(&mut fio)?;
    // In fio's terse format 3, field 48 is the rate of writes in KiB/s.
    let rate = text
        .lines()
        .find_map(|line| line.split(';').nth(47)?.parse::<f64>().ok());
    rate.map(|rate| rate / 1024.0)
        .ok_or_else(|| format!("{fio:?} said {text}"))
}

/// Copies charts to results/.
fn copy_charts(from: &Path, to: &Path) -> Result<(), String> {
    let copy = || -> std::io::Result<()> {
        for entry in fs::read_dir(from)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "svg") {
                fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
            }
        }
        Ok(())
    };
    copy().map_err(|error| format!("{}: {error}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_times_of_the_command_line_are_the_ones_that_are_measured() {
        let all = Request::of(&[]).unwrap();
        assert_eq!((all.flushes, all.options), (FLUSHES.to_vec(), &USUAL[..]));
        let some = Request::of(&["1000,20,0,20", "--time", "0.02"]).unwrap();
        assert_eq!(some.flushes, [1000, 20, 0]);
        assert_eq!(some.options, ["--time", "0.02"]);
        let option = Request::of(&["--quick"]).unwrap();
        assert_eq!(option.flushes, FLUSHES);
        assert_eq!(option.options, ["--quick"]);
        assert!(Request::of(&["1000,2o"]).is_err());
    }

    #[test]
    fn a_page_says_which_flush_times_it_holds_and_what_failed() {
        let page = Findings {
            measured: vec![1000, 0],
            failed: vec!["a flush of 20 microseconds: no room".to_owned()],
            ..Findings::default()
        }
        .page();
        assert!(page.contains("in microseconds: 1000, 0. Not in this run: 20.\n"));
        assert!(page.contains("- failed: a flush of 20 microseconds: no room\n"));
    }
}
