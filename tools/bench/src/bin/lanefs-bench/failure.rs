//! The failure of a run: what failed, where, and the exit status for scripts.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// The exit status of a run that failed.
const FAILED: u8 = 1;
/// The exit status for an invalid command line.
const USAGE: u8 = 2;
/// The exit status when the reader of the output has ended (128 + SIGPIPE).
const BROKEN_PIPE: u8 = 141;

/// Why a run failed.
#[derive(Debug)]
pub struct RunFailure {
    message: Option<String>,
    status: u8,
}

impl RunFailure {
    /// A failure of the run: what failed, and where.
    pub fn new(message: impl Display) -> RunFailure {
        RunFailure {
            message: Some(message.to_string()),
            status: FAILED,
        }
    }

    /// An invalid command line.
    pub fn usage(message: impl Display) -> RunFailure {
        RunFailure {
            status: USAGE,
            ..RunFailure::new(message)
        }
    }

    /// A failure whose errors were already reported one by one; only the exit status is left.
    pub fn told() -> RunFailure {
        RunFailure {
            message: None,
            status: FAILED,
        }
    }

    /// Adds the place of the failure before its message.
    #[must_use]
    pub fn at(self, place: impl Display) -> RunFailure {
        RunFailure {
            message: self.message.map(|message| format!("{place}: {message}")),
            ..self
        }
    }

    /// Prints the message; returns the exit status.
    pub fn report(&self) -> ExitCode {
        if let Some(message) = &self.message {
            // Standard error may be closed; the exit status still reports the failure.
            let _ = writeln!(io::stderr().lock(), "lanefs-bench: error: {message}");
        }
        ExitCode::from(self.status)
    }
}

/// For `?` on writes to standard output, which are the only bare I/O errors: errors of files name the file.
impl From<io::Error> for RunFailure {
    fn from(error: io::Error) -> RunFailure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => RunFailure {
                message: None,
                status: BROKEN_PIPE,
            },
            _ => RunFailure::new(format!("writing to standard output failed: {error}")),
        }
    }
}
