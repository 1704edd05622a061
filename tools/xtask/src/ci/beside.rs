//! The second process of a whole run, which does some of the steps at the same time. Its output is kept in a file, and
//! printed when it has ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::process;
use super::tests::Tally;

/// The second process. If the run ends first, it is killed with all processes that it started.
pub(super) struct Beside {
    /// The process; only `end` and `drop` wait for it.
    child: Child,
    /// The file with its output.
    output: PathBuf,
    /// The names of its steps, for messages.
    names: String,
}

impl Beside {
    /// Starts this program with the names of steps.
    pub(super) fn start(root: &Path, names: &[&str]) -> Result<Beside, String> {
        let names_text = names.join(" and ");
        let failed = |error: std::io::Error| format!("ci: {names_text} can't be started: {error}");
        let output = root.join("target/beside-output");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.current_dir(root).arg("ci").args(names);
        let child = process::start(&mut command, &output).map_err(failed)?;
        Ok(Beside {
            child,
            output,
            names: names_text,
        })
    }

    /// Waits until it ends, prints its output, and adds the skipped tests that this reports to `tally`.
    ///
    /// # Errors
    /// If one of its steps failed, or its output can't be read.
    pub(super) fn end(mut self, tally: &mut Tally) -> Result<(), String> {
        let status = self.child.wait();
        let text = fs::read(&self.output)
            .map_err(|error| format!("ci: {}: {error}", self.output.display()))?;
        let text = String::from_utf8_lossy(&text);
        print!("{text}");
        let notes = text
            .lines()
            .filter(|line| line.starts_with("    skipped: "));
        notes.for_each(|line| tally.read(line));
        if status.is_ok_and(|status| status.success()) {
            return Ok(());
        }
        Err(format!("ci: FAILED at {}", self.names))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // If `end` has waited for the process, its number may already belong to another process.
        if let Ok(None) = self.child.try_wait() {
            process::kill_group(&self.child);
            let _ = self.child.wait();
        }
    }
}
