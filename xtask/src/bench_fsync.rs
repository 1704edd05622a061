//! `cargo xtask bench-fsync`: fsyncs by the log beside the kernel's file systems, on disks whose flushes take their
//! time, in one run; and the source document's own fio job, on mounts.
//!
//! A disk is a loop device over a file in /dev/shm. Where its flushes are to take time, the file is seen through
//! `slow-disk` (crates/fuse/examples), whose fsyncs wait that long; reads and writes pass it by. Each file system has a
//! disk of its own, ours too; ours is also measured on such a file itself. What can't be had is left
//! out, and that is said. Needs root. Tables and charts go to docs/scaling/fsync.md and beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long flushes take, in microseconds, and for which of these fio runs.
const FLUSHES: [u32; 3] = [0, 20, 1000];
const FIO_FLUSHES: [u32; 2] = [0, 1000];
/// A disk's size.
const DISK_BYTES: u64 = 2 << 30;
/// What `lanefs bench` is told otherwise.
const USUAL: [&str; 4] = ["--rounds", "2", "--time", "0.1"];
/// How long is waited for a server to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file system of the kernel: its name here, what makes it, and how it is mounted.
struct Peer {
    name: &'static str,
    make: &'static [&'static str],
    mount: &'static [&'static str],
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "ext4",
        make: &["lanefs", "mkfs", "-q"],
        mount: &["-t", "ext4", "-o", "noinit_itable"],
    },
    Peer {
        name: "ext4-fast_commit",
        make: &["lanefs", "mkfs", "-q", "-O", "fast_commit"],
        mount: &["-t", "ext4", "-o", "noinit_itable"],
    },
    Peer {
        name: "btrfs",
        make: &["mkfs.btrfs", "-q", "-K", "-d", "single", "-m", "single"],
        mount: &["-t", "btrfs", "-o", "ssd"],
    },
];

/// Disks of ours: in process with the log, with full commits, and mounted.
const OURS: [&str; 3] = ["engine.log", "engine.full", "lanefs"];
/// And in process with the log, without a loop device.
const IMAGE_FILE: &str = "engine.file";

/// Disks of one flush time and what is mounted on them; undone when it goes.
struct Disks {
    place: PathBuf,
    lanefs: PathBuf,
    server: Option<Child>,
    devices: Vec<(String, String)>,
    mounted: Vec<PathBuf>,
}

impl Disks {
    fn new(lanefs: &Path, slow_disk: &Path, micros: u32) -> Result<Disks, String> {
        let place = PathBuf::from(format!("/dev/shm/lanefs-fsync.{}", std::process::id()));
        let mut disks = Disks {
            place: place.clone(),
            lanefs: lanefs.to_owned(),
            server: None,
            devices: Vec::new(),
            mounted: Vec::new(),
        };
        let said = |error: std::io::Error| format!("{}: {error}", place.display());
        let files = place.join("files");
        fs::create_dir_all(&files).map_err(said)?;
        let names = || PEERS.iter().map(|peer| peer.name).chain(OURS);
        for name in names().chain([IMAGE_FILE]) {
            let file = fs::File::create(files.join(name)).map_err(said)?;
            file.set_len(DISK_BYTES).map_err(said)?;
        }
        let seen = match micros {
            0 => files,
            _ => disks.serve(slow_disk, &files, micros)?,
        };
        for name in names() {
            let attach = ["--find", "--show"];
            let device = output(Command::new("losetup").args(attach).arg(seen.join(name)))?;
            disks.devices.push((name.to_owned(), device));
        }
        for name in OURS {
            std::os::unix::fs::symlink(disks.device(name)?, place.join(name)).map_err(said)?;
        }
        std::os::unix::fs::symlink(seen.join(IMAGE_FILE), place.join(IMAGE_FILE)).map_err(said)?;
        Ok(disks)
    }

