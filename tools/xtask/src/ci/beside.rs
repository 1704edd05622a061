//! Steps of a whole run that a second process does meanwhile. Its output is kept in a file, and shown when it has
//! ended.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::tests::{Tally, kill_group};

/// The process. It and what it started are killed where the run ends before it.
pub(super) struct Beside {
    /// Waited for by `end` and `drop` only.
    child: Child,
    /// Where its output is.
    output: PathBuf,
    /// The steps, for messages.
    names: String,
}

impl Beside {
    /// Starts this program with the names of steps.
    pub(super) fn start(root: &Path, names: &[&str]) -> Result<Beside, String> {
        let names_text = names.join(" and ");
        let failed = |error: std::io::Error| format!("ci: {names_text} can't be started: {error}");
        let output = root.join("target/beside-output");
        let file = File::create(&output).map_err(failed)?;
        let this = std::env::current_exe().map_err(failed)?;
        let child = Command::new(this)
            .current_dir(root)
            .arg("ci")
            .args(names)
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(failed)?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(Beside {
            child,
            output,
            names: names_text,
        })
    }

    /// Waits for the end, shows the output, and counts what it says was skipped.
    ///
    /// # Errors
    /// Where one of the steps failed.
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
        match status {
            Ok(status) if status.success() => Ok(()),
            _ => Err(format!("ci: FAILED at {}", self.names)),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // After `end` the process was waited for, and its number may be another one's.
        if let Ok(None) = self.child.try_wait() {
            kill_group(&self.child);
            let _ = self.child.wait();
        }
    }
}
