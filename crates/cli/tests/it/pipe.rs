//! A pipe is as good as a file: for random trees and random options, a build from a tar through a pipe and one from the
//! same tar as a file both give an image that e2fsck calls clean, with the same contents, or both refuse.
//!
//! A run is a seed. `LANEFS_PIPE_RUNS=2000` runs more of them, with trees of up to 400,000 names;
//! `LANEFS_PIPE_SEED=N` begins at another seed, which a failure names.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
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
    // The length counts its own digits.
    let digits = (1..20).find(|digits| (rest + digits).to_string().len() == *digits);
    format!("{} {key}={value}\n", rest + digits.unwrap())
}

/// A PAX header for the entry that follows it.
fn pax(out: &mut impl Write, records: &str) {
    entry(out, "pax", b'x', "", records.as_bytes());
}

/// Directories below one another in a random tree.
const DEPTH_MAX: u64 = 6;
/// Bytes of files in a random tree, and in one of ten.
const TREE_BYTES: u64 = 48 << 20;
const LARGE_TREE_BYTES: u64 = 300 << 20;

/// The path of a directory, below up to `depth` others; its parents may be implied.
fn directory_name(random: &mut Random, here: u64, depth: u64) -> String {
    let parents = (0..random.below(depth + 1)).fold(String::new(), |path, level| {
        format!("{path}p{}/", here % (level + 2))
    });
    format!("{parents}d{here}")
}

/// Writes a random tree of `names` names in directories of all sizes; the bytes that its files have.
fn make_tar(
    path: &Path,
    random: &mut Random,
    names: u64,
    has_ea_inode: bool,
    is_long: bool,
) -> u64 {
    let mut out = BufWriter::new(File::create(path).unwrap());
    let in_directory = 1 + random.log_uniform(2_000.0);
    let (most, largest_max) = match random.below(10) {
        0 if is_long => (LARGE_TREE_BYTES, 200e6),
        _ => (TREE_BYTES, 300e3),
    };
    let mut budget = most;
    let largest = random.log_uniform(largest_max) as f64;
    let value_max = match (has_ea_inode, random.below(8)) {
        (true, 0) => 20_000.0,
        (true, _) => 2_000.0,
        // What fits a block of 1 KiB.
        (false, _) => 900.0,
    };
    let depth = random.below(DEPTH_MAX);
    let mut last_file: Option<String> = None;
    let mut directory = String::new();
    for number in 0..names {
        if number % in_directory == 0 {
            let here = number / in_directory;
            directory = directory_name(random, here, depth);
            entry(&mut out, &format!("{directory}/"), b'5', "", b"");
        }
        let letters = match random.below(50) {
            0 => random.below(240),
            1 => 60,
            _ => 0,
        };
        let name = format!("{directory}/{number}{}", "x".repeat(letters as usize));
        let mut header_name = name.as_str();
        let mut records = String::new();
        if name.len() > 100 {
            records.push_str(&record("path", &name));
            header_name = "long";
        }
        let what = random.below(40);
        if what == 2 {
            let value = "v".repeat(random.log_uniform(value_max) as usize);
            records.push_str(&record("SCHILY.xattr.user.note", &value));
        }
        if !records.is_empty() {
            pax(&mut out, &records);
        }
        match (what, &last_file) {
            (0, Some(file)) => entry(&mut out, header_name, b'1', file, b""),
            (1, _) => {
                let target = "target/".repeat(1 + number as usize % 12);
                entry(&mut out, header_name, b'2', &target, b"");
            }
            _ => {
                let size = random.log_uniform(largest).min(budget);
                budget -= size;
                let data: Vec<u8> = (0..size).map(|at| (at as u8) ^ (number as u8)).collect();
                entry(&mut out, header_name, b'0', "", &data);
                if name.len() <= 100 {
                    last_file = Some(name);
                }
            }
        }
    }
    out.write_all(&[0; 1024]).unwrap();
    out.flush().unwrap();
    most - budget
}

