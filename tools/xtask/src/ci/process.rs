//! Processes that run beside this one, each with a group of its own and its output in a file: each can be killed with
//! all that it started, and nobody waits for the end of a pipe that a process which outlives it holds open.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Starts a process that leads a group and writes to `log`.
pub(super) fn start(command: &mut Command, log: &Path) -> io::Result<Child> {
    let file = File::create(log)?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0)
        .spawn()
}

/// Kills a process that leads a group, and all of that group. It must not have been waited for.
pub(super) fn kill_group(child: &Child) {
    if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// Waits for the end of a process. After the limit it kills the process and its group, and returns `None`.
pub(super) fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            kill_group(child);
            // A process that waits in the kernel may not end even now; the run goes on without it.
            std::thread::sleep(Duration::from_secs(1));
            let _ = child.try_wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_ended_with_its_children() {
        let begun = Instant::now();
        let mut child = Command::new("sh")
            .args(["-c", "sleep 600 & wait"])
            .process_group(0)
            .spawn()
            .unwrap();
        assert!(
            wait(&mut child, Duration::from_millis(100))
                .unwrap()
                .is_none()
        );
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