    /// Has the files served by a disk that is slow, and says where.
    fn serve(&mut self, slow_disk: &Path, files: &Path, micros: u32) -> Result<PathBuf, String> {
        let seen = self.place.join("slow");
        fs::create_dir(&seen).map_err(|error| format!("{}: {error}", seen.display()))?;
        let mut server = Command::new(slow_disk);
        server.args([files, &seen]).arg(micros.to_string());
        let child = server.spawn();
        self.server = Some(child.map_err(|error| format!("{server:?}: {error}"))?);
        let begin = Instant::now();
        while !seen.join(OURS[0]).exists() {
            if begin.elapsed() > PATIENCE {
                return Err(format!("{server:?} serves nothing"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(seen)
    }

    fn device(&self, name: &str) -> Result<&str, String> {
        let found = self.devices.iter().find(|(known, _)| known == name);
        found
            .map(|(_, device)| device.as_str())
            .ok_or_else(|| format!("no disk for {name}"))
    }

    /// Makes and mounts a peer's file system.
    fn mount(&mut self, peer: &Peer) -> Result<(), String> {
        let device = self.device(peer.name)?.to_owned();
        let (program, arguments) = peer.make.split_first().ok_or("no program")?;
        let mut make = match *program {
            "lanefs" => Command::new(&self.lanefs),
            program => Command::new(program),
        };
        output(make.args(arguments).arg(&device))?;
        let mut mount = Command::new("mount");
        mount.args(peer.mount).arg(&device);
        self.mounted_by(peer.name, mount)
    }

    /// Mounts ours through FUSE.
    fn mount_ours(&mut self) -> Result<(), String> {
        let device = self.device("lanefs")?.to_owned();
        let lanefs = self.lanefs.clone();
        let mut make = Command::new(&lanefs);
        output(make.args(["mkfs", "-q", "-O", "fast_commit"]).arg(&device))?;
        let mut mount = Command::new(&lanefs);
        mount.arg("mount").arg(&device);
        self.mounted_by("lanefs-mount", mount)
    }

    fn mounted_by(&mut self, name: &str, mut mount: Command) -> Result<(), String> {
        let at = self.place.join(name);
        fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        output(mount.arg(&at))?;
        self.mounted.push(at);
        Ok(())
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let mut undo = Vec::new();
        for at in self.mounted.drain(..) {
            undo.push(output(Command::new("umount").arg(at)));
        }
        for (_, device) in self.devices.drain(..) {
            undo.push(output(Command::new("losetup").args(["-d", &device])));
        }
        if let Some(mut server) = self.server.take() {
            let seen = self.place.join("slow");
            undo.push(output(Command::new("umount").arg(seen)));
            // It ends when it is unmounted; if that failed it must not be waited for.
            if undo.iter().all(Result::is_ok) {
                let _ = server.wait();
            }
        }
        let is_undone = undo.iter().all(Result::is_ok);
        for error in undo.into_iter().filter_map(Result::err) {
            eprintln!("{error}");
        }
        if is_undone && let Err(error) = fs::remove_dir_all(&self.place) {
            eprintln!("{}: {error}", self.place.display());
        }
    }
}

/// Runs a program; what it printed, or its error text as the error.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

fn build(root: &Path, what: &[&str]) -> Result<(), String> {
    let mut build = Command::new(crate::cargo());
    build.args(["build", "--release"]).args(what);
    let built = build.current_dir(root).stderr(Stdio::inherit()).status();
    match built.map_err(|error| format!("{build:?}: {error}"))? {
        status if status.success() => Ok(()),
        status => Err(format!("{build:?}: {status}")),
    }
}

/// Measures; the first argument may be flush times, the rest goes to `lanefs bench fsync`.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    // Together, so that nothing is built twice.
    let (command, server) = (["--bin", "lanefs"], ["--example", "slow-disk"]);
    let packages = ["--package", "lanefs-cli", "--package", "lanefs-fuse"];
    build(root, &[&packages[..], &command, &server].concat())?;
    let programs = root.join("target/release");
    let (lanefs, slow_disk) = (programs.join("lanefs"), programs.join("examples/slow-disk"));
    let reports = root.join("target/bench-fsync");
    let mut page = String::from(
        "# fsync, measured\n\nMade by `cargo xtask bench-fsync`; [logtree.md](../logtree.md) says what it means.\n\n",
    );
    let mut left_out = Vec::new();
    let mut fio = String::new();
    let mut tables = String::new();
    let chosen = arguments.first().and_then(|first| {
        let times = first.split(',').map(str::parse::<u32>);
        times.collect::<Result<Vec<u32>, _>>().ok()
    });
    let arguments = &arguments[usize::from(chosen.is_some())..];
    for micros in chosen.unwrap_or(FLUSHES.to_vec()) {
        let mut disks = Disks::new(&lanefs, &slow_disk, micros)?;
        for peer in &PEERS {
            if let Err(error) = disks.mount(peer) {
                left_out.push(format!(
                    "{} with a flush of {micros} us: {error}",
                    peer.name
                ));
            }
        }
        let report = reports.join(format!("{micros}us"));
        bench(&disks, micros, &report, arguments)?;
        let text = fs::read_to_string(report.join("tables.md"));
        tables.push_str(&format!(
            "## A flush takes {micros} microseconds\n\n{}\n",
            text.map_err(|error| format!("{}: {error}", report.display()))?
        ));
        if FIO_FLUSHES.contains(&micros) {
            if let Err(error) = disks.mount_ours() {
                left_out.push(format!("lanefs mount: {error}"));
            }
            match seeds_job(&disks) {
                Ok(table) => fio.push_str(&format!(
                    "### A flush takes {micros} microseconds (MiB/s)\n\n{table}\n"
                )),
                Err(error) => left_out.push(format!("fio: {error}")),
            }
        }
        copy_charts(&report, &root.join("docs/scaling"))?;
    }
    for line in &left_out {
        eprintln!("left out: {line}");
        page.push_str(&format!("- left out: {line}\n"));
    }
    page.push_str(&format!(
        "## The source's fio job\n\n{FIO_ABOUT}\n\n{fio}{tables}"
    ));
    let path = root.join("docs/scaling/fsync.md");
    fs::write(&path, &page).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{page}");
    eprintln!("written to {}", path.display());
    Ok(())
}

/// One flush time: the bench in process and on the mounts.
fn bench(disks: &Disks, micros: u32, report: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut bench = Command::new(&disks.lanefs);
    bench.current_dir(&disks.place);
    bench.args(["bench", "fsync", "-v", "--size", "1G", "--image", "engine"]);
    bench.arg("--flush").arg(micros.to_string());
    bench.arg("--report").arg(report);
    for at in &disks.mounted {
        bench.arg("--on").arg(at.file_name().unwrap_or_default());
    }
    let arguments = if arguments.is_empty() {
        &USUAL
    } else {
        arguments
    };
    let status = bench.args(arguments).stdin(Stdio::null());
    // The tables are in the report.
    let status = status.stdout(Stdio::null()).status();
    match status.map_err(|error| format!("{bench:?}: {error}"))? {
        status if status.success() => Ok(()),
        status => Err(format!("{bench:?}: {status}")),
    }
}

const FIO_ABOUT: &str = "rw=randwrite bs=4k direct=0 ioengine=sync fallocate=none size=256M group_reporting, each job \
                         stopped after 2 seconds; system calls, to the kernel's file systems and through FUSE to ours.";

/// The source's fio job on all mounts: a table of MiB a second.
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
    // Of the fields of terse version 3 the 48th is KiB written a second.
    let rate = text
        .lines()
        .find_map(|line| line.split(';').nth(47)?.parse::<f64>().ok());
    rate.map(|rate| rate / 1024.0)
        .ok_or_else(|| format!("{fio:?} said {text}"))
}

/// Puts charts where the documentation shows them.
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
