//! `cargo xtask bench-engine`: the engine's workloads in process, compared with mounted file systems, in one run.
//!
//! All images lie in /dev/shm, are made by `lanefs mkfs` with its defaults, and have the same size: one for the engine
//! in process, one that the kernel mounts through a loop device, and, if FUSE is available, one behind `lanefs mount`
//! and one behind fuse2fs. `lanefs-bench` measures each in turn in each round. Needs root for the kernel's mount.
//! Tables are written to `target/bench-engine.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SIZE: &str = "1G";
const WORKLOADS: [&str; 4] = ["create-unlink", "write-truncate", "stat", "fsync"];
/// Those that hold a file open while they run.
const HOLDING_FILES: [&str; 2] = ["write-truncate", "fsync"];

/// A file system that is mounted as long as this lives.
struct Mounted<'n> {
    name: &'n str,
    at: PathBuf,
}

impl<'n> Mounted<'n> {
    /// Makes an image and mounts it by a program that gets image and directory as its last arguments.
    fn new(
        lanefs: &Path,
        place: &Path,
        name: &'n str,
        mount: &[&str],
    ) -> Result<Mounted<'n>, String> {
        let image = place.join(format!("{name}.img"));
        let at = place.join(name);
        fs::create_dir_all(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let mut make = Command::new(lanefs);
        succeed(make.args(["mkfs", "-q"]).arg(&image).arg(SIZE))?;
        let (program, arguments) = mount.split_first().ok_or("no program")?;
        let mut command = Command::new(program);
        succeed(command.args(arguments).arg(&image).arg(&at))?;
        Ok(Mounted { name, at })
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = succeed(Command::new("umount").arg(&self.at)) {
            eprintln!("{error}");
        }
    }
}

/// Runs a program; its error text is the error.
fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

/// A directory that goes when this does.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Images and empty directories go; what is still mounted stays, and with it what holds it.
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir(entry.path()));
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// Measures all workloads; the arguments go to `lanefs-bench`.
pub fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut build = crate::cargo();
    build.args(["build", "--release", "--package", "lanefs-cli"]);
    build.args(["--package", "lanefs-bench", "--bins"]);
    succeed(build.current_dir(root))?;
    let lanefs = crate::built(root).join("release/lanefs");
    let place = PathBuf::from(format!("/dev/shm/lanefs-engine.{}", std::process::id()));
    fs::create_dir(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let scratch = Scratch(place);
    let program = lanefs.display().to_string();
    let mounts: [(&str, &[&str]); 3] = [
        ("kernel", &["mount", "-o", "loop"]),
        ("lanefs-mount", &[&program, "mount"]),
        ("fuse2fs", &["fuse2fs", "-o", "fakeroot"]),
    ];
    let mut mounted = Vec::new();
    for (name, mount) in mounts {
        match Mounted::new(&lanefs, &scratch.0, name, mount) {
            Ok(file_system) => mounted.push(file_system),
            Err(error) => eprintln!("skipped: {name}: {error}"),
        }
    }
    let mut tables = String::new();
    for workload in WORKLOADS {
        let mut bench = Command::new(lanefs.with_file_name("lanefs-bench"));
        bench.current_dir(&scratch.0);
        bench.args([workload, "--size", SIZE, "--image", "engine.img"]);
        bench.args(arguments);
        for file_system in &mounted {
            // A file that was open when it was removed stays under a hidden name there, in a directory that then
            // can't be removed.
            let keeps_files = file_system.name == "fuse2fs";
            if !(keeps_files && HOLDING_FILES.contains(&workload)) {
                bench.arg("--on").arg(file_system.name);
            }
        }
        let output = bench.stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("{bench:?}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{bench:?}: {}", output.status));
        }
        let table = String::from_utf8_lossy(&output.stdout);
        println!("{table}");
        tables.push_str(&format!("```text\n{table}```\n\n"));
    }
    drop(mounted);
    let path = root.join("target/bench-engine.md");
    fs::write(&path, tables).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}
