//! The trees that are measured: made once and kept in the cache directory.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The inputs that exist on this machine or can be made.
pub(super) fn inputs(directory: &Path, only: &[&str]) -> io::Result<Vec<(&'static str, PathBuf)>> {
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
        eprintln!("making {}", path.display());
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
    // Needs root and the network; without, its error is why this input is skipped.
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
