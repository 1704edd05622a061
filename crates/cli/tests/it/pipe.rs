//! A pipe is as good as a file: for random trees and random options, a build from a tar through a pipe and one from the
//! same tar as a file both give an image that e2fsck calls clean, with the same contents, or both refuse for the same
//! reason.
//!
//! A run is a seed. `cargo xtask suites long` makes more of them than CI. `LANEFS_PIPE_RUNS=2000` makes 2,000, with
//! trees of up to 400,000 names; `LANEFS_PIPE_SEED=N` begins at another seed, which a failure names. Images are written
//! to TMPDIR where it is set, else to memory; data and inode tables of one image stay below 2 GB.

mod archive;
mod draw;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use testkit::{KernelMount, Manifest};

use self::archive::make_tar;
use self::draw::{Draw, Numbers};
use crate::fixture::{error, lanefs};

/// Runs in CI and in the long suite, unless the environment says otherwise.
const RUNS: u64 = 40;
const RUNS_LONG: u64 = 500;
/// Names of the largest tree, in a long run and in a short one.
const NAMES_LONG: f64 = 400_000.0;
const NAMES_SHORT: f64 = 1_500.0;
/// A given size may be larger by this before a pipe fits: 1 % and 64 blocks.
const LATER_PERCENT: u64 = 1;
const LATER_BLOCKS: u64 = 64;
/// Trees up to this number of names are built with a size that is chosen, and with a given one.
const NAMES_TWICE: u64 = 20_000;
/// Trees up to this number of names are compared by the kernel, too, now and then.
const NAMES_KERNEL: u64 = 5_000;

/// One tar, and the images that are built from it.
struct Case {
    folder: tempfile::TempDir,
    options: Vec<String>,
    tree_bytes: u64,
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
        if name == "file" {
            return command
                .arg(self.tar())
                .arg(self.image(name))
                .output()
                .unwrap();
        }
        // A file as standard input could be read twice; a pipe can't.
        let mut cat = Command::new("cat")
            .arg(self.tar())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        command.arg("-").stdin(cat.stdout.take().unwrap());
        let output = command.arg(self.image(name)).output().unwrap();
        drop(command);
        cat.wait().unwrap();
        output
    }

    /// Bytes of a block in an image, from its superblock.
    fn block_size(&self, name: &str) -> u64 {
        let mut superblock = [0; 1024];
        let file = File::open(self.image(name)).unwrap();
        file.read_exact_at(&mut superblock, 1024).unwrap();
        1024 << superblock[24]
    }

    /// The bytes that everybody may use in an image, and those that a usable one has.
    fn room(&self, name: &str) -> (u64, u64) {
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
        let least = if self.tree_bytes < 1 << 20 { 3 } else { 4 };
        let wanted = (least << 20).max(blocks * block / 20);
        (free.saturating_sub(reserved * block + kernel), wanted)
    }

    /// What both images hold must be the same, by our reader and, for some, by the kernel.
    fn compare(&self, with_kernel: bool) {
        std::thread::scope(|scope| {
            for name in ["file", "pipe"] {
                scope.spawn(|| testkit::e2fsck(&self.image(name)));
            }
        });
        let (mut file, mut pipe) = (self.extracted("file"), self.extracted("pipe"));
        assert!(is_same(&mut file, &mut pipe), "contents differ");
        for mut child in [file, pipe] {
            assert!(child.wait().unwrap().success(), "not all is read back");
        }
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

    /// Begins to read an image back, as a tar.
    fn extracted(&self, name: &str) -> Child {
        let mut command = lanefs();
        command.args(["extract", "-q"]).arg(self.image(name));
        command.arg("-").stdout(Stdio::piped()).spawn().unwrap()
    }

    /// The smallest size at which the tree fits if it is read from a file. If a refusal names a size, the tree must fit
    /// at that size.
    fn smallest(&self) -> Option<u64> {
        let refused = self.build("file", "65536");
        let said = error(&refused);
        if let Some(rest) = said.split("--size ").nth(1)
            && let Ok(bytes) = rest.split(' ').next().unwrap().parse()
        {
            let named = self.build("file", &format!("{bytes}"));
            assert!(named.status.success(), "{said}then: {}", error(&named));
            return Some(bytes);
        }
        let smallest = self.build("file", "min");
        let bytes = fs::metadata(self.image("file")).map(|found| found.len());
        smallest.status.success().then(|| bytes.unwrap())
    }

    /// Builds both at a size that is chosen.
    fn check_auto(&self, size: &str, with_kernel: bool) -> String {
        let (file, pipe) = (self.build("file", size), self.build("pipe", size));
        match (file.status.success(), pipe.status.success()) {
            (true, true) => self.compare(with_kernel),
            (false, false) => {
                assert_eq!(reason(&file), reason(&pipe));
                return format!("refused: {}", reason(&file));
            }
            _ => panic!("file: {}\npipe: {}", error(&file), error(&pipe)),
        }
        if size == "auto" {
            for name in ["file", "pipe"] {
                let (available, wanted) = self.room(name);
                assert!(available >= wanted, "{name}: {available} of {wanted} bytes");
            }
        }
        let bytes = |name: &str| fs::metadata(self.image(name)).unwrap().len();
        format!("alike, {} and {} bytes", bytes("file"), bytes("pipe"))
    }

    /// Builds both at a given size. Where only the file fits, the pipe must fit at one that is a little larger.
    fn check_fixed(&self, bytes: u64, random: &mut Numbers) -> String {
        let size = bytes.to_string();
        let (file, pipe) = (self.build("file", &size), self.build("pipe", &size));
        match (file.status.success(), pipe.status.success()) {
            (true, true) => {
                self.compare(false);
                "alike".into()
            }
            (false, false) => {
                assert_eq!(reason(&file), reason(&pipe));
                format!("refused: {}", reason(&file))
            }
            (true, false) => {
                assert_eq!(reason(&pipe), TOO_SMALL);
                let more = bytes / 100 * LATER_PERCENT + LATER_BLOCKS * self.block_size("file");
                // With dense inodes a larger size may fit less; one of them must do.
                let mut sizes = vec![more, more / 2, more / 4 * 3];
                sizes.extend((0..4).map(|_| random.below(more)));
                let fits = |more: &u64| {
                    let pipe = self.build("pipe", &(bytes + more).to_string());
                    pipe.status.success()
                };
                let later = sizes.into_iter().find(fits);
                let later = later.unwrap_or_else(|| panic!("only the file: {}", error(&pipe)));
                self.compare(false);
                format!("alike, {later} bytes later")
            }
            (false, true) => panic!("only the pipe; file: {}", error(&file)),
        }
    }
}

