//! A pipe is as good as a file: for random trees and random options, a build from a tar through a pipe and one from the
//! same tar as a file both give an image that e2fsck calls clean, with the same contents, or both refuse.
//!
//! A run is a seed. `LANEFS_PIPE_RUNS=2000` runs more of them, with trees of up to 400,000 names;
//! `LANEFS_PIPE_SEED=N` begins at another seed, which a failure names.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::{KernelMount, Manifest};

use crate::fixture::{error, lanefs};

/// How many runs are made unless the environment says so.
const RUNS: u64 = 64;
/// Names of the largest tree, in a long run and in a short one.
const NAMES_LONG: f64 = 400_000.0;
const NAMES_SHORT: f64 = 20_000.0;
/// Sizes at which a pipe may fit later than a file: 1 % and 64 blocks.
const LATER_PERCENT: u64 = 1;
const LATER_BLOCKS: u64 = 64;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }

    /// Below `limit`, small numbers as likely as large ones.
    fn log_uniform(&mut self, limit: f64) -> u64 {
        let exponent = self.below(1 << 20) as f64 / f64::from(1 << 20);
        (limit + 1.0).powf(exponent) as u64 - 1
    }
}

/// One entry of a tar.
fn entry(out: &mut impl Write, name: &str, kind: u8, link: &str, data: &[u8]) {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
    header[136..147].copy_from_slice(b"14000000000");
    header[148..156].fill(b' ');
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    out.write_all(&header).unwrap();
    out.write_all(data).unwrap();
    let padding = data.len().next_multiple_of(512) - data.len();
    out.write_all(&[0; 512][..padding]).unwrap();
}

/// A record of a PAX header.
fn record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let digits = (rest + 3).to_string().len();
    format!("{} {key}={value}\n", rest + digits)
}

/// Writes a random tree: up to so many names in directories of all sizes.
fn make_tar(path: &Path, random: &mut Random, names: u64) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    let in_directory = 1 + random.log_uniform(2_000.0);
    let largest = random.log_uniform(300_000.0) as f64;
    let mut budget = 48u64 << 20;
    let mut last_file: Option<String> = None;
    for number in 0..names {
        let directory = number / in_directory;
        if number % in_directory == 0 {
            entry(&mut out, &format!("d{directory}/"), b'5', "", b"");
        }
        let long = match random.below(50) {
            0 => "x".repeat(70),
            _ => String::new(),
        };
        let name = format!("d{directory}/{number}{long}");
        match (random.below(40), &last_file) {
            (0, Some(file)) => entry(&mut out, &name, b'1', file, b""),
            (1, _) => entry(
                &mut out,
                &name,
                b'2',
                &"target/".repeat(1 + number as usize % 12),
                b"",
            ),
            (what, _) => {
                if what == 2 {
                    let value = "v".repeat(random.log_uniform(2_000.0) as usize);
                    let records = record("SCHILY.xattr.user.note", &value);
                    entry(&mut out, "pax", b'x', "", records.as_bytes());
                }
                let size = random.log_uniform(largest).min(budget);
                budget -= size;
                let data: Vec<u8> = (0..size).map(|at| (at as u8) ^ (number as u8)).collect();
                entry(&mut out, &name, b'0', "", &data);
                last_file = Some(name);
            }
        }
    }
    out.write_all(&[0; 1024]).unwrap();
    out.flush().unwrap();
}

/// Random options for the file system, but for its size.
fn options(random: &mut Random, names: u64) -> Vec<String> {
    let mut options = Vec::new();
    let mut give = |letter: &str, value: &str| {
        if !value.is_empty() {
            options.extend([letter.to_owned(), value.to_owned()]);
        }
    };
    give(
        "-b",
        random.one_of(&["", "", "1024", "2048", "4096", "4096", "16384"]),
    );
    give("-I", random.one_of(&["", "", "", "128", "512", "1024"]));
    give("-i", random.one_of(&["", "", "", "2048", "8192", "65536"]));
    if random.below(3) == 0 {
        let inodes = (names + 20) * (1 + random.below(8));
        give("-N", &inodes.to_string());
    }
    give(
        "-g",
        random.one_of(&["", "", "", "256", "1024", "4096", "8192"]),
    );
    let features = random.one_of(&[
        "",
        "",
        "^flex_bg",
        "^flex_bg,^has_journal",
        "meta_bg,^resize_inode",
        "sparse_super2",
        "bigalloc",
        "^64bit",
        "^resize_inode",
        "^extents,^64bit",
        "^sparse_super,^resize_inode",
        "^has_journal",
        "fast_commit",
        "ea_inode,large_dir",
        "mmp",
    ]);
    if !features.contains("flex_bg") {
        give("-G", random.one_of(&["", "", "1", "4", "64"]));
    }
    give("-O", features);
    options
}

