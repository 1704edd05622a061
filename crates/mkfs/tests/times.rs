//! How long making an empty file system takes: the figures of docs/mkfs.md.
//!
//! `LANEFS_TIMES=/dev/shm cargo test --release -p lanefs-mkfs --test times -- --ignored --nocapture`: the directory's
//! file system must take sparse files of 15 TiB (ext4 with 4 KiB blocks and tmpfs do).

use std::path::{Path, PathBuf};

use device::{FileDevice, MemoryDevice};
use lanefs_mkfs::{Layout, Options, format};

const RUNS: usize = 5;

/// The median of five runs, in milliseconds.
fn median(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let begun = sync::clock::now();
            run();
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

fn options() -> Options {
    Options {
        device_is_zero: true,
        ..Options::default()
    }
}

/// Creates a sparse file and formats it; nothing is flushed.
fn on_file(path: &Path, size: u64) {
    let device = FileDevice::create_new(path, size).unwrap();
    let layout = Layout::plan(size, &options()).unwrap();
    format(&device, &layout).unwrap();
    drop(device);
    std::fs::remove_file(path).unwrap();
}

fn in_memory(size: u64) {
    let layout = Layout::plan(size, &options()).unwrap();
    format(&MemoryDevice::new(size), &layout).unwrap();
}

#[test]
#[ignore = "measures; run it with --release on a quiet machine"]
fn every_size_takes_half_a_second_at_most() {
    let directory = std::env::var_os("LANEFS_TIMES").map_or(std::env::temp_dir(), PathBuf::from);
    let path = directory.join("lanefs-mkfs-times.img");
    let mut slow = Vec::new();
    let mut tell = |what: &str, time: f64| {
        eprintln!("{what}: {time:.1} ms");
        if time > 500.0 {
            slow.push(what.to_owned());
        }
    };
    for (name, size) in [
        ("2 MiB file", 2 << 20),
        ("1 GiB file", 1 << 30),
        ("1 TiB file", 1 << 40),
        ("15 TiB file", 15 << 40),
    ] {
        tell(name, median(|| on_file(&path, size)));
    }
    tell("64 TiB in memory", median(|| in_memory(64 << 40)));
    assert!(slow.is_empty(), "more than half a second: {slow:?}");
}
