//! `cargo xtask bench-build`: how long building and extracting take, beside other programs, in a Markdown table.
//!
//! The inputs are made once and kept outside the repository, in `$LANEFS_BENCH`, `$XDG_CACHE_HOME/lanefs-bench` or
//! `~/.cache/lanefs-bench` (the same bytes on every machine, except /usr and Debian). Images go to
//! `$LANEFS_BENCH_OUT`, or to /dev/shm, so that the disk's writeback does not count; all programs use the same place.
//! Each round runs all programs on one input, one after the other, so that a busy minute hits all of them. A round of
//! ours comes before, warms the page cache and does not count. Progress is on standard error, the table in
//! `target/bench-build.md`.

mod extract;
mod inputs;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Rounds that count, unless `--rounds` says otherwise.
const ROUNDS: usize = 5;
/// The size of peers' images, as a percentage of ours: enough for their own metadata.
const PEER_PERCENT: u64 = 130;
/// A program is not run again on an input once its runs on it have taken this many seconds together.
const ENOUGH_SECONDS: f64 = 60.0;
/// A run that takes longer is ended.
const TIMEOUT: &str = "180";

/// A program to be measured.
struct Tool {
    name: &'static str,
    /// Arguments for a source, an image, its bytes and its inodes.
    command: fn(&Bench, &Path, &Path, u64, u64) -> Command,
}

/// What the runs share.
struct Bench {
    /// Where the inputs are.
    directory: PathBuf,
    /// Where images go.
    output: PathBuf,
    lanefs: PathBuf,
    mkext4: PathBuf,
    rounds: usize,
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// From start to end.
    seconds: f64,
    /// Of the processors, in the program and for it in the kernel.
    cpu: f64,
    /// The largest process.
    kib: u64,
}

const TOOLS: [Tool; 4] = [
    Tool {
        name: "lanefs build",
        command: |bench, source, image, _, _| {
            let mut command = Command::new(&bench.lanefs);
            command.args(["build", "-q"]).arg(source).arg(image);
            command
        },
    },
    Tool {
        name: "mke2fs -d",
        command: |_, source, image, bytes, inodes| {
            let mut command = Command::new("mke2fs");
            command
                .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-N"])
                .arg(inodes.to_string());
            command
                .arg("-d")
                .arg(source)
                .arg(image)
                .arg(format!("{}k", bytes >> 10));
            command
        },
    },
    Tool {
        name: "mkext4",
        command: |bench, source, image, bytes, inodes| {
            let mut command = Command::new(&bench.mkext4);
            command
                .arg(source)
                .arg(image)
                .arg(bytes.to_string())
                .arg(inodes.to_string());
            command
        },
    },
    Tool {
        name: "floor: cat of all files into one",
        command: |_, source, image, _, _| {
            let mut command = Command::new("sh");
            let script = "find \"$1\" -type f -print0 | xargs -0 -r cat > \"$2\"";
            command.args(["-c", script, "sh"]).arg(source).arg(image);
            command
        },
    },
];

/// Measures everything, or only the inputs named; `--rounds N` may come first.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let (rounds, only) = match arguments {
        ["--rounds", number, only @ ..] => {
            let rounds = number
                .parse()
                .map_err(|_| format!("{number} is not a number of rounds"))?;
            (rounds, only)
        }
        only => (ROUNDS, only),
    };
    let directory = cache()?;
    let output = match std::env::var_os("LANEFS_BENCH_OUT") {
        Some(path) => PathBuf::from(path),
        None if Path::new("/dev/shm").is_dir() => PathBuf::from("/dev/shm"),
        None => directory.clone(),
    };
    let bench = Bench {
        lanefs: crate::built(root).join("release/lanefs"),
        mkext4: root.join("target/bench-build/release/bench-mkext4"),
        directory,
        output,
        rounds,
    };
    programs(root)?;
    let mut table = Table::new(root)?;
    table.line(&format!(
        "Images in {}, inputs in {}, {} processors.\n",
        bench.output.display(),
        bench.directory.display(),
        std::thread::available_parallelism().map_or(1, usize::from)
    ))?;
    table.line("| input | program | median s | min to max | runs | CPU s | peak memory MiB |")?;
    table.line("|---|---|---|---|---|---|---|")?;
    let inputs = inputs::inputs(&bench.directory, only).map_err(|error| error.to_string())?;
    for (name, source) in &inputs {
        bench.measure(name, source, &mut table)?;
    }
    for (name, source) in &inputs {
        if matches!(*name, "kernel-like" | "debian")
            && let Err(error) = extract::measure(&bench, name, source, &mut table)
        {
            eprintln!("skipped: extract of {name}: {error}");
        }
    }
    println!("written to {}", table.path.display());
    Ok(())
}

/// Where inputs are kept; made if it is not there.
fn cache() -> Result<PathBuf, String> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let directory = variable("LANEFS_BENCH")
        .or_else(|| variable("XDG_CACHE_HOME").map(|path| path.join("lanefs-bench")))
        .or_else(|| variable("HOME").map(|path| path.join(".cache/lanefs-bench")))
        .ok_or("LANEFS_BENCH and HOME are not set")?;
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory)
}

