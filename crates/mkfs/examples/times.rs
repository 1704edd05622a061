//! Prints how long making an empty file system takes: medians of five, for docs/mkfs.md. A file's time includes
//! creating it; nothing is flushed.
//!
//! `cargo run --release -p lanefs-mkfs --example times -- DIRECTORY`: the directory's file system must take sparse files
//! of 15 TiB (ext4 with 4 KiB blocks and tmpfs do).

use std::path::Path;

use device::{FileDevice, MemoryDevice};
use lanefs_mkfs::{Layout, Options, format};

const RUNS: usize = 5;

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

fn on_file(path: &Path, size: u64, options: &Options) {
    let device = FileDevice::create(path, size).expect("the file can be made");
    let layout = Layout::plan(size, options).expect("the plan works");
    format(&device, &layout).expect("the device works");
}

fn main() {
    let directory = std::env::args().nth(1).unwrap_or(".".into());
    let path = Path::new(&directory).join("lanefs-mkfs-times.img");
    let options = Options {
        device_is_zero: true,
        ..Options::default()
    };
    for (name, size) in [
        ("2 MiB", 2 << 20),
        ("1 GiB", 1 << 30),
        ("1 TiB", 1 << 40),
        ("15 TiB", 15 << 40),
    ] {
        let time = median(|| {
            // Removing is not part of making.
            on_file(&path, size, &options);
        });
        println!("{name} file: {time:.1} ms");
    }
    let _ = std::fs::remove_file(&path);
    for (name, size) in [("15 TiB", 15_u64 << 40), ("64 TiB", 64 << 40)] {
        let mut plan = Vec::new();
        let mut last = None;
        let time = median(|| {
            let begun = sync::clock::now();
            let layout = Layout::plan(size, &options).expect("the plan works");
            plan.push(begun.elapsed().as_secs_f64() * 1e3);
            let device = MemoryDevice::new(size);
            format(&device, &layout).expect("the device works");
            last = Some(device);
        });
        plan.sort_by(f64::total_cmp);
        println!(
            "{name} in memory: {time:.1} ms, {:.1} ms of these for the plan",
            plan[RUNS / 2]
        );
    }
}
