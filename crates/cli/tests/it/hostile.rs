//! Every reading command on damaged images: an end within bounds of time and memory, whatever the image says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use corpus::{PatchedBytes, Structures, mutant, seeds};
use sync::clock::{self, Duration};

/// What a command may take beyond the cache of metadata (32 MiB), in KiB of private memory.
const MEMORY_KIB: u64 = (256 + 32) << 10;
/// How long no command may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// A command that is still writing after this time is stopped: a file may claim to have 16 TiB of zeros.
const ENOUGH: Duration = Duration::from_secs(15);

/// The commands; `IMAGE` and `DEST` stand for paths.
const COMMANDS: &[&str] = &[
    "info IMAGE",
    "map IMAGE",
    "tree IMAGE",
    "du IMAGE",
    "find IMAGE",
    "cat IMAGE:/small IMAGE:/large IMAGE:/holes",
    "extract IMAGE -",
    "extract IMAGE DEST",
    "dump IMAGE superblock",
    "dump IMAGE group 0",
    "dump IMAGE inode 8",
    "dump IMAGE inode /large",
    "dump IMAGE dir /names",
    "dump IMAGE extents /large",
    "dump IMAGE journal",
    "dump IMAGE orphan",
    "dump IMAGE deleted",
];

/// What running a command took.
#[derive(Clone, Copy, Default)]
struct Cost {
    silence: Duration,
    time: Duration,
    /// Largest resident memory; 0 where GNU time is missing.
    kib: u64,
    stopped: bool,
}

/// Runs a command until it ends or has written for long enough.
fn run(command: &str, image: &Path, folder: &Path) -> Result<Cost, String> {
    let program = std::env::var("LANEFS_BIN");
    let program = program.unwrap_or_else(|_| env!("CARGO_BIN_EXE_lanefs").to_owned());
    let (measured, dest) = (folder.join("measured"), folder.join("dest"));
    let messages = folder.join("messages");
    let mut line = vec![program];
    line.extend(command.split(' ').map(|word| match word {
        "DEST" => dest.display().to_string(),
        _ => word.replace("IMAGE", &image.display().to_string()),
    }));
    let script = format!(
        "ulimit -c 0; ulimit -d {MEMORY_KIB}; if [ -x /usr/bin/time ]; then \
         exec /usr/bin/time -q -f %M -o {} \"$0\" \"$@\"; else exec \"$0\" \"$@\"; fi",
        measured.display()
    );
    let errors = File::create(&messages).map_err(|error| error.to_string())?;
    let began = clock::now();
    let mut child = Command::new("timeout")
        .arg((ENOUGH.as_secs() + 10).to_string())
        .args(["sh", "-c", &script])
        .args(&line)
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(|error| error.to_string())?;
    let (mut cost, mut last) = (Cost::default(), began);
    let mut stdout = child.stdout.take().ok_or("no standard output")?;
    let mut part = vec![0; 1 << 16];
    loop {
        let count = stdout.read(&mut part).map_err(|error| error.to_string())?;
        cost.silence = cost.silence.max(last.elapsed());
        last = clock::now();
        if count == 0 {
            break;
        }
        if began.elapsed() > ENOUGH {
            cost.stopped = true;
            break;
        }
    }
    // A command that still writes gets EPIPE, and ends.
    drop(stdout);
    let status = child.wait().map_err(|error| error.to_string())?;
    cost.silence = cost.silence.max(last.elapsed());
    cost.time = began.elapsed();
    let text = std::fs::read(&messages).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&text);
    let measured = std::fs::read_to_string(measured).unwrap_or_default();
    cost.kib = measured.trim().parse().unwrap_or(0);
    let _ = std::fs::remove_dir_all(&dest);
    let code = status.code();
    let is_usual = matches!(code, Some(0..=1)) || cost.stopped;
    if !is_usual || text.contains("panicked") || text.contains("memory allocation") {
        let end: String = text.chars().take(2000).collect();
        return Err(format!("{status}: {end}"));
    }
    if cost.silence > SILENCE_MAX {
        return Err(format!("silent for {:?}", cost.silence));
    }
    Ok(cost)
}

/// `LANEFS_MUTANTS` of each image of the corpus, from number `LANEFS_FIRST`, with a share of the commands in turn;
/// `LANEFS_BIN` is another program, `LANEFS_KEEP` where images that fail are kept.
#[test]
fn commands_on_damaged_images_end_within_bounds_of_time_and_memory() {
    run_on_damaged_images(13);
}

#[test]
#[ignore = "minutes: cargo xtask suites long"]
fn many_commands_on_damaged_images_end_within_bounds_of_time_and_memory() {
    run_on_damaged_images(1);
}

/// As the tests above, with each `every`th command in turn unless `LANEFS_EVERY` is given.
fn run_on_damaged_images(every: u64) {
    let (first, count) = (
        testkit::number_in("LANEFS_FIRST", 1000),
        testkit::number_in("LANEFS_MUTANTS", 1),
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let mut most: BTreeMap<&str, Cost> = BTreeMap::new();
    let every = usize::try_from(testkit::number_in("LANEFS_EVERY", every)).unwrap_or(1);
    let (mut images, mut runs, mut failed) = (0, 0, Vec::new());
    for seed in seeds() {
        let structures = Structures::of(&PatchedBytes::new(seed.bytes.clone()));
        // The image itself comes first.
        for number in std::iter::once(None).chain((first..first + count).map(Some)) {
            let bytes = match number {
                Some(number) => mutant(&seed.bytes, &structures, number).0.to_vec(),
                None => seed.bytes.to_vec(),
            };
            std::fs::write(&path, bytes).expect("the image is written");
            images += 1;
            for command in COMMANDS.iter().skip(images % every).step_by(every) {
                runs += 1;
                match run(command, &path, folder.path()) {
                    Ok(cost) => {
                        let most = most.entry(command).or_default();
                        most.silence = most.silence.max(cost.silence);
                        most.time = most.time.max(cost.time);
                        most.kib = most.kib.max(cost.kib);
                        most.stopped |= cost.stopped;
                    }
                    Err(error) => {
                        let keep = std::env::var("LANEFS_KEEP");
                        if let Ok(keep) = keep {
                            let name = format!("{}-{number:?}-{runs}", seed.name);
                            let _ = std::fs::copy(&path, Path::new(&keep).join(name));
                        }
                        eprintln!("{command} on {} {number:?}: {error}", seed.name);
                        failed.push(format!("{command} on {} {number:?}", seed.name));
                    }
                }
            }
        }
    }
    eprintln!("{images} images, {runs} runs");
    for (command, cost) in &most {
        eprintln!(
            "{command:34} {:6.1} MiB, {:7.3} s, {:7.3} s silent{}",
            cost.kib as f64 / 1024.0,
            cost.time.as_secs_f64(),
            cost.silence.as_secs_f64(),
            if cost.stopped { ", stopped" } else { "" }
        );
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