/// One tar, and the images that are built from it.
struct Case {
    folder: tempfile::TempDir,
    options: Vec<String>,
}

impl Case {
    fn tar(&self) -> PathBuf {
        self.folder.path().join("tree.tar")
    }

    fn image(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Builds from the file or through a pipe.
    fn build(&self, name: &str, size: &str) -> Output {
        let mut command = lanefs();
        command
            .args(["build", "-q", "--size", size])
            .args(&self.options);
        if name == "pipe" {
            command
                .arg("-")
                .stdin(File::open(self.tar()).map_or(Stdio::null(), |tar| {
                    // A file as standard input could be read twice; a pipe can't.
                    let cat = Command::new("cat")
                        .stdin(tar)
                        .stdout(Stdio::piped())
                        .spawn();
                    let mut cat = cat.unwrap();
                    let out = cat.stdout.take().unwrap();
                    std::thread::spawn(move || cat.wait());
                    out.into()
                }));
        } else {
            command.arg(self.tar());
        }
        command.arg(self.image(name)).output().unwrap()
    }

    /// What both images hold must be the same, by our reader and, for some, by the kernel.
    fn compare(&self, with_kernel: bool) {
        for name in ["file", "pipe"] {
            testkit::e2fsck(&self.image(name));
        }
        let listed = |name: &str| {
            let output = lanefs()
                .args(["extract", "-q"])
                .arg(self.image(name))
                .arg("-")
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", error(&output));
            testkit::sha256(&output.stdout)
        };
        assert_eq!(listed("file"), listed("pipe"), "contents differ");
        if with_kernel && testkit::is_root() {
            let manifest = |name: &str| {
                let mounted = KernelMount::read_only(&self.image(name)).unwrap();
                Manifest::of(&mounted.path()).unwrap()
            };
            let differences = manifest("file").differences(&manifest("pipe"));
            assert!(differences.is_empty(), "{differences}");
        }
    }
}

/// Why a build was refused, without paths and numbers.
fn reason(output: &Output) -> String {
    let text = error(output);
    let said = text.split("error: ").nth(1).unwrap_or(&text);
    let words = said.lines().next().unwrap_or_default().split_whitespace();
    let words = words
        .filter(|word| !word.contains(|letter: char| letter.is_ascii_digit() || letter == '/'));
    words.collect::<Vec<_>>().join(" ")
}

fn run(seed: u64, most_names: f64) {
    let mut random = Random(seed);
    let names = random.log_uniform(most_names);
    let case = Case {
        folder: tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap(),
        options: options(&mut random, names),
    };
    make_tar(&case.tar(), &mut random, names);
    let auto = random.one_of(&["auto", "auto", "auto+20%", "auto+64M"]);
    let what = format!("seed {seed}: {names} names, {:?}, {auto}", case.options);
    let (file, pipe) = (case.build("file", auto), case.build("pipe", auto));
    match (file.status.success(), pipe.status.success()) {
        (true, true) => case.compare(random.below(8) == 0),
        (false, false) => return assert_eq!(reason(&file), reason(&pipe), "{what}"),
        _ => panic!("{what}: file: {}\npipe: {}", error(&file), error(&pipe)),
    }
    let smallest = fs::metadata(case.image("file")).unwrap().len();
    let bytes = smallest / 100 * (60 + random.below(160));
    let what = format!("{what}, {bytes} bytes");
    let size = bytes.to_string();
    let (file, pipe) = (case.build("file", &size), case.build("pipe", &size));
    match (file.status.success(), pipe.status.success()) {
        (true, true) => case.compare(false),
        (false, false) => {}
        (true, false) => {
            let later = bytes + bytes / 100 * LATER_PERCENT + LATER_BLOCKS * 65_536;
            let pipe = case.build("pipe", &later.to_string());
            assert!(pipe.status.success(), "{what}: {}", error(&pipe));
        }
        (false, true) => panic!("{what}: only the pipe fits; file: {}", error(&file)),
    }
}

#[test]
fn a_pipe_gives_what_the_same_file_gives() {
    for program in ["e2fsck", "cat"] {
        if !testkit::have(program) {
            return testkit::skip("e2fsck and cat are needed");
        }
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let runs = number("LANEFS_PIPE_RUNS");
    let first = number("LANEFS_PIPE_SEED").unwrap_or(0);
    let most = if runs.is_some() {
        NAMES_LONG
    } else {
        NAMES_SHORT
    };
    let failed: Vec<u64> = (first..first + runs.unwrap_or(RUNS))
        .filter(|seed| std::panic::catch_unwind(|| run(*seed, most)).is_err())
        .collect();
    assert!(failed.is_empty(), "seeds {failed:?}");
}