/// Random options for the file system, except its size.
fn options(random: &mut Random, names: u64) -> Vec<String> {
    let mut options = Vec::new();
    let mut give = |letter: &str, value: &str| {
        if !value.is_empty() {
            options.extend([letter.to_owned(), value.to_owned()]);
        }
    };
    let blocks = [
        "", "", "", "1024", "1024", "2048", "4096", "8192", "16384", "32768", "65536",
    ];
    // Each file takes a block, and both images and the tar lie in memory.
    let most = match names > LARGE_BLOCKS_NAMES {
        true => 7,
        false => blocks.len(),
    };
    give("-b", random.one_of(&blocks[..most]));
    give(
        "-I",
        random.one_of(&["", "", "", "128", "256", "512", "1024"]),
    );
    give(
        "-i",
        random.one_of(&["", "", "", "2048", "8192", "65536", "1048576"]),
    );
    if random.below(3) == 0 {
        let inodes = (names + 20) * (1 + random.below(8));
        give("-N", &inodes.min(INODES_MAX.max(names + 20)).to_string());
    }
    let groups = ["", "", "", "", "256", "1024", "4096", "8192"];
    let mut group_blocks = random.one_of(&groups);
    let features = features(random);
    if features.contains("bigalloc") {
        group_blocks = "";
        give("-C", random.one_of(&["", "", "131072", "1048576"]));
    }
    give("-g", group_blocks);
    if !features.contains("flex_bg") {
        give("-G", random.one_of(&["", "", "1", "2", "4", "64", "1024"]));
    }
    give("-O", &features);
    options
}

/// Trees with more names have blocks of 4 KiB at most.
const LARGE_BLOCKS_NAMES: u64 = 10_000;
/// The most inodes that a random `-N` asks for, beyond those of the tree.
const INODES_MAX: u64 = 2_000_000;