/// Builds ours, and the runner of mkext4 where Cargo's registry can be reached.
fn programs(root: &Path) -> Result<(), String> {
    eprintln!("building lanefs and mkext4");
    build(root, &["--release", "--package", "lanefs-cli"])?;
    let runner = root.join("tools/bench/peers/mkext4/Cargo.toml");
    let runner = runner.to_string_lossy().into_owned();
    let target = root.join("target/bench-build");
    let target = target.to_string_lossy().into_owned();
    let arguments = [
        "--release",
        "--manifest-path",
        &runner,
        "--target-dir",
        &target,
    ];
    if let Err(error) = build(root, &arguments) {
        eprintln!("skipped: mkext4: {error}");
    }
    Ok(())
}

/// The table, on standard output and in a file.
struct Table {
    path: PathBuf,
    file: fs::File,
}

impl Table {
    fn new(root: &Path) -> Result<Table, String> {
        let path = root.join("target/bench-build.md");
        let file =
            fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Table { path, file })
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        println!("{line}");
        let written = writeln!(self.file, "{line}");
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn row(&mut self, input: &str, program: &str, runs: &mut Runs) -> Result<(), String> {
        let columns = match &runs.failed {
            Some(error) => format!("- | {error} | - | - | -"),
            None => columns(&mut runs.samples),
        };
        self.line(&format!("| {input} | {program} | {columns} |"))
    }
}

/// What one program took.
#[derive(Clone, Debug, Default)]
struct Runs {
    samples: Vec<Sample>,
    failed: Option<String>,
}

impl Runs {
    /// Whether another run is wanted.
    fn wants_more(&self) -> bool {
        let spent: f64 = self.samples.iter().map(|sample| sample.seconds).sum();
        self.failed.is_none() && spent < ENOUGH_SECONDS
    }

    fn add(&mut self, result: Result<Sample, String>) {
        match result {
            Ok(sample) => self.samples.push(sample),
            Err(error) => self.failed = Some(error),
        }
    }
}

fn build(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let status = crate::cargo()
        .arg("build")
        .arg("--quiet")
        .args(arguments)
        .current_dir(root)
        .status()
        .map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo build {}: {status}", arguments.join(" ")))
    }
}

impl Bench {
    fn measure(&self, name: &str, source: &Path, table: &mut Table) -> Result<(), String> {
        let image = self.output.join("lanefs-bench.img");
        let run = |tool: &Tool, bytes, inodes| {
            let sample = timed((tool.command)(self, source, &image, bytes, inodes));
            let found = fs::metadata(&image).map_or(0, |found| found.len());
            // An error here shows in the next run.
            let _ = fs::remove_file(&image);
            sample.map(|sample| (sample, found))
        };
        eprintln!("{name}: warming up");
        // Our image determines how large the others' must be.
        let (_, ours) = run(&TOOLS[0], 0, 0)?;
        let bytes = (ours * PEER_PERCENT / 100 + (64 << 20)) >> 20 << 20;
        let inodes = count(source).map_err(|error| error.to_string())? + 4096;
        let mut all = vec![Runs::default(); TOOLS.len()];
        for round in 1..=self.rounds {
            for (tool, runs) in TOOLS.iter().zip(&mut all) {
                if runs.wants_more() {
                    let sample = run(tool, bytes, inodes).map(|(sample, _)| sample);
                    eprintln!("{name}: round {round}: {}: {}", tool.name, said(&sample));
                    runs.add(sample);
                }
            }
        }
        for (tool, runs) in TOOLS.iter().zip(&mut all) {
            table.row(name, tool.name, runs)?;
        }
        Ok(())
    }
}

/// One run in a few words.
fn said(sample: &Result<Sample, String>) -> String {
    match sample {
        Ok(sample) => format!("{:.2} s", sample.seconds),
        Err(error) => error.clone(),
    }
}

/// Median, range, number of runs, processor time of the median, and memory.
fn columns(samples: &mut [Sample]) -> String {
    samples.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let kib = samples.iter().map(|sample| sample.kib).max().unwrap_or(0);
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return "- | - | 0 | - | -".into();
    };
    let median = samples[samples.len() / 2];
    format!(
        "{:.2} | {:.2} to {:.2} | {} | {:.2} | {}",
        median.seconds,
        first.seconds,
        last.seconds,
        samples.len(),
        median.cpu,
        kib.div_ceil(1024)
    )
}

/// Runs a program under time(1), and ends it after a while.
fn timed(command: Command) -> Result<Sample, String> {
    let mut time = Command::new("/usr/bin/time");
    time.args(["--quiet", "-f", "%e %U %S %M", "timeout", TIMEOUT])
        .arg(command.get_program())
        .args(command.get_args());
    let output = time.stdout(Stdio::null()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("/usr/bin/time: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(124) {
        return Err(format!("not done after {TIMEOUT} s"));
    }
    if !output.status.success() {
        return Err(text.lines().next().unwrap_or_default().replace('|', "/"));
    }
    let last = text.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = last
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    match *numbers {
        [seconds, user, system, kib] => Ok(Sample {
            seconds,
            cpu: user + system,
            kib: kib as u64,
        }),
        _ => Err(format!("time said `{last}`")),
    }
}

/// Names below a directory.
fn count(directory: &Path) -> io::Result<u64> {
    let mut pending = vec![directory.to_path_buf()];
    let mut names = 1;
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            names += 1;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Ok(names)
}
