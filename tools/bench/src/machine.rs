//! What a measurement ran on, and what the processors did.

use std::process::Command;

use lanefs::Error;
use rustix::time::{ClockId, clock_gettime};

/// Names and values that describe this machine, for a report.
#[must_use]
pub fn describe() -> Vec<(&'static str, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let line_of = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(
            || "unknown".to_owned(),
            |(_, value)| value.trim().to_owned(),
        )
    };
    let cpu = read("/proc/cpuinfo");
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let memory = line_of(&read("/proc/meminfo"), "MemTotal");
    let load = read("/proc/loadavg");
    let load: Vec<&str> = load.split(' ').take(3).collect();
    vec![
        ("lanefs", env!("CARGO_PKG_VERSION").to_owned()),
        (
            "build",
            if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            }
            .to_owned(),
        ),
        ("processor", line_of(&cpu, "model name")),
        ("cores", sync::thread::available_parallelism().to_string()),
        ("memory", memory),
        ("kernel", kernel),
        ("e2fsprogs", e2fsprogs()),
        ("load before", load.join(" ")),
    ]
}

fn e2fsprogs() -> String {
    let output = Command::new("e2fsck").arg("-V").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    let text = text.unwrap_or_default();
    let version = text.split_whitespace().nth(1);
    version.unwrap_or("not there").to_owned()
}

/// Processor time of this process, kernel included, in seconds.
pub(crate) fn cpu_time() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// Processor time of the calling thread, kernel included, in seconds.
pub(crate) fn thread_time() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// User and system time of this process in seconds, counted by the kernel in hundredths.
pub(crate) fn user_and_system() -> (f64, f64) {
    let [user, system, ..] = times();
    (user, system)
}

/// Processor time of all processes that this one started and that have ended, counted as in [`user_and_system`].
pub(crate) fn children_time() -> f64 {
    let [.., user, system] = times();
    user + system
}

/// User and system time of this process, then of its children that have ended.
fn times() -> [f64; 4] {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 to 17; the second one is a name in parentheses, which may hold anything.
    let rest = text.rsplit(')').next().unwrap_or_default();
    let mut fields = rest.split_whitespace().skip(11);
    std::array::from_fn(|_| {
        let ticks: Option<f64> = fields.next().and_then(|field| field.parse().ok());
        ticks.unwrap_or(0.0) / 100.0
    })
}

/// What a program needs of wall time in seconds, the least of three runs; `None` where it can't be run. Its status must
/// be 0.
///
/// # Errors
/// What the program said, if it fails.
pub(crate) fn time_of(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<Option<f64>, Error> {
    let mut least: Option<f64> = None;
    for _ in 0..3 {
        let begin = sync::clock::now();
        let Ok(output) = Command::new(program).args(arguments).output() else {
            return Ok(None);
        };
        let time = begin.elapsed().as_secs_f64();
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            return Err(Error::Host {
                operation: "running",
                path: program.into(),
                source: std::io::Error::other(text),
            });
        }
        least = Some(least.map_or(time, |before| before.min(time)));
    }
    Ok(least)
}