/// Random features: one of each list, where they go together.
fn features(random: &mut Random) -> String {
    let layout = random.one_of(&[
        "",
        "",
        "",
        "^flex_bg",
        "meta_bg,^resize_inode",
        "meta_bg,^resize_inode,^flex_bg",
        "sparse_super2",
        "bigalloc",
        "^resize_inode",
        "^sparse_super,^resize_inode",
    ]);
    let width = match layout {
        "bigalloc" => random.one_of(&["", "^64bit"]),
        _ => random.one_of(&["", "", "", "64bit", "^64bit", "^64bit", "^extents,^64bit"]),
    };
    let lists = [
        layout,
        width,
        random.one_of(&["", "", "", "^has_journal", "fast_commit"]),
        random.one_of(&["", "", "", "^metadata_csum", "uninit_bg,^metadata_csum"]),
        random.one_of(&[
            "",
            "",
            "",
            "inline_data",
            "ea_inode,large_dir",
            "mmp",
            "inline_data,ea_inode",
        ]),
        random.one_of(&["", "", "", "^dir_index", "^orphan_file", "^huge_file"]),
    ];
    let some: Vec<&str> = lists.into_iter().filter(|list| !list.is_empty()).collect();
    some.join(",")
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
        // Times that no source has are the same.
        command.env("SOURCE_DATE_EPOCH", "1700000000");
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

    /// Bytes of a block in an image, as its superblock has it.
    fn block_size(&self, name: &str) -> u64 {
        let mut superblock = [0; 1024];
        let file = File::open(self.image(name)).unwrap();
        file.read_exact_at(&mut superblock, 1024).unwrap();
        1024 << superblock[24]
    }

    /// The bytes that everybody may use in an image, and those that a usable one of a tree with `tree_bytes` has.
    fn room(&self, name: &str, tree_bytes: u64) -> (u64, u64) {
        let mut superblock = [0; 1024];
        let file = File::open(self.image(name)).unwrap();
        file.read_exact_at(&mut superblock, 1024).unwrap();
        let word = |at: usize| {
            u64::from(u32::from_le_bytes(
                superblock[at..at + 4].try_into().unwrap(),
            ))
        };
        let (blocks, reserved, free) = (word(4), word(8), word(12));
        let (block, cluster) = (1024 << word(24), 1024 << word(28));
        // With bigalloc, what is free is counted in clusters.
        let free = free * cluster;
        let kernel = (blocks * block / cluster / 50).min(4096) * cluster;
        let least = if tree_bytes < 1 << 20 { 3 } else { 4 };
        let wanted = (least << 20).max(blocks * block / 20);
        (free.saturating_sub(reserved * block + kernel), wanted)
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
        // The kernel has no larger blocks than pages.
        if with_kernel && testkit::is_root() && self.block_size("file") <= 4096 {
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
    let is_small = ["the image needs", "the image is too small"];
    if is_small.iter().any(|words| said.starts_with(words)) && said.contains("bytes") {
        // Only a file is known as a whole, so only then the size that is needed.
        return "too small".into();
    }
    let words = said.lines().next().unwrap_or_default().split_whitespace();
    let words = words
        .filter(|word| !word.contains(|letter: char| letter.is_ascii_digit() || letter == '/'));
    words.collect::<Vec<_>>().join(" ")
}

/// In memory, or where TMPDIR says.
fn folder() -> std::io::Result<tempfile::TempDir> {
    if std::env::var_os("TMPDIR").is_some() {
        return tempfile::tempdir();
    }
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

fn run(seed: u64, most_names: f64) {
    let mut random = Random(seed);
    let names = random.log_uniform(most_names);
    let case = Case {
        folder: folder().unwrap(),
        options: options(&mut random, names),
    };
    let has_ea_inode = case.options.iter().any(|word| word.contains("ea_inode"));
    let tree_bytes = make_tar(
        &case.tar(),
        &mut random,
        names,
        has_ea_inode,
        most_names > NAMES_SHORT,
    );
    let auto = random.one_of(&["auto", "auto", "auto+20%", "auto+64M"]);
    let what = format!("seed {seed}: {names} names, {:?}, {auto}", case.options);
    let begun = std::time::Instant::now();
    let (file, pipe) = (case.build("file", auto), case.build("pipe", auto));
    match (file.status.success(), pipe.status.success()) {
        (true, true) => case.compare(random.below(8) == 0),
        (false, false) => {
            eprintln!("{what}: refused: {}", reason(&file));
            return assert_eq!(reason(&file), reason(&pipe), "{what}");
        }
        _ => panic!("{what}: file: {}\npipe: {}", error(&file), error(&pipe)),
    }
    if auto == "auto" {
        for name in ["file", "pipe"] {
            let (available, wanted) = case.room(name, tree_bytes);
            assert!(
                available >= wanted,
                "{what}: {name}: {available} bytes of {wanted}"
            );
        }
    }
    let smallest = fs::metadata(case.image("file")).unwrap().len();
    let bytes = smallest / 100 * (60 + random.below(160));
    let what = format!("{what}, {bytes} bytes");
    let size = bytes.to_string();
    let (file, pipe) = (case.build("file", &size), case.build("pipe", &size));
    match (file.status.success(), pipe.status.success()) {
        (true, true) => case.compare(false),
        (false, false) => {
            let (file, pipe) = (reason(&file), reason(&pipe));
            assert_eq!(file, pipe, "{what}");
            eprintln!("{what}: at that size refused: {file}");
        }
        (true, false) => {
            let later = LATER_BLOCKS * case.block_size("file");
            let later = bytes + bytes / 100 * LATER_PERCENT + later;
            let pipe = case.build("pipe", &later.to_string());
            assert!(pipe.status.success(), "{what}: {}", error(&pipe));
        }
        (false, true) => panic!("{what}: only the pipe fits; file: {}", error(&file)),
    }
    eprintln!("{what}: alike, {:.1} s", begun.elapsed().as_secs_f64());
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
