//! `cargo xtask bench-build`: how long images take to build, beside mke2fs -d and mkext4, as a table in Markdown.
//!
//! The inputs are made once under `target/bench-build` (the same bytes on every machine, but for /usr and Debian); each
//! round runs all programs on one input, one after the other, so that a busy minute hits all of them. The first round
//! warms the page cache and does not count.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Rounds that count.
const ROUNDS: usize = 5;
/// The size of peers' images, as a percentage of ours: enough for their own metadata.
const PEER_PERCENT: u64 = 130;

/// A program to be measured.
struct Tool {
    name: &'static str,
    /// Arguments for a source, an image, its bytes and its inodes.
    command: fn(&Bench, &Path, &Path, u64, u64) -> Command,
}

/// What the runs share.
struct Bench {
    directory: PathBuf,
    lanefs: PathBuf,
    mkext4: PathBuf,
}

/// Seconds and KiB of one run.
type Sample = (f64, u64);

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

/// Measures everything, or only the inputs named.
pub fn run(root: &Path, only: &[&str]) -> Result<(), String> {
    let directory = root.join("target/bench-build");
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    build(root, &["--release", "--package", "lanefs-cli"])?;
    let runner = root.join("bench/peers/mkext4/Cargo.toml");
    let target = directory.join("mkext4");
    let runner = runner.to_string_lossy().into_owned();
    let target_argument = target.to_string_lossy().into_owned();
    if let Err(error) = build(
        root,
        &[
            "--release",
            "--manifest-path",
            &runner,
            "--target-dir",
            &target_argument,
        ],
    ) {
        eprintln!("skipped: mkext4: {error}");
    }
    let bench = Bench {
        lanefs: root.join("target/release/lanefs"),
        mkext4: target.join("release/bench-mkext4"),
        directory,
    };
    println!("| input | program | median s | min to max | peak memory MiB |");
    println!("|---|---|---|---|---|");
    for (name, source) in inputs(&bench.directory, only).map_err(|error| error.to_string())? {
        bench.measure(name, &source)?;
    }
    Ok(())
}

fn build(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(crate::cargo())
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
    fn measure(&self, name: &str, source: &Path) -> Result<(), String> {
        let image = self.directory.join("measured.img");
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); TOOLS.len()];
        let mut failed = vec![None; TOOLS.len()];
        let (mut bytes, mut inodes) = (0, 0);
        for round in 0..=ROUNDS {
            for (at, tool) in TOOLS.iter().enumerate() {
                // The first program is ours; its image tells the others how large theirs must be.
                if failed[at].is_some() {
                    continue;
                }
                let command = (tool.command)(self, source, &image, bytes, inodes);
                match timed(command) {
                    Ok(sample) if round > 0 => samples[at].push(sample),
                    Ok(_) => {}
                    Err(error) if at == 0 => return Err(format!("{}: {error}", tool.name)),
                    Err(error) => failed[at] = Some(error),
                }
                if at == 0 && round == 0 {
                    let found = fs::metadata(&image).map_err(|error| error.to_string())?;
                    bytes = (found.len() * PEER_PERCENT / 100 + (64 << 20)) >> 20 << 20;
                    inodes = count(source).map_err(|error| error.to_string())? + 4096;
                }
                // An error here shows in the next run.
                let _ = fs::remove_file(&image);
            }
        }
        for ((tool, samples), failed) in TOOLS.iter().zip(&mut samples).zip(&failed) {
            match failed {
                Some(error) => println!("| {name} | {} | - | {error} | - |", tool.name),
                None => println!("| {name} | {} | {} |", tool.name, columns(samples)),
            }
        }
        Ok(())
    }
}

/// Median, range and memory.
fn columns(samples: &mut [Sample]) -> String {
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    let memory = samples.iter().map(|sample| sample.1).max().unwrap_or(0);
    match &*samples {
        [] => "- | - | -".into(),
        [first, .., last] => {
            let median = samples[samples.len() / 2].0;
            format!(
                "{median:.2} | {:.2} to {:.2} | {}",
                first.0,
                last.0,
                memory.div_ceil(1024)
            )
        }
        [only] => format!("{:.2} | once | {}", only.0, only.1.div_ceil(1024)),
    }
}

