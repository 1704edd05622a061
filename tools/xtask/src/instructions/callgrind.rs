//! Builds the program whose operations are counted, and runs it under callgrind, once for each operation.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use super::baseline::InstructionCounts;

const PROFILE: &str = "instructions";
/// The function whose instructions are collected, with those of all that it calls.
const MEASURED: &str = "*lanefs_measured*";

/// What valgrind calls its version, where it is installed.
pub fn version() -> Option<String> {
    output(Command::new("valgrind").arg("--version")).ok()
}

/// What the counts depend on besides the code: compiler, valgrind, C library, processor.
pub fn tools(root: &Path, valgrind: &str) -> Result<Vec<String>, String> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let rustc = output(Command::new(compiler).current_dir(root).arg("--version"))?;
    let libc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    Ok(vec![rustc, valgrind.to_owned(), libc, processor()])
}

/// The instruction set, with the extension that memcpy and checksums choose their code by.
fn processor() -> String {
    let arch = std::env::consts::ARCH;
    let described = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if described.split_whitespace().any(|word| word == "avx2") {
        format!("{arch} with avx2")
    } else {
        arch.to_owned()
    }
}

/// The commit that is checked out.
pub fn commit(root: &Path) -> Result<String, String> {
    let mut git = Command::new("git");
    git.current_dir(root);
    output(git.args([
        "describe",
        "--always",
        "--exclude=*",
        "--dirty=, with changes",
    ]))
}

/// Counts the instructions of all operations, on all processors.
pub fn count(root: &Path) -> Result<InstructionCounts, String> {
    let program = build(root)?;
    let listed = output(Command::new(&program).arg("--list"))?;
    let mut lines = listed.lines();
    let calls = lines.next().and_then(|calls| calls.parse::<u32>().ok());
    let calls = calls.ok_or("the program lists no number of calls")?;
    let folder = program.with_file_name("callgrind");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let waiting = Mutex::new(lines.map(str::to_owned).collect::<VecDeque<_>>());
    let next = || waiting.lock().ok()?.pop_front();
    let worker = |cpu: usize| -> Result<InstructionCounts, String> {
        let mut counts = InstructionCounts::new();
        while let Some(name) = next() {
            let total = instructions(&program, &name, cpu, &folder)?;
            counts.insert(name, total / f64::from(calls));
        }
        Ok(counts)
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let counted: Vec<Result<InstructionCounts, String>> = thread::scope(|scope| {
        let start = |cpu| scope.spawn(move || worker(cpu));
        let threads: Vec<_> = (0..workers).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join();
        let failed = |_| Err("a thread that counts panicked".to_owned());
        threads
            .into_iter()
            .map(|thread| join(thread).unwrap_or_else(failed))
            .collect()
    });
    let mut counts = InstructionCounts::new();
    for part in counted {
        counts.extend(part?);
    }
    Ok(counts)
}

fn build(root: &Path) -> Result<PathBuf, String> {
    let status = crate::cargo()
        .current_dir(root)
        .args(["build", "--quiet", "--locked", "--profile", PROFILE])
        .args(["--package", "lanefs-instructions"])
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if status.success() {
        Ok(crate::built(root).join(PROFILE).join("instructions"))
    } else {
        Err("building the program that is counted failed".to_owned())
    }
}

/// Counts one operation. The program sees the same words and nothing else on every machine: its own path is relative,
/// and the environment has the path of programs only, which valgrind needs.
fn instructions(program: &Path, name: &str, cpu: usize, folder: &Path) -> Result<f64, String> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .current_dir(folder)
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/local/bin")
        .args(["--quiet", "--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={MEASURED}"))
        .arg(format!("--callgrind-out-file={name}"))
        .arg(Path::new("..").join(program.file_name().unwrap_or_default()))
        .args([name, &cpu.to_string()]);
    output(&mut valgrind)?;
    let profile = folder.join(name);
    let text = std::fs::read_to_string(&profile)
        .map_err(|error| format!("{}: {error}", profile.display()))?;
    summary(&text).ok_or_else(|| format!("{name}: callgrind collected no instruction"))
}

/// The number of instructions that a profile adds up to.
fn summary(profile: &str) -> Option<f64> {
    let mut lines = profile.lines();
    let total = lines.find_map(|line| line.strip_prefix("summary: "))?;
    total.trim().parse().ok().filter(|total| *total > 0.0)
}

/// What a command prints, without the end of its last line.
pub fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{program} does not start: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program} failed: {}", errors.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_without_instructions_is_not_a_count() {
        assert_eq!(summary("events: Ir\nsummary: 1234\n\nfn=(1)"), Some(1234.0));
        assert_eq!(summary("events: Ir\nsummary: 0\n"), None);
        assert_eq!(summary("events: Ir\n"), None);
    }
}
