//! Programs that a measurement runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lanefs::Error;

pub(crate) fn failed(operation: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Host {
        operation,
        path: path.to_owned(),
        source,
    }
}

/// Runs a program whose failure is an error; returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    let program = PathBuf::from(command.get_program());
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed("starting", &program, error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed("running", &program, std::io::Error::other(text)))
}

/// `lanefs`, beside this program or on the path.
pub(crate) fn lanefs() -> Command {
    let this = std::env::current_exe().unwrap_or_default();
    let beside = this.with_file_name("lanefs");
    if beside.is_file() {
        Command::new(beside)
    } else {
        Command::new("lanefs")
    }
}