/// Runs a program under time(1): wall seconds, and KiB of its largest process.
fn timed(command: Command) -> Result<Sample, String> {
    let mut time = Command::new("/usr/bin/time");
    time.args(["--quiet", "-f", "%e %M"])
        .arg(command.get_program())
        .args(command.get_args());
    let output = time.stdout(Stdio::null()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("/usr/bin/time: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = text.lines().last().unwrap_or_default();
    if !output.status.success() {
        return Err(text.lines().next().unwrap_or_default().replace('|', "/"));
    }
    let numbers = last
        .split_once(' ')
        .and_then(|(seconds, kib)| Some((seconds.parse().ok()?, kib.parse().ok()?)));
    numbers.ok_or_else(|| format!("time said `{last}`"))
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

/// The inputs that exist on this machine or can be made.
fn inputs(directory: &Path, only: &[&str]) -> io::Result<Vec<(&'static str, PathBuf)>> {
    let wanted = |name: &str| only.is_empty() || only.contains(&name);
    let mut inputs = Vec::new();
    for (name, files) in [("flat-20000", 20_000), ("flat-120000", 120_000)] {
        if wanted(name) {
            inputs.push((name, made(directory, name, |path| flat(path, files))?));
        }
    }
    if wanted("kernel-like") {
        inputs.push(("kernel-like", made(directory, "kernel-like", kernel_like)?));
    }
    if wanted("usr") {
        inputs.push(("usr", PathBuf::from("/usr")));
    }
    if wanted("debian") {
        match made(directory, "debian", debian) {
            Ok(path) => inputs.push(("debian", path)),
            Err(error) => eprintln!("skipped: debootstrap: {error}"),
        }
    }
    Ok(inputs)
}

/// A directory that `make` fills, unless it was made before.
fn made(
    directory: &Path,
    name: &str,
    make: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<PathBuf> {
    let path = directory.join(name);
    if !path.exists() {
        let unfinished = directory.join(format!("{name}.part"));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)?;
        }
        fs::create_dir(&unfinished)?;
        make(&unfinished)?;
        fs::rename(&unfinished, &path)?;
    }
    Ok(path)
}

fn flat(path: &Path, files: u32) -> io::Result<()> {
    for number in 0..files {
        File::create(path.join(format!("file-{number:06}")))?;
    }
    Ok(())
}

/// Numbers that look random and are the same everywhere (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// 3,000 directories and 40,000 files of 590 MB, sized like the kernel's sources: most small, a few large.
fn kernel_like(path: &Path) -> io::Result<()> {
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let text: Vec<u8> = (0..1 << 20)
        .map(|_| b' ' + (numbers.below(95)) as u8)
        .collect();
    let mut directories = vec![path.to_path_buf()];
    while directories.len() < 3000 {
        let parent = &directories[numbers.below(directories.len() as u64) as usize];
        if parent.components().count() > path.components().count() + 8 {
            continue;
        }
        let child = parent.join(format!("dir{}", directories.len()));
        fs::create_dir(&child)?;
        directories.push(child);
    }
    for number in 0..40_000 {
        let directory = &directories[numbers.below(3000) as usize];
        let mut name = String::new();
        // Writing to a String cannot fail.
        let _ = write!(name, "source_{number}.c");
        // Doubling sizes from 1 KiB, each half as likely as the one before: 14.7 KB in the mean.
        let doublings = numbers.next().trailing_zeros().min(11);
        let size = (1200u64 << doublings) + numbers.below(3000);
        let mut file = File::create(directory.join(name))?;
        let mut left = size as usize;
        while left > 0 {
            let start = numbers.below(1 << 19) as usize;
            let len = left.min(1 << 19);
            file.write_all(&text[start..start + len])?;
            left -= len;
        }
    }
    Ok(())
}

/// A small Debian.
fn debian(path: &Path) -> io::Result<()> {
    let status = Command::new("debootstrap")
        .args(["--variant=minbase", "bookworm"])
        .arg(path)
        .stdout(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(status.to_string()))
    }
}