/// Whether two programs print the same.
fn is_same(one: &mut Child, other: &mut Child) -> bool {
    let mut streams = [one, other].map(|child| child.stdout.take().unwrap());
    let mut buffers = [vec![0; 1 << 18], vec![0; 1 << 18]];
    loop {
        let mut lengths = [0; 2];
        for ((stream, buffer), length) in streams.iter_mut().zip(&mut buffers).zip(&mut lengths) {
            while *length < buffer.len() {
                match stream.read(&mut buffer[*length..]).unwrap() {
                    0 => break,
                    count => *length += count,
                }
            }
        }
        let [first, second] = &buffers;
        if first[..lengths[0]] != second[..lengths[1]] {
            return false;
        }
        if lengths[0] == 0 {
            return true;
        }
    }
}

const TOO_SMALL: &str = "too small";

/// Why a build was refused, without paths and numbers.
fn reason(output: &Output) -> String {
    let text = error(output);
    let said = text.split("error: ").nth(1).unwrap_or(&text);
    let is_small = ["the image needs", "the image is too small"];
    if is_small.iter().any(|words| said.starts_with(words)) && said.contains("bytes") {
        // Only a file is known as a whole, so only then the size that is needed.
        return TOO_SMALL.into();
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
    let begun = Instant::now();
    let mut random = Numbers::new(seed);
    let names = random.log_uniform(most_names);
    let draw = Draw::new(&mut random, names);
    let folder = folder().unwrap();
    let has_ea_inode = draw.options.iter().any(|word| word.contains("ea_inode"));
    let is_long = most_names > NAMES_SHORT;
    let tar = folder.path().join("tree.tar");
    let case = Case {
        tree_bytes: make_tar(&tar, &mut random, names, has_ea_inode, is_long),
        options: draw.options,
        folder,
    };
    let auto = draw::auto_size(&mut random);
    let (is_auto, with_kernel) = (random.below(2) == 0, random.once_in(8));
    let what = format!("seed {seed}: {names} names, {}", case.options.join(" "));
    if is_auto || names <= NAMES_TWICE {
        eprint!("{what}, {auto}: ");
        let verdict = case.check_auto(&auto, with_kernel && names <= NAMES_KERNEL);
        eprintln!("{verdict}, {:.1} s", begun.elapsed().as_secs_f64());
    }
    if !is_auto || names <= NAMES_TWICE {
        let Some(smallest) = case.smallest() else {
            return eprintln!("{what}: no size fits");
        };
        let bytes = draw::fixed_size(&mut random, smallest);
        eprint!("{what}, {bytes} of {smallest} bytes: ");
        let verdict = case.check_fixed(bytes, &mut random);
        eprintln!("{verdict}, {:.1} s", begun.elapsed().as_secs_f64());
    }
}

/// This number of runs, or as many as the environment says.
fn run_seeds(runs: u64) {
    for program in ["e2fsck", "cat"] {
        if !testkit::have(program) {
            return testkit::skip("e2fsck and cat are needed");
        }
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let chosen = number("LANEFS_PIPE_RUNS");
    let first = number("LANEFS_PIPE_SEED").unwrap_or(0);
    let most = if chosen.is_some() {
        NAMES_LONG
    } else {
        NAMES_SHORT
    };
    let failed: Vec<u64> = (first..first + chosen.unwrap_or(runs))
        .filter(|seed| std::panic::catch_unwind(|| run(*seed, most)).is_err())
        .collect();
    assert!(failed.is_empty(), "seeds {failed:?}");
}

#[test]
fn a_pipe_gives_what_the_same_file_gives() {
    run_seeds(RUNS);
}

#[test]
#[ignore = "takes minutes: cargo xtask suites long"]
fn many_pipes_give_what_the_same_files_give() {
    run_seeds(RUNS_LONG);
}

/// Whether an image is had, its size, and options.
const LIMITS: &[(bool, &str, &str)] = &[
    // Inode tables that fill most of each group: a larger size may have less room.
    (
        true,
        "auto+55%",
        "-g 8192 -i 1192 -I 1024 -O ^extent,^metadata_csum,^filetype",
    ),
    (true, "auto+12%", "-g 8192 -i 1186 -I 1024"),
    (true, "auto+3M", "-b 1024 -g 2048 -i 1200 -I 1024"),
    (true, "auto+40%", "-b 2048 -I 2048 -i 2500 -O ^flex_bg"),
    (
        false,
        "auto",
        "-I 4096 -i 1738 -O ^sparse_super,^resize_inode",
    ),
    (false, "min", "-b 1024 -I 1024 -i 1024"),
    // An image that can't grow as far as is asked for, and one that is larger already.
    (false, "auto", "-b 1024 -E resize=100000000"),
    (
        false,
        "min",
        "-b 2048 -E resize=600000000 -O ^64bit,^flex_bg",
    ),
    (false, "auto+10%", "-b 1024 -g 1024 -E resize=4T"),
    (false, "auto", "-b 4096 -E resize=500"),
    (true, "min", "-b 1024 -E resize=8G"),
    (true, "auto", "-b 4096 -E resize=1052644"),
    // Of two reasons, the one that does not depend on the tree.
    (
        false,
        "min",
        "-b 1024 -I 1024 -N 144 -g 344 -E resize=19665672 -O ^flex_bg,sparse_super2,^64bit,^has_journal",
    ),
    // Backups need groups, which a larger image has.
    (true, "min", "-E num_backup_sb=2"),
    (true, "auto", "-b 1024 -E num_backup_sb=1 -O ^flex_bg"),
    (
        true,
        "auto+10%",
        "-b 1024 -g 1024 -E num_backup_sb=2 -O ^resize_inode",
    ),
    (
        true,
        "min",
        "-b 1024 -C 16384 -E num_backup_sb=1 -O bigalloc",
    ),
    // Inodes in groups that hold their own tables.
    (true, "min", "-g 1024 -N 1192 -O ^flex_bg,^has_journal"),
    (true, "min", "-b 1024 -N 6000 -O ^flex_bg"),
    (
        true,
        "auto",
        "-g 256 -N 3000 -O ^flex_bg,meta_bg,^resize_inode",
    ),
    (true, "min", "-g 512 -O ^flex_bg,^has_journal,sparse_super2"),
    // Tables that fill every group: that the first sizes have too few groups is not why.
    (
        false,
        "min",
        "-I 2048 -i 1139 -E num_backup_sb=1 -O meta_bg,^resize_inode,^flex_bg,^64bit,^has_journal",
    ),
    // Nor is it why that an image with a journal of 2 GiB would need large_file.
    (
        false,
        "min",
        "-b 16384 -I 4096 -i 2884 -O ^flex_bg,^64bit,fast_commit,^metadata_csum,^large_file",
    ),
    // Groups of large clusters can't have that many inodes; the image has the inodes of its part of a group.
    (
        true,
        "auto+2",
        "-b 4096 -i 7900 -C 1048576 -O bigalloc,^64bit,^has_journal",
    ),
    // Groups of a small image must be so small for their inodes that descriptors would fill them; a larger one has
    // larger groups.
    (true, "auto", "-I 128 -N 2441908 -G 1024 -O ^meta_bg,^64bit"),
    (
        true,
        "auto",
        "-I 2048 -N 112767 -E resize=49214479 -O ^flex_bg,^64bit,uninit_bg,^metadata_csum,inline_data",
    ),
    // More inodes than a group of the largest size can have, and an image that can't grow to several such groups.
    (
        true,
        "auto+2%",
        "-b 32768 -I 512 -N 166341 -J size=72 -E resize=70557 -O ^flex_bg,64bit,^metadata_csum",
    ),
    (true, "min", "-b 4096 -N 200000 -E resize=100000"),
    (true, "auto", "-b 1024 -N 40000 -E resize=20000 -O ^flex_bg"),
    (false, "auto", "-b 4096 -N 2000000 -E resize=100000"),
    // Descriptors may not be spread, and would fill most of a group of a larger image.
    (true, "min", "-b 1024 -g 408 -O ^meta_bg,^64bit"),
    (true, "auto", "-b 1024 -g 400 -N 4000 -O ^meta_bg"),
    (true, "min", "-b 1024 -g 512 -O ^meta_bg,^flex_bg,^64bit"),
    (false, "auto+2G", "-b 1024 -g 408 -O ^meta_bg,^64bit"),
];

/// Options at their limits, each with the kind of size that showed a difference: file and pipe alike, and had or not as
/// said.
#[test]
fn options_at_their_limits_are_had_or_refused_alike() {
    if !testkit::have("e2fsck") {
        return testkit::skip("e2fsck is needed");
    }
    let folder = folder().unwrap();
    let tar = folder.path().join("tree.tar");
    let mut case = Case {
        tree_bytes: make_tar(&tar, &mut Numbers::new(7), 300, false, false),
        options: Vec::new(),
        folder,
    };
    for (is_had, size, letters) in LIMITS {
        case.options = letters.split(' ').map(str::to_owned).collect();
        for name in ["file", "pipe"] {
            // The last image, unless it was refused.
            let _ = fs::remove_file(case.image(name));
        }
        let verdict = case.check_auto(size, false);
        assert_eq!(
            verdict.starts_with("alike"),
            *is_had,
            "{letters}: {verdict}"
        );
        let bytes = |name: &str| fs::metadata(case.image(name)).map_or(0, |found| found.len());
        // A pipe keeps 1 MiB for descriptors in a group that has them.
        if *size == "min" && letters.contains("^flex_bg") {
            let (file, pipe) = (bytes("file"), bytes("pipe"));
            assert!(
                pipe <= file / 4 * 5 + (4 << 20),
                "{letters}: {file}, {pipe}"
            );
        }
    }
}

/// A size that the tree fills to the last block, where a file in one more piece needs a block for its map.
#[test]
fn a_size_that_holds_a_tree_from_a_pipe_holds_it_from_a_file() {
    if !testkit::have("e2fsck") {
        return testkit::skip("e2fsck is needed");
    }
    run(93_885, NAMES_LONG);
}
