//! `cargo xtask bench-scaling`: every bench of a report, in process beside the kernel's ext4, in one run.
//!
//! Both images lie in /dev/shm: a file for the engine (and memory), and one that the kernel mounts through a loop
//! device, made by `lanefs mkfs` with its defaults and inodes for all benches. Without root the kernel is left out, and
//! that is said. Tables go to standard output and with the charts to results/scaling, and from there into
//! the mechanisms' pages; the whole report to target/bench-scaling.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::measured;

/// The kernel's image: room and inodes for the largest bench.
const KERNEL_SIZE: &str = "6G";
/// As large a journal as the engine's smaller image has by default.
const KERNEL_JOURNAL: &str = "size=32";
const KERNEL_INODES: &str = "800000";
/// The engine's file.
const SIZE: &str = "1G";

/// What is undone at the end, whatever came of the run.
struct Undo {
    place: PathBuf,
    mounted: bool,
    device: Option<String>,
}

impl Drop for Undo {
    fn drop(&mut self) {
        let mut undo = Vec::new();
        if self.mounted {
            undo.push(output(
                Command::new("umount").arg(self.place.join("kernel")),
            ));
        }
        if let Some(device) = &self.device {
            undo.push(output(Command::new("losetup").args(["-d", device])));
        }
        for error in undo.into_iter().filter_map(Result::err) {
            eprintln!("{error}");
        }
        for entry in fs::read_dir(&self.place).into_iter().flatten().flatten() {
            // A directory is empty unless it is still mounted, and then it stays.
            let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir(entry.path()));
        }
        let _ = fs::remove_dir(&self.place);
    }
}

/// Runs a program; what it printed, or its error text as the error.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

/// Makes an image and has the kernel mount it.
fn mount_kernel(lanefs: &Path, undo: &mut Undo) -> Result<(), String> {
    let (image, at) = (undo.place.join("kernel.img"), undo.place.join("kernel"));
    fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
    let mut make = Command::new(lanefs);
    make.args(["mkfs", "-q", "-N", KERNEL_INODES, "-J", KERNEL_JOURNAL]);
    output(make.arg(&image).arg(KERNEL_SIZE))?;
    // Without holes, as ours.
    output(
        Command::new("fallocate")
            .args(["--length", KERNEL_SIZE])
            .arg(&image),
    )?;
    let attach = ["--find", "--show"];
    let device = output(Command::new("losetup").args(attach).arg(&image))?;
    undo.device = Some(device.clone());
    output(Command::new("mount").args(["-t", "ext4", &device]).arg(&at))?;
    undo.mounted = true;
    Ok(())
}

/// Measures; the arguments go to `lanefs-bench all`.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    crate::build_bench(root)?;
    let lanefs = crate::built(root).join("release/lanefs");
    let report = root.join("target/bench-scaling");
    let place = PathBuf::from(format!("/dev/shm/lanefs-scaling.{}", std::process::id()));
    fs::create_dir(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let mut undo = Undo {
        place,
        mounted: false,
        device: None,
    };
    let mut bench = Command::new(lanefs.with_file_name("lanefs-bench"));
    bench.current_dir(&undo.place);
    bench.args(["all", "-v", "--size", SIZE, "--image", "engine.img"]);
    bench.arg("--report").arg(&report).args(arguments);
    match mount_kernel(&lanefs, &mut undo) {
        Ok(()) => drop(bench.args(["--on", "kernel", "--remount"])),
        Err(error) => eprintln!("left out: the kernel's ext4: {error}"),
    }
    // The tables are in the report.
    let status = bench.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.map_err(|error| format!("{bench:?}: {error}"))?;
    drop(undo);
    let tables = report.join("tables.md");
    let text = fs::read_to_string(&tables);
    println!(
        "{}",
        text.map_err(|error| format!("{}: {error}", tables.display()))?
    );
    let charts = root.join("results/scaling");
    copy(&report, &charts).map_err(|error| format!("{}: {error}", charts.display()))?;
    measured::update(root)?;
    eprintln!(
        "tables and charts in {}, all of it in {}",
        charts.display(),
        report.display()
    );
    if status.success() {
        Ok(())
    } else {
        Err(format!("a bench failed: {status}"))
    }
}

/// Copies tables and charts to results/.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    let tables = fs::read_to_string(from.join("tables.md"))?;
    fs::write(
        to.join("tables.md"),
        format!("# All tables\n\nMade by `cargo xtask bench-scaling`.\n\n{tables}"),
    )?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "svg") {
            fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}
